"""The census: live objects by exact type, with the bytes of arrays and tensors counted once per buffer.

A census of the entire heap is exact. If a deadline cuts a census short, it scales up the counts of the visited part,
which is spread over the heap, and reports the visited share as ``coverage``. A finished census keeps no object of the
program alive. A census never forces a collection, and never uses attributes, ``isinstance`` or ``repr`` of the
program's objects.

If the native module is available, ``take_census`` uses it, and ``SlicedCensus`` uses it in slices while the program
runs. Only the native census counts plain atoms (numbers, strings), which it visits anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import compress
from time import perf_counter, thread_time
from types import FrameType
from typing import Any, Final

from leakline.probes.heap.arrays import (
    ArrayMeasure,
    array_types,
    items_of_object_arrays,
    measure_arrays,
    with_hidden_owners,
)
from leakline.probes.heap.census_result import CensusResult, SlicedResult, by_name
from leakline.probes.heap.heap_walk import Heap, HeapWalk
from leakline.probes.heap.native_census import (
    NO_LIMIT,
    MappedFiles,
    NativeCensus,
    TypeRow,
    array_layout,
)
from leakline.probes.heap.tensor_storages import tensor_types
from leakline.probes.heap.tensors import TensorMeasure, TensorTally, measure_tensors
from leakline.probes.native_module import native
from leakline.probes.references.class_names import basic_bytes, type_name
from leakline.probes.references.frames import locals_by_function
from leakline.probes.references.program_code import user_classes, user_modules
from leakline.snapshot import Number

from .heap_walk import listed_objects

# Minimum size of objects listed as large, even if the caller later requests smaller objects.
LARGE_FLOOR_BYTES: Final = 1 << 20
# Maximum number of instances of each of the program's own classes that are handed to `on_instances`.
INSTANCES_OF_A_CLASS: Final = 2_000
_LARGE_KEPT: Final = 200
# Number of tensors measured together in a sliced census, which takes about 0.3 ms.
_TENSORS_AT_ONCE: Final = 64

OnInstances = Callable[[Mapping[type, Sequence[object]]], None]


def take_census(
    deadline_seconds: float | None = None,
    on_instances: OnInstances | None = None,
    clock: Callable[[], float] = thread_time,
) -> CensusResult:
    """Count live objects by exact type.

    1. Walk the objects on the collector's list, and unlisted objects reachable from them or from local variables of the
       calling thread's functions.
    2. Measure arrays and tensors by their own buffers.
    3. Hand instances of the program's own classes to ``on_instances``, which must not keep them.
    4. Release all objects, and return names and numbers.

    The deadline is in CPU seconds of this thread, so that a busy machine does not cut the census short. The walk stops
    at the deadline; the cost of steps 2 and 3 is then proportional to the part visited. The walk in Python cannot
    interrupt ``listed_objects``, which takes about 160 ms per million objects. The native walk still counts the
    remaining objects after the deadline, at 40 ms per million.
    """
    pick = dict.fromkeys(user_classes(), INSTANCES_OF_A_CLASS) if on_instances else {}
    take = _take_in_python if native() is None else _take_natively
    return take(deadline_seconds, on_instances, clock, pick, sys._getframe(1))


def _take_natively(
    deadline_seconds: float | None,
    on_instances: OnInstances | None,
    clock: Callable[[], float],
    pick: dict[type, int],
    frame: FrameType,
) -> CensusResult:
    started = clock()

    def is_over() -> bool:
        return deadline_seconds is not None and clock() - started > deadline_seconds

    variables = [
        value for one in locals_by_function(frame).values() for value in one.read().values()
    ]
    census = NativeCensus({**pick, **_closer()}, LARGE_FLOOR_BYTES, in_slices=False)
    left = None if deadline_seconds is None else deadline_seconds - (clock() - started)
    seen = census.run(left, [*variables, *(vars(module) for _, module in user_modules())])
    census.follow(variables)
    variables.clear()
    picked = _by_type(census.take_picked())
    arrays = [] if census.measures_arrays else _arrays_for_python(census, picked)
    tensors = None
    if kinds := tensor_types():
        ones = {kind: picked.pop(id(kind), []) for kind in kinds}
        tensors = measure_tensors(ones, LARGE_FLOOR_BYTES, type_name)
        ones.clear()
    measured = _arrays_found(census, arrays, picked, tensors)
    arrays.clear()
    if on_instances is not None:
        on_instances({cls: picked[id(cls)] for cls in pick if id(cls) in picked})
    picked.clear()
    return _native_result(census, seen, measured, tensors, clock() - started)


def _arrays_for_python(census: NativeCensus, picked: dict[int, list[Any]]) -> list[Any]:
    """Return every array, for a NumPy version whose array structs the native module does not know."""
    if not array_types():
        return []
    ndarray = array_types()[0]
    arrays = picked.pop(id(ndarray), [])
    fresh = arrays
    while items := items_of_object_arrays(fresh):
        census.follow(items)
        fresh = _by_type(census.take_picked()).pop(id(ndarray), [])
        arrays = arrays + fresh
    return with_hidden_owners(arrays, ndarray)


def _arrays_found(
    census: NativeCensus,
    arrays: list[Any],
    picked: Mapping[int, list[Any]],
    tensors: TensorMeasure | None,
) -> ArrayMeasure | None:
    kinds = array_types()
    if not kinds:
        return None
    shared = tensors.addresses if tensors is not None else None
    memmaps = picked.get(id(kinds[1]), [])
    if not census.measures_arrays:
        return measure_arrays(
            arrays, memmaps, LARGE_FLOOR_BYTES, (), shared, foreign_types=tensor_types()
        )
    measure = ArrayMeasure(bytes=census.array_bytes(shared))
    files = MappedFiles(LARGE_FLOOR_BYTES)
    files.add(memmaps)
    files.add_to(measure)
    return measure


def _native_result(
    census: NativeCensus,
    seen: float,
    arrays: ArrayMeasure | None,
    tensors: TensorMeasure | None,
    seconds: float,
) -> CensusResult:
    scale = 1 / seen
    rows = _finished_rows(census, arrays, tensors)
    _scale(arrays, tensors, scale, scale)
    counts = {row.cls: round(row.count * scale) for row in rows}
    large = [*census.take_large(), *(arrays.large if arrays else ())]
    large += tensors.large if tensors else ()
    return CensusResult(
        mode="full",
        coverage=seen * census.untracked_coverage(),
        objects=sum(counts.values()),
        seconds=seconds,
        arrays=arrays,
        tensors=tensors,
        large=tuple(nlargest(_LARGE_KEPT, large)),
        counts=counts,
        type_bytes=tuple(None if row.bytes is None else round(row.bytes * scale) for row in rows),
    )


def _finished_rows(
    census: NativeCensus, arrays: ArrayMeasure | None, tensors: TensorMeasure | None
) -> list[TypeRow]:
    """Return the rows with buffer bytes and with the tensor objects that torch created while we read graphs.

    The measures' references to classes are removed.
    """
    rows = census.rows(arrays.bytes if arrays is not None else None)
    if arrays is not None:
        address = id(array_types()[0])
        if census.measures_arrays:
            arrays.count = next((row.count for row in rows if row.address == address), 0)
        else:
            rows = [
                replace(row, count=arrays.count) if row.address == address else row for row in rows
            ]
    if tensors is not None:
        kinds = {id(kind): kind for kind in tensors.by_type}
        rows = [_of_tensors(row, tensors, kinds) for row in rows]
        # Only the result may keep references to classes, because one more reference looks like one more instance.
        tensors.by_type.clear()
        tensors.shown.clear()
    return rows


def _of_tensors(row: TypeRow, tensors: TensorMeasure, kinds: Mapping[int, type]) -> TypeRow:
    kind = kinds.get(row.address)
    if kind is None:
        return row
    count = row.count + tensors.shown.get(kind, 0)
    return replace(row, count=count, bytes=tensors.by_type[kind])


def _closer() -> dict[type, int]:
    """Return the types whose objects Python must examine: tensors, memory maps and, if necessary, arrays."""
    kinds = (*tensor_types(), *array_types()[bool(array_layout()) :])
    return dict.fromkeys(kinds, NO_LIMIT)


def _by_type(objects: list[Any]) -> dict[int, list[Any]]:
    """Group objects by the address of their type. The given list is emptied, so that only the groups refer to the
    objects.
    """
    found: dict[int, list[Any]] = {}
    while objects:
        one = objects.pop()
        found.setdefault(id(type(one)), []).append(one)
    return found


class SlicedCensus:
    """A census in slices of a few milliseconds; the program runs between two slices. It needs the native module.

    Create the census on the program's thread, because the constructor reads this thread's local variables; ``step`` may
    be called on any thread. Between two steps, the census keeps no object and no class of the program. Call ``result``
    once, after ``step`` has returned True.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        started = clock()
        self._census = NativeCensus(_closer(), LARGE_FLOOR_BYTES, in_slices=True)
        self._tensors = TensorTally(LARGE_FLOOR_BYTES, type_name) if tensor_types() else None
        self._files = MappedFiles(LARGE_FLOOR_BYTES) if array_types() else None
        self._large: list[tuple[int, str, str]] = []
        for variables in locals_by_function(sys._getframe(1)).values():
            self._census.follow(list(variables.read().values()))
        self._seconds = clock() - started

    @property
    def bytes(self) -> int:
        """Bytes of memory used by the census itself."""
        return self._census.bytes

    def step(self, seconds: float) -> bool:
        """Continue for about ``seconds``; return True once all objects have been visited."""
        started = self._clock()
        ends = perf_counter() + seconds
        left = seconds
        while True:
            is_done = self._census.step(left, _TENSORS_AT_ONCE)
            self._measure_picked()
            left = ends - perf_counter()
            if is_done or left <= 0:
                break
        self._seconds += self._clock() - started
        return is_done

    def result(self) -> SlicedResult:
        """Return the counts and sizes of the entire census."""
        started = self._clock()
        tensors = self._tensors.measure(tensor_types()) if self._tensors is not None else None
        measured = None
        if self._files is not None and self._census.measures_arrays:
            shared = tensors.addresses if tensors is not None else None
            measured = ArrayMeasure(bytes=self._census.array_bytes(shared))
            self._files.add_to(measured)
        rows = _finished_rows(self._census, measured, tensors)
        large = [*self._large, *(measured.large if measured else ())]
        large += tensors.large if tensors else ()
        named = ((type_name(row.cls), row.count, row.bytes) for row in rows)
        return SlicedResult(
            mode="sliced",
            coverage=self._census.untracked_coverage(),
            objects=sum(row.count for row in rows),
            arrays=measured,
            tensors=tensors,
            large=tuple(nlargest(_LARGE_KEPT, large)),
            counts={row.address: row.count for row in rows},
            rows=tuple(by_name(named)),
            collections=self._census.collections(),
            is_whole=self._census.is_whole(),
            seconds=self._seconds + self._clock() - started,
        )

    def _measure_picked(self) -> None:
        """Measure the picked objects in Python, and release them."""
        picked = _by_type(self._census.take_picked())
        if self._tensors is not None:
            ones = [picked.pop(id(kind), []) for kind in tensor_types()]
            self._tensors.add(ones)
            ones.clear()
        if self._files is not None:
            self._files.add(picked.pop(id(array_types()[1]), ()))
        picked.clear()
        self._large += self._census.take_large()
        if len(self._large) > 4 * _LARGE_KEPT:
            self._large = nlargest(_LARGE_KEPT, self._large)


