"""A spool that was damaged: what is whole in it arrives, and nothing that is lost of it is lost in silence."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.cli import main
from leakline.delivery import Delivery
from leakline.errors import SpoolError
from leakline.report.build import load
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.spool import BATCH, MAGIC, read_batches, read_records
from leakline.spool_file import SpoolFile
from leakline.uploading import Uploaded, upload, uploading

TAKEN = 120


def recorded(folder: Path, instance: str, taken: int = TAKEN, *, ended: bool = True) -> Path:
    """The spool of a process that has taken so many snapshots, a few in each record."""
    process = ProcessIdentity(instance, rank=0, pid=1, host="here")
    header = RunHeader(f"run-of-{instance}", "project", "name", "generation", 25, 100.0)
    spool = SpoolFile(folder / f"{instance}.spool", header, process)
    for first in range(1, taken + 1, 3):
        snapshots = tuple(
            Snapshot(n, 1.0 + n, 2.0 + n, n, None, f"label {n}", "generation_end", {"process.rss_bytes": n * 4096})
            for n in range(first, min(first + 3, taken + 1))
        )  # fmt: skip
        spool.append(Batch(process, snapshots))
    if ended:
        spool.append_end({"state": "finished", "ended_at": 1.0, "reason": ""})
    spool.close()
    return spool.path


Damage = Callable[[random.Random, bytes, bytes], bytes]


def _flip(chance: random.Random, whole: bytes, other: bytes) -> bytes:
    at = chance.randrange(len(whole))
    return whole[:at] + bytes([whole[at] ^ chance.randrange(1, 256)]) + whole[at + 1 :]


def _overwrite(chance: random.Random, whole: bytes, other: bytes) -> bytes:
    at, size = chance.randrange(len(whole)), chance.randrange(1, 2000)
    block = chance.randbytes(size) if chance.random() < 0.5 else bytes(size)
    return whole[:at] + block[: len(whole) - at] + whole[at + size :]


def _cut_out(chance: random.Random, whole: bytes, other: bytes) -> bytes:
    at = chance.randrange(len(whole))
    return whole[:at] + whole[at + chance.randrange(1, 2000) :]


def _truncate(chance: random.Random, whole: bytes, other: bytes) -> bytes:
    return whole[: chance.randrange(len(whole))]


def _join(chance: random.Random, whole: bytes, other: bytes) -> bytes:
    return whole[: chance.randrange(1, len(whole) + 1)] + other


def _block_of_another(chance: random.Random, whole: bytes, other: bytes) -> bytes:
    at, begin, size = (
        chance.randrange(len(whole)),
        chance.randrange(len(other)),
        chance.randrange(1, 3000),
    )
    block = other[begin : begin + size]
    return whole[:at] + block + whole[at + len(block) :]


KINDS: dict[str, Damage] = {
    "a byte": _flip, "a block": _overwrite, "a hole": _cut_out, "cut off": _truncate,
    "two joined": _join, "a block of another": _block_of_another,
}  # fmt: skip


def _is_told(done: Uploaded, arrived: list[int], records: int) -> bool:
    """Whether what did not arrive is counted, or named where its number cannot be known."""
    held = done.held
    if held is None:
        return False
    lost = set(range(1, TAKEN + 1)) - set(arrived)
    newest = max(arrived, default=0)
    in_between = {number for number in lost if number < newest}
    behind = lost - in_between
    # Of what is missing at the end no number tells: bytes that cannot be read do, or the end that is not there.
    return held.missing >= len(in_between) and (not behind or not held.is_whole or not done.state)


def check(folder: Path, kind: str, seed: int, server: Any) -> None:
    chance = random.Random(f"{kind} {seed}")
    folder.mkdir()
    path = recorded(folder, "ours")
    damaged = KINDS[kind](chance, path.read_bytes(), recorded(folder, "other", 60).read_bytes())
    path.write_bytes(damaged)
    server.batches.clear()
    delivery = Delivery(server.address, None, 10.0)
    try:
        done = upload(path, delivery)
    except SpoolError:
        # Refused whole, with its reason: the file does not say of which run it is.
        assert not server.batches
        return
    finally:
        delivery.close()
    arrived = [s for batch in server.batches for s in batch.snapshots]
    assert {batch.process.instance for batch in server.batches} <= {"ours"}
    numbers = [s.sequence for s in arrived]
    assert len(numbers) == len(set(numbers)), "each once"
    assert all(s.samples["process.rss_bytes"] == s.sequence * 4096 for s in arrived)
    assert len(numbers) == TAKEN or _is_told(done, numbers, len(damaged)), (kind, seed, done)
    lost = {batch.lost.get("spool_damaged", 0) for batch in server.batches}
    assert lost <= {done.held.missing if done.held else 0}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_damaged_spool_has_lost_is_told(tmp_path: Path, server: Any, kind: str) -> None:
    for seed in range(8):
        check(tmp_path / str(seed), kind, seed, server)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damaged_spools_lose_nothing_in_silence(
    tmp_path: Path, server: Any, kind: str
) -> None:
    for seed in range(8, 8 + 1000 // len(KINDS) + 1):
        check(tmp_path / str(seed), kind, seed, server)


def test_a_flipped_byte_is_counted_and_ends_with_1(
    tmp_path: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path, "ours")
    records = [record for record in read_records(path) if record.kind == BATCH]
    data = bytearray(path.read_bytes())
    data[records[20].end - 5] ^= 1
    path.write_bytes(data)
    assert main(["sync", str(path), "--server", server.address]) == 1
    size = records[20].end - records[20].start
    assert f"117 snapshots sent, 3 snapshots lost ({size} bytes of the file cannot be read)" in (
        capsys.readouterr().out
    )
    assert {batch.lost["spool_damaged"] for batch in server.batches} == {3}
    again = ["sync", str(path), "--server", server.address, "--again"]
    assert main([*again, "--allow-damage"]) == 0
    assert main(again) == 1


def test_a_second_recording_in_the_file_is_told_and_not_sent(
    tmp_path: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = recorded(tmp_path, "ours"), recorded(tmp_path, "other", 60, ended=False)
    size = other.stat().st_size
    path.write_bytes(path.read_bytes() + other.read_bytes())
    assert main(["sync", str(path), "--server", server.address]) == 1
    assert f"not sent: another recording behind it in the same file ({size:,} bytes)" in (
        capsys.readouterr().out
    )
    assert (
        len(server.sequences) == TAKEN == len([s for b in read_batches(path) for s in b.snapshots])
    )
    assert [end["state"] for end in server.ends] == ["finished"]
    # Nor does the report take the end of the other for that of this one, which finished.
    assert load([path]).endings == ()


@pytest.mark.parametrize("ended", [False, True])
def test_what_comes_while_a_spool_is_sent_is_sent_as_well(
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


def test_a_damaged_header_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = recorded(tmp_path, "ours")
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpoolError, match="its header is damaged: the run it belongs to is unknown"):
        list(read_batches(path))
