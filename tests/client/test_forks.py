"""Forked, spawned and started processes: the parent's run continues, a child stays silent, and ranks join one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.snapshot import ProcessIdentity, Snapshot
from leakline.transport.spool_format import read_end, read_header

pytestmark = pytest.mark.flow
Start = Callable[..., "subprocess.Popen[str]"]
Recorded = Callable[[], list[Snapshot]]
STORM = Path(__file__).with_name("fork_storm.py")
FORKS = 42


def storm(folder: Path, server: str, forks: int, seconds: float) -> tuple[dict[str, Any], str]:
    """Run the fork storm; return its last line, and what it and its children wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(STORM), server, str(forks)],
        cwd=folder, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stderr


def check(server: Any, folder: Path, result: dict[str, Any], said: str, forks: int) -> None:
    assert result["failed"] == {}, said
    assert said == ""
    of_parent = [batch for batch in server.batches if batch.process.pid == result["pid"]]
    assert len({batch.process.instance for batch in of_parent}) == 1
    numbers = [s.sequence for batch in of_parent for s in batch.snapshots]
    assert numbers
    assert len(numbers) == len(set(numbers))
    assert not any("in the child" in s.label for b in server.batches for s in b.snapshots)
    # Every other instance is a run that a child started itself, and none of them is the parent's.
    headers = [read_header(path) for path in folder.rglob("*.spool")]
    assert (
        len({run.id for run, _ in headers}) == len({p.instance for _, p in headers}) == len(headers)
    )
    assert len({process.pid for _, process in headers}) == len(headers)
    parents = [run.id for run, process in headers if process.pid == result["pid"]]
    assert parents == [result["run"]]
    # Three of seven children start a run, and each ends it.
    assert len(headers) == 1 + sum(number % 7 in (3, 4, 5) for number in range(forks))
    ends = [read_end(path) for path in folder.rglob("*.spool")]
    assert [end and end["state"] for end in ends] == ["finished"] * len(headers)
    assert len(server.headers) == 1 + sum(number % 7 == 4 for number in range(forks))


@pytest.mark.long
def test_children_forked_while_locks_are_held_do_not_hang(
    server: Any, tmp_path: Path, spool_directory: Path
) -> None:
    result, said = storm(tmp_path, server.address, FORKS, 120)
    check(server, spool_directory, result, said, FORKS)


NETWORK = """
import sys, threading
imported = []
real = __import__

def note(name, *args, **named):
    before = set(sys.modules)
    module = real(name, *args, **named)
    thread = threading.current_thread().name
    if thread.startswith("leakline"):
        imported.extend((thread, new) for new in sys.modules if new not in before)
    return module

import builtins
import leakline
builtins.__import__ = note
run = leakline.init(server={server!r}, quiet=True)
with run.generation(0), run.phase("train"):
    pass
run.finish()
builtins.__import__ = real
print(imported)
"""


@pytest.mark.parametrize("proxy", [False, True])
def test_no_leakline_thread_is_importing_when_the_program_forks(
    server: Any, start: Any, proxy: bool
) -> None:
    address = server.address.replace("127.0.0.1", "localhost")
    environ = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "localhost"} if proxy else {}
    process = start(NETWORK.format(server=address), **environ)
    out, said = process.communicate(timeout=60)
    assert (out, said) == ("[]\n", "")
    assert server.batches


def test_a_forked_child_is_silent_and_the_parent_goes_on(
    offline: leakline.Run, recorded: Recorded
) -> None:
    offline.generation(0)

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(20)
            assert leakline.current().id == ""
            offline.generation(1)
            with offline.phase("child"):
                offline.mark("from the child")
            offline.finish()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    with offline.phase("parent"):
        pass
    offline.finish()
    assert [s.label for s in recorded()][1:] == [
        "generation 0: after parent", "generation 0: end", "generation 0: finish",
    ]  # fmt: skip
    assert [e.name for s in recorded() for e in s.events if e.kind != "collection"] == []


POOL = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
import leakline


def work(number):
    with leakline.init(mode="offline", quiet=True).phase("in a worker"):
        return os.getpid(), leakline.current().id


def train():
    leakline.init(mode="offline", quiet=True).finish()


if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    # A child of a process without a run may start one. A fork server knows nothing of a later run.
    if {method!r} != "forkserver":
        child = context.Process(target=train)
        child.start()
        child.join()
    run = leakline.init(mode="offline", quiet=True)
    with run.generation(0), run.phase("train"):
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            done = list(pool.map(work, range(8)))
    assert os.getpid() not in [pid for pid, _ in done]
    assert {{inner for _, inner in done}} == {{""}}
    run.finish()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_workers_never_start_a_second_run(
    start: Start, spool_directory: Path, recorded: Recorded, method: str
) -> None:
    process = start(POOL.format(method=method))
    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0
    ends = [read_end(path) or {} for path in spool_directory.rglob("*.spool")]
    assert [end["state"] for end in ends] == ["finished"] * (1 if method == "forkserver" else 2)
    assert [s.phase for s in recorded() if s.kind == "phase_end"] == ["train"]


def test_a_forked_child_still_dies_of_sigterm(offline: leakline.Run) -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    offline.finish()


