"""Tables shown next to the verdict: growth by type, growth by process, and how full tracked containers are.

The growth of a run is the sum over its processes; each process's row names the findings about that process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from ..assertions.expected_counts import (
    capacity_of,
    constant_capacity,
    expected_text,
    find_violation,
    names_in,
    tracked_names,
    types_of,
)
from ..attribution.candidates import family_of, place_of, rate_of
from ..attribution.causes import SMALL
from ..results import ChangeRating, ContainerFill, Finding, Interval, ProcessGrowth, TypeGrowth
from ..run_history import TENSOR as JS_TENSOR
from ..run_history import TENSOR_BYTES as JS_TENSOR_BYTES
from ..run_history import TENSORS as JS_TENSORS
from ..run_history import RunHistory
from ..series_facts import Facts
from ..statistics.count_evidence import CountGrowth, count_growth
from ..statistics.trend import Slope, floor_slope, theil_sen
from ..status import GROWING, Standing
from ..timeline import Timeline, fill_gaps, timelines_of
from ..timeline_analysis import Moment, TimelineAnalysis
from .finding_builder import interval, worth_reporting

_WINDOW: Final = 64
# Number of readings needed to distinguish a count that still grows from a count that rose earlier; with fewer
# readings, growth is never detected.
_TELLING: Final = 4
_FEW: Final = 3


def type_growth(history: RunHistory) -> tuple[TypeGrowth, ...]:
    """Return one row per counted type, added up over all processes; the fastest growth comes first."""
    rows: dict[str, list[TypeGrowth]] = {}
    for timeline in timelines_of(history):
        facts = Facts(history, timeline)
        for name in sorted(
            types_of(timeline) | ({JS_TENSOR} if timeline.has(JS_TENSORS) else set())
        ):
            row = _type_row(facts, name)
            if row is not None:
                rows.setdefault(name, []).append(row)
    return tuple(sorted((_added(found) for found in rows.values()), key=_order))


def with_verdict(
    rows: Iterable[TypeGrowth], verdict: Mapping[str, Any] | None
) -> tuple[TypeGrowth, ...]:
    """Return the rows with rated changes. The findings provide the rates of the types that they name.

    ``verdict`` is the run's verdict in JSON form, or None if there is no verdict yet.
    """
    known = verdict or {}
    findings = [f for f in known.get("findings", ()) if f["status"] in GROWING]
    named = [_with_rate_of_findings(row, findings) for row in rows]
    blamed = blamed_types(named, findings)
    return tuple(
        replace(
            row,
            change_rating=change_rating(
                row.rating, row.difference or 0, row.readings, known.get("status"),
                is_blamed=row.name in blamed,
            ),
        )
        for row in named
    )  # fmt: skip


def blamed_types(
    rows: Iterable[TypeGrowth], findings: Sequence[Mapping[str, Any]]
) -> frozenset[str]:
    """Return the types that explain growth: first suspects, and types with a substantial share of the bytes.

    If the bytes of a type that is not plain are unknown, it is enough that a finding names the type.
    """
    own = {row.name: row.bytes_per_generation for row in rows}
    total = sum(max(0.0, f["growth_bytes_per_generation"]["estimate"]) for f in findings)
    blamed = {name for name, rate in own.items() if rate is not None and rate >= SMALL * total > 0}
    for finding in findings:
        least = SMALL * finding["growth_bytes_per_generation"]["estimate"]
        for place, suspect in enumerate(finding["suspects"]):
            name, rate = suspect["name"], suspect["bytes_per_generation"]
            rate = own.get(name) if rate is None else rate
            is_plain = family_of(name, suspect["role"]) == "plain"
            if not place or (rate is None and not is_plain) or (rate or 0.0) >= least > 0:
                blamed.add(name)
    return frozenset(blamed)


def _with_rate_of_findings(row: TypeGrowth, findings: Sequence[Mapping[str, Any]]) -> TypeGrowth:
    named = [
        (finding, suspect)
        for finding in findings
        for place, suspect in enumerate(finding["suspects"])
        # Tensors with a graph are a subset of all tensors, which the row counts.
        if suspect["name"] == row.name
        and suspect["role"] == "type"
        and not (finding["kind"] == "graph" and not place)
    ]
    # The same tensors may be named by two findings, for memory of the process and of a device.
    counts = {
        (finding["phase"], finding["process"]): suspect["count_per_generation"]
        for finding, suspect in named
        if suspect["count_per_generation"] is not None
    }
    sizes = [s["bytes_per_generation"] for _, s in named if s["bytes_per_generation"] is not None]
    if counts:
        rate, known = sum(counts.values()), row.count_per_generation
        low, high = (rate, rate) if known is None else (known.low, known.high)
        row = replace(row, count_per_generation=Interval(rate, min(low, rate), max(high, rate)))
    return replace(row, bytes_per_generation=sum(sizes)) if sizes else row


def change_rating(
    rating: str, difference: int, readings: int, status: str | None, *, is_blamed: bool
) -> ChangeRating:
    """Rate the change of a count.

    A declared count is rated as expected or as a problem. In a run that leaks or may leak, a type that explains
    bytes of a finding is a problem. Any other type that grows is expected, or unknown if the run has recovered or
    has no verdict yet. A count that does not grow is good. If it rose, it is good only once there is a verdict and
    enough readings to show that it stopped.
    """
    if rating in ("expected", "problem"):
        return "expected" if rating == "expected" else "problem"
    if is_blamed and status in GROWING:
        return "problem"
    if rating == "steady" and difference <= 0:
        return "good"
    if status is None or status == "learning":
        return "unknown"
    if rating == "steady":
        return "good" if readings >= _TELLING else "unknown"
    return "unknown" if status == "recovered" else "expected"


def _order(row: TypeGrowth) -> tuple[bool, float, float, str]:
    rate = row.count_per_generation.estimate if row.count_per_generation else 0.0
    rank = {"problem": 0, "grows": 1, "expected": 2, "steady": 3}[row.rating]
    return rank > 1, -(row.bytes_per_generation or 0.0), -rate, row.name


def _type_row(facts: Facts, name: str) -> TypeGrowth | None:
    timeline, (series, size) = facts.timeline, series_of(name)
    x, counts = timeline.points(series, baseline=True)
    if not counts:
        column = [v for v in timeline.series[series] if v is not None]
        x, counts = [0.0] * len(column), [float(v) for v in column]
    if not counts:
        return None
    first = timeline.generations[0] if timeline.generations else None
    growth = count_growth(x, counts, first, timeline.spacing(len(timeline)))
    rate = _bytes_rate(
        facts, name, growth.slope if growth else None, growth.start if growth else None
    )
    place = place_of(timeline, series, growth.start, len(timeline)) if growth else None
    return TypeGrowth(
        name=name,
        first_count=int(counts[0]),
        last_count=int(counts[-1]),
        count_per_generation=_count_rate(growth, x, counts),
        bytes=_last(timeline, size),
        bytes_per_generation=rate,
        holder=facts.holders.get(name),
        phase=place.phase if place else None,
        expected=_expected(facts, name),
        rating=_rating(facts, name, growth is not None),
        difference=int(counts[-1]) - int(counts[0]),
        readings=len(counts),
        last_generation=int(x[-1]) if x[-1] >= 0 and timeline.generations else None,
        created_at_least=_last(timeline, f"type.{name}.created"),
        freed_at_least=_last(timeline, f"type.{name}.freed"),
    )


def _count_rate(
    growth: CountGrowth | None, x: Sequence[float], counts: Sequence[float]
) -> Interval | None:
    """Return the rate since the growth began or, if the count does not grow, its recent rate."""
    if growth is not None:
        return Interval(growth.slope, growth.low, growth.high)
    if len(x) < _FEW:
        return None
    slope = theil_sen(x[-_WINDOW:], counts[-_WINDOW:])
    return Interval(slope.estimate, slope.low, slope.high)


def _bytes_rate(facts: Facts, name: str, slope: float | None, start: float | None) -> float | None:
    if slope is None or start is None:
        return _rising_bytes(facts.timeline, series_of(name)[1])
    each = facts.bytes_each.get(name)
    if each is not None:
        return slope * each
    return rate_of(facts.timeline, series_of(name)[1], start, len(facts.timeline))


def _rising_bytes(timeline: Timeline, series: str) -> float | None:
    """Return the rate at which a type's bytes rise while its count is constant, or None if they do not rise."""
    if not timeline.has(series):
        return None
    x, sizes = timeline.points(series, newest=_WINDOW)
    if len(x) < _TELLING:
        return None
    slope = floor_slope(x, sizes)
    return slope.estimate if slope.rises else None


