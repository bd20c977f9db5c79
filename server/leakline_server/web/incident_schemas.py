"""Leaks over all runs as the JSON API takes and gives them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..limits import MAX_FINGERPRINT_LENGTH, MAX_REASON_LENGTH, MAX_SNOOZE_SECONDS
from ..texts import without_control
from .schemas import Name, Strict, UnixSeconds

Fingerprint = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_FINGERPRINT_LENGTH, pattern=r"^[0-9A-Za-z][0-9A-Za-z_.:-]*$"
    ),
]
Reason = Annotated[
    str,
    AfterValidator(lambda text: without_control(text).strip()),
    Field(max_length=MAX_REASON_LENGTH),
]
Seconds = Annotated[float, Field(gt=0, le=MAX_SNOOZE_SECONDS, allow_inf_nan=False)]


class Acknowledging(Strict):
    """Until `expires_at` (Unix seconds) or for `expires_in_seconds`; without either, until it is taken back."""

    model_config = ConfigDict(strict=True, extra="forbid")

    project: Name
    reason: Reason = ""
    expires_in_seconds: Seconds | None = None
    expires_at: UnixSeconds | None = None


class Closing(Strict):
    """`reason` is the note that is told when the leak comes back in a later run."""

    model_config = ConfigDict(strict=True, extra="forbid")

    project: Name
    reason: Reason = ""


class Said(BaseModel):
    """What people said of the leak and what holds now."""

    kind: Literal["acknowledged", "ignored", "closed"]
    reason: str
    created_at: str
    expires_at: str | None


class SeenIn(BaseModel):
    """`back`: this run began after the leak was closed."""

    run: str
    name: str
    unit: str
    url: str
    status: str
    summary: str
    first_seen_at: str
    changed_at: str
    back: bool


class Leak(BaseModel):
    """Incidents of one project with one fingerprint; `runs` has the newest of them, the oldest first."""

    project: str
    fingerprint: str
    state: Literal["open", "acknowledged", "ignored", "closed", "over", "watched"]
    kind: str
    phase: str | None
    priority: str
    summary: str
    sentence: str
    first_seen_at: str
    changed_at: str
    runs_total: int
    runs: list[SeenIn]
    said: list[Said]
    finding: dict[str, Any]


class Leaks(BaseModel):
    items: list[Leak]
    next: str | None
