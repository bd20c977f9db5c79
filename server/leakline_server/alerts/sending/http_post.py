"""One POST to one checked address -> Delivered, TryAgain or GiveUp. Knows HTTP and nothing of rows.

`next_wait` says how long to wait before the next attempt.

The other side is not trusted: no redirect is followed, no proxy of the environment is used, the whole exchange has
one deadline that also a server sending a byte a second cannot stretch, and of its answer only the status is kept.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final

from leakline.transport.http_connection import AnswerTooLong, BoundedSocket, Meter

from .address_check import CheckedAddress

CONNECT_SECONDS: Final = 3.0
TOTAL_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 4_096  # of the body, read only so that the connection ends in good order
MAX_RECEIVED_BYTES: Final = 65_536  # headers and all
MAX_WAIT_SECONDS: Final = 600.0  # the longest Retry-After that is honoured


@dataclass(frozen=True, slots=True)
class Delivered:
    """Accepted. ``status`` is None where the service speaks no HTTP."""

    status: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Not accepted now. ``status`` is None when there was no answer; ``wait_seconds`` is what it asked for."""

    reason: str
    seconds: float
    status: int | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Trying again would not help. ``disable``: the receiver wants no message any more (410)."""

    reason: str
    seconds: float = 0.0
    status: int | None = None
    disable: bool = False


Outcome = Delivered | TryAgain | GiveUp


def post(
    to: CheckedAddress,
    body: bytes,
    headers: Mapping[str, str],
    *,
    connect_seconds: float = CONNECT_SECONDS,
    total_seconds: float = TOTAL_SECONDS,
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
) -> Outcome:
    """Send ``body`` and say what became of it. Never raises for anything the other side does."""
    started = time.monotonic()

    def elapsed() -> float:
        return time.monotonic() - started

    try:
        status, wait = _exchange(to, body, headers, connect_seconds, total_seconds, tls)
    except TimeoutError:
        return TryAgain(f"no answer within {elapsed():.0f} s", elapsed())
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or "handshake failed"
        return TryAgain(f"TLS: {reason}", elapsed())
    except (OSError, HTTPException, AnswerTooLong) as error:
        return TryAgain(_plain(error), elapsed())
    if 200 <= status < 300:
        return Delivered(status, elapsed())
    if status == 410:
        return GiveUp(
            "answered 410 Gone: it wants no more messages", elapsed(), status, disable=True
        )
    redirected = " (redirects are not followed)" if 300 <= status < 400 else ""
    return TryAgain(f"answered {status}{redirected}", elapsed(), status, wait)


def _exchange(
    to: CheckedAddress,
    body: bytes,
    headers: Mapping[str, str],
    connect_seconds: float,
    total_seconds: float,
    tls: Callable[[], ssl.SSLContext],
) -> tuple[int, float | None]:
    """(status, seconds it asks to wait)."""
    meter = Meter()
    meter.start(total_seconds)
    meter.allow(MAX_RECEIVED_BYTES)
    raw = _connected(to, min(connect_seconds, total_seconds))
    try:
        if to.url.secure:
            raw.settimeout(meter.seconds_left())
            raw = tls().wrap_socket(raw, server_hostname=to.url.host)
        connection = HTTPConnection(to.url.host, to.url.port)
        # Given an open socket, http.client never looks the name up again.
        connection.sock = BoundedSocket(raw, meter)
        connection.putrequest("POST", to.url.target, skip_host=True, skip_accept_encoding=True)
        own = {"Host": to.url.origin.partition("://")[2], "User-Agent": "leakline-webhook/1"}
        own |= {"Content-Length": str(len(body)), "Connection": "close"}
        for name, value in {**own, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        # The status is what counts; a body that is too slow or too large changes nothing any more.
        with suppress(OSError, HTTPException, ValueError):
            response.read(MAX_ANSWER_BYTES)
        return response.status, _retry_after(response)
    finally:
        raw.close()


def _connected(to: CheckedAddress, seconds: float) -> socket.socket:
    """A connection to the first checked address that takes one."""
    failure: OSError = TimeoutError("no time left")
    meter = Meter()
    meter.start(seconds)
    for address in to.addresses:
        try:
            return socket.create_connection((address, to.url.port), timeout=meter.seconds_left())
        except OSError as error:
            failure = error
    raise failure


def _retry_after(response: HTTPResponse) -> float | None:
    """Seconds, from either form of the header; None when there is none or it makes no sense."""
    text = (response.getheader("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_WAIT_SECONDS)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # "-0000" gives a time without a zone; the header is always in GMT.
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max((at - datetime.now(UTC)).total_seconds(), 0.0), MAX_WAIT_SECONDS)


def _plain(error: Exception) -> str:
    """One line without anything the other side sent."""
    if isinstance(error, HTTPException):
        return f"answered something that is not HTTP ({type(error).__name__})"
    if isinstance(error, AnswerTooLong):
        return f"answered over {MAX_RECEIVED_BYTES} bytes"
    return getattr(error, "strerror", None) or type(error).__name__


# Seconds before each try, counted from the one before. A leak that is reported an hour late is noise, so urgent alerts
# go on every few minutes for as long as they are of use.
URGENT_SECONDS: Final = (0.0, 5.0, 15.0, 60.0, 180.0, 600.0)
URGENT_LATER_SECONDS: Final = 600.0
URGENT_LONGEST_SECONDS: Final = 86_400.0
# What may wait for a receiver that is away over night: a day and a few hours, as Standard Webhooks suggests.
ORDINARY_SECONDS: Final = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
# So that receivers that come back are not hit by everything at once.
JITTER: Final = 0.2


def next_wait(
    attempts: int,
    outcome: TryAgain,
    dice: Callable[[], float],
    *,
    urgent: bool = True,
    age_seconds: float = 0.0,
) -> float | None:
    """Seconds to wait after ``attempts`` attempts have failed; None when that was the last one. ``dice`` gives [0, 1).

    ``age_seconds`` is how long ago the alert was written; an expiry of its own is the caller's to look at.
    """
    waits = URGENT_SECONDS if urgent else ORDINARY_SECONDS
    if attempts < len(waits):
        wait = waits[attempts]
    elif urgent and age_seconds + URGENT_LATER_SECONDS <= URGENT_LONGEST_SECONDS:
        wait = URGENT_LATER_SECONDS
    else:
        return None
    return max(wait * (1 + JITTER * dice()), outcome.wait_seconds or 0.0)
