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
    read_mappings,
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


# -- libraries and mappings


SQLITE = """
import sys
from leakline.probes.memory.process_memory import read_pyarrow, read_sqlite
assert read_sqlite() == read_pyarrow() == {}
assert not {"_sqlite3", "pyarrow", "pyarrow.lib"} & set(sys.modules)
import sqlite3
database = sqlite3.connect(":memory:")
database.execute("create table steps (frame blob)")
before = read_sqlite()["library.sqlite.bytes"]
database.executemany("insert into steps values (zeroblob(?))", [(2**20,)] * 8)
gained = read_sqlite()["library.sqlite.bytes"] - before
assert 8 * 2**20 <= gained < 9 * 2**20, gained
database.close()
assert read_sqlite().get("library.sqlite.bytes", 0) < before
"""


def test_sqlite_is_read_only_if_the_program_has_loaded_it(tmp_path: Path) -> None:
    run_alone(tmp_path, SQLITE)


# SQLite is shut down, because it can only be configured before its first use.
WITHOUT_STATISTICS = """
import _sqlite3, ctypes
from leakline.probes.memory.process_memory import read_sqlite
library = ctypes.CDLL(_sqlite3.__file__)
assert library.sqlite3_shutdown() == 0
assert library.sqlite3_config(9, 0) == 0
database = _sqlite3.connect(":memory:")
database.execute("create table steps (frame blob)")
assert read_sqlite() == {}
"""


def test_sqlite_without_statistics_is_unknown_and_not_zero(tmp_path: Path) -> None:
    run_alone(tmp_path, WITHOUT_STATISTICS)


PYARROW = """
import sys, types
from leakline.probes.memory.process_memory import read_pyarrow
sys.modules["pyarrow"] = types.ModuleType("pyarrow")
assert read_pyarrow() == {}
del sys.modules["pyarrow"]
import pyarrow
before = read_pyarrow()["library.pyarrow.bytes"]
kept = pyarrow.allocate_buffer(8 * 2**20)
assert read_pyarrow()["library.pyarrow.bytes"] - before == 8 * 2**20
del kept
assert read_pyarrow()["library.pyarrow.bytes"] == before
"""


def test_the_pool_of_pyarrow_is_read_once_pyarrow_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    run_alone(tmp_path, PYARROW)


# A thread writes to the unused part of its stack, as a deep recursion would.
MAPPED = """
import ctypes, mmap, sys, threading
from leakline.probes.memory.process_memory import read_mappings, read_private_bytes
MIB = 2**20
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.pthread_self.restype = ctypes.c_void_p
kept, done = [], threading.Event()
def stacks():
    threading.stack_size(16 * MIB)
    ready = threading.Semaphore(0)
    def work():
        attributes, lowest, size = (ctypes.c_char * 256)(), ctypes.c_void_p(), ctypes.c_size_t()
        assert libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes) == 0
        libc.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(size))
        ctypes.memset(lowest.value + MIB, 1, 4 * MIB)
        ready.release()
        done.wait()
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(4):
        ready.acquire()
def heap():
    for _ in range(256):
        ctypes.memset(libc.malloc(ctypes.c_size_t(2**16)), 1, 2**16)
def anonymous():
    kept.append(mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    kept[-1][:] = spare
def files():
    with open(sys.argv[1], "r+b") as file:
        kept.append(mmap.mmap(file.fileno(), 16 * MIB, flags=mmap.MAP_PRIVATE))
    kept[-1][:] = spare
spare = bytes(1) * 16 * MIB
for grow in (stacks, heap, anonymous, files):
    before = read_mappings()
    assert abs(sum(before.values()) - read_private_bytes()) < MIB, before
    grow()
    gained = {name: size - before[name] for name, size in read_mappings().items()}
    for name, size in gained.items():
        expected = 16 * MIB if name == f"mapping.{grow.__name__}.bytes" else 0
        assert abs(size - expected) < 2 * MIB, (grow, gained)
done.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists mappings with their sizes")
def test_growth_is_found_in_the_kind_of_mapping_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_bytes(bytes(16 * MIB))
    run_alone(tmp_path, MAPPED, str(file))


def _mapping(addresses: str, permissions: str, kib: int, name: str = "", flags: str = "") -> str:
    return (
        f"{addresses} {permissions} 00000000 00:00 0 {name}\nSize: 99 kB\nRss: {kib} kB\n"
        f"Anonymous: {kib} kB\nSwap: 1 kB\nSwapPss: 1 kB\nVmFlags: rd wr{flags} \n"
    )


def test_stacks_are_distinguished_from_heaps_of_threads(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    assert read_mappings(tmp_path) == {}
    stacks = [
        _mapping("7f0000fff000-7f0001000000", "---p", 0), _mapping("7f0001000000-7f0001800000", "rw-p", 10),
        _mapping("7f0002000000-7f0003000000", "rw-p", 20, flags=" gu"),
        _mapping("7ffd00000000-7ffd00021000", "rw-p", 30, "[stack]"),
    ]  # fmt: skip
    others = [
        # The unused end of one heap of a thread is followed by another heap.
        _mapping("7f0007fff000-7f0008000000", "---p", 0), _mapping("7f0008000000-7f0009000000", "rw-p", 100),
        # A reservation this large is not a guard.
        _mapping("7f000a000000-7f000b000000", "---p", 0), _mapping("7f000b000000-7f000b001000", "rw-p", 200),
        _mapping("7f000c000000-7f000c001000", "rw-p", 400, "[anon:cache]"),
        _mapping("7fff00000000-7fff00002000", "r-xp", 800, "[vdso]"),
    ]  # fmt: skip
    (tmp_path / "self" / "smaps").write_text("".join((*stacks, *others)))
    sizes = read_mappings(tmp_path)
    # Each mapping has 1 KiB in swap.
    assert sizes["mapping.stacks.bytes"] == (10 + 20 + 30 + 3) * 1024
    assert sizes["mapping.anonymous.bytes"] == (100 + 200 + 400 + 6) * 1024
    assert sizes["mapping.heap.bytes"] == sizes["mapping.files.bytes"] == 0


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
