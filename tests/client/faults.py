"""A server that fails in the ways servers, proxies and networks do, and recovers when a test says so."""

from __future__ import annotations

import gzip
import os
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Final

from tests.client.conftest import FakeServer

HTML: Final = b"<!doctype html><title>Sign in</title><p>Welcome to the airport"


def _bomb() -> bytes:
    """Return 16 KiB that decompress to 16 MiB."""
    packed = gzip.compress(b" " * (16 * 2**20))
    return (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        + packed
    )


OK: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"
AGAIN: Final = b"Retry-After: 1\r\nContent-Length: 2\r\n\r\n{}"
FILLER: Final = b"X-Filler: " + b"x" * 4000 + b"\r\n"
# Mode -> (start of each answer, bytes repeated endlessly after it).
ANSWERS: Final[dict[str, tuple[bytes, bytes]]] = {
    "garbage": (os.urandom(4096), b""),
    "endless head": (OK, FILLER),
    "endless line": (b"HTTP/1.1 200 ", b"x" * 4096),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "endless body": (CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n"),
    # One-byte chunks with very long chunk extensions.
    "endless crumbs": (CHUNKED, b"1;" + b"x" * 8000 + b"\r\nx\r\n"),
    "endless trailer": (CHUNKED + b"0\r\n", FILLER),
    "bomb": (_bomb(), b""),
    "portal": (OK + b"Content-Length: %d\r\n\r\n" % len(HTML) + HTML, b""),
    "cut short": (OK + b'Content-Length: 1000\r\n\r\n{"accepted', b""),
    "busy": (b"HTTP/1.1 503 Busy\r\n" + AGAIN, b""),
    "too many": (b"HTTP/1.1 429 Slow down\r\n" + AGAIN, b""),
    "hangs up": (b"", b""),
}
# Modes that never answer, or answer correctly but a byte at a time or after a long delay.
SILENT: Final = ("black hole", "dripping", "slow")
MODES: Final = ("absent", *SILENT, *ANSWERS)


@dataclass
class FaultServer(FakeServer):
    """Server that behaves as in one of MODES, or healthy; ``set`` changes the mode. Records what it accepts."""

    mode: str = "healthy"
    slow_seconds: float = 30.0
    drip_seconds: float = 0.05
    _over: threading.Event = field(default_factory=threading.Event)

    def set(self, mode: str) -> None:
        port = int(self.address.rpartition(":")[2])
        self.mode = mode
        # Release connections that wait in the previous mode; they close.
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
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if mode in ANSWERS:
            begin, more = ANSWERS[mode]
            request.connection.sendall(begin)
            while more and not over.is_set():
                request.connection.sendall(more)
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
