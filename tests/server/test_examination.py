"""New data of a run becomes a verdict, incidents and alerts, computed in a process that may die at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.access.people import Clock
from tests.server.stored import count_of, engine_of, save_verdict, serving

from leakline import analysis
from leakline.analysis.results import Finding, Interval, Suspect, Verdict
from leakline.snapshot import ProcessIdentity, RunHeader
from leakline_server.store import examinations, findings, incident_groups
from leakline_server.store.engine import Engine, writing
from leakline_server.store.examinations import ChangedMeanwhile
from leakline_server.store.incident_groups import Acknowledgement
from leakline_server.store.maintenance import corruption
from leakline_server.store.runs import run_history, run_registration, runs
from leakline_server.store.schema import NoSuchRun, alerts, batches, incidents
from leakline_server.store.schema import runs as run_rows
from leakline_server.worker_thread import BACK_OFF_SECONDS, Worker
from leakline_server.workers import analysis_process as module
from leakline_server.workers.analysis_process import Apart
from leakline_server.workers.examination import CannotLook, Closed, Looking
from leakline_server.workers.examination_worker import Examiner, Wakes

NOW = 1_760_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def woken() -> list[str]:
    """Return the list of runs whose examination was announced."""
    return []


@pytest.fixture
def examiner(engine: Engine, clock: Clock, woken: list[str]) -> Examiner:
    examiner = Examiner(engine, 60.0, Wakes(woken.append, lambda: None), clock=clock, now=clock)
    # The examiner first looks for work that a previous server left; there is none yet.
    examiner.once()
    for name in ("r1", "r2"):
        run_registration.join_run(engine, RunHeader(name, "p", name, "generation", None, NOW), NOW)
    return examiner


def finding(status: Any = "suspected", fingerprint: str = "f1") -> Finding:
    growth = Interval(1e6, 9e5, 1.1e6)
    return Finding(
        fingerprint, status, "objects", "evaluate", 0.9, (), growth, None, 0.9, ("16 Env",)
    )


def verdict(*found: Finding, status: Any = "suspected") -> Verdict:
    return Verdict("r1", "generation", 9, status, "it leaks", Interval(1e6, 9e5, 1.1e6), 0.9, found)


def save(engine: Engine, said: Verdict, at: float) -> list[tuple[str | None, str | None]]:
    return [(change.before, change.after) for change in save_verdict(engine, said, at)]


def test_news_of_a_missing_run_does_not_stop_the_examiner(
    examiner: Examiner, woken: list[str]
) -> None:
    examiner.news("nobody")
    examiner.news("r1")
    assert examiner.once() == examiner.once() == 0.0
    assert woken == ["r1"]


def test_a_bug_in_one_examination_is_logged_and_stops_no_other(
    examiner: Examiner, woken: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    real = analysis.examine

    def broken(history: Any, *more: Any) -> Any:
        if history.run == "r1":
            raise MemoryError("a bug")
        return real(history, *more)

    monkeypatch.setattr("leakline.analysis.examine", broken)
    working = Worker("examine", examiner.once, failed=examiner.failed)
    for run_id in ("r1", "r2"):
        examiner.news(run_id)
    rests = [working.attempt() for _ in range(3)]
    assert (rests[:2], woken) == ([BACK_OFF_SECONDS, 0.0], ["r2"])
    # A failure without damage would repeat, so it is not retried without news.
    assert rests[2] > BACK_OFF_SECONDS
    assert caplog.text.count("could not examine run r1") == 1
    assert "MemoryError: a bug" in caplog.text


def test_a_run_without_snapshots_is_learning(examiner: Examiner, engine: Engine) -> None:
    examiner.examine("r1")
    said = findings.current_verdict(engine, "r1")
    assert said is not None
    assert (said["run"], said["status"], said["findings"]) == ("r1", "learning", [])


def test_a_verdict_is_current_until_the_run_changes(examiner: Examiner, engine: Engine) -> None:
    def is_current() -> bool:
        run = runs.get_run(engine, "r1")
        assert run is not None
        return bool(run["verdict_is_current"])

    assert not is_current()
    examiner.examine("r1")
    assert is_current()
    runs.change_run(engine, "r1", runs.Changes(state="finished"), NOW)
    assert not is_current()
    examiner.examine("r1")
    assert is_current()


def test_one_run_is_examined_at_most_twice_a_second(
    examiner: Examiner, clock: Clock, woken: list[str]
) -> None:
    examiner.news("r1")
    examiner.once()
    examiner.news("r1")
    assert 0 < examiner.once() <= 0.5
    assert woken == ["r1"]
    # Other runs do not wait for it.
    examiner.news("r2")
    examiner.once()
    assert woken == ["r1", "r2"]
    clock.now += 0.5
    examiner.once()
    assert woken == ["r1", "r2", "r1"]


def test_a_run_that_has_just_ended_is_examined_without_a_pause(
    examiner: Examiner, woken: list[str]
) -> None:
    """At the end of a training, the client waits for the verdict."""
    examiner.news("r1")
    examiner.once()
    examiner.news("r1", ended=True)
    examiner.once()
    assert woken == ["r1", "r1"]
    examiner.news("r1")
    assert examiner.once() > 0


def test_changes_of_incidents_are_reported_once(examiner: Examiner, engine: Engine) -> None:
    assert save(engine, verdict(finding()), NOW) == [(None, "suspected")]
    before = runs.get_summary(engine, "r1")
    assert save(engine, verdict(finding()), NOW + 1) == []
    # An equal verdict does not change the revision.
    assert runs.get_summary(engine, "r1") == before
    (item,) = runs.list_runs(engine, runs.RunFilter(statuses=("suspected",)))["items"]
    # The run has not sent a generation: the verdict counts minutes, which are not shown.
    assert (item["id"], item["summary"], item["generations"]) == ("r1", "it leaks", 0)
    assert save(engine, verdict(finding("confirmed")), NOW + 2) == [("suspected", "confirmed")]
    assert save(engine, verdict(), NOW + 3) == [("confirmed", None)]
    assert save(engine, verdict(), NOW + 4) == []
    assert save(engine, verdict(finding()), NOW + 5) == [(None, "suspected")]
    (incident,) = findings.list_incidents(engine, "r1")
    found = (incident["status"], incident["kind"], incident["phase"])
    assert found == ("suspected", "objects", "evaluate")
    assert incident["first_seen_at"] < incident["changed_at"]
    assert incident["finding"]["evidence"] == ["16 Env"]


def known_better(name: str, fingerprint: str, phase: str | None = "evaluate") -> Finding:
    """Return a finding of this class that also names its holder."""
    suspects = (Suspect("app.Env", "type"), Suspect(name, "holder"))
    return replace(finding("suspected", fingerprint), suspects=suspects, phase=phase)


def test_a_leak_that_is_known_better_is_the_same_incident(
    examiner: Examiner, engine: Engine
) -> None:
    start = Interval(1, 1, 2)
    unnamed = replace(finding(), kind="native", phase=None, started_at_generation=start)
    named = replace(known_better("app.kept[*]", "f2"), started_at_generation=start)
    save(engine, verdict(unnamed), NOW)
    (first,) = findings.list_incidents(engine, "r1")
    assert save(engine, verdict(named), NOW + 1) == []
    (then,) = findings.list_incidents(engine, "r1")
    assert (then["id"], then["fingerprint"], then["kind"]) == (first["id"], "f2", "objects")
    # It also matches under its first name, when its holder is searched again.
    again = replace(named, fingerprint="f1", status="confirmed")
    assert save(engine, verdict(again), NOW + 2) == [("suspected", "confirmed")]
    # With several ranks before and one of them now, it is the same; another rank or phase is not.
    both = replace(again, process="rank 0 main, rank 1 main")
    assert save(engine, verdict(both), NOW + 3) == []
    one = replace(both, process="rank 0 main", fingerprint="f3")
    assert save(engine, verdict(one), NOW + 4) == []
    assert [one["id"] for one in findings.list_incidents(engine, "r1")] == [first["id"]]
    another = [(None, "confirmed"), ("confirmed", None)]
    other = replace(one, process="rank 1 main", fingerprint="f4")
    assert save(engine, verdict(other), NOW + 5) == another
    elsewhere = replace(other, phase="evolve", fingerprint="f5")
    assert save(engine, verdict(elsewhere), NOW + 6) == another


def test_a_common_name_counts_before_a_common_start(examiner: Examiner, engine: Engine) -> None:
    start = Interval(1, 1, 2)
    unnamed = replace(finding("suspected", "f0"), kind="native", started_at_generation=start)
    env = replace(known_better("app.kept[*]", "f1"), started_at_generation=start)
    save(engine, verdict(unnamed, env), NOW)
    ids = {one["fingerprint"]: one["id"] for one in findings.list_incidents(engine, "r1")}
    garbage = replace(env, fingerprint="f2", kind="cyclic_garbage")
    assert save(engine, verdict(garbage), NOW + 1) == [("suspected", None)]
    (left,) = (i for i in findings.list_incidents(engine, "r1") if i["status"] == "suspected")
    assert left["id"] == ids["f1"]


def test_leaks_may_exchange_names_and_take_names_of_others(
    examiner: Examiner, engine: Engine
) -> None:
    """A leak takes the name of a resolved one, and its own first name goes to another leak."""
    save(engine, verdict(known_better("app.kept[*]", "f2")), NOW)
    save(engine, verdict(), NOW + 1)
    save(engine, verdict(known_better("app.kept[*]", "f1")), NOW + 2)
    assert save(engine, verdict(known_better("app.kept[*]", "f2")), NOW + 3) == []
    other = replace(known_better("app.other[*]", "f1", "evolve"), kind="gpu")
    both = verdict(known_better("app.kept[*]", "f2"), other)
    assert save(engine, both, NOW + 4) == [(None, "suspected")]
    save(engine, verdict(known_better("app.kept[*]", "f3"), other), NOW + 5)
    third = replace(known_better("app.third[*]", "f2", "plot"), kind="shared_memory")
    assert save(engine, verdict(known_better("app.kept[*]", "f3"), other, third), NOW + 6) == [
        (None, "suspected")
    ]
    listed = {one["fingerprint"]: one["id"] for one in findings.list_incidents(engine, "r1")}
    assert set(listed) == {"f1", "f2", "f3"}
    assert len(set(listed.values())) == 3


def test_a_failed_examination_leaves_neither_verdict_nor_alert(
    examiner: Examiner, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If the alert cannot be written, the finding must not be saved, or it would never be reported.
    def fail(*_: Any) -> int:
        raise RuntimeError

    monkeypatch.setattr("leakline.analysis.examine", lambda *_: verdict(finding()))
    monkeypatch.setattr("leakline_server.workers.examination_worker.alert_rows.add", fail)
    with pytest.raises(RuntimeError):
        examiner.examine("r1")
    assert count_of(engine, incidents) == count_of(engine, alerts) == 0
    assert findings.current_verdict(engine, "r1")["status"] == "learning"  # type: ignore[index]


def test_each_verdict_equals_one_of_a_fresh_examination(
    standing_back: None, api: TestClient, make_run: Any
) -> None:
    """Send batches out of order and twice, and restart the server in between."""
    run = make_run()
    run.create(api)
    engine = engine_of(api)
    wakes = Wakes(lambda run_id: None, lambda: None)
    examiner = Examiner(engine, 60.0, wakes)
    for first in (0, 10, 30, 20, 30, 40, 70, 50, 60, 80):
        run.send(api, first, 10)
        if first == 40:
            examiner = Examiner(engine, 60.0, wakes)
        assert examiner.examine("r1") == analysis.examine(run_history.load_history(engine, "r1"))
    assert examiner.examine("r1").generations == 30


def test_the_analysis_cache_is_bounded_by_runs(
    examiner: Examiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.workers.examination.KEPT_RUNS", 1)
    for run_id in ("r1", "r2", "r1"):
        examiner.examine(run_id)
        assert list(examiner._look._kept) == [run_id]


def test_a_silent_run_is_marked_and_an_ended_one_is_not(
    examiner: Examiner, engine: Engine, clock: Clock, woken: list[str]
) -> None:
    runs.change_run(engine, "r2", runs.Changes(state="finished"), NOW)

    def states() -> list[str]:
        return [runs.get_summary(engine, run)["state"] for run in ("r1", "r2")]  # type: ignore[index]

    clock.now += 59
    examiner.once()
    assert states() == ["running", "finished"]
    clock.now += 2
    examiner.once()
    # Other servers may have received data, so the run is also examined.
    assert "r1" in woken
    assert states() == ["silent", "finished"]


def told_of(engine: Engine, run_id: str) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(alerts.c.event).where(alerts.c.run_id == run_id)))


def test_a_rank_that_failed_is_reported_when_the_others_have_vanished(
    examiner: Examiner, engine: Engine, clock: Clock
) -> None:
    header = RunHeader("r3", "p", "r3", "generation", None, NOW)
    for rank in range(2):
        run_registration.join_run(engine, header, NOW, ProcessIdentity(f"p{rank}", rank, 1, "host"))
    failed = runs.Changes(state="failed", reason="ValueError", instance="p1", ended_at=NOW + 1)
    runs.change_run(engine, "r3", failed, NOW + 1)
    clock.now += 62
    examiner.once()
    assert runs.get_summary(engine, "r3")["state"] == "failed"  # type: ignore[index]
    assert told_of(engine, "r3") == ["run.finished"]


def test_an_end_is_reported_once_even_if_an_earlier_attempt_arrives_late(
    examiner: Examiner, engine: Engine
) -> None:
    for instance, began in (("new", NOW), ("late", NOW - 5_000)):
        header = RunHeader("r3", "p", "r3", "generation", None, began)
        run_registration.join_run(engine, header, NOW, ProcessIdentity(instance, 0, 1, "host"))
        changes = runs.Changes(state="killed", instance=instance, ended_at=began + 1)
        runs.change_run(engine, "r3", changes, NOW + 1)
        examiner.examine("r3")
    assert runs.get_summary(engine, "r3")["attempt"] == 2  # type: ignore[index]
    assert told_of(engine, "r3") == ["run.killed"]


def test_a_leak_becomes_a_verdict_without_a_request(
    api: Any, make_run: Any, eventually: Any
) -> None:
    run = make_run(leak_bytes=200 * 2**20)
    run.create(api)
    for generation in range(16):
        run.send(api, 3 * generation, 3)

    def suspects() -> list[str]:
        said = api.get("/api/v1/runs/r1/verdict").json()
        assert said["run"] == "r1"
        return [s["name"] for f in said["findings"] for s in f["suspects"]]

    assert "app.Env" in eventually(suspects)
    listed = api.get("/api/v1/runs/r1/incidents").json()["items"]
    assert listed[0]["status"] in ("watch", "suspected", "confirmed")


ONCE = Examiner.once


@pytest.fixture
def local(sqlite_url: str, standing_back: None, make_run: Any) -> Iterator[TestClient]:
    """Yield an application on SQLite; tests with real servers cover the analysis process on other databases."""
    with serving(sqlite_url) as api:
        make_run().begin(api, 90)
        yield api


@pytest.fixture
def apart(local: TestClient) -> Iterator[Apart]:
    apart = Apart(engine_of(local))
    yield apart
    apart.close()


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.long
def test_the_process_returns_the_verdict_of_the_server(
    apart: Apart, local: TestClient, make_run: Any
) -> None:
    with pytest.raises(NoSuchRun):
        apart("nobody")
    here = Looking(engine_of(local))
    for first in (90, 120):
        make_run().send(local, first, 30)
        there, mine = apart("r1"), here("r1")
        assert there.verdict == mine.verdict
        assert (there.as_json, there.basis, there.states) == (mine.as_json, mine.basis, mine.states)
        assert there.cpu_seconds > 0
    assert there.verdict.generations == 50


@pytest.mark.long
def test_a_killed_process_is_started_again(apart: Apart) -> None:
    apart("r1")
    first = apart.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(CannotLook, match="has exited"):
        apart("r1")
    assert apart.pid is None
    assert apart("r1").verdict.run == "r1"
    assert apart.pid not in (None, first)


def test_an_answer_of_other_code_ends_the_process(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens after an upgrade of a running server."""
    apart("r1")

    def load(_: object) -> None:
        raise ModuleNotFoundError("moved")

    with monkeypatch.context() as upgraded:
        upgraded.setattr(module.pickle, "load", load)
        with pytest.raises(CannotLook):
            apart("r1")
    assert apart("r1").verdict.run == "r1"