def series_of(name: str) -> tuple[str, str]:
    """Return the names of the two series of a type: its instance count and its bytes."""
    if name == JS_TENSOR:
        return JS_TENSORS, JS_TENSOR_BYTES
    return f"type.{name}.count", f"type.{name}.bytes"


def _last(timeline: Timeline, series: str) -> int | None:
    known = [v for v in timeline.series.get(series, ()) if v is not None]
    return int(known[-1]) if known else None


def _expected(facts: Facts, name: str) -> str | None:
    texts = [expected_text(r.expectation) for r in facts.readings if r.type == name]
    return "; ".join(texts) or None


def _rating(
    facts: Facts, name: str, grows: bool
) -> Literal["steady", "expected", "grows", "problem"]:
    last_row = len(facts.timeline.kind) - 1
    declared = [r for r in facts.readings if r.type == name]
    if any(find_violation(facts.timeline, r, last_row) is not None for r in declared):
        return "problem"
    if grows:
        return "grows"
    return "expected" if declared else "steady"


def _added(rows: list[TypeGrowth]) -> TypeGrowth:
    if len(rows) == 1:
        return rows[0]
    rates = [r.count_per_generation for r in rows if r.count_per_generation is not None]
    sizes = [r.bytes for r in rows if r.bytes is not None]
    bytes_rates = [r.bytes_per_generation for r in rows if r.bytes_per_generation is not None]
    worst = min(rows, key=lambda r: ("problem", "grows", "expected", "steady").index(r.rating))
    return TypeGrowth(
        name=worst.name,
        first_count=sum(r.first_count for r in rows),
        last_count=sum(r.last_count for r in rows),
        count_per_generation=Interval(
            sum(r.estimate for r in rates), sum(r.low for r in rates), sum(r.high for r in rates)
        ) if rates else None,
        bytes=sum(sizes) if sizes else None,
        bytes_per_generation=sum(bytes_rates) if bytes_rates else None,
        holder=worst.holder,
        phase=worst.phase,
        expected=worst.expected,
        rating=worst.rating,
        difference=sum(r.difference or 0 for r in rows),
        readings=min(r.readings for r in rows),
        last_generation=min((r.last_generation for r in rows if r.last_generation is not None), default=None),
        created_at_least=_sum(r.created_at_least for r in rows),
        freed_at_least=_sum(r.freed_at_least for r in rows),
    )  # fmt: skip


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the known counts, or None if no count is known. A sum of lower bounds is a lower bound."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def container_fill(history: RunHistory) -> tuple[ContainerFill, ...]:
    """Return one row per process and container with a declaration or a known capacity, sorted by name."""
    rows = []
    for timeline in timelines_of(history):
        known: dict[str, float | None] = {
            f"tracked.{name}": capacity_of(timeline, name, history.capacities)
            for name in tracked_names(timeline)
        }
        for name in names_in(timeline, "container.", ".capacity"):
            if (capacity := constant_capacity(timeline, name)) is not None:
                known[f"container.{name}"] = capacity
        rows += [_fill_row(timeline, name, capacity) for name, capacity in known.items()]
    return tuple(sorted((row for row in rows if row is not None), key=lambda row: row.name))


