"""Changes between two points of a run: types, phases and processes, sorted by bytes gained.

The value at a point is the newest reading at or before the point. The search goes back by the
distance between the points, but at least by LEAST_LOOKED_BACK. The value at the later point must
have been read after the earlier point; otherwise it says nothing about the time between the
points. A missing value is None. A process that ended before a point has 0 bytes at that point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from leakline.analysis.findings.growth_tables import series_of, with_verdict
from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.memory.memory_kinds import CHILDREN, of_ranks
from leakline.analysis.results import PhaseAccounts, TypeGrowth
from leakline.analysis.run_history import TENSOR as JS_TENSOR
from leakline.analysis.status import GROWING
from leakline.text_format import plural

from ...charts.chart_builder import accounts_within
from ...charts.chart_parts import JS_PRIVATE, PRIVATE, Axis, is_behind, step_of
from ...errors import InvalidField
from ...limits import MAX_POINTS
from ...store.engine import Engine
from ...store.runs.runs import unix
from ...store.series import SeriesQuery, has_series, summarise
from ..axis_zoom import TwoPoints
from ..derived_analysis import Derived
from .counted_objects import suspects_first
from .run_charts import CHILDREN_LAYER, is_over
from .run_data import Json, process_label

# At most this many of the fastest-growing processes are read: each takes up to five queries.
MOST_PROCESSES: Final = 64
# In generations, or in minutes for a run without generations.
LEAST_LOOKED_BACK: Final = 64
_MEMORY: Final = (PRIVATE, JS_PRIVATE)
_MEMORY_NAMES: Final = (*PRIVATE, *JS_PRIVATE)
_CHILDREN_NAMES: Final = (*CHILDREN, *map(of_ranks, CHILDREN))
_EVERY_NAME: Final = (
    "type.*.count", "type.*.bytes", *series_of(JS_TENSOR), *_MEMORY_NAMES, *_CHILDREN_NAMES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a series.

    ``at`` is the position on the axis, and ``step`` the distance from the previous value, both in the
    unit of TwoPoints.
    """

    at: float
    value: float
    step: float


# Series -> its newest reading at or before a point.
Readings = Mapping[str, Reading]


def recorded(run: Json, axis: Axis, derived: Derived) -> TwoPoints | None:
    """Return the first and last comparable point, or None if the run has fewer than two points."""
    if axis.unit == "time":
        if derived.read_between is None:
            return None
        first, last = (moment - unix(run["started_at"]) for moment in derived.read_between)
        # A run may begin before the first reading of its processes, and clocks differ.
        return TwoPoints(min(0, first), last) if last > 0 else None
    accounts = derived.phase_accounts
    if accounts.count() < 2:
        return None
    first = accounts.generations[0] - accounts.span(0) + 1
    return TwoPoints(first, accounts.generations[-1])


def checked(run: Json, axis: Axis, asked: TwoPoints, known: TwoPoints | None) -> TwoPoints:
    """Return ``asked`` after validation, with generations as integers. Raises InvalidField."""
    if not asked.first < asked.last:
        raise InvalidField("from", asked.first, f"must be less than to={asked.last:.15g}")
    if known is None:
        raise InvalidField(
            "from",
            asked.first,
            f"this run has not recorded two {plural(run['unit'], 2)} to compare yet",
        )
    what = "generations" if axis.unit == "generation" else "seconds since the start"
    for field, value in (("from", asked.first), ("to", asked.last)):
        if axis.unit == "generation" and value != round(value):
            raise InvalidField(field, value, "must be a whole generation")
        if not known.first <= value <= known.last:
            raise InvalidField(
                field, value,
                f"must be within the recorded range: {what} {known.first:.15g} to {known.last:.15g}",
            )  # fmt: skip
    if axis.unit == "time":
        return asked
    return TwoPoints(int(asked.first), int(asked.last))


