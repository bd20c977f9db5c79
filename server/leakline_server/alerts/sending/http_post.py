"""A single POST to a checked address, with the outcome Delivered, TryAgain or GiveUp; independent of the database.

`next_wait` returns how long to wait before the next attempt.

The receiver is not trusted: redirects are not followed, and only the status of the response is used. Proxies set in the
environment are ignored. A deadline applies to the entire exchange, even if the receiver sends one byte a second.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from leakline.transport.http_connection import (
    HEAD_LIMIT_BYTES,
    AnswerTooLong,
    Connection,
    Meter,
    retry_after,
    secure_context,
)

from .address_check import CheckedAddress

TOTAL_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 4_096  # bytes of the body to read, so that the connection ends cleanly
MAX_WAIT_SECONDS: Final = 600.0  # the longest Retry-After that is honoured


@dataclass(frozen=True, slots=True)
class Delivered:
    """The outcome when the message was accepted. ``status`` is None if the service does not use HTTP."""

    status: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The outcome when the message was not accepted, but may be accepted later.

    ``status`` is None if there was no response; ``wait_seconds`` is the value of Retry-After.
    """

    reason: str
    seconds: float
    status: int | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The outcome when another attempt would not help.

    ``disable`` is True if the receiver wants no more messages (410).
    """

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
    total_seconds: float = TOTAL_SECONDS,
    ca_file: Path | None = None,
) -> Outcome:
    """Send ``body`` and return the outcome. Errors of the receiver do not raise exceptions."""
    started = time.monotonic()

    def elapsed() -> float:
        return time.monotonic() - started

    try:
        status, wait = _exchange(to, body, headers, total_seconds, ca_file)
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
            "answered 410 Gone: the receiver wants no more messages",
            elapsed(),
            status,
            disable=True,
        )
    redirected = " (redirects are not followed)" if 300 <= status < 400 else ""
    return TryAgain(f"answered {status}{redirected}", elapsed(), status, wait)


def _exchange(
    to: CheckedAddress,
    body: bytes,
    headers: Mapping[str, str],
    total_seconds: float,
    ca_file: Path | None,
) -> tuple[int, float | None]:
    """Send the request, and return the response's status and its Retry-After in seconds."""
    meter, server = Meter(), urlsplit(to.url.origin)
    meter.start(total_seconds)
    context = secure_context(ca_file) if to.url.secure else None
    connection = Connection(server, None, context, meter, to.addresses)
    own = {"Host": server.netloc, "User-Agent": "leakline-webhook/1", "Connection": "close"}
    try:
        response = connection.send_request("POST", to.url.target, body, {**own, **headers})
        # Only the status matters; a body that is too slow or too large is ignored.
        with suppress(OSError, HTTPException, ValueError):
            response.read(MAX_ANSWER_BYTES)
        wait = retry_after(response.headers)
        return response.status, None if wait is None else min(wait, MAX_WAIT_SECONDS)
    finally:
        connection.close()


def _plain(error: Exception) -> str:
    """Describe the error in one line that contains no text from the receiver."""
    if isinstance(error, HTTPException):
        return f"sent a response that is not HTTP ({type(error).__name__})"
    if isinstance(error, AnswerTooLong):
        return f"sent more than {HEAD_LIMIT_BYTES} bytes of headers"
    return getattr(error, "strerror", None) or type(error).__name__


# Seconds before each attempt, counted from the previous attempt. An alert about a leak is useless an hour late, so
# early attempts follow quickly, and urgent alerts are retried every few minutes as long as they are useful.
URGENT_SECONDS: Final = (0.0, 5.0, 15.0, 60.0, 180.0, 600.0)
URGENT_LATER_SECONDS: Final = 600.0
URGENT_LONGEST_SECONDS: Final = 86_400.0
# This schedule is for receivers that are down overnight: a day and a few hours in total, as Standard Webhooks suggests.
ORDINARY_SECONDS: Final = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
# Random variation spreads the load on receivers that come back.
JITTER: Final = 0.2


def next_wait(
    attempts: int,
    outcome: TryAgain,
    dice: Callable[[], float],
    *,
    urgent: bool = True,
    age_seconds: float = 0.0,
) -> float | None:
    """Return the seconds to wait after ``attempts`` failed attempts, or None if no attempt is left.

    ``dice`` returns a number in [0, 1); ``age_seconds`` is the age of the alert. The caller checks the alert's expiry.
    """
    waits = URGENT_SECONDS if urgent else ORDINARY_SECONDS
    if attempts < len(waits):
        wait = waits[attempts]
    elif urgent and age_seconds + URGENT_LATER_SECONDS <= URGENT_LONGEST_SECONDS:
        wait = URGENT_LATER_SECONDS
    else:
        return None
    return max(wait * (1 + JITTER * dice()), outcome.wait_seconds or 0.0)
