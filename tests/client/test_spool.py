"""The spool: complete records are read back, torn or damaged ones are not, and its owner is known. Also the order in
which a full spool drops records, and that a kill during a rewrite leaves a complete file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import FakeServer
from tests.client.spools import (
    END,
    HEADER,
    KIB,
    PROCESS,
    SERVER,
    append_until,
    batch,
    given_out,
    numbers,
    rewritten,
    sequences,
    snapshot,
    spool,
)

from leakline.errors import SpoolError
from leakline.runtime import threads
from leakline.snapshot import Batch, Census, Event, Holder, Snapshot, header_to_wire
from leakline.transport import spool_file, spool_trimming
from leakline.transport.batching import SNAPSHOTS_PER_BATCH, consecutive, merge
from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_file import Outbox, SpoolFile, SpoolMemory
from leakline.transport.spool_format import (
    FRAME,
    MAGIC,
    Record,
    ack_path,
    collect,
    encode_batch,
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
from leakline.transport.spool_format import HEADER as HEADER_RECORD
from leakline.transport.spool_trimming import (
    FIXED,
    FREQUENT,
    LASTING,
    STAYS,
    THINNED,
    Contents,
    choose,
)
from leakline.transport.spool_upload import upload, uploading


def test_a_missing_file_or_one_that_is_not_a_spool_is_a_clear_error(tmp_path: Path) -> None:
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
        whole.append(batch(snapshot(n, samples={"process.rss_bytes": n})))
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
        whole.append(batch(snapshot(n, samples={"process.rss_bytes": n})))
    data = whole.path.read_bytes()
    known = {record.stored for record in read_records(whole.path)}
    broken = tmp_path / "broken.spool"
    for at in range(len(MAGIC), len(data)):
        broken.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        read = [record.stored for record in read_records(broken)]
        assert set(read) <= known
        assert len(read) == 2, "only the damaged record is lost"


def test_all_fields_of_a_snapshot_are_read_back(tmp_path: Path) -> None:
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


def test_a_spool_of_version_1_is_read_uploaded_and_thinned(
    tmp_path: Path, server: FakeServer
) -> None:
    path = tmp_path / "old.spool"
    path.write_bytes((Path(__file__).parents[1] / "data" / "version_1.spool").read_bytes())
    _, process = read_header(path)
    assert (process.instance, process.rank, process.attempt) == ("old", 1, 2)
    found = [snapshot for each in read_batches(path) for snapshot in each.snapshots]
    assert [s.sequence for s in found] == [0, 1, 2, 3, 5]
    assert [s.kind for s in found] == [
        "baseline",
        "phase_end",
        "generation_end",
        "sample",
        "finish",
    ]
    assert [s.generation for s in found] == [None, 1, 2, 3, 5]
    assert (found[1].phase, found[1].label, found[1].monotonic) == ("train", "at 1", 101.5)
    assert found[0].samples == {"process.rss_bytes": 2**30, "python.objects": 5}
    assert found[1].samples == {"process.rss_bytes": 2**30 + 4096, "generation.seconds": 0.1}
    assert found[2].samples == {"process.rss_bytes": 2**53, "gauge.x": -1}
    assert len(found[3].samples) == 60 and found[4].samples == {"process.rss_bytes": 1}
    assert found[1].census == Census(1, "full", 1.0, 9, (("dict", 7, 448), ("app.Env", 2, None)))
    assert found[1].holders == (Holder(1, "app.Env", "app.kept[*]", 2, 64),)
    assert found[2].events[0].data == {"a": [1, None]}
    server.refuse_sequence = -1
    done = upload(path, Delivery(server.address))
    assert (done.sent, done.state, done.complete) == (5, "finished", True)
    assert [s for each in server.batches for s in each.snapshots] == found
    assert server.batches[-1].lost == {"queue_full": 1}
    contents = Contents()
    for record in read_records(path):
        contents.add(record, sent=False)
    assert list(contents.sequences) == [0, 1, 2, 3, 5]
    assert list(contents.standings) == [FIXED, LASTING, LASTING, FREQUENT, LASTING]


def test_many_small_records_are_sent_once_as_one_batch(tmp_path: Path) -> None:
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


def test_a_batch_never_skips_a_missing_sequence_number() -> None:
    merged = merge([batch(1, 2), batch(3), batch(7), batch(8)])
    assert [[s.sequence for s in b.snapshots] for b in merged] == [[1, 2, 3], [7, 8]]
    assert [len(run) for run in consecutive([snapshot(1), snapshot(3), snapshot(4)])] == [1, 2]


def test_a_mark_counts_only_if_complete_and_for_its_own_server(tmp_path: Path) -> None:
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


def test_the_header_contains_the_server_of_the_run(tmp_path: Path) -> None:
    online = SpoolFile(tmp_path / "online.spool", HEADER, PROCESS, server=SERVER)
    assert read_origin(online.path) == SERVER
    assert read_origin(spool(tmp_path).path) is None
    before = tmp_path / "of_an_older_client.spool"
    told = {"version": 1, "run": header_to_wire(HEADER), "process": asdict(PROCESS)}
    before.write_bytes(MAGIC + encode_record(HEADER_RECORD, told))
    assert read_origin(before) is None
    assert read_header(before) == (HEADER, PROCESS)


def test_a_spool_is_live_while_its_process_has_it_open(tmp_path: Path) -> None:
    file = spool(tmp_path)
    assert is_live(file.path) is True
    assert is_live(file.path) is True
    file.close()
    assert is_live(file.path) is False
    assert is_live(tmp_path / "gone.spool") is None


@pytest.mark.alone
def test_closing_does_not_wait_too_long_for_a_hanging_write(tmp_path: Path) -> None:
    outbox = Outbox(spool(tmp_path), print)
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


@pytest.mark.alone
def test_a_program_ends_in_time_if_its_spool_cannot_be_written(start: Any) -> None:
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


def test_a_liveness_check_never_takes_the_lock_from_the_process(
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


# -- a full spool ------------------------------------------------------------------------------------------


def declared(sequence: int, kind: str = "expect", count: int = 4) -> Event:
    return Event(sequence, 1.0, kind, "Agent", data={"low": count, "high": count})


def contents_of(*snapshots: Snapshot, sent: int = 0) -> Contents:
    """Return the contents of a spool in which each record has 100 bytes."""
    found, at = Contents(), 0
    for each in snapshots:
        encoded = encode_batch(batch(each))
        _, kind, flags, _, _ = FRAME.unpack_from(encoded)
        record = Record(kind, flags, encoded[FRAME.size :], at, at + len(encoded))
        found.add(record, sent=each.sequence <= sent)
        at += len(encoded)
    found.sizes = array("I", [100] * len(snapshots))
    return found


def adds_up(file: SpoolFile, last: int) -> list[int]:
    """Check that every snapshot waits or is counted as lost and no unfinished file is left; return the waiting ones."""
    kept = sequences(file.path)
    assert file.waiting() == len(kept) == last - sum(file.lost().values())
    assert kept[-1] == last
    assert is_live(file.path) is True
    assert file._rewriting is not None or not file.path.with_suffix(".rewrite").exists()
    return kept


def staying(contents: Contents, room: int) -> list[int]:
    fates = choose(contents, room)
    return [n for n, fate in zip(contents.sequences, fates, strict=True) if fate == STAYS]


def test_of_four_neighbours_of_a_phase_the_extremes_are_kept() -> None:
    resident = {2: 50, 3: 10, 4: 90, 5: 60}
    every = [snapshot(n, rss=resident.get(n, 55)) for n in range(1, 11)]
    assert staying(contents_of(*every), 800)[:5] == [1, 3, 4, 6, 7]


def test_neighbours_are_grouped_by_phase() -> None:
    """Otherwise the phase in the middle would lose all its ends and its neighbours none."""
    phases = ("low", "middle", "high", "middle")
    every = [snapshot(n, rss=100 * (n % 4), phase=phases[n % 4]) for n in range(1, 403)]
    kept = staying(contents_of(*every), 25_000)
    for phase in set(phases):
        of_phase = [s.sequence for s in every if s.phase == phase]
        left = [n for n in of_phase if n in set(kept)]
        assert 0.4 * len(of_phase) < len(left) < 0.8 * len(of_phase)


def test_the_highest_and_the_lowest_of_all_survive_any_number_of_rounds() -> None:
    numbers = random.Random(7)
    every = [snapshot(n, rss=numbers.randrange(1, 10**6)) for n in range(1, 2001)]
    low = min(every, key=lambda s: s.samples["process.rss_bytes"]).sequence
    high = max(every, key=lambda s: s.samples["process.rss_bytes"]).sequence
    kept = staying(contents_of(*every), 2_000)
    assert len(kept) <= 20
    assert {1, 2000, low, high} <= set(kept)


def test_snapshots_on_the_server_are_dropped_first() -> None:
    every = [snapshot(n) for n in range(1, 401)]
    kept = set(staying(contents_of(*every, sent=200), 31_000))
    assert set(range(201, 401)) <= kept
    assert len(kept) <= 310


def test_generation_ends_are_dropped_after_frequent_snapshots() -> None:
    ends = [
        snapshot(n, kind="generation_end" if n % 5 == 0 else "phase_end") for n in range(1, 1001)
    ]
    generations = set(range(5, 1001, 5))
    # All frequent ones that may go are gone, and the older half is thinned.
    kept = set(staying(contents_of(*ends), 17_000))
    assert 5 in kept
    assert {n for n in generations if n > 500} <= kept
    assert len([n for n in generations & kept if n <= 500]) < 90
    assert len(kept) - len(generations & kept) < 12, "all others were thinned first"


def test_generation_ends_of_the_entire_run_survive_many_rewrites() -> None:
    """Dropping the older half of what is left each time would leave nothing of the beginning."""
    ends, last = list[int](), 0
    for _ in range(8):
        more = range(last + 1, last + 401 - len(ends))
        every = [snapshot(n, kind="generation_end") for n in (*ends, *more)]
        ends, last = staying(contents_of(*every), 20_000), more[-1]
        assert len(ends) <= 200
    tenths = [sum(i < 10 * n / last <= i + 1 for n in ends) for i in range(10)]
    assert min(tenths) > 0.3 * max(tenths), tenths


def test_the_oldest_are_dropped_last_and_declarations_are_kept() -> None:
    events = {40: (declared(40),), 41: (Event(41, 1.0, "mark", "m"),)}
    every = [snapshot(n, "manual", events=events.get(n, ())) for n in range(1, 201)]
    fates = choose(contents_of(*every), 10_000)
    kept = [n for n, fate in enumerate(fates, 1) if fate == STAYS]
    assert kept == [1, 40, *range(103, 201)]
    assert THINNED not in fates


def test_equal_declarations_are_kept_once_and_all_are_bounded() -> None:
    every = [snapshot(n, kind="generation_end", events=(declared(n),)) for n in range(1, 401)]
    kept = staying(contents_of(*every), 2_000)
    assert kept[0] == 1
    assert len(kept) <= 20
    every = [snapshot(n, kind="manual", events=(declared(n, count=n),)) for n in range(1, 401)]
    kept = staying(contents_of(*every), 2_000)
    assert kept == [1, *range(382, 401)]


@pytest.mark.parametrize(
    "more",
    [
        {"events": (Event(50, 1.0, "warning", "w"),)},
        {"holders": (Holder(50, "Agent", "train.agents", 3),)},
        {"census": Census(50, "full", 1.0, 10, (("list", 4, None),))},
    ],
    ids=lambda more: next(iter(more)),
)
def test_snapshots_with_more_than_samples_are_not_thinned(more: dict[str, Any]) -> None:
    every = [snapshot(n, **(more if n == 50 else {})) for n in range(1, 201)]
    assert 50 in staying(contents_of(*every), 1_000)


@pytest.mark.parametrize("kind", ["collection", "log"])
def test_data_present_at_every_phase_end_protects_nothing(kind: str) -> None:
    every = [snapshot(n, events=(Event(n, 1.0, kind, "full"),)) for n in range(1, 201)]
    assert len(staying(contents_of(*every), 10_000)) <= 100


def test_a_file_stays_within_its_limit_and_counts_the_losses(tmp_path: Path) -> None:
    file = spool(tmp_path, 64 * KIB)
    largest = 0

    def is_over() -> bool:
        nonlocal largest
        largest = max(largest, file.path.stat().st_size)
        return "spool_full" in file.lost()

    last = append_until(
        file, is_over, make=lambda n: snapshot(n, "manual" if n % 10 == 0 else "phase_end")
    )
    assert largest <= 64 * KIB
    assert file.lost()["spool_thinned"] > file.lost()["spool_full"]
    assert adds_up(file, last)[0] == 1
    assert read_header(file.path) == (HEADER, PROCESS)


def test_dropping_sent_snapshots_is_not_a_loss(tmp_path: Path) -> None:
    file = spool(tmp_path, 64 * KIB)
    given: list[int] = []
    # Held open, because a file system may reuse the inode number for the replacement.
    with file.path.open("rb") as first:
        for number in range(1, 1001):
            file.append(batch(number))
            if number % 7 == 0:
                batches, mark = file.unsent()
                given += numbers(batches)
                file.accept(mark, SERVER)
        assert not os.path.samestat(os.fstat(first.fileno()), file.path.stat())
    assert file.lost() == {}
    assert given == list(range(1, 995))
    assert file.waiting() == 6


def test_snapshots_dropped_during_a_send_are_lost_only_on_failure(
    tmp_path: Path,
) -> None:
    for arrives in (True, False):
        file = spool(tmp_path / str(arrives), 64 * KIB)
        for n in range(1, 61):
            file.append(batch(n))
        _, mark = file.unsent()
        # The server takes so long to answer that the file is shortened meanwhile.
        last = append_until(
            file, lambda file=file: not set(range(1, 61)) <= set(sequences(file.path)), 60
        )
        kept = len(sequences(file.path))
        assert file.waiting() + sum(file.lost().values()) == last
        if arrives:
            file.accept(mark, SERVER)
            assert file.waiting() + sum(file.lost().values()) == last - 60
            assert min(given_out(file)) > 60
        else:
            again = given_out(file)
            assert sum(file.lost().values()) == last - kept
            assert again == sequences(file.path)
        assert file.waiting() == 0


def test_oversized_records_are_split_or_counted_as_lost(
    tmp_path: Path,
) -> None:
    file = spool(tmp_path, 64 * KIB)
    text = random.Random(1).randbytes(20 * KIB).hex()
    huge = snapshot(31, events=(Event(31, 1.0, "note", "n", data={"text": text}),))
    file.append(batch(*range(1, 31), huge, 32))
    assert sequences(file.path) == [*range(1, 31), 32]
    assert file.lost() == {"spool_full": 1}
    assert file.waiting() == 31


def wide(sequence: int) -> Snapshot:
    """Return a snapshot as in a training: 40 series, most of which change a little."""
    noise = random.Random(sequence)
    kind = "generation_end" if sequence % 10 == 0 else "phase_end"
    samples = {f"type.module.Type{i}.count": 1000 * i + noise.randrange(100) for i in range(39)}
    phase = "train" if kind == "phase_end" else None
    return Snapshot(
        sequence, 1e9 + sequence, sequence / 10, sequence // 10, phase, "", kind,
        {**samples, "process.rss_bytes": 10**9 + noise.randrange(10**7)},
    )  # fmt: skip


@pytest.mark.parametrize("together", [1, 20])
def test_a_rewrite_shrinks_records_of_any_size(tmp_path: Path, together: int) -> None:
    limit = 2**18
    file = spool(tmp_path, limit)
    last = append_until(file, rewritten(file), make=wide, together=together)
    kept = adds_up(file, last)
    assert file.path.stat().st_size < 0.65 * limit, "half, and what came while it was made shorter"
    assert {n for n in range(1, last + 1) if n % 10 == 0} <= set(kept)
    assert len(kept) > 0.5 * last, "as small as what was there, and no smaller"
    assert together > 1 or file.lost() == {}, "written together all of them have room"
    assert given_out(file) == kept


def test_a_rewrite_larger_than_expected_is_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spool_trimming.Contents.add

    def misjudge(contents: Contents, record: Record, *, sent: bool) -> None:
        real(contents, record, sent=sent)
        contents.sizes = array("I", (max(1, size // 2) for size in contents.sizes[-1:])) * len(
            contents.sizes
        )

    monkeypatch.setattr(spool_trimming.Contents, "add", misjudge)
    file = spool(tmp_path, 256 * KIB)
    last = append_until(file, rewritten(file), make=wide, together=50)
    assert file.path.stat().st_size < 0.85 * 256 * KIB
    adds_up(file, last)


def test_a_large_spool_is_shortened_in_steps_during_appends(tmp_path: Path) -> None:
    limit = 2 * 2**20
    file = spool(tmp_path, limit)
    steps: list[int] = []
    inode, number = file.path.stat().st_ino, 0
    while file.path.stat().st_ino == inode:
        file.append(batch(*(snapshot(number + i) for i in range(1, 11))))
        number += 10
        if file._rewriting is not None:
            steps.append(file.path.stat().st_size)
    assert len(steps) > 2, "between two steps records were appended"
    assert steps[-1] < limit, "it was done before the bound was reached"
    adds_up(file, number)


def test_a_record_without_room_is_dropped_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_file, "PACE", 1e9)
    monkeypatch.setattr(spool_file, "FULL_SECONDS", 0.0)
    file = spool(tmp_path, 64 * KIB)
    steps = []
    real = file._step
    monkeypatch.setattr(file, "_step", lambda: (steps.append(file._lock.locked()), real())[1])
    is_over, last = rewritten(file), 0
    while not is_over():
        last += 1
        before = len(steps)
        file.append(batch(last))
        assert len(steps) <= before + 1, "the lock is free between two steps"
        assert file.path.stat().st_size <= 64 * KIB
    assert file.lost()["spool_full"] > 0
    adds_up(file, last)


def test_no_rewrite_starts_at_the_end_of_a_process(tmp_path: Path) -> None:
    file, closing = spool(tmp_path, 64 * KIB), threading.Event()
    is_rewritten = rewritten(file)
    last = append_until(file, lambda: file._rewriting is not None)

    def ending() -> None:
        closing.set()
        threads.begin(closing)
        for n in range(last + 1, last + 101):
            file.append(batch(n))
        file.append_end(END)

    thread = threading.Thread(target=ending)
    thread.start()
    thread.join()
    assert not is_rewritten()
    assert file.path.stat().st_size <= 64 * KIB + 200
    assert file.lost()["spool_full"] + len(sequences(file.path)) == last + 100
    assert read_end(file.path) == END


def test_a_descriptor_is_cleared_before_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = spool(tmp_path, 64 * KIB)
    real, closed = os.close, list[int]()

    def close(fd: int) -> None:
        assert fd not in (file._fd, file._fresh_fd)
        closed.append(fd)
        real(fd)

    monkeypatch.setattr(os, "close", close)
    append_until(file, lambda: file._fresh_fd >= 0, append_until(file, lambda: closed))
    file.close()
    assert len(closed) == 3, "the old one, the unfinished one, the file"


def test_unfinished_rewrites_are_removed_by_the_next_process(tmp_path: Path) -> None:
    first = spool(tmp_path, 64 * KIB)
    first.close()
    torn, fresh = first.path.with_suffix(".rewrite"), tmp_path / "run-1" / "other.rewrite"
    for leftover in (torn, fresh):
        leftover.write_bytes(b"half")
    yesterday = time.time() - 86400
    os.utime(torn, (yesterday, yesterday))
    SpoolFile(tmp_path / "run-1" / "instance-2.spool", HEADER, PROCESS)
    assert not torn.exists()
    assert fresh.exists(), "a process may just have made it"


def test_a_full_disk_during_a_rewrite_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_file, "FULL_SECONDS", 60.0)
    warnings: list[str] = []
    file = spool(tmp_path, 64 * KIB)
    outbox = Outbox(file, warnings.append)
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        if fd == file._fresh_fd:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    number = append_until(outbox, lambda: warnings)
    outbox.append(batch(number + 1))
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    assert sequences(file.path) == list(range(1, number))
    assert not file.path.with_suffix(".rewrite").exists()
    assert outbox.lost() == {}
    assert outbox.waiting() == number + 1
    assert given_out(outbox) == list(range(1, number + 2))


def test_a_moved_spool_is_not_rewritten_at_its_old_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No record is dropped for lack of time, however slow the machine is.
    monkeypatch.setattr(spool_file, "FULL_SECONDS", 60.0)
    warnings: list[str] = []
    file = spool(tmp_path, 64 * KIB)
    outbox = Outbox(file, warnings.append)
    for n in range(1, 11):
        outbox.append(batch(n))
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "run-1").rename(elsewhere)
    (tmp_path / "run-1").mkdir()
    number = append_until(outbox, lambda: warnings, 10)
    assert sequences(elsewhere / "instance-1.spool") == list(range(1, number))
    assert list((tmp_path / "run-1").iterdir()) == []


def _killed_at(tmp_path: Path, call: int) -> bool:
    """Append in a child that is killed at its ``call``-th file system call from the first rewrite on.

    Return False if it made fewer calls.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            file = spool(tmp_path, 64 * KIB)
            made = 0
            real_write, real_unlink, real_replace = os.write, Path.unlink, Path.replace

            def counted(act: Callable[[], object]) -> None:
                nonlocal made
                if file._rewriting is not None:
                    made += 1
                    if made == call:
                        act()
                        os.kill(os.getpid(), signal.SIGKILL)

            def write(fd: int, data: bytes) -> int:
                if fd != file._fd:
                    counted(lambda: real_write(fd, bytes(data)[: len(data) // 2]))
                return real_write(fd, data)

            def unlink(path: Path, missing_ok: bool = False) -> None:
                counted(lambda: None)
                real_unlink(path, missing_ok)
                counted(lambda: None)

            def replace(path: Path, target: Path) -> Path:
                counted(lambda: None)
                done = real_replace(path, target)
                counted(lambda: None)
                return done

            os.write = write  # type: ignore[assignment]
            Path.unlink, Path.replace = unlink, replace  # type: ignore[assignment,method-assign]
            spool_trimming.WRITE_BYTES = 2000  # type: ignore[misc]
            number = 0
            while not file.lost():
                number += 1
                file.append(batch(number))
                if number == 40:
                    _, mark = file.unsent()
                    file.accept(mark, SERVER)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_kill_at_any_point_of_a_rewrite_leaves_a_complete_spool(
    tmp_path: Path,
) -> None:
    killed = call = 0
    while True:
        call += 1
        folder = tmp_path / str(call)
        if not _killed_at(folder, call):
            break
        killed += 1
        path = folder / "run-1" / "instance-1.spool"
        assert read_header(path) == (HEADER, PROCESS)
        assert is_live(path) is False
        left = sequences(path)
        assert left == sorted(set(left))
        assert left[0] == 1
        records = list(read_records(path))
        assert records[-1].end == path.stat().st_size, "no torn record: it was whole before"
        mark = read_ack(path, SERVER)
        batches, _ = collect(read_records(path, mark), mark, 10_000, read_header(path)[1].instance)
        given = numbers(batches)
        assert given == left[-len(given) :]
        assert set(given) >= {n for n in left if n > 40}
    assert killed > 15, "there are so many places to be killed at"


def test_an_upload_during_a_rewrite_skips_nothing(tmp_path: Path, server: Any) -> None:
    file = spool(tmp_path, 64 * KIB)
    for n in range(1, 61):
        file.append(batch(n))
    delivery = Delivery(server.address)
    steps = uploading(file.path, delivery, limit=20)
    next(steps)
    last = append_until(file, rewritten(file), 60)
    list(steps)
    assert server.sequences[:60] == list(range(1, 61))
    assert read_ack(file.path, server.address) == 0, "it was an offset in the file of before"
    upload(file.path, delivery)
    assert set(sequences(file.path)) <= set(server.sequences)
    assert max(server.sequences) == last
    delivery.close()


def test_a_truncated_spool_does_not_block_the_sender(tmp_path: Path) -> None:
    file = spool(tmp_path, 64 * KIB)
    file.append(batch(1))
    file.append(batch(2))
    os.truncate(file.path, file.path.stat().st_size // 2)
    assert given_out(file) in ([], [1])
    assert not file.pending()
    file.append(batch(3))
    assert 3 in sequences(file.path)
