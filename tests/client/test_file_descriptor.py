"""Programs close descriptors they do not know and open their own files: we never write into those."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.client.spools import KIB, append_until, batch, numbers, sequences, spool

from leakline.transport import spool_file
from leakline.transport.http_connection import Connection, Meter
from leakline.transport.orphan_recovery import claimed
from leakline.transport.spool_file import SpoolFile
from leakline.transport.spool_format import is_live, read_end

Taken = Callable[[int], Path]
# Daemons do this, and so do programs that start a child by hand. Afterwards all numbers belong to the program.
TRAINING = """
import json, os, leakline

run = leakline.init()
run.generation(0)
run._chain.flush()
os.closerange(3, 256)
own = [open(f"own-{i}", "w+b", buffering=0) for i in range(64)]
for file in own:
    file.write(b"mine")
numbers = [file.fileno() for file in own]
for generation in range(1, 4):
    run.generation(generation)
    with run.phase("train"):
        pass
    run._chain.flush()
if os.environ["HOW"] == "fork":
    pid = os.fork()
    if pid == 0:
        files = [os.fstat(number) for number in numbers]
        os._exit(0 if len(files) == 64 else 1)
    assert os.waitpid(pid, 0)[1] == 0
run.finish()
account = run._chain.account()
print(json.dumps({
    "own": [os.pread(number, 100, 0).decode("latin-1") for number in numbers],
    "taken": account.taken, "lost": dict(account.lost), "closes": account.closes,
}))
"""


@pytest.mark.flow
@pytest.mark.parametrize(("mode", "how"), [("offline", "fork"), ("online", "")])
def test_closing_all_descriptors_loses_no_snapshot_and_harms_no_file(
    start: Any, spool_directory: Path, server: Any, mode: str, how: str
) -> None:
    environment = {"LEAKLINE_MODE": mode, "LEAKLINE_SERVER": server.address, "HOW": how}
    process = start(TRAINING, LEAKLINE_QUIET="1", **environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    result = json.loads(out)
    assert result["own"] == ["mine"] * 64
    assert (result["lost"], result["closes"]) == ({}, True)
    (path,) = spool_directory.rglob("*.spool")
    assert sequences(path) == list(range(1, result["taken"] + 1))
    assert (read_end(path) or {})["state"] == "finished"
    if mode == "online":
        assert sorted(set(server.sequences)) == list(range(1, result["taken"] + 1))


@pytest.fixture
def taken(tmp_path: Path) -> Callable[[int], Path]:
    """Replace a descriptor by a file of the program, without our knowledge."""

    def take(number: int) -> Path:
        path = tmp_path / f"own-{number}"
        path.write_bytes(b"mine")
        other = os.open(path, os.O_RDWR)
        os.dup2(other, number)
        if other != number:
            os.close(other)
        return path

    return take


ACTS: dict[str, Callable[[SpoolFile], Any]] = {
    "append": lambda file: file.append(batch(2)),
    "end": lambda file: file.append_end({"state": "finished"}),
    "read": lambda file: numbers(file.unsent()[0]) == [1] or pytest.fail("it is not given out"),
    "close": lambda file: file.close(),
    "let go": lambda file: file.let_go(),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_descriptor_taken_over_by_the_program_is_never_used(
    tmp_path: Path, taken: Taken, act: str
) -> None:
    file = spool(tmp_path)
    file.append(batch(1))
    number = int(file._fd)
    own = taken(number)
    assert is_live(file.path) is False
    ACTS[act](file)
    assert is_live(file.path) is (act in ("append", "end", "read"))
    assert own.read_bytes() == b"mine"
    assert os.path.samestat(os.fstat(number), own.stat()), "it is still open"
    file.close()
    assert sequences(file.path) == ([1, 2] if act == "append" else [1])
    os.close(number)


def test_a_deleted_spool_is_an_error_and_the_programs_file_stays_intact(
    tmp_path: Path, taken: Taken
) -> None:
    file = spool(tmp_path)
    number = int(file._fd)
    own = taken(number)
    other = file.path.with_suffix(".other")
    other.write_bytes(b"another spool")
    other.replace(file.path)
    with pytest.raises(OSError, match="the path now leads to a different file"):
        file.append(batch(1))
    file.close()
    assert (own.read_bytes(), file.path.read_bytes()) == (b"mine", b"another spool")
    os.close(number)


@pytest.mark.parametrize("full", [False, True])
def test_a_write_whose_descriptor_is_taken_goes_to_our_file(
    tmp_path: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    file = spool(tmp_path)
    number, real = int(file._fd), os.write

    def fail(fd: int, data: bytes) -> int:
        if fd == number:
            taken(number)
            raise OSError(9, "closed meanwhile")
        if full:
            raise OSError(28, "the disk is full")
        return real(fd, data)

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="the disk is full") if full else nullcontext():
        file.append(batch(1))
    monkeypatch.undo()
    assert os.pread(number, 100, 0) == b"mine"
    file.close()
    assert sequences(file.path) == ([] if full else [1])
    os.close(number)


@pytest.mark.parametrize("reads", [b"mine", None], ids=["the program's file", "no file"])
def test_a_read_whose_descriptor_is_taken_is_repeated(
    tmp_path: Path,
    taken: Taken,
    monkeypatch: pytest.MonkeyPatch,
    reads: bytes | None,
) -> None:
    file = spool(tmp_path)
    file.append(batch(1))
    number, real = int(file._fd), spool_file.read_open
    read_from = list[int]()

    def read(fd: int, *rest: Any) -> Any:
        read_from.append(fd)
        if len(read_from) == 1:
            _ = os.close(number) if reads is None else taken(number)
        return real(fd, *rest)

    monkeypatch.setattr(spool_file, "read_open", read)
    batches, _ = file.unsent()
    assert numbers(batches) == [1]
    assert len(read_from) == 2
    file.close()
    if reads is not None:
        assert os.pread(number, 100, 0) == reads
        os.close(number)


@pytest.mark.parametrize("when", ["opened", "connected"])
def test_a_descriptor_taken_from_a_connection_is_not_used(
    server: Any, taken: Taken, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    own: dict[int, Path] = {}

    class Stolen(socket.socket):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            if when == "opened" and not own and not named:
                own[self.fileno()] = taken(self.fileno())

        def connect(self, address: Any) -> None:
            super().connect(address)
            if not own:
                own[self.fileno()] = taken(self.fileno())

    monkeypatch.setattr("leakline.transport.http_connection.socket.socket", Stolen)
    connection = Connection(urlsplit(server.address), None, None, meter := Meter())
    meter.start(10.0)
    with pytest.raises(OSError, match=r"closed the connection|non-socket"):
        connection.request("GET", "/api/v1/runs")
    connection.close()
    ((number, path),) = own.items()
    assert os.path.samestat(os.fstat(number), path.stat()), "it is still open"
    assert path.read_bytes() == b"mine"
    os.close(number)


def test_a_rewrite_stops_when_its_descriptor_is_taken(tmp_path: Path, taken: Taken) -> None:
    file = spool(tmp_path, 64 * KIB)
    last = append_until(file, lambda: file._fresh_fd >= 0)
    number = int(file._fresh_fd)
    own = taken(number)
    last += 300
    for number_of in range(last - 299, last + 1):
        file.append(batch(number_of))
    assert own.read_bytes() == b"mine"
    assert os.path.samestat(os.fstat(number), own.stat())
    assert len(sequences(file.path)) + sum(file.lost().values()) == last
    file.close()
    os.close(number)


def test_releasing_a_claimed_spool_closes_no_file_of_the_program(
    tmp_path: Path, taken: Taken
) -> None:
    file = spool(tmp_path)
    file.append(batch(1))
    file.close()
    # The spool is from another host, so it has to be older.
    os.utime(file.path, (1, 1))
    with claimed(file.path) as fd:
        assert fd is not None
        own = taken(int(fd))
        with pytest.raises(OSError, match="the program has closed the file"):
            fd.write(b"ours")
    assert own.read_bytes() == b"mine"
    assert os.path.samestat(os.fstat(int(fd)), own.stat())
    os.close(int(fd))
