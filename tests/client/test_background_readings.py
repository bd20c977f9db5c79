"""Readings between two snapshots: their frequency, how they detect memory running out, and how to disable them."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest
from tests.client.recording import MIB, events, fresh_pages, recorded

import leakline
from leakline import Run
from leakline.probes.memory.system_memory import Headroom
from leakline.sampling.background_readings import (
    MOST_REPORTED,
    REPORT_EVERY_SECONDS,
    SECONDS_EACH,
    Approach,
    BackgroundFold,
)
from leakline.snapshot import Number

GIB = 2**30


class _Sampler:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def look(self) -> None:
        self.calls.append("look")

    def sample(self) -> dict[str, Number]:
        self.calls.append("sample")
        return {"process.rss_bytes": len(self.calls)}


class Plenty(Approach):
    def look(self) -> tuple[float, bool]:
        return float("inf"), False


@pytest.mark.parametrize(("interval", "looks"), [(1.0, 9), (0.5, 19), (60.0, 0)])
def test_a_snapshot_is_taken_every_ten_seconds_or_each_interval(
    interval: float, looks: int
) -> None:
    sampler, taken, news = _Sampler(), list[Mapping[str, Number]](), list[str]()
    fold = BackgroundFold(
        sampler, taken.append, interval, lambda: bool(news), Plenty()
    )  # type: ignore[arg-type]  # fmt: skip
    for _ in range(2 * (looks + 1)):
        assert fold.tick() == interval
    assert sampler.calls == (["look"] * looks + ["sample"]) * 2
    # A pending event is sent with the next reading.
    news.append("something")
    fold.tick()
    assert len(taken) == 3


class Filling:
    """Memory that fills at a fixed rate on a simulated clock."""

    def __init__(self, rate: float, used: float = 0.0, limit: int = 10 * GIB) -> None:
        self.rate, self.used, self.limit, self.now = rate, used, limit, 0.0

    def clock(self) -> float:
        return self.now

    def read(self) -> Headroom:
        return Headroom(int(max(0, self.limit - self.used)), self.limit)

    def run(self, seconds: float) -> list[float]:
        """Read until the limit is reached or ``seconds`` have passed; return memory use at each reported reading."""
        found: list[float] = []
        fold = BackgroundFold(
            _Sampler(), lambda samples: found.append(self.used), approach=Approach(self.read, self.clock)
        )  # type: ignore[arg-type]  # fmt: skip
        end = self.now + seconds
        while self.now < end:
            pause = fold.tick()
            if self.used + pause * self.rate >= self.limit:
                return found
            self.now += pause
            self.used += pause * self.rate
        return found


@pytest.mark.parametrize("rate", [2**20, 4 * GIB])
def test_the_last_snapshot_before_memory_runs_out_is_close_to_the_limit(rate: int) -> None:
    memory = Filling(rate, used=10 * GIB - 4 * rate)
    used = memory.run(60)
    assert used[-1] >= 0.98 * memory.limit
    # At most ten readings a second near the limit, and not for long.
    assert len(used) < MOST_REPORTED


def test_the_first_reading_knows_how_fast_memory_fills() -> None:
    memory = Filling(GIB)
    approach = Approach(memory.read, memory.clock)
    memory.now, memory.used = 1.0, GIB
    assert approach.look() == (9.0, False)


class Resting(Filling):
    """Memory that fills for two thirds of each eighth of a second, as when training runs between two episodes."""

    def clock(self) -> float:
        eighths, within = divmod(self.now, 1 / 8)
        self.used = self.rate / 8 * (eighths + min(1.0, 1.5 * within * 8))
        return self.now


@pytest.mark.parametrize("begin", [0.0, 0.035, 0.095])
def test_readings_stay_frequent_when_growth_pauses_briefly(begin: float) -> None:
    memory = Resting(80 * MIB, limit=400 * MIB)
    memory.now = begin
    used = memory.run(60)
    assert used[-1] >= 0.97 * memory.limit
    assert len(used) < MOST_REPORTED


@pytest.mark.parametrize(("used", "seconds", "often"), [(9.5, 1.0, True), (2.0, 4.0, False)])
def test_memory_that_is_freed_each_time_does_not_fill_the_spool(
    used: float, seconds: float, often: bool
) -> None:
    """A program at its limit is read often only for a while; one with room to spare never is."""
    memory, taken = Filling(2**30, used=used * GIB), 0
    for _ in range(500):
        taken += len(memory.run(seconds))
        memory.used = used * GIB
    more = MOST_REPORTED + memory.now / SECONDS_EACH if often else 1
    assert taken <= memory.now / REPORT_EVERY_SECONDS + more


def test_without_background_readings_no_thread_wakes_between_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKLINE_SAMPLE_SECONDS", "0")
    monkeypatch.setenv("LEAKLINE_MAX_PAUSE", "0.002")
    run = leakline.init(mode="offline", quiet=True)
    assert run._loop.governor.max_pause_seconds == 0.002
    recorder: Any = run._chain.recorder
    # The recorder's thread waits for snapshots without a timeout.
    assert recorder._tick is None
    with run.phase("train"):
        pass
    run.finish()
    assert [s.kind for s in recorded()] == ["baseline", "phase_end", "finish"]


class Ring:
    """A reference cycle, freed only by a collection."""

    def __init__(self, size: int) -> None:
        self.me = self
        self.block = fresh_pages(size) if size else None


def test_full_collections_are_recorded_with_the_bytes_they_freed(offline: Run) -> None:
    offline.generation(0)
    gc.collect()
    with offline.phase("warm"):
        pass
    gc.disable()
    try:
        with offline.phase("train"):
            for size in (32 * MIB, *[0] * 1000):
                Ring(size)
            gc.collect()
    finally:
        gc.enable()
    offline.finish()
    (snapshot,) = [s for s in recorded() if s.phase == "train"]
    (event,) = [event for event in snapshot.events if event.kind == "collection"]
    assert (event.name, event.generation, event.data["generation"]) == ("full", 0, 2)
    assert event.data["freed"] >= 1000
    assert event.data["seconds"] > 0
    assert event.time <= snapshot.time
    before, after = event.data["resident_bytes"]
    assert 30 * MIB < before - after < 40 * MIB < before


def test_emptying_a_device_cache_is_an_event_except_within_a_cleanup(
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
    found = [(s.phase, e) for s in recorded() for e in s.events if e.name == "cache of cuda.0"]
    assert [phase for phase, _ in found] == ["empties"]
    assert found[0][1].kind == "mark"
    assert found[0][1].data["freed_bytes_at_least"] == 3 * GIB
    (cleanup,) = events("cleanup")
    assert cleanup.data["devices"]["cuda.0.reserved_bytes"] == [9 * GIB, 2 * GIB]