def _fill_row(timeline: Timeline, series: str, capacity: float | None) -> ContainerFill | None:
    """Return the row of the container with the series ``<series>.length``, or None if the length was never read."""
    length = [v for v in timeline.series.get(f"{series}.length", ()) if v is not None]
    if not length:
        return None
    size = _last(timeline, f"{series}.bytes")
    on_devices = _on_devices(timeline, series)
    now = int(length[-1])
    ceiling = None if size is None or not capacity or not now else round(size * capacity / now)
    per_generation = _items_per_generation(timeline, f"{series}.length")
    return ContainerFill(
        name=series.partition(".")[2],
        length=now,
        capacity=None if capacity is None else int(capacity),
        bytes=size,
        ceiling_bytes=ceiling,
        full_at_generation=_full_at(timeline, now, capacity, per_generation),
        state=_state(now, capacity, per_generation),
        host_bytes=None if size is None or on_devices is None else max(0, size - on_devices),
        device_bytes=on_devices,
    )


def _on_devices(timeline: Timeline, series: str) -> int | None:
    """Return the part of the container's newest size that is on devices, or None if it was never reported.

    Only sizes above zero are reported, so a missing value means that nothing is on devices.
    """
    on_devices = timeline.series.get(f"{series}.device_bytes", ())
    if all(value is None for value in on_devices):
        return None
    pairs = zip(timeline.series.get(f"{series}.bytes", ()), on_devices, strict=True)
    newest = [part for size, part in pairs if size is not None]
    return int(newest[-1] or 0) if newest else None


