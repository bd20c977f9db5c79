"""Number of NumPy arrays and bytes of their buffers; each buffer is counted once.

Only objects of exactly the types ``numpy.ndarray`` and ``numpy.memmap`` are examined. A view adds no bytes: the array
that owns the buffer is counted instead, and is found through the view even if nothing else refers to the owner.

`PreallocatedArrays` measures how much of large arrays and tensors the program has written. The system provides an
array's memory page by page, when the program first writes to each page. The memory of a replay buffer that was created
with ``np.zeros`` therefore grows for hours, although no object is created.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import attrgetter, is_, is_not
from typing import Any, Final

from leakline.probes.heap.tensor_storages import overrides_off, storage_key
from leakline.snapshot import Number

# Limit on the arrays that are checked for memory shared with tensors; the result is scaled to all arrays.
_ADDRESSES_ASKED: Final = 20_000

# Minimum size of arrays whose written part is measured.
PREALLOCATED_FLOOR_BYTES: Final = 4 << 20
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

_base = attrgetter("base")
_nbytes = attrgetter("nbytes")
_has_objects = attrgetter("dtype.hasobject")


@dataclass(slots=True)
class ArrayMeasure:
    """Number and bytes of all arrays.

    ``bytes`` is the process's memory, and ``mapped_bytes`` is the size of files mapped by ``numpy.memmap``. ``large``
    contains (bytes, type name, detail) and no objects.
    """

    count: int = 0
    bytes: int = 0
    mapped_count: int = 0
    mapped_bytes: int = 0
    large: list[tuple[int, str, str]] = field(default_factory=list)


def array_types() -> tuple[type, ...]:
    """Return ``numpy.ndarray`` and ``numpy.memmap``, or () if the program has not loaded NumPy."""
    numpy: Any = sys.modules.get("numpy")
    found = getattr(numpy, "ndarray", None), getattr(numpy, "memmap", None)
    return tuple(kind for kind in found if isinstance(kind, type))


def items_of_object_arrays(arrays: list[Any]) -> list[Any]:
    """Return the items of arrays of Python objects, which the collector cannot traverse."""
    items: list[Any] = []
    for array in compress(arrays, map(_has_objects, arrays)):
        # The items of a structured dtype with object fields are tuples that hold the objects.
        items.extend(array.ravel().tolist())
    return items


def with_hidden_owners(arrays: list[Any], ndarray: Any) -> list[Any]:
    """Return ``arrays``, extended by missing owners of their buffers."""
    views = _views_among(arrays)
    if not views:
        return arrays
    known = set(map(id, arrays))
    hidden: list[Any] = []
    bases: dict[int, Any] = {id(base): base for base in map(_base, views)}
    for base in bases.values():
        one = base
        while type(one) is ndarray and id(one) not in known:
            known.add(id(one))
            hidden.append(one)
            one = one.base
    return arrays + hidden


def measure_arrays(
    arrays: list[Any],
    memmaps: list[Any],
    floor_bytes: int,
    counted: Collection[int] = (),
    tensor_memory: Mapping[int, int] | None = None,
    foreign_types: Collection[type] = (),
) -> ArrayMeasure:
    """Measure arrays, grouped by exact type.

    ``counted`` contains addresses of objects that are already in another row (byte strings); ``foreign_types`` are
    types of objects counted elsewhere (tensors). ``tensor_memory`` maps addresses to bytes of memory that tensors use
    but did not allocate; an array that owns such memory adds nothing.
    """
    owners = list(compress(arrays, map(is_, map(_base, arrays), repeat(None))))
    sizes = list(map(_nbytes, owners))
    measure = ArrayMeasure(count=len(arrays), bytes=sum(sizes))
    if tensor_memory:
        measure.bytes -= _shared_bytes(owners, sizes, tensor_memory)
    if sizes and max(sizes) >= floor_bytes:
        measure.large += [
            (size, "numpy.ndarray", describe(one))
            for size, one in zip(sizes, owners, strict=True)
            if size >= floor_bytes
        ]
    if len(owners) < len(arrays):
        _add_foreign_buffers(measure, _views_among(arrays), counted, foreign_types)
    _add_memmaps(measure, memmaps, floor_bytes)
    return measure


def describe(array: Any) -> str:
    """Return the array's shape and dtype, for example ``(100000, 33) float32``."""
    return f"{array.shape} {array.dtype.name}"


def _views_among(arrays: list[Any]) -> list[Any]:
    """Return the arrays that do not own their memory; most programs have few."""
    return list(compress(arrays, map(is_not, map(_base, arrays), repeat(None))))


