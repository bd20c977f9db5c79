"""Waiting snapshots are written together and soon; taken = sent + thinned + dropped + pending; losses are counted."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.client.conftest import no_threads
from tests.client.spools import END, PROCESS, SERVER, batch, numbers, sequences, snapshot, spool

import leakline
from leakline.cli import main
from leakline.errors import SpoolError
from leakline.runtime import threads
from leakline.snapshot import Batch, Snapshot
from leakline.transport.batching import VALUES_AT_ONCE
from leakline.transport.recorder import (
    LATE_SECONDS,
    LINGER_SECONDS,
    Losses,
    Recorder,
)
from leakline.transport.spool_file import Outbox, SpoolMemory
from leakline.transport.spool_format import Account, read_batches, read_end


class Slow:
    """An outbox whose first write blocks until released."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.written: list[tuple[float, list[int]]] = []
        self.late: list[bool] = []

    def append(self, batch: Batch) -> None:
        self.written.append((time.monotonic(), [s.sequence for s in batch.snapshots]))
        self.late.append(threads._local.late)
        self.begun.set()
        self.let_go.wait(10)

    def append_end(self, end: Mapping[str, Any]) -> None:
        return

    def lost(self) -> dict[str, int]:
        return {}


def taken(sequence: int, series: int = 1) -> Snapshot:
    samples = {f"gauge.g{i}": i for i in range(series)}
    now = time.monotonic()
    return replace(snapshot(sequence, "sample", samples), time=time.time(), monotonic=now)


def recording(outbox: Slow) -> Recorder:
    recorder = Recorder(outbox, PROCESS, Losses())  # type: ignore[arg-type]
    recorder.start()
    return recorder


@pytest.mark.alone
def test_snapshots_delayed_by_a_write_are_written_immediately() -> None:
    outbox = Slow()
    recorder = recording(outbox)
    recorder.put(taken(1))
    assert outbox.begun.wait(10)
    waited = taken(2)
    recorder.put(replace(waited, monotonic=waited.monotonic - LINGER_SECONDS))
    recorder.put(taken(3))
    released = time.monotonic()
    outbox.let_go.set()
    assert recorder.close(END, 10)
    assert [together for _, together in outbox.written] == [[1], [2, 3]]
    assert outbox.written[1][0] - released < LINGER_SECONDS / 2


def test_only_late_snapshots_are_written_with_short_rests() -> None:
    outbox = Slow()
    outbox.let_go.set()
    recorder = recording(outbox)
    late = taken(1)
    recorder.put(replace(late, monotonic=late.monotonic - LATE_SECONDS))
    assert recorder.flush(10)
    recorder.put(taken(2))
    assert recorder.flush(10)
    assert recorder.close(END, 10)
    assert outbox.late == [True, False]


@pytest.mark.alone
def test_fresh_snapshots_are_written_together() -> None:
    outbox = Slow()
    outbox.let_go.set()
    recorder = recording(outbox)
    for sequence in range(1, 6):
        recorder.put(taken(sequence))
    assert recorder.flush(10)
    assert recorder.close(END, 10)
    assert [together for _, together in outbox.written] == [[1, 2, 3, 4, 5]]


def test_the_values_of_one_record_are_bounded() -> None:
    outbox = Slow()
    outbox.let_go.set()
    recorder = recording(outbox)
    series = VALUES_AT_ONCE // 4
    for sequence in range(1, 11):
        recorder.put(taken(sequence, series))
    assert recorder.close(END, 10)
    assert [n for _, together in outbox.written for n in together] == list(range(1, 11))
    assert max(len(together) for _, together in outbox.written) <= 4


def valued(sequence: int, value: float = 1.0) -> Snapshot:
    return snapshot(sequence, "manual", {"gauge.x": value})


class Chain:
    """A recorder and its outbox."""

    def __init__(self, tmp_path: Path, queue_limit: int = 1000) -> None:
        file = spool(tmp_path)
        self.path, self.losses = file.path, Losses()
        self.outbox = Outbox(file, lambda why: None, counted=self.losses.totals)
        self.recorder = Recorder(self.outbox, PROCESS, self.losses, queue_limit=queue_limit)

    def account(self) -> Account:
        pending = self.recorder.waiting() + self.outbox.waiting()
        return Account(self.recorder.taken, 0, pending, self.outbox.lost())


def test_an_account_that_does_not_add_up_is_detected() -> None:
    assert Account(10, 4, 3, {"spool_thinned": 2, "refused": 1}).closes
    assert not Account(10, 4, 2, {"spool_thinned": 2, "refused": 1}).closes
    # Losses of anything but snapshots are not included.
    assert Account(1, 1, 0, {"events": 5, "thinned": 3}).closes


