"""Walks over the live objects for a census, in one pass that touches no attribute of the program's objects.

The collector's list does not contain every object: tuples and dicts of plain values are removed from it, and NumPy
arrays, byte strings and other objects that cannot form cycles are never on the list. All of these are found as
referents of listed objects, and each is counted only once. Plain atoms (numbers, strings) are not counted.

To be fast enough without native code, each step handles a block of objects in one call into C, and a block is counted,
sized and followed while its objects are in the CPU cache.

`listed_objects` leaves out tuples that are still being built. Code that builds a tuple needs the only reference to it:
``tuple(iterator)`` raises SystemError if another reference exists when it resizes the tuple. A scan that holds its
results while another thread runs would cause this error in the program. Not every unfinished tuple can be recognized
here: a tuple without gaps may still be made longer, or be the argument of a torch hook. Programs with audit hooks in
Python, or without the interpreter lock, are not protected. The native module, in contrast, can check which objects
refer to a tuple.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, compress, filterfalse, repeat, starmap
from math import gcd
from operator import eq, is_, is_not
from typing import Any, Final

from leakline.probes.references.class_names import (
    StandIn,
    is_collectable,
    is_plain_metaclass,
    module_name,
    qualified_name,
)
from leakline.probes.references.frames import no_collection
from leakline.probes.references.program_code import all_classes

from .instance_counts import UNTRACKABLE, Untracked


def listed_objects(generation: int | None = None) -> list[Any]:
    """Return ``gc.get_objects(generation)`` without unfinished tuples; finished tuples come last."""
    return _finished(gc.get_objects, generation)


def listed_referrers(*targets: Any) -> list[Any]:
    """Return ``gc.get_referrers(*targets)`` without unfinished tuples; finished tuples come last."""
    return _finished(gc.get_referrers, *targets)


def _finished(look: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
    found: list[list[Any]] = []
    tuples: list[list[Any]] = []
    asked = starmap(look, [arguments])
    others = _by_type(found, is_not)
    tuples_found = _by_type(found, is_)
    # A tuple is unfinished if it has fewer referents than items: unfilled items are not referents.
    filled = map(len, map(gc.get_referents, chain.from_iterable(tuples)))
    is_filled = map(eq, chain(filled, (None,)), map(len, chain.from_iterable(tuples)))
    finished = _selected(tuples, is_filled)
    with no_collection():
        # Until the lists are released, this frame makes no calls and only C iterators run, so no other thread can run.
        # A collection would let other threads run during its callbacks and finalizers, so it is prevented.
        found += asked
        ones = [*others]
        tuples += ([*tuples_found],)
        ones += finished
        del found[:], tuples[:]
    return ones


def _by_type(found: list[list[Any]], compare: Callable[[object, object], bool]) -> compress[Any]:
    return _selected(found, map(compare, map(type, chain.from_iterable(found)), repeat(tuple)))


def _selected(found: list[list[Any]], chosen: map[bool]) -> compress[Any]:
    # The additional None, here and above, makes sure that the iterators are exhausted and no longer hold a list.
    # Otherwise the scan, which also finds these iterators, could reach the list through them.
    return compress(chain(chain.from_iterable(found), (None,)), chosen)


BLOCK: Final = 512
# Containers are sized in every block with more referents than this, so that no large container is missed, and in every
# eighth block, as the sample for all other blocks.
_MANY_REFERENTS: Final = 8 * BLOCK
_SIZED_EVERY: Final = 8

# Types of tracked objects whose referents are only code and other tracked objects. Following these references would
# double the cost.
NOT_FOLLOWED: Final = frozenset(
    {
        type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
        types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
        types.MemberDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType, types.CodeType,
        types.GenericAlias, types.UnionType, classmethod, staticmethod, property, weakref.ReferenceType,
    }
)  # fmt: skip
_ATOMS: Final = frozenset(
    {str, int, float, bool, complex, type(None), type(...), type(NotImplemented), range, slice, types.CodeType}
)  # fmt: skip
SIZED: Final = frozenset(
    {list, dict, set, frozenset, tuple, deque, OrderedDict, defaultdict, bytes, bytearray}
)


@dataclass(slots=True)
class Heap:
    """The result of a walk. It holds objects of the program; drop it before the program continues."""

    kinds: Kinds
    untracked: Untracked
    counts: Counter[type] = field(default_factory=Counter)
    sizes: dict[type, float] = field(default_factory=dict)  # shallow bytes of the SIZED types
    picked: dict[type, list[Any]] = field(default_factory=dict)
    large: list[tuple[int, Any]] = field(default_factory=list)  # (bytes, container)
    floor_bytes: int = 0  # minimum size of a container or byte string in `large`
    coverage: float = 1.0  # share of the collector's list that was visited
    untracked_coverage: float = 1.0  # share of the untracked containers that was followed

    def untracked_of(self, kind: type) -> list[Any]:
        """Return the untracked objects of exactly this type, in the order of the walk."""
        return self.untracked.of(self.kinds.of(kind))

    def untracked_sizes(self) -> dict[type, int]:
        """Return the shallow bytes of all untracked objects of SIZED types, by type.

        Large objects are added to ``large``.
        """
        totals: dict[type, int] = {}
        for kind in SIZED & self.untracked.counts().keys():
            ones = self.untracked.of(kind)
            sizes = list(map(sys.getsizeof, ones))
            totals[kind] = sum(sizes)
            self.add_large(ones, sizes)
        return totals

    def add_large(self, ones: list[Any], sizes: list[int]) -> None:
        if sizes and max(sizes) >= self.floor_bytes:
            pairs = zip(sizes, ones, strict=True)
            self.large += [(size, one) for size, one in pairs if size >= self.floor_bytes]


class _Followed(dict[type, bool]):
    """A cache by type: True if the walk follows the referents of tracked objects of this type."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = followed = kind not in NOT_FOLLOWED
        return followed


