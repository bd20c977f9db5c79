"""Finds objects near the program's roots: module globals, class attributes, locals, and objects just below them.

A forward walk from these roots takes a millisecond or two, regardless of the heap's size, because it does not enter
long containers. It finds most holders without a heap scan.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leakline.probes.heap.arrays import array_types
from leakline.probes.heap.tensor_storages import tensor_types
from leakline.probes.references.attributes import (
    SIZED,
    class_attributes,
    is_exception_class,
    length_of,
)
from leakline.probes.references.class_names import is_class, is_heap_type, module_name, type_name
from leakline.probes.references.program_code import is_user_class, is_user_file, user_modules

# Limits on the objects entered by one walk and on the levels below the roots; a namespace (`__dict__`) also counts as a
# level.
OBJECTS: Final = 3_000
_LEVELS: Final = 7
# Limit on the arrays and tensors that one walk collects.
_ARRAYS: Final = 2_000
# Items of longer containers are not entered, because growth is reported under the name of the container itself.
_SHORT: Final = 64

# Types are compared by address, because a metaclass of the program may define its own hash and equality.
_CONTAINERS: Final = frozenset(
    map(id, (list, dict, tuple, set, frozenset, deque, OrderedDict, defaultdict))
)
_ENTERED: Final = frozenset(map(id, (
    types.CellType, types.MethodType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType,
    types.TracebackType, types.FrameType, functools.partial, functools._lru_cache_wrapper,
)))  # fmt: skip
# A suspended function's name is more informative than the name of the variable that holds the function.
_GENERATORS: Final = frozenset(
    map(id, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType))
)
_PASSED_OVER: Final = frozenset({"weakref", "_weakref", "_weakrefset", "leakline"})


@dataclass(slots=True)
class Near:
    """The result of a walk. It holds objects of the program; drop it before the program continues."""

    named: dict[int, str] = field(default_factory=dict)  # address -> path
    objects: list[Any] = field(
        default_factory=list
    )  # all objects entered, namespaces of the roots first
    instances: dict[type, list[Any]] = field(default_factory=dict)  # of the program's own classes
    classes: dict[int, type] = field(
        default_factory=dict
    )  # classes bound in the program's modules or with an instance in `instances`
    arrays: list[Any] = field(default_factory=list)  # NumPy arrays and tensors, some repeatedly


def look_near(local_names: Mapping[str, Mapping[str, Any]], limit: int = OBJECTS) -> Near:
    """Walk forward from the program's roots and the given locals (by function), entering at most ``limit`` objects.

    Only the values of module globals, class attributes and locals get names here. Objects below these values are named
    by ``ReferrerSearch`` on its way up.
    """
    near = Near()
    roots: list[Any] = []
    for space, names in _spaces(near, local_names):
        for key, value in list(names.items()):
            if type(key) is str and not key.startswith("__"):
                roots.append(value)
                if _can_hold(value):
                    near.named.setdefault(id(value), f"{space}.{key}")
    _walk(near, roots, limit)
    return near


def _spaces(
    near: Near, local_names: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for function, names in local_names.items():
        yield f"{function}.<locals>", names
    for name, module in user_modules():
        namespace = module.__dict__
        near.objects += [module, namespace]
        for one in list(namespace.values()):
            if is_class(type(one)) and is_user_class(one):
                near.classes[id(one)] = one
        yield name, namespace
    for cls in near.classes.values():
        names = class_attributes(cls)
        # The class itself refers to the dictionary behind this proxy.
        near.objects += [cls, *gc.get_referents(names)]
        yield type_name(cls), names


def _walk(near: Near, level: list[Any], limit: int) -> None:
    seen = set(map(id, near.objects))
    enters = _Enters()
    arrays = frozenset(map(id, (*array_types()[:1], *tensor_types())))
    left = limit
    for _ in range(_LEVELS):
        below: list[Any] = []
        for one in level:
            kind = type(one)
            if id(kind) in arrays:
                if len(near.arrays) < _ARRAYS:
                    near.arrays.append(one)
                continue
            known = enters.get(id(kind))
            if not (enters.of(kind) if known is None else known) or id(one) in seen:
                continue
            left -= 1
            if left < 0:
                return
            seen.add(id(one))
            near.objects.append(one)
            if id(kind) in enters.users:
                near.classes.setdefault(id(kind), kind)
                near.instances.setdefault(kind, []).append(one)
            if id(kind) not in enters.sized or length_of(one) <= limit:
                below += _below(one, kind)
        level = below


class _Enters(dict[int, bool]):
    """A cache by type address: True if the walk enters objects of this type.

    ``users`` are the program's own classes, and ``sized`` are subclasses of containers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.users: set[int] = set()
        self.sized: set[int] = set()
        self.update(dict.fromkeys(_CONTAINERS | _ENTERED | {id(types.FunctionType)}, True))

    def of(self, kind: type) -> bool:
        if is_user_class(kind):
            self.users.add(id(kind))
        if issubclass(kind, SIZED):
            self.sized.add(id(kind))
        module = (module_name(kind) or "").partition(".")[0]
        enters = not is_class(kind) and (
            (is_heap_type(kind) and module not in _PASSED_OVER) or is_exception_class(kind)
        )
        self[id(kind)] = enters
        return enters


def _below(one: Any, kind: type) -> list[Any]:
    if kind is types.FunctionType:
        # A function's globals are not entered here: if their module belongs to the program, the module itself is a
        # root.
        if not is_user_file(one.__code__.co_filename):
            return []
        return [x for x in (one.__closure__, one.__defaults__, one.__kwdefaults__) if x]
    if id(kind) in _CONTAINERS and len(one) > _SHORT:
        return []
    return gc.get_referents(one)


def _can_hold(value: Any) -> bool:
    kind = type(value)
    return not (
        is_class(kind) or kind is types.ModuleType or kind is types.FunctionType or value is None
        or kind is str or kind is int or kind is float or kind is bool
        # An object of the program's own classes is named by its class, which identifies it better than a variable does.
        or id(kind) in _GENERATORS or is_user_class(kind)
    )  # fmt: skip
