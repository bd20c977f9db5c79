"""The wire format as msgspec types, which are validated while they are decoded.

The client's `snapshot.py` describes the format. Structure and ranges of single values are checked here, in C; columns
of numbers and conditions on several fields are checked in `ingest/decode.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from ...limits import (
    MAX_INSTANCE_LENGTH,
    MAX_INTEGER,
    MAX_LABEL_LENGTH,
    MAX_NAME_LENGTH,
    MAX_PATH_LENGTH,
    MAX_RANK,
    MAX_TIME_SECONDS,
)

Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_TIME_SECONDS)]
Label = Annotated[str, Meta(max_length=MAX_LABEL_LENGTH)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
Path = Annotated[str, Meta(max_length=MAX_PATH_LENGTH)]
Value = Integer | float | None
Kind = Literal["baseline", "phase_end", "generation_end", "manual", "sample", "finish"]
EventKind = Literal[
    "mark", "note", "cleanup", "exception", "warning", "expect", "track", "gauge", "watch", "fix",
    "band", "budget", "collection", "register_cleanup", "log",
]  # fmt: skip


class Process(Struct, frozen=True):
    instance: Annotated[str, Meta(min_length=1, max_length=MAX_INSTANCE_LENGTH)]
    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)] = 0
    pid: Count = 0
    host: Label = ""
    role: Label = "main"
    attempt: Annotated[int, Meta(ge=1, le=MAX_RANK)] = 1


class Columns(Struct):
    """The snapshots of a batch as columns: every list has one entry per snapshot."""

    time: list[Seconds]
    monotonic: list[Seconds] = field(default_factory=list)
    generation: list[Integer | None] = field(default_factory=list)
    phase: list[Label | None] = field(default_factory=list)
    label: list[Label | None] = field(default_factory=list)
    kind: list[Kind] | None = None
    series: dict[Name, list[Value]] = field(default_factory=dict)


class Row(Struct):
    """A single snapshot, for senders that do not produce columns."""

    time: Seconds
    monotonic: Seconds | None = None
    generation: Integer | None = None
    phase: Label | None = None
    label: Label | None = None
    kind: Kind | None = None
    series: dict[Name, Value] = field(default_factory=dict)


class Event(Struct):
    sequence: Count
    time: Seconds
    kind: EventKind
    name: Name
    generation: Integer | None = None
    phase: Label | None = None
    data: dict[str, Any] = field(default_factory=dict)


class LargeObject(Struct):
    sequence: Count
    type: Name
    bytes: Count
    detail: Path = ""
    holder: Path = ""


class Census(Struct):
    sequence: Count
    mode: Label
    coverage: Annotated[float, Meta(ge=0, le=1)]
    objects: Count
    types: list[tuple[Name, Count, Count | None]]


class Holder(Struct):
    sequence: Count
    type: Name
    path: Path
    count: Count
    bytes_each: Count | None = None


class Envelope(Struct, kw_only=True):
    """The fields of a batch other than its snapshots."""

    version: int
    process: Process
    first_sequence: Count
    count: Count | None = None
    events: list[Event] = field(default_factory=list)
    large_objects: list[LargeObject] = field(default_factory=list)
    census: list[Census] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    lost: dict[Name, Count] = field(default_factory=dict)


class Batch(Envelope, kw_only=True):
    """A batch of version 1, the JSON body of ``POST /api/v1/runs/{run}/batches``.

    A batch has either ``columns`` and ``count``, or ``snapshots``.
    """

    columns: Columns | None = None
    snapshots: list[Row] | None = None


class Head(Envelope, kw_only=True):
    """The head of a batch of version 2: everything but its columns of numbers."""

    count: Count
    generation: list[Integer | None]
    phase: list[Label | None]
    label: list[Label | None]
    kind: list[Kind]
    integers: list[Name] = field(default_factory=list)
    floats: list[Name] = field(default_factory=list)
    # Only spool records with gaps have this field. Batches may not have gaps, so such a record is refused rather than
    # misread.
    sequences: None = None


class StoredBody(Struct):
    """The stored form of a batch in older versions."""

    columns: Columns


decode_batch: Final = msgspec.json.Decoder(Batch).decode
decode_head: Final = msgspec.json.Decoder(Head).decode
decode_stored: Final = msgspec.json.Decoder(StoredBody).decode
encode: Final = msgspec.json.Encoder().encode


def kind_of(phase: str | None) -> Kind:
    """Return the default kind of a snapshot that was sent without a kind."""
    return "phase_end" if phase else "manual"
