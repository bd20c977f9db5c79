"""Large arrays and tensors that the program has not written to completely.

The system provides an array's memory page by page, when the program first writes to each page. The memory of a replay
buffer that was created with ``np.zeros`` therefore grows for hours, although no object is created.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from weakref import ref

from leakline.probes.heap.arrays import array_types
from leakline.probes.heap.tensor_storages import overrides_off, storage_key
from leakline.snapshot import Number

FLOOR_BYTES: Final = 4 << 20
# An array counts as completely written if at most this share of its bytes is unwritten.
_COMPLETE: Final = 0.02
# Limits on the arrays that are watched, and on the new arrays that one search examines.
_WATCHED_LIMIT: Final = 64
_NEW_LIMIT: Final = 16
# The pages of a smaller array are all looked up. Of a larger array, only the intervals whose two ends differ.
_READ_WHOLE_BYTES: Final = 64 << 20
_INTERVALS: Final = 128
# Linux has an entry of eight bytes for each page of the process's address space.
_PAGEMAP: Final = "/proc/self/pagemap"
_ENTRY_BYTES: Final = 8
# The highest byte of an entry: bit 7 means that the page is in memory, bit 6 that it is in swap.
_WRITTEN: Final = bytes(byte for byte in range(256) if byte & 0xC0)


@dataclass(slots=True)
class _Watched:
    reference: ref[Any]
    unwritten_bytes: int


class PreallocatedArrays:
    """Watches arrays that were not completely written when they were found. It keeps only weak references."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        # Arrays that were completely written when they were found.
        self._complete: dict[int, ref[Any]] = {}
        self._written_bytes = 0
        self._has_searched = False

    def find(self, arrays: Iterable[Any]) -> None:
        """Watch those of ``arrays`` that are large and incomplete; their types must be exactly NumPy's or torch's."""
        self._complete = {key: one for key, one in self._complete.items() if one() is not None}
        new = {id(one): one for one in arrays if not self._is_known(one)}
        sized = [(memory[1], key) for key, one in new.items() if (memory := _memory_of(one))]
        for _, key in sorted(sized, reverse=True)[:_NEW_LIMIT]:
            unwritten, size = _unwritten_bytes(new[key])
            if unwritten <= _COMPLETE * size or len(self._watched) >= _WATCHED_LIMIT:
                self._complete[key] = ref(new[key])
                continue
            self._watched[key] = _Watched(ref(new[key]), unwritten)
            if not self._has_searched:
                self._written_bytes += size - unwritten
        self._has_searched = True

    def read(self) -> dict[str, Number]:
        """Return ``arrays.written_bytes`` and ``arrays.unwritten_bytes``, or {} if no incomplete array was ever found.

        ``written_bytes`` is a running total: memory of arrays that no longer exist is not subtracted. Arrays that were
        found after the first search add only what is written to them later.
        """
        if not (self._watched or self._written_bytes):
            return {}
        for key, one in list(self._watched.items()):
            array = one.reference()
            if array is None:
                del self._watched[key]
                continue
            unwritten, _ = _unwritten_bytes(array)
            self._written_bytes += max(0, one.unwritten_bytes - unwritten)
            one.unwritten_bytes = unwritten
            if not unwritten:
                self._complete[key] = self._watched.pop(key).reference
        left = sum(one.unwritten_bytes for one in self._watched.values())
        return {"arrays.written_bytes": self._written_bytes, "arrays.unwritten_bytes": left}

    def _is_known(self, one: Any) -> bool:
        watched, complete = self._watched.get(id(one)), self._complete.get(id(one))
        return (watched is not None and watched.reference() is one) or (
            complete is not None and complete() is one
        )


def _memory_of(one: Any) -> tuple[int, int] | None:
    """Return (address, bytes) of memory that an array or tensor has allocated in the process, if it is large."""
    if any(type(one) is kind for kind in array_types()[:1]):
        found = one.__array_interface__["data"][0], one.nbytes
        is_own = one.base is None
    else:
        with overrides_off():
            if not one.is_cpu or (key := storage_key(one)) is None:
                return None
            # A file that is mapped into memory has a storage that cannot be resized.
            found, is_own = key, one.untyped_storage().resizable()
    return found if is_own and found[1] >= FLOOR_BYTES else None


def _unwritten_bytes(one: Any) -> tuple[int, int]:
    """Return (unwritten bytes, all bytes) of an array or tensor; no bytes are unwritten if the system does not say."""
    memory = _memory_of(one)
    if memory is None:
        return 0, 0
    address, size = memory
    try:
        file = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, size
    try:
        return min(size, unwritten_pages(file, address, size) * mmap.PAGESIZE), size
    finally:
        os.close(file)


def unwritten_pages(pagemap: int, address: int, size: int) -> int:
    """Return the number of pages between ``address`` and ``address + size`` that have no memory yet."""
    first, end = address // mmap.PAGESIZE + 1, (address + size) // mmap.PAGESIZE
    count = max(0, end - first)
    if count * mmap.PAGESIZE <= _READ_WHOLE_BYTES:
        return _count_unwritten(pagemap, first, count)
    bounds = [first + count * i // _INTERVALS for i in range(_INTERVALS + 1)]
    at_bounds = [_count_unwritten(pagemap, min(at, end - 1), 1) for at in bounds]
    total = 0
    for i in range(_INTERVALS):
        pages = bounds[i + 1] - bounds[i]
        if at_bounds[i] != at_bounds[i + 1]:
            total += _count_unwritten(pagemap, bounds[i], pages)
        else:
            total += pages * at_bounds[i]
    return total


def _count_unwritten(pagemap: int, first: int, count: int) -> int:
    try:
        entries = os.pread(pagemap, count * _ENTRY_BYTES, first * _ENTRY_BYTES)
    except OSError:
        return 0
    highest_bytes = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]
    return len(highest_bytes.translate(None, _WRITTEN))
