"""Allocation tracing: once a leak is suspected, the allocating lines are traced for a while if the user enabled it."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.conftest import no_threads, wait_until
from tests.client.recording import events

from leakline import Run
from leakline.sampling.allocation_tracing import (
    LINES_REPORTED,
    TRACED_SECONDS,
    TRACER_BYTES,
    Allocations,
)
from leakline.snapshot import Snapshot


@pytest.fixture(autouse=True)
def nobody_traces() -> Iterator[None]:
    yield
    was_left = tracemalloc.is_tracing()
    tracemalloc.stop()
    assert not was_left


class Watched:
    """An `Allocations` whose clock and verdict the test sets."""

    def __init__(self, status: str = "suspected", **more: Any) -> None:
        self.status, self.now, self.looks = status, 0.0, 0
        self.marks: list[tuple[str, str, Any]] = []
        self.traced = Allocations(
            lambda kind, name, data: self.marks.append((kind, name, data)), lambda: self.status,
            self.clock, **more,
        )  # fmt: skip

    def clock(self) -> float:
        self.looks += 1
        return self.now

    def wait(self) -> Any:
        """Return the data of the one mark that is written soon."""
        wait_until(lambda: self.marks)
        assert not tracemalloc.is_tracing()
        ((_, _, data),) = self.marks
        return data

    def lives(self) -> bool:
        """Return True if a tracing thread is still alive."""
        threads = [t for t in threading.enumerate() if t.name == "leakline-allocations"]
        for thread in threads:
            thread.join(1)
        return any(thread.is_alive() for thread in threads)

    def see(self, *kinds: str) -> None:
        for kind in kinds:
            self.traced.see(Snapshot(0, 0.0, 0.0, 0, None, "", kind, {}))


@pytest.mark.parametrize("status", ["learning", "ok", "filling", "watch", "recovered"])
def test_nothing_is_traced_before_a_leak_is_suspected(status: str) -> None:
    watched = Watched(status)
    for kind in ("baseline", "phase_end", "generation_end", "generation_end", "finish"):
        watched.see(kind)
        assert not tracemalloc.is_tracing()
    assert watched.marks == []


def test_tracing_is_off_by_default(offline: Run) -> None:
    listeners = offline._chain.loop.listeners
    assert not any(isinstance(getattr(each, "__self__", None), Allocations) for each in listeners)


def test_tracing_by_the_program_itself_is_left_running() -> None:
    tracemalloc.start()
    watched = Watched()
    watched.see("generation_end", "generation_end", "finish")
    assert tracemalloc.is_tracing()
    assert watched.marks == []
    tracemalloc.stop()


def test_tracing_is_retried_when_its_thread_cannot_start() -> None:
    watched = Watched()
    with no_threads():
        watched.see("generation_end", "phase_end", "generation_end")
    assert (tracemalloc.is_tracing(), watched.marks) == (False, [])
    watched.see("generation_end")
    assert tracemalloc.is_tracing()
    watched.see("generation_end")
    assert len(watched.marks) == 1


def test_the_ten_largest_lines_are_reported_once() -> None:
    watched, kept = Watched("confirmed"), list[Any]()
    watched.see("generation_end")
    assert tracemalloc.is_tracing()
    scope: dict[str, Any] = {"kept": kept}
    source = "".join(f"kept.append(bytearray({(i + 1) * 10_000}))\n" for i in range(30))
    exec(compile(source, "/home/somebody/secret/training/trainer.py", "exec"), scope)
    watched.see("generation_end")
    assert not tracemalloc.is_tracing()
    ((kind, name, data),) = watched.marks
    assert (kind, name) == ("mark", "allocations")
    assert len(data["lines"]) == LINES_REPORTED == 10
    assert [line for line, _, _ in data["lines"]] == [
        f"training/trainer.py:{number}" for number in range(30, 20, -1)
    ]
    assert data["lines"][0][1] == pytest.approx(300_000, rel=0.01)
    assert "somebody" not in data["text"]
    # It is reported only once in a run.
    watched.see("generation_end", "generation_end")
    assert len(watched.marks) == 1


def test_tracing_ends_in_a_generation_that_lasts_too_long() -> None:
    watched, kept = Watched(), list[Any]()
    watched.see("generation_end")
    kept += [bytearray(1000) for _ in range(100)]
    watched.now = TRACED_SECONDS
    watched.see("sample", "phase_end")
    before = watched.looks
    wait_until(lambda: watched.looks > before + 2)
    assert tracemalloc.is_tracing()
    # No snapshots arrive from here on.
    watched.now += 1
    data = watched.wait()
    assert data["seconds"] == TRACED_SECONDS + 1
    assert data["lines"][0][2] >= 100
    assert not watched.lives()


def test_tracing_ends_when_its_table_becomes_too_large() -> None:
    watched, kept = Watched(), list[Any]()
    watched.see("generation_end")
    while tracemalloc.is_tracing() and len(kept) < 5_000_000:
        kept.append(object())
        held = tracemalloc.get_tracemalloc_memory()
    # The trace table doubles in size, and the thread only checks it now and then.
    assert held < 4 * TRACER_BYTES
    assert watched.wait()


@pytest.mark.parametrize(
    "end", [lambda watched: watched.traced.stop(), lambda watched: watched.see("finish")]
)
def test_tracing_stopped_early_or_by_the_end_of_the_run_reports_nothing(
    end: Callable[[Watched], None],
) -> None:
    watched = Watched()
    watched.see("generation_end")
    end(watched)
    assert not tracemalloc.is_tracing()
    watched.now = 2 * TRACED_SECONDS
    watched.see("generation_end")
    assert not watched.lives()
    assert not tracemalloc.is_tracing()
    assert watched.marks == []


TRAINING = """
import leakline
run = leakline.init(mode="offline", quiet=True, allocations=True)
heard, kept = [], []
run.on("suspected", heard.append)
left = 3
for generation in range(300):
    with run.generation(generation), run.phase("train"):
        kept.append([bytearray(50_000) for _ in range(40)])
    run._chain.verdicts._verdict_thread.wait(10)
    left -= bool(heard)
    if not left:
        break
