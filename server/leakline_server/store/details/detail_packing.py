"""Events, large objects and holders of compacted segments in fewer rows: written one a batch, packed to many a row.

A row holds entries of one block (block_layout.py), so who asks for the newest knows where to look. The
entries of a snapshot are never divided. Censuses keep a row each, because one of them is asked for at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, literal_column, select

from ..ingest import wire_types
from ..ingest.incoming_batch import DetailKind
from ..schema import details
from ..series import block_layout
from ..series.chunk_codec import CorruptChunk, compress
from ..series.column_reader import Key, mine
from .details import unpack

PACKED: Final[tuple[DetailKind, ...]] = ("events", "large_objects", "holders")
# Past this, a row is long enough to be one of several.
MAX_ENTRIES: Final = 2_000

_sequence: Final = attrgetter("sequence")


class Changed(Exception):
    """Somebody else has packed them meanwhile."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of a kind, by sequence, and those that replace them."""

    kind: DetailKind
    gone: Sequence[int]
    rows: Sequence[dict[str, Any]]


def plan(connection: Connection, key: Key, low: int, high: int) -> list[Packed]:
    """What to pack of the snapshots from ``low`` to ``high``."""
    rows = connection.execute(_THESE, key._asdict() | {"low": low, "high": high}).all()
    found = [_of_kind(kind, [row for row in rows if row.kind == kind]) for kind in PACKED]
    return [packed for packed in found if packed is not None]


def replace(connection: Connection, key: Key, planned: Sequence[Packed]) -> None:
    """Raises Changed, after which the transaction is of no use."""
    d = details.c
    for packed in planned:
        gone = and_(
            d.run_id == key.run_id, d.kind == packed.kind, d.process_id == key.process_id,
            d.sequence.in_(packed.gone),
        )  # fmt: skip
        if connection.execute(delete(details).where(gone)).rowcount != len(packed.gone):
            raise Changed
        connection.execute(insert(details), packed.rows)


def _of_kind(kind: DetailKind, rows: Sequence[Row[Any]]) -> Packed | None:
    """Of all rows of the kind, by sequence."""
    readable: list[Row[Any]] = []
    entries: list[Any] = []
    for row in rows:
        try:
            entries += unpack(kind, row.body)
        except CorruptChunk:
            # It stays as it is.
            continue
        readable.append(row)
    new = list(_rows(readable, sorted(entries, key=_sequence)))
    if len(new) >= len(readable):
        return None
    return Packed(kind, [row.sequence for row in readable], new)


def _rows(old: Sequence[Row[Any]], entries: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for _, of_block in groupby(entries, lambda entry: entry.sequence // block_layout.BLOCK):
        packed: list[Any] = []
        for _, of_snapshot in groupby(of_block, _sequence):
            if len(packed) >= MAX_ENTRIES:
                yield _row(old, packed)
                packed = []
            packed += of_snapshot
        yield _row(old, packed)


def _row(old: Sequence[Row[Any]], entries: Sequence[Any]) -> dict[str, Any]:
    # Of the last row that begins before the last of these.
    source = next(row for row in reversed(old) if row.sequence <= entries[-1].sequence)
    return dict(source._mapping) | {
        "sequence": entries[0].sequence,
        "body": compress(wire_types.encode(entries)),
    }


# A question of all kinds costs what one of a single kind does, and most often the answer is that there is nothing.
_THESE: Final = (
    select(details)
    .where(
        mine(details),
        details.c.kind.in_([literal_column(f"'{kind}'") for kind in PACKED]),
        details.c.sequence.between(bindparam("low"), bindparam("high")),
    )
    .order_by(details.c.sequence)
)
