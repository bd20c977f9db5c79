"""Cells that start runs again, and threads that begin, measure and end them: nothing raises, nothing waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.client.recording import events, recorded

import leakline
from leakline.transport.spool_format import read_batches, read_end, read_header


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """What hangs is told with the stack of every thread."""
    import faulthandler

    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def spools(directory: Path) -> list[Path]:
    """In the order in which their processes began."""
    return sorted(directory.rglob("*.spool"), key=lambda path: read_header(path)[0].started_at)


def together(*work: Callable[[], object]) -> None:
    """All at the same moment, each on a thread of its own; what one raises is raised here."""
    ready = threading.Barrier(len(work))

    def run(one: Callable[[], object]) -> None:
        ready.wait(20)
        one()

    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(run, one) for one in work]:
            done.result()


# -- notebooks ----------------------------------------------------------------------------------------


def test_a_cell_that_is_run_again_finishes_the_run_before(spool_directory: Path) -> None:
    first = leakline.init(mode="offline", quiet=True)
    first.generation(0)
    second = leakline.init(mode="offline", quiet=True)
    assert leakline.current() is second
    assert first.id != second.id
    first.generation(1)
    with first.phase("gone"):
        first.mark("gone")
    second.finish()
    assert [read_end(path)["state"] for path in spools(spool_directory)] == ["finished"] * 2  # type: ignore[index]
    assert not any("gone" in snapshot.label for snapshot in recorded())


def test_the_same_id_twice_in_one_process_is_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch, spool_directory: Path
) -> None:
    monkeypatch.setenv("LEAKLINE_RUN_ID", "ours")
    for generation in range(3):
        leakline.init(mode="offline", quiet=True).generation(generation)
    leakline.current().finish()
    headers = [read_header(path) for path in spools(spool_directory)]
    assert [(run.id, who.role, who.attempt) for run, who in headers] == [
        ("ours", "main", 1), ("ours", "main", 2), ("ours", "main", 3),
    ]  # fmt: skip
    assert len({who.instance for _, who in headers}) == 3


def test_an_exception_in_a_cell_neither_ends_the_run_nor_taints_the_next(
    spool_directory: Path,
) -> None:
    """IPython catches it and shows it: the hook for exceptions is never called."""
    first = leakline.init(mode="offline", quiet=True)
    with contextlib.suppress(ValueError), first.generation(0), first.phase("train"):
        raise ValueError("in a cell")
    assert leakline.current() is first
    with first.generation(1), first.phase("train"):
        pass
    second = leakline.init(mode="offline", quiet=True)
    with second.generation(0):
        pass
    second.finish()
    ends = [read_end(path) for path in spools(spool_directory)]
    assert [(end["state"], end["reason"]) for end in ends if end] == [("finished", "")] * 2
    told = [e.name for e in events("exception")]
    assert told == ["ValueError"]


def test_a_run_left_in_the_middle_of_its_phases_ends_whole_when_the_next_begins(
    spool_directory: Path,
) -> None:
    """A cell that was interrupted while it was inside."""
    first = leakline.init(mode="offline", quiet=True)
    first.generation(0)
    phase = first.phase("train")
    phase.__enter__()
    second = leakline.init(mode="offline", quiet=True)
    phase.__exit__(None, None, None)
    second.finish()
    kinds = [
        [s.kind for batch in read_batches(path) for s in batch.snapshots]
        for path in spools(spool_directory)
    ]
    assert kinds == [["baseline", "generation_end", "finish"], ["baseline", "finish"]]


# -- threads ------------------------------------------------------------------------------------------


def test_a_run_may_begin_on_one_thread_and_end_on_another(spool_directory: Path) -> None:
    made: list[leakline.Run] = []
    before = signal.getsignal(signal.SIGTERM), sys.excepthook

    def begin() -> None:
        made.append(leakline.init(mode="offline", quiet=True))
        with made[0].generation(0), made[0].phase("train"):
            pass

    together(begin)
    assert leakline.current() is made[0]
    # Only the main thread may set a handler.
    assert signal.getsignal(signal.SIGTERM) is before[0]
    together(made[0].finish)
    assert leakline.current().id == ""
    assert [s.kind for s in recorded()] == ["baseline", "phase_end", "generation_end", "finish"]
    (path,) = spools(spool_directory)
    assert read_end(path)["state"] == "finished"  # type: ignore[index]


def test_phases_of_many_threads_are_all_told(offline: leakline.Run) -> None:
    offline.generation(0)

    def work(name: str) -> None:
        for _ in range(10):
            with offline.phase(name), offline.phase("inner"):
                leakline.current().mark("here")

    together(*(lambda n=n: work(f"thread {n}") for n in range(8)))
    offline.finish()
    told = [s.phase for s in recorded() if s.kind == "phase_end"]
    for n in range(8):
        assert told.count(f"thread {n}") == 10
    assert sum(str(phase).endswith("inner") for phase in told) == 80
    numbers = [s.sequence for s in recorded()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.long
def test_a_run_that_ends_while_other_threads_are_inside_phases_says_nothing_more(
    spool_directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(8):
        run = leakline.init(mode="offline", quiet=True)
        ended = threading.Event()

        def work(run: leakline.Run = run, ended: threading.Event = ended) -> None:
            after = 0
            generation = 0
            while after < 20:
                after += ended.is_set()
                generation += 1
                run.generation(generation)
                with run.phase("train"), run.phase("inner"):
                    run.gauge("g", generation)
                    run.note("n")
                    run.snapshot("s")
                    run.census()

        def finish(run: leakline.Run = run, ended: threading.Event = ended) -> None:
            ended.wait(0.01)
            run.finish()
            ended.set()

        together(work, work, work, finish)
    for path in spools(spool_directory):
        kinds = [s.kind for batch in read_batches(path) for s in batch.snapshots]
        # Whatever was taken before it; and it is the last.
        assert kinds.index("finish") == len(kinds) - 1
        assert (read_end(path) or {})["state"] == "finished"
    assert capfd.readouterr() == ("", "")


def test_many_threads_that_end_a_run_end_it_once(
    offline: leakline.Run,
    spool_directory: Path,
) -> None:
    offline.generation(0)
    seen: list[Any] = []

    def finish() -> None:
        offline.finish()
        # Whoever asked, it is over when the call comes back.
        (path,) = spools(spool_directory)
        seen.append(read_end(path))

    together(*[finish] * 8)
    assert [end["state"] for end in seen] == ["finished"] * 8
    assert [s.kind for s in recorded()].count("finish") == 1


def test_a_signal_that_comes_while_another_thread_ends_the_run_waits_for_it(
    tmp_path: Path, start: Any, spool_directory: Path
) -> None:
    process = start(
        """
