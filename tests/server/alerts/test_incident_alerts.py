"""Alerts of an incident: once per change, fewer when people said something of it, a digest when it flaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.server.alerts.conftest import FINDING, RUN, VERDICT

from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.flapping import (
    HOUR_SECONDS,
    STILL_SECONDS,
    digest_sentence,
    way_to_tell,
)
from leakline_server.alerts.incident_alerts import alerts_for
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
    """The events sent when an incident goes through these statuses, one examination each."""
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
        # One that weakens and comes back is not sent again.
        (["suspected", "watch", "suspected", "learning", "suspected"], [SUSPECTED]),
        (["confirmed", "suspected", "confirmed"], [CONFIRMED]),
        (["suspected", None, "ok"], [SUSPECTED, RESOLVED]),
        (
            ["watch", "suspected", "confirmed", "recovered", "ok"],
            [SUSPECTED, CONFIRMED, RECOVERED, RESOLVED],
        ),
        # One that has ended and is back is.
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


def test_a_change_has_one_id_whenever_it_is_examined_and_another_has_another() -> None:
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


def said(kind: Any, **more: Any) -> Acknowledgement:
    """Ten minutes ago, of a suspected and minor leak."""
    values = {"status": "suspected", "priority": "minor", "created_at": NOW - 600}
    return Acknowledgement(kind, **{"reason": "known", **values, **more})


def sent(*alerts_sent: tuple[str, float]) -> AlertHistory:
    """(event, seconds ago)."""
    past = tuple(SentAlert(event, NOW - ago) for event, ago in alerts_sent)
    return AlertHistory(past[-1].event if past else None, len(past), past)


def tell(
    after: str | None, *words: Acknowledgement, before: AlertHistory | None = None, priority: Any = "minor",
    began_at: float = RUN_BEGAN,
) -> list[Alert]:  # fmt: skip
    of = replace(FINDING, priority=priority)
    stood = IncidentChange("i1", of, None, after, 7_200.0, 86_400.0)
    run = replace(RUN, began_at=began_at)
    return alerts_for([stood], {"i1": before or AlertHistory()}, run, {FINDING.fingerprint: words})


def events(*arguments: Any, **more: Any) -> list[str]:
    return [alert.event for alert in tell(*arguments, **more)]


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
def test_an_acknowledged_leak_is_sent_only_when_it_is_worse_by_a_class(
    after: str | None, priority: str, expected: list[str]
) -> None:
    assert events(after, said("acknowledged"), priority=priority) == expected
    # It does not matter that it had been sent before it was acknowledged.
    before = sent((SUSPECTED, 1_200))
    assert events(after, said("acknowledged"), priority=priority, before=before) == expected


def test_a_priority_that_rises_is_sent_of_a_leak_that_was_confirmed_all_along() -> None:
    words = said("acknowledged", status="confirmed", priority="major")
    before = sent((CONFIRMED, 1_200))
    assert events("confirmed", words, before=before, priority="major") == []
    assert events("confirmed", words, before=before, priority="critical") == [CONFIRMED]


@pytest.mark.parametrize("over", [{"expires_at": NOW}, {"ended_at": NOW - 60}])
@pytest.mark.parametrize("kind", ["acknowledged", "ignored", "closed"])
def test_what_has_expired_or_was_taken_back_is_as_if_it_had_never_been_said(
    kind: str, over: dict[str, float]
) -> None:
    assert events("suspected", said(kind, **over)) == [SUSPECTED]
    # But for the acknowledgement that expired: after it a leak that is still there is sent once more.
    again = [SUSPECTED] if kind == "acknowledged" and "expires_at" in over else []
    assert events("suspected", said(kind, **over), before=sent((SUSPECTED, 1_200))) == again
    assert events(None, said(kind, **over), before=sent((SUSPECTED, 1_200))) == [RESOLVED]


def test_after_an_acknowledgement_expired_a_leak_that_is_still_there_is_sent_once() -> None:
    expired = said("acknowledged", expires_at=NOW - 120)
    before = sent((CONFIRMED, 1_200))
    (alert,) = tell("confirmed", expired, before=before)
    assert alert.event == CONFIRMED
    assert alert.payload["summary"].startswith(
        "Still present and no longer muted: known. evaluate_population keeps"
    )
    assert events("confirmed", expired, before=sent((CONFIRMED, 1_200), (CONFIRMED, 60))) == []
    # Who muted it on a page may have given no reason.
    (alert,) = tell(
        "confirmed", said("acknowledged", expires_at=NOW - 120, reason=""), before=before
    )
    assert alert.payload["summary"].startswith(
        "Still present and no longer muted. evaluate_population"
    )
    # Only the newest acknowledgement says until when people wanted to hear nothing.
    newer = said("acknowledged", created_at=NOW - 60, expires_at=NOW - 10, ended_at=NOW - 30)
    assert events("confirmed", expired, newer, before=before) == []
    # One that was never sent, or was sent to be over, is not still there.
    for new in (sent(), sent((CONFIRMED, 1_200), (RESOLVED, 900))):
        (first,) = tell("confirmed", expired, before=new)
        assert "acknowledgement" not in first.payload["summary"]


def test_an_end_is_sent_of_what_was_sent_before_an_acknowledgement_that_expired() -> None:
    expired = said("acknowledged", expires_at=NOW - 120)
    before = sent((CONFIRMED, 1_200))
    assert events("recovered", expired, before=before) == [RECOVERED]
    assert events(None, expired, before=before) == [RESOLVED]
    assert events("watch", expired, before=before) == []


def test_a_leak_that_stopped_when_it_was_acknowledged_may_be_suspected_again() -> None:
    words = said("acknowledged", status="recovered")
    assert events("suspected", words) == []
    assert events("confirmed", words) == [CONFIRMED]


@pytest.mark.parametrize("kind", ["ignored", "closed"])
@pytest.mark.parametrize("after", ["suspected", "confirmed", "recovered", None])
def test_an_ignored_leak_and_a_closed_one_of_a_run_before_are_never_sent(
    kind: str, after: str | None
) -> None:
    before = sent((SUSPECTED, 1_200))
    assert events(after, said(kind), before=before, priority="critical") == []


def test_one_that_is_back_may_be_acknowledged_and_ignored_again() -> None:
    closed = said("closed", created_at=NOW - 900)
    assert events("suspected", closed, said("acknowledged"), began_at=NOW - 800) == []
    (worse,) = tell("confirmed", closed, said("acknowledged"), began_at=NOW - 800)
    assert "it had been closed with" in worse.payload["summary"]
    assert events("confirmed", closed, said("ignored"), began_at=NOW - 800) == []


def test_a_note_as_long_as_a_book_leaves_the_summary_whole() -> None:
    (alert,) = tell("suspected", said("closed", reason="x" * 1_000), began_at=NOW - 300)
    assert "16 TradingEnvironment per generation: 7.10 GiB" in alert.payload["summary"]
    assert len(alert.payload["summary"]) < 500


def test_what_was_said_of_one_leak_does_not_quiet_another() -> None:
    words = {FINDING.fingerprint: [said("ignored")]}
    assert len(alerts_for([change("suspected", fingerprint="f2")], {}, RUN, words)) == 1


def sent_every(*events: str, every_seconds: float = 60.0, digest: bool = False) -> AlertHistory:
    """These, the last of them ``every_seconds`` ago."""
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
        # What goes further the same way is no turn.
        (sent_every(SUSPECTED, CONFIRMED, RECOVERED), RESOLVED, "change"),
        (sent_every(SUSPECTED, CONFIRMED, RECOVERED, RESOLVED, SUSPECTED), CONFIRMED, "change"),
        # As slow as this, every change is news.
        (sent_every(*FOUR_TURNS, every_seconds=HOUR_SECONDS / 3), SUSPECTED, "change"),
        (sent_every(*FOUR_TURNS * 5, every_seconds=HOUR_SECONDS / 3), SUSPECTED, "change"),
    ],
)
def test_a_fifth_turn_within_an_hour_is_sent_as_a_digest(
    before: AlertHistory, event: str, way: str
) -> None:
    assert way_to_tell(event, before, NOW, STILL_SECONDS) == way


@pytest.mark.parametrize("event", [SUSPECTED, RECOVERED, RESOLVED, CONFIRMED])
def test_after_a_digest_nothing_is_sent_until_the_status_has_stood_for_an_hour(event: str) -> None:
    before = sent_every(CONFIRMED, RESOLVED, SUSPECTED, digest=True)
    assert way_to_tell(event, before, NOW, STILL_SECONDS - 1) is None
    assert way_to_tell(event, before, NOW + HOUR_SECONDS, STILL_SECONDS) == "change"


def test_the_first_confirmation_is_sent_even_then_and_only_once() -> None:
    before = sent_every(*FOUR_TURNS, SUSPECTED, digest=True)
    assert way_to_tell(CONFIRMED, before, NOW, 1.0) == "digest"
    after = sent_every(*FOUR_TURNS, CONFIRMED, digest=True)
    assert way_to_tell(RESOLVED, after, NOW, 1.0) is None
    violated = sent_every(*FOUR_TURNS, "contract.violated", digest=True)
    assert way_to_tell("contract.violated", violated, NOW, 1.0) is None


def test_the_digest_says_how_often_and_in_what_time() -> None:
    assert digest_sentence(SUSPECTED, sent_every(*FOUR_TURNS, every_seconds=300), NOW) == (
        "flapping: opened 3 times and closed twice in 20 minutes; sent again when a status has lasted for an hour"
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
def test_an_end_is_sent_when_it_has_stood_for_thirty_generations(
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
    # What begins is sent at once, and so is the end when nothing comes after it.
    assert events("confirmed", 0.0) == [CONFIRMED]
    assert events(None, 0.0, replace(run, state="finished")) == [RESOLVED]
