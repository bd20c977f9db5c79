"""From objects up to what holds them, and the path of names on the way.

The climb goes level by level, for all objects at once: first among what is near the program's own roots, which costs
nothing to speak of, then through the whole heap, where every level is one look at all objects. Paths hold names of
modules, classes, functions and attributes only: an item of a container is ``[*]``, whatever its key.
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

DEPTH: Final = 10  # a namespace (`__dict__`) is a level of its own: about eight names
# How many objects are climbed from at a level: those first that hold most.
WIDTH: Final = 64
# More referrers than this in all say nothing that the first do not.
PAIRS: Final = 8_192

# By address: a class of the program may hash and compare in its own way.
_UNTRACKABLE: Final = frozenset(map(id, (dict, tuple)))
# What a function holds; above it only hooks are worth a longer path.
_OF_FUNCTIONS: Final = (".<closure>.", ".<defaults>")
HOOKS: Final = "_hooks[*]"

# A target by its address, and what refers to it.
Pair = tuple[int, Any]


@dataclass(slots=True)
class _Held:
    """The one reference that a search has to an object, or a weak one between two steps."""

    one: Any
    weak: ref[Any] | None = None

    def let_go(self) -> None:
        try:
            self.weak = ref(self.one)
        except TypeError:
            # Lists, dicts and tuples have none: held until the next step.
            return
        self.one = None

    def take_up(self, ours: int) -> bool:
        """False when it is gone, or nobody else refers to it: ``ours`` is the count of references then."""
        if self.weak is not None:
            self.one, self.weak = self.weak(), None
        elif sys.getrefcount(self.one) <= ours:
            self.one = None
        return self.one is not None


@dataclass(slots=True)
class _Node:
    held: _Held
    steps: dict[Step, int] = field(default_factory=dict)  # -> the samples it leads to, a bit each

    @property
    def one(self) -> Any:
        return self.held.one

    def samples(self) -> int:
        found = 0
        for mask in self.steps.values():
            found |= mask
        return found

    def forget(self, samples: int) -> None:
        """Leave out samples that came by here on a shorter way."""
        left = {step: mask & ~samples for step, mask in self.steps.items()}
        self.steps = {step: mask for step, mask in left.items() if mask}


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A path of names, the samples it leads to (a bit each), and how many objects it starts from."""

    path: str
    samples: int
    roots: int


class ReferrerSearch:
    """Climbs from samples to named roots. It holds objects of the program: drop it before returning to it.

    The place of a sample in the list is its bit in the answer; None is a place without a sample. ``groups`` are the
    bits of the samples of each type. Whoever drives it calls ``climb_near`` and then, again and again, ``wanted``,
    ``give`` with what refers to those, and ``climb_near``. Between two steps ``let_go`` and ``take_up`` make it hold
    weakly what can be held so.
    """

    def __init__(
        self, samples: Iterable[Any], groups: Sequence[int] = (), width: int = WIDTH
    ) -> None:
        self._groups = groups or [-1]
        self._width = width
        # What was met is kept, so that an address means the same object all along; so are the samples that came by it.
        self._held: dict[int, _Held] = {}
        self._came_by: dict[int, int] = {}
        self._samples: dict[int, int] = {}  # address -> its bits
        self._paths: dict[str, dict[int, int]] = {}  # path -> root -> samples
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
        # Their path starts at an object that may itself be unreachable.
        self._doubtful = 0
        # Whether every referrer of what was climbed from is known.
        self._whole = True

    def climb_near(self, near: Near, is_over: Callable[[], bool] = lambda: False) -> None:
        """Climb among the objects near the program's roots; what is named there needs no look through the heap."""
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
        """What to look for through the whole heap next; nothing when the climb is over."""
        self._level = self._unsettled(self._level)
        if self._depth >= DEPTH:
            return []
        chosen = sorted(self._level.values(), key=lambda node: -node.samples().bit_count())
        self._whole = self._whole and len(chosen) <= self._width
        self._asked = {id(node.one): node for node in chosen[: self._width]}
        self._level = {}
        return [node.one for node in self._asked.values()]

    def give(self, pairs: Iterable[Pair], near: Near, is_whole: bool = True) -> None:
        """What refers to the ``wanted``. ``is_whole``: that is all that does."""
        self._whole = self._whole and is_whole
        self._depth += 1
        climb = _Climb(near, False, self._held, self._came_by)
        asked, self._asked = self._asked, {}
        climb.pass_by(asked)
        self._level = self._above(pairs, asked, climb)
        for node in self._level.values():
            _hold(node.one, self._held)

    def paths(self) -> list[FoundPath]:
        """All paths found, in no order."""
        return [
            FoundPath(path, _union(roots.values()), len(roots))
            for path, roots in self._paths.items()
        ]

    def samples(self, bits: int) -> list[Any]:
        """The samples of these bits that are alive."""
        return [
            self._held[key].one
            for key, mask in self._samples.items()
            if mask & bits and key in self._held
        ]

    def unreachable(self) -> int:
        """The samples, a bit each, that nothing keeps alive but themselves: cycles the collector has not freed yet.

        Reported only when the climb ended because there is nothing above, and when every reference to everything met on
        the way comes from there, too.
        """
        open_samples = self._present & ~self._settled
        if not open_samples or self._level or self._asked or not self._whole:
            return 0
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            # Without the lock not every reference is in the count.
            return 0
        nodes = {
            key: held
            for key, held in self._held.items()
            if self._came_by.get(key, 0) & open_samples
        }
        # As the collector does it: the references from within are taken off, and what has some left is alive.
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
        """Hold weakly what can be held weakly, until ``take_up``."""
        for held in self._held.values():
            held.let_go()

    def take_up(self) -> None:
        """Hold again what is still alive, and forget the rest."""
        ours = _references_of_ours()
        for key in [key for key, held in self._held.items() if not held.take_up(ours)]:
            # Its address may belong to another object by now.
            for known in (self._held, self._level, self._asked, self._came_by):
                known.pop(key, None)
            self._whole = False

    def _unsettled(self, level: Mapping[int, _Node]) -> dict[int, _Node]:
        return {key: node for key, node in level.items() if node.samples() & ~self._settled}

    def _above(
        self, pairs: Iterable[Pair], level: Mapping[int, _Node], climb: _Climb
    ) -> dict[int, _Node]:
        """The objects that refer to those of the level, without those where a path ends."""
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
            # What was named on this level needs no longer way.
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
        """Note the paths that start at this object; whether there is no need to climb on."""
        if self._note_if_named(node, climb.near.named):
            return True
        root = root_name(node.one)
        if root is None:
            return False
        for step, samples in node.steps.items():
            self._note(root + step.below, node, samples)
        kind = type(node.one)
        if climb.is_near and kind is types.FunctionType:
            # Near the roots it costs nothing to see whether it is a hook of something.
            self._by_function |= node.samples()
            return False
        if not is_heap_type(kind):
            return True
        if not self._holds_most(node.samples()):
            # One of many that hold a few samples each is a link of the chain; what holds most of them is above.
            return False
        if climb.is_near or climb.reaches(node.one):
            return True
        # Nobody has said yet that this object is in use: climb on, but for that alone.
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
    """Where a climb goes: near the roots or through the heap, what it holds and who came by."""

    def __init__(
        self, near: Near, is_near: bool, held: dict[int, _Held], came_by: dict[int, int]
    ) -> None:
        self.near, self.is_near, self.held, self.came_by = near, is_near, held, came_by

    def pass_by(self, level: Mapping[int, _Node]) -> None:
        for key, node in level.items():
            self.came_by[key] = self.came_by.get(key, 0) | node.samples()

    def reaches(self, one: Any) -> bool:
        """Whether the program's roots lead to the object."""
        return any(one is other for other in self.near.objects)