def _take_in_python(
    deadline_seconds: float | None,
    on_instances: OnInstances | None,
    clock: Callable[[], float],
    pick: dict[type, int],
    frame: FrameType,
) -> CensusResult:
    started = clock()

    def is_over() -> bool:
        return deadline_seconds is not None and clock() - started > deadline_seconds

    closer = dict.fromkeys((*tensor_types(), *array_types()), NO_LIMIT)
    has_deadline = deadline_seconds is not None
    walk = HeapWalk({**pick, **closer}, LARGE_FLOOR_BYTES, is_over if has_deadline else None)
    heap = walk.run()
    for variables in locals_by_function(frame).values():
        # The collector finds cells and suspended frames, but not the local variables of a running function.
        walk.follow(list(variables.read().values()))
    heap.untracked.settle()
    arrays = _all_arrays(walk)
    tensors = _measure_tensors(heap)
    if on_instances is not None:
        on_instances({cls: heap.picked[cls] for cls in pick if heap.picked[cls]})
    return _result(walk, arrays, tensors, started, clock)


def look_at_tensors() -> dict[str, Number]:
    """Return ``tensors.*`` and the counts of torch's own tensor types, at a tenth of a census's cost.

    The result covers the tensors tracked by the collector: all tensors ever exposed to Python. It is empty while the
    program has not loaded torch.
    """
    kinds = tensor_types()
    if not kinds:
        return {}
    ones = _tracked_of(kinds)
    measure = measure_tensors(ones, 1 << 62, type_name)
    counts = {
        f"type.{type_name(kind)}.count": len(found) + measure.shown.get(kind, 0)
        for kind, found in ones.items()
    }
    return {**measure.samples(), **counts}