import os, signal, threading, time
import leakline
run = leakline.init(mode="offline", quiet=True)
close = run._chain.close
began = threading.Event()

def slowly(end):
    began.set()
    time.sleep(0.5)
    close(end)

run._chain.close = slowly
threading.Thread(target=run.finish).start()
began.wait(20)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
    )
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGTERM
    (path,) = spools(spool_directory)
    assert (read_end(path) or {})["state"] == "finished"


def test_a_child_forked_while_another_thread_ends_the_run_waits_for_nobody(
    start: Any, spool_directory: Path
) -> None:
    process = start(
        """
import os, signal, sys, threading, time
import leakline
run = leakline.init(mode="offline", quiet=True)
close = run._chain.close
began, forked = threading.Event(), threading.Event()

def slowly(end):
    began.set()
    forked.wait(20)
    close(end)

run._chain.close = slowly
threading.Thread(target=run.finish).start()
began.wait(20)
pid = os.fork()
if pid == 0:
    signal.alarm(2)
    run.finish()
    assert run.report() == ""
    sys.exit(0)
status = os.waitpid(pid, 0)[1]
forked.set()
sys.exit(status != 0)
"""
    )
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0
    assert len(spools(spool_directory)) == 1
    assert read_header(spools(spool_directory)[0])[1].pid != os.getpid()