def _items_per_generation(timeline: Timeline, lengths: str) -> float:
    values = fill_gaps(timeline.readings(lengths))[-4:]
    return (values[-1] - values[0]) / (len(values) - 1) if len(values) > 1 else 0.0


def _full_at(timeline: Timeline, now: int, capacity: float | None, speed: float) -> float | None:
    if capacity is None or not timeline.generations or now >= capacity or speed <= 0:
        return None
    return round(timeline.generations[-1] + (capacity - now) / speed, 1)


def _state(
    now: int, capacity: float | None, speed: float
) -> Literal["filling", "full", "over", "unbounded", "steady"]:
    if capacity is None:
        return "unbounded" if speed > 0 else "steady"
    if now > capacity:
        return "over"
    if now == capacity:
        return "full"
    return "filling" if speed > 0 else "steady"


# Maximum number of processes listed; processes that a finding names or that grow most are preferred.
MAX_PROCESSES: Final = 1_024


def of_how_many(history: RunHistory) -> str:
    """Return a note that some processes were not analyzed, or an empty string if all processes were analyzed."""
    left_out = history.processes_left_out
    if not left_out:
        return ""
    read = len(history.processes)
    return f" (of the {read:,} largest processes; {left_out:,} more are not analyzed)"


def measured(slope: Slope) -> Interval | None:
    """Return the growth as an interval, or None if there are too few readings to measure growth."""
    return interval(slope) if slope.points >= 2 else None


def process_growth(
    timelines: Iterable[Timeline],
    statuses: Iterable[tuple[TimelineAnalysis, Moment, Sequence[Standing]]],
    findings: Sequence[Finding],
) -> tuple[ProcessGrowth, ...]:
    """Return the growth and the findings of at most MAX_PROCESSES processes, in the order of ``timelines``.

    A process's growth comes from its first entry in ``statuses``. ``findings`` are the findings of the verdict.
    """
    named_by = {f.fingerprint: f.process for f in findings if f.status in GROWING}
    growth: dict[str, Interval | None] = {}
    named: dict[str, list[str]] = {}
    for study, moment, standings in statuses:
        growth.setdefault(study.timeline.name, measured(moment.growth))
        own = (s.fingerprint for s in standings if worth_reporting(s) and s.fingerprint in named_by)
        named.setdefault(study.timeline.name, []).extend(
            f
            for f in own
            if study.timeline.name in (named_by[f] or study.timeline.name).split(", ")
        )
    found = [
        ProcessGrowth(
            timeline.name,
            timeline.instance,
            growth.get(timeline.name),
            tuple(dict.fromkeys(named.get(timeline.name, ()))),
        )
        for timeline in timelines
    ]
    if len(found) <= MAX_PROCESSES:
        return tuple(found)
    kept = {each.process for each in sorted(found, key=_weight)[:MAX_PROCESSES]}
    return tuple(each for each in found if each.process in kept)


def _weight(each: ProcessGrowth) -> tuple[bool, float]:
    growth = each.growth_bytes_per_generation
    return not each.findings, float("inf") if growth is None else -growth.estimate
