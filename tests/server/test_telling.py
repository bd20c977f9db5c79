"""What the examiner tells, with what people said before: rows of alerts in the transaction of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.server.access.people import Clock

from leakline.analysis.results import Finding, Interval, Moment, OomForecast, Suspect, Verdict
from leakline.snapshot import RunHeader
from leakline_server.store import acknowledgements, incident_groups, joining, runs
from leakline_server.store.acknowledgements import Acknowledgement
from leakline_server.store.engine import Engine, writing
from leakline_server.store.tables import alerts, deliveries, webhooks
from leakline_server.store.tables import runs as runs_table
from leakline_server.workers.examine import Examiner, Wakes

NOW = 1_760_000_000.0
SUSPECTED, CONFIRMED = "incident.suspected", "incident.confirmed"
RESOLVED = "incident.resolved"


BEGAN = NOW - 600
# Thirty generations of the first run: so long an end has to stand.
TO_BELIEVE = 1_800.0


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


def finding(status: Any = "suspected", **more: Any) -> Finding:
    growth = Interval(1e6, 9e5, 1.1e6)
    suspects = (Suspect("app.Env", "type", 16.0),)
    return Finding("f1", status, "objects", "evaluate", 0.9, suspects, growth, None, 0.9, **more)


See = Callable[..., None]


@pytest.fixture
def see(engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> See:
    """An examination that finds this, seconds after the one before; a generation takes ``each`` seconds."""
    woken: list[int] = []
    examiner = Examiner(engine, 60.0, Wakes(lambda _: None, lambda: woken.append(1)), clock, clock)

    def look(
        *found: Finding, run: str = "r1", after: float = 60.0, each: float = 60.0,
        oom: OomForecast | None = None,
    ) -> None:  # fmt: skip
        clock.now += after
        done = round((clock.now - BEGAN) / each)
        oom = oom or OomForecast()
        said = Verdict(run, "generation", done, "ok", "…", None, None, found, oom=oom)
        monkeypatch.setattr("leakline.analysis.examine", lambda *read: said)
        examiner.examine(run)

    return look


@pytest.fixture(autouse=True)
def run(engine: Engine) -> None:
    begin(engine, "r1", BEGAN)


def begin(engine: Engine, run_id: str, at: float, now: float = NOW) -> None:
    joining.join_run(engine, RunHeader(run_id, "erl", run_id, "generation", None, at), now)


def told(engine: Engine, run: str = "r1") -> list[str]:
    query = select(alerts.c.event).where(alerts.c.run_id == run).order_by(alerts.c.number)
    with engine.connect() as connection:
        return list(connection.scalars(query))


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        query = select(alerts).order_by(alerts.c.run_id, alerts.c.number)
        return list(connection.execute(query))


def say(engine: Engine, kind: Any, at: float, status: str = "suspected", **more: Any) -> None:
    said = Acknowledgement(kind, "known", status, "minor", at, **more)
    with writing(engine) as connection:
        acknowledgements.say(connection, "erl", "f1", said)


def test_an_acknowledged_leak_is_told_when_it_gets_worse(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding())
    say(engine, "acknowledged", clock.now)
    see(after=60)
    see(finding())
    assert told(engine) == [SUSPECTED]
    see(finding("confirmed"))
    see(finding("confirmed"))
    see()
    assert told(engine) == [SUSPECTED, CONFIRMED]
    see(after=TO_BELIEVE)
    assert told(engine) == [SUSPECTED, CONFIRMED, RESOLVED]


def test_what_happened_while_it_was_acknowledged_is_told_when_that_has_expired(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding())
    say(engine, "acknowledged", clock.now, expires_at=clock.now + 2 * TO_BELIEVE)
    see()
    see(after=TO_BELIEVE)
    assert told(engine) == [SUSPECTED]
    see(after=TO_BELIEVE)
    # Nothing has changed since; but it has never been told that it is over.
    assert told(engine) == [SUSPECTED, RESOLVED]
    see()
    assert told(engine) == [SUSPECTED, RESOLVED]


def test_a_leak_that_still_stands_when_its_acknowledgement_expires_is_told_once_more(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding("confirmed"))
    until = clock.now + 3_600
    say(engine, "acknowledged", clock.now, status="confirmed", expires_at=until)
    see(finding("confirmed"), after=3_599)
    assert told(engine) == [CONFIRMED]
    # Its status has not moved for an hour.
    see(finding("confirmed"), after=1)
    assert told(engine) == [CONFIRMED, CONFIRMED]
    assert "Still there; its acknowledgement has expired: known. " in rows(engine)[-1].payload
    for _ in range(3):
        see(finding("confirmed"))
    assert told(engine) == [CONFIRMED, CONFIRMED]
    see()
    see(after=TO_BELIEVE)
    assert told(engine) == [CONFIRMED, CONFIRMED, RESOLVED]


def test_an_acknowledged_leak_is_measured_against_the_runs_that_go_on(
    engine: Engine, see: See, clock: Clock
) -> None:
    worst = finding("confirmed", priority="critical")
    for run, end in (("of last month", "finished"), ("cut off", "silent")):
        begin(engine, run, clock.now)
        see(worst, run=run)
        see(worst, run=run)
        with writing(engine) as connection:
            of = runs_table.c.id == run
            connection.execute(update(runs_table).where(of).values(state=end))
    see(finding())
    with writing(engine) as connection:
        status, priority = incident_groups.worst_of(connection, "erl", "f1") or ("", "")
        assert (status, priority) == ("suspected", "minor")
        said = Acknowledgement("acknowledged", "known", status, priority, clock.now)
        acknowledgements.say(connection, "erl", "f1", said)
    see(finding())
    assert told(engine) == [SUSPECTED]
    see(worst)
    assert told(engine) == [SUSPECTED, CONFIRMED]


def test_where_no_run_goes_on_a_leak_is_as_the_newest_had_it(engine: Engine, see: See) -> None:
    begin(engine, "older", BEGAN)
    see(finding("confirmed", priority="critical"), run="older")
    see(finding(priority="major"))
    with writing(engine) as connection:
        connection.execute(update(runs_table).values(state="failed"))
        assert incident_groups.worst_of(connection, "erl", "f1") == ("suspected", "major")
        assert incident_groups.worst_of(connection, "erl", "f2") is None


def test_a_clock_that_is_set_back_tells_nothing_twice(engine: Engine, see: See) -> None:
    """Or another server's, half a minute behind."""
    see(finding(), oom=risk("high"))
    before = told(engine)
    assert sorted(before) == [SUSPECTED, "oom.risk"]
    see(finding("confirmed"), oom=risk("critical"), after=-30)
    for _ in range(20):
        see(finding("confirmed"), oom=risk("critical"), after=0.5)
    assert told(engine)[2:] == [CONFIRMED, "oom.risk"]
    see(finding("confirmed"), oom=risk("critical"))
    assert len(told(engine)) == 4


