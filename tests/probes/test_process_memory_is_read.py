"""Memory of the process, against what the kernel says by another way."""

from __future__ import annotations

import os
import sys
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
    parent = process._statm

    def child() -> int:
        before = read_private_bytes()
        block = bytearray(b"x") * (96 * MIB)
        own = read_private_bytes() - before
        return own + 0 * len(block)

    grown = _in_child(child)
    assert abs(grown - 96 * MIB) < 6 * MIB
    assert process._statm is parent
    # The child closed its copies of the descriptors, not ours.
    assert read_private_bytes() > 0
