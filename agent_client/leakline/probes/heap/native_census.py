"""The census by `leakline._native`: what the pure one gives, in a tenth of its pauses and a third of its time.

`NativeCensus` walks in one piece or in slices, hands over what must be asked in Python (tensors, memory maps, large
objects) and ends in rows: addresses of types with numbers. Nothing here refers to a class of the program for longer
than a step, because a reference more to a class looks like an instance more.
"""

from __future__ import annotations

import mmap
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from leakline.probes.heap.arrays import ArrayMeasure, array_types, describe
from leakline.probes.heap.heap_walk import NOT_FOLLOWED, stand_in
from leakline.probes.heap.tensor_storages import tensor_types
from leakline.probes.native_module import native
from leakline.probes.references.class_names import (
    basic_bytes,
    fixed_bytes,
    hashes_plainly,
    type_name,
)
from leakline.probes.references.program_code import all_classes

NO_LIMIT: Final = (1 << 31) - 1

# Types whose objects differ in size, and the name of the struct that says it.
_ROLES: Final = (
    (list, "list"), (tuple, "tuple"), (dict, "dict"), (defaultdict, "dict"), (OrderedDict, "odict"),
    (set, "set"), (frozenset, "set"), (deque, "deque"), (bytes, "bytes"), (bytearray, "bytearray"),
    (int, "int"), (str, "str"),
)  # fmt: skip
_STRINGS: Final = ("", "a" * 100, "\u00e9" * 5, "\u0416" * 5, "\U0001f600" * 5)


@dataclass(frozen=True, slots=True)
class TypeRow:
    """Objects of one exact type. ``bytes`` are shallow, None where unknown; ``cls`` may be a stand-in."""

    address: int
    cls: type
    count: int
    bytes: int | None


class NativeCensus:
    """One census under way. ``pick`` names the types whose objects are handed on, each with how many at most."""

    def __init__(
        self, pick: Mapping[type, int], floor_bytes: int, *, in_slices: bool, enters: bool = True
    ) -> None:
        module = native()
        if module is None:
            raise RuntimeError("the native module is not there: ask native() first")
        arrays = array_types()
        self._array_address = id(arrays[0]) if arrays else 0
        roles = dict(_known_roles())
        layout = array_layout()
        self.measures_arrays = bool(layout)
        if layout:
            roles[arrays[0]] = module.roles["array"]
        self._work = module.Census(
            roles=roles,
            picks=dict(pick),
            not_entered=tuple(NOT_FOLLOWED),
            elsewhere=(*arrays, *tensor_types(), mmap.mmap),
            array_layout=layout,
            floor=floor_bytes,
            in_slices=in_slices,
            enters=enters,
        )

    @property
    def bytes(self) -> int:
        """Memory that the census holds for itself."""
        return int(self._work.bytes)

    def run(self, seconds: float | None, seeds: list[Any]) -> float:
        """All in one piece, for at most so many CPU seconds; the share of the collector's lists visited.

        ``seeds`` are objects from which long containers of the program are reached: they make it faster.
        """
        left_out = self._work.run(-1 if seconds is None else max(0, int(seconds * 1e9)), seeds)
        visited = self._work.facts()["visited"]
        return float(visited / (visited + left_out)) if left_out else 1.0

    def step(self, seconds: float, most: int = NO_LIMIT) -> bool:
        """Go on for about so long, or until so many objects are picked; whether the walk is done."""
        return bool(self._work.step(max(0, int(seconds * 1e9)), most))

    def follow(self, objects: list[Any]) -> None:
        """Count what the collector does not list among these, and what that refers to."""
        self._work.follow(objects)

    def take_picked(self) -> list[Any]:
        """What was picked since the last call, of all types; the list is the only reference of ours."""
        taken: list[Any] = self._work.take_picked()
        return taken

    def take_large(self) -> list[tuple[int, str, str]]:
        """(bytes, type name, detail) of the largest arrays and containers since the last call."""
        return [
            (size, type_name(cls), _detail(described))
            for size, cls, described in self._work.take_large()
        ]

    def array_bytes(self, tensor_memory: Mapping[int, int] | None) -> int:
        """Bytes of arrays, each buffer once, without those that own memory which tensors count."""
        return int(self._work.arrays(dict(tensor_memory or {})))

    def counts(self) -> dict[int, int]:
        """Objects by address of their type, also of types that are gone."""
        return {address: count for address, count, _ in self._work.rows()}

    def rows(self, array_bytes: int | None) -> list[TypeRow]:
        """What was counted, of all types that are still there."""
        classes = _classes_by_address()
        rows = []
        for address, count, variable in self._work.rows():
            cls = classes.get(address)
            if cls is None:
                # A class that died meanwhile, and its instances with it.
                continue
            if address == self._array_address:
                size = array_bytes
            elif variable is not None:
                size = variable + count * fixed_bytes(cls)
            else:
                each = basic_bytes(cls)
                size = None if each is None else each * count
            rows.append(
                TypeRow(address, cls if hashes_plainly(cls) else stand_in(cls), count, size)
            )
        return rows

    def untracked_coverage(self) -> float:
        """The share of what the collector does not list that was followed and distinguished."""
        return float(self._work.facts()["coverage"])

    def is_whole(self) -> bool:
        """After the last step: whether every object that lived all the time was counted once."""
        return bool(self._work.facts()["is_whole"])

    def collections(self) -> int:
        """Collections that ran since it began."""
        return int(self._work.facts()["collections"])


