"""The HTTP client for a server's API and for webhooks, with limits on time and response size.

`http_delivery.py` uses this client for the API; webhooks connect only to previously checked addresses. The client
follows no redirects.

All limits are enforced in one place: every byte in either direction passes `BoundedSocket`, which checks the remaining
seconds and bytes of the request's `Meter`. http.client works on top of this socket. Its own timeouts apply only to
single reads: a server could block it for hours with a byte every few seconds, endless headers or endless interim
responses.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPMessage, HTTPResponse
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from ..runtime.file_descriptor import Descriptor
from ..runtime.threads import breathe, rested

if TYPE_CHECKING:
    from pathlib import Path
    from ssl import SSLContext

CONNECT_SECONDS: Final = 4.0
# Maximum number of addresses to try for one name. With more addresses, too little time would be left for each.
ADDRESSES_LIMIT: Final = 8
HEAD_LIMIT_BYTES: Final = 64 * 1024
# Buffer size of http.client's reads.
READ_BYTES: Final = 2048
LOOPBACK: Final = frozenset({"localhost", "::1"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
DEFAULT_PROXY_PORT: Final = 8080


class AnswerTooLong(ValueError):
    """Raised when a response exceeds its size limit."""


class Meter:
    """The time and the bytes that one request may still use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = self._until = 0.0
        self.bytes_left = 0

    def start(self, seconds: float) -> None:
        self._seconds, self._until = seconds, self._clock() + seconds

    def seconds_left(self) -> float:
        """Return the remaining seconds. Raises TimeoutError if no time is left."""
        left = self._until - self._clock()
        if left <= 0:
            raise TimeoutError(f"no complete response within {self._seconds:g} s")
        return left

    def allow(self, limit_bytes: int) -> None:
        self.bytes_left = limit_bytes

    def count(self, number: int) -> None:
        self.bytes_left -= number
        if self.bytes_left < 0:
            raise AnswerTooLong("the response is too long")


class BoundedSocket:
    """The part of the socket interface that http.client uses, limited by a meter."""

    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        self._sock, self._meter = sock, meter

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._meter.seconds_left())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self._meter), READ_BYTES)

    def secured(
        self, context: SSLContext, host: str, opened: Callable[[socket.socket], None]
    ) -> BoundedSocket:
        """Return the connection wrapped in TLS.

        ``opened`` receives the new socket; if the handshake fails, the caller must close it.
        """
        self._sock.settimeout(self._meter.seconds_left())
        wrapped = context.wrap_socket(
            self._sock, server_hostname=host, do_handshake_on_connect=False
        )
        opened(wrapped)
        wrapped.do_handshake()
        return BoundedSocket(wrapped, self._meter)

    def close(self) -> None:
        self._sock.close()


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        self._sock, self._meter = sock, meter
        # Keeps the socket open until the response is read, as http.client expects.
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        # Rest during reads as well, because a server may send thousands of interim responses.
        breathe()
        self._sock.settimeout(self._meter.seconds_left())
        asked = time.perf_counter()
        number = self._raw.readinto(buffer)
        rested(time.perf_counter() - asked)
        self._meter.count(number or 0)
        return number

    def close(self) -> None:
        self._raw.close()
        super().close()


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    # The value of Proxy-Authorization.
    authorization: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.authorization is None else {"Proxy-Authorization": self.authorization}


