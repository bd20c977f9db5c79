"""Process memory compared with other kernel interfaces, and the peak between two readings."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.recording import fresh_pages
from tests.probes.heaps import run_alone

from leakline.probes.memory import process_memory
from leakline.probes.memory.process_memory import (
    PEAK,
    PeakMemory,
    read_peak_bytes,
    read_private_bytes,
    read_process,
)
from leakline.snapshot import Number

MIB = 2**20


def _proc(folder: Path, status: str) -> Path:
    """Write the files of an old kernel, which does not report the parts of resident memory."""
    own = folder / "self"
    (own / "fd").mkdir(parents=True)
    (own / "status").write_text(status)
    (own / "statm").write_text("500 250 50 1 0 100 0\n")
    for number in range(9):
        (own / "fd" / str(number)).touch()
    return folder


def test_a_process_without_procfs_is_read_by_psutil(tmp_path: Path) -> None:
    samples = read_process(tmp_path)
    assert samples["process.rss_bytes"] > MIB
    assert "process.anon_bytes" not in samples


def test_without_procfs_and_psutil_only_the_peak_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert set(read_process(tmp_path)) == {"process.peak_bytes"}


def test_an_old_kernel_is_read_from_statm_and_by_counting_files(
    tmp_path: Path,
) -> None:
    samples = read_process(_proc(tmp_path, "VmRSS:\t    1000 kB\nThreads:\t3\n"))
    page = os.sysconf("SC_PAGE_SIZE")
    assert samples["process.anon_bytes"] == 200 * page
    assert samples["process.file_bytes"] == 50 * page
    assert samples["process.open_files"] == 8, "the folder is open itself while it is listed"
    assert "process.swap_bytes" not in samples
    shutil.rmtree(tmp_path / "self" / "fd")
    assert "process.open_files" not in read_process(tmp_path)


def test_the_parts_of_resident_memory_sum_to_it() -> None:
    samples = read_process()
    parts = sum(samples[f"process.{part}_bytes"] for part in ("anon", "file", "shared"))
    assert abs(parts - samples["process.rss_bytes"]) <= MIB
    assert samples["process.peak_bytes"] >= samples["process.rss_bytes"] - MIB
    assert samples["process.threads"] >= 1
    private = samples["process.anon_bytes"] + samples.get("process.swap_bytes", 0)
    assert abs(read_private_bytes() - private) < 2 * MIB


def test_private_bytes_follow_an_allocation() -> None:
    before = read_private_bytes()
    block = fresh_pages(64 * MIB)
    grown = read_private_bytes() - before
    block.close()
    assert abs(grown - 64 * MIB) < 4 * MIB
    assert abs(read_private_bytes() - before) < 4 * MIB


def _in_child(work: Callable[[], int]) -> int:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, str(work()).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = int(pipe.read())
    os.waitpid(pid, 0)
    return answer


def test_a_forked_child_reads_its_own_memory_from_the_first_call() -> None:
    read_private_bytes()
    parent = process_memory._own._statm._kept

    def child() -> int:
        before = read_private_bytes()
        block = fresh_pages(96 * MIB)
        return read_private_bytes() - before + 0 * len(block)

    assert abs(_in_child(child) - 96 * MIB) < 6 * MIB
    assert process_memory._own._statm._kept is parent
    # The child closed its own copies of the descriptors.
    assert read_private_bytes() > 0


def test_a_forked_child_reports_its_own_threads_and_files() -> None:
    files = read_process()["process.open_files"]
    started, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), done.wait()))
    thread.start()
    started.wait()
    try:
        assert read_process()["process.threads"] >= 2
        assert _in_child(lambda: int(read_process()["process.threads"])) == 1
    finally:
        done.set()
        thread.join()

    def child() -> int:
        before = read_process()["process.open_files"]
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
        return int(read_process()["process.open_files"] - before) + 0 * len(held)

    assert _in_child(child) == 7
    assert read_process()["process.open_files"] == files


# Run in its own process: threads left by other tests may open files meanwhile.
COUNTS_FILES = """
import os
from leakline.probes.memory.process_memory import read_process
read_process()
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
files = read_process()["process.open_files"]
listed = len(os.listdir("/proc/self/fd")) - 1
for descriptor in held:
    os.close(descriptor)
