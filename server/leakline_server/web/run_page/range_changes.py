"""What changed between two points of a run: objects by type, phases and processes, what gained most bytes first.

A value at a point is the newest reading up to it, looked for as far back as the points are apart (at least
LEAST_LOOKED_BACK); the value at the later point is read after the earlier one, or it says nothing of the time between.
What was not read there is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from leakline.analysis.findings.growth_tables import series_of, with_verdict
from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.results import PhaseAccounts, TypeGrowth
from leakline.analysis.run_history import TENSOR as JS_TENSOR
from leakline.analysis.status import GROWING

from ...charts.chart_builder import accounts_within
from ...charts.chart_parts import JS_PRIVATE, PRIVATE, Axis
from ...errors import InvalidField
from ...limits import MAX_POINTS
from ...store.engine import Engine
from ...store.runs.runs import unix
from ...store.series import SeriesQuery, summarise
from ..axis_zoom import TwoPoints
from ..derived_analysis import Derived
from .counted_objects import suspects_first
from .run_data import Json, process_label

# Of a run of more processes, those that grow most are read: each takes up to four questions.
MOST_PROCESSES: Final = 64
# In generations, or in minutes of a run that counts none.
LEAST_LOOKED_BACK: Final = 64
_MEMORY: Final = (PRIVATE, JS_PRIVATE)
_MEMORY_NAMES: Final = (*PRIVATE, *JS_PRIVATE)
_EVERY_NAME: Final = ("type.*.count", "type.*.bytes", *series_of(JS_TENSOR), *_MEMORY_NAMES)


@dataclass(frozen=True, slots=True)
class Reading:
    """``at``: as TwoPoints."""

    at: float
    value: float


# Series -> its newest reading up to a point.
Readings = Mapping[str, Reading]


def recorded(run: Json, axis: Axis, derived: Derived) -> TwoPoints | None:
    """Return the first and the last point that a run can be asked for; None where nothing can be compared yet."""
    if axis.unit == "time":
        if derived.read_between is None:
            return None
        first, last = (moment - unix(run["started_at"]) for moment in derived.read_between)
        # A run may have begun before a process had its first reading, and clocks differ.
        return TwoPoints(min(0, first), last) if last > 0 else None
    accounts = derived.phase_accounts
    if accounts.count() < 2:
        return None
    first = accounts.generations[0] - accounts.span(0) + 1
    return TwoPoints(first, accounts.generations[-1])


def checked(run: Json, axis: Axis, asked: TwoPoints, known: TwoPoints | None) -> TwoPoints:
    """Return what was asked for, whole numbers of generations as such. Raises InvalidField."""
    if not asked.first < asked.last:
        raise InvalidField(
            "from", asked.first, f"must be smaller than to, which is {asked.last:.15g}"
        )
    if known is None:
        raise InvalidField(
            "from", asked.first, f"this run has not recorded two {run['unit']}s to compare yet"
        )
    what = "generations" if axis.unit == "generation" else "seconds since the start"
    for field, value in (("from", asked.first), ("to", asked.last)):
        if axis.unit == "generation" and value != round(value):
            raise InvalidField(field, value, "must be a whole generation")
        if not known.first <= value <= known.last:
            raise InvalidField(
                field, value,
                f"must lie in what was recorded: {what} from {known.first:.15g} to {known.last:.15g}",
            )  # fmt: skip
    if axis.unit == "time":
        return asked
    return TwoPoints(int(asked.first), int(asked.last))


def unit_on(run: Json, axis: Axis) -> tuple[str, float]:
    """Return what rates are per, and what one of it is worth as TwoPoints; minutes before a verdict says otherwise."""
    if axis.unit == "generation":
        return run["unit"], 1.0
    unit = run["unit"] if run["unit"] in UNITS_OF_TIME else "minute"
    return unit, UNITS_OF_TIME[unit]


def read_changes(
    engine: Engine,
    run: Json,
    processes: Sequence[Json],
    axis: Axis,
    derived: Derived,
    verdict: Json | None,
    asked: TwoPoints,
) -> dict[str, Any]:
    """As the API answers. ``processes``: {instance, rank, role} of all."""
    types = suspects_first(with_verdict(derived.types, verdict), verdict)
    grown = {process_label(each): _growth(each) for each in run["processes"]}
    labels = list(dict.fromkeys(process_label(each) for each in processes))
    labels.sort(key=lambda label: -grown.get(label, float("-inf")))
    known = [name for each in types for name in series_of(each.name)]
    readings = {}
    for label in labels[:MOST_PROCESSES]:
        instances = [each["instance"] for each in processes if process_label(each) == label]
        both = _Reader(engine, run, axis, instances, known).at_both(asked)
        if any(both):
            readings[label] = both
    unit, each_unit = unit_on(run, axis)
    left_out = max(0, len(labels) - MOST_PROCESSES)
    rows = _processes(readings, each_unit)
    booked = None if axis.unit == "time" else _booked(derived.phase_accounts, asked)
    return {
        "unit": unit,
        "axis": axis.unit,
        "before": asked.first,
        "after": asked.last,
        "total": _total([] if left_out else rows),
        "types": _types(readings, types, verdict, each_unit),
        "booked": booked and {name: booked[name] for name in ("first", "last", "generations", "bytes")},
        "phases": booked["lines"] if booked else [],
        "processes": rows,
        "processes_left_out": left_out,
    }  # fmt: skip


def _growth(process: Json) -> float:
    growth = process["growth_bytes_per_generation"]
    return float("-inf") if growth is None else float(growth["estimate"])


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one process: its attempts, the newest last. ``known``: series that some process of the run has."""

    engine: Engine
    run: Json
    axis: Axis
    instances: Sequence[str]
    known: Sequence[str]

    def at_both(self, asked: TwoPoints) -> tuple[Readings, Readings]:
        least = LEAST_LOOKED_BACK * (60 if self.axis.unit == "time" else 1)
        back = max(asked.last - asked.first, least)
        before = self._newest(asked.first - back, asked.first)
        after = self._newest(asked.first, asked.last)
        # The earlier point itself is in what was read for the later one.
        return before, {name: each for name, each in after.items() if each.at > asked.first}

    def _newest(self, start: float, stop: float) -> dict[str, Reading]:
        """Of the last attempt that has something there: what an earlier one held is gone."""
        for instance in reversed(self.instances):
            found: dict[str, Reading] = {}
            missing: Sequence[str] = _EVERY_NAME
            if self.axis.unit == "generation":
                # Nearly always all of it is in this one snapshot.
                found = self._read(instance, stop, stop, missing)
                missing = [name for name in self.known if name not in found]
                if not any(names[0] in found for names in _MEMORY):
                    missing += _MEMORY_NAMES
            if missing:
                found = self._read(instance, start, stop, missing) | found
            if found:
                return found
        return {}

    def _read(
        self, instance: str, start: float, stop: float, names: Sequence[str]
    ) -> dict[str, Reading]:
        on_time = self.axis.unit == "time"
        zero = unix(self.run["started_at"]) if on_time else 0
        kind = None if on_time else "generation_end"
        query = SeriesQuery(
            tuple(names),
            None,
            kind,
            instance,
            self.axis.unit,
            zero + start,
            zero + stop,
            MAX_POINTS,
        )
        items = summarise(self.engine, [self.run["id"]], query)["items"]
        return {each["name"]: Reading(each["x"][-1] - zero, each["last"][-1]) for each in items}


