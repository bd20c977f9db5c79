"""What a rule reads of a run: its series, by process, at the ends of the newest generations. Pure.

A look at a run reads as little as the rule needs, because every examination of every run asks for every rule.

A run that went back, as after a crash, repeats generations. What was read of them before is not the run any more, of
the processes that came back as of those that did not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeGuard

from leakline.analysis import RunHistory
from leakline.analysis.assertions.declared_limits import readings_of
from leakline.analysis.generation_axis import generations_of
from leakline.analysis.results import OomForecast
from leakline.analysis.run_history import ProcessHistory, Value
from leakline.analysis.statistics.trend import floor_slope
from leakline.analysis.timeline import Lane, lanes_of

from ...store.alerts.assertions import Terms
from ...store.downsampling.chart_points import matching

# Beside those that hold and grace ask for: what a rate is measured over.
WINDOW: Final = 64
# Fewer say nothing of a rate.
MIN_RATE_READINGS: Final = 4
# Rates are judged for the newest generations only: each of them costs a slope.
_SPARE: Final = 4
# Series of one rule and look, by name, those of each process counted for themselves; what lies beyond is not judged.
MAX_TRACKS: Final = 1_000
# The same for rates, a slope each: one costs as much as the readings of a whole series.
MAX_SLOPES: Final = 4_000


@dataclass(frozen=True, slots=True)
class Reading:
    """``low`` and ``high``: the 90 % interval of a rate; of a value both are the value."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Reading:
        return cls(value, value, value)


@dataclass(frozen=True, slots=True)
class Track:
    """One series of one process: generation -> reading, for those that have one. ``process`` is None when alone."""

    series: str
    process: str | None
    readings: Mapping[int, Reading]


@dataclass(frozen=True, slots=True)
class Forecast:
    """At the newest generation that has ended: how many more fit into memory, None when nothing points to an end."""

    newest: int
    left: float | None


Seen = Sequence[Track] | Forecast


def seen_by(rule: Terms, history: RunHistory, oom: OomForecast) -> Seen:
    """All that a look needs of the run, and nearly all that it costs."""
    if rule.measure != "forecast":
        return tracks_of(rule, history)
    newest, left = generations_left(history, oom)
    return () if newest is None or history.ended else Forecast(newest, left)


def asked_by(rule: Terms) -> tuple[str, str, int]:
    """Two rules of which this is the same see the same."""
    return rule.series, rule.measure, rule.hold + rule.grace


def tracks_of(rule: Terms, history: RunHistory) -> list[Track]:
    """Of a rule for values or rates: every series that it names, in every process that measures it, within bounds."""
    replaced = _replaced_from(history)
    names = _names(rule.series, history)
    if not _is_measured_now(names, history, replaced):
        return []
    lanes = lanes_of(_newest(history, names, rule.hold + rule.grace + WINDOW, replaced))
    several = len(lanes) > 1
    read = _rates if rule.measure == "rate" else _values
    measured = ((name, lane) for name in names for lane in lanes if lane.has(name))
    return [
        Track(name, lane.name if several else None, readings)
        for name, lane in islice(measured, most_tracks(rule))
        if (readings := dict(read(rule, lane, name)))
    ]


