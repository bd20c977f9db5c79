"""Memory of the process, against what the kernel says by another way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leakline.probes import process
from leakline.probes.process import read_private_bytes, read_process

MIB = 2**20


def test_a_process_without_procfs_is_read_by_psutil(tmp_path: Path) -> None:
    samples = read_process(tmp_path)
    assert samples["process.rss_bytes"] > MIB
    assert "process.anon_bytes" not in samples


def test_without_procfs_and_psutil_only_the_peak_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert set(read_process(tmp_path)) == {"process.peak_bytes"}


def test_an_old_kernel_without_the_split_gives_it_from_statm(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.mkdir()
    (own / "status").write_text("VmRSS:\t    1000 kB\nThreads:\t3\n")
    (own / "statm").write_text("500 250 50 1 0 100 0\n")
    samples = read_process(tmp_path)
    page = os.sysconf("SC_PAGE_SIZE")
    assert samples["process.anon_bytes"] == 200 * page
    assert samples["process.file_bytes"] == 50 * page
    assert "process.swap_bytes" not in samples


def test_the_parts_of_resident_memory_sum_to_it() -> None:
    samples = read_process()
    parts = sum(samples[f"process.{part}_bytes"] for part in ("anon", "file", "shared"))
    assert abs(parts - samples["process.rss_bytes"]) <= MIB
    assert samples["process.peak_bytes"] >= samples["process.rss_bytes"] - MIB
    assert samples["process.threads"] >= 1


def test_private_bytes_follow_an_allocation() -> None:
    before = read_private_bytes()
    block = bytearray(os.urandom(1)) * (64 * MIB)
    grown = read_private_bytes() - before
    del block
    assert abs(grown - 64 * MIB) < 4 * MIB
    assert abs(read_private_bytes() - before) < 4 * MIB


def test_private_bytes_are_the_anonymous_bytes_and_swap() -> None:
    samples = read_process()
    both = samples["process.anon_bytes"] + samples.get("process.swap_bytes", 0)
    assert abs(read_private_bytes() - both) < 2 * MIB


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
    parent = process._own._statm._kept

    def child() -> int:
        before = read_private_bytes()
        block = bytearray(b"x") * (96 * MIB)
        own = read_private_bytes() - before
        return own + 0 * len(block)

    grown = _in_child(child)
    assert abs(grown - 96 * MIB) < 6 * MIB
    assert process._own._statm._kept is parent
    # The child closed its copies of the descriptors, not ours.
    assert read_private_bytes() > 0


def test_a_forked_child_tells_its_own_threads_and_files() -> None:
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


def test_open_files_are_those_in_the_folder() -> None:
    read_process()
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    told = read_process()["process.open_files"]
    # The folder is open itself while it is listed.
    listed = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
    for descriptor in held:
        os.close(descriptor)
    assert told == listed
    assert read_process()["process.open_files"] == told - 5


def test_where_the_folder_has_no_size_its_entries_are_counted(tmp_path: Path) -> None:
    own = tmp_path / "self"
    (own / "fd").mkdir(parents=True)
    (own / "status").write_text("VmRSS:\t    1000 kB\nThreads:\t3\n")
    (own / "statm").write_text("500 250 50 1 0 100 0\n")
    for number in range(9):
        (own / "fd" / str(number)).touch()
    assert read_process(tmp_path)["process.open_files"] == 8


# Run on its own: it closes what it can, as a program does that becomes a daemon.
CLOSES_ALL = """
import os, sys
from leakline.probes.process import read_peak_bytes, read_private_bytes, read_process
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
print("right")
"""


def test_a_program_that_closes_our_descriptors_is_read_and_keeps_its_own(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("hello, this is no status of any process\n")
    done = subprocess.run(
        [sys.executable, "-c", CLOSES_ALL, str(theirs)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("right\n", "")


def test_a_status_longer_than_is_kept_is_read_to_its_end(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.mkdir()
    groups = " ".join(str(number) for number in range(20_000))
    (own / "status").write_text(f"Groups:\t{groups}\nVmRSS:\t    1000 kB\nRssAnon:\t 700 kB\n")
    kept = process._OwnFiles(tmp_path)
    for _ in range(2):
        status = kept.read_status()
        assert status is not None
        assert status.endswith(b"RssAnon:\t 700 kB\n")


def test_a_reading_costs_about_what_one_call_of_the_kernel_does() -> None:
    def cost(work: Callable[[], object]) -> int:
        work()
        times = []
        for _ in range(400):
            started = time.thread_time_ns()
            work()
            times.append(time.thread_time_ns() - started)
        return sorted(times)[len(times) // 4]

    status = Path("/proc/self/status")
    assert cost(read_process) < 3 * cost(status.read_bytes)
