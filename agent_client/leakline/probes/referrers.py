"""From objects up to what holds them, and the path of names on the way.

``gc.get_referrers`` is asked level by level, for all objects at once, for each call looks through the whole heap.
What cannot be asked backwards (locals of running functions) is named forward beforehand. Paths hold names of modules,
classes, functions and attributes only: an item of a container is ``[*]``, whatever its key.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leakline.probes.attributes import attributes, class_attributes
from leakline.probes.names import is_class, is_heap_type, module_name, type_name
from leakline.probes.program import is_user_class, user_classes, user_modules

DEPTH: Final = 8  # a namespace (`__dict__`) is a level of its own: about six names
# How many objects are climbed from at a level: those first that hold most.
_WIDTH: Final = 64
_LONGEST_NAMESPACE: Final = 10_000

# By address: a class of the program may hash and compare in its own way.
_SEQUENCES: Final = frozenset(map(id, (list, tuple, set, frozenset, deque)))
_MAPPINGS: Final = frozenset(map(id, (dict, OrderedDict, defaultdict)))
_GENERATORS: Final = frozenset(
    map(id, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType))
)


@dataclass(frozen=True, slots=True)
class Step:
    """The way from an object on the path down to the samples.

    ``below`` reads on from the object as a container, ``inside`` from its owner if it is somebody's namespace.
    """

    below: str
    inside: str | None = None


@dataclass(slots=True)
class _Node:
    one: Any
    steps: dict[Step, int] = field(default_factory=dict)  # -> the samples it leads to, a bit each

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
    bits of the samples of each type.
    """

    def __init__(
        self,
        samples: list[Any],
        named: Mapping[int, str],
        is_over: Callable[[], bool],
        groups: Sequence[int] = (),
    ) -> None:
        self._samples = samples
        self._groups = groups or [-1]
        self._named = named
        self._is_over = is_over
        # Nodes are kept, so that an address means the same object all along; so are the samples that came by it.
        self._seen: dict[int, _Node] = {}
        self._came_by: dict[int, int] = {}
        self._paths: dict[str, dict[int, int]] = {}  # path -> root -> samples
        self._ours: set[int] = set()
        self._present = 0
        self._settled = 0

    def run(self) -> list[FoundPath]:
        """All paths found, in no order."""
        level = {
            id(one): _Node(one, {Step(""): 1 << position})
            for position, one in enumerate(self._samples)
            if one is not None
        }
        for node in level.values():
            self._present |= node.samples()
        for node in level.values():
            if self._note_if_named(node):
                self._settled |= node.samples()
        level = {key: node for key, node in level.items() if node.samples() & ~self._settled}
        for _ in range(DEPTH):
            if not level or self._is_over():
                break
            for key, node in level.items():
                self._seen[key] = node
                self._came_by[key] = self._came_by.get(key, 0) | node.samples()
            level = self._climb(level)
        return [
            FoundPath(path, functools.reduce(int.__or__, roots.values()), len(roots))
            for path, roots in self._paths.items()
        ]

    def _climb(self, level: dict[int, _Node]) -> dict[int, _Node]:
        chosen = sorted(level.values(), key=lambda node: -node.samples().bit_count())[:_WIDTH]
        asked = [node.one for node in chosen]
        ids = frozenset(map(id, asked))
        referrers = gc.get_referrers(*asked)
        self._ours = {id(x) for x in (asked, referrers, self._samples, self.__dict__)}
        above: dict[int, _Node] = {}
        named_here = 0
        for one in referrers:
            if self._is_ours(one):
                continue
            node = _Node(one)
            for key in ids.intersection(map(id, gc.get_referents(one))):
                self._link(node, level[key])
            node.forget(self._came_by.get(id(one), 0) | self._settled)
            if node.steps and self._ends_here(node):
                named_here |= node.samples()
            elif node.steps:
                above[id(one)] = node
        self._settled |= named_here
        for node in above.values():
            # What was named on this level needs no longer way.
            node.forget(self._settled)
        return {key: node for key, node in above.items() if node.steps}

    def _is_ours(self, one: Any) -> bool:
        kind = type(one)
        return (
            id(one) in self._ours
            or kind is _Node
            or kind is types.FrameType
            or (module_name(kind) or "").partition(".")[0] == "leakline"
        )

    def _link(self, above: _Node, below: _Node) -> None:
        how = _link_between(above.one, below.one)
        if how is None:
            return
        for step, samples in below.steps.items():
            new = how.prepend(step)
            above.steps[new] = above.steps.get(new, 0) | samples

    def _ends_here(self, node: _Node) -> bool:
        """Note the paths that start at this object; whether there is no need to climb on."""
        if self._note_if_named(node):
            return True
        root = _root_name(node.one)
        if root is None:
            return False
        for step, samples in node.steps.items():
            self._note(root + step.below, node, samples)
        # One of many that hold a few samples each is a link of the chain; what holds most of them is above.
        holds_most = any(
            2 * (node.samples() & group).bit_count() > (self._present & group).bit_count() > 0
            for group in self._groups
        )
        return holds_most or not is_heap_type(type(node.one))

    def _note_if_named(self, node: _Node) -> bool:
        name = self._named.get(id(node.one))
        if name is None:
            return False
        for step, samples in node.steps.items():
            self._note(name + step.below, node, samples)
        return True

    def _note(self, path: str, node: _Node, samples: int) -> None:
        roots = self._paths.setdefault(path, {})
        roots[id(node.one)] = roots.get(id(node.one), 0) | samples


