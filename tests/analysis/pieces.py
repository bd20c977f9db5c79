"""Minimal inputs for single rules of the analysis: a growing count, a timeline, a cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakline.analysis.assertions.expected_counts import Violation
from leakline.analysis.attribution.candidates import NOWHERE as NOWHERE
from leakline.analysis.attribution.candidates import Candidate, Family, Place
from leakline.analysis.attribution.causes import Cause
from leakline.analysis.results import Finding, Interval, Kind, Status, Suspect
from leakline.analysis.run_history import Expectation, ProcessHistory, RunHistory, Value
from leakline.analysis.statistics.count_evidence import CountGrowth, Pattern
from leakline.analysis.statistics.memory_evidence import Rise, Scale
from leakline.analysis.statistics.trend import NO_GROWTH, Slope
from leakline.analysis.timeline import Timeline, timelines_of
from leakline.analysis.timeline_analysis import Assessed, TimelineAnalysis
from leakline.snapshot import Event

TRAIN = Place("train", "train", 1.0)
EVOLVE = Place("evolve", "evolve", 1.0)
# Growth between phases: a place without a phase.
SPREAD = Place(None, None, 0.8)
# A declared count that is violated.
BROKEN = Violation(Expectation("Env", 0, 1), "Env", 3, 3, 1, 5, 4, True, True)
# Constant memory.
FLAT: list[Value] = [1000] * 12


def growing(
    slope: float = 1.0,
    start: float = 1.0,
    *,
    pattern: Pattern = "constant",
    rises: int = 12,
    generations: float = 12.0,
    each: float | None = None,
    period: int | None = None,
) -> CountGrowth:
    one = slope if each is None else each
    return CountGrowth(
        pattern, slope, slope, slope, start, start, start, rises, generations, one, period
    )


def candidate(
    name: str,
    family: Family,
    size: float | None = None,
    *,
    slope: float = 1.0,
    start: float = 1.0,
    place: Place = TRAIN,
    deep: bool = False,
    growth: CountGrowth | None = None,
    **more: Any,
) -> Candidate:
    """Return a candidate. ``size``: bytes per generation measured for it."""
    return Candidate(
        name, "container" if family == "container" else "type", family, growth or growing(slope, start),
        place, size, deep, more.pop("declared", False), **more,
    )  # fmt: skip


def cause_of(
    *members: Candidate,
    kind: Kind = "objects",
    place: Place = TRAIN,
    measured: float | None = None,
    rate: float | Slope = NO_GROWTH,
) -> Cause:
    slope = rate if isinstance(rate, Slope) else sure(rate)
    return Cause(kind, place, members, measured, slope)


def sure(estimate: float, points: int = 16) -> Slope:
    """Return a slope without uncertainty."""
    return Slope(estimate, estimate, estimate, points)


def assessed(cause: Cause, *witnesses: str, **more: Any) -> Assessed:
    """Return an assessed cause at a baseline of 1,000 bytes over 50 generations, where 0.5 bytes each matter."""
    said: dict[str, Any] = {
        "start": (1.0, 1.0, 1.0),
        "window": 50.0,
        "rise": Rise(),
        "scale": Scale(1000.0),
        "process": "rank 0 main",
    }
    return Assessed(cause, witnesses=frozenset(witnesses), **{**said, **more})


def steps_history(
    rows: Sequence[tuple[str, int | None, str | None]],
    series: Mapping[str, Sequence[Value]],
    **more: Any,
) -> RunHistory:
    """Return a history of one process with the snapshots (kind, generation, phase)."""
    n = len(rows)
    times = [10.0 * i for i in range(n)]
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), times, times, [generation for _, generation, _ in rows],
        [phase for _, _, phase in rows], [""] * n, [kind for kind, _, _ in rows], series,
    )  # fmt: skip
    return RunHistory("r", processes=(process,), **more)


def ends_history(series: Mapping[str, Sequence[Value]], **more: Any) -> RunHistory:
    """Return a history of one process with one reading at the end of each generation."""
    n = len(next(iter(series.values())))
    return steps_history([("generation_end", g, None) for g in range(n)], series, **more)


def timeline_of(history: RunHistory) -> Timeline:
    (timeline,) = timelines_of(history)
    return timeline


def with_events(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def with_series(
    history: RunHistory, series: Mapping[str, Callable[[int], Value] | Value]
) -> RunHistory:
    """Add series to each process: a constant or a function of the generation, where -1 is before the first."""
    processes = []
    for process in history.processes:
        generations = [-1 if g is None else g for g in process.generation]
        more = {
            name: [of(g) if callable(of) else of for g in generations]
            for name, of in series.items()
        }
        processes.append(replace(process, series={**process.series, **more}))
    return replace(history, processes=tuple(processes))


def timeline_from_rows(
    series: Mapping[str, Sequence[Value]], generation: Sequence[int | None] | None = None, *, name: str = "rank 0 main",
    ends: Sequence[int] | None = None, segment: Sequence[int] | None = None, baseline: int | None = None,
) -> Timeline:  # fmt: skip
    """Return a timeline without a history. ``ends``: rows that end a generation; all rows by default."""
    generation = range(len(next(iter(series.values())))) if generation is None else generation
    n = len(generation)
    rows = tuple(range(n) if ends is None else ends)
    generations = tuple(g for row in rows if (g := generation[row]) is not None)
    return Timeline(
        name, "p", ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], generation, series,
        segment or [0] * n, generations, rows, baseline, {g: i for i, g in enumerate(generations)},
    )  # fmt: skip


def ends_timeline(series: Mapping[str, Sequence[Value]]) -> Timeline:
    return timeline_of(ends_history(series))


def finding(
    status: Status = "suspected", rate: float = 5.0, *, fingerprint: str = "f", kind: Kind = "objects",
    phase: str | None = None, suspects: tuple[Suspect, ...] = (), start: float | None = None, reach: float = 1.0,
    **more: Any,
) -> Finding:  # fmt: skip
    """Return a finding. ``reach``: half width of the intervals of its growth and of its start."""
    begun = None if start is None else Interval(start, start - reach, start + reach)
    growth = Interval(rate, rate - reach, rate + reach)
    return Finding(fingerprint, status, kind, phase, None, suspects, growth, begun, 0.9, **more)


def study_of(history: RunHistory | None = None, **series: Sequence[Value]) -> TimelineAnalysis:
    """Return the analysis of one process; without a history, of constant memory and these series (``__`` for a dot)."""
    named = {name.replace("__", "."): values for name, values in series.items()}
    history = history or ends_history({"process.anon_bytes": FLAT, **named})
    return TimelineAnalysis(history, timeline_of(history))