def most_tracks(rule: Terms) -> int:
    """How many series of a rule are read, those of each process counted for themselves."""
    if rule.measure != "rate":
        return MAX_TRACKS
    return min(MAX_TRACKS, MAX_SLOPES // _slopes_of(rule))


def generations_left(history: RunHistory, oom: OomForecast) -> tuple[int | None, float | None]:
    """(the newest generation that has ended, how many more fit into memory as far as that is known)."""
    lanes = lanes_of(_newest(history, (), 2, _replaced_from(history)))
    ended = [lane.generations[-1] for lane in lanes if len(lane)]
    newest = max(ended, default=None)
    if newest is None or oom.risk == "none" or oom.generation is None:
        return newest, None
    return newest, max(0.0, oom.generation.estimate - newest)


def unit_of(history: RunHistory) -> str:
    """What a reading is of: minutes are never told as generations."""
    declared = any(each is not None for process in history.processes for each in process.generation)
    return history.unit if declared else "minute"


def _names(pattern: str, history: RunHistory) -> list[str]:
    known = sorted({name for process in history.processes for name in process.series})
    numbered = {name: number for number, name in enumerate(known)}
    return list(matching(numbered, (pattern,)).values())[:MAX_TRACKS]


def _replaced_from(history: RunHistory) -> Mapping[str, int]:
    """Instance -> the generation from which on later attempts repeated it; only of processes that were gone by then.

    Attempts are counted by rank: one that is still heard of goes on beside a later attempt of another rank.
    """
    if len({process.attempt for process in history.processes}) < 2:
        return {}
    began = [
        (process.attempt, process.time[0], first)
        for process in history.processes
        if (first := _first_generation(process)) is not None
    ]
    found: dict[str, int] = {}
    for process in history.processes:
        if not len(process):
            continue
        attempt, last = process.attempt, process.time[-1]
        later = [first for other, start, first in began if other > attempt and start > last]
        if later:
            found[process.instance] = min(later)
    return found


def _first_generation(process: ProcessHistory) -> int | None:
    if not len(process):
        return None
    of_rows = generations_of(process.generation, process.monotonic)
    return min((g for g in of_rows if g is not None), default=None)


def _is_measured_now(
    names: Sequence[str], history: RunHistory, replaced: Mapping[str, int]
) -> bool:
    """Whether anybody measures one of these who was not replaced: of those who are gone nothing more is told."""
    there = (process for process in history.processes if process.instance not in replaced)
    return any(name in process.series for process in there for name in names)


def _newest(
    history: RunHistory, names: Sequence[str], count: int, replaced: Mapping[str, int]
) -> RunHistory:
    """The run with these series alone and the ``count`` newest generations of each process."""
    processes = tuple(
        _end_of(process, names, count, replaced.get(process.instance))
        for process in history.processes
        if len(process)
    )
    return replace(history, processes=processes)


def _end_of(
    process: ProcessHistory, names: Sequence[str], count: int, replaced: int | None
) -> ProcessHistory:
    """``replaced``: the generation from which on it does not count."""
    # Before anything is cut: minutes are counted from the first snapshot.
    generation = generations_of(process.generation, process.monotonic)
    upto = len(generation)
    if replaced is not None:
        counts = (g is None or g < replaced for g in generation)
        upto = next((row for row, own in enumerate(counts) if not own), upto)
    first, seen = upto, set[int | None]()
    while first and (len(seen) < count or generation[first - 1] in seen):
        first -= 1
        seen.add(generation[first])
    series = {name: process.series[name] for name in names if name in process.series}
    cut = process.picked(lambda column: column[first:upto], series)
    return replace(cut, generation=generation[first:upto])


def _values(_rule: Terms, lane: Lane, name: str) -> Iterator[tuple[int, Reading]]:
    for generation, value in zip(lane.generations, readings_of(lane, name), strict=True):
        if _is_known(value):
            yield generation, Reading.exact(float(value))


def _rates(rule: Terms, lane: Lane, name: str) -> Iterator[tuple[int, Reading]]:
    read = [
        (float(g), float(v))
        for g, v in zip(lane.generations, lane.values(name), strict=True)
        if _is_known(v)
    ]
    for upto in range(max(0, len(read) - _slopes_of(rule)), len(read)):
        window = read[max(0, upto + 1 - WINDOW) : upto + 1]
        if len(window) >= MIN_RATE_READINGS:
            yield int(window[-1][0]), _rate(window)


def _slopes_of(rule: Terms) -> int:
    """Of each series: as many generations as hold and grace can ask for."""
    return rule.hold + rule.grace + _SPARE


def _rate(window: Sequence[tuple[float, float]]) -> Reading:
    x, y = zip(*window, strict=True)
    if min(y) == max(y):
        # Most series are like this, and a slope is a hundred times dearer.
        return Reading.exact(0.0)
    slope = floor_slope(x, y)
    return Reading(slope.estimate, slope.low, slope.high)


def _is_known(value: Value) -> TypeGuard[int | float]:
    return value is not None and math.isfinite(value)
