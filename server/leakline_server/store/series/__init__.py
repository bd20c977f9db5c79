"""The series of runs on disk. Other packages import from here alone, what `__all__` names.

`append` adds batches to those that wait, `seal` makes a segment of waiting batches, `compact` a large segment of small
ones, `drop` leaves snapshots out of a segment, `read` gives the columns of snapshots, and `summarise` long series as
few points. Other packages never see a chunk; they count rows, and delete those of removed runs.

Imports `schema`, `columns`, `engine`, `ingest.incoming_batch`, `details`, `maintenance.corruption`, `runs`;
numpy. Start reading in `chunk_codec.py` (the format), `column_reader.py`, and `chart_points.py`.
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