run.finish()
print(len(heard))
"""


def test_a_real_leaking_training_reports_the_allocating_line(start: Any) -> None:
    process = start(TRAINING)
    assert process.communicate(timeout=120) == ("1\n", "")
    (mark,) = (event for event in events("mark") if event.name == "allocations")
    line, size, count = mark.data["lines"][0]
    assert line.endswith("train.py:9")
    assert size >= 40 * 50_000
    assert count >= 40


FORKS = """
import os, tracemalloc
import leakline
run = leakline.init(mode="offline", quiet=True, allocations=True)
run._chain._traced._status = lambda: "suspected"
with run.generation(0):
    pass
with run.generation(1):
    traced = tracemalloc.is_tracing()
    child = os.fork()
    if not child:
        os._exit(tracemalloc.is_tracing())
    ended = os.waitpid(child, 0)[1]
    still = tracemalloc.is_tracing()
run.finish()
print(traced, ended, still, tracemalloc.is_tracing())
"""


def test_a_forked_child_is_not_traced(start: Any) -> None:
    process = start(FORKS)
    assert process.communicate(timeout=60) == ("True 0 True False\n", "")
    assert [event.name for event in events("mark")] == ["allocations"]


def test_a_discarded_run_stops_tracing(offline: Run) -> None:
    watched = Watched()
    offline._chain._traced = watched.traced
    for end in (offline._chain.abandon, offline._chain.discard):
        watched.traced._may_begin = True
        watched.see("generation_end")
        assert tracemalloc.is_tracing()
        end()
        assert not tracemalloc.is_tracing()
