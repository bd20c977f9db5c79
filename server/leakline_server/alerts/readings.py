"""What a rule reads of a run: its series, by process, at the ends of the newest generations. Pure.

A look at a run reads as little as the rule needs, because every examination of every run asks for every rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from leakline.analysis import RunHistory
from leakline.analysis.history import ProcessHistory, Value
from leakline.analysis.plan import readings_of
from leakline.analysis.results import OomForecast
from leakline.analysis.series import Lane, lanes_of
from leakline.analysis.thinning import generations_of
from leakline.analysis.trend import floor_slope

from ..store.points import matching
from ..store.rules import Terms

# Beside those that hold and grace ask for: what a rate is measured over.
WINDOW: Final = 64
# Fewer say nothing of a rate.
MIN_RATE_READINGS: Final = 4
# Rates are judged for the newest generations only: each of them costs a slope.
_SPARE: Final = 4
# Of those that a pattern names, by name.
MAX_SERIES: Final = 500


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


def tracks_of(rule: Terms, history: RunHistory) -> list[Track]:
    """Of a rule for values or rates: every series that it names, in every process that measures it."""
    names = _names(rule.series, history)
    if not names:
        return []
    lanes = lanes_of(_newest(history, names, rule.hold + rule.grace + WINDOW))
    several = len(lanes) > 1
    read = _rates if rule.measure == "rate" else _values
    return [
        Track(name, lane.name if several else None, readings)
        for lane in lanes
        for name in names
        if lane.has(name) and (readings := dict(read(rule, lane, name)))
    ]


def generations_left(history: RunHistory, oom: OomForecast) -> tuple[int | None, float | None]:
    """(the newest generation that has ended, how many more fit into memory as far as that is known)."""
    ended = [lane.generations[-1] for lane in lanes_of(_newest(history, (), 2)) if len(lane)]
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
    return list(matching(numbered, (pattern,)).values())[:MAX_SERIES]


def _newest(history: RunHistory, names: Sequence[str], count: int) -> RunHistory:
    """The run with these series alone and the ``count`` newest generations of each process."""
    processes = tuple(_end_of(process, names, count) for process in history.processes)
    return replace(history, processes=processes)


def _end_of(process: ProcessHistory, names: Sequence[str], count: int) -> ProcessHistory:
    # Before anything is cut: minutes are counted from the first snapshot.
    generation = generations_of(process.generation, process.monotonic)
    first, seen = len(generation), set[int | None]()
    while first and (len(seen) < count or generation[first - 1] in seen):
        first -= 1
        seen.add(generation[first])
    columns = ("sequence", "time", "monotonic", "phase", "label", "kind")
    cut: dict[str, Any] = {name: getattr(process, name)[first:] for name in columns}
    series = {name: process.series[name][first:] for name in names if name in process.series}
    return replace(process, **cut, generation=generation[first:], series=series)


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
    for upto in range(max(0, len(read) - rule.hold - rule.grace - _SPARE), len(read)):
        window = read[max(0, upto + 1 - WINDOW) : upto + 1]
        if len(window) >= MIN_RATE_READINGS:
            yield int(window[-1][0]), _rate(window)


def _rate(window: Sequence[tuple[float, float]]) -> Reading:
    x, y = zip(*window, strict=True)
    if min(y) == max(y):
        # Most series are like this, and a slope is a hundred times dearer.
        return Reading.exact(0.0)
    slope = floor_slope(x, y)
    return Reading(slope.estimate, slope.low, slope.high)


def _is_known(value: Value) -> TypeGuard[int | float]:
    return value is not None and math.isfinite(value)
