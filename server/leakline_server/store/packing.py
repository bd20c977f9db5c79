"""Events, large objects and holders of compacted segments in fewer rows: written one a batch, packed to many a row.

A row holds entries of one block (blocks.py), so who asks for the newest knows where to look. The
entries of a snapshot are never divided. Censuses keep a row each, because one of them is asked for at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, insert, select

from . import blocks, wire
from .codec import CorruptChunk, compress
from .columns import Key
from .details import unpack
from .incoming import DetailKind
from .tables import details

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
    found = [_of_kind(connection, key, kind, low, high) for kind in PACKED]
    return [packed for packed in found if packed is not None]


def replace(connection: Connection, key: Key, planned: Sequence[Packed]) -> None:
    """Raises Changed, after which the transaction is of no use."""
    d = details.c
    for packed in planned:
        mine = and_(
            d.run_id == key.run_id, d.kind == packed.kind, d.process_id == key.process_id,
            d.sequence.in_(packed.gone),
        )  # fmt: skip
        if connection.execute(delete(details).where(mine)).rowcount != len(packed.gone):
            raise Changed
        connection.execute(insert(details), packed.rows)


def _of_kind(
    connection: Connection, key: Key, kind: DetailKind, low: int, high: int
) -> Packed | None:
    d = details.c
    query = select(details).where(
        d.run_id == key.run_id, d.kind == kind, d.process_id == key.process_id, d.sequence.between(low, high)
    ).order_by(d.sequence)  # fmt: skip
    readable: list[Row[Any]] = []
    entries: list[Any] = []
    for row in connection.execute(query):
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
    for _, of_block in groupby(entries, lambda entry: entry.sequence // blocks.BLOCK):
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
        "body": compress(wire.encode(entries)),
    }
