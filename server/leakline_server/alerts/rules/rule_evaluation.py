"""Reads the data that a rule needs from a run, and decides whether the rule fires. Pure.

A rule fires once its readings have been outside the limits for ``hold`` generations in a row. It ends once its readings
have been inside for ``grace`` generations in a row. A generation without a reading counts toward neither ``hold`` nor
``grace``. Only generations after the last change can cause another change, so late or repeated batches, a restart or a
second server do not cause duplicate alerts. A crossing that began and ended between two examinations is reported, but a
crossing that ended before the first examination is not.

A rate is outside the limits only if its entire 90 % interval is outside, so scatter alone rarely makes a rule fire.

Every examination evaluates every rule, so a rule reads only the newest generations of its series. A run that resumed
from an earlier generation, for example after a crash, repeats generations. Earlier readings of repeated generations are
discarded, even for processes that did not return.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeGuard

from leakline.analysis import RunHistory
from leakline.analysis.assertions.declared_limits import readings_of
from leakline.analysis.generation_axis import generations_of
from leakline.analysis.results import OomForecast
from leakline.analysis.run_history import ProcessHistory, Value
from leakline.analysis.statistics.trend import floor_slope
from leakline.analysis.timeline import Timeline, timelines_of

from ...store.alerts.assertions import State, Terms
from ...store.series import matching
from .rule_facts import Crossing

# The number of readings over which a rate is measured, in addition to the readings that hold and grace require.
WINDOW: Final = 64
# A rate from fewer readings is meaningless.
MIN_RATE_READINGS: Final = 4
# Rates are computed only for this many generations beyond hold and grace, because each rate costs a slope estimate.
_SPARE: Final = 4
# The maximum number of series that one rule may check, counted per process. Series are chosen in alphabetical order.
MAX_TRACKS: Final = 1_000
# The maximum number of slope estimates for one rule's rates: an estimate costs as much as reading an entire series.
MAX_SLOPES: Final = 4_000


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading with its bounds. A rate's bounds are its 90 % interval; a value's bounds equal the value."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Reading:
        return cls(value, value, value)


@dataclass(frozen=True, slots=True)
class Track:
    """The readings of one series in one process, by generation. ``process`` is None if the run has only one process."""

    series: str
    process: str | None
    readings: Mapping[int, Reading]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The newest completed generation, and the number of generations left until memory runs out.

    ``left`` is None if memory is not forecast to run out.
    """

    newest: int
    left: float | None


Seen = Sequence[Track] | Forecast


def seen_by(rule: Terms, history: RunHistory, oom: OomForecast) -> Seen:
    """Return the data that a rule needs. Reading this data is nearly the entire cost of a check."""
    if rule.measure != "forecast":
        return tracks_of(rule, history)
    newest, left = generations_left(history, oom)
    return () if newest is None or history.ended else Forecast(newest, left)


def asked_by(rule: Terms) -> tuple[str, str, int]:
    """Return a key that is equal for rules that read the same data."""
    return rule.series, rule.measure, rule.hold + rule.grace


def tracks_of(rule: Terms, history: RunHistory) -> list[Track]:
    """Return the tracks of a rule for values or rates: one per series and process, at most `most_tracks`."""
    replaced = _replaced_from(history)
    names = _names(rule.series, history)
    if not _is_measured_now(names, history, replaced):
        return []
    timelines = timelines_of(_newest(history, names, rule.hold + rule.grace + WINDOW, replaced))
    several = len(timelines) > 1
    read = _rates if rule.measure == "rate" else _values
    measured = ((name, timeline) for name in names for timeline in timelines if timeline.has(name))
    return [
        Track(name, timeline.name if several else None, readings)
        for name, timeline in islice(measured, most_tracks(rule))
        if (readings := dict(read(rule, timeline, name)))
    ]


