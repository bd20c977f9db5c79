"""One request: accepted, retry later, or refused, whatever a network or a server does, in time and in little memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
from tests.client.faults import ANSWERS, FaultServer

from leakline.errors import ServerRefused, ServerUnreachable
from leakline.transport.http_delivery import (
    Accepted,
    Delivery,
    Outcome,
    Refused,
    RetryLater,
    encode,
    request_json,
)

SECONDS = 0.5
Raw = Callable[[Iterable[bytes]], str]


@pytest.fixture
def raw_server() -> Iterator[Raw]:
    """The address of a server that answers each connection with the next bytes and closes it."""
    listening: list[socket.socket] = []

    def serve(answers: Iterable[bytes]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)

        def loop() -> None:
            for answer in answers:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(ConnectionError):
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    # A closed socket that has more to read would take back what it has written.
                    connection.recv(1)

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for listener in listening:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def post(address: str, timeout_seconds: float = 5.0) -> Outcome:
    return Delivery(address, timeout_seconds=timeout_seconds).request("POST", "/runs", {"id": "a"})


def test_nobody_there_is_retry_later_and_one_line_for_a_command(server: Any) -> None:
    server.stop()
    outcome = post(server.address)
    assert isinstance(outcome, RetryLater)
    assert "refused" in outcome.why.lower()
    with pytest.raises(ServerUnreachable, match="leakline serve"):
        request_json(server.address, "GET", "/runs")


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>hello</html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20000,
    ],
)  # fmt: skip
def test_garbage_is_retry_later(raw_server: Raw, answer: bytes) -> None:
    assert isinstance(post(raw_server([answer] * 2)), RetryLater)


def test_some_errors_are_retry_later_and_any_other_is_the_last_word(server: Any) -> None:
    for status in (408, 425, 429, 500, 502, 507, 599):
        server.answer(status, {"error": {"message": "busy"}}, Retry_After="7")
        assert post(server.address) == RetryLater("busy", 7.0, status)
    for status in (301, 400, 404, 413, 501):
        server.answer(status, {"error": {"code": "wrong", "message": "told in a sentence"}})
        assert post(server.address) == Refused(status, "wrong", "told in a sentence")


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("0", 0.0), ("120", 120.0), (" 7 ", 7.0),
        # Dates count from the server's own clock, and one in the past asks for nothing.
        ("Sun, 22 Nov 2026 12:00:30 GMT", 30.0), ("Sun, 22 Nov 2026 11:59:00 GMT", 0.0),
        ("-5", None), ("soon", None), ("9" * 400, float("inf")), ("Sun, 99 Nov 2026", None),
        ("Sun, 22 Nov 99999999999999999999 12:00:30 GMT", None), ("1.5", None), ("\xb2", None), ("", None),
    ],
)  # fmt: skip
def test_a_server_says_when_to_come_back_as_seconds_or_as_a_date(
    raw_server: Raw, told: str, seconds: float | None
) -> None:
    answer = (
        "HTTP/1.1 503 Busy\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\n"
        f"Retry-After: {told}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    assert post(raw_server([answer.encode("latin-1")])) == RetryLater("status 503", seconds, 503)


def test_a_date_to_come_back_at_counts_from_our_clock_when_the_server_tells_none(
    raw_server: Raw,
) -> None:
    at = formatdate(time.time() + 60, usegmt=True)
    answer = f"HTTP/1.1 429 Slow\r\nRetry-After: {at}\r\nContent-Length: 0\r\n\r\n".encode()
    outcome = post(raw_server([answer]))
    assert isinstance(outcome, RetryLater)
    assert outcome.after_seconds == pytest.approx(60, abs=3)


def test_what_a_server_writes_cannot_steer_a_terminal_and_needs_not_be_ours(server: Any) -> None:
    server.answer(400, {"error": {"code": "a\x1bb", "message": "\x1b[2J\n\ud800 wiped"}})
    assert post(server.address) == Refused(400, "a b", "[2J   wiped")
    server.answer(403, b"<html>go away</html>")
    assert post(server.address) == Refused(403, "unknown", "status 403")


def test_the_connection_is_kept_and_a_closed_one_is_opened_again(
    make_server: Any,
) -> None:
    first = make_server()
    delivery = Delivery(first.address)
    assert isinstance(delivery.request("POST", "/runs", {}), Accepted)
    kept = delivery._connection
    assert isinstance(delivery.request("POST", "/runs", {}), Accepted)
    assert delivery._connection is kept
    assert kept is not None
    # What a server does that keeps connections for a while only.
    kept.sock._sock.shutdown(socket.SHUT_RDWR)
    assert isinstance(delivery.request("POST", "/runs", {}), Accepted)
    assert len(first.requests) == 3


def test_large_bodies_are_compressed_and_small_ones_are_not() -> None:
    small, large = encode({"a": 1}), encode({"a": [0] * 2000})
    assert not small.compressed
    assert json.loads(small.data) == {"a": 1}
    assert large.compressed
    assert len(large.data) < 200


def test_a_body_with_nan_is_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"x": float("nan")})


def test_a_command_hears_what_the_server_answered_or_refused(server: Any) -> None:
    server.answer(200, {"items": []})
    assert request_json(server.address, "GET", "/runs") == {"items": []}
    server.answer(404, {"error": {"code": "no_such_run", "message": "no run x"}})
    with pytest.raises(ServerRefused, match="no run x") as caught:
        request_json(server.address, "GET", "/runs/x")
    assert (caught.value.status, caught.value.code) == (404, "no_such_run")


@pytest.mark.parametrize("mode", ["black hole", "dripping", "slow", *ANSWERS])
def test_every_fault_is_retry_later_within_the_time_and_a_little_memory(
    faulty: FaultServer, mode: str
) -> None:
    delivery = Delivery(faulty.address, timeout_seconds=SECONDS)
    assert isinstance(delivery.request("POST", "/runs", {"id": "a"}), Accepted)
    faulty.set(mode)
    tracemalloc.start()
    started = time.monotonic()
    outcome = delivery.request("POST", "/runs", {"id": "a"})
    seconds = time.monotonic() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(outcome, RetryLater)
    assert len(outcome.why) <= 500
    assert seconds < SECONDS + 0.5
    assert peak < 2 * 2**20
    faulty.set("healthy")
    assert isinstance(delivery.request("POST", "/runs", {"id": "a"}), Accepted)


def test_a_server_that_reads_a_byte_at_a_time_is_given_up_in_time() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    done = threading.Event()

    def read_slowly() -> None:
        connection, _ = listener.accept()
        with connection:
            while not done.wait(0.05) and connection.recv(1):
                pass

    threading.Thread(target=read_slowly, daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    started = time.monotonic()
    body = {"incompressible": random.Random(1).randbytes(8_000_000).hex()}
    delivery = Delivery(address, timeout_seconds=SECONDS)
    outcome = delivery.request("POST", "/runs", body)
    done.set()
    listener.close()
    assert isinstance(outcome, RetryLater)
    # Packing these 16 MB is most of it.
    assert time.monotonic() - started < 5


@pytest.mark.alone
def test_a_network_that_swallows_connections_is_given_up_in_time() -> None:
    """Nobody accepts, and the queue is full: the kernel answers no further connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(address)
        started = time.monotonic()
        outcome = post(f"http://127.0.0.1:{address[1]}", SECONDS)
        for connection in waiting:
            connection.close()
    assert isinstance(outcome, RetryLater)
    assert time.monotonic() - started < SECONDS + 0.5


