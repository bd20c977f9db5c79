"""One connection of a client, with the bounds that uvicorn leaves to a proxy in front of it.

1. connections beyond as many as files may be open are turned away, so that the database keeps its own
2. a head (request line and headers) has so many bytes and seconds, and so have the trailers of a body
3. requests that are sent before the ones in front of them are answered are so many
4. of a body that was answered before it was there, so much more is read, for so long: the answer reaches who sends
5. who does not read an answer is let go

Without them a stranger's one connection keeps memory, or a thousand keep all there may be, for ever.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from .errors import Malformed, RequestRefused, TooBusy, TooLarge
from .limits import (
    ANSWER_SECONDS,
    HEAD_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    MAX_UNREAD_BYTES,
    UNREAD_SECONDS,
)
from .web.errors import refusal_response
from .web.headers import completed

# The database, the streams' wake-ups, files that are served, and the log.
KEPT_FILES: Final = 256
# What a header takes besides its text.
HEADER_BYTES: Final = 4


class Connection(HttpToolsProtocol):
    """``most``: connections at a time. The parser calls ``on_..``, the transport the rest."""

    def __init__(self, *arguments: Any, most: int | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most = MAX_CONNECTIONS if most is None else most
        self._in_head = False
        # Since the parser last had something of a request that is counted elsewhere.
        self._untold_bytes = 0
        # Of what was answered before it was all there.
        self._unread_bytes: int | None = None
        self._refusal: RequestRefused | None = None
        self._refused = False
        self._answering: RequestResponseCycle | None = None
        self._patience: TimerHandle | None = None
        self._reader: TimerHandle | None = None

    # -- the transport

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            # At once, for each takes a file until then, whether or not who sends reads it.
            transport.write(_as_bytes(refusal_response(_too_many_connections(self._most))))
            transport.close()
        else:
            self._wait(HEAD_SECONDS, self._head_is_late)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._read_on(len(data))
            return
        self._untold_bytes += len(data)
        super().data_received(data)
        if self._untold_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        elif self._in_head and self._patience is None:
            self._wait(HEAD_SECONDS, self._head_is_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        # Of uvicorn, which ends it with connections that end well alone.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._reader is not None:
            self._reader.cancel()
        self._answer_nobody()

    def timeout_keep_alive_handler(self) -> None:
        # Closing waits until what was written is read.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    # -- the parser

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._untold_bytes = 0
        self._wait_no_more()
        size = len(self.url) + sum(len(k) + len(v) + HEADER_BYTES for k, v in self.headers)
        if size > MAX_HEAD_BYTES:
            self._stop(_head_too_large())
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(_too_many_at_once())
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._untold_bytes = 0
        if self._unread_bytes is not None:
            self._read_on(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._untold_bytes = 0
        if self._unread_bytes is not None:
            self._unread_bytes = None
            self._wait_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._expect_the_rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _answer_nobody(self) -> None:
        """uvicorn tells only the newest request that nobody is there; another would write to what is closed."""
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    # -- waiting

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        self._wait_no_more()
        self._patience = self.loop.call_later(seconds, then)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _expect_the_rest(self) -> None:
        """Closed with something unread, the kernel would take the answer back."""
        if not self.transport.is_closing():
            self._unread_bytes = 0
            self._wait(UNREAD_SECONDS, self.transport.close)

    def _read_on(self, size: int) -> None:
        self._unread_bytes = (self._unread_bytes or 0) + size
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self.transport.close()

    def _head_is_late(self) -> None:
        # Who connected in advance, as browsers do, and asked nothing is owed no answer.
        if self._in_head:
            self._refuse(_head_too_slow())
        else:
            self.transport.close()

    # -- refusing

    def send_400_response(self, msg: str) -> None:
        """What uvicorn does where the parser stops, for a reason of its own or of ours."""
        self._refuse(self._refusal or _no_http())

    def _stop(self, refusal: RequestRefused) -> None:
        """Leaves the parser, which reads no further."""
        self._refusal = refusal
        raise ValueError(refusal.code)

    def _refuse(self, refusal: RequestRefused) -> None:
        """The last answer of this connection, unless another is on its way."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self._answering is not None and not self._answering.response_complete:
            self._answer_nobody()
            self.transport.close()
            return
        self.transport.write(_as_bytes(refusal_response(refusal)))
        self.transport.write_eof()
        self._expect_the_rest()


def _as_bytes(response: Response) -> bytes:
    headers = [*completed(response.raw_headers), (b"connection", b"close")]
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body)


def _no_http() -> Malformed:
    return Malformed("malformed_http", "this is no request of HTTP/1.1; send one")


def _head_too_large() -> TooLarge:
    return TooLarge(
        "head_too_large",
        f"the address and the headers have more than {MAX_HEAD_BYTES} bytes; ask for less at a time",
        {"limit_bytes": MAX_HEAD_BYTES},
    )


def _head_too_slow() -> Malformed:
    return Malformed(
        "head_too_slow",
        f"the address and the headers did not arrive within {HEAD_SECONDS:.0f} seconds",
    )


def _too_many_at_once() -> TooBusy:
    return TooBusy(
        "too_many_requests_at_once",
        f"more than {MAX_PIPELINED} requests wait on this connection; read the answers before sending more",
        {"limit": MAX_PIPELINED},
        retry_after_seconds=1,
    )


def _too_many_connections(most: int) -> TooBusy:
    return TooBusy(
        "too_many_connections",
        f"the server has {most} connections, as many as it may; try again later",
        {"limit": most},
        retry_after_seconds=5,
    )
