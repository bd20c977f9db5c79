"""From one verdict to the next: which of the alerts' events have happened, each once for each change."""

from __future__ import annotations

from typing import Any

import pytest

from leakline.analysis.results import Finding, Interval, OomForecast, Suspect, Verdict
from leakline.verdict_events import VerdictEvents

S, C, R, V = "incident.suspected", "incident.confirmed", "incident.recovered", "contract.violated"


def finding(
    status: Any, kind: Any = "objects", name: str = "f", suspect: str = "app.Agent"
) -> Finding:
    growth = Interval(1e6, 9e5, 1.1e6)
    return Finding(
        name,
        status,
        kind,
        "train",
        0.9,
        (Suspect(suspect, "type"),),
        growth,
        Interval(3, 2, 4),
        0.9,
    )


def verdict(*findings: Finding, risk: Any = "none") -> Verdict:
    return Verdict(
        "r", "generation", 9, "ok", "", None, None, tuple(findings), oom=OomForecast(risk)
    )


def told(*verdicts: Verdict) -> list[set[str]]:
    events = VerdictEvents()
    return [events.since_last(each) for each in verdicts]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["watch", "suspected", "suspected"], [set(), {S}, set()]),
        (["suspected", "confirmed", "confirmed"], [{S}, {C}, set()]),
        (["confirmed", "suspected", "confirmed"], [{S, C}, set(), set()]),
        (["suspected", "watch", "suspected"], [{S}, set(), set()]),
        (["suspected", "recovered", "recovered"], [{S}, {R}, set()]),
        (["suspected", "recovered", "suspected"], [{S}, {R}, {S}]),
        (["suspected", "ok", "suspected"], [{S}, set(), {S}]),
        (["watch", "recovered", "ok"], [set(), set(), set()]),
    ],
)  # fmt: skip
def test_an_incident_is_told_once_for_each_change(
    statuses: list[str], expected: list[set[str]]
) -> None:
    assert told(*(verdict(finding(status)) for status in statuses)) == expected


def test_a_broken_count_is_told_in_place_of_a_suspicion() -> None:
    broken = verdict(finding("suspected", "count_contract"))
    assert told(broken, broken, verdict(finding("confirmed"))) == [{V}, set(), set()]
    assert told(verdict(finding("suspected")), broken) == [{S}, {V}]


def test_each_finding_is_told_by_itself() -> None:
    one, two = finding("suspected"), finding("suspected", name="g", suspect="app.Other")
    assert told(verdict(one), verdict(one, two), verdict(two, one)) == [{S}, {S}, set()]


def test_a_leak_known_by_a_better_name_is_the_same_one() -> None:
    first, better = finding("suspected"), finding("suspected", "container", name="g")
    assert told(verdict(first), verdict(better)) == [{S}, set()]
    # Only one of two can be it.
    other = finding("suspected", "tensors", name="h")
    assert told(verdict(first), verdict(better, other)) == [{S}, {S}]


def test_memory_that_runs_out_is_told_when_it_gets_worse_until_the_risk_is_over() -> None:
    risks = ["none", "low", "high", "high", "critical", "high", "critical", "none", "critical"]
    events = told(*(verdict(risk=risk) for risk in risks))
    assert ["oom.risk" in each for each in events] == [
        False, False, True, False, True, False, False, False, True
    ]  # fmt: skip
