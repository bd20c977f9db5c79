"""The analysis has a process of its own: it gives the same verdict, may die at any moment, and ends with the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.stored import engine_of

from leakline_server.store.engine import writing
from leakline_server.store.maintenance import corruption
from leakline_server.store.runs.run_history import NoSuchRun
from leakline_server.store.schema import batches, runs
from leakline_server.workers import analysis_process as module
from leakline_server.workers.analysis_process import Apart
from leakline_server.workers.examination import CannotLook, Closed, Looking
from leakline_server.workers.examination_worker import Examiner, Wakes

pytestmark = pytest.mark.long

NOW = 1_760_000_500.0

ONCE = Examiner.once


@pytest.fixture
def apart(standing_back: None, api: Any, make_run: Any) -> Iterator[Apart]:
    make_run().begin(api, 90)
    apart = Apart(engine_of(api))
    yield apart
    apart.close()


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_run_that_nobody_knows_is_said_so_and_stops_nothing(apart: Apart) -> None:
    with pytest.raises(NoSuchRun):
        apart("nobody")
    assert apart("r1").verdict.run == "r1"


def test_it_says_what_is_said_here(apart: Apart, api: Any, make_run: Any) -> None:
    here = Looking(engine_of(api))
    for first in (90, 120):
        make_run().send(api, first, 30)
        there, mine = apart("r1"), here("r1")
        assert there.verdict == mine.verdict
        assert (there.as_json, there.looks) == (mine.as_json, mine.looks)
        assert there.cpu_seconds > 0
    assert there.verdict.generations == 50


def test_one_that_was_killed_is_started_again(apart: Apart) -> None:
    apart("r1")
    first = apart.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(CannotLook, match="has ended"):
        apart("r1")
    assert apart.pid is None
    assert apart("r1").verdict.run == "r1"
    assert apart.pid not in (None, first)


def test_what_cannot_be_read_there_is_asked_again(
    apart: Apart, api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a kill while it looks: the examiner says so and looks again."""
    engine, woken = engine_of(api), []
    at = [1000.0]
    wakes = Wakes(woken.append, lambda: None)
    examiner = Examiner(engine, 600.0, wakes, clock=lambda: at[0], look=apart)
    apart("r1")
    assert apart.pid is not None
    os.kill(apart.pid, signal.SIGKILL)
    examiner.news("r1")
    ONCE(examiner)
    assert "could not examine run r1: the process of the analysis has ended" in caplog.text
    # Not at once: the others have their turns.
    at[0] += 1.0
    ONCE(examiner)
    assert woken == []
    at[0] += 5.0
    ONCE(examiner)
    assert woken == ["r1"]


def test_an_error_nobody_foresaw_comes_with_its_traceback(apart: Apart, api: Any) -> None:
    with writing(engine_of(api)) as connection:
        connection.execute(runs.update().values(phases="[broken"))
    with pytest.raises(ValueError, match=r"in the process of the analysis(.|\n)*Traceback"):
        apart("r1")


def test_it_ends_with_the_server_and_in_the_middle_of_a_look(apart: Apart, eventually: Any) -> None:
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


def test_where_no_process_can_be_started_it_looks_here(
    apart: Apart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module.subprocess, "Popen", refuse)
    assert apart("r1").verdict.run == "r1"
    assert apart("r1").cpu_seconds == 0
    assert caplog.text.count("the analysis has no process of its own") == 1


def test_one_that_dies_at_its_start_is_tried_again_later(
    apart: Apart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(module.sys, "executable", "/bin/false")
        assert apart("r1").cpu_seconds == 0
    assert "the analysis has no process of its own: it ended at once (1)" in caplog.text
    assert apart("r1").cpu_seconds == 0
    assert apart.pid is None
    monkeypatch.setattr(module, "HERE_SECONDS", 0.0)
    monkeypatch.setattr(apart, "_here_until", 0.0)
    assert apart("r1").cpu_seconds > 0


def test_one_of_another_version_is_not_asked(
    apart: Apart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an upgrade beside a server that runs."""
    monkeypatch.setattr(apart, "_version", "0.0.1")
    assert apart("r1").cpu_seconds == 0
    assert "was installed meanwhile" in caplog.text
    assert apart.pid is None


def test_it_imports_what_the_server_does(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what lies in the folder that the server is started in, as of a training with a module of a known name."""
    for name in ("random", "queue", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert apart("r1").cpu_seconds > 0


def test_what_is_damaged_is_counted_by_the_server(
    apart: Apart, api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    with writing(engine) as connection:
        connection.execute(batches.update().values(body=b"nothing"))
    before = corruption.count(engine)
    apart("r1")
    assert corruption.count(engine) > before
    assert (
        caplog.text.count("stored data of run r1 is damaged") == corruption.count(engine) - before
    )
    apart("r1")
    assert (
        caplog.text.count("stored data of run r1 is damaged") == corruption.count(engine) - before
    )


def test_a_server_takes_the_sockets_that_it_may_have(serve: Any) -> None:
    server = serve()
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    soft, hard = re.search(r"Max open files +(\d+) +(\d+)", limits).groups()  # type: ignore[union-attr]
    assert int(soft) == min(int(hard), 65_536)


def test_a_server_that_is_killed_leaves_nobody_behind(
    serve: Any, make_run: Any, eventually: Any
) -> None:
    server = serve()
    run = make_run()
    server.request("POST", "/api/v1/runs", run.header)
    server.request("POST", "/api/v1/runs/r1/batches", run.wire(0, 90))
    eventually(lambda: server.request("GET", "/api/v1/runs/r1/verdict")[1]["generations"] == 30)
    metrics = server.request("GET", "/metrics")[1]
    assert "leakline_analysis_process_cpu_seconds_total" in metrics
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server.process.pid)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (child,) = map(int, listed.stdout.split())
    server.kill()
    eventually(lambda: not is_there(child))