def count_tracked() -> dict[int, int]:
    """Return the number of tracked objects at one point in time, by the address of their class.

    The native module is required. The call costs a tenth of a census, because it does not visit the objects' referents.
    """
    census = NativeCensus({}, 1 << 62, in_slices=False, enters=False)
    census.run(None, [vars(module) for _, module in user_modules()])
    return census.counts()


def _tracked_of(kinds: tuple[type, ...]) -> dict[type, list[Any]]:
    """Return tracked objects by exact type.

    Only the returned lists may refer to the objects, because their reference counts are read later.
    """
    if native() is not None:
        census = NativeCensus(
            dict.fromkeys(kinds, NO_LIMIT), 1 << 62, in_slices=False, enters=False
        )
        census.run(None, [vars(module) for _, module in user_modules()])
        found = _by_type(census.take_picked())
        return {kind: found.pop(id(kind), []) for kind in kinds}
    objects = listed_objects()
    # Select the tensors without executing Python code for each object.
    picked = list(compress(objects, map(frozenset(kinds).__contains__, map(type, objects))))
    return {kind: [one for one in picked if type(one) is kind] for kind in kinds}


def _all_arrays(walk: HeapWalk) -> list[Any]:
    """Return every array, including arrays inside object arrays and behind views."""
    if not array_types():
        return []
    ndarray = array_types()[0]
    looked_into = 0
    while True:
        arrays = walk.heap.untracked_of(ndarray)
        items = items_of_object_arrays(arrays[looked_into:])
        if not items:
            return with_hidden_owners(arrays, ndarray)
        looked_into = len(arrays)
        walk.follow(items)
        walk.heap.untracked.settle()


