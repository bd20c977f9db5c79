"""The walk over live objects that a census is made of: one pass, no attribute of a foreign object touched.

The collector's list does not name everything: tuples and dicts of plain values are taken off it, and NumPy arrays,
byte strings and other objects that cannot form cycles were never on it. They are found as referents of what is on
the list, and counted once by address. Plain atoms (numbers, strings) are not counted at all.

What makes it fast enough without native code: every step over a block of objects is one call into C, and a block is
counted, sized and followed while its objects are in the cache.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress, filterfalse, repeat
from math import gcd
from operator import is_
from typing import Any, Final

from leakline.probes.names import (
    StandIn,
    hashes_plainly,
    is_collectable,
    module_name,
    qualified_name,
)
from leakline.probes.program import all_classes

BLOCK: Final = 512
# Containers are sized exactly in every block with more referents than this, so that no big one is missed, and in
# every eighth block besides, which stands for the others.
_MANY_REFERENTS: Final = 8 * BLOCK
_SIZED_EVERY: Final = 8

# Tracked objects whose referents lead to code and to other tracked objects only. Following them would double the cost.
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
# The collector takes these off its list when they hold nothing but atoms.
_UNTRACKABLE: Final = frozenset({tuple, dict})
SIZED: Final = frozenset(
    {list, dict, set, frozenset, tuple, deque, OrderedDict, defaultdict, bytes, bytearray}
)


@dataclass(slots=True)
class Heap:
    """What a walk found. It holds objects of the program: drop it before returning to the program."""

    counts: Counter[type] = field(default_factory=Counter)
    sizes: dict[type, float] = field(default_factory=dict)  # shallow bytes of the SIZED types
    untracked: dict[int, Any] = field(default_factory=dict)  # by address
    picked: dict[type, list[Any]] = field(default_factory=dict)
    large: list[tuple[int, Any]] = field(default_factory=list)  # (bytes, container)
    floor_bytes: int = 0  # containers and byte strings from here on are `large`
    coverage: float = 1.0  # share of the collector's list looked at
    untracked_coverage: float = 1.0  # of the untracked containers found, the share followed

    def untracked_of(self, kind: type) -> list[Any]:
        """The untracked objects of exactly this type, in the order they were found."""
        untracked = self.untracked.values()
        # Compared by identity: a metaclass of the program may hash in its own way.
        return list(compress(untracked, map(is_, map(type, untracked), repeat(kind))))

    def untracked_sizes(self, tally: Mapping[type, int]) -> dict[type, int]:
        """Shallow bytes of the untracked SIZED ones in ``tally``, all read; the large go to ``large``."""
        totals: dict[type, int] = {}
        for kind in SIZED & tally.keys():
            ones = self.untracked_of(kind)
            sizes = list(map(sys.getsizeof, ones))
            totals[kind] = sum(sizes)
            self.add_large(ones, sizes)
        return totals

    def add_large(self, ones: list[Any], sizes: list[int]) -> None:
        if sizes and max(sizes) >= self.floor_bytes:
            pairs = zip(sizes, ones, strict=True)
            self.large += [(size, one) for size, one in pairs if size >= self.floor_bytes]


class _Followed(dict[type, bool]):
    """Whether the referents of a tracked object are looked at, by its type; filled as types turn up."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = followed = kind not in NOT_FOLLOWED
        return followed