def test_no_bytes_of_a_server_raise(raw_server: Raw) -> None:
    """Right answers with pieces changed, doubled, cut and swapped."""
    good = [
        b'HTTP/1.1 200 OK\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\nContent-Length: 13\r\n\r\n{"accepted":1}',
        b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b'HTTP/1.0 400 No\r\nContent-Length: 36\r\n\r\n{"error":{"code":"a","message":"b"}}',
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    ]
    dice = random.Random(7)
    answers = [_changed(dice, dice.choice(good)) for _ in range(400)]
    # Some ask for a second connection.
    address = raw_server(itertools.cycle(answers))
    for _ in answers:
        assert isinstance(post(address), (Accepted, Refused, RetryLater))


def _changed(dice: random.Random, answer: bytes) -> bytes:
    for _ in range(dice.randint(1, 4)):
        at, to = sorted(dice.choices(range(len(answer) + 1), k=2))
        piece = dice.choice(
            [b"", b"\x00", b"\r\n", b"9" * 30, b"-1", b":", b"\xff\xfe", b"\n\n", dice.randbytes(3)]
        )
        answer = dice.choice([answer[:at] + piece + answer[to:], answer[:to] + answer[at:]])
    return answer


def test_an_answer_may_be_as_long_as_the_limit_and_no_longer(raw_server: Raw) -> None:
    for length, kind in ((64 * 1024, Accepted), (64 * 1024 + 1, RetryLater)):
        body = b'{"a":"' + b"x" * (length - 8) + b'"}'
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
        assert isinstance(post(raw_server([head + body] * 2)), kind)
