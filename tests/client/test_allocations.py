"""Once a leak is suspected, and where the program asked for it: the lines that allocate what is kept, for a while."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.recording import events

from leakline import Run
from leakline.sampling.allocation_tracing import (
    LINES_TOLD,
    LOOK_SECONDS,
    TRACED_SECONDS,
    TRACER_BYTES,
    Allocations,
)
from leakline.snapshot import Snapshot


@pytest.fixture(autouse=True)
def nobody_traces() -> Iterator[None]:
    assert not tracemalloc.is_tracing()
    yield
    was_left = tracemalloc.is_tracing()
    tracemalloc.stop()
    assert not was_left


class Watched:
    """An `Allocations` with a clock and a verdict by hand."""

    def __init__(self, status: str = "suspected", **more: Any) -> None:
        self.status, self.now = status, 0.0
        self.told: list[tuple[str, str, Any]] = []
        self.traced = Allocations(
            lambda kind, name, data: self.told.append((kind, name, data)), lambda: self.status,
            lambda: self.now, **more,
        )  # fmt: skip

    def soon_told(self) -> list[tuple[str, str, Any]]:
        until = time.monotonic() + 10
        while not self.told and time.monotonic() < until:
            time.sleep(0.01)
        assert not tracemalloc.is_tracing()
        return self.told

    def lives(self) -> bool:
        """Whether a thread still looks after the tracing."""
        for thread in threading.enumerate():
            if thread.name == "leakline-allocations":
                thread.join(1)
                return thread.is_alive()
        return False

    def see(self, kind: str) -> None:
        self.traced.see(Snapshot(0, 0.0, 0.0, 0, None, "", kind, {}))


@pytest.mark.parametrize("status", ["learning", "ok", "filling", "watch", "recovered"])
def test_nothing_is_traced_before_a_leak_is_suspected(status: str) -> None:
    watched = Watched(status)
    for kind in ("baseline", "phase_end", "generation_end", "generation_end", "finish"):
        watched.see(kind)
        assert not tracemalloc.is_tracing()
    assert watched.told == []


def test_a_run_that_did_not_ask_traces_nothing(offline: Run) -> None:
    assert not any(
        getattr(each, "__self__", None).__class__ is Allocations
        for each in offline._chain.loop.listeners
    )


def test_a_program_that_traces_itself_goes_on_tracing() -> None:
    tracemalloc.start()
    watched = Watched()
    for kind in ("generation_end", "generation_end", "finish"):
        watched.see(kind)
    assert tracemalloc.is_tracing()
    assert watched.told == []
    tracemalloc.stop()


def test_at_most_ten_lines_are_told_once_the_largest_first() -> None:
    watched, kept = Watched("confirmed"), list[Any]()
    watched.see("generation_end")
    assert tracemalloc.is_tracing()
    scope: dict[str, Any] = {"kept": kept}
    source = "".join(f"kept.append(bytearray({(i + 1) * 10_000}))\n" for i in range(30))
    exec(compile(source, "/home/somebody/secret/training/trainer.py", "exec"), scope)
    watched.see("generation_end")
    assert not tracemalloc.is_tracing()
    ((kind, name, data),) = watched.told
    assert (kind, name) == ("mark", "allocations")
    assert len(data["lines"]) == LINES_TOLD == 10
    assert [line for line, _, _ in data["lines"]] == [
        f"training/trainer.py:{number}" for number in range(30, 20, -1)
    ]
    assert data["lines"][0][1] == pytest.approx(300_000, rel=0.01)
    assert "somebody" not in data["text"]
    # Once in a run.
    watched.see("generation_end")
    watched.see("generation_end")
    assert len(watched.told) == 1


def test_a_generation_that_lasts_too_long_ends_it_with_a_phase_or_without() -> None:
    watched, kept = Watched(), list[Any]()
    watched.see("generation_end")
    kept += [bytearray(1000) for _ in range(100)]
    watched.now = TRACED_SECONDS
    for kind in ("sample", "phase_end"):
        watched.see(kind)
    time.sleep(4 * LOOK_SECONDS)
    assert tracemalloc.is_tracing()
    # Nothing is seen of the program from here on.
    watched.now += 1
    (mark,) = watched.soon_told()
    assert mark[2]["seconds"] == TRACED_SECONDS + 1
    assert mark[2]["lines"][0][2] >= 100
    assert not watched.lives()


def test_tracing_that_holds_too_much_itself_ends_though_no_phase_does() -> None:
    watched, kept = Watched(), list[Any]()
    watched.see("generation_end")
    while tracemalloc.is_tracing() and len(kept) < 5_000_000:
        kept.append(object())
        held = tracemalloc.get_tracemalloc_memory()
    # The table doubles, and the thread has its turn only now and then.
    assert held < 4 * TRACER_BYTES
    assert len(watched.soon_told()) == 1


@pytest.mark.parametrize(
    "end", [lambda watched: watched.traced.stop(), lambda watched: watched.see("finish")]
)
def test_tracing_that_is_stopped_or_outlives_its_run_reports_nothing(
    end: Callable[[Watched], None],
) -> None:
    watched = Watched()
    watched.see("generation_end")
    end(watched)
    assert not tracemalloc.is_tracing()
    watched.now = 2 * TRACED_SECONDS
    watched.see("generation_end")
    time.sleep(2 * LOOK_SECONDS)
    assert not tracemalloc.is_tracing()
    assert watched.told == []
    assert not watched.lives()


TRAINING = """
import leakline
run = leakline.init(mode="offline", quiet=True, allocations=True)
heard, kept = [], []
run.on("suspected", heard.append)
left = 3
for generation in range(300):
    with run.generation(generation), run.phase("train"):
        kept.append([bytearray(50_000) for _ in range(40)])
    run._chain.verdicts._beside.wait(10)
    left -= bool(heard)
    if not left:
        break
run.finish()
print(len(heard))
"""


def test_a_real_training_that_leaks_is_told_the_line(start: Any) -> None:
    process = start(TRAINING)
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, said.strip()) == (0, "1"), errors
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
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said.split()) == (0, ["True", "0", "True", "False"]), errors
    assert [event.name for event in events("mark")] == ["allocations"]


def test_a_run_that_is_discarded_leaves_nothing_traced(offline: Run) -> None:
    watched = Watched()
    offline._chain._traced = watched.traced
    for end in (offline._chain.abandon, offline._chain.discard):
        watched.traced._may_begin = True
        watched.see("generation_end")
        assert tracemalloc.is_tracing()
        end()
        assert not tracemalloc.is_tracing()
