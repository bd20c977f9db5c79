"""Number of NumPy arrays and bytes of their buffers; each buffer is counted once.

Only objects of exactly the types ``numpy.ndarray`` and ``numpy.memmap`` are examined. A view adds no bytes: the array
that owns the buffer is counted instead, and is found through the view even if nothing else refers to the owner.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import attrgetter, is_, is_not
from typing import Any, Final

# Limit on the arrays that are checked for memory shared with tensors; the result is scaled to all arrays.
_ADDRESSES_ASKED: Final = 20_000

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
