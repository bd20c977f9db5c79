"""Whether a rule that somebody set fires. Pure but for `alerts_of_rules`, which reads and writes what rules last said.

A rule fires once: when readings were outside for ``hold`` generations in a row. It is over once: when, after that, all
readings were inside for ``grace`` in a row. A generation without a reading counts for neither. Only what lies after
the generation of the last change can change anything, so late and repeated batches, a restart, or a second server
tell nothing twice; what came and went between two looks is told, but not what was over before the first.

A rule that fires and ends again and again goes on firing, as far as anybody is told, until it was told less often
within the hour.

A rate lies outside only when its whole 90 % interval does: what merely scatters seldom fires.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from leakline.analysis import RunHistory

from ..store import rules
from ..store.alerts import Alert
from ..store.engine import Connection
from ..store.rules import Rule, State, Terms
from .events import FIRED
from .lifecycle import expiry
from .payload import ExaminedRun, noted
from .readings import Reading, Track, generations_left, tracks_of, unit_of
from .rule_facts import Crossing, rule_facts
from .rules import alert_id

HOUR_SECONDS: Final = 3600.0
# Alerts of one rule and run after which an end waits. The last of them tells that it fires.
MAX_TOLD_AN_HOUR: Final = 5
_AGAIN: Final = (
    "it fires and ends again and again; its end is told when that was less often within the hour"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a look at a rule found: that it fired, that it was over, both in this order, or neither.

    ``state`` is what it says from now on; None where it says what it said.
    """

    fired: Crossing | None = None
    over: Crossing | None = None
    state: State | None = None


def alerts_of_rules(
    connection: Connection, history: RunHistory, examined: ExaminedRun
) -> list[Alert]:
    """Hold the rules that concern a run against its history, in the transaction of its examination.

    Writes what they say from now on; the caller writes the alerts and commits.
    """
    concerned = rules.concerning(connection, examined.id, examined.project, examined.name)
    if not concerned:
        return []
    before = rules.states_of(connection, examined.id)
    found = [(rule, look(rule, history, examined, before.get(rule.id))) for rule in concerned]
    told = _told_lately(connection, [outcome for _, outcome in found], examined)
    found = [(rule, _believed(outcome, told.get(rule.id, 0))) for rule, outcome in found]
    rules.save_states(
        connection, examined.id, {r.id: o.state for r, o in found if o.state is not None}
    )
    unit = unit_of(history)
    return [
        *_alerts(
            "firing",
            [(r, o) for r, o in found if o.fired and not o.over],
            before,
            told,
            examined,
            unit,
        ),
        *_alerts("resolved", [(r, o) for r, o in found if o.over], before, told, examined, unit),
    ]


def _told_lately(
    connection: Connection, outcomes: Iterable[Outcome], examined: ExaminedRun
) -> Mapping[int, int]:
    """Rule id -> how many alerts within the hour; nothing where nothing is to be told now."""
    if not any(outcome.fired or outcome.over for outcome in outcomes):
        return {}
    return rules.told_since(connection, examined.id, examined.at - HOUR_SECONDS)


def _believed(outcome: Outcome, told: int) -> Outcome:
    """Of a rule that was told so often within the hour an end is not believed yet: it goes on firing."""
    return Outcome() if outcome.over and told >= MAX_TOLD_AN_HOUR else outcome


def look(rule: Terms, history: RunHistory, examined: ExaminedRun, state: State | None) -> Outcome:
    if rule.measure != "forecast":
        return judge(rule, tracks_of(rule, history), state, examined.at)
    if history.ended:
        return Outcome()
    newest, left = generations_left(history, examined.verdict.oom)
    return Outcome() if newest is None else judge_forecast(rule, newest, left, state, examined.at)


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


def _alerts(
    status: str,
    found: Iterable[tuple[Rule, Outcome]],
    before: Mapping[int, State],
    told: Mapping[int, int],
    run: ExaminedRun,
    unit: str,
) -> list[Alert]:
    """One alert for each rule, but for rules that are steps of one limit: the strictest speaks for them all."""
    steps: dict[tuple[object, ...], list[tuple[Rule, Outcome]]] = {}
    for rule, outcome in found:
        steps.setdefault(_ladder(rule), []).append((rule, outcome))
    alerts = []
    for of_one in steps.values():
        rule, outcome = max(of_one, key=lambda each: (_strictness(each[0]), -each[0].id))
        others = [other.name for other, _ in of_one if other is not rule]
        alert = _alert(rule, outcome, status, others, before.get(rule.id), run, unit)
        if told.get(rule.id, 0) + 1 >= MAX_TOLD_AN_HOUR and not outcome.over:
            alert = replace(alert, payload=noted(dict(alert.payload), _AGAIN))
        alerts.append(alert)
    return alerts


def _alert(
    rule: Rule, outcome: Outcome, status: str, others: Sequence[str], before: State | None,
    run: ExaminedRun, unit: str,
) -> Alert:  # fmt: skip
    at = outcome.over or outcome.fired
    assert at is not None
    # What came and went is one message: of two, the second would replace the first before it went out.
    came = outcome.fired if outcome.over else None
    said = None if before is None else before.changed_at
    return Alert(
        id=alert_id(run.id, rules.subject_of(rule), f"{FIRED} {status}", (at.generation, said)),
        run_id=run.id,
        incident_id=None,
        event=FIRED,
        created_at=run.at,
        payload=rule_facts(rule, at, status, others, run, unit, came),
        subject=rules.subject_of(rule),
        urgent=outcome.fired is not None,
        expires_at=expiry(run) if rule.measure == "forecast" and status == "firing" else None,
    )


def _ladder(rule: Rule) -> tuple[object, ...]:
    """Rules of one limit on the same readings that differ in the limit alone; any other is alone."""
    if (rule.above is None) == (rule.below is None):
        return (rule.id,)
    return (rule.series, rule.measure, rule.project, rule.run, rule.above is None)


def _strictness(rule: Rule) -> float:
    return rule.above if rule.above is not None else -(rule.below or 0.0)
