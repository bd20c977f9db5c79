"""Load generator: many kept connections from one thread send requests when they are due and time the answers.

A connection sends its next request once the previous one is answered and the next one is due. With ``due`` 0 that is
immediately (closed loop); otherwise the time counts from when the request was due, whatever delayed it (open loop).
"""

from __future__ import annotations

import heapq
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]
# Seconds since the start, and the request or a function that makes it when it is due.
Due = tuple[float, "bytes | Callable[[], bytes]"]

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_AFTER: Final = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE)
_BUSY: Final = (429, 503)
TIMEOUT_SECONDS: Final = 120.0


class Failed(Exception):
    """An answer of a server that ends the benchmark. One line."""

    def __init__(self, what: str) -> None:
        super().__init__(" ".join(what.split()))


@dataclass(slots=True)
class Load:
    """Results: ``seconds`` has the latencies by the connection's ``mark``."""

    wall: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    reconnected: int = 0

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())


@dataclass(slots=True, eq=False)
class Plan:
    """The requests of one connection."""

    address: Address
    requests: Iterator[Due]
    mark: str = ""


def at_once(requests: Iterable[bytes]) -> Iterator[Due]:
    return ((0.0, each) for each in requests)


def every(
    seconds: float, offset: float, requests: Iterable[bytes | Callable[[], bytes]]
) -> Iterator[Due]:
    return ((offset + i * seconds, each) for i, each in enumerate(requests))


def closed(address: Address, queues: Sequence[Iterable[bytes]]) -> Load:
    """Send all queues as fast as they are answered, with one connection each."""
    return drive([Plan(address, at_once(queue)) for queue in queues])


def drive(plans: Sequence[Plan], patient: bool = False) -> Load:
    """Run the plans. With ``patient``, refused requests (429, 503) are repeated after Retry-After; else they fail."""
    driver = _Driver(patient)
    return driver.run([_Connection(plan) for plan in plans])


class _Connection:
    __slots__ = ("after", "due", "fresh", "moment", "plan", "received", "request", "sent", "sock")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sock: socket.socket | None = None
        self.received = bytearray()
        self.request: bytes = b""
        self.sent = 0
        self.due = self.moment = 0.0
        self.fresh = True


class _Driver:
    def __init__(self, patient: bool) -> None:
        self._patient = patient
        self._poll = select.epoll()
        self._by_number: dict[int, _Connection] = {}
        self._waiting: list[tuple[float, int, _Connection, bytes | Callable[[], bytes]]] = []
        self._order = 0
        self._under_way = 0
        self.load = Load()

    def run(self, connections: Sequence[_Connection]) -> Load:
        self._began = time.perf_counter()
        for connection in connections:
            self._next(connection)
        while self._waiting or self._under_way:
            self._send_due()
            timeout = TIMEOUT_SECONDS
            if self._waiting:
                timeout = max(0.0, self._waiting[0][0] - self._now())
            events = self._poll.poll(timeout)
            if not events and not self._waiting:
                raise Failed(f"no answer within {TIMEOUT_SECONDS:g} s")
            for number, event in events:
                ready = self._by_number.get(number)
                if ready is not None:
                    self._ready(ready, event)
        self.load.wall = self._now()
        for connection in list(self._by_number.values()):
            self._close(connection)
        self._poll.close()
        return self.load

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _next(self, connection: _Connection) -> None:
        try:
            due, request = next(connection.plan.requests)
        except StopIteration:
            return
        self._wait(due, connection, request)

    def _wait(
        self, due: float, connection: _Connection, request: bytes | Callable[[], bytes]
    ) -> None:
        self._order += 1
        heapq.heappush(self._waiting, (due, self._order, connection, request))

    def _send_due(self) -> None:
        now = self._now()
        while self._waiting and self._waiting[0][0] <= now:
            due, _, connection, request = heapq.heappop(self._waiting)
            connection.request = request() if callable(request) else request
            connection.due = due
            self._under_way += 1
            connection.moment = max(due, 0.0) if due else self._now()
            self._begin(connection)

    def _begin(self, connection: _Connection) -> None:
        connection.sent = 0
        connection.received.clear()
        if connection.sock is None:
            self._connect(connection)
        self._send(connection)

    def _connect(self, connection: _Connection) -> None:
        sock = socket.create_connection(connection.plan.address, TIMEOUT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        connection.sock, connection.fresh = sock, True
        self._by_number[sock.fileno()] = connection
        self._poll.register(sock, select.EPOLLIN)

    def _close(self, connection: _Connection) -> None:
        if connection.sock is not None:
            self._by_number.pop(connection.sock.fileno(), None)
            self._poll.unregister(connection.sock)
            connection.sock.close()
            connection.sock = None

    def _send(self, connection: _Connection) -> None:
        assert connection.sock is not None
        try:
            sent = connection.sock.send(memoryview(connection.request)[connection.sent :])
        except BlockingIOError:
            sent = 0
        except OSError:
            self._again(connection)
            return
        connection.sent += sent
        whole = connection.sent == len(connection.request)
        self._poll.modify(connection.sock, select.EPOLLIN | (0 if whole else select.EPOLLOUT))

    def _ready(self, connection: _Connection, event: int) -> None:
        if event & select.EPOLLOUT:
            self._send(connection)
        if event & ~select.EPOLLOUT and connection.sock is not None:
            self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        assert connection.sock is not None
        try:
            got = connection.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            if connection.request:
                self._again(connection)
            else:
                self._close(connection)
            return
        connection.received += got
        status = whole_answer(connection.received)
        if status is not None:
            self._answer(connection, status)

    def _again(self, connection: _Connection) -> None:
        """Reconnect: a kept connection may have been closed, but a new one closed without an answer is a failure."""
        fresh = connection.fresh
        self._close(connection)
        if fresh:
            raise Failed(
                f"{connection.plan.address[1]}: the connection was closed without an answer"
            )
        self.load.reconnected += 1
        self._begin(connection)

    def _answer(self, connection: _Connection, status: int) -> None:
        received, request = bytes(connection.received), connection.request
        connection.fresh, connection.request = False, b""
        connection.received.clear()
        self._under_way -= 1
        self.load.statuses[status] += 1
        if self._patient and status in _BUSY:
            after = _AFTER.search(received)
            self._wait(self._now() + (float(after[1]) if after else 1.0), connection, request)
            return
        if not 200 <= status < 300:
            raise Failed(f"{connection.plan.address[1]}: {received[:600].decode(errors='replace')}")
        self.load.seconds.setdefault(connection.plan.mark, []).append(
            self._now() - connection.moment
        )
        self._next(connection)


def whole_answer(received: bytearray) -> int | None:
    """Return the status once the answer is complete, else None."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return None
    status = int(received[9:12])
    if status == 204:
        return status
    if _CHUNKED.search(received, 0, head + 2):
        return status if received.endswith(b"0\r\n\r\n") else None
    length = _LENGTH.search(received, 0, head + 2)
    return status if len(received) >= head + 4 + (int(length[1]) if length else 0) else None
