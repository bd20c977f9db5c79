"""What is told of the rules that people set, when a run is looked at.

What costs time goes before the transaction that saves the look (`looks_at`): nobody else writes to an SQLite while it
lasts. What another server has let a rule say meanwhile is found within it (`alerts_of_rules`), and then the run is
looked at again.

A rule that fires and ends again and again goes on firing, as far as anybody is told, until it was told less often
within the hour. Rules that are steps of one limit are one ladder: they are told, counted and held back together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from leakline.analysis import RunHistory
from leakline.analysis.results import OomForecast

from ..store import assertions
from ..store.alerts import Alert
from ..store.assertions import Rule, State
from ..store.engine import Connection, Engine
from .events import FIRED
from .flapping import HOUR_SECONDS
from .lifecycle import expiry
from .payload import ExaminedRun, noted
from .readings import Seen, asked_by, seen_by, unit_of
from .rule_facts import rule_facts
from .rules import alert_id
from .thresholds import Outcome, look

# Alerts of one ladder and run after which an end waits.
MAX_TOLD_AN_HOUR: Final = 5
_OFTEN: Final = (
    f"told at least {MAX_TOLD_AN_HOUR} times within the hour; its end is told when that is less"
)

Ladder = Sequence[tuple[Rule, Outcome]]


@dataclass(frozen=True, slots=True)
class Look:
    """At one rule: ``outcome`` is what follows from the run and from ``state``, what the rule last said of it."""

    rule: Rule
    state: State | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Looks:
    """At one run, as it was then; ``unit`` is the name of its generations.

    ``accepted``: types whose expected count a person accepted.
    """

    of_rules: Sequence[Look]
    unit: str
    accepted: frozenset[str] = frozenset()


class SaidMeanwhile(Exception):
    """A rule has said something of the run since it was looked at: by another server, which had its turn between."""


def looks_at(
    engine: Engine, history: RunHistory, oom: OomForecast, project: str, name: str, at: float
) -> Looks:
    """Hold the rules that concern a run against its history. Outside of any transaction; ``at`` is Unix seconds."""
    with engine.connect() as connection:
        said = assertions.rules_of(connection, history.run, project, name)
    # Those that see the same side by side: what they see is large, and gone before the next is read.
    said.sort(key=lambda each: asked_by(each[0]))
    found = []
    for _, alike in groupby(said, key=lambda each: asked_by(each[0])):
        seen: Seen | None = None
        for rule, state in alike:
            seen = seen_by(rule, history, oom) if seen is None else seen
            found.append(Look(rule, state, look(rule, seen, state, at)))
    accepted = frozenset(each.type for each in history.expectations if each.accepted)
    return Looks(found, unit_of(history), accepted)


def alerts_of_rules(connection: Connection, looks: Looks, examined: ExaminedRun) -> list[Alert]:
    """In the transaction of the examination. Writes what the rules say from now on; the caller writes the alerts.

    A rule that was set or changed since the look waits for the next one. Raises SaidMeanwhile: look again.
    """
    if not looks.of_rules:
        return []
    names = examined.id, examined.project, examined.name
    now = {
        rule.id: (rule, state) for rule, state in assertions.rules_of(connection, *names, lock=True)
    }
    valid = [each for each in looks.of_rules if now.get(each.rule.id, (None,))[0] == each.rule]
    valid.sort(key=lambda each: each.rule.id)
    if any(each.state != now[each.rule.id][1] for each in valid):
        raise SaidMeanwhile
    before = {each.rule.id: each.state for each in valid if each.state is not None}
    found = [(each.rule, each.outcome) for each in valid]
    told = _told_lately(connection, [outcome for _, outcome in found], examined)
    alerts: list[Alert] = []
    states: dict[int, State] = {}
    for ladder in _ladders(found):
        number = sum(told.get(rule.id, 0) for rule, _ in ladder)
        believed = _believed(ladder, before, number)
        states |= {rule.id: o.state for rule, o in believed if o.state is not None}
        alerts += _alerts(believed, before, number, examined, looks.unit)
    assertions.save_states(connection, examined.id, states)
    return alerts


def _told_lately(
    connection: Connection, outcomes: Iterable[Outcome], examined: ExaminedRun
) -> Mapping[int, int]:
    """Rule id -> how many alerts within the hour; nothing where nothing is to be told now."""
    if not any(outcome.fired or outcome.over for outcome in outcomes):
        return {}
    return assertions.alerts_since(connection, examined.id, examined.at - HOUR_SECONDS)


def _believed(ladder: Ladder, before: Mapping[int, State], told: int) -> Ladder:
    """Without ends that are not believed yet: of a ladder told so often, and of steps below one that goes on firing."""
    believed = []
    strictest = None
    for rule, outcome in sorted(ladder, key=_strictness_first):
        waits = told >= MAX_TOLD_AN_HOUR or (
            strictest is not None and _strictness(rule) < strictest
        )
        kept = Outcome() if outcome.over and waits else outcome
        says = kept.state or before.get(rule.id)
        if strictest is None and says is not None and says.firing:
            strictest = _strictness(rule)
        believed.append((rule, kept))
    return sorted(believed, key=lambda step: step[0].id)


def _alerts(
    ladder: Ladder, before: Mapping[int, State], told: int, run: ExaminedRun, unit: str
) -> list[Alert]:
    """One for all steps that fire, one for all that end; the strictest of them speaks for the others."""
    fires = [each for each in ladder if each[1].fired and not each[1].over]
    ends = [each for each in ladder if each[1].over]
    alerts = []
    if fires:
        alert = _alert("firing", fires, before, run, unit)
        if told + 1 + bool(ends) >= MAX_TOLD_AN_HOUR:
            alert = replace(alert, payload=noted(dict(alert.payload), _OFTEN))
        alerts.append(alert)
    if ends:
        alerts.append(_alert("resolved", ends, before, run, unit))
    return alerts


def _alert(
    status: str, steps: Ladder, before: Mapping[int, State], run: ExaminedRun, unit: str
) -> Alert:
    rule, outcome = min(steps, key=_strictness_first)
    others = [other.name for other, _ in steps if other is not rule]
    at = outcome.over or outcome.fired
    assert at is not None
    # What came and went is one message: of two, the second would replace the first before it went out.
    came = outcome.fired if outcome.over else None
    state = before.get(rule.id)
    said = None if state is None else state.changed_at
    return Alert(
        id=alert_id(
            run.id, assertions.subject_of(rule), f"{FIRED} {status}", (at.generation, said)
        ),
        run_id=run.id,
        incident_id=None,
        event=FIRED,
        created_at=run.at,
        payload=rule_facts(rule, at, status, others, run, unit, came),
        subject=assertions.subject_of(rule),
        urgent=outcome.fired is not None,
        expires_at=expiry(run) if rule.measure == "forecast" and status == "firing" else None,
    )


def _ladders(found: Iterable[tuple[Rule, Outcome]]) -> list[Ladder]:
    ladders: dict[tuple[object, ...], list[tuple[Rule, Outcome]]] = {}
    for rule, outcome in found:
        ladders.setdefault(_ladder(rule), []).append((rule, outcome))
    return list(ladders.values())


def _ladder(rule: Rule) -> tuple[object, ...]:
    """Rules of one limit on the same readings that differ in the limit alone; any other is alone."""
    if (rule.above is None) == (rule.below is None):
        return (rule.id,)
    return (rule.series, rule.measure, rule.project, rule.run, rule.above is None)


def _strictness_first(step: tuple[Rule, Outcome]) -> tuple[float, int]:
    return -_strictness(step[0]), step[0].id


def _strictness(rule: Rule) -> float:
    return rule.above if rule.above is not None else -(rule.below or 0.0)
