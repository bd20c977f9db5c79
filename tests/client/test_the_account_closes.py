"""taken = sent + thinned + dropped + pending, and what was lost is told to the server with its reason."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.accounts import Account
from leakline.cli import main
from leakline.outbox import SafeOutbox, SpoolMemory
from leakline.recorder import Losses, Recorder
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.spool import read_batches
from leakline.spool_file import SpoolFile

HEADER = RunHeader("run-1", "p", "n", "generation", None, 1.0)
PROCESS = ProcessIdentity("instance-1")
SERVER = "http://127.0.0.1:8765"
END = {"state": "finished", "ended_at": 2.0, "reason": ""}


def snapshot(sequence: int, value: float = 1.0) -> Snapshot:
    return Snapshot(sequence, 1.0, 2.0, 0, None, "", "manual", {"gauge.x": value})


class Chain:
    """A recorder and where it records to."""

    def __init__(self, tmp_path: Path, queue_limit: int = 1000) -> None:
        self.path = tmp_path / "run-1" / "instance-1.spool"
        self.losses = Losses()
        file = SpoolFile(self.path, HEADER, PROCESS)
        self.outbox = SafeOutbox(file, lambda why: None, counted=self.losses.totals)
        self.recorder = Recorder(self.outbox, PROCESS, self.losses, queue_limit=queue_limit)

    def account(self) -> Account:
        pending = self.recorder.waiting() + self.outbox.waiting()
        return Account(self.recorder.taken, 0, pending, self.outbox.lost())


def test_what_does_not_add_up_is_seen() -> None:
    assert Account(10, 4, 3, {"spool_thinned": 2, "refused": 1}).closes
    assert not Account(10, 4, 2, {"spool_thinned": 2, "refused": 1}).closes
    # Losses of other things than snapshots are not in it.
    assert Account(1, 1, 0, {"events": 5, "thinned": 3}).closes


def test_a_snapshot_that_cannot_be_written_is_counted_and_takes_no_other_with_it(
    tmp_path: Path, internal_exceptions: Any
) -> None:
    chain = Chain(tmp_path)
    for sequence in (1, 2, 3):
        chain.recorder.put(snapshot(sequence, math.nan if sequence == 2 else 1.0))
    assert chain.account() == Account(3, 0, 3, {})
    chain.recorder.start()
    assert chain.recorder.flush(5.0)
    assert chain.account() == Account(3, 0, 2, {"recording_failed": 1})
    assert [s.sequence for b in read_batches(chain.path) for s in b.snapshots] == [1, 3]
    assert chain.recorder.close(END, 5.0)
    assert {type(error) for error in internal_exceptions} == {ValueError}
    internal_exceptions.clear()


def test_what_is_lost_after_the_last_snapshot_is_in_the_spool_and_reaches_the_server(
    tmp_path: Path, server: Any, internal_exceptions: Any
) -> None:
    chain = Chain(tmp_path)
    chain.recorder.start()
    chain.recorder.put(snapshot(1))
    assert chain.recorder.flush(5.0)
    chain.recorder.put(snapshot(2, math.nan))
    assert chain.recorder.close(END, 5.0)
    chain.outbox.close()
    internal_exceptions.clear()
    last = list(read_batches(chain.path))[-1]
    assert (last.snapshots, last.lost) == ((), {"recording_failed": 1})
    assert main(["report", str(chain.path)]) == 0
    assert main(["sync", str(chain.path), "--server", server.address]) == 0
    assert server.sequences == [1]
    assert server.batches[-1].lost == {"recording_failed": 1}
    assert [end["state"] for end in server.ends] == ["finished"]


def test_a_queue_that_is_full_is_a_counted_loss(tmp_path: Path) -> None:
    chain = Chain(tmp_path, queue_limit=5)
    for sequence in range(1, 9):
        chain.recorder.put(snapshot(sequence))
    assert chain.account() == Account(8, 0, 5, {"queue_full": 3})
    chain.recorder.start()
    assert chain.recorder.close(END, 5.0)
    assert chain.account() == Account(8, 0, 5, {"queue_full": 3})
    chain.outbox.close()


def test_what_memory_drops_while_it_is_being_sent_is_not_counted_twice() -> None:
    memory = SpoolMemory(limit=10)
    for n in range(1, 11):
        memory.append(Batch(PROCESS, (snapshot(n),)))
    _, mark = memory.unsent(limit=4)
    for n in range(11, 21):
        memory.append(Batch(PROCESS, (snapshot(n),)))
    memory.accept(mark, SERVER)
    assert memory.waiting() + sum(memory.lost().values()) == 20 - 4
    batches, _ = memory.unsent()
    assert [s.sequence for b in batches for s in b.snapshots] == list(range(15, 21))


def test_an_account_closes_at_any_moment_of_a_run(
    server: Any, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline.settings.SMALLEST_SPOOL_LIMIT_BYTES", 0)
    monkeypatch.setenv("LEAKLINE_SPOOL_LIMIT", "48 KiB")
    # It comes when much was thinned already.
    server.hold = threading.Event()
    run = leakline.init(server=server.address, quiet=True)
    chain = run._chain
    stop, wrong, noise = threading.Event(), list[Account](), random.Random(1)

    def watch() -> None:
        while not stop.wait(0.001):
            account = chain.account()
            if not account.closes:
                wrong.append(account)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    for generation in range(300):
        run.generation(generation)
        for i in range(20):
            run.gauge(f"noise {i}", noise.random())
        with run.phase("train"):
            pass
        if generation % 30 == 29:
            chain.flush()
        if generation == 200:
            server.hold.set()
    until(lambda: chain.flush() or not chain.outbox.pending())
    stop.set()
    watching.join()
    run.finish()
    assert wrong == []
    account = chain.account()
    assert account.closes
    assert account.thinned > 0
    assert account.pending == 0
    assert account.sent == len(server.sequences) == len(set(server.sequences))
    told = server.batches[-1].lost
    assert {name: told[name] for name in account.lost} == dict(account.lost)
