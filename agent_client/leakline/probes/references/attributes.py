"""Reads attributes of the program's objects and items of its containers without running the program's code.

Neither properties nor ``__getattr__`` are called. Containers must have exact types of the standard library; subclasses
are not read.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

NEWEST: Final = 8
SIZED: Final[tuple[Any, ...]] = (list, dict, tuple, set, frozenset, deque)


def is_container(one: object) -> bool:
    """Return True for a list, dict, set, deque, defaultdict or OrderedDict, but not for an instance of a subclass."""
    kind = type(one)
    return (
        kind is list
        or kind is dict
        or kind is set
        or kind is deque
        or kind is defaultdict
        or kind is OrderedDict
    )


def length_of(one: object) -> int:
    """Return the number of items of a container of the standard library or of a subclass, otherwise 0."""
    kind = type(one)
    if not issubclass(kind, SIZED):
        return 0
    return int(next(base.__len__(one) for base in SIZED if issubclass(kind, base)))


def items(container: Any) -> list[Any]:
    """Return the items, or the values of a dictionary, in one C call that no other thread can interrupt."""
    return list(_values(container))


def newest(container: Any, count: int = NEWEST) -> list[Any]:
    """Return the newest items, newest first; for a set, which has no order, return arbitrary items."""
    if type(container) is set:
        return list(islice(container, count))
    return list(islice(reversed(_values(container)), count))


def _values(container: Any) -> Any:
    kind = type(container)
    if kind is OrderedDict or kind is dict or kind is defaultdict:
        return kind.values(container)
    return container


_class_dict: Final[Any] = type.__dict__["__dict__"].__get__
_mro_of: Final[Any] = type.__dict__["__mro__"].__get__


def class_attributes(cls: type) -> Mapping[str, Any]:
    """Return the class's own attributes, without inherited attributes."""
    return _class_dict(cls)  # type: ignore[no-any-return]


def defines(cls: type, *names: str) -> bool:
    """Return True if the class or its bases define all these attributes."""
    defined = set().union(*map(class_attributes, _mro_of(cls)))
    return defined.issuperset(names)


def definition(cls: type, name: str) -> Any:
    """Return an attribute as the class or its nearest base defines it, or None."""
    found = (class_attributes(base) for base in _mro_of(cls))
    return next((known[name] for known in found if name in known), None)


def is_exception_class(cls: type) -> bool:
    """Return True if instances of the class are exceptions, which may hold a traceback."""
    return any(base is BaseException for base in _mro_of(cls))


def attributes(one: object) -> dict[str, Any]:
    """Return the attributes of an instance by name.

    Python creates the instance's ``__dict__`` for this call, so use the function only for a few objects.
    """
    found: dict[str, Any] = {}
    for base in _mro_of(type(one)):
        names = class_attributes(base)
        own = names.get("__dict__")
        # A class that was made from the namespace of another class has descriptors that only fit the other class.
        if type(own) is GetSetDescriptorType and own.__objclass__ is base:
            found.update(own.__get__(one))
        for name, descriptor in names.items():
            if type(descriptor) is MemberDescriptorType and descriptor.__objclass__ is base:
                try:
                    found[name] = descriptor.__get__(one)
                except AttributeError:
                    # No value is assigned to the slot.
                    continue
    return found


def values_of(instances: Iterable[object], name: str) -> Iterator[Any]:
    """Yield one attribute of many instances without creating a ``__dict__``.

    Instances without the attribute are skipped.
    """
    for one in instances:
        try:
            yield object.__getattribute__(one, name)
        except AttributeError:
            continue


def is_plain_attribute(cls: type) -> Callable[[str], bool]:
    """Return a predicate for attribute names of ``cls``.

    The predicate is True if reading the attribute from an instance runs no code of the program.
    """

    def check(name: str) -> bool:
        for base in _mro_of(cls):
            names = class_attributes(base)
            if name in names:
                return type(names[name]) is MemberDescriptorType or is_container(names[name])
        return True

    return check
