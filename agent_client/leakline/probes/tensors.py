"""PyTorch tensors: how many, the bytes of their storages, each once, and what autograd graphs keep beside them.

Only objects whose exact type is one of torch's own are asked anything, with torch's function overrides switched
off. Nothing here loads torch, unpacks a saved tensor (hooks of the program would run) or copies from a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import sub
from typing import Any, Final

from leakline.snapshot import Number

# How many graphs and how many of their nodes one census visits, about 10 ms; the rest is scaled from those. Few, also
# because torch makes a Python object of each saved tensor that is looked at, and keeps it as long as the graph.
_GRAPHS_VISITED: Final = 64
# Tensors made one after the other often share a graph: they are visited together.
_NEIGHBOURS: Final = 8
_NODES_VISITED: Final = 5_000
# In a census in slices, nodes that one look at neighbouring graphs visits: about 2 ms.
_NODES_IN_A_RUN: Final = 1_000


@dataclass(slots=True)
class TensorMeasure:
    """``bytes`` holds each storage once, on any device; ``device_bytes`` is the part outside host memory.

    ``graph_count`` are the tensors with a graph. ``graph_bytes`` are storages that autograd graphs hold and no tensor
    that the program still refers to; they are not in ``bytes``. ``by_type`` gives a storage to the first type that has
    it. ``addresses`` maps the memory that torch did not allocate itself, and an array may own, to its bytes. ``shown``
    are Python objects that our look at graphs has made torch keep: in ``count``, though made by us.
    """

    count: int = 0
    bytes: int = 0
    device_bytes: int = 0
    graph_count: int = 0
    graph_bytes: int = 0
    by_type: dict[type, int] = field(default_factory=dict)
    addresses: dict[int, int] = field(default_factory=dict)
    shown: dict[type, int] = field(default_factory=dict)
    large: list[tuple[int, str, str]] = field(default_factory=list)

    def samples(self) -> dict[str, Number]:
        """``tensors.*``; the bytes of devices only when there are any."""
        samples: dict[str, Number] = {
            "tensors.count": self.count,
            "tensors.bytes": self.bytes,
            "tensors.graph_count": self.graph_count,
            "tensors.graph_bytes": self.graph_bytes,
        }
        if self.device_bytes:
            samples["tensors.device_bytes"] = self.device_bytes
        return samples


def tensor_types() -> tuple[type, ...]:
    """Tensor, Parameter and Buffer of torch, or nothing while the program has not loaded torch."""
    torch: Any = sys.modules.get("torch")
    nn: Any = sys.modules.get("torch.nn.parameter")
    found = (
        getattr(torch, "Tensor", None), getattr(nn, "Parameter", None), getattr(nn, "Buffer", None),
    )  # fmt: skip
    return tuple(kind for kind in found if isinstance(kind, type))


def storage_key(tensor: Any) -> tuple[int, int] | None:
    """(address, bytes) of the memory under a tensor of an exact torch type; None where it has no single one."""
    try:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        # A storage without memory of its own (meta device, freed by sharding) has no address to go by.
        return (storage.data_ptr() or storage._cdata, size)
    except RuntimeError:
        # Sparse, nested, batched by vmap, or functional: no storage of its own.
        return None


def overrides_off() -> Any:
    """A context without torch's function overrides: ours must not run the program's modes."""
    torch: Any = sys.modules.get("torch")
    switch = getattr(getattr(torch, "_C", None), "DisableTorchFunction", None)
    return nullcontext() if switch is None else switch()


def measure_tensors(
    tensors: Mapping[type, list[Any]],
    floor_bytes: int,
    name_of: Callable[[type], str],
    is_over: Callable[[], bool],
) -> TensorMeasure:
    """Measure tensors given by exact type; the lists must hold nothing but objects of that type."""
    measure = TensorMeasure()
    storages = _Storages(measure, floor_bytes, name_of)
    roots: list[Any] = []
    orphans: list[Any] = []
    with overrides_off():
        for kind, ones in tensors.items():
            measure.count += len(ones)
            bytes_before = measure.bytes
            # Asked for all at once: two references to each are ours, the list and the argument.
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
        before = list(map(sys.getrefcount, tensors))
        found = graph_bytes(roots, storages.known, frozenset(tensors), is_over)
        after = list(map(sys.getrefcount, tensors))
        # The Python objects that torch has just made to show us saved tensors: they stay as long as their graph.
        for kind, more in zip(tensors, map(sub, after, before), strict=True):
            measure.shown[kind] = max(0, more)
            measure.count += measure.shown[kind]
        measure.graph_bytes = found.bytes
        if found.is_whole:
            _add_orphans(measure, storages, orphans, found.storages)
    return measure


def _add_orphans(
    measure: TensorMeasure, storages: _Storages, orphans: list[Any], in_graphs: Collection[int]
) -> None:
    """Gradients, and what else torch itself holds outside of graphs."""
    for tensor in orphans:
        key = storage_key(tensor)
        if key is not None and key[0] not in in_graphs:
            before = measure.bytes
            storages.add(tensor)
            measure.by_type[type(tensor)] += measure.bytes - before


def _is_orphan(tensor: Any, references: int) -> bool:
    """Whether nothing in Python refers to a tensor any more and only torch keeps it, as graphs do.

    Torch then keeps the Python object, too, by one reference, for it may be asked for again.
    """
    use_count = getattr(tensor, "_use_count", None)
    # Older versions do not tell: the tensor counts as one of the program's.
    return use_count is not None and references == 1 and use_count() > 1


@dataclass(frozen=True, slots=True)
class GraphBytes:
    """``storages`` are the addresses visited; ``bytes`` is scaled from them unless the visit ``is_whole``."""

    bytes: int
    storages: Collection[int]
    is_whole: bool


def graph_bytes(
    roots: list[Any], known: set[int], kinds: frozenset[type], is_over: Callable[[], bool]
) -> GraphBytes:
    """Bytes of storages that the graphs of ``roots`` hold and ``known`` does not name, each once.

    When the visit ends before all graphs are seen, the rest is taken to add what the second half of those seen
    added, so that graphs which share their memory are not multiplied.
    """
    visit = _GraphVisit(set(known), kinds)
    found: list[int] = []
    order = list(_evenly(roots))
    for root in order:
        visit.add(root)
        found.append(visit.bytes)
        if len(found) == _GRAPHS_VISITED or visit.is_spent() or is_over():
            break
    rest = len(order) - len(found)
    if not rest:
        return GraphBytes(visit.bytes, visit.found, is_whole=True)
    half = len(found) // 2
    added = found[-1] - (found[half - 1] if half else 0)
    scaled = visit.bytes + round(rest * added / (len(found) - half))
    return GraphBytes(scaled, visit.found, is_whole=False)


def graph_storages(root: Any, kinds: frozenset[type]) -> dict[int, int]:
    """Address and bytes of every storage that the graph of one tensor holds."""
    visit = _GraphVisit(set(), kinds)
    visit.add(root)
    return visit.found


class _GraphVisit:
    """A walk from one graph to the next that enters each node once. It keeps the nodes while it lasts: a node's
    address is its own only as long as somebody holds it.
    """

    def __init__(self, storages: set[int], kinds: frozenset[type], most_nodes: int = 0) -> None:
        self._most_nodes = most_nodes or _NODES_VISITED
        self.bytes = 0
        self.found: dict[int, int] = {}
        self._storages = storages
        self._kinds = kinds
        self._nodes: dict[int, Any] = {}
        self._saved_names: dict[type, tuple[str, ...]] = {}

    def is_spent(self) -> bool:
        return len(self._nodes) >= self._most_nodes

    def add(self, root: Any) -> None:
        try:
            waiting = [root.grad_fn]
        except RuntimeError:
            # A view whose base was changed in place without its history.
            return
        while waiting and not self.is_spent():
            node = waiting.pop()
            if node is None or id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            for saved in self._saved(node):
                self._add_saved(saved)
            waiting.extend(pair[0] for pair in _next_functions(node))

    def _saved(self, node: Any) -> Iterator[Any]:
        """Saved tensors of a node, packed; nothing is unpacked."""
        base = _function_base()
        for name in self._names(type(node)):
            try:
                # Nodes of Python functions belong to the program: round their own attributes.
                value = (
                    getattr(base, name).__get__(node) if name == _PYTHON else getattr(node, name)
                )
            except RuntimeError:
                # Freed by backward().
                continue
            yield from value if type(value) is tuple else (value,)

    def _names(self, kind: type) -> tuple[str, ...]:
        names = self._saved_names.get(kind)
        if names is None:
            if _function_base() in type.__dict__["__mro__"].__get__(kind):
                names = (_PYTHON,)
            else:
                names = tuple(n for n in type.__dir__(kind) if n.startswith("_raw_saved_"))
            self._saved_names[kind] = names
        return names

    def _add_saved(self, saved: Any) -> None:
        tensor = getattr(saved, "data", None)
        # With hooks of the program, `data` is whatever they packed.
        if type(tensor) not in self._kinds:
            return
        key = storage_key(tensor)
        if key is not None and key[0] not in self._storages:
            self._storages.add(key[0])
            self.found[key[0]] = key[1]
            self.bytes += key[1]


_PYTHON: Final = "_raw_saved_tensors"


def _function_base() -> Any:
    return getattr(getattr(sys.modules.get("torch"), "_C", None), "_FunctionBase", None)


def _next_functions(node: Any) -> Iterable[Any]:
    base = _function_base()
    if base in type.__dict__["__mro__"].__get__(type(node)):
        return base.next_functions.__get__(node) or ()
    return node.next_functions or ()


class TensorTally:
    """The measure of tensors that turn up a few at a time. It keeps addresses and numbers, and no tensor or class.

    Graphs are looked at in runs of neighbours, every so-manieth run of all, so that no step takes long.
    """

    def __init__(self, floor_bytes: int, name_of: Callable[[type], str]) -> None:
        self._measure = TensorMeasure()
        self._storages = _Storages(self._measure, floor_bytes, name_of)
        self._bytes: list[int] = []
        # What torch itself holds: address -> (position of the type, bytes, on a device).
        self._orphans: dict[int, tuple[int, int, bool]] = {}
        self._runs: dict[int, _Run] = {}
        self._run_count = 0
        self._every = 1
        self._root_count = 0

    def add(self, tensors: Sequence[list[Any]]) -> None:
        """Tensors not seen before by exact type, in the order of ``tensor_types()``."""
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
            for start in range(0, len(roots), _NEIGHBOURS):
                self._look_at_graphs(roots[start : start + _NEIGHBOURS])

    def measure(self, kinds: Sequence[type]) -> TensorMeasure:
        """All of it; ``kinds`` as in ``add``."""
        measure = self._measure
        is_whole = self._add_graphs()
        if is_whole:
            in_graphs = {address for run in self._runs.values() for address in run.storages}
            for address, (position, size, on_device) in self._orphans.items():
                if address not in in_graphs and address not in self._storages.known:
                    self._storages.known.add(address)
                    measure.bytes += size
                    measure.device_bytes += size if on_device else 0
                    self._bytes[position] += size
        measure.by_type = dict(zip(kinds, self._bytes + [0] * len(kinds), strict=False))
        return measure

    def _add(self, tensor: Any, position: int, references: int, roots: list[Any]) -> None:
        measure = self._measure
        has_graph = not tensor.is_leaf
        measure.graph_count += has_graph
        if _is_orphan(tensor, references):
            key = storage_key(tensor)
            if key is not None and not tensor.is_meta:
                self._orphans[key[0]] = (position, key[1], not tensor.is_cpu)
            return
        before = measure.bytes
        self._storages.add(tensor)
        self._bytes[position] += measure.bytes - before
        if has_graph:
            roots.append(tensor)

    def _look_at_graphs(self, roots: list[Any]) -> None:
        number = self._run_count
        self._run_count += 1
        self._root_count += len(roots)
        if number % self._every:
            return
        visit = _GraphVisit(set(), frozenset(tensor_types()), _NODES_IN_A_RUN)
        for root in roots:
            visit.add(root)
        self._runs[number] = _Run(len(roots), visit.found, not visit.is_spent())
        if len(self._runs) > 2 * _GRAPHS_VISITED // _NEIGHBOURS:
            self._every *= 2
            self._runs = {n: run for n, run in self._runs.items() if n % self._every == 0}

    def _add_graphs(self) -> bool:
        """``graph_bytes`` from the runs looked at; whether those were all."""
        known = set(self._storages.known)
        added: list[tuple[int, int]] = []
        for run in self._runs.values():
            fresh = run.storages.keys() - known
            known |= fresh
            added.append((run.roots, sum(run.storages[address] for address in fresh)))
        found = sum(size for _, size in added)
        rest = self._root_count - sum(roots for roots, _ in added)
        is_whole = not rest and all(run.is_whole for run in self._runs.values())
        # What the later ones add stands for the rest: graphs that share their memory are not multiplied.
        later = added[len(added) // 2 :]
        roots = sum(count for count, _ in later)
        scaled = rest * sum(size for _, size in later) / roots if roots else 0
        self._measure.graph_bytes = found + round(scaled)
        return is_whole


@dataclass(frozen=True, slots=True)
class _Run:
    """The graphs of some neighbours: how many, the bytes of the storages in them by address, and if all was seen."""

    roots: int
    storages: Mapping[int, int]
    is_whole: bool


class _Storages:
    """Adds each storage to a measure once."""

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
            # A shape without memory.
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
    """Shape, dtype and device, as in ``(64, 33) float32 cpu``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)} {dtype} {tensor.device}"


def _evenly(roots: list[Any]) -> Iterator[Any]:
    """All of ``roots`` in runs of neighbours, so that any first part is spread over the whole."""
    starts = range(0, len(roots), _NEIGHBOURS)
    step = max(1, len(starts) * _NEIGHBOURS // _GRAPHS_VISITED)
    for first in range(step):
        for start in starts[first::step]:
            yield from roots[start : start + _NEIGHBOURS]
