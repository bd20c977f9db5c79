"""Searches from objects up to their holders, and records the names on the path.

The search climbs one level at a time from all given objects. It first climbs among the objects near the program's own
roots, which costs almost nothing, and then through the entire heap, where every level requires one pass over all
objects. Paths contain names of modules, classes, functions and attributes, but no keys: an item of a container is
``[*]``.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from leakline.probes.native_module import native
from leakline.probes.references.class_names import is_heap_type, module_name
from leakline.probes.references.reference_links import Step, link_between, root_name
from leakline.probes.references.roots import Near

from ..heap.heap_walk import listed_referrers

DEPTH: Final = (
    10  # a namespace (`__dict__`) also counts as a level, so a path has about eight names
)
# Limit on the objects whose referrers are searched at one level; objects that lead to the most samples come first.
WIDTH: Final = 64
# Limit on the referrers of one step; more referrers would add no information.
PAIRS: Final = 8_192

# Types are compared by address, because a metaclass of the program may define its own hash and equality.
_UNTRACKABLE: Final = frozenset(map(id, (dict, tuple)))
# Parts of a path that lead through a function. A path continues above a function only if the function is a hook.
_OF_FUNCTIONS: Final = (".<closure>.", ".<defaults>")
HOOKS: Final = "_hooks[*]"

# The address of a target, and an object that refers to the target.
Pair = tuple[int, Any]


@dataclass(slots=True)
class _Held:
    """A search's only reference to an object.

    Between two steps, the reference is weak if the object supports weak references.
    """

    one: Any
    weak: ref[Any] | None = None

    def let_go(self) -> None:
        try:
            self.weak = ref(self.one)
        except TypeError:
            # Lists, dicts and tuples do not support weak references; strong references to them are kept until the next
            # step.
            return
        self.one = None

    def take_up(self, ours: int) -> bool:
        """Make the reference strong again. Return False if the object was freed or only we refer to it.

        ``ours`` is the reference count of an object that only we hold.
        """
        if self.weak is not None:
            self.one, self.weak = self.weak(), None
        elif sys.getrefcount(self.one) <= ours:
            self.one = None
        return self.one is not None


@dataclass(slots=True)
class _Node:
    held: _Held
    steps: dict[Step, int] = field(default_factory=dict)  # step -> bit mask of samples

    @property
    def one(self) -> Any:
        return self.held.one

    def samples(self) -> int:
        found = 0
        for mask in self.steps.values():
            found |= mask
        return found

    def forget(self, samples: int) -> None:
        """Remove these samples, because the search has already found a shorter path for them."""
        left = {step: mask & ~samples for step, mask in self.steps.items()}
        self.steps = {step: mask for step, mask in left.items() if mask}


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A path of names, the bit mask of the samples that it leads to, and the number of its root objects."""

    path: str
    samples: int
    roots: int