def _hold(one: Any, held: dict[int, _Held]) -> _Held:
    known = held.get(id(one))
    if known is None:
        known = held[id(one)] = _Held(one)
    return known


def native_look() -> Any | None:
    """The native module, if its looks at referrers and instances prove right on a few objects of ours; else None."""
    module = native()
    return module if module is not None and _proves_right(module) else None


class _Proof:
    """Instances that only we have made."""


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
    """What refers to the targets, in one look at everything the collector lists, which cannot be interrupted."""
    ids = frozenset(map(id, targets))
    # By it we know the arguments of our call again, which 3.13 packs twice.
    mark = object()
    referrers = listed_referrers(*targets, mark)
    for one in referrers:
        if one is targets or one is referrers or (type(one) is tuple and one and one[-1] is mark):
            continue
        for key in ids.intersection(map(id, gc.get_referents(one))):
            yield key, one


def _pairs_among(objects: list[Any], targets: list[Any]) -> list[Pair]:
    """What of the objects refers to the targets, or holds a tuple or dict that does and the collector does not list."""
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
    """Whether any may be held by a tuple or dict that the collector does not list: only what it lists not may."""
    return not all(map(gc.is_tracked, targets))


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(int.__or__, masks, 0)


def _referents_of(one: Any) -> list[int]:
    """Addresses of what an object refers to, itself or by a namespace that nobody else knows."""
    found: list[int] = []
    for each in gc.get_referents(one):
        found.append(id(each))
        # Python gave it a `__dict__` when we asked for its attributes: it has one reference, that of the object.
        if (
            type(each) is dict
            and is_heap_type(type(one))
            and sys.getrefcount(each) <= _references_in_a_loop() + 1
        ):
            found += map(id, gc.get_referents(each))
    return found


def _references_in_a_loop() -> int:
    """What ``sys.getrefcount`` says of an object that only a list and the name of a loop refer to."""
    references = 0
    ours: list[object] = [{}]
    for each in ours:
        references = sys.getrefcount(each)
    return references


def _references_of_ours() -> int:
    """What ``sys.getrefcount(held.one)`` says of an object that only we refer to."""
    held = _Held([])
    return sys.getrefcount(held.one)


def _is_ours(one: Any) -> bool:
    kind = type(one)
    if kind is types.FrameType:
        return str(one.f_globals.get("__name__")).partition(".")[0] == "leakline"
    return (module_name(kind) or "").partition(".")[0] == "leakline"
