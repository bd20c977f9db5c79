"""The spool: what was written whole is read back, what was torn or damaged is not, and who has it is known."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.client.spools import (
    END,
    HEADER,
    PROCESS,
    SERVER,
    batch,
    given_out,
    numbers,
    sequences,
    snapshot,
    spool,
)

from leakline.errors import SpoolError
from leakline.runtime.file_descriptor import opened
from leakline.snapshot import Batch, Census, Event, header_to_wire
from leakline.transport.batching import SNAPSHOTS_PER_BATCH, consecutive, merge
from leakline.transport.recorder import SafeOutbox, SpoolMemory
from leakline.transport.spool_file import SpoolFile
from leakline.transport.spool_format import HEADER as HEADER_RECORD
from leakline.transport.spool_format import (
    MAGIC,
    ack_path,
    encode_record,
    is_live,
    read_ack,
    read_batches,
    read_end,
    read_header,
    read_origin,
    read_records,
    write_ack,
)


def test_a_file_that_is_missing_or_no_spool_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "other.spool"
    path.write_bytes(b"hello, I am a text")
    with pytest.raises(SpoolError, match="is not a Leakline spool"):
        list(read_records(path))
    with pytest.raises(SpoolError, match=r"gone\.spool"):
        read_header(tmp_path / "gone.spool")


def test_two_processes_never_write_into_one_file(tmp_path: Path) -> None:
    spool(tmp_path)
    with pytest.raises(FileExistsError):
        spool(tmp_path)


def test_a_tail_torn_at_any_byte_loses_only_the_torn_record(tmp_path: Path) -> None:
    whole = spool(tmp_path)
    for n in (1, 2, 3):
        whole.append(batch(n))
    whole.append_end({"state": "finished"})
    data = whole.path.read_bytes()
    records = list(read_records(whole.path))
    torn = tmp_path / "torn.spool"
    for length in range(len(data)):
        torn.write_bytes(data[:length])
        read = list(read_records(torn))
        assert [r.end for r in read] == [r.end for r in records if r.end <= length]


def test_damage_at_any_byte_never_yields_a_wrong_record(tmp_path: Path) -> None:
    whole = spool(tmp_path)
    for n in (1, 2):
        whole.append(batch(n))
    data = whole.path.read_bytes()
    known = {record.stored for record in read_records(whole.path)}
    broken = tmp_path / "broken.spool"
    for at in range(len(MAGIC), len(data)):
        broken.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        read = [record.stored for record in read_records(broken)]
        assert set(read) <= known
        assert len(read) == 2, "only the damaged record is lost"


def test_everything_of_a_snapshot_comes_back(tmp_path: Path) -> None:
    full = replace(
        snapshot(1),
        events=(Event(1, 5.0, "mark", "here", 0, None, {"link": None}),),
        census=Census(1, "full", 1.0, 10, (("list", 4, None),)),
    )
    file = spool(tmp_path)
    file.append(Batch(PROCESS, (full,), {"thinned": 2}))
    assert read_end(file.path) is None
    file.append_end(END)
    assert read_end(file.path) == END
    (read,) = read_batches(file.path)
    assert read == Batch(PROCESS, (full,), {"thinned": 2})
    assert read_header(file.path) == (HEADER, PROCESS)


def test_many_small_records_travel_as_one_batch_and_once(tmp_path: Path) -> None:
    file = spool(tmp_path)
    for n in range(1, SNAPSHOTS_PER_BATCH + 51):
        file.append(batch(n))
    (first,), mark = file.unsent()
    assert len(first.snapshots) == SNAPSHOTS_PER_BATCH
    file.accept(mark, SERVER)
    assert file.pending()
    assert given_out(file) == list(range(SNAPSHOTS_PER_BATCH + 1, SNAPSHOTS_PER_BATCH + 51))
    assert not file.pending()
    file.append(batch(1000))
    assert given_out(file) == [1000]


def test_a_batch_never_jumps_over_a_missing_sequence_number() -> None:
    merged = merge([batch(1, 2), batch(3), batch(7), batch(8)])
    assert [[s.sequence for s in b.snapshots] for b in merged] == [[1, 2, 3], [7, 8]]
    assert [len(run) for run in consecutive([snapshot(1), snapshot(3), snapshot(4)])] == [1, 2]


def test_a_mark_counts_where_it_is_whole_and_for_its_own_server(tmp_path: Path) -> None:
    file = spool(tmp_path)
    write_ack(file.path, 500, SERVER)
    assert read_ack(file.path, SERVER) == 500
    assert read_ack(file.path, "http://elsewhere:1") == 0
    for damage in (b"", b"12", b"0000000000000000", b"garbage\xff"):
        ack_path(file.path).write_bytes(damage)
        assert read_ack(file.path, SERVER) == 0


def test_without_a_file_the_newest_snapshots_wait_in_memory() -> None:
    memory = SpoolMemory(limit=10)
    for n in range(1, 31):
        memory.append(batch(n))
    (waiting,), mark = memory.unsent()
    assert numbers([waiting]) == list(range(21, 31))
    assert memory.lost() == {"memory_full": 20}
    memory.accept(mark, SERVER)
    assert not memory.pending()


@pytest.mark.parametrize("why", ["deleted", "No space left"])
def test_a_disk_that_fails_is_noticed_once_and_recording_goes_on_in_memory(
    tmp_path: Path, why: str
) -> None:
    told: list[str] = []
    file = spool(tmp_path)
    outbox = SafeOutbox(file, told.append)
    outbox.append(batch(1))
    if why == "deleted":
        file.path.unlink()
    else:
        file._fd.close()
        file._fd = opened(Path("/dev/full"), os.O_WRONLY)
    outbox.append(batch(2))
    outbox.append(batch(3))
    assert len(told) == 1
    assert why in told[0]
    given = given_out(outbox)
    assert given[-2:] == [2, 3]
    assert why != "deleted" or (given, outbox.waiting()) == ([1, 2, 3], 0)


def test_the_header_tells_where_a_run_reported_to(tmp_path: Path) -> None:
    online = SpoolFile(tmp_path / "online.spool", HEADER, PROCESS, server=SERVER)
    assert read_origin(online.path) == SERVER
    assert read_origin(spool(tmp_path).path) is None
    before = tmp_path / "of_an_older_client.spool"
    told = {"version": 1, "run": header_to_wire(HEADER), "process": asdict(PROCESS)}
    before.write_bytes(MAGIC + encode_record(HEADER_RECORD, told))
    assert read_origin(before) is None
    assert read_header(before) == (HEADER, PROCESS)


def test_a_spool_is_live_as_long_as_its_process_has_it_open(tmp_path: Path) -> None:
    file = spool(tmp_path)
    assert is_live(file.path) is True
    assert is_live(file.path) is True
    file.close()
    assert is_live(file.path) is False
    assert is_live(tmp_path / "gone.spool") is None


@pytest.mark.alone
def test_closing_waits_no_longer_than_it_may_for_a_write_that_hangs(tmp_path: Path) -> None:
    outbox = SafeOutbox(spool(tmp_path), print)
    assert outbox.file is not None
    with outbox.file._lock:
        started = time.monotonic()
        outbox.close(0.05)
        assert 0.04 < time.monotonic() - started < 1
    outbox.append(batch(1))
    assert sequences(outbox.file.path) == [1], "it was left open for the one that writes"
    outbox.close(0.05)
    assert is_live(outbox.file.path) is False


HANGING = """
import os, sys, time
import leakline

