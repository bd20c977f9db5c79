"""Snapshots are recorded, then sent in order, retried, split and counted, against a real server that misbehaves."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import no_threads
from tests.client.spools import END, HEADER, PROCESS, snapshot, spool

import leakline
from leakline.console import Notices
from leakline.snapshot import Event, RunHeader, Snapshot
from leakline.transport.http_delivery import Delivery
from leakline.transport.recorder import Losses, Recorder
from leakline.transport.sender import Sender
from leakline.transport.spool_file import Outbox
from leakline.transport.spool_upload import upload


def manual(sequence: int, samples: dict[str, Any] | None = None, **more: Any) -> Snapshot:
    return snapshot(sequence, "manual", samples or {"process.rss_bytes": sequence}, **more)


class Chain:
    """Recorder, outbox and sender, wired as in `Run`.

    The run is announced immediately, so a test prepares the server's answers before it.
    """

    def __init__(
        self, tmp_path: Path, address: str, quiet: bool = True, header: RunHeader = HEADER
    ) -> None:
        file = spool(tmp_path, 2**28)
        self.path, self.losses = file.path, Losses()
        self.outbox = Outbox(file, lambda why: None)
        # No pause between attempts, so that a test does not wait for the backoff of an outage.
        self.sender = Sender(
            self.outbox, Delivery(address), header, PROCESS, self.losses, Notices(quiet), jitter=lambda: -0.9
        )  # fmt: skip
        self.recorder = Recorder(self.outbox, PROCESS, self.losses, news=self.sender.wake)
        self.recorder.start()
        self.sender.start()

    def put(self, *sequences: int) -> None:
        for sequence in sequences:
            self.recorder.put(manual(sequence))

    def close(self, seconds: float = 5.0) -> bool:
        assert self.recorder.close(END, 5.0)
        return self.sender.close(END, seconds)


def held(tmp_path: Path, server: Any, *snapshots: Snapshot) -> Chain:
    """Return a chain whose snapshots are all recorded before the server answers anything."""
    server.hold = threading.Event()
    chain = Chain(tmp_path, server.address)
    for each in snapshots:
        chain.recorder.put(each)
        assert each.sequence % 250 or chain.recorder.flush(5.0)
    assert chain.recorder.flush(5.0)
    server.hold.set()
    return chain


def resting(delivery: Delivery, clock: Callable[[], float], jitter: float) -> Sender:
    """Return a sender with the given clock and without its thread."""
    return Sender(
        Outbox(None, lambda why: None), delivery, HEADER, PROCESS, Losses(), Notices(True),
        clock=clock, jitter=lambda: jitter,
    )  # fmt: skip


BATCHES = ("POST", "/api/v1/runs/run-1/batches")


def test_everything_arrives_once_in_order_with_the_end(tmp_path: Path, server: Any) -> None:
    chain = Chain(tmp_path, server.address)
    chain.put(*range(1, 501))
    assert chain.close()
    assert server.sequences == list(range(1, 501))
    assert server.headers[0]["id"] == "run-1"
    assert server.headers[0]["process"]["instance"] == "instance-1"
    assert server.ends == [{**END, "instance": "instance-1"}]
    assert max(len(batch.snapshots) for batch in server.batches) <= 200


def test_a_server_started_later_gets_everything(
    tmp_path: Path, make_server: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "leakline")
    port = make_server()
    address = port.address
    port.stop()
    chain = Chain(tmp_path, address, quiet=False)
    chain.put(1, 2, 3)
    until(lambda: chain.sender.failures > 0)
    back = make_server(int(address.rpartition(":")[2]))
    until(lambda: len(back.sequences) == 3)
    assert chain.close()
    assert back.sequences == [1, 2, 3]
    outage, over = caplog.messages
    assert outage.startswith(f"leakline: cannot reach a Leakline server at {address} (")
    assert over == f"leakline: {address} answers again; no recorded data is waiting"


def test_a_failing_server_gets_the_same_snapshots_later(
    tmp_path: Path, server: Any, until: Any
) -> None:
    for status in (500, 503, 502):
        server.answer(status, b"<html>oops</html>")
    server.answer(200, b"not json")
    chain = Chain(tmp_path, server.address)
    chain.put(1, 2)
    until(lambda: sorted(set(server.sequences)) == [1, 2])
    assert chain.close()


def test_without_a_server_everything_stays_in_the_spool(tmp_path: Path, make_server: Any) -> None:
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


def test_the_run_is_announced_again_to_a_server_that_forgot_it(tmp_path: Path, server: Any) -> None:
    server.answer(200, {})
    server.answer(404, {"error": {"code": "no_such_run", "message": "no such run"}})
    chain = Chain(tmp_path, server.address, header=replace(HEADER, resume="must"))
    chain.put(1)
    assert chain.close()
    assert [path for _, path in server.requests].count("/api/v1/runs") == 2
    # The run existed when the process joined it.
    assert [header["resume"] for header in server.headers] == ["allow"]
    assert server.sequences == [1]


def test_a_batch_too_large_for_the_server_is_split(tmp_path: Path, server: Any) -> None:
    server.refuse_batches_over = 100
    chain = held(tmp_path, server, *map(manual, range(1, 201)))
    assert chain.close()
    assert sorted(server.sequences) == list(range(1, 201))
    assert chain.losses.totals() == {}


def test_a_batch_too_large_even_when_split_is_not_posted_again(tmp_path: Path, server: Any) -> None:
    server.refuse_batches_over = 0
    chain = held(tmp_path, server, *map(manual, range(1, 41)))
    assert chain.close()
    assert server.sequences == []
    assert chain.losses.totals() == {"too_large": 40}
    # The entire batch and its two halves, then the report of the loss.
    assert server.requests.count(BATCHES) == 4
    assert [batch.lost for batch in server.batches] == [{"too_large": 40}]


def test_a_refused_batch_stays_in_the_spool_for_another_upload(tmp_path: Path, server: Any) -> None:
    server.refuse_sequence = 7
    chain = held(tmp_path, server, *map(manual, range(1, 51)))
    assert chain.close()
    assert server.sequences == []
    assert chain.losses.totals() == {"refused": 50}
    # One attempt, then the report of the loss.
    assert server.requests.count(BATCHES) == 2
    assert [batch.lost for batch in server.batches] == [{"refused": 50}]
    server.refuse_sequence = 0
    assert upload(chain.path, Delivery(server.address)).sent == 0
    assert upload(chain.path, Delivery(server.address), again=True).sent == 50
    assert server.sequences == list(range(1, 51))


@pytest.mark.parametrize("status", [400, 409])
def test_a_refused_batch_is_counted_and_the_next_is_sent(
    tmp_path: Path, server: Any, until: Any, status: int
) -> None:
    server.answer(200, {})
    server.answer(status, {"error": {"code": "wrong", "message": "wrong"}})
    chain = Chain(tmp_path, server.address)
    chain.put(1)
    until(lambda: chain.losses.totals() == {"refused": 1})
    chain.put(2)
    assert chain.close()
    assert server.sequences == [2]


def test_refused_parts_are_not_sent_again_when_others_are_retried(
    tmp_path: Path, server: Any, until: Any
) -> None:
    """One read of the outbox gives three parts: refused, retry later, accepted; the first is posted only once."""
    wide = [{f"type.C{n}_{i}.count": i for i in range(3000)} for n in (1, 2, 3)]
    server.answer(200, {})
    server.answer(422, {"error": {"code": "wrong", "message": "wrong"}})
    server.answer(503, {})
    chain = held(tmp_path, server, *map(manual, (1, 2, 3), wide))
    until(lambda: server.sequences == [2, 3])
    assert chain.close()
    assert server.sequences == [2, 3]
    assert chain.losses.totals() == {"refused": 1}
    assert chain.sender.sent == 2


def test_a_snapshot_too_large_for_any_server_is_counted_and_skipped(
    tmp_path: Path, server: Any
) -> None:
    huge = Event(2, 1.0, "note", "n", data={"text": random.Random(1).randbytes(600_000).hex()})
    chain = held(tmp_path, server, manual(1), manual(2, events=(huge,)), manual(3))
    assert chain.close()
    assert server.sequences == [1, 3]
    assert chain.losses.totals() == {"too_large": 1}


def test_a_part_stays_within_the_limits_of_the_server(tmp_path: Path, server: Any) -> None:
    """Each snapshot has its own series names: together they would exceed the series limit of a batch."""
    own = [{f"gauge.loss_{n}_{i}": i for i in range(100)} for n in range(1, 101)]
    chain = held(tmp_path, server, *map(manual, range(1, 101), own))
    assert chain.close(20.0)
    assert server.sequences == list(range(1, 101))
    for batch in server.batches:
        assert len({name for s in batch.snapshots for name in s.samples}) <= 4000


def test_retry_after_is_capped_at_five_minutes(tmp_path: Path, server: Any, until: Any) -> None:
    server.answer(503, {}, Retry_After="999999999")
    chain = Chain(tmp_path, server.address)
    until(lambda: chain.sender.failures > 0)
    until(lambda: chain.sender._not_before > time.monotonic() + 100)
    assert chain.sender._not_before <= time.monotonic() + 300
    chain.put(1)
    # At the end one more attempt is made, the last chance.
    assert chain.close()
    assert server.sequences == [1]


def test_retries_are_jittered_unless_the_server_sets_the_time(server: Any) -> None:
    pauses = []
    server.answer(429, {"error": {"message": "slow down"}}, Retry_After="7")
    for jitter in (0.0, 0.0, 0.5, 0.999):
        sender = resting(Delivery(server.address), lambda: 100.0, jitter)
        assert not sender._announce()
        pauses.append(sender._not_before - 100.0)
        server.answer(503, {})
    assert pauses == [7.0, 0.25, 0.375, pytest.approx(0.5, abs=0.001)]


@pytest.mark.parametrize("status", [302, 401])
def test_a_refused_run_stops_sending_and_stays_in_the_spool(
    tmp_path: Path, server: Any, status: int
) -> None:
    server.answer(status, {"error": {"code": "no", "message": "no"}})
    chain = Chain(tmp_path, server.address)
    chain.put(1, 2)
    assert not chain.close()
    assert len(server.requests) == 1
    first, second = (upload(chain.path, Delivery(server.address)) for _ in range(2))
    assert (first.sent, first.state, second.sent, second.state) == (2, "finished", 0, "finished")
    assert server.ends == [{**END, "instance": "instance-1"}]


def test_closing_does_not_wait_for_a_sender_without_a_thread(tmp_path: Path) -> None:
    sender = resting(Delivery("http://127.0.0.1:9"), time.monotonic, 0.0)
    with no_threads(), pytest.raises(RuntimeError):
        sender.start()
    began = time.monotonic()
    assert not sender.close(END, 5.0)
    assert time.monotonic() - began < 1.0


def test_a_refused_run_closes_its_connection(tmp_path: Path, server: Any) -> None:
    server.answer(403)
    chain = Chain(tmp_path, server.address)
    chain.put(1)
    assert not chain.close()
    assert chain.sender._delivery._connection is None


def test_a_server_back_after_an_hour_is_found_within_half_a_minute() -> None:
    now = 0.0
    sender = resting(Delivery("http://127.0.0.1:9"), lambda: now, 0.999)
    tries = 0
    while now < 3600:
        sender._send_all()
        tries += 1
        assert now < sender._not_before <= now + 30
        now = sender._not_before
    # Neither an attempt every second nor one in ten minutes.
    assert 100 < tries < 150


def test_catching_up_uses_a_share_of_a_core_and_never_delays_the_exit(
    tmp_path: Path, server: Any, until: Any
) -> None:
    chain = held(tmp_path, server, *(replace(manual(n), time=float(n)) for n in range(1, 1001)))
    until(lambda: len(server.sequences) >= 200)
    # The rest takes about two hundred times as long as sending.
    until(lambda: chain.sender._not_before > time.monotonic() + 0.2)
    assert chain.close()
    assert server.sequences == list(range(1, 1001))


def test_a_run_made_with_the_public_api_arrives_completely(
    server: Any, spool_directory: Path
) -> None:
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
    assert sum(server.batches[-1].lost.values()) == 0
