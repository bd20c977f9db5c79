"""In-memory columns of numbers and strings, and the compression of stored data."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import zstandard

# Ids of the columns that every snapshot has. The column of a series has the series' id within the run.
SEQUENCE: Final = -1
TIME: Final = -2
MONOTONIC: Final = -3
GENERATION: Final = -4
PHASE: Final = -5
LABEL: Final = -6
KIND: Final = -7
COLUMNS: Final = (SEQUENCE, TIME, MONOTONIC, GENERATION, PHASE, LABEL, KIND)
TEXT_COLUMNS: Final = frozenset((PHASE, LABEL, KIND))
COLUMN_NAMES: Final[Mapping[int, str]] = {
    SEQUENCE: "sequence", TIME: "time", MONOTONIC: "monotonic", GENERATION: "generation", PHASE: "phase",
    LABEL: "label", KIND: "kind",
}  # fmt: skip
# The maximum decompressed size, much larger than any batch, chunk or row of details.
MAX_PAYLOAD_BYTES: Final = 2**30

_local = threading.local()

Array = npt.NDArray[Any]


class CorruptChunk(Exception):
    """Raised when stored data is damaged."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of int64 or float64 values.

    ``present`` is a mask of the present entries, or None if all entries are present. Absent entries are stored as 0.
    """

    values: Array
    present: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def to_list(self) -> list[int | float | None]:
        values: list[int | float | None] = self.values.tolist()
        if self.present is None:
            return values
        return [v if p else None for v, p in zip(values, self.present.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Texts:
    """A dictionary-encoded column of strings: entry *i* is ``names[index[i]]``, or null if ``index[i]`` is -1."""

    names: tuple[str, ...]
    index: Array

    def __len__(self) -> int:
        return len(self.index)

    def to_list(self) -> list[str | None]:
        names = (*self.names, None)
        return [names[i] for i in self.index.tolist()]

    def equal(self, text: str) -> Array:
        """Return a mask of the entries equal to this string."""
        at = self.names.index(text) if text in self.names else len(self.names)
        found: Array = self.index == at
        return found


Column = Numbers | Texts


def compress(data: bytes) -> bytes:
    """Return a zstd frame with a checksum. Level 1 is enough: higher levels save only 1 % more on this data."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    return bytes(_local.compressor.compress(data))


def decompress(data: bytes) -> bytes:
    """Return the bytes that were passed to `compress`. Raises CorruptChunk."""
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    try:
        # zstd allocates the size that the frame declares, and that number may itself be damaged.
        if zstandard.frame_content_size(data) > min(MAX_PAYLOAD_BYTES, _most_of(len(data))):
            raise CorruptChunk("a stored frame declares an impossible size")
        return bytes(_local.decompressor.decompress(data))
    except (zstandard.ZstdError, MemoryError, OverflowError, ValueError) as error:
        raise CorruptChunk(str(error)) from error


def _most_of(size: int) -> int:
    """Return an upper bound on the decompressed size of a zstd frame: 128 KiB per block of at least 4 bytes."""
    return (size // 4 + 1) * 2**17


def numbers(values: Sequence[int | float | None]) -> Numbers:
    """Return an int64 column if all values are integers, otherwise a float64 column. None becomes an absent entry."""
    dense = np.array(values)
    if dense.dtype.kind in "if":
        return Numbers(dense)
    present = np.array([v is not None for v in values], dtype=bool)
    found = np.array([v for v in values if v is not None])
    out = np.zeros(len(present), dtype=found.dtype if len(found) else np.int64)
    out[present] = found
    return Numbers(out, None if present.all() else present)


def texts(values: Sequence[str | None]) -> Texts:
    names = dict.fromkeys(values)
    names.pop(None, None)
    numbered = dict(zip(names, range(len(names)), strict=True)) | {None: -1}
    index = np.fromiter(map(numbered.__getitem__, values), np.int32, len(values))
    return Texts(cast(tuple[str, ...], tuple(names)), index)


@lru_cache(maxsize=16)
def absent(count: int) -> Numbers:
    """Return a read-only column of absent entries. Cached, because most columns of one-snapshot batches are empty."""
    values, present = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    values.flags.writeable = present.flags.writeable = False
    return Numbers(values, present)


def concatenate_numbers(parts: Sequence[Numbers]) -> Numbers:
    if len(parts) == 1:
        return parts[0]
    # A part without values has no meaningful type, so it must not influence the type of the result.
    typed = [p.values for p in parts if p.present is None or p.present.any()]
    kind = np.result_type(*typed) if typed else np.dtype(np.int64)
    values = np.concatenate([p.values.astype(kind, copy=False) for p in parts])
    if all(p.present is None for p in parts):
        return Numbers(values)
    present = [np.ones(len(p), dtype=bool) if p.present is None else p.present for p in parts]
    return Numbers(values, np.concatenate(present))


def concatenate_texts(parts: Sequence[Texts]) -> Texts:
    if len(parts) == 1:
        return parts[0]
    # There may be thousands of labels, most of them unique, so avoid a Python loop over them.
    together = texts(list(chain.from_iterable(part.names for part in parts)))
    ends = np.cumsum([len(part.names) for part in parts])
    # The extra last entry maps -1 (null) to itself.
    moved = [
        np.append(to, np.int32(-1))[part.index]
        for part, to in zip(parts, np.split(together.index, ends[:-1]), strict=True)
    ]
    return Texts(together.names, np.concatenate(moved))


def only_used(column: Texts) -> Texts:
    """Return the column without unused names. The remaining names are in order of first use."""
    used, first = np.unique(column.index, return_index=True)
    order = used[np.argsort(first)]
    order = order[order >= 0]
    moved = np.full(len(column.names) + 1, -1, np.int32)
    moved[order] = np.arange(len(order), dtype=np.int32)
    return Texts(tuple(column.names[i] for i in order.tolist()), moved[column.index])


def take(column: Column, rows: Array) -> Column:
    if isinstance(column, Texts):
        return Texts(column.names, column.index[rows])
    present = None if column.present is None else column.present[rows]
    # A mask that is all true carries no information.
    return Numbers(column.values[rows], None if present is None or present.all() else present)
