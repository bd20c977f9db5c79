"""Alerts of user-defined rules for one examination of a run. Pure.

If a rule fires and ends repeatedly, its end is held back until fewer alerts have been sent within an hour. Rules that
differ only in their limit form a group of steps, whose alerts are sent, counted and held back together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from leakline.analysis import RunHistory
from leakline.analysis.results import OomForecast

from ...store.alerts.alert_rows import Alert, AlertHistory
from ...store.alerts.assertions import Rule, State
from ..alert_payload import FIRED, ExaminedRun, noted
from ..flapping import HOUR_SECONDS
from ..incident_alerts import alert_id
from ..run_alerts import expiry
from .rule_evaluation import Outcome, Seen, asked_by, look, seen_by, unit_of
from .rule_facts import rule_facts

# Once a group has sent this many alerts for a run within an hour, the ends of its rules are not sent yet.
MAX_SENT_AN_HOUR: Final = 5
_OFTEN: Final = (
    f"at least {MAX_SENT_AN_HOUR} alerts were sent within an hour; "
    "the rule's end will be reported when alerts are less frequent"
)


@dataclass(frozen=True, slots=True)
class Look:
    """The result of checking one rule; ``state`` is the rule's previous state."""

    rule: Rule
    state: State | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Looks:
    """The results of checking a run's rules; ``unit`` is the unit of the run's generations."""

    of_rules: Sequence[Look]
    unit: str


def looks_at(
    rules: Sequence[tuple[Rule, State | None]], history: RunHistory, oom: OomForecast, at: float
) -> Looks:
    """Check the rules that apply to a run, starting from each rule's previous state; ``at`` is Unix seconds."""
    # Rules that read the same data are checked together: readings are large, and each set is freed before the next set
    # is read.
    ordered = sorted(rules, key=lambda each: asked_by(each[0]))
    found = []
    for _, alike in groupby(ordered, key=lambda each: asked_by(each[0])):
        seen: Seen | None = None
        for rule, state in alike:
            seen = seen_by(rule, history, oom) if seen is None else seen
            found.append(Look(rule, state, look(rule, seen, state, at)))
    return Looks(found, unit_of(history))


def alerts_of_rules(
    looks: Looks, sent_before: Mapping[str, AlertHistory], examined: ExaminedRun
) -> tuple[list[Alert], dict[int, State]]:
    """Return the alerts, and the new states of the rules by rule id.

    ``sent_before`` maps subjects to earlier alerts.
    """
    new: list[Alert] = []
    states: dict[int, State] = {}
    for ladder in _ladders(looks.of_rules):
        of_ladder = (sent_before.get(_subject(each.rule), AlertHistory()) for each in ladder)
        sent = sum(len(each.since(examined.at - HOUR_SECONDS).alerts_sent) for each in of_ladder)
        steps = _without_early_ends(ladder, sent)
        states |= {each.rule.id: s for each in steps if (s := each.outcome.state) is not None}
        new += _alerts(steps, sent, examined, looks.unit)
    return new, states


def _without_early_ends(ladder: Sequence[Look], sent: int) -> list[Look]:
    """Hold back the end of a rule if its group has sent too many alerts or a stricter rule of the group still fires."""
    steps = []
    strictest = None
    for each in ladder:
        below = strictest is not None and _strictness(each.rule) < strictest
        if each.outcome.over and (sent >= MAX_SENT_AN_HOUR or below):
            each = replace(each, outcome=Outcome())
        state = each.outcome.state or each.state
        if strictest is None and state is not None and state.firing:
            strictest = _strictness(each.rule)
        steps.append(each)
    return steps


def _alerts(steps: Sequence[Look], sent: int, run: ExaminedRun, unit: str) -> list[Alert]:
    """Return one alert for all steps that fire and one for all steps that end; the strictest step represents the
    others.
    """
    fires = [each for each in steps if each.outcome.fired and not each.outcome.over]
    ends = [each for each in steps if each.outcome.over]
    new = []
    if fires:
        alert = _alert("firing", fires, run, unit)
        if sent + 1 + bool(ends) >= MAX_SENT_AN_HOUR:
            alert = replace(alert, payload=noted(dict(alert.payload), _OFTEN))
        new.append(alert)
    return [*new, _alert("resolved", ends, run, unit)] if ends else new


def _alert(status: str, steps: Sequence[Look], run: ExaminedRun, unit: str) -> Alert:
    rule, state, outcome = steps[0].rule, steps[0].state, steps[0].outcome
    others = [each.rule.name for each in sorted(steps[1:], key=lambda each: each.rule.id)]
    at = outcome.over or outcome.fired
    assert at is not None
    # A rule that fired and already ended sends one message; a second message would replace the first before it is sent.
    came = outcome.fired if outcome.over else None
    moment = at.generation, None if state is None else state.changed_at
    return Alert(
        id=alert_id(run.id, _subject(rule), f"{FIRED} {status}", moment),
        run_id=run.id,
        incident_id=None,
        event=FIRED,
        created_at=run.at,
        payload=rule_facts(rule, at, status, others, run, unit, came),
        subject=_subject(rule),
        urgent=outcome.fired is not None,
        expires_at=expiry(run) if rule.measure == "forecast" and status == "firing" else None,
    )


def _subject(rule: Rule) -> str:
    return f"rule {rule.id}"


def _ladders(looks: Iterable[Look]) -> Iterable[Sequence[Look]]:
    """Group rules that differ only in one limit, strictest first. Every other rule forms its own group."""
    ladders: dict[tuple[object, ...], list[Look]] = {}
    for each in sorted(looks, key=lambda each: (-_strictness(each.rule), each.rule.id)):
        rule = each.rule
        key: tuple[object, ...] = (rule.id,)
        if (rule.above is None) != (rule.below is None):
            key = (rule.series, rule.measure, rule.project, rule.run, rule.above is None)
        ladders.setdefault(key, []).append(each)
    return ladders.values()


def _strictness(rule: Rule) -> float:
    return rule.above if rule.above is not None else -(rule.below or 0.0)
