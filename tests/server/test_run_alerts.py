"""Alerts that an examination writes: acknowledgements, digests, silence and the risk of running out of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.server.access.people import Clock

from leakline.analysis.results import Finding, Interval, Moment, OomForecast, Suspect, Verdict
from leakline.snapshot import RunHeader
from leakline_server.store import incident_groups
from leakline_server.store.engine import Engine, writing
from leakline_server.store.incident_groups import Acknowledgement
from leakline_server.store.runs import run_registration, runs
from leakline_server.store.schema import alerts, deliveries, webhooks
from leakline_server.store.schema import runs as runs_table
from leakline_server.workers.examination_worker import Examiner, Wakes

NOW = 1_760_000_000.0
SUSPECTED, CONFIRMED = "incident.suspected", "incident.confirmed"
RESOLVED = "incident.resolved"

BEGAN = NOW - 600
# Thirty generations of the first run: an end must last this long.
TO_BELIEVE = 1_800.0


def finding(status: Any = "suspected", **more: Any) -> Finding:
    growth = Interval(1e6, 9e5, 1.1e6)
    suspects = (Suspect("app.Env", "type", 16.0),)
    return Finding("f1", status, "objects", "evaluate", 0.9, suspects, growth, None, 0.9, **more)


def risk(level: Any, at: str | None = None) -> OomForecast:
    moment = None if at is None else Moment(at, at, at)
    return OomForecast(level, 2**36, "cgroup", Interval(31, 30, 33), moment)


class Server:
    """An examiner with its clock, on a database in which the run r1 has begun."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.clock, self._monkeypatch = engine, Clock(NOW), monkeypatch
        self.examiner = self.start()
        self.begin("r1", BEGAN)

    def start(self) -> Examiner:
        wakes = Wakes(lambda _: None, lambda: None)
        return Examiner(self.engine, 60.0, wakes, self.clock, self.clock)

    def begin(self, run: str = "r1", at: float | None = None) -> None:
        """Join a run that begins now, or at this time."""
        header = RunHeader(run, "erl", run, "generation", None, at or self.clock.now)
        run_registration.join_run(self.engine, header, self.clock.now)

    def change(self, state: Any, **changes: Any) -> None:
        made = runs.Changes(state=state, **changes)
        runs.change_run(self.engine, "r1", made, self.clock.now)

    def see(
        self, *found: Finding, run: str = "r1", after: float = 60.0, each: float = 60.0,
        oom: OomForecast | None = None,
    ) -> None:  # fmt: skip
        """Examine the run with these findings, ``after`` seconds later; a generation takes ``each`` seconds."""
        self.clock.now += after
        done = round((self.clock.now - BEGAN) / each)
        oom = oom or OomForecast()
        said = Verdict(run, "generation", done, "ok", "…", None, None, found, oom=oom)
        self._monkeypatch.setattr("leakline.analysis.examine", lambda *read: said)
        self.examiner.examine(run)

    def say(
        self, kind: Any, at: float | None = None, status: str = "suspected", **more: Any
    ) -> None:
        at = self.clock.now if at is None else at
        said = Acknowledgement(kind, "known", status, more.pop("priority", "minor"), at, **more)
        with writing(self.engine) as connection:
            incident_groups.say(connection, "erl", "f1", said)

    def unignore(self, fingerprint: str = "f1") -> None:
        with writing(self.engine) as connection:
            assert incident_groups.end(connection, "erl", fingerprint, "ignored", self.clock.now)

    def rows(self) -> list[Any]:
        with self.engine.connect() as connection:
            query = select(alerts).order_by(alerts.c.run_id, alerts.c.number)
            return list(connection.execute(query))

    def events(self, run: str = "r1") -> list[str]:
        return [row.event for row in self.rows() if row.run_id == run]

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.examiner.once()

    def hear(self) -> None:
        """Receive a sign of life."""
        self.change("running")

    def fall_silent(self, times: int) -> None:
        """Receive a sign of life and then nothing for a minute and a half, as often as given."""
        for _ in range(times):
            self.hear()
            self.wait(90)


