"""Heap scans in slices next to the training thread, and the choice between a census in one piece and one in slices."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import no_threads
from tests.client.recording import recorded

import leakline
from leakline.probes.native_module import native, why_not_native
from leakline.sampling.incremental_scan import Outcome, SliceThread
from leakline.sampling.overhead_budget import NATIVE_SECONDS_PER_BLOCK, CensusPlan, Governor
from leakline.transport.spool_format import read_end

pytestmark = pytest.mark.alone

needs_native = pytest.mark.skipif(native() is None, reason=f"no native module: {why_not_native()}")

PATIENCE_SECONDS = 20.0


class Steps:
    """A sliced task of ``number`` steps; each waits for ``go``, so that a test decides when it continues."""

    def __init__(self, number: int, go: threading.Event | None = None) -> None:
        self.left, self.go, self.bytes = number, go, 4096
        self.threads: set[str] = set()

    def step(self, seconds: float) -> bool:
        assert 0 < seconds <= 0.01
        self.threads.add(threading.current_thread().name)
        if self.go is not None:
            assert self.go.wait(PATIENCE_SECONDS)
        self.left -= 1
        return self.left <= 0

    def result(self) -> str:
        return "found"


class Broken(Steps):
    def step(self, seconds: float) -> bool:
        raise ValueError("a step that fails")


def taken(slices: SliceThread) -> Outcome | None:
    slices.wait(PATIENCE_SECONDS)
    return slices.take()


def test_work_runs_on_another_thread_and_is_fetched_once() -> None:
    slices, work = SliceThread(), Steps(5)
    assert slices.offer("census", work)
    outcome = taken(slices)
    assert (outcome.name, outcome.result) == ("census", "found")
    assert outcome.seconds >= outcome.longest_slice > 0
    assert work.threads == {"leakline-census"}
    assert slices.take() is None
    assert slices.is_free


def test_only_one_task_runs_at_a_time() -> None:
    slices, go = SliceThread(), threading.Event()
    assert slices.offer("census", Steps(1, go))
    assert slices.bytes == 4096
    assert not slices.offer("holders", Steps(1))
    assert slices.take() is None
    go.set()
    assert taken(slices) is not None
    assert slices.offer("holders", Steps(1))
    assert taken(slices) is not None
    assert slices.bytes == 0


def test_a_failed_task_has_no_result_and_the_next_one_runs(internal_exceptions: Any) -> None:
    slices = SliceThread()
    slices.offer("census", Broken(1))
    outcome = taken(slices)
    assert outcome.result is None
    assert [type(error) for error in internal_exceptions] == [ValueError]
    internal_exceptions.clear()
    assert slices.offer("census", Steps(1))
    assert taken(slices) is not None


def test_stopping_ends_the_current_task_and_accepts_no_more() -> None:
    slices = SliceThread()
    slices.offer("census", Steps(1 << 60))
    slices.stop()
    outcome = taken(slices)
    assert outcome.result is None
    assert not slices.offer("census", Steps(1))


def test_a_task_whose_thread_cannot_start_is_not_running() -> None:
    slices = SliceThread()
    with no_threads(), pytest.raises(RuntimeError):
        slices.offer("census", Steps(1))
    assert (slices.is_free, slices.bytes) == (True, 0)
    assert taken(slices) is None
    assert slices.offer("holders", Steps(1))
    outcome = taken(slices)
    assert outcome is not None and (outcome.name, outcome.result) == ("holders", "found")
    slices.stop()


@needs_native
def test_a_run_whose_census_got_no_thread_ends_normally(
    monkeypatch: pytest.MonkeyPatch, spool_directory: Path, internal_exceptions: Any
) -> None:
    monkeypatch.setenv("LEAKLINE_MAX_PAUSE", "0.001")
    run = leakline.init(mode="offline", quiet=True)
    run.census()
    with no_threads(), run.generation(0), run.phase("train"):
        pass
    run.finish()
    kinds = [s.kind for s in recorded()]
    assert kinds == ["baseline", "phase_end", "generation_end", "finish"]
    (path,) = spool_directory.rglob("*.spool")
    end = read_end(path)
    assert end is not None and end["state"] == "finished"
    assert {str(error) for error in internal_exceptions} == {"can't start new thread"}
    internal_exceptions.clear()


def test_the_program_runs_between_two_slices() -> None:
    """A counting thread makes progress however much work there is."""
    slices = SliceThread()
    slices.offer("census", Steps(1 << 60))
    counted, end = 0, time.perf_counter() + 0.2
    while time.perf_counter() < end:
        counted += 1
    slices.stop()
    alone, end = 0, time.perf_counter() + 0.2
    while time.perf_counter() < end:
        alone += 1
    # Measured 0.9 on an idle machine.
    assert counted > 0.3 * alone


def test_no_slice_runs_while_the_training_thread_has_priority() -> None:
    slices, work = SliceThread(), Steps(1 << 60)
    slices.offer("census", work)
    with slices.turn:
        left = work.left
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:
            assert work.left == left
    end = time.perf_counter() + PATIENCE_SECONDS
    while work.left == left:
        assert time.perf_counter() < end, "it goes on afterwards"
    slices.stop()


def test_slices_are_charged_and_the_longest_is_the_pause() -> None:
    governor = Governor(0.01, 0.5, lambda: 0.0, lambda: 0.0)
    governor.charge_background("census", 0.2, 0.003)
    ledger = governor.ledger()
    assert (ledger["client.seconds"], ledger["client.pause_seconds"]) == (0.2, 0.003)
    assert not governor.allows("census")


@pytest.mark.parametrize(
    ("objects", "native", "pause_seconds", "way"),
    [
        (200_000, True, 0.05, "whole"),
        (5_000_000, True, 0.05, "slices"),
        (200_000, True, 0.001, "slices"),
        (200_000, False, 0.05, "whole"),
        (5_000_000, False, 0.05, None),
        (200_000, False, 0.001, None),
        (5_000_000, False, 1.0, "whole"),
    ],
)
def test_the_pause_limit_decides_how_a_census_is_taken(
    objects: int, native: bool, pause_seconds: float, way: str | None
) -> None:
    governor = Governor(1.0, 1e9, lambda: 0.0, lambda: 0.0, max_pause_seconds=pause_seconds)
    plan = CensusPlan(governor, blocks=lambda: 2 * objects, is_native=lambda: native)
    assert plan.way() == way
    assert plan.due(True) == way
    assert plan.too_large is (way is None)


def test_the_cost_of_a_census_decides_how_the_next_one_runs() -> None:
    governor = Governor(1.0, 1e9, lambda: 0.0, lambda: 0.0)
    plan = CensusPlan(governor, blocks=lambda: 1_000_000, is_native=lambda: True)
    plan.taken(500_000, 0.04, True)
    assert plan.way() == "whole"
    plan.taken(500_000, 0.06, True)
    assert plan.way() == "slices"
    assert plan.expected_seconds() == pytest.approx(0.06)
    assert NATIVE_SECONDS_PER_BLOCK < 0.06 / 1_000_000 * 2


@pytest.fixture
def freezes() -> Iterator[None]:
    """Collect what the test left and freeze it, so that only older or surviving objects are frozen for later tests."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class FrozenBeforeACensus:
    pass


