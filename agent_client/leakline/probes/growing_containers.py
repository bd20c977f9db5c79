"""Finds growing containers and names them as the program does.

The search starts at the program's own roots: module globals, attributes of its classes, local variables of functions
running on the calling thread, closures and caches of functions, and attributes of instances of its classes. The
instances come from a census or, without a census, from a walk from the roots. A list does not support weak references,
so only its path is stored and resolved again at each reading.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import ref

from leakline.probes.heap.arrays import PreallocatedArrays, array_types
from leakline.probes.heap.marginal_size import marginal_bytes
from leakline.probes.references.attributes import (
    attributes,
    class_attributes,
    definition,
    is_plain_attribute,
    values_of,
)
from leakline.probes.references.class_names import type_name
from leakline.probes.references.frames import Locals, locals_by_function
from leakline.probes.references.program_code import is_user_file, user_modules
from leakline.probes.references.roots import Near, look_near
from leakline.snapshot import LARGEST_INTEGER, Number

from .references.attributes import NEWEST, defines, is_container, items, newest
from .tracked_containers import TrackedContainer

__all__ = ["ContainerWatch", "TrackedContainer"]

WATCHED_LIMIT: Final = 256
# Limits on the instances whose attributes one reading examines, in total and per class.
_INSTANCES_READ: Final = 4_000
_INSTANCES_OF_A_CLASS: Final = 1_000
# Maximum path length in characters; the server still accepts the complete metric name for such a path.
_PATH_LIMIT: Final = 480
# Number of a class's instances from which attribute names are collected.
_INSTANCES_ASKED: Final = 4
# Limit on the functions with the same name whose closures are read: each call of the enclosing function creates one
# more.
_FUNCTIONS_OF_A_NAME: Final = 64
# Maximum length of containers whose items are searched for growing containers, for example `history["loss"]`.
_SHORT: Final = 64
# Limit on the containers that are read only because a search for holders has named them, even if they do not grow.
_HOLDERS_LIMIT: Final = 32
# Limit on the objects visited to measure the items of one container.
_OBJECTS_VISITED: Final = 2_000

# Attributes that bound the container of the same instance, without leading underscores.
_BOUNDS: Final = frozenset({"capacity", "max_size", "maxsize", "maxlen"})

# A `Resolve` returns the containers to which a path leads now, or None if they cannot be determined.
Frames = Mapping[str, Locals]
Resolve = Callable[[Frames], Iterable[Any] | None]


def _always() -> bool:
    return True


class _Place(NamedTuple):
    """A path, its resolver, the number of instances on the path, and a check that no instance is missing.

    ``bounds`` resolves the attribute that holds the capacity of each instance's container.
    """

    path: str
    resolve: Resolve
    instances: int = 1
    is_complete: Callable[[], bool] = _always
    bounds: Resolve | None = None


@dataclass(slots=True)
class _Watched:
    """A watched place: its containers or, if ``inside`` is True, the containers among their items (``path[*]``)."""

    path: str
    place: _Place
    inside: bool
    longest: int = 0
    has_grown: bool = False
    # True if a search for holders has named the container, whose length is then reported even if it does not grow.
    is_holder: bool = False
    # The bytes that one more item adds, the addresses of the sampled items' types, and the length when the items were
    # sampled.
    bytes_each: int | None = None
    item_types: frozenset[int] = frozenset()
    sized_at: int = 0
    # The number of items at the last reading, and the bytes of these items.
    items_read: int = 0
    items_bytes: float = 0.0

    def size_of(self, containers: Sequence[Any], length: int) -> int | None:
        """Return the bytes of the containers and their items, or None if the number is unknown.

        Items added since the last reading are assumed to be as large as the last sampled items.
        """
        # New items may have a different type: a list of tensors, for example, may later hold plain numbers.
        if self.sized_at and not _types_of(_newest(containers, 1)) <= self.item_types:
            self.sample(containers)
        if self.bytes_each is None:
            return None
        if length < self.items_read:
            self.items_bytes *= length / self.items_read
        else:
            self.items_bytes += (length - self.items_read) * self.bytes_each
        self.items_read = length
        return int(self.items_bytes) + sum(map(sys.getsizeof, containers))

    def sample(self, containers: Sequence[Any]) -> None:
        """Measure the bytes that one more item adds, using the newest items."""
        if sampled := _newest(containers):
            self.bytes_each = marginal_bytes(sampled, objects_visited=_OBJECTS_VISITED)
            self.item_types |= _types_of(sampled)
            self.sized_at = self.longest

    def capacity(self, containers: Sequence[Any], frames: Frames) -> int | None:
        """Return how many items the containers may hold together, or None if the program keeps no bound for them.

        Containers inside another one have no common bound, since there may be more and more of them. Programs write
        "unlimited" as a number that no series can store, such as ``sys.maxsize``.
        """
        if self.inside or not containers:
            return None
        bounds = [_bound_of(one) for one in containers]
        if None in bounds and self.place.bounds is not None:
            bounds = list(self.place.bounds(frames) or (None,))
        known = [each for each in bounds if type(each) is int and 0 < each <= LARGEST_INTEGER]
        total = sum(known)
        return total if len(known) == len(bounds) and total <= LARGEST_INTEGER else None

    def containers(self, frames: Frames) -> list[Any] | None:
        found = self.place.resolve(frames)
        if found is None:
            return None
        ones = _distinct(one for one in found if is_container(one) or _is_cache(one))
        if not self.inside:
            return ones
        plain = [one for one in ones if is_container(one)]
        if any(len(one) > _SHORT for one in plain):
            return None
        return _distinct(item for one in plain for item in items(one) if is_container(item))


class ContainerWatch:
    """A watch over the program's own containers. ``find`` searches for them; ``read`` reports growing containers.
    ``preallocated`` watches the large arrays that the search passes.

    ``count_of`` returns the exact current number of instances of the class at an address, or None if the number is
    unknown (``ClassCounts.count_of``). Lengths are summed over all instances of a class. Without ``count_of``, a sum
    misses instances created since the last ``find``; with ``count_of``, an incomplete sum is omitted.
    """

    def __init__(self, count_of: Callable[[int], int | None] | None = None) -> None:
        self._count_of = count_of
        self._watched: dict[str, _Watched] = {}
        self.preallocated = PreallocatedArrays()
        # Paths of containers that searches for holders have named, newest last.
        self._holders: dict[str, None] = {}

    def note_holders(self, paths: Iterable[str]) -> None:
        """Read the containers on these holder paths from now on, even if they do not grow."""
        for path in paths:
            for container in _containers_on(path):
                self._holders.pop(container, None)
                self._holders[container] = None
                if container in self._watched:
                    self._watched[container].is_holder = True
        for oldest in list(self._holders)[:-_HOLDERS_LIMIT]:
            del self._holders[oldest]

    def find(
        self,
        frame: FrameType | None = None,
        instances: Mapping[type, Sequence[object]] | None = None,
        *,
        measures: bool = True,
    ) -> None:
        """Search again and keep at most ``WATCHED_LIMIT`` containers: grown containers first, then the longest.

        ``frame`` is the current frame of the calling thread (default: the caller's). ``instances`` are live objects by
        exact class, from ``take_census(on_instances=...)``; only weak references to them are kept. Without
        ``instances``, the search uses the instances reachable from the roots, which takes two milliseconds. With
        ``measures``, items of grown containers are measured.
        """
        frames = locals_by_function(frame or sys._getframe(1))
        near = look_near({name: variables.read() for name, variables in frames.items()})
        self.preallocated.find(near.arrays)
        found: dict[str, _Watched] = {}
        for place in self._places(frames, near, instances):
            self._consider(found, _Watched(place.path, place, inside=False), frames)
            self._consider(found, _Watched(f"{place.path}[*]", place, inside=True), frames)
        if instances is None:
            # Without a census, not all instances are listed, so containers found earlier are kept.
            found = self._watched | found
        for one in found.values():
            one.is_holder = one.path in self._holders
        order = sorted(
            found.values(), key=lambda one: (not (one.has_grown or one.is_holder), -one.longest)
        )
        self._watched = {one.path: one for one in order[:WATCHED_LIMIT]}
        for watched in self._watched.values():
            # Measure the items again only after the length has doubled.
            if measures and watched.has_grown and watched.longest >= 2 * watched.sized_at:
                watched.sample(watched.containers(frames) or ())

    def read(self, frame: FrameType | None = None) -> dict[str, Number]:
        """Return ``container.<path>.length`` of each container that has grown since the first search.

        ``.bytes`` and ``.capacity`` are added if they are known.

        A container on a holder path is reported even if it has not grown. A container is absent while its path cannot
        be resolved or some of the instances on the path are unknown.
        """
        frames = locals_by_function(frame or sys._getframe(1))
        samples: dict[str, Number] = {}
        bounded: list[tuple[_Watched, list[Any], int]] = []
        left = _INSTANCES_READ
        for watched in self._watched.values():
            left -= watched.place.instances
            if left < 0:
                continue
            # If some instances are unknown, omit the sum, because a partial sum would look like a decrease.
            containers = watched.containers(frames) if watched.place.is_complete() else None
            if containers is None:
                continue
            length = sum(map(_length, containers))
            if length > watched.longest:
                watched.longest, watched.has_grown = length, True
            if watched.has_grown or watched.is_holder:
                samples[f"container.{watched.path}.length"] = length
                size = watched.size_of(containers, length)
                if size is not None:
                    samples[f"container.{watched.path}.bytes"] = size
                capacity = watched.capacity(containers, frames)
                if capacity is not None:
                    bounded.append((watched, containers, length))
                    if capacity >= length:
                        samples[f"container.{watched.path}.capacity"] = capacity
        _keep_unambiguous(samples, bounded)
        return samples

    def growth(
        self, frame: FrameType | None, lengths: dict[str, int], is_over: Callable[[], bool]
    ) -> Iterator[tuple[int, str, Any]]:
        """Yield (bytes, path, newest item) of containers that exceed ``lengths``, by path, and update ``lengths``.

        No container with more than ``_OBJECTS_VISITED`` items is entered, and none once ``is_over`` returns True.
        """
        frames, grown = locals_by_function(frame), []
        for watched in self._watched.values():
            more = watched.longest - lengths.get(watched.path, watched.longest)
            lengths[watched.path] = watched.longest
            grown += [(more, watched)] if more > 0 else []
        for more, watched in grown:
            sampled = [] if is_over() else _newest(watched.containers(frames) or ())
            for one in sampled[:1]:
                each = marginal_bytes(sampled, is_over, _OBJECTS_VISITED, _OBJECTS_VISITED)
                yield more * (each or 0), watched.path, one

    def _consider(self, found: dict[str, _Watched], new: _Watched, frames: Frames) -> None:
        containers = new.containers(frames)
        if not containers or len(new.path) > _PATH_LIMIT:
            return
        known = self._watched.get(new.path)
        new.longest = sum(map(_length, containers))
        if known is not None:
            new.has_grown = known.has_grown or new.longest > known.longest
            new.longest = max(new.longest, known.longest)
            new.bytes_each, new.item_types = known.bytes_each, known.item_types
            new.sized_at = known.sized_at
            new.items_read, new.items_bytes = known.items_read, known.items_bytes
        found.setdefault(new.path, new)

    def _places(
        self, frames: Frames, near: Near, instances: Mapping[type, Sequence[object]] | None
    ) -> Iterator[_Place]:
        for name, module in user_modules():
            for key in _container_names(module.__dict__):
                yield _Place(f"{name}.{key}", _of_module(name, key))
        classes = {**near.classes, **{id(cls): cls for cls in instances or ()}}
        for cls in classes.values():
            for key in _container_names(class_attributes(cls)):
                yield _Place(f"{type_name(cls)}.{key}", _of_class(ref(cls), key))
        for function, variables in frames.items():
            for key in _container_names(variables.read()):
                yield _Place(f"{function}.<locals>.{key}", _of_locals(function, key))
        yield from _of_functions(near)
        for cls, ones in (near.instances if instances is None else instances).items():
            if len(ones) <= _INSTANCES_OF_A_CLASS:
                yield from self._by_class(cls, ones, are_counted=instances is not None)

    def _by_class(self, cls: type, ones: Sequence[object], are_counted: bool) -> Iterator[_Place]:
        try:
            weak = [ref(one) for one in ones]
        except TypeError:
            # The class has __slots__ without __weakref__.
            return
        half = _INSTANCES_ASKED // 2
        asked = ones if len(ones) <= _INSTANCES_ASKED else [*ones[:half], *ones[-half:]]
        found = [attributes(one) for one in asked]
        names = {name: None for each in found for name in _container_names(each)}
        is_complete = _are_all(id(cls), weak, self._count_of, are_counted)
        is_plain = is_plain_attribute(cls)
        bounds = {
            name
            for each in found
            for name in each
            if type(name) is str and name.lstrip("_") in _BOUNDS
        }
        bound = (
            _of_instances(weak, bounds.pop())
            if len(bounds) == 1 and all(map(is_plain, bounds))
            else None
        )
        is_dataset = defines(cls, "__getitem__", "__len__")
        stated = _stated_length(cls) if names and len(weak) <= _INSTANCES_ASKED else None
        for name in filter(is_plain, names):
            path = f"{type_name(cls)}.{name}"
            is_bound = len(weak) <= _INSTANCES_ASKED and (is_dataset or stated is not None)
            of_samples = _sample_counts(weak, name, stated) if is_bound else None
            yield _Place(
                path, _of_instances(weak, name), len(weak), is_complete, bound or of_samples
            )


def _keep_unambiguous(
    samples: dict[str, Number], bounded: Sequence[tuple[_Watched, list[Any], int]]
) -> None:
    """Remove the capacities that may belong to another container, and the second size of the same containers.

    An attribute such as ``capacity`` bounds the parallel lists of its object, but not a list of another length.
    """
    lengths: dict[int, set[int]] = {}
    for watched, _, length in bounded:
        lengths.setdefault(id(watched.place.bounds), set()).add(length)
    seen: set[int] = set()
    for watched, containers, _ in bounded:
        if watched.place.bounds is not None and len(lengths[id(watched.place.bounds)]) > 1:
            samples.pop(f"container.{watched.path}.capacity", None)
            continue
        if seen.intersection(map(id, containers)):
            samples.pop(f"container.{watched.path}.bytes", None)
        seen.update(map(id, containers))


def _containers_on(path: str) -> list[str]:
    """Return the paths of the containers on a holder path: ``a.b`` and ``a.b[*]`` for ``a.b[*][*]``."""
    parts = path.split("[*]")[:-1]
    return ["[*]".join(parts[: i + 1]) for i in range(len(parts))]


def _container_names(names: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, value in list(names.items())
        if is_container(value) and type(name) is str and not name.startswith("__")
    ]


def _of_module(module: str, name: str) -> Resolve:
    def resolve(_frames: Frames) -> list[Any] | None:
        found = sys.modules.get(module)
        return [found.__dict__.get(name)] if type(found) is ModuleType else None

    return resolve


def _of_class(weak: ref[type], name: str) -> Resolve:
    def resolve(_frames: Frames) -> list[Any] | None:
        cls = weak()
        return None if cls is None else [class_attributes(cls).get(name)]

    return resolve


def _of_locals(function: str, name: str) -> Resolve:
    def resolve(frames: Frames) -> list[Any] | None:
        variables = frames.get(function)
        return None if variables is None else [variables.read().get(name)]

    return resolve


def _of_instances(instances: list[ref[Any]], name: str) -> Resolve:
    def resolve(_frames: Frames) -> list[Any] | None:
        alive = _alive(instances)
        return list(values_of(alive, name)) if alive else None

    return resolve


def _stated_length(cls: type) -> tuple[str, Any] | None:
    """Return how ``__len__`` finds its result: ("constant", value), ("global", name) or ("attribute", name).

    The method is read and not run. Return None if it does anything else.
    """
    function = definition(cls, "__len__")
    if type(function) is not FunctionType:
        return None
    steps = [(each.opname, each.argval) for each in dis.get_instructions(function)]
    match [step for step in steps if step[0] != "RESUME"]:
        case [("LOAD_CONST" | "LOAD_SMALL_INT", value), ("RETURN_VALUE", _)]:
            return "constant", value
        case [("RETURN_CONST", value)]:
            return "constant", value
        case [("LOAD_GLOBAL", str(name)), ("RETURN_VALUE", _)]:
            return "global", name
        case [("LOAD_FAST" | "LOAD_FAST_BORROW", _), ("LOAD_ATTR", str(name)), ("RETURN_VALUE", _)]:
            return "attribute", name
    return None


def _length_of(one: object, known: Mapping[str, Any], stated: tuple[str, Any]) -> int:
    """Return the length that ``__len__`` of an object with the attributes ``known`` returns, or 0 if it is unknown."""
    how, what = stated
    if how == "attribute":
        what = known.get(what)
    elif how == "global":
        function = definition(type(one), "__len__")
        what = function.__globals__.get(what) if type(function) is FunctionType else None
    return what if type(what) is int else 0


def _sample_counts(
    instances: list[ref[Any]], name: str, stated: tuple[str, Any] | None = None
) -> Resolve:
    """Resolve the number of samples of each dataset in ``instances`` whose cache ``name`` is keyed by sample index.

    The number is what ``__len__`` states (`_stated_length`), or the length of the dataset's longest list or array. It
    is None if a recent key is not an index.
    """

    def resolve(_frames: Frames) -> list[Any]:
        found: list[int | None] = []
        for one in _alive(instances):
            known = attributes(one)
            cache = known.pop(name, None)
            sequences = (
                each for each in known.values() if type(each) in (list, tuple, *array_types()[:1])
            )
            samples = max((len(each) for each in sequences if getattr(each, "ndim", 1)), default=0)
            if stated is not None:
                samples = _length_of(one, known, stated)
            keys = list(islice(reversed(cache), NEWEST)) if type(cache) is dict else [None]
            keys = [key[0] if type(key) is tuple and len(key) == 1 else key for key in keys]
            is_keyed = all(type(key) is int and 0 <= key < samples for key in keys)
            found.append(samples if is_keyed else None)
        return found

    return resolve


def _are_all(
    address: int,
    instances: list[ref[Any]],
    count_of: Callable[[int], int | None] | None,
    are_counted: bool,
) -> Callable[[], bool]:
    if count_of is None:
        return _always

    def check() -> bool:
        count = count_of(address)
        # Without a census there may be no count; the sum then covers the instances reachable from the roots.
        return count == len(_alive(instances)) or (count is None and not are_counted)

    return check


def _of_functions(near: Near) -> Iterator[_Place]:
    """Yield closure variables and caches of functions near the roots.

    The closures of functions with the same name are combined.
    """
    closures: dict[tuple[str, int], list[ref[Any]]] = {}
    seen: set[int] = set()
    for one in near.objects:
        kind = type(one)
        if kind is FunctionType and is_user_file(one.__code__.co_filename):
            for index, content in enumerate(_contents(one)):
                # Several functions may close over the same object.
                if is_container(content) and id(content) not in seen:
                    seen.add(id(content))
                    name = one.__code__.co_freevars[index]
                    path = f"{_function_name(one)}.<closure>.{name}"
                    closures.setdefault((path, index), []).append(ref(one))
        elif _is_cache(one):
            function = attributes(one).get("__wrapped__")
            if type(function) is FunctionType and is_user_file(function.__code__.co_filename):
                yield _Place(f"{_function_name(function)}.<cache>", _of_references([ref(one)]))
    for (path, index), functions in closures.items():
        newest_ones = functions[-_FUNCTIONS_OF_A_NAME:]
        yield _Place(path, _of_closures(newest_ones, index), len(newest_ones))


def _function_name(function: FunctionType) -> str:
    module = function.__module__
    name = function.__qualname__
    return f"{module}.{name}" if type(module) is str else name


def _contents(function: FunctionType) -> list[Any]:
    """Return the value of each closure variable; an unbound variable is None."""
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def _of_closures(functions: list[ref[Any]], index: int) -> Resolve:
    def resolve(_frames: Frames) -> list[Any] | None:
        alive = _alive(functions)
        found = {id(one): one for one in (_contents(function)[index] for function in alive)}
        return list(found.values()) if alive else None

    return resolve


def _of_references(references: list[ref[Any]]) -> Resolve:
    return lambda _frames: _alive(references) or None


def _is_cache(one: object) -> bool:
    return type(one) is functools._lru_cache_wrapper


def _length(one: Any) -> int:
    if type(one) is functools._lru_cache_wrapper:
        # For exactly this type, `cache_info` is implemented in C and runs none of the program's code.
        return int(functools._lru_cache_wrapper.cache_info(one).currsize)
    return len(one)


def _bound_of(one: Any) -> Any:
    """Return the largest number of items that a deque or the cache of a function may hold, or None without a bound."""
    if type(one) is deque:
        return one.maxlen
    if type(one) is functools._lru_cache_wrapper:
        return functools._lru_cache_wrapper.cache_info(one).maxsize
    return None


def _alive(instances: list[ref[Any]]) -> list[Any]:
    return [one for one in (weak() for weak in instances) if one is not None]


def _newest(containers: Iterable[Any], count: int = NEWEST) -> list[Any]:
    """Return the newest items of the longest container."""
    longest = max(filter(is_container, containers), key=len, default=())
    return newest(longest, count)


def _distinct(found: Iterable[Any]) -> list[Any]:
    """Return the containers without repetition, because several instances may share a container."""
    return list({id(one): one for one in found}.values())


def _types_of(found: Iterable[Any]) -> frozenset[int]:
    return frozenset(id(type(one)) for one in found)
