"""Measures the memory that one more object of a kind adds, without memory shared with similar objects."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

from leakline.probes.heap.arrays import array_types, items_of_object_arrays
from leakline.probes.heap.autograd_graphs import graph_storages, while_the_engine_rests
from leakline.probes.heap.tensor_storages import overrides_off, storage_key, tensor_types
from leakline.probes.references.class_names import basic_bytes, is_class

from ..references.attributes import length_of
from ..references.class_names import hides_memory

# Limit on the objects visited for one result, which takes about 50 ms.
OBJECTS_VISITED: Final = 50_000
_ITEMS: Final = 8
# Time limit of a walk that reads graphs, because it may run on the main thread and delay the program.
_GRAPHS_SECONDS: Final = 0.02
# Number of items for a second attempt if the first attempt exceeds the limit: two items are enough to show how much
# memory one more item adds.
_FEW: Final = 2

# Types are compared by address, because a metaclass of the program may define its own hash and equality.
_MEASURED: Final = frozenset(map(id, (
    str, int, float, complex, bytes, bytearray, list, dict, tuple, set, frozenset, deque, OrderedDict, defaultdict,
)))  # fmt: skip
# Types of code, names and links, whose objects do not own their referents.
_NOT_ENTERED: Final = frozenset(map(id, (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, weakref.ReferenceType,
    type(None), bool,
)))  # fmt: skip
_SMALL_INTEGERS: Final = range(-5, 257)
# Number of items read to estimate the size of a longer list of numbers, for example a document's tokens.
_NUMBERS_READ: Final = 32
# If fewer bytes than this are found for an object with a C library's handle, only the handle was measured, and not the
# memory behind it.
_OF_A_HANDLE: Final = 64 * 1024

_Key = int | tuple[str, int]


def marginal_bytes(
    items: Sequence[object],
    is_over: Callable[[], bool] = lambda: False,
    objects_visited: int = OBJECTS_VISITED,
    longest: int = sys.maxsize,
) -> int | None:
    """Return the bytes that one more item adds, measured as the average of several similar items.

    The first item is left out of the average, because its bytes include parts that other items share with it. Objects
    shared by most items (a common trainer, common weights) are neither counted nor entered. Each buffer of an array or
    tensor is counted once, including the graphs of tensors. The result is None if the walk reached a limit or a
    container with more than ``longest`` items, or if the items consist of little more than handles of a C library,
    which hide the memory behind them.
    """
    parts = marginal_parts(items, is_over, objects_visited, longest=longest)
    return None if parts is None else parts[0]


def own_bytes_of(kind: type) -> Callable[[Any], int]:
    """Return a function that measures the bytes of a tensor, array or built-in object, without its referents."""
    if id(kind) in frozenset(map(id, tensor_types())):
        return _storage_bytes
    if id(kind) in frozenset(map(id, array_types())):
        return lambda one: int(one.nbytes)
    return sys.getsizeof if id(kind) in _MEASURED else lambda _: 0


def _storage_bytes(tensor: Any) -> int:
    with overrides_off():
        storage = storage_key(tensor)
    return storage[1] if storage is not None else 0


def is_on_device(tensor: Any) -> bool:
    """Return True if a tensor's storage is in device memory."""
    return not (tensor.is_cpu or tensor.is_meta)


def marginal_parts(
    items: Sequence[object],
    is_over: Callable[[], bool] = lambda: False,
    objects_visited: int = OBJECTS_VISITED,
    on_device: Callable[[Any], bool] = is_on_device,
    longest: int = sys.maxsize,
) -> tuple[int, int] | None:
    """Return (bytes, bytes on devices) added by one more item; see `marginal_bytes`."""
    try:
        return parts_without_graphs(items, is_over, objects_visited, on_device, longest)
    except GraphsMet:
        return while_the_engine_rests(
            lambda: _parts(
                items, _over_in(_GRAPHS_SECONDS), objects_visited, on_device, longest, True
            )
        )


class GraphsMet(Exception):
    """Raised if an item holds graphs or gradients, which only some threads may read."""


def parts_without_graphs(
    items: Sequence[object],
    is_over: Callable[[], bool],
    objects_visited: int,
    on_device: Callable[[Any], bool] = is_on_device,
    longest: int = sys.maxsize,
) -> tuple[int, int] | None:
    """Return the result of `marginal_parts`, on any thread.

    Raises GraphsMet instead of reading graphs or gradients.
    """
    return _parts(items, is_over, objects_visited, on_device, longest, False)


def _parts(
    items: Sequence[object],
    is_over: Callable[[], bool],
    objects_visited: int,
    on_device: Callable[[Any], bool],
    longest: int,
    reads_graphs: bool,
) -> tuple[int, int] | None:
    with overrides_off():
        for count in (_ITEMS, _FEW)[: len(items)]:
            walk = _Walk(
                list(items[-count:]), is_over, objects_visited, on_device, longest, reads_graphs
            )
            if walk.run():
                parts = walk.marginal_parts()
                return None if walk.has_handles and parts[0] < _OF_A_HANDLE else parts
    return None


def _numbers_bytes(one: Any) -> int | None:
    """Estimate the bytes of the numbers in a long list. The result is None for short lists and for other items."""
    step = len(one) // _NUMBERS_READ
    if step < 2:
        return None
    if not set(map(type, one)) <= {float, int}:
        return None
    read = one[::step]
    apart = {id(number): number for number in read}
    own = [n for n in apart.values() if type(n) is float or n not in _SMALL_INTEGERS]
    size = sum(map(sys.getsizeof, own))
    # If most of the items read are the same few objects, assume that the list contains no other objects.
    return size if 2 * len(apart) < len(read) else size * len(one) // len(read)


