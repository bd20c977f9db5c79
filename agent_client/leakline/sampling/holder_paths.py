"""Finds the holders of objects, as paths of names, and the bytes that one more such object adds.

The search takes a sample of a type's live objects of all ages and follows references upwards to an object with a name.
A path ranks higher if it leads to more of the sample, and if it starts from fewer objects: a list that holds all of the
objects explains more than a helper object that belongs to each of them.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from time import thread_time
from types import FrameType
from typing import Any, Final
from weakref import ref

from leakline.probes.heap.autograd_graphs import known_chain, while_the_engine_rests
from leakline.probes.heap.census import LARGE_FLOOR_BYTES
from leakline.probes.heap.heap_walk import HeapWalk
from leakline.probes.heap.marginal_size import (
    GraphsMet,
    marginal_bytes,
    own_bytes_of,
    parts_without_graphs,
)
from leakline.probes.references.class_names import is_collectable, type_name
from leakline.probes.references.frames import locals_of_threads
from leakline.probes.references.referrers import (
    HOOKS,
    PAIRS,
    WIDTH,
    FoundPath,
    ReferrerSearch,
    are_untracked,
    native_look,
    pairs_through_heap,
)
from leakline.probes.references.roots import Near, look_near
from leakline.snapshot import CYCLIC_GARBAGE, GRAPH_NODE, Holder

from ..probes.heap.heap_walk import listed_objects

# Number of samples per type. Each additional sample makes every heap scan more expensive.
SAMPLES: Final = 10
PATHS_OF_A_TYPE: Final = 3
# Maximum number of characters in a path; the server enforces the same limit.
PATH_LIMIT: Final = 1024
# Minimum share of the sample to which a path must lead; other paths are considered coincidental.
_SHARE_REPORTED: Final = 0.1
# Share of the budget for paths; the remaining budget is for sizes.
_PATHS_SHARE: Final = 0.8
# The native search can climb from more objects at a time, because the cost of its scan does not
# depend on their number.
_WIDTH_NATIVE: Final = 1_024
# Time limit for finding the newest instances, which are at the young end of the heap.
_NEWEST_SECONDS: Final = 0.005
_NEWEST: Final = 16
# Limit on the instances of a type that are compared to find the largest, and on the length of
# containers whose items are examined.
_MANY: Final = 4_096
_SIZED: Final = (list, dict, tuple, set, frozenset, deque)
_OBJECTS_SIZED: Final = 4_000
_SIZING_SECONDS: Final = 0.01
_GOLDEN: Final = 0.618034


@dataclass(frozen=True, slots=True)
class FoundHolder:
    """A path, and the number of objects of ``type`` that it keeps alive. ``to_holder`` adds the snapshot's sequence
    number.
    """

    type: str
    path: str
    count: int
    bytes_each: int | None

    def to_holder(self, sequence: int) -> Holder:
        return Holder(sequence, self.type, self.path[:PATH_LIMIT], self.count, self.bytes_each)


def find_holders(
    types: Sequence[type],
    budget_seconds: float,
    frame: FrameType | None = None,
    clock: Callable[[], float] = thread_time,
) -> list[FoundHolder]:
    """Return the holders of objects of exactly these ``types``: at most three paths per type, likeliest first.

    ``count`` is the number of the type's objects that the path leads to, extrapolated from the sample. ``bytes_each``
    is the size of one more object, including buffers and graphs but not memory that the objects share, or None if
    computing the size took too long. ``frame`` is the current frame of the calling thread (default: the caller's). A
    type without a path is left out; objects held only by each other have the path ``CYCLIC_GARBAGE``. The budget, in
    CPU seconds of this thread, is checked between scans of the entire heap, so one scan may exceed it.
    """
    started = clock()
    here = frame or sys._getframe(1)
    totals, samples = _samples(types)
    return _search(
        types,
        totals,
        samples,
        here,
        lambda: clock() - started > budget_seconds * _PATHS_SHARE,
        lambda _, ones: marginal_bytes(ones, lambda: clock() - started > budget_seconds),
    )


def find_holder_of_largest(
    kind: type,
    budget_seconds: float,
    frame: FrameType | None = None,
    clock: Callable[[], float] = thread_time,
    *,
    near_only: bool = False,
) -> list[FoundHolder]:
    """Return the holders of the largest object of exactly this type; ``bytes_each`` is None.

    This is for a tensor, an array or a container that grows while the number of objects does not.
    The result is empty if no object is large. With ``near_only``, the search covers only objects
    near the program's roots, which takes two milliseconds and no heap scan.
    """
    started = clock()
    here = frame or sys._getframe(1)

    def is_late() -> bool:
        return clock() - started > budget_seconds * _PATHS_SHARE

    samples = _largest(kind, own_bytes_of(kind), LARGE_FLOOR_BYTES, here, near_only, is_late)
    return _search(
        [kind],
        [1],
        samples,
        here,
        is_late,
        lambda _name, _ones: None,
        near_only,
    )


def find_holder_of_chain(
    kind: type,
    length: int,
    budget_seconds: float,
    frame: FrameType | None = None,
    clock: Callable[[], float] = thread_time,
    *,
    near_only: bool = False,
) -> list[FoundHolder]:
    """Return what holds the tensor of exactly this type whose chain of autograd nodes has at least this length.

    The tensor must not have changed since `longest_chain`. The nodes are counted as the objects that are held. The
    result is empty if torch's engine is busy.
    """
    started = clock()
    here = frame or sys._getframe(1)

    def is_late() -> bool:
        return clock() - started > budget_seconds * _PATHS_SHARE

    samples = while_the_engine_rests(
        lambda: _largest(kind, known_chain, length, here, near_only, is_late)
    )
    if not samples:
        return []
    found = _search([kind], [length], samples, here, is_late, lambda _name, _ones: None, near_only)
    return [replace(one, type=GRAPH_NODE) for one in found]


def _search(
    types: Sequence[type],
    totals: Sequence[int],
    samples: list[Any],
    here: FrameType,
    is_late: Callable[[], bool],
    size_of: Callable[[str, list[Any]], int | None],
    near_only: bool = False,
) -> list[FoundHolder]:
    """Search upwards from these samples, and empty their list. Each type has ``SAMPLES`` positions in the list."""
    search = ReferrerSearch(samples, _groups(len(types)), _width())
    # Now our only references are in the search: every other reference to a sample is the program's.
    samples.clear()
    search.climb_near(_near(here), is_late)
    while not near_only and not is_late() and (targets := search.wanted()):
        pairs, is_whole = _pairs(targets)
        near = _near(here)
        search.give(pairs, near, is_whole)
        del pairs, targets
        search.climb_near(near, is_late)
        del near
    return _reported_holders([type_name(cls) for cls in types], totals, search, size_of)


def _largest(
    kind: type,
    size_of: Callable[[Any], int],
    floor: int,
    here: FrameType,
    near_only: bool,
    is_late: Callable[[], bool],
) -> list[Any]:
    """Return the type's largest object, padded with None to ``SAMPLES`` positions, or [] if all are below ``floor``."""
    largest, most = None, floor - 1
    for ones in _candidates(kind, here, near_only, is_late):
        for one in ones:
            if (size := size_of(one)) > most:
                largest, most = one, size
        if is_late():
            break
    return [] if largest is None else [largest, *[None] * (SAMPLES - 1)]


def _candidates(
    kind: type, here: FrameType, near_only: bool, is_late: Callable[[], bool]
) -> Iterator[list[Any]]:
    """Yield lists of up to a few thousand objects of exactly this type.

    Objects near the roots come first, because finding them is fastest.
    """
    for found in locals_of_threads(here).values():
        yield [one for one in found.read().values() if type(one) is kind]
    for holder in _near(here).objects:
        if not _is_long(holder):
            yield [one for one in gc.get_referents(holder) if type(one) is kind]
    if not near_only:
        _, ones = next(_instances([kind], _MANY, is_late))
        yield ones[:: len(ones) // _MANY + 1]


def _is_long(one: Any) -> bool:
    """Return True for a container with too many items to examine. A subclass's own ``__len__`` is not called."""
    base = next((base for base in _SIZED if issubclass(type(one), base)), None)
    return base is not None and base.__len__(one) > _MANY


class SlicedHolderSearch:
    """A search for holders in slices, for a heap whose scan would stop the program for too long.

    Create the search on the training thread: the constructor reads that thread's local variables and keeps only their
    names. Call ``step`` on any thread until it returns True, then ``result``. ``totals`` maps classes to their counts,
    and ``seeds`` maps classes to weak references to known instances (`AgeSamples.instances`). If both mappings contain
    every class, the sample consists of the seeds and the newest instances, without a heap scan for counting and
    sampling. ``budget_seconds`` is the CPU time for all steps together; when it is spent, the result contains the
    holders found so far. Between two steps, the search holds no classes. It holds only objects on paths that do not
    support weak references, such as lists, dicts and tuples.

    Raises RuntimeError if the native module is not available.
    """

    def __init__(
        self,
        types: Sequence[type],
        budget_seconds: float = 1.0,
        frame: FrameType | None = None,
        seeds: Mapping[type, Sequence[ref[Any]]] | None = None,
        totals: Mapping[type, int] | None = None,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        module = native_look()
        if module is None:
            raise RuntimeError(
                "SlicedHolderSearch needs the native module; use find_holders instead"
            )
        self._native = module
        self._left, self._clock = budget_seconds, clock
        self._names = [type_name(cls) for cls in types]
        # Weak references, because the address of a deleted class may be reused by another class.
        self._classes = [ref(cls) for cls in types]
        near = _near(frame or sys._getframe(1))
        # The names of local variables by the address of their values, because the frames must not
        # be read later.
        self._local_names = {key: name for key, name in near.named.items() if ".<locals>." in name}
        self._search: ReferrerSearch | None = None
        self._pass: Any = None
        self._targets: list[int] = []
        self._totals: list[int] = []
        self._found: list[FoundHolder] | None = None
        # Objects that hold graphs, by type name; their size is computed at the end.
        self._unsized: dict[str, list[ref[Any]]] = {}
        counts = [(totals or {}).get(cls, 0) for cls in types]
        known = seeds or {}
        # The newest instances alone would show only the objects that the program is currently
        # working on, so a type without seeds requires a heap scan.
        is_known = all(counts) and all(known.get(cls) for cls in types)
        samples = _known_samples(module, types, known) if is_known else [[]]
        if all(samples):
            self._begin(counts, samples, near)
        else:
            self._pass = module.InstancePass(tuple(types), SAMPLES)
        self._let_go()

    def step(self, seconds: float) -> bool:
        """Continue the search for about ``seconds``. Return True when it is complete."""
        started = self._clock()
        if self._found is None:
            self._step(seconds)
            self._let_go()
        self._left -= self._clock() - started
        return self._found is not None

    def _step(self, seconds: float) -> None:
        if self._pass is not None and not self._pass.step(seconds) and self._left > 0:
            return
        if self._search is not None:
            self._search.take_up()
        # If the budget has cut a scan short, its result is used as well, because it is correct,
        # though incomplete.
        if self._search is None:
            self._sample()
        elif self._pass is not None:
            self._climb()
        elif self._left > 0:
            self._go_on()
        else:
            self._finish()

    def result(self) -> list[FoundHolder]:
        """Return holders like ``find_holders``, or [] until the search is complete.

        Call this method on the training thread.
        """
        unsized, self._unsized = self._unsized, {}
        for name, weak in unsized.items():
            each = marginal_bytes(_alive(weak), objects_visited=_OBJECTS_SIZED)
            self._found = [
                replace(one, bytes_each=each) if one.type == name else one
                for one in self._found or []
            ]
        return self._found or []

    def _sample(self) -> None:
        rows = [
            row if cls() is not None else (0, [])
            for cls, row in zip(self._classes, self._pass.result(), strict=True)
        ]
        self._pass = None
        near = self._near()
        self._begin([count for count, _ in rows], [_spread(ones) for _, ones in rows], near)

    def _begin(self, totals: list[int], samples: list[list[Any]], near: Near) -> None:
        self._totals = totals
        padded = [one for ones in samples for one in (*ones, *[None] * (SAMPLES - len(ones)))]
        self._search = ReferrerSearch(padded, _groups(len(samples)), _WIDTH_NATIVE)
        self._search.climb_near(near)

    def _climb(self) -> None:
        assert self._search is not None
        pairs, is_whole = self._pass.result()
        self._pass = None
        near = self._near()
        # If a target was freed in the meantime, the search no longer has an entry for its address
        # and ignores it.
        self._search.give(((self._targets[place], one) for place, one in pairs), near, is_whole)
        del pairs
        self._search.climb_near(near)

    def _go_on(self) -> None:
        assert self._search is not None
        targets = self._search.wanted()
        if targets:
            self._targets = [id(one) for one in targets]
            self._pass = self._native.ReferrerPass(targets, PAIRS, are_untracked(targets))
        else:
            self._finish()

    def _finish(self) -> None:
        search, self._search, self._pass = self._search, None, None
        self._found = (
            []
            if search is None
            else _reported_holders(
                self._names,
                self._totals,
                search,
                self._sized,
            )
        )

    def _sized(self, name: str, ones: list[Any]) -> int | None:
        """Return the size of one more object, or None if it cannot be computed in one step."""
        started = self._clock()
        try:
            parts = parts_without_graphs(
                ones, lambda: self._clock() - started > _SIZING_SECONDS, _OBJECTS_SIZED
            )
        except GraphsMet:
            # An object that does not support weak references must not be kept alive just to compute
            # its size.
            with suppress(TypeError):
                self._unsized[name] = [ref(one) for one in ones]
            return None
        return None if parts is None else parts[0]

    def _near(self) -> Near:
        near = look_near({})
        near.named = self._local_names | near.named
        return near

    def _let_go(self) -> None:
        if self._search is not None:
            self._search.let_go()


def _known_samples(
    module: Any, types: Sequence[type], seeds: Mapping[type, Sequence[ref[Any]]]
) -> list[list[Any]]:
    """Sample without a heap scan: the seeds and the newest instances, from the young end of the heap."""
    newest = module.newest_instances(tuple(types), _NEWEST, _NEWEST_SECONDS)
    return [
        _spread(_distinct([*_alive(seeds.get(cls, ())), *reversed(ones)]))
        for cls, ones in zip(types, newest, strict=True)
    ]


def _near(frame: FrameType) -> Near:
    # Read the local variables again each time: a stored copy would look like a holder in the next
    # heap scan.
    return look_near({name: found.read() for name, found in locals_of_threads(frame).items()})


def _pairs(targets: list[Any]) -> tuple[list[tuple[int, Any]], bool]:
    module = native_look()
    if module is None:
        return list(pairs_through_heap(targets)), True
    look = module.ReferrerPass(targets, PAIRS, are_untracked(targets))
    look.step(-1.0)
    pairs, is_whole = look.result()
    return [(id(targets[place]), one) for place, one in pairs if one is not targets], is_whole


def _width() -> int:
    return WIDTH if native_look() is None else _WIDTH_NATIVE


def _reported_holders(
    names: Sequence[str],
    totals: Sequence[int],
    search: ReferrerSearch,
    size_of: Callable[[str, list[Any]], int | None],
) -> list[FoundHolder]:
    garbage = search.unreachable()
    paths = search.paths()
    found: list[FoundHolder] = []
    for position, name in enumerate(names):
        bits = _bits(position)
        ones = search.samples(bits)
        mine = list(_of_type(paths, bits, garbage, len(ones)))
        if mine:
            each = size_of(name, ones)
            found += [
                FoundHolder(name, path, max(1, round(share * totals[position])), each)
                for path, share in mine
            ]
    return found


def _bits(position: int) -> int:
    """Return the bit mask of one type's samples."""
    return ((1 << SAMPLES) - 1) << (position * SAMPLES)


def _groups(count: int) -> list[int]:
    return [_bits(position) for position in range(count)]


def _samples(types: Sequence[type]) -> tuple[list[int], list[Any]]:
    """Return each type's count, and one list with SAMPLES instances per type, oldest first, padded with None."""
    totals: list[int] = []
    samples: list[Any] = []
    for count, ones in _instances(types):
        totals.append(count)
        spread = _spread(ones)
        samples += spread + [None] * (SAMPLES - len(spread))
    return totals, samples


def _instances(
    types: Sequence[type], each: int = SAMPLES, is_late: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, list[Any]]]:
    """Yield each type's count and some or all of its instances, oldest first."""
    module = native_look()
    if module is not None:
        look = module.InstancePass(tuple(types), each)
        look.step(-1.0)
        yield from look.result()
        return
    # Request the generations from old to young, because the collector would list the youngest
    # generation first. Within a generation, it lists the oldest object first.
    wanted = dict.fromkeys(map(id, types), True)
    everything = [
        one for generation in (2, 1, 0) for one in _of_types(listed_objects(generation), wanted)
    ]
    for cls in types:
        ones = [one for one in everything if type(one) is cls]
        if not ones and not is_collectable(cls):
            ones = HeapWalk({}, 1 << 62, is_late).run().untracked_of(cls)
        yield len(ones), ones


def _of_types(objects: list[Any], wanted: dict[int, bool]) -> Iterator[Any]:
    # Types are compared by address, because a metaclass of the program may define its own hash.
    return compress(objects, map(wanted.__contains__, map(id, map(type, objects))))


def _alive(weak: Sequence[ref[Any]]) -> list[Any]:
    return [one for one in (reference() for reference in weak) if one is not None]


def _distinct(ones: list[Any]) -> list[Any]:
    return list({id(one): one for one in ones}.values())


def _spread(ones: list[Any]) -> list[Any]:
    """Return at most SAMPLES objects, oldest first.

    The steps between them are irregular, in case the program creates objects periodically.
    """
    if len(ones) <= SAMPLES:
        return ones
    chosen: list[Any] = []
    place = -1
    for i in range(SAMPLES):
        # Take one object from each tenth, at a different place within each tenth.
        place = max(place + 1, int((i + i * _GOLDEN % 1) * len(ones) / SAMPLES))
        chosen.append(ones[min(place, len(ones) - SAMPLES + i)])
    return chosen


def _of_type(
    paths: list[FoundPath], bits: int, garbage: int, count: int
) -> Iterator[tuple[str, float]]:
    """Yield (path, share of the sample) for one type, likeliest first."""
    if not count:
        return
    ranked = [
        ((found.samples & bits & ~garbage).bit_count(), found.roots, found.path)
        for found in paths
        if found.samples & bits & ~garbage
    ]
    if garbage & bits:
        ranked.append(((garbage & bits).bit_count(), 1, CYCLIC_GARBAGE))
    # If two paths rank equally, prefer a hook's name, which explains more than the function's name.
    ranked.sort(key=lambda row: (-row[0] / row[1], HOOKS not in row[2], len(row[2]), row[2]))
    for leads_to, _, path in ranked[:PATHS_OF_A_TYPE]:
        if leads_to / count >= _SHARE_REPORTED:
            yield path, leads_to / count