run = leakline.init()
spool = os.stat(run._chain.spool_path).st_ino
real = os.write

def write(fd, data):
    if os.fstat(fd).st_ino == spool:
        time.sleep(30)
    return real(fd, data)

os.write = write
with run.phase("train"):
    pass
started = time.monotonic()
run.finish()
print(time.monotonic() - started)
"""


def test_a_program_ends_in_time_though_its_spool_can_not_be_written(start: Any) -> None:
    process = start(HANGING, LEAKLINE_MODE="offline")
    assert float(process.communicate(timeout=60)[0]) < 2.6, (
        "1.8, and what a machine shared with others takes"
    )


def test_a_child_that_outlives_the_process_does_not_keep_its_spool_alive(tmp_path: Path) -> None:
    file = spool(tmp_path)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    file.close()
    try:
        deadline = time.monotonic() + 10
        while is_live(file.path):
            assert time.monotonic() < deadline, "the child keeps the lock"
    finally:
        os.close(release)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = spool(tmp_path)
    file.append(batch(1))
    assert is_live(file.path) is None
    assert sequences(file.path) == [1]


def test_who_asks_at_the_wrong_moment_does_not_keep_the_lock_from_the_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run-1" / "instance-1.spool"
    real = fcntl.flock
    asked: list[int] = []

    def disturbed(fd: int, operation: int) -> None:
        asked.append(operation)
        if len(asked) == 1:
            raise BlockingIOError(errno.EWOULDBLOCK, "somebody asks")
        real(fd, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", disturbed)
        file = spool(tmp_path)
    assert is_live(path) is False
    file.append(batch(1))
    assert is_live(path) is True
