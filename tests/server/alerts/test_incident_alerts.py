"""Alerts of an incident: one per change, fewer after an acknowledgement, a digest when it flaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.server.alerts.conftest import FINDING, RUN, VERDICT

from leakline.analysis.results import Finding, Suspect
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.flapping import (
    HOUR_SECONDS,
    STILL_SECONDS,
    digest_sentence,
    way_to_tell,
)
from leakline_server.alerts.incident_alerts import alerts_for, incidents_after
from leakline_server.store.alerts.alert_rows import Alert, AlertHistory, SentAlert
from leakline_server.store.findings import IncidentChange
from leakline_server.store.incident_groups import Acknowledgement

NOW = RUN.at
RUN_BEGAN = NOW - 3_600
SUSPECTED, CONFIRMED = "incident.suspected", "incident.confirmed"
RECOVERED, RESOLVED = "incident.recovered", "incident.resolved"


def change(after: str | None, before: str | None = None, **more: Any) -> IncidentChange:
    of = replace(FINDING, **more)
    return IncidentChange(of.fingerprint.replace("f", "i"), of, before, after)


def sent_in_turn(*statuses: str | None, kind: str = "objects") -> list[str]:
    """Return the events sent when an incident goes through these statuses, one examination each."""
    events: list[str] = []
    before = None
    for after in statuses:
        sent = {"i1": AlertHistory(events[-1], len(events))} if events else {}
        alerts = alerts_for([change(after, before, kind=kind)], sent, RUN)
        events += [alert.event for alert in alerts]
        before = after
    return events


@pytest.mark.parametrize(
    ("statuses", "events"),
    [
        (["learning"], []),
        (["watch", None, "ok", "filling", "recovered"], []),
        (["suspected", "suspected", "suspected"], [SUSPECTED]),
        (["confirmed", "confirmed"], [CONFIRMED]),
        # A status that weakens and comes back is not sent again.
        (["suspected", "watch", "suspected", "learning", "suspected"], [SUSPECTED]),
        (["confirmed", "suspected", "confirmed"], [CONFIRMED]),
        (["suspected", None, "ok"], [SUSPECTED, RESOLVED]),
        (
            ["watch", "suspected", "confirmed", "recovered", "ok"],
            [SUSPECTED, CONFIRMED, RECOVERED, RESOLVED],
        ),
        # A leak that ended and comes back is sent again.
        (
            ["confirmed", "recovered", "suspected", "confirmed"],
            [CONFIRMED, RECOVERED, SUSPECTED, CONFIRMED],
        ),
        (["suspected", None, "suspected"], [SUSPECTED, RESOLVED, SUSPECTED]),
    ],
)
def test_an_incident_is_sent_once_per_change(statuses: list[str | None], events: list[str]) -> None:
    assert sent_in_turn(*statuses) == events


def test_a_violated_count_is_sent_under_its_own_name_once() -> None:
    events = sent_in_turn("suspected", "confirmed", "recovered", kind="count_contract")
    assert events == ["contract.violated", RECOVERED]


def test_an_alert_id_depends_only_on_the_change() -> None:
    suspected = change("suspected")
    first, other = alerts_for([suspected, change("suspected", fingerprint="f2")], {}, RUN)
    (again,) = alerts_for([suspected], {}, replace(RUN, at=NOW + 60))
    assert first.id == again.id
    alerts = [
        first,
        other,
        *alerts_for([change("confirmed")], {}, RUN),
        *alerts_for([suspected], {"i1": AlertHistory(RESOLVED, 2)}, RUN),
        *alerts_for([suspected], {}, replace(RUN, id="r2")),
    ]
    assert len({alert.id for alert in alerts}) == len(alerts) == 5


def acknowledgement(kind: Any, **more: Any) -> Acknowledgement:
    """Return an acknowledgement that was given ten minutes ago for a suspected, minor leak."""
    values = {"status": "suspected", "priority": "minor", "created_at": NOW - 600}
    return Acknowledgement(kind, **{"reason": "known", **values, **more})


def sent(*alerts_sent: tuple[str, float]) -> AlertHistory:
    """Return the history of alerts that were sent, each given as (event, seconds ago)."""
    past = tuple(SentAlert(event, NOW - ago) for event, ago in alerts_sent)
    return AlertHistory(past[-1].event if past else None, len(past), past)


def alerts_after(
    after: str | None, *words: Acknowledgement, before: AlertHistory | None = None, priority: Any = "minor",
    began_at: float = RUN_BEGAN,
) -> list[Alert]:  # fmt: skip
    of = replace(FINDING, priority=priority)
    stood = IncidentChange("i1", of, None, after, 7_200.0, 86_400.0)
    run = replace(RUN, began_at=began_at)
    return alerts_for([stood], {"i1": before or AlertHistory()}, run, {FINDING.fingerprint: words})


def events(*arguments: Any, **more: Any) -> list[str]:
    return [alert.event for alert in alerts_after(*arguments, **more)]


@pytest.mark.parametrize(
    ("after", "priority", "expected"),
    [
        ("suspected", "minor", []),
        ("confirmed", "minor", [CONFIRMED]),
        ("suspected", "major", [SUSPECTED]),
        ("suspected", "critical", [SUSPECTED]),
        ("recovered", "minor", []),
        (None, "critical", []),
    ],
)
def test_an_acknowledged_leak_is_sent_only_when_it_becomes_a_class_worse(
    after: str | None, priority: str, expected: list[str]
) -> None:
    assert events(after, acknowledgement("acknowledged"), priority=priority) == expected
    # An alert sent before the acknowledgement does not matter.
    before = sent((SUSPECTED, 1_200))
    assert (
        events(after, acknowledgement("acknowledged"), priority=priority, before=before) == expected
    )


def test_a_rising_priority_of_a_confirmed_leak_is_sent() -> None:
    words = acknowledgement("acknowledged", status="confirmed", priority="major")
    before = sent((CONFIRMED, 1_200))
    assert events("confirmed", words, before=before, priority="major") == []
    assert events("confirmed", words, before=before, priority="critical") == [CONFIRMED]


@pytest.mark.parametrize("over", [{"expires_at": NOW}, {"ended_at": NOW - 60}])
@pytest.mark.parametrize("kind", ["acknowledged", "ignored", "closed"])
def test_an_expired_or_withdrawn_acknowledgement_has_no_effect(
    kind: str, over: dict[str, float]
) -> None:
    assert events("suspected", acknowledgement(kind, **over)) == [SUSPECTED]
    # One exception: after an acknowledgement expires, a leak that is still present is sent once more.
    again = [SUSPECTED] if kind == "acknowledged" and "expires_at" in over else []
    assert (
        events("suspected", acknowledgement(kind, **over), before=sent((SUSPECTED, 1_200))) == again
    )
    assert events(None, acknowledgement(kind, **over), before=sent((SUSPECTED, 1_200))) == [
        RESOLVED
    ]


def test_a_leak_still_present_after_its_acknowledgement_is_sent_once() -> None:
    expired = acknowledgement("acknowledged", expires_at=NOW - 120)
    before = sent((CONFIRMED, 1_200))
    (alert,) = alerts_after("confirmed", expired, before=before)
    assert alert.event == CONFIRMED
    assert alert.payload["summary"].startswith(
        "The leak is still present and no longer muted (acknowledged with the note: known). evaluate_population keeps"
    )
    assert events("confirmed", expired, before=sent((CONFIRMED, 1_200), (CONFIRMED, 60))) == []
    # The page allows an acknowledgement without a reason.
    (alert,) = alerts_after(
        "confirmed", acknowledgement("acknowledged", expires_at=NOW - 120, reason=""), before=before
    )
    assert alert.payload["summary"].startswith(
        "The leak is still present and no longer muted. evaluate_population"
    )
    # Only the newest acknowledgement decides how long alerts stay muted.
    newer = acknowledgement(
        "acknowledged", created_at=NOW - 60, expires_at=NOW - 10, ended_at=NOW - 30
    )
    assert events("confirmed", expired, newer, before=before) == []
    # A leak that was never sent, or was sent as resolved, is not "still present".
    for new in (sent(), sent((CONFIRMED, 1_200), (RESOLVED, 900))):
        (first,) = alerts_after("confirmed", expired, before=new)
        assert "acknowledgement" not in first.payload["summary"]


def test_the_end_of_a_sent_leak_is_sent_after_its_acknowledgement_expires() -> None:
    expired = acknowledgement("acknowledged", expires_at=NOW - 120)
    before = sent((CONFIRMED, 1_200))
    assert events("recovered", expired, before=before) == [RECOVERED]
    assert events(None, expired, before=before) == [RESOLVED]
    assert events("watch", expired, before=before) == []


def test_a_leak_acknowledged_after_it_stopped_may_be_suspected_again() -> None:
    words = acknowledgement("acknowledged", status="recovered")
    assert events("suspected", words) == []
    assert events("confirmed", words) == [CONFIRMED]


@pytest.mark.parametrize("kind", ["ignored", "closed"])
@pytest.mark.parametrize("after", ["suspected", "confirmed", "recovered", None])
def test_an_ignored_leak_and_one_closed_during_the_run_are_never_sent(
    kind: str, after: str | None
) -> None:
    before = sent((SUSPECTED, 1_200))
    assert events(after, acknowledgement(kind), before=before, priority="critical") == []


def test_a_leak_that_returns_can_be_acknowledged_and_ignored_again() -> None:
    closed = acknowledgement("closed", created_at=NOW - 900)
    assert events("suspected", closed, acknowledgement("acknowledged"), began_at=NOW - 800) == []
    (worse,) = alerts_after(
        "confirmed", closed, acknowledgement("acknowledged"), began_at=NOW - 800
    )
    assert "after it was closed with the note" in worse.payload["summary"]
    assert events("confirmed", closed, acknowledgement("ignored"), began_at=NOW - 800) == []


def test_a_very_long_note_does_not_cut_the_summary() -> None:
    (alert,) = alerts_after(
        "suspected", acknowledgement("closed", reason="x" * 1_000), began_at=NOW - 300
    )
    assert "16 TradingEnvironment per generation: 7.10 GiB" in alert.payload["summary"]
    assert len(alert.payload["summary"]) < 500


def test_an_acknowledgement_of_one_leak_does_not_mute_another() -> None:
    words = {FINDING.fingerprint: [acknowledgement("ignored")]}
    assert len(alerts_for([change("suspected", fingerprint="f2")], {}, RUN, words)) == 1


def sent_every(*events: str, every_seconds: float = 60.0, digest: bool = False) -> AlertHistory:
    """Return a history of these events, sent every ``every_seconds`` until now."""
    ago = [every_seconds * n for n in range(len(events), 0, -1)]
    found = sent(*zip(events, ago, strict=True))
    if not digest:
        return found
    last = replace(found.alerts_sent[-1], digest=True)
    return replace(found, alerts_sent=(*found.alerts_sent[:-1], last))


FOUR_TURNS = (SUSPECTED, RESOLVED, SUSPECTED, RESOLVED)


@pytest.mark.parametrize(
    ("before", "event", "way"),
    [
        (sent_every(), SUSPECTED, "change"),
        (sent_every(SUSPECTED, RESOLVED, SUSPECTED), RESOLVED, "change"),
        (sent_every(*FOUR_TURNS), SUSPECTED, "digest"),
        (sent_every(*FOUR_TURNS), CONFIRMED, "digest"),
        # A further change in the same direction is not a reversal.
        (sent_every(SUSPECTED, CONFIRMED, RECOVERED), RESOLVED, "change"),
        (sent_every(SUSPECTED, CONFIRMED, RECOVERED, RESOLVED, SUSPECTED), CONFIRMED, "change"),
        # At this rate, every change is sent.
        (sent_every(*FOUR_TURNS, every_seconds=HOUR_SECONDS / 3), SUSPECTED, "change"),
        (sent_every(*FOUR_TURNS * 5, every_seconds=HOUR_SECONDS / 3), SUSPECTED, "change"),
    ],
)
def test_a_fifth_reversal_within_an_hour_is_sent_as_a_digest(
    before: AlertHistory, event: str, way: str
) -> None:
    assert way_to_tell(event, before, NOW, STILL_SECONDS) == way


@pytest.mark.parametrize("event", [SUSPECTED, RECOVERED, RESOLVED, CONFIRMED])
def test_after_a_digest_nothing_is_sent_until_the_status_lasts_an_hour(event: str) -> None:
    before = sent_every(CONFIRMED, RESOLVED, SUSPECTED, digest=True)
    assert way_to_tell(event, before, NOW, STILL_SECONDS - 1) is None
    assert way_to_tell(event, before, NOW + HOUR_SECONDS, STILL_SECONDS) == "change"


def test_the_first_confirmation_is_sent_even_after_a_digest_and_only_once() -> None:
    before = sent_every(*FOUR_TURNS, SUSPECTED, digest=True)
    assert way_to_tell(CONFIRMED, before, NOW, 1.0) == "digest"
    after = sent_every(*FOUR_TURNS, CONFIRMED, digest=True)
    assert way_to_tell(RESOLVED, after, NOW, 1.0) is None
    violated = sent_every(*FOUR_TURNS, "contract.violated", digest=True)
    assert way_to_tell("contract.violated", violated, NOW, 1.0) is None


def test_the_digest_says_how_often_and_in_what_time() -> None:
    assert digest_sentence(SUSPECTED, sent_every(*FOUR_TURNS, every_seconds=300), NOW) == (
        "flapping: opened 3 times and closed twice in 20 minutes; the next alert follows when "
        "the status has not changed for an hour"
    )
    once = sent_every(RESOLVED, every_seconds=50)
    assert "opened once and closed once in 1 minute;" in digest_sentence(SUSPECTED, once, NOW)


@pytest.mark.parametrize(
    ("generations", "ran_seconds", "patience_seconds"),
    [
        (100, 6_000.0, 1_800.0),
        (1_000, 6_000.0, 600.0),
        (0, 60.0, 1_800.0),
        (10, 864_000.0, 86_400.0),
    ],
)
def test_an_end_is_sent_when_it_has_lasted_for_thirty_generations(
    generations: int, ran_seconds: float, patience_seconds: float
) -> None:
    verdict = replace(VERDICT, generations=generations)
    run = replace(RUN, verdict=verdict, began_at=NOW - ran_seconds)
    before = {"i1": sent_every(SUSPECTED, every_seconds=90_000.0)}

    def events(after: str | None, stood: float, of: ExaminedRun = run) -> list[str]:
        same = IncidentChange("i1", FINDING, after, after, stood, stood)
        return [alert.event for alert in alerts_for([same], before, of)]

    assert events(None, patience_seconds) == [RESOLVED]
    assert events("recovered", patience_seconds) == [RECOVERED]
    assert events(None, patience_seconds - 1) == events("recovered", 0.0) == []
    # A beginning is sent immediately, and so is an end that is followed by nothing.
    assert events("confirmed", 0.0) == [CONFIRMED]
    assert events(None, 0.0, replace(run, state="finished")) == [RESOLVED]


KEPT = replace(FINDING, suspects=(Suspect("app.Sample", "type"),), fingerprint="f9")
CONTAINER = replace(KEPT, suspects=(Suspect("app.history", "container"),), kind="container")
INNER = replace(CONTAINER, suspects=(Suspect("app.history[*]", "container"),), fingerprint="f8")
NOWHERE = replace(KEPT, phase=None, phase_share=None)


@pytest.mark.parametrize(
    ("old", "new"),
    [(KEPT, INNER), (INNER, KEPT), (CONTAINER, INNER), (NOWHERE, replace(KEPT, fingerprint="f8"))],
    ids=["type to container", "container to type", "to the inner container", "to a phase"],
)
@pytest.mark.parametrize("state", ["running", "finished"])
def test_the_end_of_a_leak_that_goes_on_under_another_name_is_not_sent(
    old: Finding, new: Finding, state: str
) -> None:
    before = {"i1": sent(("incident.confirmed", 3_600))}
    gone = IncidentChange("i1", old, "confirmed", None, stood_seconds=1e6)

    def events(status: Any) -> list[str]:
        verdict = replace(VERDICT, findings=(replace(new, status=status),))
        return [
            a.event for a in alerts_for([gone], before, replace(RUN, verdict=verdict, state=state))
        ]

    assert events("confirmed") == events("watch") == []
    # It is sent when the leak has ended under every name.
    assert events("recovered") == [RESOLVED]


@pytest.mark.parametrize(("old", "new"), [(CONTAINER, INNER), (KEPT, INNER)])
def test_an_incident_keeps_its_id_under_another_name(old: Finding, new: Finding) -> None:
    of_run = replace(VERDICT, findings=(replace(old, status="suspected"),))
    first = incidents_after([], of_run, NOW)
    then = incidents_after(first.written, replace(VERDICT, findings=(new,)), NOW + 1)
    assert then.renamed == [(old.fingerprint, new.fingerprint)]
    (changed,) = then.changes
    assert changed.incident_id == first.written[0].id
    assert (changed.before, changed.after) == ("suspected", new.status)
