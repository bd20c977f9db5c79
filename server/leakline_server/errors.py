"""Errors that refuse a request; `web/errors.py` turns them into the API's error responses.

RequestRefused            status, code, message (one line: what was wrong, what to do), details
+-- Malformed        400  not JSON, not decompressible, truncated
+-- Unauthorized     401  not authenticated
+-- Forbidden        403  authenticated, but not allowed
+-- NotFound         404
+-- Conflict         409  contradicts stored data
+-- TooLarge         413
+-- Unsupported      415  unsupported content encoding or type
+-- InvalidField     422  an invalid field, named with its value
+-- TooBusy          429  with Retry-After
+-- Unavailable      503  with Retry-After
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

# Messages and field names may repeat client input, which may be long.
MAX_MESSAGE_LENGTH: Final = 1_000
MAX_FIELD_LENGTH: Final = 300
# Freeing disk space takes longer than a second; meanwhile the training run spools its data to its own disk.
DISK_FULL_SECONDS: Final = 10


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
        message = cut(message.replace("\n", " "), MAX_MESSAGE_LENGTH)
        super().__init__(message)
        self.code, self.message, self.details = code, message, details or {}
        self.retry_after_seconds = retry_after_seconds


class Malformed(RequestRefused):
    status = 400


class Unauthorized(RequestRefused):
    status = 401


class Forbidden(RequestRefused):
    status = 403


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
        shown, field = shorten(value), cut(field, MAX_FIELD_LENGTH)
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
        f"run {shorten(run_id)} not found; create it with POST /api/v1/runs",
        {"run": str(shorten(run_id))},
    )


def not_as_resumed(run_id: str, resume: str) -> RequestRefused:
    details = {"run": shorten(run_id), "resume": resume}
    anyway = "leakline sync adds the recording anyway with --again"
    if resume == "must":
        return NotFound(
            "run_not_found",
            f'run {shorten(run_id)} does not exist, but resume="must" requires it; {anyway}',
            details,
        )
    return Conflict(
        "run_exists",
        f'run {shorten(run_id)} already exists, but resume="never" requires a new id; {anyway}',
        details,
    )


def too_many_processes(run_id: str, limit: int) -> Conflict:
    return Conflict(
        "too_many_processes",
        f"run {shorten(run_id)} has {limit} processes, the maximum; start another run",
        {"run": shorten(run_id), "limit": limit},
    )


def too_many_attempts(run_id: str, limit: int) -> Conflict:
    return Conflict(
        "too_many_attempts",
        f"run {shorten(run_id)} has {limit} attempts, the maximum; start another run",
        {"run": shorten(run_id), "limit": limit},
    )


def too_many_runs(project: str, limit: int, wait_seconds: int, browser: bool = False) -> TooBusy:
    """Return the error for a run that exceeds the project's daily quota.

    If ``browser`` is True, the quota of the project's browser tokens is exceeded.
    """
    said = (
        f"browser tokens of project {shorten(project)} have started {limit} runs today, the daily limit; try again "
        "later, or use a token that is not a browser token"
        if browser
        else f"project {shorten(project)} has started {limit} runs today, the daily limit; try again later, or raise "
        "LEAKLINE_RUNS_PER_DAY on the server"
    )
    return TooBusy(
        "too_many_runs",
        said,
        {"project": shorten(project), "limit": limit},
        retry_after_seconds=wait_seconds,
    )


def too_many_projects(limit: int, wait_seconds: int) -> TooBusy:
    return TooBusy(
        "too_many_projects",
        f"runs have started in {limit} projects today, the daily limit; use one of those projects, or try again later",
        {"limit": limit},
        retry_after_seconds=wait_seconds,
    )


def too_many_bytes(
    project: str, limit_bytes: int, wait_seconds: int, browser: bool = False
) -> TooBusy:
    """Return the error for data that exceeds the project's daily quota.

    If ``browser`` is True, the quota of the project's browser tokens is exceeded.
    """
    said = (
        f"browser tokens of project {shorten(project)} have stored {limit_bytes} bytes today, the daily limit; send "
        "this request again later, or use a token that is not a browser token"
        if browser
        else f"project {shorten(project)} has stored {limit_bytes} bytes today, the daily limit; send this "
        "request again later, or raise LEAKLINE_BYTES_PER_DAY on the server"
    )
    return TooBusy(
        "too_many_bytes",
        said,
        {"project": shorten(project), "limit_bytes": limit_bytes},
        retry_after_seconds=wait_seconds,
    )


def no_room_for_notes(run_id: str) -> Conflict:
    return Conflict(
        "no_room_for_notes",
        f"run {shorten(run_id)} has no room for all of these notes, and an ingest token cannot replace notes written "
        "by people; send fewer notes, or send them as an administrator",
        {"run": shorten(run_id)},
    )


def instance_in_use(instance: str, field: str, stored: int | None, sent: int) -> Conflict:
    """Return the error for a process instance that is already stored with another value of ``field``.

    ``stored`` is None if the caller is not allowed to see the stored value.
    """
    details = {"instance": shorten(instance), "field": field, "stored": stored, "sent": sent}
    known = f"{field}={stored}" if stored is not None else f"another {field}"
    return Conflict(
        "instance_in_use",
        f"process {shorten(instance)} is stored with {known}, but {field}={sent} was sent; every process and every "
        "attempt needs its own instance",
        {name: value for name, value in details.items() if value is not None},
    )


def disk_full() -> Unavailable:
    return Unavailable(
        "disk_full",
        "the server's disk is full; nothing was stored, and existing data can still be read: free disk space on the "
        "server, then send this request again",
        retry_after_seconds=DISK_FULL_SECONDS,
    )


def database_damaged() -> Unavailable:
    return Unavailable(
        "database_damaged",
        "part of the database file is damaged, and other parts can still be read: stop the server and restore a backup",
        retry_after_seconds=DISK_FULL_SECONDS,
    )


def damaged_data_set_aside() -> Unavailable:
    return Unavailable(
        "damaged_data_set_aside",
        "stored data was damaged and has been quarantined (see the server's log); before you send this request again, "
        "check whether it was stored",
        retry_after_seconds=1,
    )


def database_moved() -> Unavailable:
    return Unavailable(
        "database_moved",
        "the database file was deleted or replaced while the server was running; nothing was stored: put the file back "
        "or restart the server, then send this request again",
        retry_after_seconds=DISK_FULL_SECONDS,
    )


def shorten(value: Any) -> Any:
    """Return the value as short, plain JSON for an error response."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        # Python refuses to convert huge integers to text.
        return value if abs(value) < 2**63 else "a huge integer"
    return cut(value if isinstance(value, str) else type(value).__name__, 100)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
