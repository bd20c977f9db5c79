"""Number of PyTorch tensors, bytes of their storages, and storages that only autograd graphs keep alive.

Each storage is counted once. `tensor_storages.py` reads tensors, `autograd_graphs.py` reads graphs, and this module
computes the totals.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any
from weakref import ref

from leakline.probes.heap.autograd_graphs import (
    GraphBytes,
    GraphSample,
    graph_bytes,
    longest_chain,
    while_the_engine_rests,
)
from leakline.probes.heap.tensor_storages import overrides_off, storage_key
from leakline.snapshot import Number


@dataclass(slots=True)
class TensorMeasure:
    """Number and bytes of all tensors.

    ``bytes`` counts each storage once, on any device; ``device_bytes`` is the part outside host memory. ``graph_count``
    is the number of tensors with a graph. ``graph_depth`` is a lower bound of the number of nodes in the longest chain
    behind one of them, or None if no chain was read. ``graph_bytes`` is the size of storages that autograd graphs hold
    after the program has dropped their tensors; it is not part of ``bytes``. It is None if torch's engine was busy;
    ``bytes`` then includes storages that only torch holds but that were once exposed to Python. ``by_type`` counts a
    storage for its first type. ``addresses`` maps addresses to bytes of host memory that torch did not allocate and
    that an array may own. ``shown`` counts the Python objects that torch created and keeps because we read graphs; they
    are included in ``count``.
    """

    count: int = 0
    bytes: int = 0
    device_bytes: int = 0
    graph_count: int = 0
    graph_bytes: int | None = 0
    graph_depth: int | None = None
    by_type: dict[type, int] = field(default_factory=dict)
    addresses: dict[int, int] = field(default_factory=dict)
    shown: dict[type, int] = field(default_factory=dict)
    large: list[tuple[int, str, str]] = field(default_factory=list)

    def samples(self) -> dict[str, Number]:
        """Return ``tensors.*``; ``tensors.device_bytes`` is absent if zero."""
        samples: dict[str, Number] = {
            "tensors.count": self.count,
            "tensors.bytes": self.bytes,
            "tensors.graph_count": self.graph_count,
        }
        if self.graph_bytes is not None:
            samples["tensors.graph_bytes"] = self.graph_bytes
        if self.graph_depth is not None:
            samples["tensors.graph_depth"] = self.graph_depth
        if self.device_bytes:
            samples["tensors.device_bytes"] = self.device_bytes
        return samples


def measure_tensors(
    tensors: Mapping[type, list[Any]],
    floor_bytes: int,
    name_of: Callable[[type], str],
) -> TensorMeasure:
    """Measure tensors, grouped by exact type."""
    measure = TensorMeasure()
    storages = _Storages(measure, floor_bytes, name_of)
    roots: list[Any] = []
    orphans: list[Any] = []
    with overrides_off():
        for kind, ones in tensors.items():
            measure.count += len(ones)
            bytes_before = measure.bytes
            # Read all reference counts in one pass, so that exactly two references to each tensor are ours: in the list
            # and in the argument.
            references_to = list(map(sys.getrefcount, ones))
            for tensor, references in zip(ones, references_to, strict=True):
                has_graph = not tensor.is_leaf
                measure.graph_count += has_graph
                if _is_orphan(tensor, references - 2):
                    orphans.append(tensor)
                    continue
                storages.add(tensor)
                if has_graph:
                    roots.append(tensor)
            measure.by_type[kind] = measure.bytes - bytes_before
        found = while_the_engine_rests(
            lambda: _look_at_graphs(roots, storages.known, tuple(tensors))
        )
        if found is None:
            measure.graph_bytes = None
            _add_orphans(measure, storages, orphans, ())
            return measure
        graphs, shown, measure.graph_depth = found
        measure.shown = dict(zip(tensors, shown, strict=True))
        measure.count += sum(shown)
        measure.graph_bytes = graphs.bytes
        if graphs.is_whole:
            _add_orphans(measure, storages, orphans, graphs.storages)
    return measure


def _look_at_graphs(
    roots: list[Any], known: set[int], kinds: tuple[type, ...]
) -> tuple[GraphBytes, list[int], int | None]:
    """Return the storages held by graphs, the number of new Python objects by type, and the length of the longest
    chain.


    Torch creates these objects for the saved tensors that we read, and keeps them until the graph is freed.
    """
    before = list(map(sys.getrefcount, kinds))
    found = graph_bytes(roots, known, frozenset(kinds))
    after = list(map(sys.getrefcount, kinds))
    shown = [max(0, more) for more in map(sub, after, before)]
    return found, shown, longest_chain(roots)


def _add_orphans(
    measure: TensorMeasure, storages: _Storages, orphans: list[Any], in_graphs: Collection[int]
) -> None:
    """Add gradients and other tensors that only torch holds, unless a graph holds their storage."""
    for tensor in orphans:
        key = storage_key(tensor)
        if key is not None and key[0] not in in_graphs:
            before = measure.bytes
            storages.add(tensor)
            measure.by_type[type(tensor)] += measure.bytes - before


def _is_orphan(tensor: Any, references: int) -> bool:
    """Return True if only torch holds a tensor, for example in a graph, and no Python object refers to it.

    Torch then keeps one reference to the Python object, because the program may request the object again.
    """
    use_count = getattr(tensor, "_use_count", None)
    # Older versions of torch do not report this count; the tensor then counts as held by the program.
    return use_count is not None and references == 1 and use_count() > 1


class TensorTally:
    """A measurement of tensors that are added a few at a time, on any thread.

    It keeps addresses, numbers and weak references, but no tensors. The weak references are to tensors that only torch
    holds and to a sample of the tensors with graphs. Graphs are read at the end, while the engine is idle, on the
    thread that calls `measure`.
    """

    def __init__(self, floor_bytes: int, name_of: Callable[[type], str]) -> None:
        self._measure = TensorMeasure()
        self._storages = _Storages(self._measure, floor_bytes, name_of)
        self._bytes: list[int] = []
        # Tensors that only torch holds: storage address -> (index of the type, bytes, whether on a device, the tensor).
        self._orphans: dict[int, tuple[int, int, bool, ref[Any]]] = {}
        self._graphs = GraphSample()

    def add(self, tensors: Sequence[list[Any]]) -> None:
        """Add new tensors, as one list per exact type in the order of ``tensor_types()``."""
        if not any(tensors):
            return
        self._bytes += [0] * (len(tensors) - len(self._bytes))
        roots: list[Any] = []
        with overrides_off():
            for position, ones in enumerate(tensors):
                self._measure.count += len(ones)
                references_to = list(map(sys.getrefcount, ones))
                for tensor, references in zip(ones, references_to, strict=True):
                    self._add(tensor, position, references - 2, roots)
        self._graphs.add(roots)

    def measure(self, kinds: Sequence[type]) -> TensorMeasure:
        """Return the measurement of all added tensors. ``kinds`` are the types in the order used for `add`."""
        measure = self._measure
        found = while_the_engine_rests(
            lambda: self._graphs.bytes(self._storages.known, frozenset(kinds))
        )
        measure.graph_bytes = None if found is None else found.bytes
        if found is None or found.is_whole:
            self._add_orphans(() if found is None else found.storages)
        measure.by_type = dict(zip(kinds, self._bytes + [0] * len(kinds), strict=False))
        return measure

    def _add_orphans(self, in_graphs: Collection[int]) -> None:
        for address, (position, size, on_device, tensor) in self._orphans.items():
            if address in in_graphs or address in self._storages.known or tensor() is None:
                continue
            self._storages.known.add(address)
            self._measure.bytes += size
            self._measure.device_bytes += size if on_device else 0
            self._bytes[position] += size

    def _add(self, tensor: Any, position: int, references: int, roots: list[Any]) -> None:
        measure = self._measure
        has_graph = not tensor.is_leaf
        measure.graph_count += has_graph
        if _is_orphan(tensor, references):
            key = storage_key(tensor)
            if key is not None and not tensor.is_meta:
                self._orphans[key[0]] = (position, key[1], not tensor.is_cpu, ref(tensor))
            return
        before = measure.bytes
        self._storages.add(tensor)
        self._bytes[position] += measure.bytes - before
        if has_graph:
            roots.append(tensor)


class _Storages:
    """The storages counted so far, so that each storage is counted only once."""

    def __init__(
        self, measure: TensorMeasure, floor_bytes: int, name_of: Callable[[type], str]
    ) -> None:
        self.known: set[int] = set()
        self._measure = measure
        self._floor_bytes = floor_bytes
        self._name_of = name_of

    def add(self, tensor: Any) -> None:
        key = storage_key(tensor)
        if key is None or key[0] in self.known:
            return
        address, size = key
        self.known.add(address)
        if tensor.is_meta:
            # A meta tensor has a shape and no memory.
            return
        measure = self._measure
        measure.bytes += size
        if not tensor.is_cpu:
            measure.device_bytes += size
        elif not tensor.untyped_storage().resizable():
            measure.addresses[address] = size
        if size >= self._floor_bytes:
            measure.large.append((size, self._name_of(type(tensor)), describe(tensor)))


def describe(tensor: Any) -> str:
    """Return the tensor's shape, dtype and device, for example ``(64, 33) float32 cpu``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)} {dtype} {tensor.device}"
