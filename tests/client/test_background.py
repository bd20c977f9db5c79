"""The background readings: how often, what they tell, and that they can be left out."""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from tests.client.recording import (
    MIB,
    events,
    fresh_pages,
    recorded,
)

import leakline
from leakline import Run
from leakline.probes.memory.system_memory import Headroom
from leakline.sampling.background_readings import (
    MOST_TOLD,
    SECONDS_EACH,
    TOLD_EVERY_SECONDS,
    Approach,
    BackgroundFold,
)
from leakline.snapshot import Event, Number, Snapshot


class _Sampler:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def look(self) -> None:
        self.calls.append("look")

    def sample(self) -> dict[str, Number]:
        self.calls.append("sample")
        return {"process.rss_bytes": len(self.calls)}


@pytest.mark.parametrize(("interval", "looks"), [(1.0, 9), (0.5, 19), (10.0, 0), (60.0, 0)])
def test_a_snapshot_is_told_every_ten_seconds_or_at_each_rarer_reading(
    interval: float, looks: int
) -> None:
    sampler, told = _Sampler(), list[Mapping[str, Number]]()
    fold = BackgroundFold(sampler, told.append, interval, approach=Plenty())  # type: ignore[arg-type]
    for _ in range(2 * (looks + 1)):
        assert fold.tick() == interval
    assert sampler.calls == (["look"] * looks + ["sample"]) * 2
    assert len(told) == 2
    assert (looks + 1) * interval == max(TOLD_EVERY_SECONDS, interval)


class Plenty(Approach):
    def look(self) -> tuple[float, bool]:
        return float("inf"), False


GIB = 2**30


class Filling:
    """Memory that fills while a clock of its own passes as the readings ask."""

    def __init__(self, rate: float, used: float = 0.0, limit: int = 10 * GIB) -> None:
        self.rate, self.used, self.limit, self.now = rate, used, limit, 0.0

    def clock(self) -> float:
        return self.now

    def read(self) -> Headroom:
        return Headroom(int(max(0, self.limit - self.used)), self.limit)

    def run(self, seconds: float) -> list[float]:
        """Readings until the limit is reached, or for so long; the use at each that was told."""
        told: list[float] = []
        fold = BackgroundFold(
            _Sampler(), lambda samples: told.append(self.used), approach=Approach(self.read, self.clock)
        )  # type: ignore[arg-type]  # fmt: skip
        end = self.now + seconds
        while self.now < end:
            pause = fold.tick()
            if self.used + pause * self.rate >= self.limit:
                return told
            self.now += pause
            self.used += pause * self.rate
        return told


@pytest.mark.parametrize("rate", [2**20, 100 * 2**20, GIB, 4 * GIB])
def test_the_last_snapshot_before_memory_runs_out_is_close_to_the_limit(rate: int) -> None:
    memory = Filling(rate, used=10 * GIB - 4 * rate)
    told = memory.run(60)
    assert told[-1] >= 0.98 * memory.limit
    # Ten a second at most on the way there, and not for long.
    assert len(told) < MOST_TOLD


class Resting(Filling):
    """It fills for two thirds of each eighth of a second: between two episodes the network is trained."""

    def clock(self) -> float:
        eighths, within = divmod(self.now, 1 / 8)
        self.used = self.rate / 8 * (eighths + min(1.0, 1.5 * within * 8))
        return self.now


@pytest.mark.parametrize("begin", [0.0, 0.015, 0.035, 0.085, 0.095])
def test_a_pause_of_the_training_is_no_reason_to_look_away(begin: float) -> None:
    """400 MiB at 80 MiB/s, as the training that the kernel kills in tests/flows."""
    memory = Resting(80 * MIB, limit=400 * MIB)
    memory.now = begin
    told = memory.run(60)
    assert told[-1] >= 0.97 * memory.limit
    assert len(told) < MOST_TOLD


def test_a_program_that_lives_at_its_limit_does_not_fill_the_spool() -> None:
    memory = Filling(2**30, used=9.5 * GIB)
    told = 0
    for _ in range(1000):
        told += len(memory.run(1.0))
        memory.used = 9.5 * GIB
    assert told < MOST_TOLD + memory.now / SECONDS_EACH + memory.now / TOLD_EVERY_SECONDS


def test_memory_that_is_given_back_each_time_tells_nothing_more() -> None:
    memory = Filling(2**30, used=2 * GIB)
    told = 0
    for _ in range(30):
        told += len(memory.run(4.0))
        memory.used = 2 * GIB
    assert told <= memory.now / TOLD_EVERY_SECONDS + 1