class ReferrerSearch:
    """A search that climbs from samples to named roots.

    The search holds objects of the program; drop it before the program continues. A sample's position in the list is
    its bit in the results; None marks a position without a sample. ``groups`` contains one bit mask for the samples of
    each type. The caller starts with `climb_near` and then repeats three calls: `wanted`, `give` with the referrers of
    the wanted objects, and `climb_near`. Between two steps, `let_go` makes references weak where possible, and
    `take_up` makes them strong again.
    """

    def __init__(
        self, samples: Iterable[Any], groups: Sequence[int] = (), width: int = WIDTH
    ) -> None:
        self._groups = groups or [-1]
        self._width = width
        # All visited objects are kept, so that an address always refers to the same object, together with the samples
        # for which they were visited.
        self._held: dict[int, _Held] = {}
        self._came_by: dict[int, int] = {}
        self._samples: dict[int, int] = {}  # address -> bit mask
        self._paths: dict[str, dict[int, int]] = {}  # path -> root -> bit mask of samples
        self._level: dict[int, _Node] = {}
        for position, one in enumerate(samples):
            if one is not None:
                self._samples[id(one)] = self._samples.get(id(one), 0) | 1 << position
                self._level[id(one)] = _Node(
                    _hold(one, self._held), {Step(""): self._samples[id(one)]}
                )
        self._present = _union(self._samples.values())
        self._asked: dict[int, _Node] = {}
        self._depth = 0
        self._settled = 0
        self._by_function = 0
        # Samples with a path that starts at an object that may itself be unreachable.
        self._doubtful = 0
        # True while all referrers of all visited objects are known.
        self._whole = True

    def climb_near(self, near: Near, is_over: Callable[[], bool] = lambda: False) -> None:
        """Climb among the objects near the program's roots.

        Samples with a path from these objects need no pass over the heap.
        """
        climb = _Climb(near, True, dict(self._held), dict(self._came_by))
        for node in self._level.values():
            if self._note_if_named(node, near.named):
                self._settled |= node.samples()
        level = self._unsettled(self._level)
        for _ in range(DEPTH - self._depth):
            if not level or is_over():
                break
            climb.pass_by(level)
            pairs = _pairs_among(near.objects, [node.one for node in level.values()])
            level = self._above(pairs, level, climb)
        self._settled |= self._by_function
        self._level = self._unsettled(self._level)

    def wanted(self) -> list[Any]:
        """Return the objects whose referrers in the entire heap are needed next, or [] after the climb."""
        self._level = self._unsettled(self._level)
        if self._depth >= DEPTH:
            return []
        chosen = sorted(self._level.values(), key=lambda node: -node.samples().bit_count())
        self._whole = self._whole and len(chosen) <= self._width
        self._asked = {id(node.one): node for node in chosen[: self._width]}
        self._level = {}
        return [node.one for node in self._asked.values()]

    def give(self, pairs: Iterable[Pair], near: Near, is_whole: bool = True) -> None:
        """Continue with the referrers of the `wanted` objects; ``is_whole`` is True if no referrers are missing."""
        self._whole = self._whole and is_whole
        self._depth += 1
        climb = _Climb(near, False, self._held, self._came_by)
        asked, self._asked = self._asked, {}
        climb.pass_by(asked)
        self._level = self._above(pairs, asked, climb)
        for node in self._level.values():
            _hold(node.one, self._held)

    def paths(self) -> list[FoundPath]:
        """Return all paths found, in no particular order."""
        return [
            FoundPath(path, _union(roots.values()), len(roots))
            for path, roots in self._paths.items()
        ]

    def samples(self, bits: int) -> list[Any]:
        """Return the living samples selected by this bit mask."""
        return [
            self._held[key].one
            for key, mask in self._samples.items()
            if mask & bits and key in self._held
        ]

    def unreachable(self) -> int:
        """Return the bit mask of samples in cyclic garbage that the collector has not freed yet.

        The result is 0 until the climb is complete. A sample counts only if all references to its visited holders come
        from other visited objects.
        """
        open_samples = self._present & ~self._settled
        if not open_samples or self._level or self._asked or not self._whole:
            return 0
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            # Without the interpreter lock, reference counts are incomplete.
            return 0
        nodes = {
            key: held
            for key, held in self._held.items()
            if self._came_by.get(key, 0) & open_samples
        }
        # As in the collector, references between visited objects are subtracted; objects with remaining references are
        # alive.
        below = {
            key: [each for each in _referents_of(held.one) if each in nodes]
            for key, held in nodes.items()
        }
        within = Counter(key for keys in below.values() for key in keys)
        ours = _references_of_ours()
        alive = [
            key for key, held in nodes.items() if sys.getrefcount(held.one) > ours + within[key]
        ]
        reached = set(alive)
        while alive:
            for key in below[alive.pop()]:
                if key not in reached:
                    reached.add(key)
                    alive.append(key)
        held_by_others = _union(self._samples.get(key, 0) for key in reached)
        climbed = _union(self._samples.get(key, 0) for key in nodes)
        return open_samples & climbed & ~held_by_others

    def let_go(self) -> None:
        """Make references weak, where possible, until `take_up` is called."""
        for held in self._held.values():
            held.let_go()

    def take_up(self) -> None:
        """Make references to living objects strong again, and forget freed objects."""
        ours = _references_of_ours()
        for key in [key for key, held in self._held.items() if not held.take_up(ours)]:
            # The address may now belong to another object.
            for known in (self._held, self._level, self._asked, self._came_by):
                known.pop(key, None)
            self._whole = False

    def _unsettled(self, level: Mapping[int, _Node]) -> dict[int, _Node]:
        return {key: node for key, node in level.items() if node.samples() & ~self._settled}

    def _above(
        self, pairs: Iterable[Pair], level: Mapping[int, _Node], climb: _Climb
    ) -> dict[int, _Node]:
        """Return the referrers of this level's objects, except objects where a path ends."""
        met: dict[int, _Node] = {}
        for key, one in pairs:
            below = level.get(key)
            if below is not None and not _is_ours(one):
                node = met.get(id(one))
                if node is None:
                    node = met[id(one)] = _Node(climb.held.get(id(one)) or _Held(one))
                self._link(node, below)
        above: dict[int, _Node] = {}
        named_here = 0
        for key, node in met.items():
            node.forget(climb.came_by.get(key, 0) | self._settled)
            if node.steps and self._ends_here(node, climb):
                named_here |= node.samples()
            elif node.steps:
                above[key] = node
        self._settled |= named_here
        for node in above.values():
            # Samples for which a path was found on this level do not need a longer path.
            node.forget(self._settled)
        return {key: node for key, node in above.items() if node.steps}

    def _link(self, above: _Node, below: _Node) -> None:
        how = link_between(above.one, below.one)
        if how is None:
            return
        for step, samples in below.steps.items():
            new = how.prepend(step)
            above.steps[new] = above.steps.get(new, 0) | samples

    def _ends_here(self, node: _Node, climb: _Climb) -> bool:
        """Record the paths that start at this object. Return True if the climb can end here."""
        if self._note_if_named(node, climb.near.named):
            return True
        root = root_name(node.one)
        if root is None:
            return False
        for step, samples in node.steps.items():
            self._note(root + step.below, node, samples)
        kind = type(node.one)
        if climb.is_near and kind is types.FunctionType:
            # Near the roots, it costs almost nothing to check whether the function is another object's hook.
            self._by_function |= node.samples()
            return False
        if not is_heap_type(kind):
            return True
        if not self._holds_most(node.samples()):
            # An object that holds only a few samples may be a link in a chain; the object that holds most samples is
            # above it.
            return False
        if climb.is_near or climb.reaches(node.one):
            return True
        # It is not yet known whether the object is reachable, so climb on, but only to find that out.
        self._doubtful |= node.samples()
        return False

    def _holds_most(self, samples: int) -> bool:
        return any(
            2 * (samples & group).bit_count() > (self._present & group).bit_count() > 0
            for group in self._groups
        )

    def _note_if_named(self, node: _Node, named: Mapping[int, str]) -> bool:
        name = named.get(id(node.one))
        if name is None:
            return False
        for step, samples in node.steps.items():
            self._note(name + step.below, node, samples)
        return True

    def _note(self, path: str, node: _Node, samples: int) -> None:
        samples &= ~self._doubtful
        of_function = any(word in path for word in _OF_FUNCTIONS)
        if not samples or (
            of_function and type(node.one) is not types.FunctionType and HOOKS not in path
        ):
            return
        roots = self._paths.setdefault(path, {})
        roots[id(node.one)] = roots.get(id(node.one), 0) | samples