@pytest.fixture
def server(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(engine, monkeypatch)


def test_an_acknowledged_leak_is_reported_when_it_gets_worse(server: Server) -> None:
    server.see(finding())
    server.say("acknowledged")
    server.see(after=60)
    server.see(finding())
    assert server.events() == [SUSPECTED]
    server.see(finding("confirmed"))
    server.see(finding("confirmed"))
    server.see()
    assert server.events() == [SUSPECTED, CONFIRMED]
    server.see(after=TO_BELIEVE)
    assert server.events() == [SUSPECTED, CONFIRMED, RESOLVED]


def test_a_leak_is_reported_again_when_its_acknowledgement_expires(server: Server) -> None:
    server.see(finding("confirmed"))
    until = server.clock.now + 3_600
    server.say("acknowledged", status="confirmed", expires_at=until)
    server.see(finding("confirmed"), after=3_599)
    assert server.events() == [CONFIRMED]
    # Its status has not changed for an hour.
    server.see(finding("confirmed"), after=1)
    assert server.events() == [CONFIRMED, CONFIRMED]
    assert (
        "The leak is still present and no longer muted (acknowledged with the note: known). "
        in server.rows()[-1].payload
    )
    for _ in range(3):
        server.see(finding("confirmed"))
    assert server.events() == [CONFIRMED, CONFIRMED]
    server.see()
    server.see(after=TO_BELIEVE)
    assert server.events() == [CONFIRMED, CONFIRMED, RESOLVED]


def test_an_acknowledged_leak_is_compared_with_the_live_runs(server: Server) -> None:
    worst = finding("confirmed", priority="critical")
    for run, end in (("of last month", "finished"), ("cut off", "silent")):
        server.begin(run)
        server.see(worst, run=run)
        server.see(worst, run=run)
        with writing(server.engine) as connection:
            of = runs_table.c.id == run
            connection.execute(update(runs_table).where(of).values(state=end))
    server.see(finding())
    with writing(server.engine) as connection:
        status, priority = incident_groups.worst_of(connection, "erl", "f1") or ("", "")
        assert (status, priority) == ("suspected", "minor")
    server.say("acknowledged", status=status, priority=priority)
    server.see(finding())
    assert server.events() == [SUSPECTED]
    server.see(worst)
    assert server.events() == [SUSPECTED, CONFIRMED]


def test_without_a_live_run_a_leak_has_the_state_of_the_newest_run(server: Server) -> None:
    server.begin("older", BEGAN)
    server.see(finding("confirmed", priority="critical"), run="older")
    server.see(finding(priority="major"))
    with writing(server.engine) as connection:
        connection.execute(update(runs_table).values(state="failed"))
        assert incident_groups.worst_of(connection, "erl", "f1") == ("suspected", "major")
        assert incident_groups.worst_of(connection, "erl", "f2") is None


def test_a_leak_that_disappears_in_noise_and_returns_is_reported_once(server: Server) -> None:
    for status in ("suspected", "confirmed", "confirmed", "confirmed"):
        server.see(finding(status))
        server.see(finding(status))
        server.see()
        server.see(after=TO_BELIEVE - 60)
    assert server.events() == [SUSPECTED, CONFIRMED]


def test_a_clock_that_is_set_back_repeats_no_alert(server: Server) -> None:
    """The same holds for another server's clock that is half a minute behind."""
    server.see(finding(), oom=risk("high"))
    before = server.events()
    assert sorted(before) == [SUSPECTED, "oom.risk"]
    server.see(finding("confirmed"), oom=risk("critical"), after=-30)
    for _ in range(20):
        server.see(finding("confirmed"), oom=risk("critical"), after=0.5)
    assert server.events()[2:] == [CONFIRMED, "oom.risk"]
    server.see(finding("confirmed"), oom=risk("critical"))
    assert len(server.events()) == 4


def test_an_acknowledgement_from_a_clock_ahead_is_applied_once(server: Server) -> None:
    server.see(finding())
    server.say("acknowledged", server.clock.now + 30)
    for _ in range(20):
        server.see(finding("confirmed"), after=0.5)
    assert server.events() == [SUSPECTED, CONFIRMED]
    for _ in range(20):
        server.see(finding("confirmed"))
    assert server.events().count(CONFIRMED) <= 2


def test_an_ignored_leak_is_reported_only_after_that_is_withdrawn(server: Server) -> None:
    server.say("ignored", NOW - 1)
    server.see(finding("confirmed", priority="critical"))
    assert server.events() == []
    server.unignore()
    server.see(finding("confirmed", priority="critical"))
    assert server.events() == [CONFIRMED]


def test_an_ignored_leak_that_gets_a_better_name_stays_ignored(server: Server) -> None:
    server.see(finding())
    server.say("ignored")
    better = replace(finding("confirmed", priority="critical"), fingerprint="f2")
    server.see(better)
    assert server.events() == [SUSPECTED]
    # An acknowledgement under the new name takes precedence over one under the old name.
    server.unignore("f2")
    server.see(better)
    server.see(finding("confirmed"))
    server.see(better)
    assert server.events() == [SUSPECTED, CONFIRMED]


def test_a_closed_leak_is_reported_in_a_later_run_with_its_note(server: Server) -> None:
    server.see(finding())
    server.say("closed")
    server.see(finding("confirmed"))
    assert server.events() == [SUSPECTED]
    server.begin("r2", server.clock.now + 1)
    server.see(finding(), run="r2")
    assert server.events("r2") == [SUSPECTED]
    assert (
        "The leak is back in r2 after it was closed with the note: known."
        in server.rows()[-1].payload
    )


def test_a_closed_leak_is_reported_in_the_next_attempt(server: Server) -> None:
    server.see(finding("confirmed"))
    server.say("closed")
    server.change("failed", ended_at=server.clock.now)
    server.clock.now += 60
    server.begin()
    server.see(finding("confirmed"))
    assert server.events()[-1] == CONFIRMED and server.events().count(CONFIRMED) == 2


def test_a_flapping_leak_has_a_digest_and_one_end(server: Server) -> None:
    # Generations take a second, so an end must last ten minutes.
    for _ in range(6):
        server.see(finding(), after=1, each=1)
        server.see(after=1, each=1)
        server.see(after=600, each=1)
    before = server.events()
    assert before == [SUSPECTED, RESOLVED, SUSPECTED, RESOLVED, SUSPECTED]
    assert [row.subject for row in server.rows()] == ["", "", "", "", "digest"]
    digest = server.rows()[-1].payload
    assert "Flapping: opened 3 times and closed twice in" in digest and "Env" in digest
    server.see(after=2_900, each=1)
    assert server.events() == before
    # No status has changed: the leak is over, and has been for an hour.
    server.see(after=600, each=1)
    server.see(after=600, each=1)
    assert server.events() == [*before, RESOLVED]


def test_the_risk_of_running_out_of_memory_is_reported_without_a_leak(server: Server) -> None:
    server.see(oom=risk("low"))
    server.see(oom=risk("high", "2025-10-09T10:00:00Z"))
    for _ in range(5):
        server.see(oom=risk("high"))
    server.see(oom=risk("critical"))
    server.see(oom=risk("high"))
    server.see(oom=risk("critical"))
    assert server.events() == ["oom.risk", "oom.risk"]
    first, second = server.rows()
    assert (first.subject, first.urgent, first.incident_id) == ("oom", True, None)
    assert first.expires_at == 1_760_004_000.0 and second.expires_at is None
    server.see(oom=risk("critical"), after=86_400)
    assert len(server.events()) == 3


def test_the_end_of_a_run_is_reported_once_for_each_attempt(server: Server) -> None:
    for state, event, urgent in (
        ("terminated", "run.killed", True),
        ("finished", "run.finished", False),
        ("interrupted", "run.finished", False),
    ):
        server.change(state, ended_at=server.clock.now, reason="SIGTERM")
        server.see()
        server.see()
        last = server.rows()[-1]
        assert (last.event, last.subject, last.urgent) == (event, "run", urgent)
        server.clock.now += 60
        server.begin()
        server.see()
    assert server.events() == ["run.killed", "run.finished", "run.finished"]


def test_silence_is_reported_with_the_last_verdict_and_again(server: Server) -> None:
    server.see(finding("confirmed"), after=0)
    server.hear()
    for _ in range(3):
        server.wait(61)
    assert server.events() == [CONFIRMED, "run.silent"]
    assert '"phase": "evaluate"' in server.rows()[-1].payload
    server.hear()
    server.wait(61)
    assert server.events() == [CONFIRMED, "run.silent", "run.silent"]


def test_a_run_that_is_silent_again_and_again_has_a_digest(server: Server) -> None:
    server.fall_silent(3)
    assert [row.quiet_until for row in server.rows()] == [None] * 3
    # This takes more than an hour.
    server.fall_silent(45)
    assert server.events() == ["run.silent"] * 4
    digest = server.rows()[-1]
    said = "The run fell silent 4 times in 4 minutes; the next alert follows when the run has sent data"
    assert said in digest.payload
    assert digest.urgent
    for _ in range(3_600 // 45):
        server.hear()
        server.wait(45)
    assert server.events() == ["run.silent"] * 4
    server.fall_silent(1)
    assert server.events() == ["run.silent"] * 5


def test_a_run_that_ended_may_be_silent_again_in_its_next_attempt(server: Server) -> None:
    server.fall_silent(10)
    server.change("finished", ended_at=server.clock.now)
    server.see()
    server.begin()
    server.fall_silent(1)
    assert server.events() == [*["run.silent"] * 4, "run.finished", "run.silent"]


def test_a_server_that_starts_waits_before_it_calls_a_run_silent(server: Server) -> None:
    """The server was away for an hour, and the run could not send anything."""
    server.clock.now += 3_600
    server.examiner = server.start()
    for _ in range(59):
        server.examiner.once()
        server.clock.now += 1
    server.hear()
    for _ in range(59):
        server.wait(1)
    assert server.events() == []
    server.wait(10)
    assert server.events() == ["run.silent"]


def test_silence_is_marked_and_reported_in_one_transaction(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise RuntimeError

    monkeypatch.setattr("leakline_server.workers.examination_worker.alert_rows.add", fail)
    server.clock.now += 61
    with pytest.raises(RuntimeError):
        server.examiner.once()
    assert runs.get_summary(server.engine, "r1")["state"] == "running"  # type: ignore[index]


def test_each_alert_has_a_delivery_for_each_webhook(server: Server) -> None:
    with writing(server.engine) as connection:
        for url in ("https://a.example", "https://b.example"):
            values = {"url": url, "format": "standard", "secret": "s", "source": "api"}
            connection.execute(webhooks.insert().values(**values, created_at=NOW))
    server.see(finding(), oom=risk("high"))
    with server.engine.connect() as connection:
        assert len(connection.execute(select(deliveries)).all()) == 4
