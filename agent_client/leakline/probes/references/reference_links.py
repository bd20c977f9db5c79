"""Describes references between objects as parts of a path, and the root names at which a path may start."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, Final

from leakline.probes.references.attributes import attributes, is_exception_class
from leakline.probes.references.class_names import is_class, is_heap_type, type_name
from leakline.probes.references.frames import Locals, function_name, no_collection
from leakline.probes.references.program_code import is_user_class

# Types are compared by address, because a metaclass of the program may define its own hash and equality.
_SEQUENCES: Final = frozenset(map(id, (list, tuple, set, frozenset, deque)))
_MAPPINGS: Final = frozenset(map(id, (dict, OrderedDict, defaultdict)))
_GENERATORS: Final = frozenset(
    map(id, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType))
)
# Library classes at which a path may start although they do not belong to the program.
_KNOWN_ROOTS: Final = {
    "threading.Thread": "threading.Thread",
    "threading.Timer": "threading.Timer",
    "_thread._localdummy": "threading.local",
    "logging.handlers.MemoryHandler": "logging.handlers.MemoryHandler",
}
_LONGEST_NAMESPACE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """The path from an object down to the samples.

    ``below`` starts at the object itself. If the object is the namespace of another object, ``inside`` is the path from
    that owner.
    """

    below: str
    inside: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """The way one object holds another: as an item, under a name, or without adding to the path."""

    word: str
    inside: str | None = None
    through_namespace: bool = False
    variables: tuple[str, ...] = ()  # closure variables, if a function holds the cells

    def prepend(self, step: Step) -> Step:
        if self.variables and step.inside is not None:
            index, _, rest = step.inside.partition("|")
            return Step(f".<closure>.{self.variables[int(index)]}{rest}")
        if self.through_namespace and step.inside is not None:
            return Step(self.word + step.inside)
        inside = None if self.inside is None else self.inside + step.below
        return Step(self.word + step.below, inside)


def link_between(above: Any, below: Any) -> Link | None:
    """Return how ``above`` holds ``below``, or None if the reference does not explain why ``below`` is alive."""
    kind = type(above)
    if id(kind) in _MAPPINGS:
        return Link("[*]", _key_of(above, below))
    if kind is tuple and type(below) is types.CellType:
        return Link("", f"{_index_of(above, below)}|")
    if id(kind) in _SEQUENCES:
        return Link("[*]")
    if kind is types.FunctionType:
        return _function_link(above, below)
    if kind is types.ModuleType or is_class(kind):
        return Link("", through_namespace=True)
    if kind is functools._lru_cache_wrapper:
        return Link(".<cache>" if type(below) is dict else ".<cache>[*]")
    if id(kind) in _GENERATORS:
        return Link(_word_of_local(_frame_of(above), below))
    if kind is types.FrameType:
        return _frame_link(above, below)
    if type(below) is types.TracebackType and is_exception_class(kind):
        return Link(".<traceback>")
    return _instance_link(above, below) if is_heap_type(kind) else Link("")


def _key_of(mapping: Any, below: Any) -> str | None:
    """Return ``.name`` if the mapping is a namespace that holds ``below`` under this name, otherwise None."""
    if len(mapping) > _LONGEST_NAMESPACE:
        return None
    for key, value in list(dict.items(mapping)):
        if value is below:
            return f".{key}" if type(key) is str else None
    return None


def _index_of(cells: tuple[Any, ...], below: Any) -> int:
    return next(index for index, cell in enumerate(cells) if cell is below)


def _function_link(function: types.FunctionType, below: Any) -> Link | None:
    if below is function.__closure__:
        return Link("", variables=function.__code__.co_freevars)
    if below is function.__defaults__ or below is function.__kwdefaults__:
        return Link(".<defaults>")
    if below is function.__globals__:
        # Every function refers to its module's globals, and the module itself provides a better name.
        return None
    return Link("", through_namespace=True)


def _instance_link(above: Any, below: Any) -> Link:
    names = attributes(above)
    for name, value in names.items():
        if value is below:
            return Link(f".{name}")
    if type(below) is dict:
        return Link("", through_namespace=True)
    # The reference is inside a C extension and has no name.
    return Link("")


def _frame_link(frame: types.FrameType, below: Any) -> Link:
    if type(below) is types.FrameType:
        # A frame refers to its caller's frame; this reference adds nothing to the path.
        return Link("")
    return Link(f".{frame.f_code.co_qualname}{_word_of_local(frame, below)}")


def _word_of_local(frame: types.FrameType | None, below: Any) -> str:
    if type(below) is types.CellType:
        below = _content_of(below)
    for name, value in Locals(frame).read().items() if frame is not None else ():
        if value is below:
            return f".<locals>.{name}"
    return ".<locals>"


def _content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # The variable is not bound yet or no longer bound.
        return cell


def _frame_of(generator: Any) -> types.FrameType | None:
    kind = type(generator)
    # Prevent a collection, because the generator may be running on another thread.
    with no_collection():
        if kind is types.GeneratorType:
            return generator.gi_frame  # type: ignore[no-any-return]
        if kind is types.CoroutineType:
            return generator.cr_frame  # type: ignore[no-any-return]
        return generator.ag_frame  # type: ignore[no-any-return]


def root_name(one: Any) -> str | None:
    """Return the name for a path that starts at this object, or None if a path cannot start here."""
    kind = type(one)
    if kind is types.ModuleType:
        name = one.__dict__.get("__name__")
        return name if type(name) is str else None
    if is_class(kind):
        return type_name(one)
    if kind is types.FunctionType:
        module = one.__module__
        return f"{module}.{one.__qualname__}" if type(module) is str else str(one.__qualname__)
    if id(kind) in _GENERATORS:
        frame = _frame_of(one)
        return str(one.__qualname__) if frame is None else function_name(frame)
    if kind is functools._lru_cache_wrapper:
        wrapped = attributes(one).get("__wrapped__")
        return root_name(wrapped) if type(wrapped) is types.FunctionType else None
    if is_user_class(kind):
        return type_name(kind)
    return _KNOWN_ROOTS.get(type_name(kind)) if is_heap_type(kind) else None