def _detail(described: int | tuple[int, tuple[int, ...], Any]) -> str:
    if isinstance(described, int):
        return f"{described} items"
    dimensions, shape, dtype = described
    return f"{shape if len(shape) == dimensions else f'{dimensions} dimensions,'} {dtype.name}"


class MappedFiles:
    """``numpy.memmap``s as they turn up: a slice of one is one on the same file, and the largest stands for it."""

    def __init__(self, floor_bytes: int) -> None:
        self._floor_bytes = floor_bytes
        self._count = 0
        self._files: dict[int, tuple[int, str]] = {}

    def add(self, memmaps: Iterable[Any]) -> None:
        for one in memmaps:
            self._count += 1
            base = one.base
            if type(base) is mmap.mmap and self._files.get(id(base), (0, ""))[0] < one.nbytes:
                self._files[id(base)] = (one.nbytes, describe(one))

    def add_to(self, measure: ArrayMeasure) -> None:
        measure.mapped_count = self._count
        measure.mapped_bytes = sum(size for size, _ in self._files.values())
        measure.large += [
            (size, "numpy.memmap", detail)
            for size, detail in self._files.values()
            if size >= self._floor_bytes
        ]


@lru_cache(maxsize=1)
def _known_roles() -> tuple[tuple[type, int], ...]:
    """The types of which the module reads the size as Python reports it; of the others it is not known."""
    module = native()
    known = []
    for kind, name in _ROLES:
        number = module.roles[name]  # type: ignore[union-attr]
        if all(
            module.shallow_bytes(one, number) == sys.getsizeof(one)  # type: ignore[union-attr]
            for one in _samples(kind)
        ):
            known.append((kind, number))
    return tuple(known)


def _samples(kind: type) -> list[Any]:
    """Objects of each size class that a type has."""
    if kind is str:
        return list(_STRINGS)
    if kind is int:
        return [0, 1, -5, 1 << 40, -(1 << 200)]
    if kind in (dict, OrderedDict):
        return [kind((make(i), i) for i in range(n)) for n in (0, 3, 300) for make in (str, int)]
    if kind is defaultdict:
        return [defaultdict(int, {i: i for i in range(n)}) for n in (0, 3, 300)]
    return [kind(range(n)) for n in (0, 3, 200)]


def array_layout() -> int:
    """Which struct NumPy's arrays have, 1 or 2; 0 when neither gives what a few arrays say of themselves."""
    numpy = sys.modules.get("numpy")
    return _array_layout(numpy) if numpy is not None and array_types() else 0


@lru_cache(maxsize=1)
def _array_layout(numpy: Any) -> int:
    module = native()
    if module is None:
        return 0
    plain = numpy.zeros((3, 5), numpy.float32)
    made = [
        plain,
        plain[1:],
        plain.T[::2],
        numpy.zeros(7, object),
        numpy.zeros(0),
        numpy.array(1.5),
    ]
    made.append(numpy.frombuffer(b"12345678", numpy.uint8))
    for layout in (2, 1):
        if all(module.array_facts(one, layout) == _facts_of(one) for one in made):
            return layout
    return 0


def _facts_of(array: Any) -> tuple[int, int, int, bool]:
    base = array.base
    return (
        array.nbytes,
        0 if base is None else id(base),
        array.__array_interface__["data"][0],
        array.dtype == object,
    )


def _classes_by_address() -> dict[int, type]:
    return {id(object): object, **{id(cls): cls for cls in all_classes()}}
