"""Forked and spawned children: the parent's run goes on, the child is silent, ranks join one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.snapshot import Snapshot
from leakline.spool import read_header

pytestmark = pytest.mark.flow
Recorded = Callable[[], list[Snapshot]]


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; its exit status. A child that hangs is killed and fails the test."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(20)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_is_silent_and_the_parent_goes_on(
    offline: leakline.Run, recorded: Recorded
) -> None:
    offline.generation(0)

    def child() -> None:
        assert leakline.current().id == ""
        offline.generation(1)
        with offline.phase("child"):
            offline.mark("from the child")
        offline.finish()

    assert in_child(child) == 0
    with offline.phase("parent"):
        pass
    offline.finish()
    assert [s.label for s in recorded()][1:] == [
        "generation 0: after parent", "generation 0: end", "generation 0: finish",
    ]  # fmt: skip
    told = [e.name for s in recorded() for e in s.events if e.kind != "collection"]
    assert told == []


def test_a_child_may_start_a_run_of_its_own(offline: leakline.Run, spool_directory: Path) -> None:
    def child() -> None:
        run = leakline.init(mode="offline", quiet=True, name="child")
        assert run.id not in ("", offline.id)
        run.finish()

    assert in_child(child) == 0
    offline.finish()
    assert {read_header(path)[0].name for path in spool_directory.rglob("*.spool")} >= {"child"}


def test_forks_under_load_never_hang_and_never_send_the_parents_snapshots(
    server: Any, until: Callable[..., None]
) -> None:
    run = leakline.init(server=server.address, quiet=True)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            with run.phase("loader"):
                stop.wait(0.001)

    busy = threading.Thread(target=load)
    busy.start()

    def child() -> None:
        with run.phase("in the child"):
            leakline.current().mark("x")

    for generation in range(60):
        run.generation(generation)
        assert in_child(child) == 0
    stop.set()
    busy.join()
    run.finish()
    assert len(server.sequences) == len(set(server.sequences))
    assert {b.process.pid for b in server.batches} == {os.getpid()}
    assert not any("in the child" in s.label for b in server.batches for s in b.snapshots)


def run_script(tmp_path: Path, code: str, *arguments: str, **environ: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [*(arguments or (sys.executable,)), str(script)], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_children_that_run_the_script_again_start_no_second_run(
    tmp_path: Path, spool_directory: Path, method: str
) -> None:
    run_script(
        tmp_path,
        f"""
        import multiprocessing
        import leakline
        run = leakline.init(mode="offline", quiet=True)

        def work(number):
            inner = leakline.init(mode="offline", quiet=True)
            with leakline.current().phase("child"):
                return inner.id

        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                assert pool.map(work, range(4)) == [""] * 4
            run.finish()
        """,
    )
    assert len(list(spool_directory.rglob("*.spool"))) == 1


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_multiprocessing_child_of_a_process_without_a_run_may_start_one(
    tmp_path: Path, spool_directory: Path, method: str
) -> None:
    run_script(
        tmp_path,
        f"""
        import multiprocessing
        import leakline

        def train():
            run = leakline.init(mode="offline", quiet=True)
            assert run.id
            run.finish()

        if __name__ == "__main__":
            child = multiprocessing.get_context("{method}").Process(target=train)
            child.start()
            child.join()
            assert child.exitcode == 0
        """,
    )
    assert len(list(spool_directory.rglob("*.spool"))) == 1


def test_a_forked_child_still_dies_by_sigterm(tmp_path: Path) -> None:
    out = run_script(
        tmp_path,
        """
        import os, signal, time
        import leakline
        leakline.init(mode="offline", quiet=True)
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    )
    assert out == f"{-signal.SIGTERM}\n"


RANK = """
import json, os
import leakline
run = leakline.init(mode="offline", project="ranks")
run.generation(0)
run.finish()
print(json.dumps([run.id, run.name]))
"""


def test_ranks_join_one_run_as_its_processes_and_one_of_them_talks(
    tmp_path: Path, spool_directory: Path
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    started = [
        subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"},
        )
        for rank in range(3)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len({tuple(json.loads(out)) for out, _ in outputs}) == 1
    assert ["run" in err for _, err in outputs] == [True, False, False]
    headers = [read_header(path) for path in spool_directory.rglob("*.spool")]
    assert sorted(process.rank for _, process in headers) == [0, 1, 2]
    assert len({process.instance for _, process in headers}) == 3


def test_a_restart_of_the_launcher_is_the_next_attempt(
    tmp_path: Path, spool_directory: Path
) -> None:
    run_script(tmp_path, RANK, RANK="0", WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT="2")
    (path,) = spool_directory.rglob("*.spool")
    assert read_header(path)[1].attempt == 3
