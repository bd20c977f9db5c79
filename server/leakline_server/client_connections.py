"""HTTP connections with limits that uvicorn lacks. The class overrides internals of uvicorn."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from . import limits
from .web.errors import error_response
from .web.responses import completed


class Connection(HttpToolsProtocol):
    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadlines: dict[str, TimerHandle] = {}
        self._unanswered: deque[Any] = deque()
        # Bytes received since the parser last completed a head or a chunk of a body.
        self._head_bytes, self._head_is_too_large = 0, False
        self._limit("send", limits.HEAD_SECONDS)
        # uvicorn itself would refuse only requests, so idle connections would keep their file descriptors open.
        if len(self.connections) >= (most := self.limit_concurrency or limits.MAX_CONNECTIONS):
            self.connections.discard(self)
            self._refuse(
                429, "too_many_connections", f"all {most} connections are in use; try again later"
            )

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._unanswered and "send" not in self._deadlines:
            self._limit("send", limits.HEAD_SECONDS)
        if self._head_bytes > limits.MAX_HEAD_BYTES:
            self._head_is_too_large = True
            self.send_400_response("")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit("read", limits.ANSWER_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit("read", None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit("send", None)
        self._limit("read", None)
        # After an error, uvicorn keeps its timer running. It also notifies only the newest request, so earlier requests
        # would stream forever.
        super().connection_lost(None)
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def timeout_keep_alive_handler(self) -> None:
        if "read" in self._deadlines:
            self._limit("send", limits.ANSWER_SECONDS)
        else:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum([len(k) + len(v) + 4 for k, v in self.headers])
        self._head_is_too_large = size > limits.MAX_HEAD_BYTES
        if self._head_is_too_large or len(self._unanswered) > limits.MAX_PIPELINED:
            raise ValueError("the parser stops, and uvicorn calls send_400_response")
        self._head_bytes = 0
        self._limit("send", None)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit("send", limits.ANSWER_SECONDS)
        elif not self._unanswered and self.cycle.more_body:
            # If the connection closed before the rest of the body was read, the kernel would discard the response.
            self._limit("send", limits.UNREAD_SECONDS)

    def send_400_response(self, msg: str) -> None:
        if self._head_is_too_large:
            message = f"the request line and headers exceed {limits.MAX_HEAD_BYTES} bytes"
            self._refuse(413, "head_too_large", message)
        else:
            self._refuse(400, "malformed_http", "this is not an HTTP/1.1 request")

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"connection": "close"} | ({"retry-after": "5"} if status == 429 else {})
        answer = error_response(status, code, message, None, headers)
        lines = [b"%s: %s\r\n" % header for header in completed(answer.raw_headers)]
        if self._unanswered:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(
                STATUS_LINE[status] + b"".join(lines) + b"\r\n" + bytes(answer.body)
            )
            self.transport.close()

    def _limit(self, what: str, seconds: float | None) -> None:
        if what in self._deadlines:
            self._deadlines.pop(what).cancel()
        if seconds is not None:
            unread = self.transport.get_write_buffer_size()
            self._deadlines[what] = self.loop.call_later(
                seconds, self._expire, what, seconds, unread
            )

    def _expire(self, what: str, seconds: float, unread: int) -> None:
        """Abort the connection unless the client keeps reading; a normal close would wait until the client has read
        everything.
        """
        if unread - self.transport.get_write_buffer_size() >= limits.MIN_READ_BYTES:
            self._limit(what, seconds)
        else:
            self.transport.abort()
