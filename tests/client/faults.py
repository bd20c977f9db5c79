"""A server that does what servers, proxies and networks do when something is wrong, and is well again when told to."""

from __future__ import annotations

import functools
import gzip
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Final

from tests.client.conftest import FakeServer

HTML: Final = b"<!doctype html><title>Sign in</title><p>Welcome to the airport"


def _garbage() -> Iterator[bytes]:
    yield os.urandom(4096)


def _endless_head() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-Filler: " + b"x" * 4000 + b"\r\n"


def _endless_line() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 "
    while True:
        yield b"x" * 4096


def _interim() -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 100


def _endless_body() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1000\r\n" + b"x" * 4096 + b"\r\n"


def _endless_crumbs() -> Iterator[bytes]:
    """Chunks of one byte whose extensions are the weight."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1;" + b"x" * 8000 + b"\r\nx\r\n"


def _endless_trailer() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    while True:
        yield b"X-Filler: " + b"x" * 4000 + b"\r\n"


def _compressed() -> Iterator[bytes]:
    """16 KiB that are 16 MiB when they are unpacked."""
    bomb = _bomb()
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    yield bomb


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(b" " * (16 * 2**20))


def _portal() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(HTML) + HTML


def _cut_short() -> Iterator[bytes]:
    yield b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"accepted'


def _busy() -> Iterator[bytes]:
    yield b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"


def _too_many() -> Iterator[bytes]:
    yield b"HTTP/1.1 429 Slow down\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"


def _nothing() -> Iterator[bytes]:
    yield b""


ANSWERS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "garbage": _garbage, "endless head": _endless_head, "endless line": _endless_line,
    "interim answers": _interim, "endless body": _endless_body, "endless crumbs": _endless_crumbs,
    "endless trailer": _endless_trailer, "bomb": _compressed, "portal": _portal, "cut short": _cut_short,
    "busy": _busy, "too many": _too_many, "hangs up": _nothing,
}  # fmt: skip
# Answers nothing; answers rightly, but a byte at a time or after a long while.
SILENT: Final = ("black hole", "dripping", "slow")
MODES: Final = ("absent", *SILENT, *ANSWERS)


@dataclass
class FaultServer(FakeServer):
    """``set`` to one of MODES, or to ``healthy``. What it accepted is remembered as `FakeServer` does."""

    mode: str = "healthy"
    slow_seconds: float = 30.0
    drip_seconds: float = 0.05
    _over: threading.Event = field(default_factory=threading.Event)

    def set(self, mode: str) -> None:
        port = int(self.address.rpartition(":")[2])
        self.mode = mode
        # Whoever waits in the mode before is let go: its connection closes.
        self._over.set()
        self._over = threading.Event()
        if mode == "absent":
            self.stop()
        elif self.http is None:
            self.start(port)

    def handle(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        mode, over = self.mode, self._over
        if mode == "healthy":
            return super().handle(request)
        self._read(request)
        if mode in ANSWERS:
            for piece in ANSWERS[mode]():
                request.connection.sendall(piece)
                if over.is_set():
                    break
        elif mode == "dripping":
            for i in range(100_000):
                request.connection.sendall(b"HTTP/1.1 200 OK\r\nX-Filler: "[i : i + 1] or b"x")
                if over.wait(self.drip_seconds):
                    break
        else:
            over.wait(self.slow_seconds if mode == "slow" else None)
            if mode == "slow" and not over.is_set():
                return 200, {}, b"{}"
        raise ConnectionAbortedError("the fault is over, or it was an answer without more")

    @staticmethod
    def _read(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
