"""An incident that opens and ends again and again becomes one digest, and is quiet until it has stood for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakline_server.alerts.flapping import (
    HOUR_SECONDS,
    STILL_SECONDS,
    digest_sentence,
    way_to_tell,
)
from leakline_server.alerts.payload import ExaminedRun
from leakline_server.alerts.rules import alerts_for
from leakline_server.store.alerts import DIGEST, Telling, Told
from leakline_server.store.findings import IncidentChange
from leaks import FINDING, RUN, VERDICT

NOW = RUN.at
SUSPECTED, CONFIRMED = "incident.suspected", "incident.confirmed"
RECOVERED, RESOLVED = "incident.recovered", "incident.resolved"


def told(*events: str, every_seconds: float = 60.0, digest: bool = False) -> Told:
    """These, the last of them ``every_seconds`` ago."""
    first = NOW - len(events) * every_seconds
    tellings = tuple(Telling(event, first + i * every_seconds) for i, event in enumerate(events))
    if digest:
        tellings = (*tellings[:-1], replace(tellings[-1], digest=True))
    return Told(events[-1] if events else None, len(events), tellings)


FOUR_TURNS = (SUSPECTED, RESOLVED, SUSPECTED, RESOLVED)


@pytest.mark.parametrize(
    ("before", "event", "way"),
    [
        (told(), SUSPECTED, "change"),
        (told(SUSPECTED, RESOLVED, SUSPECTED), RESOLVED, "change"),
        (told(*FOUR_TURNS), SUSPECTED, "digest"),
        (told(*FOUR_TURNS), CONFIRMED, "digest"),
        # What goes further the same way is no turn.
        (told(SUSPECTED, CONFIRMED, RECOVERED), RESOLVED, "change"),
        (told(SUSPECTED, CONFIRMED, RECOVERED, RESOLVED, SUSPECTED), CONFIRMED, "change"),
        # As slow as this, every change is news.
        (told(*FOUR_TURNS, every_seconds=HOUR_SECONDS / 3), SUSPECTED, "change"),
        (told(*FOUR_TURNS * 5, every_seconds=HOUR_SECONDS / 3), SUSPECTED, "change"),
    ],
)
def test_a_fifth_turn_within_an_hour_is_told_as_a_digest(
    before: Told, event: str, way: str
) -> None:
    assert way_to_tell(event, before, NOW, STILL_SECONDS) == way


@pytest.mark.parametrize("event", [SUSPECTED, RECOVERED, RESOLVED, CONFIRMED])
def test_after_a_digest_nothing_is_told_until_the_status_has_stood_for_an_hour(event: str) -> None:
    before = told(CONFIRMED, RESOLVED, SUSPECTED, digest=True)
    assert way_to_tell(event, before, NOW, STILL_SECONDS - 1) is None
    assert way_to_tell(event, before, NOW + HOUR_SECONDS, STILL_SECONDS) == "change"


def test_the_first_confirmation_is_told_even_then_and_only_once() -> None:
    before = told(*FOUR_TURNS, SUSPECTED, digest=True)
    assert way_to_tell(CONFIRMED, before, NOW, 1.0) == "digest"
    after = told(*FOUR_TURNS, CONFIRMED, digest=True)
    assert way_to_tell(RESOLVED, after, NOW, 1.0) is None
    violated = told(*FOUR_TURNS, "contract.violated", digest=True)
    assert way_to_tell("contract.violated", violated, NOW, 1.0) is None


def test_the_digest_says_how_often_and_in_what_time() -> None:
    assert digest_sentence(SUSPECTED, told(*FOUR_TURNS, every_seconds=300), NOW) == (
        "flapping: opened 3 times and closed 2 times in 20 minutes; told again when it has stood for an hour"
    )
    once = told(RESOLVED, every_seconds=50)
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
def test_an_end_is_told_when_it_has_stood_for_thirty_generations(
    generations: int, ran_seconds: float, patience_seconds: float
) -> None:
    verdict = replace(VERDICT, generations=generations)
    run = replace(RUN, verdict=verdict, began_at=NOW - ran_seconds)
    before = {"i1": told(SUSPECTED, every_seconds=90_000.0)}

    def events(after: str | None, stood: float, of: ExaminedRun = run) -> list[str]:
        change = IncidentChange("i1", FINDING, after, after, stood, stood)
        return [alert.event for alert in alerts_for([change], before, of)]

    assert events(None, patience_seconds) == [RESOLVED]
    assert events("recovered", patience_seconds) == [RECOVERED]
    assert events(None, patience_seconds - 1) == events("recovered", 0.0) == []
    # What begins is told at once, and so is the end when nothing comes after it.
    assert events("confirmed", 0.0) == [CONFIRMED]
    assert events(None, 0.0, replace(run, state="finished")) == [RESOLVED]


def test_a_day_of_flapping_is_told_in_six_messages() -> None:
    """Open for a minute, over for a minute, for a day; then it stays over."""
    statuses = ["suspected" if minute % 2 == 0 else None for minute in range(24 * 60)]
    alerts, history = [], Told()
    moved_at, before = NOW, None
    for minute, after in enumerate([*statuses, *[None] * 120]):
        at = NOW + 60 * minute
        still = at - moved_at
        if after != before or minute == 0:
            moved_at = at
        change = IncidentChange("i1", FINDING, before, after, still)
        for alert in alerts_for([change], {"i1": history}, replace(RUN, at=at)):
            alerts.append(alert)
            telling = Telling(alert.event, at, alert.subject == DIGEST)
            history = Told(alert.event, history.count + 1, (*history.tellings, telling))
        before = after
    assert [(alert.event, alert.subject) for alert in alerts] == [
        (SUSPECTED, ""), (RESOLVED, ""), (SUSPECTED, ""), (RESOLVED, ""), (SUSPECTED, DIGEST), (RESOLVED, ""),
    ]  # fmt: skip
    assert alerts[-1].created_at - (NOW + 60 * 1439) == pytest.approx(STILL_SECONDS)
    digest = alerts[-2].payload
    assert digest["summary"].startswith("Flapping: opened 3 times and closed 2 times in 4 minutes")
    assert "TradingEnvironment" in digest["summary"]
    assert len({alert.id for alert in alerts}) == len(alerts)
