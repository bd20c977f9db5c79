"""Allocator, collector, machine and figures: a reading, or nothing; never a made-up zero."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakline.probes.allocator import read_allocator
from leakline.probes.collector import CollectorStatistics
from leakline.probes.figures import read_figures
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


def test_a_collector_that_is_switched_off_shows_with_what_waits(
    statistics: CollectorStatistics,
) -> None:
    assert statistics.read()["python.collector_enabled"] == 1
    gc.collect()
    gc.disable()
    try:
        before = statistics.read()
        held: list[object] = [[] for _ in range(2_000)]
        after = statistics.read()
    finally:
        gc.enable()
    assert after["python.collector_enabled"] == 0
    assert after["python.collector_pending"] >= before["python.collector_pending"] + len(held)


def test_the_hook_is_there_once_and_goes_away() -> None:
    statistics, hooks = CollectorStatistics(), len(gc.callbacks)
    statistics.start()
    statistics.start()
    assert len(gc.callbacks) == hooks + 1
    statistics.stop()
    statistics.stop()
    assert len(gc.callbacks) == hooks


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
