"""Garbage collector, allocated blocks and allocator: a reading or none, never an invented zero."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.probes.heaps import run_alone

from leakline.probes.heap.cyclic_garbage import (
    BLOCKS_EVERY_SECONDS,
    KEPT,
    REPORTED_LIMIT,
    AllocatedBlocks,
    CollectorStatistics,
)
from leakline.probes.memory.process_memory import read_allocator

MIB = 2**20


@pytest.fixture
def statistics() -> Iterator[CollectorStatistics]:
    statistics = CollectorStatistics()
    statistics.start()
    yield statistics
    statistics.stop()


@contextmanager
def collector_off() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Loop:
    def __init__(self) -> None:
        self.me = self


def test_no_reading_triggers_a_collection(statistics: CollectorStatistics) -> None:
    with collector_off():
        before = [g["collections"] for g in gc.get_stats()]
        statistics.read()
        assert [g["collections"] for g in gc.get_stats()] == before


def test_a_full_collection_is_reported_once_with_what_it_freed(
    statistics: CollectorStatistics,
) -> None:
    gc.collect()
    with collector_off():
        statistics.take()
        before = statistics.read()
        for _ in range(50):
            Loop()
        started = time.time()
        gc.collect()
        after = statistics.read()
    assert after["python.collections_full"] == before["python.collections_full"] + 1
    assert after["python.garbage_freed"] >= before["python.garbage_freed"] + 50
    assert after["python.collection_seconds"] > before["python.collection_seconds"]
    (told,) = statistics.take()
    assert told.generation == 2
    assert told.freed >= 50
    assert 0 < told.seconds < 60
    assert started <= told.time <= time.time()
    assert statistics.take() == []


def test_a_disabled_collector_is_reported_with_its_waiting_objects(
    statistics: CollectorStatistics,
) -> None:
    assert statistics.read()["python.collector_enabled"] == 1
    gc.collect()
    with collector_off():
        before = statistics.read()
        held: list[object] = [[] for _ in range(2_000)]
        after = statistics.read()
    assert after["python.collector_enabled"] == 0
    assert after["python.collector_pending"] >= before["python.collector_pending"] + len(held)


def test_young_collections_are_only_counted(statistics: CollectorStatistics) -> None:
    statistics.take()
    gc.collect(0)
    gc.collect(1)
    assert statistics.take() == []


def test_reports_of_very_frequent_collections_are_limited(
    statistics: CollectorStatistics,
) -> None:
    def told_of_one(phase_seconds: float, freed: int) -> int:
        statistics._on_collection("start", {"generation": 2})
        assert statistics._started_at is not None
        statistics._started_at -= phase_seconds
        statistics._on_collection("stop", {"generation": 2, "collected": freed, "uncollectable": 0})
        return len(statistics.take())

    with collector_off():
        told = sum(told_of_one(0.5, 100) for _ in range(1000))
        assert told == REPORTED_LIMIT
        assert told_of_one(0.5, 100_000) == 1, "the largest so far is still reported"
        assert told_of_one(5.0, 0) == 1, "the longest so far is still reported"
        for _ in range(1000):
            statistics._on_collection("start", {"generation": 2})
            statistics._on_collection("stop", {"generation": 2, "collected": 0, "uncollectable": 0})
        assert len(statistics._full) == KEPT


def test_concurrent_collections_on_many_threads_are_all_complete(
    statistics: CollectorStatistics,
) -> None:
    threads = [threading.Thread(target=lambda: [gc.collect() for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for told in statistics.take():
        assert told.generation == 2
        assert 0 <= told.seconds < 60


def test_the_hook_is_silent_while_the_interpreter_ends(tmp_path: Path) -> None:
    program = (
        "import gc, sys; from leakline.probes.heap.cyclic_garbage import KEPT, REPORTED_LIMIT, CollectorStatistics;"
        "s = CollectorStatistics(); s.start();"
        "x = []; x.append(x); sys.modules['keeps'] = x; del x"
    )
    run_alone(tmp_path, program)


def test_the_hook_is_installed_once_and_removed() -> None:
    statistics, hooks = CollectorStatistics(), len(gc.callbacks)
    statistics.start()
    statistics.start()
    assert len(gc.callbacks) == hooks + 1
    statistics.stop()
    statistics.stop()
    assert len(gc.callbacks) == hooks


def test_stopping_works_after_the_program_removed_the_hook() -> None:
    statistics, hooks = CollectorStatistics(), gc.callbacks[:]
    statistics.start()
    gc.callbacks[:] = hooks
    statistics.stop()
    assert gc.callbacks == hooks
    statistics.start()
    assert len(gc.callbacks) == len(hooks) + 1
    statistics.stop()


# -- blocks


class Blocks:
    """An interpreter whose blocks grow by one hundred at each count."""

    def __init__(self) -> None:
        self.now, self.counts = 50.0, 0
        self.blocks = AllocatedBlocks(lambda: self.now, self.count)

    def count(self) -> int:
        self.counts += 1
        return 100 * self.counts


def test_blocks_are_counted_and_reported_once_a_second() -> None:
    interpreter = Blocks()
    statistics = CollectorStatistics(interpreter.blocks)
    told = []
    for _ in range(9):
        told.append(statistics.read().get("python.blocks"))
        interpreter.now += BLOCKS_EVERY_SECONDS / 4
    assert told == [100, None, None, None, 200, None, None, None, 300]
    assert interpreter.counts == 3


def test_block_counts_in_between_do_not_affect_the_series() -> None:
    interpreter = Blocks()
    statistics = CollectorStatistics(interpreter.blocks)
    assert statistics.read()["python.blocks"] == 100
    interpreter.now += BLOCKS_EVERY_SECONDS
    assert [interpreter.blocks.recent() for _ in range(3)] == [200, 200, 200]
    interpreter.now += BLOCKS_EVERY_SECONDS / 2
    assert statistics.read()["python.blocks"] == 200
    assert "python.blocks" not in statistics.read()


def test_a_newer_block_count_is_taken_on_request() -> None:
    interpreter = Blocks()
    interpreter.blocks.recent()
    interpreter.now += 0.2
    assert interpreter.blocks.recent(0.5) == 100
    assert interpreter.blocks.recent(0.1) == 200


def test_blocks_are_those_of_the_interpreter(statistics: CollectorStatistics) -> None:
    told = statistics.read()["python.blocks"]
    assert told == pytest.approx(sys.getallocatedblocks(), abs=1_000)


# -- the allocator

BLOCKS, BLOCK_BYTES = 1000, 30_000


def in_use() -> float:
    return read_allocator()["allocator.in_use_bytes"]


def _malloc() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


def test_an_allocator_without_statistics_is_absent() -> None:
    assert read_allocator(find=lambda: None) == {}


def test_allocated_bytes_match_psutil() -> None:
    before = in_use()
    block = bytearray(32 * MIB)
    assert 31 * MIB < in_use() - before < 40 * MIB
    theirs = psutil.heap_info()
    assert in_use() == pytest.approx(theirs.heap_used + theirs.mmap_used, abs=MIB)
    del block
    assert in_use() - before < 8 * MIB


def test_allocations_of_other_threads_are_counted() -> None:
    library, blocks = _malloc(), list[int]()

    def take() -> None:
        # Threads other than the first take small blocks from their own arena.
        blocks.extend(library.malloc(BLOCK_BYTES) for _ in range(BLOCKS))

    before = in_use()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    grown = in_use() - before
    for block in blocks:
        library.free(block)
    assert grown == pytest.approx(BLOCKS * BLOCK_BYTES, rel=0.1)
    assert in_use() - before < grown / 10


def test_blocks_freed_around_survivors_are_kept_by_the_allocator() -> None:
    library = _malloc()
    blocks = [library.malloc(BLOCK_BYTES) for _ in range(BLOCKS)]
    full = read_allocator()
    for block in blocks[::2]:
        library.free(block)
    freed = read_allocator()
    for block in blocks[1::2]:
        library.free(block)
    half = BLOCKS * BLOCK_BYTES / 2
    for name, moved in (("in_use", -half), ("kept", half)):
        name = f"allocator.{name}_bytes"
        assert freed[name] - full[name] == pytest.approx(moved, rel=0.1)