def unit_on(run: Json, axis: Axis) -> tuple[str, float]:
    """Return the unit of rates, and its length in generations or seconds.

    A run on a time axis uses minutes until a verdict sets its unit.
    """
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
    """Return the changes in the API's JSON format.

    ``processes`` are {instance, rank, role, ended_at, end_state} of all processes; the newest attempt
    of a process comes last.
    """
    types = suspects_first(with_verdict(derived.types, verdict), verdict)
    grown = {process_label(each): _growth(each) for each in run["processes"]}
    labels = list(dict.fromkeys(process_label(each) for each in processes))
    labels.sort(key=lambda label: -grown.get(label, float("-inf")))
    known = [name for each in types for name in series_of(each.name)]
    between = recorded(run, axis, derived) or asked
    children = has_series(engine, run["id"], CHILDREN)
    several = len({each["rank"] for each in processes}) > 1
    found = {}
    for label in labels[:MOST_PROCESSES]:
        attempts = [each for each in processes if process_label(each) == label]
        instances = [each["instance"] for each in attempts]
        reader = _Reader(engine, run, axis, instances, known, between, children, several)
        process = reader.read(asked, attempts[-1])
        if process is not None:
            found[label] = process
    readings = {label: (each.before, each.after) for label, each in found.items()}
    unit, each_unit = unit_on(run, axis)
    left_out = max(0, len(labels) - MOST_PROCESSES)
    rows, total = _processes(found, asked, between.last, each_unit)
    booked = None if axis.unit == "time" else _booked(derived.phase_accounts, asked)
    return {
        "unit": unit,
        "axis": axis.unit,
        "before": asked.first,
        "after": asked.last,
        "total": _sums([] if left_out else total),
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
class _Process:
    """Readings of one process at both points.

    ``last`` holds the final readings if the process may have ended before one of the points.
    ``is_over`` is True if the process has ended, and False if it only fell silent.
    """

    before: Readings
    after: Readings
    last: Readings
    is_over: bool


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one process; ``instances`` are the attempts of the process, newest last.

    ``known`` are the type series of all processes of the run. ``recorded`` is the range of the run.
    ``children`` is True if any process has child processes. ``several`` is True if the run has
    several ranks: each rank reports its own memory, so it does not count as a child of the process
    that started it.
    """

    engine: Engine
    run: Json
    axis: Axis
    instances: Sequence[str]
    known: Sequence[str]
    recorded: TwoPoints
    children: bool
    several: bool

    def read(self, asked: TwoPoints, newest: Json) -> _Process | None:
        """Read both points, or return None if the process has no readings up to the later point.

        ``newest`` is the last attempt.
        """
        before, after = self.at_both(asked)
        last: Readings = {}
        if newest["ended_at"] is not None and not self._goes_on(before, after, asked.last):
            last = self._last()
        if not (before or after or any(each.at <= asked.last for each in last.values())):
            return None
        return _Process(before, after, last, is_over(newest))

    def _goes_on(self, before: Readings, after: Readings, point: float) -> bool:
        """Return True if the process and its children were still reporting at the later point."""
        current = {
            name
            for name, each in after.items()
            if point < each.at + each.step or not is_behind(each.at, each.step, self.recorded.last)
        }
        has_children = any(name in side for side in (before, after) for name in CHILDREN)
        wanted = [[names[0] for names in _MEMORY], *([CHILDREN] if has_children else ())]
        return all(current.intersection(names) for names in wanted)

    def _last(self) -> Readings:
        names = (*_MEMORY_NAMES, *_CHILDREN_NAMES)
        ends = self.recorded.first, self.recorded.last
        found = (self._read(each, *ends, names) for each in reversed(self.instances))
        return next(filter(None, found), {})

    def at_both(self, asked: TwoPoints) -> tuple[Readings, Readings]:
        least = LEAST_LOOKED_BACK * (60 if self.axis.unit == "time" else 1)
        back = max(asked.last - asked.first, least)
        before = self._newest(asked.first - back, asked.first)
        after = self._newest(asked.first, asked.last)
        # The window includes the earlier point, so the reading at that point may be found again and
        # must be dropped.
        return before, {name: each for name, each in after.items() if each.at > asked.first}

    def _newest(self, start: float, stop: float) -> dict[str, Reading]:
        """Read the last attempt that has data in the window: the memory of earlier attempts is gone."""
        for instance in reversed(self.instances):
            found: dict[str, Reading] = {}
            missing: Sequence[str] = _EVERY_NAME
            if self.axis.unit == "generation":
                # The snapshot at the end of the window almost always has everything.
                found = self._read(instance, stop, stop, missing)
                missing = [name for name in self.known if name not in found]
                if not any(names[0] in found for names in _MEMORY):
                    missing += _MEMORY_NAMES
                if self.children and not any(name in found for name in CHILDREN):
                    missing += _CHILDREN_NAMES
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
        # Readings at the end of a phase and of its generation can be very close. Steps are therefore
        # at least a thousandth of the run.
        recorded = self.recorded.last - self.recorded.first
        least = recorded / 1_000 if on_time else 0.0
        found = {
            each["name"]: Reading(
                each["x"][-1] - zero, each["last"][-1], max(least, step_of(each["x"]))
            )
            for each in items
        }
        return _without_ranks(found) if self.several else found


def _without_ranks(readings: dict[str, Reading]) -> dict[str, Reading]:
    """Subtract the ranks' memory from the child processes of the process that started the ranks."""
    for name in CHILDREN:
        all_of_them, ranks = readings.get(name), readings.get(of_ranks(name))
        # If the ranks have no reading at this x, no ranks existed or the sum does not include the ranks.
        if all_of_them and ranks and ranks.at == all_of_them.at:
            rest = max(0.0, all_of_them.value - ranks.value)
            readings[name] = replace(all_of_them, value=rest)
    return readings


# Process -> its readings at both points.
_Both = Mapping[str, tuple[Readings, Readings]]


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of a process, or of its children, at a point.

    ``read_at`` is the time of the reading. ``at`` is the same time, or the point itself if the
    process ended before the point. ``may_differ`` is True if the process fell silent after the reading.
    """

    value: float | None = None
    at: float = 0.0
    read_at: float | None = None
    may_differ: bool = False


# Memory at the earlier and at the later point.
_Pair = tuple[_Memory, _Memory]
_SUMMED: Final = ("bytes_before", "bytes_after", "bytes_change", "bytes_per_generation")


def _processes(
    found: Mapping[str, _Process], asked: TwoPoints, end: float, each_unit: float
) -> tuple[list[dict[str, Any]], list[dict[str, float | None]]]:
    """Return the rows of the processes, and the changes of processes and children for the total.

    ``end`` is the end of the recorded range of the run.
    """

    def both(of: _Process, kinds: Sequence[Sequence[str]]) -> _Pair | None:
        # Both points must use the same kind of memory.
        sides = (of.before, of.after, of.last)
        names = next((n for n in kinds if any(n[0] in side for side in sides)), None)
        if names is None:
            return None
        return (
            _memory(of, of.before, names, asked.first, end),
            _memory(of, of.after, names, asked.last, end),
        )

    own = {label: both(of, _MEMORY) or (_Memory(), _Memory()) for label, of in found.items()}
    children = [pair for of in found.values() if (pair := both(of, [(n,) for n in CHILDREN]))]
    rows = [_row(label, [pair], each_unit) for label, pair in own.items()]
    if children:
        rows.append(_row(CHILDREN_LAYER, children, each_unit))
    summed = [
        _change(_if_heard_of(before), _if_heard_of(after), each_unit)
        for before, after in (*own.values(), *children)
    ]
    return sorted(rows, key=_most_bytes), summed


def _memory(
    of: _Process, readings: Readings, names: Sequence[str], point: float, end: float
) -> _Memory:
    last, value = of.last.get(names[0]), _sum(readings, names)
    is_gone = (
        last is not None and point >= last.at + last.step and is_behind(last.at, last.step, end)
    )
    if last is not None and is_gone and of.is_over:
        return _Memory(0.0, point, last.at)
    if value is None:
        return _Memory()
    at = readings[names[0]].at
    return _Memory(value, at, at, is_gone)


def _if_heard_of(memory: _Memory) -> _Memory:
    return _Memory() if memory.may_differ else memory


def _row(label: str, pairs: Sequence[_Pair], each_unit: float) -> dict[str, Any]:
    return {
        "process": label,
        **_sums([_change(*pair, each_unit) for pair in pairs]),
        "read_before_at": _earliest(pair[0] for pair in pairs),
        "read_after_at": _earliest(pair[1] for pair in pairs),
    }


def _earliest(read: Iterable[_Memory]) -> float | None:
    return min((each.read_at for each in read if each.read_at is not None), default=None)


def _change(before: _Memory, after: _Memory, each_unit: float) -> dict[str, float | None]:
    change = _less(after.value, before.value)
    rate = None if change is None else change / ((after.at - before.at) / each_unit)
    return dict(zip(_SUMMED, (before.value, after.value, change, rate), strict=True))


def _sum(readings: Readings, names: Sequence[str]) -> float | None:
    """Return the sum, or None if the first series is missing. Other series, such as swap, may be missing."""
    if names[0] not in readings:
        return None
    return sum(readings[name].value for name in names if name in readings)


def _sums(changes: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the sum of each column, or None for a column with an unknown value."""
    return {name: sum_of_known(each[name] for each in changes) for name in _SUMMED}


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if ``values`` is empty or contains None."""
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
    # The sort is stable: among types with the same gain, those in findings stay first.
    return sorted(rows, key=_most_bytes)


def _type(readings: _Both, name: str, each_unit: float) -> dict[str, Any] | None:
    counts, sizes = series_of(name)
    having = [both for both in readings.values() if any(counts in each for each in both)]
    if not having:
        return None
    # Per process: counts at both points, their rates, and bytes.
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
    """Replace the change in bytes by an estimate from the change in count if the estimate is better.

    The estimate uses the bytes that one instance keeps alive, averaged over the run. The
    estimate replaces an unknown value and, if a finding names the type, a smaller value.
    """
    rate = of.count_per_generation.estimate if of.count_per_generation else 0.0
    size = of.bytes_per_generation / rate if rate and of.bytes_per_generation else 0.0
    count, own = row["count_change"], row["bytes_change"]
    if count is not None and size > 0 and (own is None or (is_named and count * size > own)):
        row["bytes_change"] = count * size
    return row


def _booked(accounts: PhaseAccounts, asked: TwoPoints) -> dict[str, Any] | None:
    """Return the phase accounts of the generations after the first point, up to the last point.

    Old generations of a very long run are merged; merged groups that are partly outside the range
    are left out.
    """
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
    """Return a sort key: unknown changes come last, and types without known bytes are sorted by count."""
    change = row["bytes_change"]
    return change is None, -(change or 0.0), -(row.get("count_change") or 0.0)