assert files == listed == read_process()["process.open_files"] + 5
"""


def test_open_files_are_those_in_the_folder(tmp_path: Path) -> None:
    run_alone(tmp_path, COUNTS_FILES)


# Closes all it can, as a program that becomes a daemon does.
CLOSES_ALL = """
import os, sys
from leakline.probes.memory.process_memory import read_peak_bytes, read_private_bytes, read_process
before = read_process()
read_private_bytes()
os.closerange(3, 256)
theirs = [os.open(sys.argv[1], os.O_RDONLY) for _ in range(8)]
after = read_process()
assert set(after) == set(before), after
assert abs(after["process.rss_bytes"] - before["process.rss_bytes"]) < 2**23, after
assert abs(read_private_bytes() - before["process.anon_bytes"]) < 2**23
assert read_peak_bytes() >= after["process.rss_bytes"] - 2**20
assert [os.pread(one, 5, 0) for one in theirs] == [b"hello"] * 8
"""


def test_a_program_that_closes_our_descriptors_is_still_read(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("hello, this is no status of any process\n")
    run_alone(tmp_path, CLOSES_ALL, str(theirs))


def test_a_status_longer_than_the_buffer_is_read_completely(tmp_path: Path) -> None:
    groups = " ".join(str(number) for number in range(20_000))
    last = "RssAnon:\t 700 kB\n"
    kept = process_memory._OwnFiles(
        _proc(tmp_path, f"Groups:\t{groups}\nVmRSS:\t    1000 kB\n{last}")
    )
    for _ in range(2):
        status = kept.read_status()
        assert status is not None
        assert status.endswith(last.encode())


# -- peaks


class Memory:
    """A process whose kernel keeps a peak mark: ``uses`` sets resident memory and the high point before it."""

    def __init__(self) -> None:
        self.resident, self.mark = 100, 100
        self.readings = 0

    def uses(self, *levels: int) -> None:
        for level in levels:
            self.resident, self.mark = level, max(self.mark, level)

    def read(self) -> dict[str, Number]:
        self.readings += 1
        return {"process.rss_bytes": self.resident, PEAK: self.mark}

    def look(self) -> int:
        return self.resident

    def read_mark(self) -> int:
        return self.mark

    def reset(self) -> bool:
        self.mark = self.resident
        return True

    def seen(self, *, exact: bool = False) -> PeakMemory:
        return PeakMemory(exact=exact, read=self.read, look=self.look, read_mark=self.read_mark)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_the_first_reading_has_the_peak_since_the_process_began(memory: Memory) -> None:
    memory.uses(900, 200)
    assert memory.seen().read()[PEAK] == 900


def test_every_new_high_is_seen_and_lower_peaks_if_read_in_time(
    memory: Memory,
) -> None:
    peak = memory.seen()
    peak.read()
    memory.uses(500, 100)
    assert peak.read()[PEAK] == 500
    assert peak.read()[PEAK] == 100, "reported once"
    memory.uses(300)
    peak.look()
    memory.uses(100)
    assert peak.read()[PEAK] == 300
    memory.uses(300, 100)
    assert peak.read()[PEAK] == 100, "between two readings, and no new high: not known"


def test_a_mark_reset_by_another_tool_gives_the_peak_since_then(memory: Memory) -> None:
    memory.uses(900, 100)
    peak = memory.seen()
    peak.read()
    memory.reset()
    memory.uses(300, 100)
    assert peak.read()[PEAK] == 300
    assert peak.read()[PEAK] == 100


def test_memory_used_by_leakline_is_not_a_peak_of_the_program(memory: Memory) -> None:
    peak = memory.seen()
    peak.read()
    memory.uses(700)
    peak.look()
    memory.uses(100)
    peak.restart()
    assert memory.readings == 1, "the mark alone is read"
    assert peak.read()[PEAK] == 100


def test_exact_peaks_are_reported_until_the_mark_cannot_be_reset(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "_reset_mark", memory.reset)
    peak = memory.seen(exact=True)
    assert peak.exact
    for level in (500, 300, 400, 300):
        memory.uses(level, 100)
        assert peak.read()[PEAK] == level
    monkeypatch.setattr(process_memory, "_reset_mark", lambda: False)
    memory.uses(500, 100)
    assert peak.read()[PEAK] == 500
    assert not peak.exact
    assert peak.read()[PEAK] == 100


def test_without_resets_peaks_are_reported_as_seen(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "_reset_mark", lambda: False)
    peak = memory.seen(exact=True)
    assert not peak.exact
    for level, told in ((500, 500), (300, 100)):
        memory.uses(level, 100)
        assert peak.read()[PEAK] == told


def test_if_only_the_mark_is_known_it_is_reported_while_it_rises() -> None:
    marks = iter((500, 500, 600))
    peak = PeakMemory(read=lambda: {PEAK: next(marks)}, look=lambda: None)
    peak.look()
    assert [peak.read().get(PEAK) for _ in range(3)] == [500, None, 600]


def _mark() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_the_kernels_mark_is_never_reset_unless_requested() -> None:
    fresh_pages(200 * MIB).close()
    before = _mark()
    assert read_peak_bytes() == read_process()[PEAK] == before
    peak = PeakMemory()
    for _ in range(3):
        peak.read()
        peak.restart()
    assert _mark() >= before


def test_a_real_short_rise_is_measured_exactly_if_requested() -> None:
    fresh_pages(400 * MIB).close()
    peak = PeakMemory(exact=True)
    if not peak.exact:
        pytest.skip("this kernel does not let a process reset its own mark")
    level = peak.read()["process.rss_bytes"]
    fresh_pages(200 * MIB).close()
    assert peak.read()[PEAK] - level == pytest.approx(200 * MIB, abs=8 * MIB)
    assert peak.read()[PEAK] - level < 8 * MIB
