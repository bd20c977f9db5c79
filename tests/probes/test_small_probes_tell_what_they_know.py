"""Allocator, collector, machine, devices and figures: a reading, or nothing; never a made-up zero."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakline.probes import nvml
from leakline.probes.allocator import read_allocator
from leakline.probes.collector import CollectorStatistics
from leakline.probes.cuda import read_cuda
from leakline.probes.figures import read_figures
from leakline.probes.nvml import read_nvml
from leakline.probes.system import read_system

MIB = 2**20


def test_an_allocator_that_does_not_tell_is_absent() -> None:
    assert read_allocator(find=lambda: None) == {}


def test_the_allocator_counts_what_is_handed_out() -> None:
    before = read_allocator()["allocator.in_use_bytes"]
    block = bytearray(32 * MIB)
    grown = read_allocator()["allocator.in_use_bytes"] - before
    assert 31 * MIB < grown < 40 * MIB
    del block
    assert read_allocator()["allocator.in_use_bytes"] - before < 8 * MIB


def test_a_machine_without_meminfo_is_read_by_psutil(tmp_path: Path) -> None:
    samples = read_system(tmp_path / "absent")
    assert samples["system.total_bytes"] > samples["system.available_bytes"] > 0


def test_the_machine_is_read() -> None:
    assert read_system()["system.total_bytes"] == pytest.approx(
        read_system(Path("/absent"))["system.total_bytes"]
    )


@pytest.fixture
def statistics() -> Iterator[CollectorStatistics]:
    statistics = CollectorStatistics()
    statistics.start()
    yield statistics
    statistics.stop()


def test_the_collector_is_never_asked_to_run(statistics: CollectorStatistics) -> None:
    before = [g["collections"] for g in gc.get_stats()]
    gc.disable()
    try:
        statistics.read()
        assert [g["collections"] for g in gc.get_stats()] == before
    finally:
        gc.enable()


def test_a_full_collection_shows_with_what_it_freed(statistics: CollectorStatistics) -> None:
    class Loop:
        def __init__(self) -> None:
            self.me = self

    gc.collect()
    before = statistics.read()
    gc.disable()
    try:
        for _ in range(50):
            Loop()
        gc.collect()
    finally:
        gc.enable()
    after = statistics.read()
    assert after["python.collections_full"] == before["python.collections_full"] + 1
    assert after["python.garbage_freed"] >= before["python.garbage_freed"] + 50
    assert after["python.collection_seconds"] > before["python.collection_seconds"]


def test_the_hook_is_there_once_and_goes_away() -> None:
    statistics, hooks = CollectorStatistics(), len(gc.callbacks)
    statistics.start()
    statistics.start()
    assert len(gc.callbacks) == hooks + 1
    statistics.stop()
    statistics.stop()
    assert len(gc.callbacks) == hooks


def test_without_cuda_there_is_nothing_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert read_cuda() == {}
    assert "torch" not in sys.modules


def test_a_cuda_that_the_program_does_not_use_is_not_woken() -> None:
    import torch

    assert read_cuda() == {}
    assert not torch.cuda.is_initialized()


def test_nvml_without_a_driver_or_binding_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_driver", nvml._Driver())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml() == {}


def test_nvml_reads_every_card_or_none() -> None:
    samples = read_nvml()
    cards = {name.split(".")[1] for name in samples}
    for card in cards:
        assert 0 <= samples[f"gpu.{card}.used_bytes"] <= samples[f"gpu.{card}.total_bytes"]


class _Cards:
    """Three cards that answer with their own number."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        return name


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),
        ("GPU-abc", ["GPU-abc"]),
        ("-1", []),
    ],
)
def test_cards_are_numbered_as_the_process_sees_them(visible: str | None, cards: list[Any]) -> None:
    assert list(nvml._devices(_Cards(), visible)) == cards


def test_figures_are_absent_until_the_program_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib._pylab_helpers", raising=False)
    assert read_figures() == {}


def test_open_figures_are_counted() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    pyplot.figure()
    pyplot.figure()
    assert read_figures() == {"figures.open": 2}
    pyplot.close("all")
    assert read_figures() == {"figures.open": 0}