def test_what_was_said_by_a_clock_ahead_of_this_one_is_not_answered_at_every_look(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding())
    say(engine, "acknowledged", clock.now + 30)
    for _ in range(20):
        see(finding("confirmed"), after=0.5)
    assert told(engine) == [SUSPECTED, CONFIRMED]
    for _ in range(20):
        see(finding("confirmed"))
    assert told(engine).count(CONFIRMED) <= 2


def test_an_ignored_leak_is_not_told_and_is_told_when_that_is_taken_back(
    engine: Engine, see: See, clock: Clock
) -> None:
    say(engine, "ignored", NOW - 1)
    see(finding("confirmed", priority="critical"))
    assert told(engine) == []
    with writing(engine) as connection:
        assert acknowledgements.end(connection, "erl", "f1", "ignored", clock.now)
    see(finding("confirmed", priority="critical"))
    assert told(engine) == [CONFIRMED]


def test_an_ignored_leak_that_is_known_by_a_better_name_stays_ignored(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding())
    say(engine, "ignored", clock.now)
    better = replace(finding("confirmed", priority="critical"), fingerprint="f2")
    see(better)
    assert told(engine) == [SUSPECTED]
    # What people say of it under its new name counts before what they said under the old one.
    with writing(engine) as connection:
        assert acknowledgements.end(connection, "erl", "f2", "ignored", clock.now)
    see(better)
    see(finding("confirmed"))
    see(better)
    assert told(engine) == [SUSPECTED, CONFIRMED]