def test_an_unwritable_snapshot_is_counted_and_affects_no_other(
    tmp_path: Path, internal_exceptions: Any
) -> None:
    chain = Chain(tmp_path)
    for sequence in (1, 2, 3):
        chain.recorder.put(valued(sequence, math.nan if sequence == 2 else 1.0))
    assert chain.account() == Account(3, 0, 3, {})
    chain.recorder.start()
    assert chain.recorder.flush(5.0)
    assert chain.account() == Account(3, 0, 2, {"recording_failed": 1})
    assert sequences(chain.path) == [1, 3]
    assert chain.recorder.close(END, 5.0)
    assert {type(error) for error in internal_exceptions} == {ValueError}
    internal_exceptions.clear()


def test_losses_after_the_last_snapshot_reach_the_server(
    tmp_path: Path, server: Any, internal_exceptions: Any
) -> None:
    chain = Chain(tmp_path)
    chain.recorder.start()
    chain.recorder.put(valued(1))
    assert chain.recorder.flush(5.0)
    chain.recorder.put(valued(2, math.nan))
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


def test_a_full_queue_is_a_counted_loss(tmp_path: Path) -> None:
    chain = Chain(tmp_path, queue_limit=5)
    for sequence in range(1, 9):
        chain.recorder.put(valued(sequence))
    assert chain.account() == Account(8, 0, 5, {"queue_full": 3})
    chain.recorder.start()
    assert chain.recorder.close(END, 5.0)
    assert chain.account() == Account(8, 0, 5, {"queue_full": 3})
    chain.outbox.close()


@pytest.mark.alone
def test_without_a_thread_snapshots_are_written_at_the_end(
    tmp_path: Path,
) -> None:
    file = spool(tmp_path)
    recorder = Recorder(Outbox(file, lambda why: None), PROCESS, Losses())
    with no_threads(), pytest.raises(RuntimeError):
        recorder.start()
    for number in (1, 2, 3):
        recorder.put(snapshot(number))
    assert recorder.close(END, 5.0)
    assert (sequences(file.path), read_end(file.path)) == ([1, 2, 3], END)
    # The recorder's urgent mode does not leak to the program's thread.
    assert not threads.hurried()


def test_a_full_queue_never_blocks() -> None:
    """The outbox is on a disk that does not answer."""
    outbox, losses = Slow(), Losses()
    recorder = Recorder(outbox, PROCESS, losses, queue_limit=50)  # type: ignore[arg-type]
    recorder.start()
    started = time.perf_counter()
    for sequence in range(1, 5001):
        recorder.put(snapshot(sequence))
    # A blocking put would wait the ten seconds of the outbox.
    assert time.perf_counter() - started < 8.0
    assert recorder._queue.qsize() <= 50
    assert losses.totals()["queue_full"] >= 5000 - 2 * 50 - 1
    outbox.let_go.set()
    assert recorder.close({}, 5.0)


def test_snapshots_dropped_while_being_sent_are_not_counted_twice() -> None:
    memory = SpoolMemory(limit=10)
    for n in range(1, 11):
        memory.append(batch(n))
    _, mark = memory.unsent(limit=4)
    for n in range(11, 21):
        memory.append(batch(n))
    memory.accept(mark, SERVER)
    assert memory.waiting() + sum(memory.lost().values()) == 20 - 4
    batches, _ = memory.unsent()
    assert numbers(batches) == list(range(15, 21))


def test_an_unreadable_file_is_replaced_by_memory_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    outbox = Outbox(spool(tmp_path), said.append)
    outbox.append(batch(1))
    closed = SpoolError(tmp_path, "cannot be read (the program keeps closing it)")

    def unreadable(_limit: int) -> NoReturn:
        raise closed

    monkeypatch.setattr(outbox.file, "unsent", unreadable)
    assert outbox.unsent()[0] == []
    outbox.append(batch(2))
    batches, _ = outbox.unsent()
    assert numbers(batches) == [2]
    assert said == [str(closed)]
    # The first snapshot, which waits in the file, still counts.
    assert outbox.waiting() == 2


@pytest.mark.long
def test_the_account_adds_up_at_any_moment_of_a_run(
    server: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline.settings.SMALLEST_SPOOL_LIMIT_BYTES", 0)
    monkeypatch.setenv("LEAKLINE_SPOOL_LIMIT", "48 KiB")
    # The server accepts nothing until much has been thinned.
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
