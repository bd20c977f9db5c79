"""A chunk as a row of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .codec import Chunk
from .tables import chunks

if TYPE_CHECKING:
    from .columns import Key

# What a `Chunk` is made of, in its order.
PACKED: Final = tuple(
    chunks.c[name] for name in ("count", "present", "first", "last", "min", "max", "width", "blob")
)


class Beside(NamedTuple):
    """What stands beside the chunk of a compacted segment, packed (pieces.py, strands.py)."""

    pieces: bytes | None
    strands: bytes | None


NOTHING_BESIDE: Final = Beside(None, None)


def chunk_row(
    key: Key, number: int, first_sequence: int, chunk: Chunk, beside: Beside = NOTHING_BESIDE
) -> dict[str, Any]:
    """Of the column with this number, in the segment that begins here."""
    return {
        "run_id": key.run_id, "process_id": key.process_id, "series_id": number, "first_sequence": first_sequence,
        "count": chunk.count, "present": chunk.present, "first": chunk.first, "last": chunk.last, "min": chunk.min,
        "max": chunk.max, "width": chunk.width, "blob": chunk.blob, **beside._asdict(),
    }  # fmt: skip


def size(row: Mapping[str, Any]) -> int:
    """Bytes of what is packed in it."""
    return sum(len(row[name] or b"") for name in ("blob", "pieces", "strands"))