def test_news_is_told_at_the_next_reading() -> None:
    told = list[Mapping[str, Number]]()
    news = iter([False, True, False])
    fold = BackgroundFold(
        _Sampler(), told.append, has_news=lambda: next(news), approach=Plenty()
    )  # type: ignore[arg-type]  # fmt: skip
    assert [len(told) for _ in range(3) if fold.tick()] == [0, 1, 1]


def test_a_reading_that_falls_into_a_rise_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKLINE_SAMPLE_SECONDS", "0.01")
    # A peak from before, so that the kernel's own mark has nothing to say.
    fresh_pages(600 * MIB).close()
    run = leakline.init(mode="offline", quiet=True)
    memory, looked = run._loop.sampler._memory, threading.Event()
    look = memory.look

    def tell() -> None:
        look()
        looked.set()

    memory.look = tell  # type: ignore[method-assign]
    with run.phase("train"):
        block = fresh_pages(200 * MIB)
        looked.clear()
        assert looked.wait(20)
        block.close()
    run.finish()
    (end,) = [s for s in recorded() if s.kind == "phase_end"]
    above = end.samples["process.peak_bytes"] - end.samples["process.rss_bytes"]
    assert above == pytest.approx(200 * MIB, rel=0.15)


def test_without_background_readings_nobody_wakes_between_two_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKLINE_SAMPLE_SECONDS", "0")
    run = leakline.init(mode="offline", quiet=True)
    recorder: Any = run._chain.recorder
    # The recorder's thread waits for snapshots, for as long as it takes.
    assert recorder._tick is None
    with run.phase("train"):
        pass
    run.finish()
    assert [s.kind for s in recorded()] == ["baseline", "phase_end", "finish"]


def test_the_longest_pause_that_was_set_reaches_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKLINE_MAX_PAUSE", "0.002")
    run = leakline.init(mode="offline", quiet=True)
    assert run._loop.governor.max_pause_seconds == 0.002


class Ring:
    """Garbage that only a collection takes."""

    def __init__(self, size: int) -> None:
        self.me = self
        self.block = fresh_pages(size) if size else None


def collected(run: Run, rings: int, size: int) -> tuple[Snapshot, Event]:
    """The snapshot after a phase in which the program collects so many rings, and the event of that."""
    run.generation(0)
    gc.collect()
    with run.phase("warm"):
        pass
    gc.disable()
    try:
        with run.phase("train"):
            for _ in range(rings):
                Ring(size)
            gc.collect()
    finally:
        gc.enable()
    run.finish()
    (after,) = [s for s in recorded() if s.phase == "train"]
    (told,) = [event for event in after.events if event.kind == "collection"]
    return after, told


def test_full_collections_of_the_program_are_events_with_what_they_freed(offline: Run) -> None:
    after, told = collected(offline, 1000, 0)
    assert (told.name, told.generation, told.data["generation"]) == ("full", 0, 2)
    assert told.data["freed"] >= 1000
    assert told.data["seconds"] > 0
    assert told.time <= after.time


def test_a_collection_tells_the_resident_memory_that_went_with_it(offline: Run) -> None:
    _, told = collected(offline, 1, 32 * MIB)
    before, after = told.data["resident_bytes"]
    assert 30 * MIB < before - after < 40 * MIB
    assert before > 40 * MIB


def test_an_emptied_cache_of_a_device_is_an_event_and_one_in_a_cleanup_is_that_cleanups(
    offline: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = {"cuda.0.allocated_bytes": GIB, "cuda.0.reserved_bytes": 10 * GIB}
    probe = offline._loop.sampler._probes["cuda"]
    monkeypatch.setattr(probe, "read", lambda: dict(device))
    for name, kept in (("fills", 10), ("keeps", 10), ("empties", 7), ("grows", 9)):
        with offline.phase(name):
            device["cuda.0.reserved_bytes"] = kept * GIB
    with offline.cleanup("torch"):
        device["cuda.0.reserved_bytes"] = 2 * GIB
    with offline.phase("after"):
        device["cuda.0.reserved_bytes"] = 2 * GIB - 16 * MIB
    offline.finish()
    told = [(s.phase, e) for s in recorded() for e in s.events if e.name == "cache of cuda.0"]
    assert [phase for phase, _ in told] == ["empties"]
    assert told[0][1].kind == "mark"
    assert told[0][1].data["freed_bytes_at_least"] == 3 * GIB
    (cleanup,) = events("cleanup")
    assert cleanup.data["devices"]["cuda.0.reserved_bytes"] == [9 * GIB, 2 * GIB]
