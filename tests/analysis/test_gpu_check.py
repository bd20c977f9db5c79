"""The verdict checks of `make test-gpu` on recorded readings: each passes on its training and fails on the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from subprocess import CompletedProcess

import pytest
from benchmarks.client import gpu
from benchmarks.client.gpu import (
    Check,
    check_fragmentation,
    check_healthy,
    check_leak,
    check_pinned,
    check_series,
    conclude,
)
from builder import EVOLVE, GIB, MIB, TRAIN, Leak, Training

from leakline.analysis import RunHistory, examine, history_from_batches
from leakline.analysis.results import Verdict
from leakline.snapshot import Batch, Snapshot

# The phases of the programs, in place of two that the builder has.
PHASES = {TRAIN: "collect", EVOLVE: "train"}
# How often a generation's phase has run -> allocated, reserved, split, in use by other processes
Card = Callable[[int], tuple[float, float, float, float]]


def still(step: int) -> tuple[float, float, float, float]:
    return 500 * MIB, 600 * MIB, 40 * MIB, 0


def leaking(step: int) -> tuple[float, float, float, float]:
    allocated = 80 * MIB + 32 * MIB * step
    return allocated, allocated + 20 * MIB, 10 * MIB, 0


def bounded(step: int) -> tuple[float, float, float, float]:
    allocated = 80 * MIB + 32 * MIB * min(step, 4)
    return allocated, allocated + 20 * MIB, 10 * MIB, 0


def cached(step: int) -> tuple[float, float, float, float]:
    return 80 * MIB, 600 * MIB, 10 * MIB, 0


def fragmented(step: int) -> tuple[float, float, float, float]:
    return 2 * GIB, 2 * GIB + 30 * MIB * step, 30 * MIB * step, 0


def neighbour(step: int) -> tuple[float, float, float, float]:
    return 80 * MIB, 100 * MIB, 10 * MIB, 64.0 * MIB * step


def recorded(card: Card, *leaks: Leak) -> RunHistory:
    training = Training(generations=32, leaks=leaks, buffer_bytes=0, declare_buffer=False)

    def on_the_card(snapshot: Snapshot) -> Snapshot:
        at = -1 if snapshot.generation is None else snapshot.generation
        done = snapshot.phase in PHASES or snapshot.kind == "generation_end"
        allocated, reserved, split, others = card(at + done)
        samples = {
            "cuda.0.allocated_bytes": allocated, "cuda.0.active_bytes": allocated,
            "cuda.0.reserved_bytes": reserved, "cuda.0.inactive_split_bytes": split,
        }  # fmt: skip
        if snapshot.kind in ("baseline", "generation_end"):
            samples |= {
                "gpu.0.total_bytes": 80 * GIB, "gpu.0.used_bytes": reserved + others + GIB,
                "gpu.0.process_bytes": reserved + GIB, "gpu.0.outside_bytes": GIB,
            }  # fmt: skip
        phase = PHASES.get(snapshot.phase or "", snapshot.phase)
        return replace(snapshot, phase=phase, samples={**snapshot.samples, **samples})

    batches = [Batch(b.process, tuple(map(on_the_card, b.snapshots))) for b in training.batches()]
    return history_from_batches(training.header(), batches)


def verdict(card: Card, *leaks: Leak) -> Verdict:
    return examine(recorded(card, *leaks))


def results(checks: list[Check]) -> set[str]:
    return {check.result for check in checks}


REPLAY = Leak(
    TRAIN, 0, {"torch.Tensor": 2, "tensors.count": 2, "tensors.bytes": 32 * MIB, "tensors.device_bytes": 32 * MIB}
)  # fmt: skip


def test_tensors_in_a_replay_buffer_pass_as_a_leak() -> None:
    assert results(check_leak(verdict(leaking, REPLAY))) == {"ok"}


@pytest.mark.parametrize("card", [still, bounded, cached, fragmented, neighbour])
def test_a_run_without_a_leak_of_the_device_fails_the_check_of_the_leak(card: Card) -> None:
    assert "FAIL" in results(check_leak(verdict(card)))


def test_a_leak_of_another_size_fails_the_check_of_the_leak() -> None:
    assert "FAIL" in results(check_leak(verdict(leaking, REPLAY), rate=64 * MIB))


def test_a_leak_without_a_type_fails_the_check_of_the_leak() -> None:
    assert "FAIL" in results(check_leak(verdict(leaking)))


def test_reserved_memory_that_grows_alone_passes_as_fragmentation() -> None:
    assert results(check_fragmentation(verdict(fragmented))) == {"ok"}


@pytest.mark.parametrize("card", [still, bounded, cached, neighbour])
def test_a_run_without_fragmentation_fails_its_check(card: Card) -> None:
    assert "FAIL" in results(check_fragmentation(verdict(card)))


@pytest.mark.parametrize("card", [still, bounded, cached, neighbour])
def test_bounded_cached_and_foreign_memory_pass_as_healthy(card: Card) -> None:
    assert results(check_healthy("run", verdict(card))) == {"ok"}


@pytest.mark.parametrize("card", [leaking, fragmented])
def test_growth_on_the_device_fails_the_check_of_a_healthy_run(card: Card) -> None:
    assert results(check_healthy("run", verdict(card))) == {"FAIL"}


def test_host_tensors_that_stay_pass_as_pinned_memory() -> None:
    kept = Leak(TRAIN, 16 * MIB, {"torch.Tensor": 1, "tensors.count": 1, "tensors.bytes": 16 * MIB})
    assert results(check_pinned(verdict(still, kept))) == {"ok"}
    assert "FAIL" in results(check_pinned(verdict(still)))
    assert "FAIL" in results(check_pinned(verdict(leaking, REPLAY)))


def test_a_recording_without_readings_of_the_device_fails() -> None:
    assert results(check_series("run", recorded(still))) == {"ok"}
    nothing = history_from_batches(Training().header(), Training().batches())
    assert results(check_series("run", nothing)) == {"FAIL"}


def test_the_last_line_counts_and_the_status_says_whether_all_passed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    passed, failed = Check("a", 0, 1, 1), Check("b", 0, 1, 2)
    unknown, absent = Check("c", 0, 1, None, may_be_absent=True), Check("d", 0, 1, None)
    assert conclude([passed, unknown]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"
    assert conclude([passed, failed, absent]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 2 failed"
    # Nothing that was checked has passed.
    assert conclude([unknown]) == conclude([]) == 1


@pytest.mark.parametrize(("with_it", "result"), [(1.01, "ok"), (1.5, "FAIL")])
def test_the_overhead_is_that_of_pairs(
    with_it: float, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(program: str, folder: str, how: str) -> CompletedProcess[str]:
        seconds = with_it if how == "with" else 1.0
        return CompletedProcess([program], 0, f"seconds {seconds:.6f}\n", "")

    monkeypatch.setattr(gpu, "_finished", finished)
    monkeypatch.setattr(gpu, "FIGURES", {})
    assert results(list(gpu.overhead(float("inf")))) == {result}
    assert gpu.FIGURES["overhead"]["ratio"]["middle"] == pytest.approx(with_it)
    # Two pairs are measured however late it is.
    assert results(list(gpu.overhead(0))) == {result}
    assert len(gpu.FIGURES["overhead"]["with"]) == 2
