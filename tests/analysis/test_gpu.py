"""Device memory is judged separately, and each check of `make test-gpu` passes only on its own training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest
from benchmarks.client.gpu import (
    Check,
    check_fragmentation,
    check_healthy,
    check_leak,
    check_pinned,
    check_series,
    conclude,
)
from builder import EVOLVE, GIB, MIB, TRAIN, Leak, Training, loss_graph
from pieces import ends_timeline

from leakline.analysis import RunHistory, examine, history_from_batches
from leakline.analysis.memory.memory_kinds import Channel, _devices
from leakline.analysis.results import Finding, Verdict
from leakline.snapshot import Batch, Snapshot

TOTAL = 80 * GIB
# (generation, whether its training phase has ended) -> samples
Device = Callable[[int, bool], Mapping[str, float]]


# Phases of the programs of `make test-gpu`, replacing two phases of the builder.
PHASES = {TRAIN: "collect", EVOLVE: "train"}


def recorded(
    device: Device, training: Training | None = None, phases: Mapping[str, str] | None = None
) -> RunHistory:
    """Return a training whose device had these readings; the driver is read only at generation ends."""
    training = training or Training(generations=40)

    def with_device(snapshot: Snapshot) -> Snapshot:
        at = -1 if snapshot.generation is None else snapshot.generation
        is_over = snapshot.kind == "generation_end" or snapshot.phase in (TRAIN, EVOLVE)
        samples = {
            name: value
            for name, value in device(at, is_over).items()
            if not name.startswith("gpu.") or snapshot.kind in ("baseline", "generation_end")
        }
        phase = (phases or {}).get(snapshot.phase or "", snapshot.phase)
        return replace(snapshot, phase=phase, samples={**snapshot.samples, **samples})

    batches = [Batch(b.process, tuple(map(with_device, b.snapshots))) for b in training.batches()]
    history = history_from_batches(training.header(), batches)
    return replace(history, limit_bytes=training.limit_bytes)


def judged(device: Device, training: Training | None = None) -> Verdict:
    return examine(recorded(device, training))


def torch_device(
    allocated: float, reserved: float, split: float, *, index: int = 0, outside: float = GIB
) -> Mapping[str, float]:
    return {
        f"cuda.{index}.allocated_bytes": allocated,
        f"cuda.{index}.reserved_bytes": reserved,
        f"cuda.{index}.active_bytes": allocated,
        f"cuda.{index}.inactive_split_bytes": split,
        f"gpu.{index}.total_bytes": TOTAL,
        f"gpu.{index}.used_bytes": reserved + outside,
        f"gpu.{index}.process_bytes": reserved + outside,
        f"gpu.{index}.outside_bytes": outside,
    }


def test_devices_are_recognized_by_their_series() -> None:
    names = (
        "cuda.1.allocated_bytes", "gpu.0.process_bytes", "cuda.2.retries", "mps.allocated_bytes",
        "tracked.buffer.allocated_bytes",
    )  # fmt: skip
    assert _devices(ends_timeline({name: [1] for name in names})) == ["0", "1"]


def of_devices(verdict: Verdict) -> list[Finding]:
    active = ("watch", "suspected", "confirmed")
    return [f for f in verdict.findings if f.kind.startswith("gpu") and f.status in active]


def growing(rate: float, g: int, is_over: bool) -> float:
    return rate * (g + is_over)


@pytest.mark.parametrize(
    "device",
    [
        lambda g, is_over: torch_device(4 * GIB, 6 * GIB, GIB / 2),
        lambda g, is_over: torch_device((2.7 if g % 3 else 18) * GIB, 20.4 * GIB, GIB / 2),
        lambda g, is_over: torch_device(40 * GIB, 40 * GIB + growing(2 * MIB, g, is_over), MIB),
        lambda g, is_over: {
            **torch_device(4 * GIB, 6 * GIB, 0), "gpu.0.used_bytes": 8 * GIB + growing(GIB, g, is_over),
        },
    ],
    ids=["level", "swings with the batches", "a few MiB of cache", "other processes"],
)  # fmt: skip
def test_a_device_that_grows_only_for_others_is_healthy(device: Device) -> None:
    verdict = judged(device)
    assert of_devices(verdict) == []
    assert verdict.status == "ok"


def test_tensors_kept_on_the_device_are_a_device_leak() -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        allocated = 4 * GIB + growing(256 * MIB, g, is_over)
        return torch_device(allocated, allocated + GIB, 100 * MIB)

    (finding,) = of_devices(judged(device))
    assert (finding.kind, finding.status, finding.phase) == ("gpu", "confirmed", TRAIN)
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(256 * MIB, rel=0.1)


@pytest.mark.parametrize(
    ("host", "sizes", "kinds"),
    [(0, 32, ["gpu"]), (4, 32, ["gpu", "native"]), (8, 40, ["gpu", "tensors"])],
    ids=["device alone", "host of no name", "tensors in both"],
)
def test_tensors_on_the_device_do_not_explain_host_memory(
    host: int, sizes: int, kinds: list[str]
) -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        allocated = 80 * MIB + growing(32 * MIB, g, is_over)
        return torch_device(allocated, allocated + 20 * MIB, 10 * MIB)

    counts = {
        "torch.Tensor": 2.0, "tensors.count": 2.0, "tensors.bytes": sizes * MIB, "tensors.device_bytes": 32 * MIB,
    }  # fmt: skip
    verdict = judged(device, Training(generations=40, leaks=(Leak(TRAIN, host * MIB, counts),)))
    found = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert sorted(f.kind for f in found) == kinds
    on_device = [s.name for f in found if f.kind == "gpu" for s in f.suspects]
    assert on_device == ["torch.Tensor"] or "tensors" in kinds


def test_reserved_memory_growing_without_tensors_is_fragmentation() -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        lost = growing(384 * MIB, g, is_over)
        return torch_device(4 * GIB, 5 * GIB + lost, 100 * MIB + 0.9 * lost)

    (finding,) = of_devices(judged(device))
    assert (finding.kind, finding.status, finding.phase) == (
        "gpu_fragmentation",
        "confirmed",
        TRAIN,
    )
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(384 * MIB, rel=0.1)
    assert any("expandable_segments" in line for line in finding.advice)


def test_growth_outside_the_allocator_is_not_blamed_on_tensors() -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        return torch_device(
            4 * GIB, 5 * GIB, 100 * MIB, outside=GIB + growing(200 * MIB, g, is_over)
        )

    kept_losses = Training(generations=40, leaks=(loss_graph(),))
    (finding,) = of_devices(judged(device, training=kept_losses))
    assert (finding.kind, finding.suspects) == ("gpu", ())
    assert any("NCCL" in line for line in finding.evidence)


@pytest.mark.parametrize("is_metal", [False, True], ids=["another framework", "Metal"])
def test_devices_other_than_cuda_are_judged_too(is_metal: bool) -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        size = 4 * GIB + growing(256 * MIB, g, is_over)
        if is_metal:
            return {
                "mps.allocated_bytes": size,
                "mps.driver_bytes": size + GIB,
                "mps.limit_bytes": 48 * GIB,
            }
        return {"gpu.0.total_bytes": TOTAL, "gpu.0.used_bytes": size, "gpu.0.process_bytes": size}

    (finding,) = of_devices(judged(device))
    assert (finding.kind, finding.status) == ("gpu", "confirmed")


def test_reserved_memory_that_nears_the_end_of_the_device_matters() -> None:
    spare = Channel(
        "cuda.0.reserved_bytes",
        "gpu_fragmentation",
        (2.0, 2.0, 2.0),
        100.0,
        other_values=(90.0,) * 3,
    )
    assert spare.scale((), 3, 10.0).ends_near_limit(0.1)
    assert not replace(spare, other_values=()).scale((), 3, 10.0).ends_near_limit(0.1)


@pytest.mark.parametrize("leaking", ["tensors", "fragments", "another library"])
def test_a_full_device_ends_the_run(leaking: str) -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        grown = growing(GIB, g, is_over)
        if leaking == "tensors":
            return torch_device(10 * GIB + grown, 12 * GIB + grown, GIB)
        if leaking == "fragments":
            return torch_device(10 * GIB, 12 * GIB + grown, GIB + grown)
        return torch_device(10 * GIB, 12 * GIB, GIB, outside=GIB + grown)

    oom = judged(device).oom
    assert (oom.limit_source, oom.limit_bytes, oom.risk) == ("device", TOTAL, "high")
    # 80 GiB less the initial 13 GiB.
    assert oom.generation is not None and abs(oom.generation.estimate - 66) < 3
    assert oom.sentence.startswith("OOM on GPU 0 near generation 6")


def test_a_device_that_lasts_until_the_planned_end_is_no_risk() -> None:
    verdict = judged(
        lambda g, is_over: torch_device(*[10 * GIB + growing(GIB / 2, g, is_over)] * 2, 0),
        Training(generations=40, total=50),
    )
    assert verdict.oom.risk == "none"
    assert re.fullmatch(
        r"not before the planned end \(projected use: 3\d\.\d\d GiB of 80\.00 GiB on GPU 0\)",
        verdict.oom.sentence,
    ), verdict.oom.sentence


def test_two_processes_sharing_a_device_are_added_up() -> None:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        own = 10 * GIB + growing(GIB / 2, g, is_over)
        return {**torch_device(own, own, 0), "gpu.0.used_bytes": 2 * own + 2 * GIB}

    oom = judged(device).oom
    # 80 GiB less the initial 22 GiB, at 1 GiB per generation.
    assert oom.generation is not None and abs(oom.generation.estimate - 57) < 3


def test_a_device_leak_is_rated_by_the_memory_of_the_device() -> None:
    leak = Leak(TRAIN, GIB, {})
    training = Training(generations=40, total=1_000, leaks=(leak,), limit_bytes=60 * GIB)
    verdict = judged(
        lambda g, is_over: torch_device(*[10 * GIB + growing(GIB / 4, g, is_over)] * 2, 0), training
    )
    assert verdict.oom.limit_source == "user"
    assert verdict.oom.sentence.startswith("OOM near generation 5")
    assert [f.priority for f in of_devices(verdict)] == ["critical"]


def test_a_device_that_fills_and_stays_does_not_end_the_run() -> None:
    for device in (
        lambda g, _: torch_device(10 * GIB + GIB * min(g, 8), 12 * GIB + GIB * min(g, 8), 0),
        lambda g, _: torch_device(10 * GIB, 70 * GIB, 0),
        lambda g, _: torch_device(10 * GIB, 12 * GIB + GIB * (g % 3), 0),
    ):
        assert judged(device).oom.limit_source != "device"


# Number of executions of a generation's phase -> allocated, reserved, split, in use by other processes
Card = Callable[[int], tuple[float, float, float, float]]


def still(step: int) -> tuple[float, float, float, float]:
    return 500 * MIB, 600 * MIB, 40 * MIB, 0


def leaking(step: int) -> tuple[float, float, float, float]:
    allocated = 80 * MIB + 32 * MIB * step
    return allocated, allocated + 20 * MIB, 10 * MIB, 0


def bounded(step: int) -> tuple[float, float, float, float]:
    return leaking(min(step, 4))


def cached(step: int) -> tuple[float, float, float, float]:
    return 80 * MIB, 600 * MIB, 10 * MIB, 0


def fragmented(step: int) -> tuple[float, float, float, float]:
    return 2 * GIB, 2 * GIB + 30 * MIB * step, 30 * MIB * step, 0


def neighbour(step: int) -> tuple[float, float, float, float]:
    return 80 * MIB, 100 * MIB, 10 * MIB, 64.0 * MIB * step


def on_the_card(card: Card, *leaks: Leak) -> RunHistory:
    def device(g: int, is_over: bool) -> Mapping[str, float]:
        allocated, reserved, split, others = card(g + is_over)
        samples = torch_device(allocated, reserved, split)
        return {**samples, "gpu.0.used_bytes": reserved + others + GIB}

    training = Training(generations=32, leaks=leaks, buffer_bytes=0, declare_buffer=False)
    return recorded(device, training, PHASES)


def results(checks: list[Check]) -> set[str]:
    return {check.result for check in checks}


REPLAY = Leak(
    TRAIN, 0, {"torch.Tensor": 2, "tensors.count": 2, "tensors.bytes": 32 * MIB, "tensors.device_bytes": 32 * MIB}
)  # fmt: skip
ON_HOST = Leak(TRAIN, 16 * MIB, {"torch.Tensor": 1, "tensors.count": 1, "tensors.bytes": 16 * MIB})
healthy = partial(check_healthy, "run")


@pytest.mark.parametrize(
    ("check", "card", "leaks", "passes"),
    [
        (check_leak, leaking, [REPLAY], True), (check_leak, leaking, [], False), (check_leak, fragmented, [], False),
        (partial(check_leak, rate=64 * MIB), leaking, [REPLAY], False), (check_leak, neighbour, [], False),
        (check_fragmentation, fragmented, [], True), (check_fragmentation, cached, [], False),
        (healthy, bounded, [], True), (healthy, neighbour, [], True), (healthy, leaking, [], False),
        (check_pinned, still, [ON_HOST], True), (check_pinned, still, [], False),
        (check_pinned, leaking, [REPLAY], False),
    ],
)  # fmt: skip
def test_a_check_passes_on_its_training_and_fails_on_others(
    check: Callable[[Verdict], list[Check]], card: Card, leaks: list[Leak], passes: bool
) -> None:
    found = results(check(examine(on_the_card(card, *leaks))))
    assert found == {"ok"} if passes else "FAIL" in found


def test_a_check_without_device_readings_fails() -> None:
    assert results(check_series("run", on_the_card(still))) == {"ok"}
    nothing = history_from_batches(Training().header(), Training().batches())
    assert results(check_series("run", nothing)) == {"FAIL"}


def test_the_last_line_counts_results_and_the_status_reflects_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    passed, failed = Check("a", 0, 1, 1), Check("b", 0, 1, 2)
    unknown, absent = Check("c", 0, 1, None, may_be_absent=True), Check("d", 0, 1, None)
    assert conclude([passed, unknown]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"
    assert conclude([passed, failed, absent]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 2 failed"
    # Of what was checked, nothing passed.
    assert conclude([unknown]) == conclude([]) == 1