class _Climb:
    """The state of a climb: its scope, the objects held, and the samples for which each object was visited."""

    def __init__(
        self, near: Near, is_near: bool, held: dict[int, _Held], came_by: dict[int, int]
    ) -> None:
        self.near, self.is_near, self.held, self.came_by = near, is_near, held, came_by

    def pass_by(self, level: Mapping[int, _Node]) -> None:
        for key, node in level.items():
            self.came_by[key] = self.came_by.get(key, 0) | node.samples()

    def reaches(self, one: Any) -> bool:
        """Return True if the object is among the objects near the program's roots."""
        return any(one is other for other in self.near.objects)


def _hold(one: Any, held: dict[int, _Held]) -> _Held:
    known = held.get(id(one))
    if known is None:
        known = held[id(one)] = _Held(one)
    return known


def native_look() -> Any | None:
    """Return the native module if its searches for referrers and instances pass a self-test, otherwise None."""
    module = native()
    return module if module is not None and _proves_right(module) else None


class _Proof:
    """A class that only the self-test instantiates."""


@functools.lru_cache(maxsize=1)
def _proves_right(module: Any) -> bool:
    ones = [_Proof() for _ in range(3)]
    holders = [[ones[0], ones[0]], (ones[1], [ones[2]]), {"x": ones[2]}]
    pairs, is_whole = module.referrers_among(holders, ones, True, 16)
    (newest,) = module.newest_instances((_Proof,), 2, 1.0)
    return (
        is_whole
        and [(place, id(one)) for place, one in pairs] == list(enumerate(map(id, holders)))
        and [id(one) for one in newest] == [id(ones[2]), id(ones[1])]
    )