class FrozenBeforeSlices:
    pass


# A class per case: a search may keep the instances of its test alive for a moment after the run.
@pytest.mark.parametrize(
    ("pause", "kind"),
    [(0.05, FrozenBeforeACensus), pytest.param(0.001, FrozenBeforeSlices, marks=needs_native)],
)
@pytest.mark.usefixtures("freezes")
def test_objects_frozen_by_the_program_stay_counted(
    monkeypatch: pytest.MonkeyPatch, pause: float, kind: type
) -> None:
    monkeypatch.setenv("LEAKLINE_MAX_PAUSE", str(pause))
    things = [kind() for _ in range(50)]
    run = leakline.init(mode="offline", quiet=True, watch=[kind])
    for generation in range(4):
        with run.generation(generation):
            gc.freeze()
            things += [kind() for _ in range(7)]
    run.finish()
    name = f"type.{kind.__module__}.{kind.__qualname__}.count"
    ends = [s.samples for s in recorded() if s.kind == "generation_end"]
    assert [samples[name] for samples in ends] == [57, 64, 71, 78]
    assert len(things) == 78


@pytest.mark.usefixtures("freezes")
def test_a_class_is_counted_although_older_frozen_objects_die() -> None:
    going = [[number] for number in range(1_000)]
    gc.freeze()
    run = leakline.init(mode="offline", quiet=True)
    going.clear()
    late = type("Late", (), {"__module__": __name__})
    kept = []
    for generation in range(8):
        with run.generation(generation):
            kept += [late() for _ in range(5)]
    run.finish()
    counts = [s.samples.get(f"type.{__name__}.Late.count") for s in recorded()]
    assert counts[-1] == 40
    assert len(kept) == 40