# Process -> its readings at both points.
_Both = Mapping[str, tuple[Readings, Readings]]


def _processes(readings: _Both, each_unit: float) -> list[dict[str, Any]]:
    rows = []
    for label, (before, after) in readings.items():
        # The same kind of memory at both points.
        names = next((n for n in _MEMORY if n[0] in before or n[0] in after), PRIVATE)
        rows.append({"process": label, **asdict(_memory(before, after, names, each_unit))})
    return sorted(rows, key=_most_bytes)


@dataclass(frozen=True, slots=True)
class _Memory:
    bytes_before: float | None
    bytes_after: float | None
    bytes_change: float | None
    bytes_per_generation: float | None


def _memory(before: Readings, after: Readings, names: Sequence[str], each_unit: float) -> _Memory:
    first, last = _sum(before, names), _sum(after, names)
    change = None if first is None or last is None else last - first
    rate = None
    if change is not None:
        rate = change / ((after[names[0]].at - before[names[0]].at) / each_unit)
    return _Memory(first, last, change, rate)


def _sum(readings: Readings, names: Sequence[str]) -> float | None:
    """Without the first nothing is known; what swap takes is not measured everywhere."""
    if names[0] not in readings:
        return None
    return sum(readings[name].value for name in names if name in readings)


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Of all processes together; nothing is known of it where one of them is not."""
    names = ("bytes_before", "bytes_after", "bytes_change", "bytes_per_generation")
    return {name: sum_of_known(row[name] for row in rows) for name in names}


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """None without any, and where one is not known."""
    found = list(values)
    known = [each for each in found if each is not None]
    return sum(known) if known and len(known) == len(found) else None


def _types(
    readings: _Both, types: Sequence[TypeGrowth], verdict: Json | None, each_unit: float
) -> list[dict[str, Any]]:
    findings = [f for f in (verdict or {}).get("findings", ()) if f["status"] in GROWING]
    named = {s["name"] for f in findings for s in f["suspects"] if s["role"] == "type"}
    rows = []
    for each in types:
        row = _type(readings, each.name, each_unit)
        if row is not None:
            sized = _with_size(row, each, each.name in named)
            rows.append(sized)
    # Of several that gained as much, what a finding names stays first.
    return sorted(rows, key=_most_bytes)


def _type(readings: _Both, name: str, each_unit: float) -> dict[str, Any] | None:
    counts, sizes = series_of(name)
    having = [both for both in readings.values() if any(counts in each for each in both)]
    if not having:
        return None
    # Of each process: number at both points, rate; and its bytes.
    before = [both[0].get(counts) for both in having]
    after = [both[1].get(counts) for both in having]
    rates = [
        None
        if first is None or last is None
        else (last.value - first.value) / ((last.at - first.at) / each_unit)
        for first, last in zip(before, after, strict=True)
    ]
    first, last = (
        sum_of_known(None if each is None else each.value for each in side)
        for side in (before, after)
    )
    small, large = (
        sum_of_known(None if sizes not in both[i] else both[i][sizes].value for both in having)
        for i in (0, 1)
    )
    return {
        "type": name,
        "count_before": first,
        "count_after": last,
        "count_change": _less(last, first),
        "count_per_generation": sum_of_known(rates),
        "bytes_change": _less(large, small),
        "counted_before_at": min((each.at for each in before if each), default=None),
        "counted_after_at": min((each.at for each in after if each), default=None),
    }


def _less(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _with_size(row: dict[str, Any], of: TypeGrowth, is_named: bool) -> dict[str, Any]:
    """With the bytes it gained: its own; where nobody has measured these, or a finding names the type, as many as one
    of them keeps alive over the whole run, if that is more."""
    rate = of.count_per_generation.estimate if of.count_per_generation else 0.0
    size = of.bytes_per_generation / rate if rate and of.bytes_per_generation else 0.0
    count, own = row["count_change"], row["bytes_change"]
    if count is not None and size > 0 and (own is None or (is_named and count * size > own)):
        row["bytes_change"] = count * size
    return row


def _booked(accounts: PhaseAccounts, asked: TwoPoints) -> dict[str, Any] | None:
    """The generations after the first point up to the last, as far as each is reported on its own or with others
    among them: older ones of a very long run are reported together."""
    kept = [
        generation
        for place, generation in enumerate(accounts.generations)
        if asked.first <= generation - accounts.span(place) and generation <= asked.last
    ]
    if not kept:
        return None
    within = accounts_within(accounts, kept[0], kept[-1])
    count = within.count()
    lines = [
        {
            "phase": line.name,
            "bytes_change": sum(line.bytes),
            "bytes_per_generation": sum(line.bytes) / count,
        }
        for line in within.lines
    ]
    return {
        "first": kept[0] - within.span(0) + 1,
        "last": kept[-1],
        "generations": count,
        "bytes": sum(within.total),
        "lines": sorted(lines, key=_most_bytes),
    }


def _most_bytes(row: Mapping[str, Any]) -> tuple[bool, float, float]:
    """What is not known comes last; types of which no bytes are known, by their number."""
    change = row["bytes_change"]
    return change is None, -(change or 0.0), -(row.get("count_change") or 0.0)
