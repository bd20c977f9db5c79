"""A chunk as a row of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .codec import Chunk
from .tables import chunks

if TYPE_CHECKING:
    from .columns import Key

# What a `Chunk` is made of, in its order.
PACKED: Final = tuple(
    chunks.c[name] for name in ("count", "present", "first", "last", "min", "max", "width", "blob")
)


def chunk_row(
    key: Key, number: int, first_sequence: int, chunk: Chunk, pieces: bytes | None = None
) -> dict[str, Any]:
    """Return the row of a column in the segment that begins here; ``pieces``: of a compacted segment (pieces.py)."""
    return {
        "run_id": key.run_id, "process_id": key.process_id, "series_id": number, "first_sequence": first_sequence,
        "count": chunk.count, "present": chunk.present, "first": chunk.first, "last": chunk.last, "min": chunk.min,
        "max": chunk.max, "width": chunk.width, "blob": chunk.blob, "pieces": pieces,
    }  # fmt: skip


def size(row: Mapping[str, Any]) -> int:
    """Bytes of what is packed in it."""
    return sum(len(row[name] or b"") for name in ("blob", "pieces"))
