"""Recorded first, sent in order, retried, split, counted: against a real server that misbehaves."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.delivery import Delivery
from leakline.notices import Notices
from leakline.outbox import SafeOutbox
from leakline.recorder import Losses, Recorder
from leakline.sender import Sender
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot
from leakline.spool_file import SpoolFile
from leakline.uploading import upload

HEADER = RunHeader("run-1", "p", "n", "generation", None, 1.0)
PROCESS = ProcessIdentity("instance-1")
END = {"state": "finished", "ended_at": 2.0, "reason": ""}


def snapshot(sequence: int) -> Snapshot:
    return Snapshot(
        sequence, 1.0, 2.0, 0, None, f"label {sequence}", "manual", {"process.rss_bytes": sequence}
    )


class Chain:
    """Recorder, outbox and sender, wired as `Run` does it, against one address.

    It tells of its run at once: a server that is to be held, or has answers, is so before.
    """

    def __init__(self, tmp_path: Path, address: str, timeout_seconds: float = 10.0) -> None:
        self.path = tmp_path / "run-1" / "instance-1.spool"
        self.losses = Losses()
        self.outbox = SafeOutbox(SpoolFile(self.path, HEADER, PROCESS), lambda why: None)
        # No pause between tries: a test shall not wait for the jitter of an outage.
        self.sender = Sender(
            self.outbox, Delivery(address, timeout_seconds=timeout_seconds), HEADER, PROCESS, self.losses,
            Notices(True), jitter=lambda: -0.9,
        )  # fmt: skip
        self.recorder = Recorder(self.outbox, PROCESS, self.losses, news=self.sender.wake)
        self.recorder.start()
        self.sender.start()

    def put(self, *sequences: int) -> None:
        for sequence in sequences:
            self.recorder.put(snapshot(sequence))

    def close(self, seconds: float = 5.0) -> bool:
        assert self.recorder.close(END, 5.0)
        return self.sender.close(END, seconds)


def test_everything_arrives_once_in_order_and_the_end_is_told(tmp_path: Path, server: Any) -> None:
    chain = Chain(tmp_path, server.address)
    chain.put(*range(1, 501))
    assert chain.close()
    assert server.sequences == list(range(1, 501))
    assert server.headers[0]["id"] == "run-1"
    assert server.headers[0]["process"]["instance"] == "instance-1"
    assert server.ends == [{**END, "instance": "instance-1"}]
    assert max(len(batch.snapshots) for batch in server.batches) <= 200


def test_a_server_absent_from_the_start_gets_everything_when_it_comes(
    tmp_path: Path, make_server: Callable[..., Any], until: Callable[..., None]
) -> None:
    port = make_server()
    address = port.address
    port.stop()
    chain = Chain(tmp_path, address)
    chain.put(1, 2, 3)
    until(lambda: chain.sender.failures > 0)
    back = make_server(int(address.rpartition(":")[2]))
    until(lambda: len(back.sequences) == 3)
    assert chain.close()
    assert back.sequences == [1, 2, 3]


def test_a_server_absent_until_the_end_leaves_everything_in_the_spool(
    tmp_path: Path, make_server: Callable[..., Any]
) -> None:
    gone = make_server()
    gone.stop()
    chain = Chain(tmp_path, gone.address)
    chain.put(1, 2, 3)
    assert not chain.close()
    back = make_server(int(gone.address.rpartition(":")[2]))
    delivery = Delivery(back.address)
    first, second = upload(chain.path, delivery), upload(chain.path, delivery)
    assert (first.sent, first.state) == (3, "finished")
    assert (second.sent, second.state) == (0, "finished")
    assert back.sequences == [1, 2, 3]
    assert back.ends == [{**END, "instance": "instance-1"}]


def test_a_server_that_forgot_the_run_is_told_of_it_again(tmp_path: Path, server: Any) -> None:
    server.answer(200, {})
    server.answer(404, {"error": {"code": "no_such_run", "message": "no such run"}})
    chain = Chain(tmp_path, server.address)
    chain.put(1)
    assert chain.close()
    assert [path for _, path in server.requests].count("/api/v1/runs") == 2
    assert server.sequences == [1]


def test_too_many_requests_are_waited_for(
    tmp_path: Path, server: Any, until: Callable[..., None]
) -> None:
    server.answer(429, {"error": {"message": "slow down"}}, Retry_After="1")
    started = time.monotonic()
    chain = Chain(tmp_path, server.address)
    chain.put(1)
    until(lambda: server.sequences == [1])
    assert time.monotonic() - started > 0.9
    assert chain.close()


def test_a_batch_too_large_for_the_server_is_split(tmp_path: Path, server: Any) -> None:
    server.refuse_batches_over = 100
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    chain.put(*range(1, 201))
    assert chain.recorder.flush(5.0)
    server.hold.set()
    assert chain.close()
    assert sorted(server.sequences) == list(range(1, 201))
    assert chain.losses.totals() == {}


def test_a_batch_that_is_too_large_even_when_split_is_posted_no_third_time(
    tmp_path: Path, server: Any
) -> None:
    server.refuse_batches_over = 0
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    chain.put(*range(1, 41))
    assert chain.recorder.flush(5.0)
    server.hold.set()
    assert chain.close()
    assert server.sequences == []
    assert chain.losses.totals() == {"too_large": 40}
    # Whole and in two halves; then that they are lost.
    assert [path for _, path in server.requests].count("/api/v1/runs/run-1/batches") == 4
    assert [batch.lost for batch in server.batches] == [{"too_large": 40}]


def test_a_refused_batch_stays_in_the_spool_for_another_upload(tmp_path: Path, server: Any) -> None:
    server.refuse_sequence = 7
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    chain.put(*range(1, 51))
    assert chain.recorder.flush(5.0)
    server.hold.set()
    assert chain.close()
    assert server.sequences == []
    assert chain.losses.totals() == {"refused": 50}
    # Once; then that they are lost.
    assert [path for _, path in server.requests].count("/api/v1/runs/run-1/batches") == 2
    assert [batch.lost for batch in server.batches] == [{"refused": 50}]
    server.refuse_sequence = 0
    assert upload(chain.path, Delivery(server.address)).sent == 0
    assert upload(chain.path, Delivery(server.address), again=True).sent == 50
    assert server.sequences == list(range(1, 51))


def test_what_was_refused_is_not_sent_again_when_the_rest_has_to_wait(
    tmp_path: Path, server: Any, until: Callable[..., None]
) -> None:
    """Three parts of one reading of the outbox: refused, "not now", accepted; the first is posted once."""
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    for sequence in (1, 2, 3):
        wide = {f"type.C{sequence}_{i}.count": i for i in range(3000)}
        chain.recorder.put(Snapshot(sequence, 1.0, 2.0, 0, None, "", "manual", wide))
    assert chain.recorder.flush(5.0)
    server.answer(200, {})
    server.answer(422, {"error": {"code": "wrong", "message": "wrong"}})
    server.answer(503, {})
    server.hold.set()
    until(lambda: server.sequences == [2, 3])
    assert chain.close()
    assert server.sequences == [2, 3]
    assert chain.losses.totals() == {"refused": 1}
    assert chain.sender.sent == 2


def test_a_snapshot_too_large_for_any_server_is_counted_and_its_neighbours_arrive(
    tmp_path: Path, server: Any
) -> None:
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    huge = Event(2, 1.0, "note", "n", data={"text": random.Random(1).randbytes(600_000).hex()})
    chain.recorder.put(snapshot(1))
    chain.recorder.put(Snapshot(2, 1.0, 2.0, 0, None, "", "manual", {"gauge.x": 1}, events=(huge,)))
    chain.recorder.put(snapshot(3))
    assert chain.recorder.flush(5.0)
    server.hold.set()
    assert chain.close()
    assert server.sequences == [1, 3]
    assert chain.losses.totals() == {"too_large": 1}


def test_a_part_stays_within_what_a_server_takes(tmp_path: Path, server: Any) -> None:
    """Every snapshot has names of its own: together they would be more series than a batch may have."""
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    for sequence in range(1, 101):
        own = {f"gauge.loss_{sequence}_{i}": i for i in range(100)}
        chain.recorder.put(Snapshot(sequence, 1.0, 2.0, 0, None, "", "manual", own))
    assert chain.recorder.flush(5.0)
    server.hold.set()
    assert chain.close(20.0)
    assert server.sequences == list(range(1, 101))
    for batch in server.batches:
        assert len({name for s in batch.snapshots for name in s.samples}) <= 4000


def test_no_server_silences_the_sender_for_longer_than_five_minutes(
    tmp_path: Path, server: Any, until: Callable[..., None]
) -> None:
    server.answer(503, {}, Retry_After="999999999")
    chain = Chain(tmp_path, server.address)
    until(lambda: chain.sender.failures > 0)
    until(lambda: chain.sender._not_before > time.monotonic() + 100)
    assert chain.sender._not_before <= time.monotonic() + 300
    chain.put(1)
    # At the end it is asked once more: this is the last chance.
    assert chain.close()
    assert server.sequences == [1]


def test_many_ranks_do_not_come_back_at_the_same_moment(tmp_path: Path, server: Any) -> None:
    pauses = []
    for jitter in (0.0, 0.5, 0.999):
        server.answer(503, {})
        sender = Sender(
            SafeOutbox(None, lambda why: None), Delivery(server.address), HEADER, PROCESS, Losses(),
            Notices(True), clock=lambda: 100.0, jitter=lambda jitter=jitter: jitter,
        )  # fmt: skip
        assert not sender._announce()
        pauses.append(sender._not_before - 100.0)
    assert pauses == [pytest.approx(0.25), pytest.approx(0.375), pytest.approx(0.5, abs=0.001)]


@pytest.mark.parametrize("status", [400, 409, 422])
def test_a_refused_batch_is_never_sent_again_and_counted(
    tmp_path: Path, server: Any, status: int, until: Callable[..., None]
) -> None:
    server.answer(200, {})
    server.answer(status, {"error": {"code": "wrong", "message": "wrong"}})
    chain = Chain(tmp_path, server.address)
    chain.put(1)
    until(lambda: chain.losses.totals() == {"refused": 1})
    chain.put(2)
    assert chain.close()
    assert server.sequences == [2]


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 405, 409, 413, 422, 451])
def test_a_refused_run_stops_sending_and_stays_in_the_spool(
    tmp_path: Path, server: Any, status: int
) -> None:
    server.answer(status, {"error": {"code": "no", "message": "no"}})
    chain = Chain(tmp_path, server.address)
    chain.put(1, 2)
    assert not chain.close()
    assert len(server.requests) == 1
    assert upload(chain.path, Delivery(server.address)).sent == 2


def test_a_server_that_is_back_after_an_hour_is_found_within_half_a_minute(tmp_path: Path) -> None:
    """With a clock of its own: the thread is not started, its tries are made here."""
    now = 0.0
    sender = Sender(
        SafeOutbox(None, lambda why: None), Delivery("http://127.0.0.1:9"), HEADER, PROCESS, Losses(),
        Notices(True), clock=lambda: now, jitter=lambda: 0.999,
    )  # fmt: skip
    tries = 0
    while now < 3600:
        sender._send_all()
        tries += 1
        assert now < sender._not_before <= now + 30
        now = sender._not_before
    # Not a try a second, and not one in ten minutes.
    assert 100 < tries < 150


def test_catching_up_takes_a_share_of_a_core_and_an_exit_does_not_wait_for_it(
    tmp_path: Path, server: Any, until: Callable[..., None]
) -> None:
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    for sequence in range(1, 1001):
        chain.recorder.put(replace(snapshot(sequence), time=float(sequence)))
        if sequence % 250 == 0:
            assert chain.recorder.flush(5.0)
    server.hold.set()
    until(lambda: len(server.sequences) >= 200)
    # Some two hundred times as long a rest as it took to send them.
    until(lambda: chain.sender._not_before > time.monotonic() + 0.2)
    assert chain.close()
    assert server.sequences == list(range(1, 1001))


def test_a_server_in_trouble_gets_the_same_snapshots_later(
    tmp_path: Path, server: Any, until: Callable[..., None]
) -> None:
    for status in (500, 503, 502):
        server.answer(status, b"<html>oops</html>")
    server.answer(200, b"not json")
    chain = Chain(tmp_path, server.address)
    chain.put(1, 2)
    until(lambda: sorted(set(server.sequences)) == [1, 2])
    assert chain.close()


@pytest.mark.alone
def test_a_black_hole_never_holds_up_recording(tmp_path: Path, server: Any) -> None:
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address, timeout_seconds=30.0)
    chain.put(1)
    assert chain.recorder.flush(5.0)
    started = time.monotonic()
    chain.put(*range(2, 102))
    assert chain.recorder.flush(5.0)
    assert time.monotonic() - started < 2.0
    assert not chain.sender.close(END, 0.3)
    server.hold.set()


@pytest.mark.alone
def test_a_full_queue_is_a_counted_loss_and_never_a_wait() -> None:
    class Blocked:
        """An outbox on a disk that does not answer."""

        def __init__(self) -> None:
            self.gate = threading.Event()

        def append(self, batch: Batch) -> None:
            self.gate.wait(30)

        def append_end(self, end: object) -> None: ...

        def lost(self) -> dict[str, int]:
            return {}

    outbox, losses = Blocked(), Losses()
    recorder = Recorder(outbox, PROCESS, losses, queue_limit=50)  # type: ignore[arg-type]
    recorder.start()
    started = time.perf_counter()
    for sequence in range(1, 5001):
        recorder.put(snapshot(sequence))
    assert time.perf_counter() - started < 1.0
    waiting = recorder._queue.qsize()
    assert waiting <= 50
    assert losses.totals()["queue_full"] >= 5000 - 2 * 50 - 1
    outbox.gate.set()
    assert recorder.close({}, 5.0)


def test_a_run_arrives_whole_through_the_public_calls(server: Any, spool_directory: Path) -> None:
    run = leakline.init(project="p", server=server.address, total=3, quiet=True)
    for generation in range(3):
        run.generation(generation)
        with run.phase("train"):
            pass
    run.finish()
    kinds = [s.kind for b in server.batches for s in b.snapshots]
    assert kinds == ["baseline", *["phase_end", "generation_end"] * 3, "finish"]
    assert server.sequences == list(range(1, 9))
    assert server.headers[0]["total"] == 3
    assert server.ends[0]["state"] == "finished"
    assert run.url == f"{server.address}/runs/{run.id}"
    taken = 8
    lost = server.batches[-1].lost
    assert len(server.sequences) + sum(lost.values()) == taken