class _Interesting(dict[type, bool]):
    """Whether a referent of this type can be one that the collector does not list."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = interesting = kind in _UNTRACKABLE or (
            kind not in _ATOMS and not is_collectable(kind)
        )
        return interesting


class Kinds:
    """Types of objects, as keys that are safe to hash.

    A metaclass may define ``__eq__`` and ``__hash__`` in Python: its classes get a stand-in of the same name.
    """

    def __init__(self) -> None:
        self._stand_ins = {
            id(cls): stand_in(cls) for cls in all_classes() if not hashes_plainly(cls)
        }

    def __call__(self, objects: Iterable[object]) -> Iterable[type]:
        if not self._stand_ins:
            return map(type, objects)
        swap = self._stand_ins.get
        return [swap(id(kind), kind) for kind in map(type, objects)]


class HeapWalk:
    """Fills a Heap. ``pick`` names the types whose objects are handed on, each with how many at most."""

    def __init__(
        self, pick: Mapping[type, int], floor_bytes: int, is_over: Callable[[], bool]
    ) -> None:
        self.heap = Heap()
        self._limits = pick
        self._floor_bytes = floor_bytes
        self._is_over = is_over
        self.kinds = Kinds()
        self._followed = _Followed()
        self._interesting = _Interesting()
        self._followed_count = 0
        self._skipped_count = 0

    def run(self) -> Heap:
        """Walk all blocks, or as many as the deadline allows; those are spread evenly over the list."""
        objects = gc.get_objects()
        # Made after the list was taken, so that we neither count nor follow our own findings.
        self.heap = heap = Heap(
            picked={kind: [] for kind in self._limits}, floor_bytes=self._floor_bytes
        )
        self._sizes = _Sizes()
        starts = _spread(len(objects))
        seen = 0
        for number, start in enumerate(starts):
            if number and self._is_over():
                break
            block = objects[start : start + BLOCK]
            seen += len(block)
            self._visit(block, is_sample=number % _SIZED_EVERY == 0)
        heap.coverage = seen / len(objects) if objects else 1.0
        heap.sizes = self._sizes.totals()
        return heap

    def follow(self, referents: list[Any]) -> None:
        """Keep what the collector does not list among ``referents``, and what is only reachable through that."""
        frontier = self._keep(referents)
        while frontier:
            if self._followed_count and self._is_over():
                self._skipped_count += len(frontier)
                break
            part = frontier[-BLOCK:]
            del frontier[-BLOCK:]
            self._followed_count += len(part)
            frontier += self._keep(gc.get_referents(*part))
        total = self._followed_count + self._skipped_count
        self.heap.untracked_coverage = self._followed_count / total if total else 1.0

    def _visit(self, block: list[Any], is_sample: bool) -> None:
        kinds = list(self.kinds(block))
        tally = Counter(kinds)
        self.heap.counts.update(tally)
        for kind in self._limits.keys() & tally.keys():
            picked = self.heap.picked[kind]
            if len(picked) < self._limits[kind]:
                picked.extend(compress(block, map(is_, kinds, repeat(kind))))
        referents = gc.get_referents(*compress(block, map(self._followed.__getitem__, kinds)))
        if is_sample or len(referents) > _MANY_REFERENTS:
            self._size(block, kinds, is_sample and len(referents) <= _MANY_REFERENTS)
        else:
            self._sizes.count_only(tally)
        self.follow(referents)

    def _keep(self, referents: list[Any]) -> list[Any]:
        """Keep the new untracked ones, and return those of them that are containers."""
        interesting = map(self._interesting.__getitem__, self.kinds(referents))
        found = list(filterfalse(gc.is_tracked, compress(referents, interesting)))
        if not found:
            return found
        untracked = self.heap.untracked
        containers = compress(found, map(_UNTRACKABLE.__contains__, self.kinds(found)))
        new = {id(one): one for one in containers if id(one) not in untracked}
        untracked.update(zip(map(id, found), found, strict=True))
        return list(new.values())

    def _size(self, block: list[Any], kinds: list[type], is_sample: bool) -> None:
        sized = list(compress(block, map(SIZED.__contains__, kinds)))
        sizes = list(map(sys.getsizeof, sized))
        self._sizes.add(map(type, sized), sizes, is_sample)
        self.heap.add_large(sized, sizes)


class _Sizes:
    """Shallow bytes by type: exact where they were read, at the mean of the samples elsewhere."""

    def __init__(self) -> None:
        self._read: Counter[type] = Counter()
        self._unread: Counter[type] = Counter()
        self._samples: dict[type, tuple[int, int]] = {}

    def add(self, kinds: Iterable[type], sizes: Iterable[int], is_sample: bool) -> None:
        read: dict[type, int] = dict.fromkeys(SIZED, 0)
        counts: dict[type, int] = dict.fromkeys(SIZED, 0)
        for kind, size in zip(kinds, sizes, strict=True):
            read[kind] += size
            counts[kind] += 1
        for kind, count in counts.items():
            if count:
                self._read[kind] += read[kind]
                if is_sample:
                    sampled, size = self._samples.get(kind, (0, 0))
                    self._samples[kind] = (sampled + count, size + read[kind])

    def count_only(self, tally: Counter[type]) -> None:
        for kind in SIZED & tally.keys():
            self._unread[kind] += tally[kind]

    def totals(self) -> dict[type, float]:
        return {kind: self._read[kind] + self._estimate(kind) for kind in SIZED}

    def _estimate(self, kind: type) -> float:
        count, size = self._samples.get(kind, (0, 0))
        # A type that no sample holds is rare: an empty one stands for it.
        mean = size / count if count else sys.getsizeof(kind())
        return self._unread[kind] * mean


def _spread(length: int) -> Iterator[int]:
    """Starts of all blocks, so that any first part of them is spread over the whole list."""
    count = -(-length // BLOCK)
    # A step near the golden section, without a common factor, visits every block once and evenly.
    step = max(1, round(count * 0.618))
    while gcd(step, count) != 1:
        step += 1
    return (number * step % count * BLOCK for number in range(count))


def stand_in(cls: type) -> type:
    """A class of the same name that may be a key of our dictionaries."""
    name = qualified_name(cls)
    return type(name, (StandIn,), {"__module__": module_name(cls), "__qualname__": name})