def _measure_tensors(heap: Heap) -> TensorMeasure | None:
    kinds = tensor_types()
    if not kinds:
        return None
    ones = {kind: heap.picked[kind] for kind in kinds}
    return measure_tensors(ones, LARGE_FLOOR_BYTES, type_name)


def _measure_arrays(
    heap: Heap, arrays: list[Any], tensors: TensorMeasure | None
) -> ArrayMeasure | None:
    kinds = array_types()
    if not kinds:
        return None
    return measure_arrays(
        arrays,
        heap.picked[kinds[1]],
        LARGE_FLOOR_BYTES,
        counted=heap.untracked.shared,
        tensor_memory=tensors.addresses if tensors else None,
        foreign_types=tensor_types(),
    )


def _result(
    walk: HeapWalk,
    arrays: list[Any],
    tensors: TensorMeasure | None,
    started: float,
    clock: Callable[[], float],
) -> CensusResult:
    heap = walk.heap
    measured = _measure_arrays(heap, arrays, tensors)
    untracked = heap.untracked.counts()
    if measured is not None:
        untracked[array_types()[0]] = measured.count
    tracked_scale = 1 / heap.coverage
    untracked_scale = tracked_scale / heap.untracked_coverage
    counts = {kind: round(n * tracked_scale) for kind, n in heap.counts.items()}
    for kind, n in untracked.items():
        counts[kind] = counts.get(kind, 0) + round(n * untracked_scale)
    for kind, n in (tensors.shown if tensors is not None else {}).items():
        counts[kind] = counts.get(kind, 0) + n
    _scale(measured, tensors, tracked_scale, untracked_scale)
    sizes = {kind: n * tracked_scale for kind, n in heap.sizes.items()}
    for kind, n in heap.untracked_sizes().items():
        sizes[kind] = sizes.get(kind, 0) + n * untracked_scale
    _add_buffers(sizes, measured, tensors)
    large = _large(heap, measured, tensors)
    return CensusResult(
        mode="full",
        coverage=heap.coverage * heap.untracked_coverage,
        objects=sum(counts.values()),
        seconds=clock() - started,
        counts=counts,
        type_bytes=tuple(_bytes_of(kind, n, sizes) for kind, n in counts.items()),
        arrays=measured,
        tensors=tensors,
        large=large,
    )


def _scale(
    arrays: ArrayMeasure | None, tensors: TensorMeasure | None, tracked: float, untracked: float
) -> None:
    if arrays is not None and untracked != 1:
        arrays.count, arrays.bytes = (
            round(arrays.count * untracked),
            round(arrays.bytes * untracked),
        )
        arrays.mapped_count = round(arrays.mapped_count * tracked)
        arrays.mapped_bytes = round(arrays.mapped_bytes * tracked)
    if tensors is not None and tracked != 1:
        for name in ("count", "bytes", "device_bytes", "graph_count", "graph_bytes"):
            if (value := getattr(tensors, name)) is not None:
                setattr(tensors, name, round(value * tracked))
        tensors.by_type = {kind: round(n * tracked) for kind, n in tensors.by_type.items()}


def _add_buffers(
    sizes: dict[type, float], arrays: ArrayMeasure | None, tensors: TensorMeasure | None
) -> None:
    if arrays is not None:
        sizes[array_types()[0]] = arrays.bytes
    if tensors is not None:
        sizes.update(tensors.by_type)
        # Only `counts` may keep references to classes, because one more reference looks like one more instance.
        tensors.by_type.clear()
        tensors.shown.clear()


def _bytes_of(kind: type, count: int, sizes: Mapping[type, float]) -> int | None:
    if kind in sizes:
        return round(sizes[kind])
    each = basic_bytes(kind)
    return None if each is None else each * count


def _large(
    heap: Heap, arrays: ArrayMeasure | None, tensors: TensorMeasure | None
) -> tuple[tuple[int, str, str], ...]:
    found = [(size, type_name(type(one)), f"{len(one)} items") for size, one in heap.large]
    for measure in (arrays, tensors):
        if measure is not None:
            found += measure.large
    return tuple(sorted(found, reverse=True)[:_LARGE_KEPT])