@pytest.mark.long
def test_a_run_is_examined_again_after_a_failure_in_the_process(
    apart: Apart, local: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """If the process is killed during an examination, the examiner reports it and tries again."""
    woken: list[str] = []
    at = [1000.0]
    wakes = Wakes(woken.append, lambda: None)
    examiner = Examiner(engine_of(local), 600.0, wakes, clock=lambda: at[0], look=apart)
    apart("r1")
    assert apart.pid is not None
    os.kill(apart.pid, signal.SIGKILL)
    examiner.news("r1")
    ONCE(examiner)
    assert "could not examine run r1: the analysis process has exited" in caplog.text
    # Not immediately: other runs have their turn first.
    at[0] += 1.0
    ONCE(examiner)
    assert woken == []
    at[0] += 5.0
    ONCE(examiner)
    assert woken == ["r1"]


@pytest.mark.long
def test_an_unexpected_error_has_its_traceback(apart: Apart, local: TestClient) -> None:
    with writing(engine_of(local)) as connection:
        connection.execute(run_rows.update().values(phases="[broken"))
    with pytest.raises(ValueError, match=r"in the analysis process(.|\n)*Traceback"):
        apart("r1")


@pytest.mark.long
def test_the_process_ends_with_the_server_even_during_an_examination(
    apart: Apart, eventually: Any
) -> None:
    apart("r1")
    pid = apart.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.2, apart.close).start()
    with pytest.raises(Closed):
        apart("r1")
    eventually(lambda: not is_there(pid))
    with pytest.raises(Closed):
        apart("r1")