def pairs_through_heap(targets: list[Any]) -> Iterator[Pair]:
    """Yield the targets' referrers from one pass over the collector's list.

    This pass cannot be interrupted.
    """
    ids = frozenset(map(id, targets))
    # The mark identifies the argument tuple of our own call, which Python 3.13 creates twice.
    mark = object()
    referrers = listed_referrers(*targets, mark)
    for one in referrers:
        if one is targets or one is referrers or (type(one) is tuple and one and one[-1] is mark):
            continue
        for key in ids.intersection(map(id, gc.get_referents(one))):
            yield key, one


def _pairs_among(objects: list[Any], targets: list[Any]) -> list[Pair]:
    """Return (target address, referrer) pairs.

    A referrer is one of the objects, or an untracked container held by one of the objects.
    """
    module = native_look()
    if module is not None:
        found, _ = module.referrers_among(objects, targets, are_untracked(targets), PAIRS)
        return [(id(targets[position]), one) for position, one in found]
    ids = frozenset(map(id, targets))
    untracked = are_untracked(targets)
    pairs: list[Pair] = []
    for one in objects:
        referents = gc.get_referents(one)
        pairs += ((key, one) for key in ids.intersection(map(id, referents)))
        if untracked:
            pairs += (
                (key, inner)
                for inner in referents
                if id(type(inner)) in _UNTRACKABLE and not gc.is_tracked(inner)
                for key in ids.intersection(map(id, gc.get_referents(inner)))
            )
        if len(pairs) > PAIRS:
            break
    return pairs


def are_untracked(targets: list[Any]) -> bool:
    """Return True if an untracked tuple or dict may hold a target.

    Such a container never holds tracked objects.
    """
    return not all(map(gc.is_tracked, targets))


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(int.__or__, masks, 0)


def _referents_of(one: Any) -> list[int]:
    """Return the addresses of an object's referents, including the values of a private namespace."""
    found: list[int] = []
    for each in gc.get_referents(one):
        found.append(id(each))
        # If only the object refers to this dict, the dict is the `__dict__` that Python created when the attributes
        # were read.
        if (
            type(each) is dict
            and is_heap_type(type(one))
            and sys.getrefcount(each) <= _references_in_a_loop() + 1
        ):
            found += map(id, gc.get_referents(each))
    return found


def _references_in_a_loop() -> int:
    """Return ``sys.getrefcount`` of an object that only a list and a loop variable hold."""
    references = 0
    ours: list[object] = [{}]
    for each in ours:
        references = sys.getrefcount(each)
    return references


def _references_of_ours() -> int:
    """Return ``sys.getrefcount(held.one)`` of an object that only a `_Held` holds."""
    held = _Held([])
    return sys.getrefcount(held.one)


def _is_ours(one: Any) -> bool:
    kind = type(one)
    if kind is types.FrameType:
        return str(one.f_globals.get("__name__")).partition(".")[0] == "leakline"
    return (module_name(kind) or "").partition(".")[0] == "leakline"