class Connection(HTTPConnection):
    """A connection to ``server``, optionally through ``proxy``; https needs a ``context``.

    If ``addresses`` (IP addresses) are given, only these addresses are used, and the name is never resolved.
    """

    def __init__(
        self,
        server: SplitResult,
        proxy: Proxy | None,
        context: SSLContext | None,
        meter: Meter,
        addresses: Sequence[str] | None = None,
    ) -> None:
        port = DEFAULT_PORTS[server.scheme] if server.port is None else server.port
        self._target = server.hostname or "", port
        self._through, self._context, self._meter = proxy, context, meter
        self._addresses = addresses
        super().__init__(*self._target)
        # Sockets of the newest attempt to connect. A forked child inherits these sockets.
        self._opened: list[tuple[socket.socket, Descriptor | None]] = []
        # Only an unencrypted request through a proxy needs an absolute URL and the proxy's headers.
        plain = proxy is not None and context is None
        self.prefix = f"http://{server.netloc.rpartition('@')[2]}" if plain else ""
        self.headers = proxy.headers if plain and proxy is not None else {}

    def send_request(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HTTPResponse:
        """Send a request and return the response before its body is read.

        Raises OSError, HTTPException or AnswerTooLong (a head of more than HEAD_LIMIT_BYTES).
        """
        self._meter.allow(HEAD_LIMIT_BYTES)
        self.request(method, f"{self.prefix}{target}", body, {**headers, **self.headers})
        return self.getresponse()

    def connect(self) -> None:
        host, port = self._target
        if self._through is not None:
            host, port = self._through.host, self._through.port
        self._opened.clear()
        sock = self._reach((host,) if self._addresses is None else self._addresses, port)
        self.sock: Any = BoundedSocket(sock, self._meter)
        if self._context is not None:
            if self._through is not None:
                self._open_tunnel(self._through)
            try:
                self.sock = self.sock.secured(self._context, self._target[0], self._note)
            except OSError:
                self.abandon()
                raise

    def abandon(self) -> None:
        """Close the sockets that are still ours.

        A forked child closes only its copies, so the parent's sockets stay open.
        """
        self._give_up_lost()
        for sock, _ in self._opened:
            if sock.fileno() >= 0:
                os.close(sock.detach())

    def putrequest(self, *args: Any, **kwargs: Any) -> None:
        self._give_up_lost()
        super().putrequest(*args, **kwargs)

    def close(self) -> None:
        self._give_up_lost()
        super().close()

    def _reach(self, hosts: Sequence[str], port: int) -> socket.socket:
        """Return a connected socket. Each address of the hosts gets an equal share of CONNECT_SECONDS."""
        rows = (socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) for host in hosts)
        found = list(chain.from_iterable(rows))[:ADDRESSES_LIMIT]
        until = time.monotonic() + min(CONNECT_SECONDS, self._meter.seconds_left())
        failure = OSError(f"{self._target[0]} has no address")
        for tried, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            self._note(sock)
            try:
                sock.settimeout(max(0.001, (until - time.monotonic()) / (len(found) - tried)))
                sock.connect(address)
                # Head and body are two writes, and the second write must not wait until the first is acknowledged.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                # Use `abandon`, which detects if the program has closed the socket and reused its number for a file.
                self.abandon()
                failure = error
        raise failure

    def _note(self, sock: socket.socket) -> None:
        """Record a socket that `abandon` may close later.

        Raises OSError if the program has already closed the socket.
        """
        number = None
        # Only on POSIX systems do sockets and files share the same numbers.
        if os.name == "posix":
            try:
                number = Descriptor(sock.fileno())
                is_socket = stat.S_ISSOCK(number.stat().st_mode)
            except OSError:
                is_socket = False
            if not is_socket:
                sock.detach()
                raise OSError(errno.EBADF, "the program has closed the connection")
        self._opened.append((sock, number))

    def _give_up_lost(self) -> None:
        """Detach sockets closed by the program, because their numbers may now refer to the program's files."""
        for sock, number in self._opened:
            if number is not None and sock.fileno() == number and not number.is_ours:
                sock.detach()

    def _open_tunnel(self, proxy: Proxy) -> None:
        host, port = self._target
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        self.sock.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1"))
        response = HTTPResponse(self.sock, method="CONNECT")
        try:
            response.begin()
        finally:
            response.close()
        if response.status != 200:
            raise OSError(
                f"the proxy {proxy.host}:{proxy.port} answered with status {response.status}"
            )


def retry_after(headers: HTTPMessage) -> float | None:
    """Return the seconds to wait from Retry-After (a number or a date), or None without a valid header.

    If the response states the server's own time, a date is compared with that time.
    """
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    until = _unix_seconds(text)
    if until is None:
        return None
    now = _unix_seconds(headers.get("Date", ""))
    return max(0.0, until - (time.time() if now is None else now))


def _unix_seconds(date: str) -> float | None:
    try:
        parsed = parsedate_to_datetime(date[:100])
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    # "-0000" gives a time without a zone, but the header is always in GMT.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def secure_context(ca_file: Path | None) -> SSLContext:
    """Return a TLS context that trusts the system's certificates (or SSL_CERT_FILE) and ``ca_file``.

    Raises OSError if a certificate file cannot be read.
    """
    import ssl

    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context


def proxy_for(server: SplitResult) -> Proxy | None:
    """Return the proxy for ``server`` from the environment, or None.

    Loopback addresses use no proxy. Raises ValueError if the proxy is unusable.
    """
    host, scheme = server.hostname or "", server.scheme
    if host in LOOPBACK or host.startswith("127."):
        return None
    names = (f"{scheme}_proxy", "all_proxy")
    if not any(name in os.environ or name.upper() in os.environ for name in names):
        return None
    from urllib.request import getproxies, proxy_bypass

    known = getproxies()
    address = known.get(scheme) or known.get("all")
    if not address or proxy_bypass(f"{host}:{server.port or DEFAULT_PORTS[scheme]}"):
        return None
    return _proxy_at(address if "://" in address else f"http://{address}")


def _proxy_at(address: str) -> Proxy:
    try:
        parts = urlsplit(address)
        host, port, login = parts.hostname, parts.port, _login(parts)
    except ValueError:
        # Hide Python's message, which quotes the address including a password.
        raise ValueError("the proxy address in the environment is not valid") from None
    if parts.scheme != "http" or not host:
        raise ValueError(
            f"cannot use a {parts.scheme}:// proxy; only http:// proxies are supported"
        )
    return Proxy(host, port or DEFAULT_PROXY_PORT, login)


def _login(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + b64encode(login.encode()).decode("ascii")
