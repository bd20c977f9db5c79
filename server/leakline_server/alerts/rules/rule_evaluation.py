"""Whether a rule that somebody set fires. Pure.

A rule fires once: when readings were outside for ``hold`` generations in a row. It is over once: when, after that, all
readings were inside for ``grace`` in a row. A generation without a reading counts for neither. Only what lies after
the generation of the last change can change anything, so late and repeated batches, a restart, or a second server
tell nothing twice; what came and went between two looks is told, but not what was over before the first.

A rate lies outside only when its whole 90 % interval does: what merely scatters seldom fires.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...store.alerts.assertions import State, Terms
from .rule_facts import Crossing
from .rule_readings import Forecast, Reading, Seen, Track


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a look at a rule found: that it fired, that it was over, both in this order, or neither.

    ``state`` is what it says from now on; None where it says what it said.
    """

    fired: Crossing | None = None
    over: Crossing | None = None
    state: State | None = None


def look(rule: Terms, seen: Seen, state: State | None, at: float) -> Outcome:
    """``state``: what the rule last said of the run. ``at`` is Unix seconds."""
    if isinstance(seen, Forecast):
        return judge_forecast(rule, seen.newest, seen.left, state, at)
    return judge(rule, seen, state, at)


def judge(rule: Terms, tracks: Sequence[Track], state: State | None, at: float) -> Outcome:
    """``tracks``: the series that the rule names, of each process; the worst of them counts. ``at`` is Unix seconds."""
    axis = sorted({g for track in tracks for g in track.readings})
    if not axis:
        return Outcome()
    firing = state is not None and state.firing
    after = -math.inf if state is None or state.generation is None else state.generation
    if after > axis[-1]:
        # The run went back to an earlier generation, as from a checkpoint: judged from where it is now on.
        assert state is not None
        return Outcome(state=replace(state, generation=axis[-1]))
    changes = list(_changes(rule, tracks, axis, firing, after))
    if state is None:
        # What was over before anybody looked is no news.
        changes = changes[-1:] if len(changes) % 2 else []
        unsaid = State(False, axis[-1], None, at)
        return _told(changes, False, at) if changes else Outcome(state=unsaid)
    return _told(changes, firing, at)


def judge_forecast(
    rule: Terms, newest: int, left: float | None, state: State | None, at: float
) -> Outcome:
    """``left``: generations until the limit, None when nothing points to it. A forecast is known for now alone."""
    firing = state is not None and state.firing
    reading = Reading.exact(math.inf if left is None else left)
    if (_beyond(rule, reading) > 0) == firing:
        calm = None if state is None or state.since is None else replace(state, since=None)
        return Outcome(state=calm)
    since = newest if state is None or state.since is None else min(state.since, newest)
    crossing = Crossing(newest, left, None, None)
    if newest - since + 1 >= (rule.grace if firing else rule.hold):
        return _told([(not firing, crossing)], firing, at)
    before = State(False, None, None, at) if state is None else state
    return Outcome(state=None if before.since == since else replace(before, since=since))


def _told(changes: Sequence[tuple[bool, Crossing]], firing: bool, at: float) -> Outcome:
    """At most that it fired and that it was over; what began and ended as it was is no news while it holds."""
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
    """(fires, where) of each change after the generation ``after``, in order."""
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
    """How far a reading is outside, above zero; at the limit itself it is inside."""
    over = -math.inf if rule.above is None else reading.low - rule.above
    under = -math.inf if rule.below is None else rule.below - reading.high
    return max(over, under)


def _nearest(rule: Terms, tracks: Iterable[Track], generation: int) -> Crossing:
    """The reading of a generation that is nearest to the limit."""
    there = [(track, r) for track in tracks if (r := track.readings.get(generation)) is not None]
    track, reading = max(there, key=lambda each: _beyond(rule, each[1]))
    return _crossing(generation, track, reading)


def _crossing(generation: int, track: Track, reading: Reading) -> Crossing:
    return Crossing(generation, reading.value, track.series, track.process)
