"""What the server refuses, as one tree; `web/errors.py` turns it into the answer of the contract.

RequestRefused            status, code, message (one line: what was wrong, what to do), details
+-- Malformed        400  not JSON, not decompressible, cut off
+-- NotFound         404
+-- Conflict         409  contradicts what is stored
+-- TooLarge         413
+-- Unsupported      415  a content encoding we do not read
+-- InvalidField     422  a field is wrong: named, with its value
+-- TooBusy          429  with Retry-After
+-- Unavailable      503  with Retry-After
"""

from __future__ import annotations

from typing import Any, ClassVar


class RequestRefused(Exception):
    status: ClassVar[int] = 400

    def __init__(
        self,
        code: str,
        message: str,
        details: dict[str, Any] | None = None,
        *,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details or {}
        self.retry_after_seconds = retry_after_seconds


class Malformed(RequestRefused):
    status = 400


class NotFound(RequestRefused):
    status = 404


class Conflict(RequestRefused):
    status = 409


class TooLarge(RequestRefused):
    status = 413


class Unsupported(RequestRefused):
    status = 415


class InvalidField(RequestRefused):
    status = 422

    def __init__(self, field: str, value: Any, why: str) -> None:
        shown = shorten(value)
        super().__init__(
            "invalid_field", f"{field}={shown}: {why}", {"field": field, "value": shown}
        )
        self.field = field


class TooBusy(RequestRefused):
    status = 429


class Unavailable(RequestRefused):
    status = 503


def run_not_found(run_id: str) -> NotFound:
    return NotFound(
        "run_not_found",
        f"there is no run {shorten(run_id)}; create it with POST /api/v1/runs",
        {"run": str(shorten(run_id))},
    )


def instance_in_use(instance: str, field: str, stored: int, sent: int) -> Conflict:
    return Conflict(
        "instance_in_use",
        f"process {shorten(instance)} is known with {field}={stored}, this says {sent}; every process and every "
        "attempt needs an instance of its own",
        {"instance": shorten(instance), "field": field, "stored": stored, "sent": sent},
    )


def shorten(value: Any) -> Any:
    """A value as it may stand in an error: short, and plain JSON."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        # Python refuses to print huge integers.
        return value if abs(value) < 2**63 else "a huge integer"
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= 100 else text[:99] + "…"
