"""Whatever a server answers: within the time for one request, within a fixed amount of memory, as "try again later"."""

from __future__ import annotations

import random
import socket
import threading
import time
import tracemalloc

import pytest
from tests.client.faults import ANSWERS, FaultServer

from leakline.delivery import Accepted, Delivery, Refused, RetryLater

SECONDS = 0.5


@pytest.mark.parametrize("mode", ["black hole", "dripping", "slow", *ANSWERS])
def test_every_fault_is_retry_later_within_the_time_and_a_little_memory(
    faulty: FaultServer, mode: str
) -> None:
    delivery = Delivery(faulty.address, timeout_seconds=SECONDS)
    assert isinstance(delivery.request("POST", "/runs", {"id": "a"}), Accepted)
    faulty.set(mode)
    # Made once: the threads of the server are in this process, too.
    ANSWERS["bomb"]().__next__()
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
        delivery = Delivery(f"http://127.0.0.1:{address[1]}", timeout_seconds=SECONDS)
        outcome = delivery.request("POST", "/runs", {})
        for connection in waiting:
            connection.close()
    assert isinstance(outcome, RetryLater)
    assert time.monotonic() - started < SECONDS + 0.5


def test_no_bytes_of_a_server_raise() -> None:
    """Right answers with pieces changed, doubled, cut and swapped."""
    good = [
        b'HTTP/1.1 200 OK\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\nContent-Length: 13\r\n\r\n{"accepted":1}',
        b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b'HTTP/1.0 400 No\r\nContent-Length: 36\r\n\r\n{"error":{"code":"a","message":"b"}}',
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    ]
    dice = random.Random(7)
    answers = [_changed(dice, dice.choice(good)) for _ in range(400)]
    waiting = list(answers)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while waiting:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(waiting.pop())

        threading.Thread(target=answer, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for number in range(len(answers)):
            outcome = Delivery(address, timeout_seconds=5).request("POST", "/runs", {})
            assert isinstance(outcome, (Accepted, Refused, RetryLater)), answers[-1 - number]


def _changed(dice: random.Random, answer: bytes) -> bytes:
    for _ in range(dice.randint(1, 4)):
        at, to = sorted(dice.choices(range(len(answer) + 1), k=2))
        piece = dice.choice(
            [b"", b"\x00", b"\r\n", b"9" * 30, b"-1", b":", b"\xff\xfe", b"\n\n", dice.randbytes(3)]
        )
        answer = dice.choice([answer[:at] + piece + answer[to:], answer[:to] + answer[at:]])
    return answer


def test_an_answer_may_be_as_long_as_the_limit_and_no_longer() -> None:
    for length, kind in ((64 * 1024, Accepted), (64 * 1024 + 1, RetryLater)):
        body = b'{"a":"' + b"x" * (length - 8) + b'"}'
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer(all_of_it: bytes, listener: socket.socket = listener) -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(all_of_it)
                    connection.recv(1)

            threading.Thread(target=answer, args=(head + body,), daemon=True).start()
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            delivery = Delivery(address, timeout_seconds=5)
            outcome = delivery.request("GET", "/runs")
            delivery.close()
        assert isinstance(outcome, kind)
