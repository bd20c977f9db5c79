"""Storage of time series. Other packages import only the names in `__all__`.

`append` stores batches until they are sealed, `seal` turns waiting batches into a segment, `compact` merges small
segments into a large one, `drop` removes snapshots from a segment, `read` returns columns of snapshots, and `summarise`
downsamples long series to a few points. Other packages never decode a chunk; they only count rows and delete the rows
of removed runs.

It imports `schema`, `columns`, `engine`, `ingest.incoming_batch`, `details`, `maintenance.corruption`, `runs` and
numpy. Start reading in `chunk_codec.py` (the format), `column_reader.py` and `chart_points.py`.
"""

from __future__ import annotations

from ..columns import Array, Column, CorruptChunk, Numbers, Texts, take
from ..schema import BLOCK, Key
from .chart_points import Axis, SeriesQuery, first_generations, has_series, matching, summarise
from .column_reader import (
    Block,
    Stored,
    read,
    read_between,
    read_newer,
    series_ids,
    stored_numbers,
)
from .compaction import compact, drop, undropped
from .compaction import due as due_to_compact
from .sealing import MIN_SNAPSHOTS, MIN_SNAPSHOTS_IDLE, append, enough, seal
from .sealing import due as due_to_seal

__all__ = [
    "BLOCK", "MIN_SNAPSHOTS", "MIN_SNAPSHOTS_IDLE", "Array", "Axis", "Block", "Column", "CorruptChunk", "Key",
    "Numbers", "SeriesQuery", "Stored", "Texts", "append", "compact", "drop", "due_to_compact", "due_to_seal",
    "enough", "first_generations", "has_series", "matching", "read", "read_between", "read_newer", "seal", "series_ids",
    "stored_numbers", "summarise", "take", "undropped",
]  # fmt: skip