RANK = """
import json, os
import leakline
run = leakline.init(mode="offline", project="ranks")
run.generation(0)
run.finish()
print(json.dumps([run.id, run.name]))
"""


def test_ranks_join_one_run_and_one_of_them_prints(start: Start, spool_directory: Path) -> None:
    started = [
        start(RANK, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="3") for rank in range(3)
    ]
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len({tuple(json.loads(out)) for out, _ in outputs}) == 1
    assert ["run" in err for _, err in outputs] == [True, False, False]
    headers = [read_header(path) for path in spool_directory.rglob("*.spool")]
    assert sorted(process.rank for _, process in headers) == [0, 1, 2]
    assert len({process.instance for _, process in headers}) == 3


def test_a_restart_of_the_launcher_is_the_next_attempt(start: Start, spool_directory: Path) -> None:
    process = start(RANK, RANK="0", WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT="2")
    assert process.wait(60) == 0
    (path,) = spool_directory.rglob("*.spool")
    assert read_header(path)[1].attempt == 3


TRAIN = """
import os, subprocess, sys
import leakline
run = leakline.init(mode="offline")
with run.generation(0), run.phase("train"):
    for _ in range({times}):
        subprocess.run([sys.executable, "eval.py"], check=True)
{end}
"""
EVALUATE = """
import leakline
run = leakline.init(mode="offline")
with run.generation(0), run.phase("evaluate"):
    pass
run.finish()
{more}
"""


@pytest.fixture
def train(start: Start, tmp_path: Path) -> Callable[..., str]:
    """Run a training that starts an evaluation; return the stderr of both."""

    def run(times: int = 1, end: str = "run.finish()", more: str = "", **environ: str) -> str:
        (tmp_path / "eval.py").write_text(EVALUATE.format(more=more))
        process = start(TRAIN.format(times=times, end=end), **environ)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
        return said

    return run


def processes(directory: Path) -> list[tuple[str, ProcessIdentity]]:
    """Return (run, process) of every spool in order of start."""
    headers = [read_header(path) for path in directory.rglob("*.spool")]
    return [(run.id, process) for run, process in sorted(headers, key=lambda h: h[0].started_at)]


def test_a_child_process_without_the_run_id_starts_its_own_run(
    train: Any, spool_directory: Path
) -> None:
    said = train()
    (parent, main), (own, child) = processes(spool_directory)
    assert parent != own
    assert (main.role, main.attempt, child.role, child.attempt) == ("main", 1, "main", 1)
    assert said.count("records to") == 2


def test_a_child_process_with_the_run_id_joins_the_same_attempt(
    train: Any, spool_directory: Path
) -> None:
    environ = {"LEAKLINE_RUN_ID": "ours", "RANK": "0", "WORLD_SIZE": "4"}
    said = train(times=2, **environ)
    found = processes(spool_directory)
    assert {run for run, _ in found} == {"ours"}
    assert [(p.rank, p.role, p.attempt) for _, p in found] == [
        (0, "main", 1), (0, "child", 1), (0, "child", 1),
    ]  # fmt: skip
    assert len({p.instance for _, p in found}) == 3
    # Only one process of a run prints messages.
    assert said.count("records to") == 1
    # A resumed child belongs to the second attempt and is not itself counted as an attempt.
    train(**environ)
    assert [(p.role, p.attempt) for _, p in processes(spool_directory)[3:]] == [
        ("main", 2), ("child", 2),
    ]  # fmt: skip


def test_a_restarted_child_and_its_own_children_stay_children(
    train: Any, spool_directory: Path
) -> None:
    more = """
import os, subprocess, sys
run = leakline.init(mode="offline")
if "DEEPER" not in os.environ:
    subprocess.run([sys.executable, "eval.py"], check=True, env={**os.environ, "DEEPER": "1"})
run.finish()
"""
    train(more=more, LEAKLINE_RUN_ID="ours")
    roles = [process.role for _, process in processes(spool_directory)]
    assert roles == ["main", "child", "child", "child", "child"]


@pytest.mark.long
def test_a_child_that_outlives_its_run_may_resume_it(
    train: Any, spool_directory: Path, start: Start, tmp_path: Path
) -> None:
    late = """
import subprocess, sys
run.finish()
subprocess.run([sys.executable, "eval.py"], check=True)
"""
    train(times=0, end=late, LEAKLINE_RUN_ID="ours")
    assert [(p.role, p.attempt) for _, p in processes(spool_directory)] == [
        ("main", 1), ("main", 2),
    ]  # fmt: skip
    # The process that announced the run is gone, or its id now belongs to another process.
    others = ("ours:7:123:4194303", f"ours:7:1:{os.getpid()}", f"ours:7::{'9' * 30}", "ours", ":::")
    for gone in others:
        environ = {**os.environ, "LEAKLINE_RUN_ID": "ours", "_LEAKLINE_ANNOUNCED": gone}
        script = [sys.executable, str(tmp_path / "eval.py")]
        subprocess.run(script, check=True, timeout=60, env=environ, capture_output=True)
    assert [(p.role, p.attempt) for _, p in processes(spool_directory)[2:]] == [
        ("main", attempt) for attempt in range(3, 8)
    ]  # fmt: skip