class _Interesting(dict[type, bool]):
    """A cache by type: True if objects of this type may be missing from the collector's list and are not atoms."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = interesting = kind in UNTRACKABLE or (
            kind not in _ATOMS and not is_collectable(kind)
        )
        return interesting


class Kinds:
    """A callable that returns the types of objects as keys that are safe to hash.

    If a metaclass defines ``__eq__`` or ``__hash__`` in Python, its classes are replaced by stand-ins with the same
    names.
    """

    def __init__(self) -> None:
        self._stand_ins = {id(cls): stand_in(cls) for cls in _unsafe_classes()}

    def __call__(self, objects: Iterable[object]) -> Iterable[type]:
        if not self._stand_ins:
            return map(type, objects)
        swap = self._stand_ins.get
        return [swap(id(kind), kind) for kind in map(type, objects)]

    def of(self, kind: type) -> type:
        """Return this type, or its stand-in if hashing the type is not safe."""
        return self._stand_ins.get(id(kind), kind)


class HeapWalk:
    """A walk that fills a Heap. ``pick`` maps types to the maximum number of objects that the walk keeps.

    ``is_over`` returns True after the deadline. Without a deadline, ``is_over`` is None, and the list is walked in its
    own order, so that neighbours stay together.
    """

    def __init__(
        self, pick: Mapping[type, int], floor_bytes: int, is_over: Callable[[], bool] | None
    ) -> None:
        self._limits = pick
        self._floor_bytes = floor_bytes
        self._is_over = is_over
        self.kinds = Kinds()
        self._followed = _Followed()
        self._interesting = _Interesting()
        self._followed_count = 0
        self._skipped_count = 0

    def run(self) -> Heap:
        """Walk all blocks. If the deadline cuts the walk short, the visited blocks are spread evenly over the list."""
        objects = listed_objects()
        # The results are created after the list, so that they are neither counted nor followed.
        self.heap = heap = Heap(
            kinds=self.kinds,
            untracked=Untracked(self.kinds),
            picked={kind: [] for kind in self._limits},
            floor_bytes=self._floor_bytes,
        )
        self._sizes = _Sizes()
        self._found: list[Any] = []
        seen = 0
        for number, start in enumerate(self._starts(len(objects))):
            if number and self._is_late():
                break
            block = objects[start : start + BLOCK]
            seen += len(block)
            self._visit(block, is_sample=number % _SIZED_EVERY == 0)
            # In most heaps, a block yields few objects to follow, so the objects from several blocks are followed
            # together.
            if len(self._found) >= BLOCK:
                self._follow_found()
        self._follow_found()
        heap.coverage = seen / len(objects) if objects else 1.0
        heap.sizes = self._sizes.totals(heap.counts)
        return heap

    def follow(self, referents: list[Any]) -> None:
        """Keep unlisted objects among the ``referents``, and everything reachable only through these objects."""
        self._found += self._unlisted(referents)
        self._follow_found()

    def _follow_found(self) -> None:
        frontier = self._keep_found()
        while frontier:
            if self._followed_count and self._is_late():
                self._skipped_count += len(frontier)
                break
            part = frontier[-BLOCK:]
            del frontier[-BLOCK:]
            self._followed_count += len(part)
            self._found += self._unlisted(gc.get_referents(*part))
            frontier += self._keep_found()
        total = self._followed_count + self._skipped_count
        self.heap.untracked_coverage = self._followed_count / total if total else 1.0

    def _visit(self, block: list[Any], is_sample: bool) -> None:
        kinds = list(self.kinds(block))
        self.heap.counts.update(kinds)
        present = set(kinds)
        for kind in self._limits.keys() & present:
            picked = self.heap.picked[kind]
            if len(picked) < self._limits[kind]:
                picked.extend(compress(block, map(is_, kinds, repeat(kind))))
        followed: Iterable[Any] = block
        if not NOT_FOLLOWED.isdisjoint(present):
            followed = compress(block, map(self._followed.__getitem__, kinds))
        referents = gc.get_referents(*followed)
        if is_sample or len(referents) > _MANY_REFERENTS:
            self._size(block, kinds, is_sample and len(referents) <= _MANY_REFERENTS)
        self._found += self._unlisted(referents)

    def _unlisted(self, referents: list[Any]) -> list[Any]:
        """Return the referents that are not on the collector's list, without atoms."""
        interesting = map(self._interesting.__getitem__, self.kinds(referents))
        return list(filterfalse(gc.is_tracked, compress(referents, interesting)))

    def _keep_found(self) -> list[Any]:
        """Keep the newly found objects, and return the containers among them."""
        found, self._found = self._found, []
        return self.heap.untracked.add(found)

    def _size(self, block: list[Any], kinds: list[type], is_sample: bool) -> None:
        are_sized = list(map(SIZED.__contains__, kinds))
        sized = list(compress(block, are_sized))
        sizes = list(map(sys.getsizeof, sized))
        self._sizes.add(list(compress(kinds, are_sized)), sizes, is_sample)
        self.heap.add_large(sized, sizes)

    def _starts(self, length: int) -> Iterable[int]:
        return range(0, length, BLOCK) if self._is_over is None else _spread(length)

    def _is_late(self) -> bool:
        return self._is_over is not None and self._is_over()