def test_a_closed_leak_is_told_again_in_a_later_run_with_its_note(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding())
    say(engine, "closed", clock.now)
    see(finding("confirmed"))
    assert told(engine) == [SUSPECTED]
    begin(engine, "r2", clock.now + 1, clock.now)
    see(finding(), run="r2")
    assert told(engine, "r2") == [SUSPECTED]
    assert "Back in r2; closed before with: known." in rows(engine)[-1].payload


def test_the_first_run_goes_on_after_it_was_closed_and_its_next_attempt_has_it_back(
    engine: Engine, see: See, clock: Clock
) -> None:
    see(finding("confirmed"))
    say(engine, "closed", clock.now)
    runs.change_run(engine, "r1", runs.Changes(state="failed", ended_at=clock.now), clock.now)
    clock.now += 60
    begin(engine, "r1", clock.now, clock.now)
    see(finding("confirmed"))
    assert told(engine)[-1] == CONFIRMED and told(engine).count(CONFIRMED) == 2


def test_an_end_is_told_once_it_has_stood_or_when_the_run_has_ended(
    engine: Engine, see: See, clock: Clock
) -> None:
    for _ in range(20):
        see(finding())
        see()
    assert told(engine) == [SUSPECTED]
    see(after=TO_BELIEVE)
    assert told(engine) == [SUSPECTED, RESOLVED]
    see(finding())
    runs.change_run(engine, "r1", runs.Changes(state="finished"), clock.now)
    see()
    assert told(engine)[2:] == [SUSPECTED, RESOLVED, "run.finished"]


def test_a_leak_that_flaps_is_told_as_a_digest_and_once_more_when_it_stands(
    engine: Engine, see: See, clock: Clock
) -> None:
    # Generations of a second: an end has to stand for ten minutes.
    for _ in range(6):
        see(finding(), after=1, each=1)
        see(after=1, each=1)
        see(after=600, each=1)
    before = told(engine)
    assert before == [SUSPECTED, RESOLVED, SUSPECTED, RESOLVED, SUSPECTED]
    assert [row.subject for row in rows(engine)] == ["", "", "", "", "digest"]
    digest = rows(engine)[-1].payload
    assert "Flapping: opened 3 times and closed twice in" in digest and "Env" in digest
    see(after=2_900, each=1)
    assert told(engine) == before
    # No status has moved: it is over, and has been for an hour.
    see(after=600, each=1)
    see(after=600, each=1)
    assert told(engine) == [*before, RESOLVED]


def risk(level: Any, at: str | None = None) -> OomForecast:
    moment = None if at is None else Moment(at, at, at)
    return OomForecast(level, 2**36, "cgroup", Interval(31, 30, 33), moment)


def test_the_risk_of_running_out_of_memory_is_told_without_any_leak(
    engine: Engine, see: See
) -> None:
    see(oom=risk("low"))
    see(oom=risk("high", "2025-10-09T10:00:00Z"))
    for _ in range(5):
        see(oom=risk("high"))
    see(oom=risk("critical"))
    see(oom=risk("high"))
    see(oom=risk("critical"))
    assert told(engine) == ["oom.risk", "oom.risk"]
    first, second = rows(engine)
    assert (first.subject, first.urgent, first.incident_id) == ("oom", True, None)
    assert first.expires_at == 1_760_004_000.0 and second.expires_at is None
    see(oom=risk("critical"), after=86_400)
    assert len(told(engine)) == 3


def test_a_run_that_ends_is_told_once_and_its_next_attempt_again(
    engine: Engine, see: See, clock: Clock
) -> None:
    for state, event, urgent in (
        ("terminated", "run.killed", True),
        ("finished", "run.finished", False),
        ("interrupted", "run.finished", False),
    ):
        changes = runs.Changes(state=state, ended_at=clock.now, reason="SIGTERM")
        runs.change_run(engine, "r1", changes, clock.now)
        see()
        see()
        last = rows(engine)[-1]
        assert (last.event, last.subject, last.urgent) == (event, "run", urgent)
        clock.now += 60
        begin(engine, "r1", clock.now, clock.now)
        see()
    assert told(engine) == ["run.killed", "run.finished", "run.finished"]


