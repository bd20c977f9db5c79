"""A checked batch on its way in, and what can become of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leakline.snapshot import ProcessIdentity

from .batch_columns import BatchColumns

DetailKind = Literal["events", "large_objects", "census", "holders", "log"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A checked batch."""

    run_id: str
    process: ProcessIdentity
    first_sequence: int
    count: int
    columns: BatchColumns
    details: dict[DetailKind, Sequence[Any]]
    lost: dict[str, int]
    received_at: float
    # What it is worth in memory, about: the inflated body, or its numbers where few bytes told many of them.
    size_bytes: int = 0
    # Whoever sent it may add to this project alone, and knows of no run of another.
    project: str | None = None
    # With a token that is in a page.
    browser: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """``count`` snapshots were new. 0: all of it was there already."""

    count: int


@dataclass(frozen=True, slots=True)
class UnknownRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The snapshot with this number is stored with another value of ``field``."""

    sequence: int
    field: str
    stored: Any
    sent: Any


@dataclass(frozen=True, slots=True)
class OtherIdentity:
    """The process with this instance is known with another value of ``field``."""

    instance: str
    field: str
    stored: int
    sent: int


@dataclass(frozen=True, slots=True)
class TooManyProcesses:
    """The run has as many as a run may."""

    run_id: str
    limit: int


@dataclass(frozen=True, slots=True)
class TooManyBytes:
    """The project has stored as much today as it may, or its ``browser`` tokens have."""

    project: str
    limit: int
    wait_seconds: int
    browser: bool = False


Outcome = Accepted | UnknownRun | Contradiction | OtherIdentity | TooManyProcesses | TooManyBytes