class _Sizes:
    """Shallow bytes by type: exact sizes of measured objects, and the samples' mean size for all other objects."""

    def __init__(self) -> None:
        self._bytes: dict[type, int] = dict.fromkeys(SIZED, 0)
        self._read: Counter[type] = Counter()
        self._samples: dict[type, tuple[int, int]] = {}

    def add(self, kinds: list[type], sizes: list[int], is_sample: bool) -> None:
        read: dict[type, int] = dict.fromkeys(SIZED, 0)
        for kind, size in zip(kinds, sizes, strict=True):
            read[kind] += size
        counts = Counter(kinds)
        self._read.update(counts)
        for kind, count in counts.items():
            self._bytes[kind] += read[kind]
            if is_sample:
                sampled, size = self._samples.get(kind, (0, 0))
                self._samples[kind] = (sampled + count, size + read[kind])

    def totals(self, counts: Counter[type]) -> dict[type, float]:
        """Return the bytes of all counted objects by type, with estimates for unmeasured objects."""
        unread = {kind: counts[kind] - self._read[kind] for kind in SIZED}
        return {kind: self._bytes[kind] + unread[kind] * self._mean(kind) for kind in SIZED}

    def _mean(self, kind: type) -> float:
        count, size = self._samples.get(kind, (0, 0))
        # A type without a sample is rare, so the size of an empty object is used.
        return size / count if count else sys.getsizeof(kind())


def _spread(length: int) -> Iterator[int]:
    """Return the starts of all blocks, in an order that covers the list evenly from the start."""
    count = -(-length // BLOCK)
    # With a step near the golden ratio that shares no factor with the number of blocks, every block is visited once,
    # and the blocks visited so far are spread evenly.
    step = max(1, round(count * 0.618))
    while gcd(step, count) != 1:
        step += 1
    return (number * step % count * BLOCK for number in range(count))


def _unsafe_classes() -> list[type]:
    """Return the classes that must not be dictionary keys; most programs have none, because metaclasses are rare."""
    metaclasses: list[type] = [type]
    for meta in metaclasses:
        # The list grows during the loop. Calling through `type` bypasses a `__subclasses__` defined by the metaclass.
        metaclasses += type.__subclasses__(meta)
    unsafe = {id(meta) for meta in metaclasses if not is_plain_metaclass(meta)}
    if not unsafe:
        return []
    classes = all_classes()
    return list(compress(classes, map(unsafe.__contains__, map(id, map(type, classes)))))


def stand_in(cls: type) -> type:
    """Return a class with the same name that is safe to use as a key."""
    name = qualified_name(cls)
    return type(name, (StandIn,), {"__module__": module_name(cls), "__qualname__": name})
