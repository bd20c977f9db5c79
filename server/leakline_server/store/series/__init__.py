"""The series of a run on disk: what all other packages do to them, and the types they need for it.

`append` adds batches to those that wait, `seal` makes one segment of the batches that wait of a process, `compact` one
large segment of small ones, `read` gives columns of snapshots, `summarise` long series as few points, and `drop` thins
a segment. Nothing else changes or reads `batches`, `segments` and `chunks` but the removal of runs.

Imports `schema`, `columns`, `engine`, `ingest.incoming_batch`, `details`, `maintenance.corruption`, `runs`;
numpy. Start reading in `chunk_codec.py` (the format), `column_reader.py`, and `chart_points.py`.
"""

from __future__ import annotations

from ..columns import Array, Column, CorruptChunk, Numbers, Texts, take
from ..schema import BLOCK, Key
from .chart_points import Axis, SeriesQuery, first_generations, matching, summarise
from .chunk_codec import encode
from .column_reader import (
    Block,
    Stretch,
    chunk_row,
    chunk_size,
    heads,
    newest,
    read,
    read_between,
    series_ids,
    stored_numbers,
    stored_numbers_of_run,
    stretches,
)
from .compaction import compact
from .compaction import due as due_to_compact
from .sealing import MIN_SNAPSHOTS, MIN_SNAPSHOTS_IDLE, enough, seal
from .sealing import due as due_to_seal

__all__ = [
    "BLOCK", "MIN_SNAPSHOTS", "MIN_SNAPSHOTS_IDLE", "Array", "Axis", "Block", "Column", "CorruptChunk", "Key",
    "Numbers", "SeriesQuery", "Stretch", "Texts", "chunk_row", "chunk_size", "compact", "due_to_compact", "due_to_seal",
    "encode", "enough", "first_generations", "heads", "matching", "newest", "read", "read_between", "seal",
    "series_ids", "stored_numbers", "stored_numbers_of_run", "stretches", "summarise", "take",
]  # fmt: skip
