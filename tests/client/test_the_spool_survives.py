"""The spool: what was written whole is read back, what was torn or damaged is not, and it is bounded."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from leakline.batches import SNAPSHOTS_PER_BATCH, consecutive, merge
from leakline.descriptor import opened
from leakline.errors import SpoolError
from leakline.outbox import SafeOutbox, SpoolMemory
from leakline.snapshot import (
    Batch,
    Census,
    Event,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    header_to_wire,
)
from leakline.spool import (
    FRAME,
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
from leakline.spool import HEADER as HEADER_RECORD
from leakline.spool_file import SpoolFile

HEADER = RunHeader("run-1", "project", "name", "generation", 25, 100.0, ("evaluate",), ("tag",))
PROCESS = ProcessIdentity("instance-1", rank=0, pid=1, host="here")
SERVER = "http://127.0.0.1:8765"


def snapshot(sequence: int, kind: str = "phase_end", padding: int = 0) -> Snapshot:
    phase = "evaluate" if kind == "phase_end" else None
    samples = {
        "process.rss_bytes": 1000 + sequence,
        **{f"type.T{i}.count": i for i in range(padding)},
    }
    return Snapshot(sequence, 1.0, 2.0, 0, phase, f"label {sequence}", kind, samples)


def batch(*sequences: int, kind: str = "phase_end", padding: int = 0) -> Batch:
    return Batch(PROCESS, tuple(snapshot(n, kind, padding) for n in sequences))


def spool(tmp_path: Path, limit: int = 2**20) -> SpoolFile:
    return SpoolFile(tmp_path / "run-1" / "instance-1.spool", HEADER, PROCESS, limit)


def given_out(outbox: SafeOutbox | SpoolFile) -> list[int]:
    """What a server that accepts everything gets."""
    given: list[int] = []
    while outbox.pending():
        batches, mark = outbox.unsent()
        given += [s.sequence for b in batches for s in b.snapshots]
        outbox.accept(mark, SERVER)
    return given


def sequences(path: Path) -> list[int]:
    return [s.sequence for b in read_batches(path) for s in b.snapshots]


def test_a_file_that_is_no_spool_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "other.spool"
    path.write_bytes(b"hello, I am a text")
    with pytest.raises(SpoolError, match="is not a Leakline spool"):
        list(read_records(path))


def test_a_missing_file_is_told_with_its_path(tmp_path: Path) -> None:
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


def test_reading_goes_on_after_a_record_with_an_absurd_length(tmp_path: Path) -> None:
    whole = spool(tmp_path)
    whole.append(batch(1))
    whole.append(batch(2))
    first, second, third = list(read_records(whole.path))
    data = bytearray(whole.path.read_bytes())
    struct.pack_into("<I", data, second.start + FRAME.size - 8, 2**31)
    whole.path.write_bytes(data)
    assert [r.start for r in read_records(whole.path)] == [first.start, third.start]


def test_everything_of_a_snapshot_comes_back(tmp_path: Path) -> None:
    full = replace(
        snapshot(1),
        events=(Event(1, 5.0, "mark", "here", 0, None, {"link": None}),),
        census=Census(1, "full", 1.0, 10, (("list", 4, None),)),
    )
    file = spool(tmp_path)
    file.append(Batch(PROCESS, (full,), {"thinned": 2}))
    (read,) = read_batches(file.path)
    assert read == Batch(PROCESS, (full,), {"thinned": 2})
    assert read_header(file.path) == (HEADER, PROCESS)


def test_a_killed_process_has_no_end(tmp_path: Path) -> None:
    file = spool(tmp_path)
    assert read_end(file.path) is None
    file.append_end({"state": "failed", "reason": "ValueError"})
    assert read_end(file.path) == {"state": "failed", "reason": "ValueError"}


def test_sent_snapshots_are_not_given_again(tmp_path: Path) -> None:
    file = spool(tmp_path)
    file.append(batch(1, 2))
    batches, mark = file.unsent()
    assert file.pending()
    file.accept(mark, SERVER)
    assert not file.pending()
    file.append(batch(3))
    again, _ = file.unsent()
    assert [b.first_sequence for b in (*batches, *again)] == [1, 3]


def test_many_small_records_travel_as_one_batch(tmp_path: Path) -> None:
    file = spool(tmp_path)
    for n in range(1, SNAPSHOTS_PER_BATCH + 51):
        file.append(batch(n))
    (first,), mark = file.unsent()
    assert len(first.snapshots) == SNAPSHOTS_PER_BATCH
    file.accept(mark, SERVER)
    (second,), _ = file.unsent()
    assert second.first_sequence == SNAPSHOTS_PER_BATCH + 1


def test_a_batch_never_jumps_over_a_missing_sequence_number() -> None:
    merged = merge([batch(1, 2), batch(3), batch(7), batch(8)])
    assert [[s.sequence for s in b.snapshots] for b in merged] == [[1, 2, 3], [7, 8]]
    assert [len(run) for run in consecutive([snapshot(1), snapshot(3), snapshot(4)])] == [1, 2]


@pytest.mark.parametrize("damage", [b"", b"12", b"0000000000000000", b"garbage\xff"])
def test_a_torn_mark_means_that_everything_is_sent_again(tmp_path: Path, damage: bytes) -> None:
    file = spool(tmp_path)
    write_ack(file.path, 500, SERVER)
    assert read_ack(file.path, SERVER) == 500
    ack_path(file.path).write_bytes(damage)
    assert read_ack(file.path, SERVER) == 0


def test_a_mark_counts_for_its_own_server_only(tmp_path: Path) -> None:
    file = spool(tmp_path)
    write_ack(file.path, 500, SERVER)
    assert read_ack(file.path, "http://elsewhere:1") == 0


def test_a_full_spool_is_thinned_before_anything_is_dropped(tmp_path: Path) -> None:
    file = spool(tmp_path, limit=60_000)
    last = 0
    while not file.lost():
        last += 1
        file.append(
            batch(last, kind="generation_end" if last % 10 == 0 else "phase_end", padding=20)
        )
    kept = sequences(file.path)
    assert file.path.stat().st_size <= 60_000
    assert file.lost() == {"spool_thinned": last - len(kept)}
    assert [n for n in range(1, last + 1) if n % 10 == 0 and n not in kept] == []


def test_a_spool_stays_within_its_bound_and_every_loss_is_counted(tmp_path: Path) -> None:
    file = spool(tmp_path, limit=30_000)
    for n in range(1, 1001):
        file.append(batch(n, kind="generation_end", padding=20))
        assert file.path.stat().st_size <= 30_000
    kept = sequences(file.path)
    assert kept[-1] == 1000
    assert sum(file.lost().values()) == 1000 - len(kept)
    assert read_header(file.path)[0] == HEADER


def test_what_was_sent_stays_sent_when_the_spool_is_rewritten(tmp_path: Path) -> None:
    file = spool(tmp_path, limit=30_000)
    given: list[int] = []
    for n in range(1, 301):
        file.append(batch(n, padding=20))
        batches, mark = file.unsent()
        given.extend(s.sequence for b in batches for s in b.snapshots)
        file.accept(mark, SERVER)
    assert given == list(range(1, 301))
    assert file.lost() == {}
    assert read_ack(file.path, SERVER) in (0, file.path.stat().st_size)


def test_without_a_file_the_newest_snapshots_wait_in_memory() -> None:
    memory = SpoolMemory(limit=10)
    for n in range(1, 31):
        memory.append(batch(n))
    (waiting,), mark = memory.unsent()
    assert [s.sequence for s in waiting.snapshots] == list(range(21, 31))
    assert memory.lost() == {"memory_full": 20}
    memory.accept(mark, SERVER)
    assert not memory.pending()


def test_a_deleted_spool_is_noticed_once_and_recording_goes_on_in_memory(tmp_path: Path) -> None:
    told: list[str] = []
    outbox = SafeOutbox(spool(tmp_path), told.append)
    outbox.append(batch(1))
    (tmp_path / "run-1" / "instance-1.spool").unlink()
    outbox.append(batch(2))
    outbox.append(batch(3))
    assert len(told) == 1
    assert "deleted" in told[0]
    assert given_out(outbox) == [1, 2, 3]
    assert not outbox.pending()
    assert outbox.waiting() == 0


def test_a_full_disk_is_noticed_once_and_recording_goes_on_in_memory(tmp_path: Path) -> None:
    told: list[str] = []
    file = spool(tmp_path)
    outbox = SafeOutbox(file, told.append)
    file._fd.close()
    file._fd = opened(Path("/dev/full"), os.O_WRONLY)
    outbox.append(batch(1))
    outbox.append(batch(2))
    assert len(told) == 1
    assert outbox.pending()


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


def test_a_program_ends_in_time_though_its_spool_can_not_be_written(tmp_path: Path) -> None:
    environment = {**os.environ, "LEAKLINE_DIR": str(tmp_path), "LEAKLINE_MODE": "offline"}
    done = subprocess.run(
        [sys.executable, "-c", HANGING], env=environment, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 2.6, "1.8, and what a machine shared with others takes"


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
