"""The peak between two readings, by what the kernel and the background readings tell."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from leakline.probes import peaks
from leakline.probes.peaks import PEAK, PeakMemory
from leakline.probes.process import read_peak_bytes, read_process
from leakline.snapshot import Number

MIB = 2**20


class Memory:
    """A process whose kernel keeps a mark: ``uses`` sets resident memory, as high as it may be in between."""

    def __init__(self) -> None:
        self.resident, self.mark = 100, 100

    def uses(self, *levels: int) -> None:
        for level in levels:
            self.resident, self.mark = level, max(self.mark, level)

    def read(self) -> dict[str, Number]:
        return {"process.rss_bytes": self.resident, PEAK: self.mark}

    def look(self) -> int:
        return self.resident

    def read_mark(self) -> int:
        return self.mark

    def reset(self) -> bool:
        self.mark = self.resident
        return True


@pytest.fixture
def memory() -> Memory:
    return Memory()


def seen(memory: Memory) -> PeakMemory:
    return PeakMemory(read=memory.read, look=memory.look, read_mark=memory.read_mark)


def test_the_first_reading_tells_the_peak_since_the_process_began(memory: Memory) -> None:
    memory.uses(900, 200)
    assert seen(memory).read()[PEAK] == 900


def test_a_new_high_is_seen_however_short_and_told_once(memory: Memory) -> None:
    peak = seen(memory)
    peak.read()
    memory.uses(500, 100)
    assert peak.read()[PEAK] == 500
    assert peak.read()[PEAK] == 100


def test_a_lower_peak_is_seen_when_a_reading_falls_into_it(memory: Memory) -> None:
    peak = seen(memory)
    memory.uses(500, 100)
    peak.read()
    memory.uses(300)
    peak.look()
    memory.uses(100)
    assert peak.read()[PEAK] == 300
    memory.uses(300, 100)
    assert peak.read()[PEAK] == 100, "between two readings, and no new high: not known"


def test_a_mark_that_another_tool_sets_back_tells_the_time_since_then(memory: Memory) -> None:
    memory.uses(900, 100)
    peak = seen(memory)
    peak.read()
    memory.reset()
    memory.uses(300, 100)
    assert peak.read()[PEAK] == 300
    assert peak.read()[PEAK] == 100


def test_what_we_rose_to_ourselves_is_no_peak_of_the_program(memory: Memory) -> None:
    peak = seen(memory)
    peak.read()
    memory.uses(700)
    peak.look()
    memory.uses(100)
    peak.restart()
    assert peak.read()[PEAK] == 100


def test_what_restarts_reads_the_mark_alone(memory: Memory) -> None:
    readings: list[None] = []

    def read() -> dict[str, Number]:
        readings.append(None)
        return memory.read()

    peak = PeakMemory(read=read, look=memory.look, read_mark=memory.read_mark)
    peak.read()
    memory.uses(700, 100)
    peak.restart()
    assert len(readings) == 1
    assert peak.read()[PEAK] == 100


def test_the_mark_alone_is_that_of_the_whole_reading() -> None:
    _rise(200 * MIB)
    assert read_peak_bytes() == read_process()[PEAK] == _mark()


def test_with_exact_peaks_every_peak_is_told(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "_reset_mark", memory.reset)
    peak = PeakMemory(exact=True, read=memory.read, look=memory.look)
    assert peak.exact
    told = []
    for level in (500, 300, 400, 300):
        memory.uses(level, 100)
        told.append(peak.read()[PEAK])
    assert told == [500, 300, 400, 300]


def test_where_the_mark_cannot_be_reset_peaks_are_told_as_seen(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "_reset_mark", lambda: False)
    peak = PeakMemory(exact=True, read=memory.read, look=memory.look)
    assert not peak.exact
    told = []
    for level in (500, 300):
        memory.uses(level, 100)
        told.append(peak.read()[PEAK])
    assert told == [500, 100]


def test_a_reset_that_fails_later_falls_back_to_what_is_seen(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "_reset_mark", memory.reset)
    peak = PeakMemory(exact=True, read=memory.read, look=memory.look)
    monkeypatch.setattr(peaks, "_reset_mark", lambda: False)
    memory.uses(500, 100)
    assert peak.read()[PEAK] == 500
    assert not peak.exact
    assert peak.read()[PEAK] == 100


def test_where_only_the_mark_is_known_it_is_told_while_it_rises() -> None:
    marks = iter((500, 500, 600))
    peak = PeakMemory(read=lambda: {PEAK: next(marks)}, look=lambda: None)
    peak.look()
    assert [peak.read().get(PEAK) for _ in range(3)] == [500, None, 600]


def _mark() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _rise(by_bytes: int) -> None:
    # Past the allocator, which might have some left from other tests.
    with mmap.mmap(-1, by_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        for at in range(0, by_bytes, mmap.PAGESIZE):
            pages[at] = 1


def test_the_kernel_s_mark_is_never_reset_unless_asked() -> None:
    _rise(200 * MIB)
    before = _mark()
    peak = PeakMemory()
    for _ in range(3):
        peak.read()
        peak.restart()
    assert _mark() >= before


def test_a_real_rise_shorter_than_any_reading_is_exact_when_asked() -> None:
    _rise(400 * MIB)
    peak = PeakMemory(exact=True)
    if not peak.exact:
        pytest.skip("this kernel does not let a process reset its own mark")
    level = peak.read()["process.rss_bytes"]
    _rise(200 * MIB)
    assert peak.read()[PEAK] - level == pytest.approx(200 * MIB, abs=8 * MIB)
    assert peak.read()[PEAK] - level < 8 * MIB