def most_tracks(rule: Terms) -> int:
    """Return the maximum number of tracks to read for a rule."""
    if rule.measure != "rate":
        return MAX_TRACKS
    return min(MAX_TRACKS, MAX_SLOPES // _slopes_of(rule))


def generations_left(history: RunHistory, oom: OomForecast) -> tuple[int | None, float | None]:
    """Return the newest completed generation, and the number of generations left until memory runs out.

    The generation is None if no generation was completed; the number is None if memory is not forecast to run out.
    """
    timelines = timelines_of(_newest(history, (), 2, _replaced_from(history)))
    ended = [timeline.generations[-1] for timeline in timelines if len(timeline)]
    newest = max(ended, default=None)
    if newest is None or oom.risk == "none" or oom.generation is None:
        return newest, None
    return newest, max(0.0, oom.generation.estimate - newest)


def unit_of(history: RunHistory) -> str:
    """Return the run's unit of generations, which is ``minute`` if the run declares no generations."""
    declared = any(each is not None for process in history.processes for each in process.generation)
    return history.unit if declared else "minute"


def _names(pattern: str, history: RunHistory) -> list[str]:
    known = sorted({name for process in history.processes for name in process.series})
    numbered = {name: number for number, name in enumerate(known)}
    return list(matching(numbered, (pattern,)).values())[:MAX_TRACKS]


def _replaced_from(history: RunHistory) -> Mapping[str, int]:
    """Return the replaced processes, mapped to the first generation that later attempts repeated.

    A process is replaced if it ended before a later attempt began. Attempts are counted per rank: a process that still
    reports is not replaced by another rank's later attempt.
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
    """Return True if a process measures one of the series and was not replaced: replaced processes send nothing."""
    there = (process for process in history.processes if process.instance not in replaced)
    return any(name in process.series for process in there for name in names)


def _newest(
    history: RunHistory, names: Sequence[str], count: int, replaced: Mapping[str, int]
) -> RunHistory:
    """Return the run's history with only these series, and only the ``count`` newest generations of each process."""
    processes = tuple(
        _end_of(process, names, count, replaced.get(process.instance))
        for process in history.processes
        if len(process)
    )
    return replace(history, processes=processes)


def _end_of(
    process: ProcessHistory, names: Sequence[str], count: int, replaced: int | None
) -> ProcessHistory:
    """Return the newest generations of a process, ignoring the generation ``replaced`` and all later generations."""
    # Generations are computed before truncation, because minutes are counted from the first snapshot.
    generation = generations_of(process.generation, process.monotonic)
    end = len(generation)
    if replaced is not None:
        counts = (g is None or g < replaced for g in generation)
        end = next((row for row, own in enumerate(counts) if not own), end)
    first, seen = end, set[int | None]()
    while first and (len(seen) < count or generation[first - 1] in seen):
        first -= 1
        seen.add(generation[first])
    series = {name: process.series[name] for name in names if name in process.series}
    cut = process.picked(lambda column: column[first:end], series)
    return replace(cut, generation=generation[first:end])


def _values(_rule: Terms, timeline: Timeline, name: str) -> Iterator[tuple[int, Reading]]:
    for generation, value in zip(timeline.generations, readings_of(timeline, name), strict=True):
        if _is_known(value):
            yield generation, Reading.exact(float(value))


def _rates(rule: Terms, timeline: Timeline, name: str) -> Iterator[tuple[int, Reading]]:
    read = [
        (float(g), float(v))
        for g, v in zip(timeline.generations, timeline.values(name), strict=True)
        if _is_known(v)
    ]
    for end in range(max(0, len(read) - _slopes_of(rule)), len(read)):
        window = read[max(0, end + 1 - WINDOW) : end + 1]
        if len(window) >= MIN_RATE_READINGS:
            yield int(window[-1][0]), _rate(window)


def _slopes_of(rule: Terms) -> int:
    """Return how many rates are computed per series: as many as hold and grace can require."""
    return rule.hold + rule.grace + _SPARE


def _rate(window: Sequence[tuple[float, float]]) -> Reading:
    x, y = zip(*window, strict=True)
    if min(y) == max(y):
        # Most series are constant, and a slope estimate costs a hundred times as much as this check.
        return Reading.exact(0.0)
    slope = floor_slope(x, y)
    return Reading(slope.estimate, slope.low, slope.high)


def _is_known(value: Value) -> TypeGuard[int | float]:
    return value is not None and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of checking a rule: the rule fired, ended, did both in this order, or did neither.

    ``state`` is the new state of the rule, or None if it is unchanged.
    """

    fired: Crossing | None = None
    over: Crossing | None = None
    state: State | None = None


def look(rule: Terms, seen: Seen, state: State | None, at: float) -> Outcome:
    """Check a rule. ``state`` is the rule's previous state for the run; ``at`` is Unix seconds."""
    if isinstance(seen, Forecast):
        return judge_forecast(rule, seen.newest, seen.left, state, at)
    return judge(rule, seen, state, at)


def judge(rule: Terms, tracks: Sequence[Track], state: State | None, at: float) -> Outcome:
    """Check a rule against its tracks. The track furthest outside the limits decides. ``at`` is Unix seconds."""
    axis = sorted({g for track in tracks for g in track.readings})
    if not axis:
        return Outcome()
    firing = state is not None and state.firing
    after = -math.inf if state is None or state.generation is None else state.generation
    if after > axis[-1]:
        # The run went back to an earlier generation, for example to a checkpoint; continue from that generation.
        assert state is not None
        return Outcome(state=replace(state, generation=axis[-1]))
    changes = list(_changes(rule, tracks, axis, firing, after))
    if state is None:
        # A crossing that ended before the first check is not reported.
        changes = changes[-1:] if len(changes) % 2 else []
        unsaid = State(False, axis[-1], None, at)
        return _outcome(changes, False, at) if changes else Outcome(state=unsaid)
    return _outcome(changes, firing, at)


def judge_forecast(
    rule: Terms, newest: int, left: float | None, state: State | None, at: float
) -> Outcome:
    """Check a forecast rule. ``left`` is the number of generations until the memory limit, or None if memory is not
    forecast to run out.

    Earlier forecasts are not available, so the state stores the generation since which a change has been pending.
    """
    firing = state is not None and state.firing
    reading = Reading.exact(math.inf if left is None else left)
    if (_beyond(rule, reading) > 0) == firing:
        calm = None if state is None or state.since is None else replace(state, since=None)
        return Outcome(state=calm)
    since = newest if state is None or state.since is None else min(state.since, newest)
    crossing = Crossing(newest, left, None, None)
    if newest - since + 1 >= (rule.grace if firing else rule.hold):
        return _outcome([(not firing, crossing)], firing, at)
    before = State(False, None, None, at) if state is None else state
    return Outcome(state=None if before.since == since else replace(before, since=since))


def _outcome(changes: Sequence[tuple[bool, Crossing]], firing: bool, at: float) -> Outcome:
    """Reduce the changes to at most one firing and one end.

    If the rule was firing both before and after the changes, neither is reported.
    """
    if not changes:
        return Outcome()
    now, last = changes[-1]
    state = State(now, last.generation, last.value, at)
    if now:
        return Outcome(fired=None if firing else last, state=state)
    fired = None if firing else changes[-2][1]
    return Outcome(fired, last, state)


def _changes(
    rule: Terms, tracks: Sequence[Track], axis: Sequence[int], firing: bool, after: float
) -> Iterator[tuple[bool, Crossing]]:
    """Yield (fires, crossing) for each change after the generation ``after``, in order."""
    loud = [track for track in tracks if any(_beyond(rule, r) > 0 for r in track.readings.values())]
    in_a_row = [0] * len(loud)
    inside = 0
    for generation in axis:
        worst: tuple[float, Crossing] | None = None
        outside = False
        for number, track in enumerate(loud):
            reading = track.readings.get(generation)
            if reading is None:
                continue
            by = _beyond(rule, reading)
            in_a_row[number] = in_a_row[number] + 1 if by > 0 else 0
            outside = outside or by > 0
            if in_a_row[number] >= rule.hold and (worst is None or by > worst[0]):
                worst = by, _crossing(generation, track, reading)
        inside = 0 if outside else inside + 1
        if generation <= after:
            continue
        if not firing and worst is not None:
            firing = True
            yield True, worst[1]
        elif firing and inside >= rule.grace:
            firing = False
            yield False, _nearest(rule, tracks, generation)


def _beyond(rule: Terms, reading: Reading) -> float:
    """Return how far a reading is outside the limits (positive) or inside (negative).

    A reading equal to a limit is inside.
    """
    over = -math.inf if rule.above is None else reading.low - rule.above
    under = -math.inf if rule.below is None else rule.below - reading.high
    return max(over, under)


def _nearest(rule: Terms, tracks: Iterable[Track], generation: int) -> Crossing:
    """Return the reading of a generation that is nearest to the limit."""
    there = [(track, r) for track in tracks if (r := track.readings.get(generation)) is not None]
    track, reading = max(there, key=lambda each: _beyond(rule, each[1]))
    return _crossing(generation, track, reading)


def _crossing(generation: int, track: Track, reading: Reading) -> Crossing:
    return Crossing(generation, reading.value, track.series, track.process)