@dataclass(frozen=True, slots=True)
class _Link:
    """How one object holds another: as an item, under a name, or without a word in the path."""

    word: str
    inside: str | None = None
    through_namespace: bool = False
    variables: tuple[str, ...] = ()  # of a function that holds cells

    def prepend(self, step: Step) -> Step:
        if self.variables and step.inside is not None:
            index, _, rest = step.inside.partition("|")
            return Step(f".<closure>.{self.variables[int(index)]}{rest}")
        if self.through_namespace and step.inside is not None:
            return Step(self.word + step.inside)
        inside = None if self.inside is None else self.inside + step.below
        return Step(self.word + step.below, inside)


def _link_between(above: Any, below: Any) -> _Link | None:
    """None when the reference says nothing of who keeps the object."""
    kind = type(above)
    if id(kind) in _MAPPINGS:
        return _Link("[*]", _key_of(above, below))
    if kind is tuple and type(below) is types.CellType:
        return _Link("", f"{_index_of(above, below)}|")
    if id(kind) in _SEQUENCES:
        return _Link("[*]")
    if kind is types.FunctionType:
        return _function_link(above, below)
    if kind is types.ModuleType or is_class(kind):
        return _Link("", through_namespace=True)
    if kind is functools._lru_cache_wrapper:
        return _Link(".<cache>" if type(below) is dict else ".<cache>[*]")
    if id(kind) in _GENERATORS:
        return _Link(".<locals>")
    return _instance_link(above, below) if is_heap_type(kind) else _Link("")


def forward_names(local_names: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    """Names of what the program's module globals, class attributes and given locals are bound to, by address."""
    named: dict[int, str] = {}
    spaces: list[tuple[str, Mapping[str, Any]]] = [
        *((f"{function}.<locals>", names) for function, names in local_names.items()),
        *((name, module.__dict__) for name, module in user_modules()),
        *((type_name(cls), class_attributes(cls)) for cls in user_classes()),
    ]
    for space, names in spaces:
        for key, value in list(names.items()):
            if type(key) is str and not key.startswith("__") and _can_hold(value):
                named.setdefault(id(value), f"{space}.{key}")
    return named


def _can_hold(value: Any) -> bool:
    kind = type(value)
    return not (
        is_class(kind) or kind is types.ModuleType or kind is types.FunctionType or value is None
        or kind is str or kind is int or kind is float or kind is bool
        # An object of the program is better known by its class than by the variable it is in.
        or is_user_class(kind)
    )  # fmt: skip


def _key_of(mapping: Any, below: Any) -> str | None:
    """The attribute name, should this be a namespace."""
    if len(mapping) > _LONGEST_NAMESPACE:
        return None
    for key, value in list(dict.items(mapping)):
        if value is below:
            return f".{key}" if type(key) is str else None
    return None


def _index_of(cells: tuple[Any, ...], below: Any) -> int:
    return next(index for index, cell in enumerate(cells) if cell is below)


def _function_link(function: types.FunctionType, below: Any) -> _Link | None:
    if below is function.__closure__:
        return _Link("", variables=function.__code__.co_freevars)
    if below is function.__defaults__ or below is function.__kwdefaults__:
        return _Link(".<defaults>")
    if below is function.__globals__:
        # Every function refers to the globals of its module, which has the better name.
        return None
    return _Link("", through_namespace=True)


def _instance_link(above: Any, below: Any) -> _Link:
    names = attributes(above)
    for name, value in names.items():
        if value is below:
            return _Link(f".{name}")
    if type(below) is dict:
        return _Link("", through_namespace=True)
    # Inside of a C extension: no name to give.
    return _Link("")


def _root_name(one: Any) -> str | None:
    """The name a path may start with at this object, if it has one."""
    kind = type(one)
    if kind is types.ModuleType:
        name = one.__dict__.get("__name__")
        return name if type(name) is str else None
    if is_class(kind):
        return type_name(one)
    if kind is types.FunctionType or id(kind) in _GENERATORS:
        module = getattr(one, "__module__", None)
        return f"{module}.{one.__qualname__}" if type(module) is str else str(one.__qualname__)
    if kind is functools._lru_cache_wrapper:
        wrapped = attributes(one).get("__wrapped__")
        return _root_name(wrapped) if type(wrapped) is types.FunctionType else None
    if is_user_class(kind):
        return type_name(kind)
    return None
