"""Containers that grow, by the name the program gives them.

They are found by naming forward from the program's own roots: module globals, attributes of its classes, locals of
the functions that run on the calling thread, what its functions close over and cache, and attributes of instances
of its classes, which a census hands over or, without one, a walk from the roots. Only paths are kept. A list cannot
be referred to weakly, so every reading walks its path again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import ref

from leakline.probes.heap.marginal_size import marginal_bytes
from leakline.probes.references.attributes import (
    attributes,
    class_attributes,
    is_plain_attribute,
    values_of,
)
from leakline.probes.references.class_names import type_name
from leakline.probes.references.frames import Locals, locals_by_function
from leakline.probes.references.program_code import is_user_file, user_modules
from leakline.probes.references.roots import Near, look_near
from leakline.snapshot import Number

from .references.attributes import NEWEST, is_container, items, newest
from .tracked_containers import TrackedContainer

__all__ = ["ContainerWatch", "TrackedContainer"]

WATCHED_LIMIT: Final = 256
# Instances whose attributes one reading looks at, in all, and of one class.
_INSTANCES_READ: Final = 4_000
_INSTANCES_OF_A_CLASS: Final = 1_000
# Characters, as the server takes them with what stands around.
_PATH_LIMIT: Final = 480
# Attributes are learnt from this many instances of a class.
_INSTANCES_ASKED: Final = 4
# Functions of one name whose closures are read: each call of the function around them makes one.
_FUNCTIONS_OF_A_NAME: Final = 64
# A container no longer than this may hold the containers that grow: `history["loss"]`.
_SHORT: Final = 64
# Containers named as holders that are read although they do not grow.
_HOLDERS_LIMIT: Final = 32
# Objects looked at to size the items of one container.
_OBJECTS_VISITED: Final = 2_000

# What a path leads to now: containers, or None when that cannot be determined.
Frames = Mapping[str, Locals]
Resolve = Callable[[Frames], Iterable[Any] | None]


def _always() -> bool:
    return True


class _Place(NamedTuple):
    """A path, how to get there, how many instances that looks at, and whether those are all there are now."""

    path: str
    resolve: Resolve
    instances: int = 1
    is_complete: Callable[[], bool] = _always


@dataclass(slots=True)
class _Watched:
    """A place that is read. ``inside`` means the containers in the container: ``path[*]``."""

    path: str
    place: _Place
    inside: bool
    longest: int = 0
    has_grown: bool = False
    # A search for holders has named it: its length says whether it holds more and more.
    is_holder: bool = False
    # What one more item adds, the types of the items sampled (by address), and the length at that time.
    bytes_each: int | None = None
    item_types: frozenset[int] = frozenset()
    sized_at: int = 0
    # The number of items at the last reading, and their bytes.
    items_read: int = 0
    items_bytes: float = 0.0

    def size_of(self, containers: Sequence[Any], length: int) -> int | None:
        """Return the bytes with the items: those added since the last reading are as large as the newest."""
        # A list of tensors may take plain numbers later.
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
        """Measure what one more item adds, by the newest."""
        if sampled := _newest(containers):
            self.bytes_each = marginal_bytes(sampled, objects_visited=_OBJECTS_VISITED)
            self.item_types |= _types_of(sampled)
            self.sized_at = self.longest

    def containers(self, frames: Frames) -> list[Any] | None:
        found = self.place.resolve(frames)
        if found is None:
            return None
        ones = [one for one in found if is_container(one) or _is_cache(one)]
        if not self.inside:
            return ones
        plain = [one for one in ones if is_container(one)]
        if any(len(one) > _SHORT for one in plain):
            return None
        return [item for one in plain for item in items(one) if is_container(item)]


class ContainerWatch:
    """Lengths of the program's own containers: ``find`` looks for them, ``read`` reports those that have grown.

    ``count_of`` gives the exact number of instances of a class now, by its address, if known
    (``ClassCounts.count_of``). Attributes are summed over instances: without it a sum misses those made since the last
    ``find``, with it such a sum is absent.
    """

    def __init__(self, count_of: Callable[[int], int | None] | None = None) -> None:
        self._count_of = count_of
        self._watched: dict[str, _Watched] = {}
        # Paths that searches for holders have named, the newest last.
        self._holders: dict[str, None] = {}

    def note_holders(self, paths: Iterable[str]) -> None:
        """Read the containers on these paths of holders from now on, whether they grow or not."""
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
    ) -> None:
        """Look again for containers, at most ``WATCHED_LIMIT``: those that grew before, then the longest.

        ``frame`` is where the calling thread stands (here, if left out). ``instances`` are live objects by exact
        class, from ``take_census(on_instances=...)``; of them, only weak references are kept. Without them, those
        that the roots lead to are taken: two milliseconds.
        """
        frames = locals_by_function(frame or sys._getframe(1))
        near = look_near({name: variables.read() for name, variables in frames.items()})
        found: dict[str, _Watched] = {}
        for place in self._places(frames, near, instances):
            self._consider(found, _Watched(place.path, place, inside=False), frames)
            self._consider(found, _Watched(f"{place.path}[*]", place, inside=True), frames)
        if instances is None:
            # Nobody looked at instances this time: what was known of them stays.
            found = self._watched | found
        for one in found.values():
            one.is_holder = one.path in self._holders
        order = sorted(
            found.values(), key=lambda one: (not (one.has_grown or one.is_holder), -one.longest)
        )
        self._watched = {one.path: one for one in order[:WATCHED_LIMIT]}
        for watched in self._watched.values():
            # Again only when it has doubled.
            if watched.has_grown and watched.longest >= 2 * watched.sized_at:
                watched.sample(watched.containers(frames) or ())

    def read(self, frame: FrameType | None = None) -> dict[str, Number]:
        """``container.<path>.length`` and ``.bytes`` of each container that has ever been longer than at first sight,
        and the length of those that were named as holders.

        Absent while the path leads nowhere, or to instances that are not all known.
        """
        frames = locals_by_function(frame or sys._getframe(1))
        samples: dict[str, Number] = {}
        left = _INSTANCES_READ
        for watched in self._watched.values():
            left -= watched.place.instances
            if left < 0:
                continue
            # Others by now, nobody knows where: a part of the sum would look like a fall.
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
        return samples

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
            # __slots__ without __weakref__.
            return
        half = _INSTANCES_ASKED // 2
        asked = ones if len(ones) <= _INSTANCES_ASKED else [*ones[:half], *ones[-half:]]
        names = {name: None for one in asked for name in _container_names(attributes(one))}
        is_complete = _are_all(id(cls), weak, self._count_of, are_counted)
        for name in filter(is_plain_attribute(cls), names):
            path = f"{type_name(cls)}.{name}"
            yield _Place(path, _of_instances(weak, name), len(weak), is_complete)


def _containers_on(path: str) -> list[str]:
    """Return the containers that the path of a holder goes through: ``a.b`` and ``a.b[*]`` of ``a.b[*][*]``."""
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
        # Without a census nobody has counted them: those that the roots lead to are the ones we speak of.
        return count == len(_alive(instances)) or (count is None and not are_counted)

    return check


def _of_functions(near: Near) -> Iterator[_Place]:
    """What functions near the roots close over, and their caches; of functions of the same name together."""
    closures: dict[tuple[str, int], list[ref[Any]]] = {}
    seen: set[int] = set()
    for one in near.objects:
        kind = type(one)
        if kind is FunctionType and is_user_file(one.__code__.co_filename):
            for index, content in enumerate(_contents(one)):
                # Two functions may close over the same.
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
    """What each variable of the closure is bound to, None where it is not."""
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
        # Of exactly this type it is C code that only counts.
        return int(functools._lru_cache_wrapper.cache_info(one).currsize)
    return len(one)


def _alive(instances: list[ref[Any]]) -> list[Any]:
    return [one for one in (weak() for weak in instances) if one is not None]


def _newest(containers: Iterable[Any], count: int = NEWEST) -> list[Any]:
    """Return the last items of the longest container."""
    longest = max(filter(is_container, containers), key=len, default=())
    return newest(longest, count)


def _types_of(found: Iterable[Any]) -> frozenset[int]:
    return frozenset(id(type(one)) for one in found)
