"""One request: accepted, retry later, or refused, whatever a network or a server does."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest

from leakline.delivery import (
    Accepted,
    Delivery,
    Refused,
    RetryLater,
    encode,
    request_json,
)
from leakline.errors import ServerRefused, ServerUnreachable


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def raw_server() -> Iterator[Callable[[bytes], str]]:
    """A server that answers every connection with the same bytes and closes it."""
    listening: list[socket.socket] = []

    def serve(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for listener in listening:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_nobody_there_is_retry_later(free_port: int) -> None:
    outcome = Delivery(f"http://127.0.0.1:{free_port}").request("POST", "/runs", {})
    assert isinstance(outcome, RetryLater)
    assert "refused" in outcome.why.lower()


def test_a_server_that_never_answers_is_retry_later_within_the_time(server: Any) -> None:
    server.hold = threading.Event()
    outcome = Delivery(server.address, timeout_seconds=0.2).request("POST", "/runs", {})
    assert isinstance(outcome, RetryLater)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>hello</html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20000,
    ],
)  # fmt: skip
def test_garbage_is_retry_later(raw_server: Callable[[bytes], str], answer: bytes) -> None:
    outcome = Delivery(raw_server(answer), timeout_seconds=2).request("POST", "/runs", {})
    assert isinstance(outcome, RetryLater)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507, 520, 599])
def test_not_now_is_retry_later(server: Any, status: int) -> None:
    server.answer(status, {"error": {"message": "busy"}}, Retry_After="7")
    outcome = Delivery(server.address).request("POST", "/runs", {})
    assert outcome == RetryLater("busy", 7.0, status)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 409, 413, 422, 501])
def test_any_other_error_is_the_last_word(server: Any, status: int) -> None:
    server.answer(status, {"error": {"code": "wrong", "message": "told in a sentence"}})
    outcome = Delivery(server.address).request("POST", "/runs", {})
    assert outcome == Refused(status, "wrong", "told in a sentence")


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
    raw_server: Callable[[bytes], str], told: str, seconds: float | None
) -> None:
    answer = (
        "HTTP/1.1 503 Busy\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\n"
        f"Retry-After: {told}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    outcome = Delivery(raw_server(answer.encode("latin-1"))).request("POST", "/runs", {})
    assert outcome == RetryLater("status 503", seconds, 503)


def test_a_date_to_come_back_at_counts_from_our_clock_when_the_server_tells_none(
    raw_server: Callable[[bytes], str],
) -> None:
    at = formatdate(time.time() + 60, usegmt=True)
    answer = f"HTTP/1.1 429 Slow\r\nRetry-After: {at}\r\nContent-Length: 0\r\n\r\n".encode()
    outcome = Delivery(raw_server(answer)).request("POST", "/runs", {})
    assert isinstance(outcome, RetryLater)
    assert outcome.after_seconds == pytest.approx(60, abs=3)


def test_what_a_server_writes_cannot_steer_a_terminal(server: Any) -> None:
    server.answer(400, {"error": {"code": "a\x1bb", "message": "\x1b[2J\n\ud800 wiped"}})
    outcome = Delivery(server.address).request("POST", "/runs", {})
    assert outcome == Refused(400, "a b", "[2J   wiped")


def test_an_error_without_our_form_is_refused_by_its_status(server: Any) -> None:
    server.answer(403, b"<html>go away</html>")
    assert Delivery(server.address).request("GET", "/runs") == Refused(403, "unknown", "status 403")


def test_the_connection_is_kept_and_a_closed_one_is_opened_again(
    make_server: Callable[..., Any],
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
    assert large.compressed
    assert len(large.data) < 200


def test_a_body_with_nan_is_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"x": float("nan")})


def test_a_command_hears_in_one_line_that_nobody_answers(free_port: int) -> None:
    with pytest.raises(ServerUnreachable, match="leakline serve"):
        request_json(f"http://127.0.0.1:{free_port}", "GET", "/runs")


def test_a_command_hears_what_the_server_refused(server: Any) -> None:
    server.answer(404, {"error": {"code": "no_such_run", "message": "no run x"}})
    with pytest.raises(ServerRefused, match="no run x") as caught:
        request_json(server.address, "GET", "/runs/x")
    assert (caught.value.status, caught.value.code) == (404, "no_such_run")


def test_a_command_gets_the_answer(server: Any) -> None:
    server.answer(200, {"items": []})
    assert request_json(server.address, "GET", "/runs") == {"items": []}
    assert json.loads(encode({"a": 1}).data) == {"a": 1}
