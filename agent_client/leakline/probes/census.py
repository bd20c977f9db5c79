"""The census: live objects by exact type, with the bytes of arrays and tensors counted once per buffer.

Exact where it covers everything; on a deadline it looks at a part of the heap that is spread evenly, scales the
counts up and says so in ``coverage``. Nothing of the program is alive through a census after it has returned, no
collection is forced, and no attribute, ``isinstance`` or ``repr`` of a foreign object is ever asked for.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from time import thread_time
from typing import Any, Final

from leakline.probes.arrays import (
    ArrayMeasure,
    array_types,
    items_of_object_arrays,
    measure_arrays,
    with_hidden_owners,
)
from leakline.probes.frames import locals_by_function
from leakline.probes.heap import Heap, HeapWalk
from leakline.probes.names import basic_bytes, type_name
from leakline.probes.program import user_classes
from leakline.probes.tensors import TensorMeasure, measure_tensors, tensor_types
from leakline.snapshot import Census, LargeObject, Number

# Objects below this are not listed as large, whatever the caller asks for later.
LARGE_FLOOR_BYTES: Final = 1 << 20
# The series carries this many types of a census, largest first.
SERIES_TYPES: Final = 48
# How many objects of one of the program's own classes are handed to those who name containers.
_INSTANCES_OF_A_CLASS: Final = 2_000
_LARGE_KEPT: Final = 200
_NO_LIMIT: Final = 1 << 62

OnInstances = Callable[[Mapping[type, Sequence[object]]], None]


@dataclass(frozen=True, slots=True)
class CensusResult:
    """What a census found: names and numbers, but for the keys of ``counts``, which are the classes themselves.

    ``counts`` is made for ``ClassCounts.calibrate``: drop the result soon after, for it keeps classes alive.
    ``type_bytes`` are shallow bytes in the order of ``counts``, None where unknown.
    """

    mode: str
    coverage: float
    objects: int
    seconds: float
    counts: Mapping[type, int]
    type_bytes: tuple[int | None, ...]
    arrays: ArrayMeasure | None
    tensors: TensorMeasure | None
    large: tuple[tuple[int, str, str], ...] = field(repr=False)

    @property
    def is_exact(self) -> bool:
        """Whether everything was looked at; only then may ``counts`` calibrate anything."""
        return self.coverage >= 1.0

    def to_census(self, sequence: int, top: int = 200) -> Census:
        """The ``top`` types by bytes and the ``top`` by count, largest first, as they travel."""
        return Census(sequence, self.mode, self.coverage, self.objects, tuple(self._rows(top)))

    def samples(self) -> dict[str, Number]:
        """``python.objects``, ``arrays.*``, ``tensors.*`` and ``type.<name>.*`` of the largest types.

        ``arrays.*`` and ``tensors.*`` are absent while the program has not loaded their libraries. Arrays sit in
        few containers, so that a part of the heap says nothing about all of them: absent below full coverage.
        """
        samples: dict[str, Number] = {"python.objects": self.objects}
        arrays, tensors = self.arrays, self.tensors
        if arrays is not None and self.is_exact:
            samples["arrays.count"], samples["arrays.bytes"] = arrays.count, arrays.bytes
            if arrays.mapped_count:
                samples["arrays.mapped_bytes"] = arrays.mapped_bytes
        if tensors is not None:
            samples.update(tensors.samples())
        for name, count, size in self._rows(SERIES_TYPES)[:SERIES_TYPES]:
            samples[f"type.{name}.count"] = count
            if size is not None:
                samples[f"type.{name}.bytes"] = size
        return samples

    def large_objects(
        self, sequence: int, limit: int = 20, floor_bytes: int = 10 << 20
    ) -> tuple[LargeObject, ...]:
        """The largest arrays, tensors and containers, largest first; none below ``LARGE_FLOOR_BYTES``."""
        largest = sorted(self.large, reverse=True)[:limit]
        return tuple(
            LargeObject(sequence, name, size, detail)
            for size, name, detail in largest
            if size >= floor_bytes
        )

    def _rows(self, top: int) -> list[tuple[str, int, int | None]]:
        rows: dict[str, tuple[int, int | None]] = {}
        for (cls, count), size in zip(self.counts.items(), self.type_bytes, strict=True):
            name = type_name(cls)
            known_count, known_size = rows.get(name, (0, 0))
            rows[name] = (known_count + count, _add(known_size, size))
        listed = [(name, count, size) for name, (count, size) in rows.items()]
        by_bytes = sorted(listed, key=lambda row: (-(row[2] or 0), -row[1], row[0]))
        by_count = sorted(listed, key=lambda row: (-row[1], row[0]))[:top]
        return list(dict.fromkeys([*by_bytes[:top], *by_count]))


def take_census(
    deadline_seconds: float | None = None,
    on_instances: OnInstances | None = None,
    clock: Callable[[], float] = thread_time,
) -> CensusResult:
    """Count live objects by exact type.

    1. Walk the collector's list and what is reachable from it, or from locals of the calling thread's functions, but
       not on it.
    2. Measure arrays and tensors by the buffers they own.
    3. Hand instances of the program's own classes to ``on_instances``, which must not keep them.
    4. Let go of everything, and return names and numbers.

    With a deadline, in CPU seconds of this thread so that a busy machine does not cut it short, the walk stops there;
    steps 2 and 3 then cost in proportion to what it saw. The list itself
    (``gc.get_objects``, about 90 ms per million objects) cannot be cut short.
    """
    started = clock()

    def is_over() -> bool:
        return deadline_seconds is not None and clock() - started > deadline_seconds

    pick = dict.fromkeys(user_classes(), _INSTANCES_OF_A_CLASS) if on_instances else {}
    closer = dict.fromkeys((*tensor_types(), *array_types()), _NO_LIMIT)
    walk = HeapWalk({**pick, **closer}, LARGE_FLOOR_BYTES, is_over)
    heap = walk.run()
    for variables in locals_by_function(sys._getframe(1)).values():
        # A running function is no object that the collector could follow.
        walk.follow(list(variables.read().values()))
    arrays = _all_arrays(walk)
    tensors = _measure_tensors(heap, is_over)
    if on_instances is not None:
        on_instances({cls: heap.picked[cls] for cls in pick if heap.picked[cls]})
    return _result(walk, arrays, tensors, started, clock)


def look_at_tensors() -> dict[str, Number]:
    """``tensors.*`` and the counts of torch's own tensor types, for a tenth of the price of a census.

    Sees the tensors that the collector tracks, which are all but those made inside torch and never shown to Python.
    Empty while the program has not loaded torch.
    """
    kinds = tensor_types()
    if not kinds:
        return {}
    ones = _tracked_of(kinds)
    measure = measure_tensors(ones, _NO_LIMIT, type_name, lambda: False)
    counts = {
        f"type.{type_name(kind)}.count": len(found) + measure.shown.get(kind, 0)
        for kind, found in ones.items()
    }
    return {**measure.samples(), **counts}


def _tracked_of(kinds: tuple[type, ...]) -> dict[type, list[Any]]:
    """Tracked objects by exact type; nothing but these lists may refer to them, for references are judged later."""
    objects = gc.get_objects()
    # Picked without a Python step per object.
    picked = list(compress(objects, map(frozenset(kinds).__contains__, map(type, objects))))
    return {kind: [one for one in picked if type(one) is kind] for kind in kinds}


def _all_arrays(walk: HeapWalk) -> list[Any]:
    """Every array, those inside object arrays and behind views too."""
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


def _measure_tensors(heap: Heap, is_over: Callable[[], bool]) -> TensorMeasure | None:
    kinds = tensor_types()
    if not kinds:
        return None
    ones = {kind: heap.picked[kind] for kind in kinds}
    return measure_tensors(ones, LARGE_FLOOR_BYTES, type_name, is_over)


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
        counted=heap.untracked,
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
    untracked = Counter(walk.kinds(heap.untracked.values()))
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
    for kind, n in heap.untracked_sizes(untracked).items():
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
            setattr(tensors, name, round(getattr(tensors, name) * tracked))
        tensors.by_type = {kind: round(n * tracked) for kind, n in tensors.by_type.items()}


def _add_buffers(
    sizes: dict[type, float], arrays: ArrayMeasure | None, tensors: TensorMeasure | None
) -> None:
    if arrays is not None:
        sizes[array_types()[0]] = arrays.bytes
    if tensors is not None:
        sizes.update(tensors.by_type)
        # `counts` shall be all that is left of us on classes: a reference more looks like an instance.
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


def _add(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more