def _shared_bytes(owners: list[Any], sizes: list[int], tensor_memory: Mapping[int, int]) -> int:
    # Reading an array's address costs ten times as much as everything else, so the address is read only if the array's
    # size equals a tensor's.
    fits = frozenset(tensor_memory.values())
    candidates = list(compress(owners, map(fits.__contains__, sizes)))
    asked = candidates[:: max(1, len(candidates) // _ADDRESSES_ASKED)]
    shared = sum(one.nbytes for one in asked if one.__array_interface__["data"][0] in tensor_memory)
    return round(shared * len(candidates) / len(asked)) if asked else 0


def _add_foreign_buffers(
    measure: ArrayMeasure,
    views: list[Any],
    counted: Collection[int],
    foreign_types: Collection[type],
) -> None:
    """Add buffers that arrays use but other objects own. The largest view determines a buffer's size."""
    # Types are compared by identity, because a metaclass of the program may define its own equality.
    elsewhere = (*array_types(), *foreign_types, mmap.mmap)
    largest: dict[int, int] = {}
    for array in views:
        owner = _base(array)
        if any(type(owner) is kind for kind in elsewhere):
            continue
        if type(owner) is memoryview:
            owner = owner.obj
            if type(owner) is bytearray or type(owner) is bytes:
                # The collector lists the memoryview, so these objects were found through it and have their own row.
                continue
        if id(owner) not in counted:
            largest[id(owner)] = max(largest.get(id(owner), 0), array.nbytes)
    measure.bytes += sum(largest.values())


def _add_memmaps(measure: ArrayMeasure, memmaps: list[Any], floor_bytes: int) -> None:
    measure.mapped_count = len(memmaps)
    # A slice of a memmap is a memmap of the same file, so the largest memmap represents the file.
    files: dict[int, Any] = {}
    for one in memmaps:
        known = files.get(id(one.base))
        if type(one.base) is mmap.mmap and (known is None or known.nbytes < one.nbytes):
            files[id(one.base)] = one
    for one in files.values():
        measure.mapped_bytes += one.nbytes
        if one.nbytes >= floor_bytes:
            measure.large.append((one.nbytes, "numpy.memmap", describe(one)))


# Address and bytes of memory.
_Memory = tuple[int, int]


class PreallocatedArrays:
    """A watch over arrays that were not completely written when they were found.

    It keeps addresses and no references, not even weak ones: NumPy cannot resize and torch cannot swap an object that
    has a weak reference.
    """

    def __init__(self) -> None:
        # Memory that is not completely written -> unwritten bytes at the last reading.
        self._watched: dict[_Memory, int] = {}
        # Memory that was completely written when it was found.
        self._complete: set[_Memory] = set()
        self._written_bytes = 0
        self._has_searched = False

    def find(self, arrays: Iterable[Any]) -> None:
        """Watch those of ``arrays`` that are large and incomplete, and forget memory that belongs to none of them.

        The types of ``arrays`` must be exactly NumPy's or torch's.
        """
        memories = _large_memories(arrays)
        self._watched = {one: left for one, left in self._watched.items() if one in memories}
        self._complete &= memories
        new = memories - self._watched.keys() - self._complete
        for one in sorted(new, key=_size, reverse=True)[:_NEW_LIMIT]:
            unwritten = _unwritten_bytes(one)
            if unwritten is None:
                return
            if unwritten <= _COMPLETE * _size(one) or len(self._watched) >= _WATCHED_LIMIT:
                self._complete.add(one)
                continue
            self._watched[one] = unwritten
            if not self._has_searched:
                self._written_bytes += _size(one) - unwritten
        self._has_searched = True

    def read(self) -> dict[str, Number]:
        """Return ``arrays.written_bytes`` and ``arrays.unwritten_bytes``.

        The result is {} if no incomplete array was ever found, or if the system does not show now what is written.
        ``written_bytes`` is a running total: memory of arrays that no longer exist is not subtracted. Arrays that were
        found after the first search add only what is written to them later.
        """
        if not (self._watched or self._written_bytes):
            return {}
        for one, before in list(self._watched.items()):
            unwritten = _unwritten_bytes(one)
            if unwritten is None:
                return {}
            if unwritten > before:
                # Written pages stay until the memory is freed.
                del self._watched[one]
                continue
            self._written_bytes += before - unwritten
            self._watched[one] = unwritten
        left = sum(self._watched.values())
        return {"arrays.written_bytes": self._written_bytes, "arrays.unwritten_bytes": left}


def _size(memory: _Memory) -> int:
    return memory[1]


def _large_memories(arrays: Iterable[Any]) -> set[_Memory]:
    """Return the memory that large arrays and tensors have allocated in the process."""
    ndarrays = array_types()[:1]
    found: set[_Memory] = set()
    with overrides_off():
        for one in arrays:
            # Most arrays are small, and the size is read faster than the address.
            if not _is_large(one):
                continue
            if any(type(one) is kind for kind in ndarrays):
                if one.base is None:
                    found.add((one.__array_interface__["data"][0], one.nbytes))
                continue
            key = storage_key(one) if one.is_cpu else None
            # A file that is mapped into memory has a storage that cannot be resized.
            if key is not None and one.untyped_storage().resizable():
                found.add(key)
    return found


def _is_large(one: Any) -> bool:
    try:
        return bool(one.nbytes >= PREALLOCATED_FLOOR_BYTES)
    except (RuntimeError, AttributeError):
        # Sparse tensors have no storage of their own, and tensors of old versions of torch no such attribute.
        return False


def _unwritten_bytes(memory: _Memory) -> int | None:
    """Return the bytes of the memory that are not written yet, or None if the system does not show them."""
    address, size = memory
    try:
        file = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return min(size, _unwritten_pages(file, address, size) * mmap.PAGESIZE)
    except OSError:
        return None
    finally:
        os.close(file)


def _unwritten_pages(pagemap: int, address: int, size: int) -> int:
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
    entries = os.pread(pagemap, count * _ENTRY_BYTES, first * _ENTRY_BYTES)
    highest_bytes = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]
    return len(highest_bytes.translate(None, _WRITTEN))
