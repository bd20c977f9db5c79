"""`leakline sync` sends each snapshot that the server lacks once, and counts or names what a damaged spool has lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.client.spools import END, numbers, sequences, snapshot

import leakline
from leakline.cli import main
from leakline.errors import SpoolError
from leakline.report.report_data import load
from leakline.snapshot import Batch, ProcessIdentity, RunHeader
from leakline.transport.batching import SNAPSHOTS_PER_BATCH
from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_file import SpoolFile
from leakline.transport.spool_format import BATCH, MAGIC, read_batches, read_records
from leakline.transport.spool_upload import Uploaded, upload, uploading

TAKEN = 120
Said = pytest.CaptureFixture[str]


def record(name: str, generations: int = 3) -> None:
    run = leakline.init(mode="offline", quiet=True, name=name)
    for generation in range(generations):
        run.generation(generation)
    run.finish()


def sync(what: Path, server: str, *more: str) -> int:
    return main(["sync", str(what), "--server", server, *more])


def test_a_server_with_a_full_disk_refuses_temporarily(
    spool_directory: Path, server: Any, capsys: Said
) -> None:
    record("one")
    full = {"error": {"code": "disk_full", "message": "the disk of the server is full"}}
    server.answer(503, full, Retry_After="5")
    assert sync(spool_directory, server.address) == 1
    assert capsys.readouterr().err == (
        f"leakline: {server.address} is temporarily refusing requests (the disk of the server is full); "
        "try again later (recorded data is kept)\n"
    )


def test_sync_without_a_leakline_server_explains_how_to_start_one(
    spool_directory: Path, server: Any, capsys: Said
) -> None:
    record("one")
    assert sync(spool_directory, "http://127.0.0.1:9") == 1
    assert "leakline serve" in capsys.readouterr().err
    server.answer(200, b"<html>hello</html>")
    assert sync(spool_directory, server.address) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot reach a Leakline server" in line and "leakline serve" in line


def test_every_snapshot_is_uploaded_once_to_each_server(
    spool_directory: Path, server: Any, make_server: Any, capsys: Said
) -> None:
    record("one")
    record("two")
    assert sync(spool_directory, server.address) == 0
    first = capsys.readouterr().out
    assert first.count("5 snapshots sent") == 2
    assert sorted(server.sequences) == sorted([1, 2, 3, 4, 5] * 2)
    assert [end["state"] for end in server.ends] == ["finished", "finished"]
    requests = len(server.requests)
    assert sync(spool_directory, server.address) == 0
    assert capsys.readouterr().out.count("nothing new to send") == 2
    assert len(server.requests) == requests
    assert sync(spool_directory, server.address, "--again") == 0
    assert len(server.sequences) == 20
    other = make_server()
    assert sync(spool_directory, other.address) == 0
    assert len(other.sequences) == 10


def test_a_run_sent_while_it_ran_has_nothing_left_to_upload(
    spool_directory: Path, server: Any, capsys: Said
) -> None:
    run = leakline.init(server=server.address, quiet=True)
    run.generation(0)
    run.finish()
    before = len(server.requests)
    assert sync(spool_directory, server.address) == 0
    assert "nothing new to send" in capsys.readouterr().out
    assert len(server.requests) == before


def test_an_interrupted_upload_resumes(tmp_path: Path, server: Any) -> None:
    path = recorded(tmp_path, "ours", 5 * SNAPSHOTS_PER_BATCH)
    server.answer(200, {})
    for _ in range(2):
        server.answer(200, {"accepted": SNAPSHOTS_PER_BATCH, "requests": []})
    server.answer(503, {"error": {"message": "restarting"}})
    assert sync(path, server.address) == 1
    assert sync(path, server.address) == 0
    first = server.sequences[0]
    assert SNAPSHOTS_PER_BATCH < first <= 2 * SNAPSHOTS_PER_BATCH
    assert server.sequences == list(range(first, 5 * SNAPSHOTS_PER_BATCH + 1))


def test_refused_and_broken_spools_are_named_and_the_others_sent(
    spool_directory: Path, server: Any, capsys: Said
) -> None:
    for name in ("one", "two", "three"):
        record(name)
    broken = spool_directory / "broken" / "x.spool"
    broken.parent.mkdir()
    broken.write_bytes(b"nonsense")
    server.answer(403, {"error": {"code": "forbidden", "message": "not this project"}})
    server.answer(200, {})
    server.answer(409, {"error": {"code": "conflict", "message": "other content"}})
    assert sync(spool_directory, server.address) == 1
    out = capsys.readouterr().out
    assert f"refused by {server.address} (403: not this project)" in out
    assert [line.count("5 refused") for line in out.splitlines()].count(1) == 1
    assert [line for line in out.splitlines() if "skipped" in line and "x.spool" in line]
    assert out.count("5 snapshots sent") == 1
    assert server.sequences == [1, 2, 3, 4, 5]


def recorded(folder: Path, instance: str, taken: int = TAKEN, *, ended: bool = True) -> Path:
    """Return the spool of a process that took ``taken`` snapshots, a few in each record."""
    process = ProcessIdentity(instance, rank=0, pid=1, host="here")
    header = RunHeader(f"run-of-{instance}", "project", "name", "generation", 25, 100.0)
    file = SpoolFile(folder / f"{instance}.spool", header, process)
    for first in range(1, taken + 1, 3):
        snapshots = tuple(
            snapshot(n, "generation_end", {"process.rss_bytes": n * 4096})
            for n in range(first, min(first + 3, taken + 1))
        )
        file.append(Batch(process, snapshots))
    if ended:
        file.append_end(END)
    file.close()
    return file.path


KINDS = ("a byte", "a block", "a hole", "cut off", "two joined", "a block of another")


def damaged(kind: str, chance: random.Random, whole: bytes, other: bytes) -> bytes:
    at, size = chance.randrange(len(whole)), chance.randrange(1, 2000)
    if kind == "cut off":
        return whole[:at]
    if kind == "a hole":
        return whole[:at] + whole[at + size :]
    if kind == "two joined":
        return whole[: at + 1] + other
    begin = chance.randrange(len(other))
    put = {
        "a byte": bytes([whole[at] ^ chance.randrange(1, 256)]),
        "a block": (chance.randbytes(size) if chance.random() < 0.5 else bytes(size)),
        "a block of another": other[begin : begin + size],
    }[kind]
    return whole[:at] + put[: len(whole) - at] + whole[at + len(put) :]


def _is_counted(done: Uploaded, arrived: list[int]) -> bool:
    """Return True if every loss is counted, or reported where its number cannot be known."""
    held = done.held
    if held is None:
        return False
    lost = set(range(1, TAKEN + 1)) - set(arrived)
    newest = max(arrived, default=0)
    in_between = {number for number in lost if number < newest}
    behind = lost - in_between
    # Losses at the end have no sequence numbers: unreadable bytes or a missing end reveal them.
    return held.missing >= len(in_between) and (not behind or not held.is_whole or not done.state)


def check(folder: Path, kind: str, seed: int, server: Any) -> None:
    chance = random.Random(f"{kind} {seed}")
    folder.mkdir()
    path = recorded(folder, "ours")
    other = recorded(folder, "other", 60).read_bytes()
    path.write_bytes(damaged(kind, chance, path.read_bytes(), other))
    server.batches.clear()
    delivery = Delivery(server.address, None, 10.0)
    try:
        done = upload(path, delivery)
    except SpoolError:
        # The entire file is refused with a reason, because it does not say to which run it belongs.
        assert not server.batches
        return
    finally:
        delivery.close()
    arrived = [s for batch in server.batches for s in batch.snapshots]
    assert {batch.process.instance for batch in server.batches} <= {"ours"}
    found = numbers(server.batches)
    assert len(found) == len(set(found)), "each once"
    assert all(s.samples["process.rss_bytes"] == s.sequence * 4096 for s in arrived)
    assert len(found) == TAKEN or _is_counted(done, found), (kind, seed, done)
    lost = {batch.lost.get("spool_damaged", 0) for batch in server.batches}
    assert lost <= {done.held.missing if done.held else 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seeds",
    [range(8), pytest.param(range(8, 60), marks=pytest.mark.long)],
    ids=["few", "many"],
)
def test_losses_of_a_damaged_spool_are_counted(
    tmp_path: Path, server: Any, kind: str, seeds: range
) -> None:
    for seed in seeds:
        check(tmp_path / str(seed), kind, seed, server)


def test_a_flipped_byte_is_counted_and_ends_with_1(
    tmp_path: Path, server: Any, capsys: Said
) -> None:
    path = recorded(tmp_path, "ours")
    records = [record for record in read_records(path) if record.kind == BATCH]
    data = bytearray(path.read_bytes())
    data[records[20].end - 5] ^= 1
    path.write_bytes(data)
    assert sync(path, server.address) == 1
    size = records[20].end - records[20].start
    assert f"117 snapshots sent, 3 snapshots lost ({size} bytes of the file cannot be read)" in (
        capsys.readouterr().out
    )
    assert {batch.lost["spool_damaged"] for batch in server.batches} == {3}
    assert sync(path, server.address, "--again", "--allow-damage") == 0
    assert sync(path, server.address, "--again") == 1


def test_a_second_recording_in_the_file_is_named_and_not_sent(
    tmp_path: Path, server: Any, capsys: Said
) -> None:
    path, other = recorded(tmp_path, "ours"), recorded(tmp_path, "other", 60, ended=False)
    size = other.stat().st_size
    path.write_bytes(path.read_bytes() + other.read_bytes())
    assert sync(path, server.address) == 1
    assert f"another recording in the same file was not sent ({size:,} bytes)" in (
        capsys.readouterr().out
    )
    assert len(server.sequences) == TAKEN == len(sequences(path))
    assert [end["state"] for end in server.ends] == ["finished"]
    # The report must not take the other recording's end for that of this one, which finished.
    assert load([path]).endings == ()


@pytest.mark.parametrize("ended", [False, True])
def test_snapshots_recorded_during_an_upload_are_sent_too(
    tmp_path: Path, server: Any, ended: bool
) -> None:
    path = recorded(tmp_path, "ours", 60, ended=False)
    longer = recorded(tmp_path / "longer", "ours", ended=ended).read_bytes()
    delivery = Delivery(server.address, None, 10.0)
    steps = uploading(path, delivery, limit=10)
    next(steps)
    with path.open("ab") as file:
        file.write(longer[path.stat().st_size :])
    *_, done = steps
    delivery.close()
    assert (done.sent, server.sequences) == (TAKEN, list(range(1, TAKEN + 1)))
    states = ["finished"] if ended else []
    assert ([end["state"] for end in server.ends], done.state) == (states, "".join(states))
    assert done.complete


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    path = recorded(tmp_path, "ours")
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpoolError, match="has a damaged header, so its run is unknown"):
        list(read_batches(path))