def test_without_a_process_the_server_examines_runs_itself(
    apart: Apart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as broken:
        broken.setattr(module.subprocess, "Popen", refuse)
        assert apart("r1").verdict.run == "r1"
    # A start is not attempted at each examination.
    assert apart("r1").cpu_seconds == 0
    monkeypatch.setattr(apart, "_here_until", 0.0)
    with monkeypatch.context() as broken:
        broken.setattr(module.sys, "executable", "/bin/false")
        assert apart("r1").cpu_seconds == 0
    reasons = (
        "[Errno 11] Resource temporarily unavailable",
        "the analysis process exited immediately (exit status 1)",
    )
    for reason in reasons:
        assert caplog.text.count(f"the analysis runs in the server process: {reason}") == 1
    assert apart.pid is None


@pytest.mark.long
def test_a_process_of_another_version_is_not_used(
    apart: Apart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This happens after an upgrade of a running server."""
    with monkeypatch.context() as upgraded:
        upgraded.setattr(apart, "_version", "0.0.1")
        assert apart("r1").cpu_seconds == 0
    assert "has been installed since this server started" in caplog.text
    assert apart.pid is None
    # It is tried again later.
    monkeypatch.setattr(apart, "_here_until", 0.0)
    assert apart("r1").cpu_seconds > 0


@pytest.mark.long
def test_the_process_imports_the_modules_of_the_server(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the folder that the server runs in, where a training may have a module of a standard name."""
    for name in ("random", "queue", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert apart("r1").cpu_seconds > 0


@pytest.mark.long
def test_damage_found_by_the_process_is_counted_by_the_server(
    apart: Apart, local: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(local)
    with writing(engine) as connection:
        connection.execute(batches.update().values(body=b"nothing"))
    for _ in range(2):
        apart("r1")
        assert corruption.count(engine) > 0
        said = caplog.text.count("stored data of run r1 is damaged")
        assert said == corruption.count(engine)


@pytest.mark.long
def test_a_killed_server_leaves_no_process_behind(
    serve: Any, make_run: Any, eventually: Any
) -> None:
    server = serve()
    run = make_run()
    server.request("POST", "/api/v1/runs", run.header)
    server.request("POST", "/api/v1/runs/r1/batches", run.wire(0, 90))
    eventually(
        lambda: server.request("GET", "/api/v1/runs/r1/verdict")[1]["generations"] == 30, 60.0
    )
    metrics = server.request("GET", "/metrics")[1]
    assert "leakline_analysis_process_cpu_seconds_total" in metrics
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server.process.pid)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (child,) = map(int, listed.stdout.split())
    server.kill()
    eventually(lambda: not is_there(child))


def acknowledge(
    engine: Engine, fingerprint: str, status: str = "suspected", at: float = NOW
) -> None:
    said = Acknowledgement("acknowledged", "known", status, "minor", at)
    with writing(engine) as connection:
        incident_groups.say(connection, "p", fingerprint, said)


def test_an_acknowledgement_during_an_examination_is_respected(
    examiner: Examiner, engine: Engine
) -> None:
    save_verdict(engine, verdict(finding()), NOW)
    examined = Looking(engine)("r1")
    acknowledge(engine, "of another run")
    assert examinations.save(engine, examined) is not None
    examined = Looking(engine)("r1")
    acknowledge(engine, "f1")
    with pytest.raises(ChangedMeanwhile):
        examinations.save(engine, examined)
    assert examinations.save(engine, Looking(engine)("r1")) is not None


def test_an_acknowledged_leak_that_becomes_critical_is_sent_immediately(
    examiner: Examiner, engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(said: Verdict) -> None:
        clock.now += 60.0
        monkeypatch.setattr(analysis, "examine", lambda *_: said)
        examiner.examine("r1")

    confirmed = finding("confirmed")
    examine(verdict(confirmed, status="confirmed"))
    acknowledge(engine, "f1", "confirmed", at=clock.now + 1)
    examine(verdict(confirmed, status="confirmed"))
    assert count_of(engine, alerts) == 1
    examine(verdict(replace(confirmed, priority="critical"), status="confirmed"))
    assert count_of(engine, alerts) == 2
