"""What people said of a leak decides what is still told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leakline_server.alerts.rules import alerts_for
from leakline_server.store.acknowledgements import Acknowledgement
from leakline_server.store.alerts import Alert, Telling, Told
from leakline_server.store.findings import IncidentChange
from leaks import FINDING, RUN

NOW = RUN.at
RUN_BEGAN = NOW - 3_600
SUSPECTED, CONFIRMED, RESOLVED = "incident.suspected", "incident.confirmed", "incident.resolved"


def said(kind: Any, **more: Any) -> Acknowledgement:
    """Ten minutes ago, of a suspected and minor leak."""
    values = {
        "reason": "known",
        "status": "suspected",
        "priority": "minor",
        "created_at": NOW - 600,
    }
    return Acknowledgement(kind, **{**values, **more})


def told(*tellings: tuple[str, float]) -> Told:
    """(event, seconds ago)."""
    past = tuple(Telling(event, NOW - ago) for event, ago in tellings)
    return Told(past[-1].event if past else None, len(past), past)


def tell(
    after: str | None,
    *words: Acknowledgement,
    before: Told | None = None,
    priority: Any = "minor",
    began_at: float = RUN_BEGAN,
) -> list[Alert]:
    change = IncidentChange(
        "i1", replace(FINDING, priority=priority), None, after, 7_200.0, 86_400.0
    )
    run = replace(RUN, began_at=began_at)
    return alerts_for([change], {"i1": before or Told()}, run, {FINDING.fingerprint: words})


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
def test_an_acknowledged_leak_is_told_only_when_it_is_worse_by_a_class(
    after: str | None, priority: str, expected: list[str]
) -> None:
    assert events(after, said("acknowledged"), priority=priority) == expected
    # It does not matter that it had been told before it was acknowledged.
    before = told((SUSPECTED, 1_200))
    assert events(after, said("acknowledged"), priority=priority, before=before) == expected


def test_a_priority_that_rises_is_told_of_a_leak_that_was_confirmed_all_along() -> None:
    words = said("acknowledged", status="confirmed", priority="major")
    before = told((CONFIRMED, 1_200))
    assert events("confirmed", words, before=before, priority="major") == []
    assert events("confirmed", words, before=before, priority="critical") == [CONFIRMED]


def test_once_it_was_worse_its_incident_is_told_as_ever() -> None:
    before = told((SUSPECTED, 1_200), (CONFIRMED, 300))
    assert events("confirmed", said("acknowledged"), before=before) == []
    assert events(None, said("acknowledged"), before=before) == [RESOLVED]


@pytest.mark.parametrize("over", [{"expires_at": NOW}, {"ended_at": NOW - 60}])
@pytest.mark.parametrize("kind", ["acknowledged", "ignored", "closed"])
def test_what_has_expired_or_was_taken_back_is_as_if_it_had_never_been_said(
    kind: str, over: dict[str, float]
) -> None:
    assert events("suspected", said(kind, **over)) == [SUSPECTED]
    # But for the acknowledgement that expired: after it a leak that stands is told once more.
    again = [SUSPECTED] if kind == "acknowledged" and "expires_at" in over else []
    assert events("suspected", said(kind, **over), before=told((SUSPECTED, 1_200))) == again
    assert events(None, said(kind, **over), before=told((SUSPECTED, 1_200))) == [RESOLVED]


def test_after_an_acknowledgement_expired_a_leak_that_stands_is_told_once() -> None:
    expired = said("acknowledged", expires_at=NOW - 120)
    before = told((CONFIRMED, 1_200))
    (alert,) = tell("confirmed", expired, before=before)
    assert alert.event == CONFIRMED
    assert alert.payload["summary"].startswith(
        "Still there; its acknowledgement has expired: known. evaluate_population keeps"
    )
    assert events("confirmed", expired, before=told((CONFIRMED, 1_200), (CONFIRMED, 60))) == []
    # Only the newest acknowledgement says until when people wanted to hear nothing.
    newer = said("acknowledged", created_at=NOW - 60, expires_at=NOW - 10, ended_at=NOW - 30)
    assert events("confirmed", expired, newer, before=before) == []
    # One that was never told, or was told to be over, is not still there.
    for new in (told(), told((CONFIRMED, 1_200), (RESOLVED, 900))):
        (first,) = tell("confirmed", expired, before=new)
        assert "acknowledgement" not in first.payload["summary"]


def test_an_end_is_told_of_what_was_told_before_an_acknowledgement_that_expired() -> None:
    expired = said("acknowledged", expires_at=NOW - 120)
    before = told((CONFIRMED, 1_200))
    assert events("recovered", expired, before=before) == ["incident.recovered"]
    assert events(None, expired, before=before) == [RESOLVED]
    assert events("watch", expired, before=before) == []


def test_a_leak_that_stopped_when_it_was_acknowledged_may_be_suspected_again() -> None:
    words = said("acknowledged", status="recovered")
    assert events("suspected", words) == []
    assert events("confirmed", words) == [CONFIRMED]


@pytest.mark.parametrize("after", ["suspected", "confirmed", "recovered", None])
def test_an_ignored_leak_is_never_told(after: str | None) -> None:
    assert (
        events(after, said("ignored"), before=told((SUSPECTED, 1_200)), priority="critical") == []
    )


@pytest.mark.parametrize("after", ["suspected", "confirmed", None])
def test_a_closed_leak_is_not_told_of_a_run_that_began_before(after: str | None) -> None:
    assert events(after, said("closed"), before=told((SUSPECTED, 1_200)), priority="critical") == []


def test_a_closed_leak_that_is_back_in_a_later_run_is_told_with_its_note() -> None:
    words = said("closed", reason="replay buffer capped")
    (alert,) = tell("suspected", words, began_at=NOW - 300)
    assert alert.event == SUSPECTED
    assert alert.payload["summary"].startswith(
        "Back in before-fix; closed before with: replay buffer capped. evaluate_population keeps"
    )
    assert alert.payload["incident"]["closed_before"] == "replay buffer capped"


def test_a_run_that_goes_on_in_a_later_attempt_has_it_back_too() -> None:
    """What was told of its attempt before was told of the old code."""
    before = told((SUSPECTED, 3_000), (CONFIRMED, 2_000))
    assert events("confirmed", said("closed"), before=before, began_at=NOW - 300) == [CONFIRMED]
    back = told((CONFIRMED, 2_000), (CONFIRMED, 100))
    assert events("confirmed", said("closed"), before=back, began_at=NOW - 300) == []
    assert events(None, said("closed"), before=back, began_at=NOW - 300) == [RESOLVED]


def test_one_that_is_back_may_be_acknowledged_and_ignored_again() -> None:
    closed = said("closed", created_at=NOW - 900)
    assert events("suspected", closed, said("acknowledged"), began_at=NOW - 800) == []
    (worse,) = tell("confirmed", closed, said("acknowledged"), began_at=NOW - 800)
    assert "closed before with" in worse.payload["summary"]
    assert events("confirmed", closed, said("ignored"), began_at=NOW - 800) == []


def test_a_note_as_long_as_a_book_leaves_the_summary_whole() -> None:
    (alert,) = tell("suspected", said("closed", reason="x" * 1_000), began_at=NOW - 300)
    assert "16 TradingEnvironment per generation: 7.10 GiB" in alert.payload["summary"]
    assert len(alert.payload["summary"]) < 500


def test_what_was_said_of_one_leak_does_not_quiet_another() -> None:
    change = IncidentChange("i2", replace(FINDING, fingerprint="f2"), None, "suspected")
    assert len(alerts_for([change], {}, RUN, {FINDING.fingerprint: [said("ignored")]})) == 1