def _over_in(seconds: float) -> Callable[[], bool]:
    ends = perf_counter() + seconds
    return lambda: perf_counter() > ends


class _Walk:
    """A breadth-first walk from all items together, to find the objects shared by most of the items."""

    def __init__(
        self,
        items: list[object],
        is_over: Callable[[], bool],
        objects_visited: int,
        on_device: Callable[[Any], bool],
        longest: int,
        reads_graphs: bool,
    ) -> None:
        self._longest = longest
        self._on_device, self._device_keys = on_device, set[_Key]()
        self._reads_graphs = reads_graphs
        self._items = items
        self._is_over = is_over
        self._left = objects_visited
        # An object reached from this many items counts as shared by all items. Fewer items may share an object and
        # still own it: in an episode, one step's next state is the following step's state.
        self._shared_from = len(items) if len(items) <= 4 else len(items) // 2 + 1
        self._sizes: dict[_Key, int] = {}
        self._reached: dict[_Key, int] = {}
        self._arrays = frozenset(map(id, array_types()))
        self._tensors = frozenset(map(id, tensor_types()))
        # Type address -> whether the type hides memory, and the visited objects of types that hide memory.
        self._hides: dict[int, bool] = {}
        self._handles = set[_Key]()

    @property
    def has_handles(self) -> bool:
        """True if an item has a handle of a C library that most other items do not share."""
        return any(map(self._is_own, self._handles))

    def run(self) -> bool:
        """Walk until all objects have been visited. Return False if a limit was reached first."""
        level: dict[int, tuple[object, int]] = {
            id(one): (one, 1 << position) for position, one in enumerate(self._items)
        }
        roots = set(level)
        while level:
            below: dict[int, tuple[object, int]] = {}
            for key, (one, items) in level.items():
                if key not in roots and items.bit_count() >= self._shared_from > 1:
                    self._reached[key] = items
                    continue
                self._left -= 1
                if self._left < 0 or self._is_over() or self._is_long(one):
                    return False
                for found in self._enter(one, items):
                    self._reach(found, items, below, roots)
            level = below
        return True

    def _is_long(self, one: Any) -> bool:
        if self._longest == sys.maxsize:
            return False
        is_array = id(type(one)) in self._arrays and one.dtype.hasobject
        return (one.size if is_array else length_of(one)) > self._longest

    def marginal_parts(self) -> tuple[int, int]:
        own = {key: size for key, size in self._sizes.items() if self._is_own(key)}
        device_sizes = {key: size for key, size in own.items() if key in self._device_keys}
        return self._each(own), self._each(device_sizes)

    def _is_own(self, key: _Key) -> bool:
        reached = self._reached.get(key, 0).bit_count()
        return reached < self._shared_from or len(self._items) == 1

    def _each(self, own: dict[_Key, int]) -> int:
        count = len(self._items)
        if count == 1:
            return sum(own.values())
        first = sum(size for key, size in own.items() if self._reached[key] & 1)
        return round((sum(own.values()) - first) / (count - 1))

    def _reach(
        self, one: object, items: int, below: dict[int, tuple[object, int]], roots: set[int]
    ) -> None:
        key = id(one)
        if key in roots:
            return
        if key in self._reached:
            self._reached[key] |= items
        elif key in below:
            below[key] = (one, below[key][1] | items)
        else:
            below[key] = (one, items)

    def _enter(self, one: object, items: int) -> list[Any]:
        """Count an object, and return the referents that are counted as part of the object."""
        self._reached[id(one)] = items
        kind = type(one)
        if id(kind) in _NOT_ENTERED or is_class(kind):
            return []
        if id(kind) in self._arrays:
            return self._enter_array(one, items)
        if id(kind) in self._tensors:
            self._enter_tensor(one, items)
        if id(kind) in _MEASURED:
            small = kind is int and one in _SMALL_INTEGERS
            self._sizes[id(one)] = 0 if small else sys.getsizeof(one)
            if kind is list and (size := _numbers_bytes(one)) is not None:
                self._sizes[id(one)] += size
                return []
        else:
            self._sizes[id(one)] = basic_bytes(kind) or 0
            if id(kind) not in self._hides:
                self._hides[id(kind)] = hides_memory(kind)
            if self._hides[id(kind)]:
                self._handles.add(id(one))
        return gc.get_referents(one)

    def _enter_array(self, array: Any, items: int) -> list[Any]:
        owner = array
        while owner.base is not None and id(type(owner.base)) in self._arrays:
            owner = owner.base
        if owner.base is None or id(type(owner.base)) not in self._tensors:
            self._add_buffer(("array", id(owner)), int(owner.nbytes), items)
        self._sizes[id(array)] = basic_bytes(type(array)) or 0
        return items_of_object_arrays([array]) + ([] if owner.base is None else [owner.base])

    def _enter_tensor(self, tensor: Any, items: int) -> None:
        storages = dict(filter(None, [storage_key(tensor)]))
        if tensor.requires_grad and not self._reads_graphs:
            raise GraphsMet
        if not tensor.is_leaf:
            storages |= graph_storages(tensor, frozenset(tensor_types()))
        elif (
            tensor.requires_grad
            and tensor.grad is not None
            and (key := storage_key(tensor.grad)) is not None
        ):
            storages[key[0]] = key[1]
        is_on_device = self._on_device(tensor)
        for address, size in storages.items():
            self._add_buffer(("storage", address), size, items)
            if is_on_device:
                self._device_keys.add(("storage", address))

    def _add_buffer(self, key: _Key, size: int, items: int) -> None:
        self._reached[key] = self._reached.get(key, 0) | items
        self._sizes[key] = size