def hear(engine: Engine, clock: Clock) -> None:
    """A sign of life."""
    runs.change_run(engine, "r1", runs.Changes(state="running"), clock.now)


@pytest.fixture
def examiner(engine: Engine, clock: Clock) -> Examiner:
    return Examiner(engine, 60.0, Wakes(lambda _: None, lambda: None), clock, clock)


def test_silence_is_told_with_the_last_verdict_and_again_when_the_run_had_spoken(
    engine: Engine, examiner: Examiner, see: See, clock: Clock
) -> None:
    see(finding("confirmed"), after=0)
    hear(engine, clock)
    for _ in range(3):
        clock.now += 61
        examiner.once()
    assert told(engine) == [CONFIRMED, "run.silent"]
    assert '"phase": "evaluate"' in rows(engine)[-1].payload
    hear(engine, clock)
    clock.now += 61
    examiner.once()
    assert told(engine) == [CONFIRMED, "run.silent", "run.silent"]


def fall_silent(engine: Engine, examiner: Examiner, clock: Clock, times: int) -> None:
    """Speak, and say nothing for a minute and a half, so many times."""
    for _ in range(times):
        hear(engine, clock)
        clock.now += 90
        examiner.once()


def test_a_run_that_is_silent_again_and_again_is_told_as_a_digest_and_then_no_more(
    engine: Engine, examiner: Examiner, clock: Clock
) -> None:
    fall_silent(engine, examiner, clock, 3)
    assert [row.quiet_until for row in rows(engine)] == [None] * 3
    # Two hours and a half of it.
    fall_silent(engine, examiner, clock, 100)
    assert told(engine) == ["run.silent"] * 4
    digest = rows(engine)[-1]
    said = "Fell silent 4 times in 4 minutes; told again when it has not for an hour"
    assert said in digest.payload
    assert digest.urgent
    for _ in range(3_600 // 45):
        hear(engine, clock)
        clock.now += 45
        examiner.once()
    assert told(engine) == ["run.silent"] * 4
    fall_silent(engine, examiner, clock, 1)
    assert told(engine) == ["run.silent"] * 5


def test_a_run_that_ended_may_be_silent_anew_in_its_next_attempt(
    engine: Engine, examiner: Examiner, see: See, clock: Clock
) -> None:
    fall_silent(engine, examiner, clock, 10)
    runs.change_run(engine, "r1", runs.Changes(state="finished", ended_at=clock.now), clock.now)
    see()
    begin(engine, "r1", clock.now, clock.now)
    fall_silent(engine, examiner, clock, 1)
    assert told(engine) == [*["run.silent"] * 4, "run.finished", "run.silent"]


def test_a_server_that_starts_hears_first_before_it_calls_a_run_silent(
    engine: Engine, clock: Clock
) -> None:
    """It was away for an hour, and the run has been sending into nothing."""
    clock.now += 3_600
    examiner = Examiner(engine, 60.0, Wakes(lambda _: None, lambda: None), clock, clock)
    for _ in range(59):
        examiner.once()
        clock.now += 1
    hear(engine, clock)
    for _ in range(59):
        clock.now += 1
        examiner.once()
    assert told(engine) == []
    clock.now += 10
    examiner.once()
    assert told(engine) == ["run.silent"]


def test_silence_is_told_exactly_when_it_is_marked(
    engine: Engine, examiner: Examiner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise RuntimeError

    monkeypatch.setattr("leakline_server.workers.examine.alerts.add", fail)
    clock.now += 61
    with pytest.raises(RuntimeError):
        examiner.once()
    assert runs.get_summary(engine, "r1")["state"] == "running"  # type: ignore[index]


def test_each_alert_has_a_delivery_for_each_webhook(engine: Engine, see: See) -> None:
    with writing(engine) as connection:
        for url in ("https://a.example", "https://b.example"):
            values = {"url": url, "format": "standard", "secret": "s", "source": "api"}
            connection.execute(webhooks.insert().values(**values, created_at=NOW))
    see(finding(), oom=risk("high"))
    with engine.connect() as connection:
        assert len(connection.execute(select(deliveries)).all()) == 4
