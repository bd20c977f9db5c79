"""An incident is told once per change, not once per snapshot."""

from __future__ import annotations

import pytest

from leakline.analysis.results import Finding, Interval, Suspect, Verdict
from leakline_server.alerts.payload import ExaminedRun
from leakline_server.alerts.rules import alerts_for, event_for
from leakline_server.store.alerts import Told
from leakline_server.store.findings import IncidentChange

GIB = 2.0**30


def finding(fingerprint: str = "f1", kind: str = "objects") -> Finding:
    return Finding(
        fingerprint=fingerprint, status="confirmed", kind=kind, phase="evaluate_population", phase_share=0.97,  # type: ignore[arg-type]
        suspects=(Suspect("trading.TradingEnvironment", "type", 16.0, 7.1 * GIB),),
        growth_bytes_per_generation=Interval(7.1 * GIB, 6.9 * GIB, 7.3 * GIB),
        started_at_generation=Interval(1, 1, 2), confidence=0.99,
    )  # fmt: skip


FINDING = finding()


def change(after: str | None, before: str | None = None, of: Finding = FINDING) -> IncidentChange:
    return IncidentChange(of.fingerprint.replace("f", "i"), of, before, after)


VERDICT = Verdict("r1", "generation", 25, "confirmed", "…", None, None)
RUN = ExaminedRun("r1", "erl-trading", "before-fix", VERDICT, 1_760_000_000.0)


def told_in_turn(*statuses: str | None, kind: str = "objects") -> list[str]:
    """The events told when an incident goes through these statuses, one examination each."""
    events: list[str] = []
    before = None
    for after in statuses:
        told = {"i1": Told(events[-1], len(events))} if events else {}
        alerts = alerts_for([change(after, before, finding(kind=kind))], told, RUN)
        events += [alert.event for alert in alerts]
        before = after
    return events


@pytest.mark.parametrize("status", ["learning", "ok", "filling", "watch", "recovered", None])
def test_what_was_never_suspected_is_not_told(status: str | None) -> None:
    assert told_in_turn(status) == []


def test_nothing_is_told_twice() -> None:
    assert told_in_turn("suspected", "suspected", "suspected") == ["incident.suspected"]
    assert told_in_turn("confirmed", "confirmed") == ["incident.confirmed"]


def test_a_finding_that_weakens_and_comes_back_is_not_told_again() -> None:
    assert told_in_turn("suspected", "watch", "suspected", "learning", "suspected") == [
        "incident.suspected"
    ]
    assert told_in_turn("confirmed", "suspected", "confirmed") == ["incident.confirmed"]


def test_the_end_is_told_only_of_what_was_told() -> None:
    assert told_in_turn("watch", None) == []
    assert told_in_turn("suspected", None, "ok") == ["incident.suspected", "incident.resolved"]


def test_each_step_up_and_down_is_told() -> None:
    assert told_in_turn("watch", "suspected", "confirmed", "recovered", "ok") == [
        "incident.suspected", "incident.confirmed", "incident.recovered", "incident.resolved",
    ]  # fmt: skip


def test_a_leak_that_comes_back_is_told_again() -> None:
    assert told_in_turn("confirmed", "recovered", "suspected", "confirmed") == [
        "incident.confirmed", "incident.recovered", "incident.suspected", "incident.confirmed",
    ]  # fmt: skip
    assert told_in_turn("suspected", None, "suspected")[-1] == "incident.suspected"


def test_a_violated_count_is_told_under_its_own_name_once() -> None:
    events = told_in_turn("suspected", "confirmed", "recovered", kind="count_contract")
    assert events == ["contract.violated", "incident.recovered"]


def test_every_pair_of_status_and_history_has_an_answer() -> None:
    statuses = ["learning", "ok", "filling", "watch", "suspected", "confirmed", "recovered", None]
    ends = {"incident.recovered", "incident.resolved"}
    events = {None, "incident.suspected", "incident.confirmed", "contract.violated", *ends}
    for status in statuses:
        for told in events:
            event = event_for(status, "objects", told)
            assert event in events
            assert event is None or event != told, "told twice in a row"


def test_the_same_change_has_the_same_id_whoever_examines_it_and_whenever() -> None:
    later = ExaminedRun(RUN.id, RUN.project, RUN.name, VERDICT, RUN.at + 60)
    (first,), (again,) = (alerts_for([change("suspected")], {}, run) for run in (RUN, later))
    assert first.id == again.id


def test_different_changes_have_different_ids() -> None:
    other_run = ExaminedRun("r2", RUN.project, RUN.name, VERDICT, RUN.at)
    alerts = [
        *alerts_for([change("suspected"), change("suspected", of=finding("f2"))], {}, RUN),
        *alerts_for([change("confirmed")], {}, RUN),
        *alerts_for([change("suspected")], {"i1": Told("incident.resolved", 2)}, RUN),
        *alerts_for([change("suspected")], {}, other_run),
    ]
    assert len({alert.id for alert in alerts}) == len(alerts) == 5
