"""Plain containers and what is in them: exact types of the standard library only."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from itertools import islice
from typing import Any, Final

NEWEST: Final = 8


def is_container(one: object) -> bool:
    """A list, dict, set or deque, or the two dictionaries of ``collections``; no subclass of the program's."""
    kind = type(one)
    return (
        kind is list
        or kind is dict
        or kind is set
        or kind is deque
        or kind is defaultdict
        or kind is OrderedDict
    )


def items(container: Any) -> list[Any]:
    """The items, of dictionaries the values; one call into C, so that no other thread can change it meanwhile."""
    return list(_values(container))


def newest(container: Any, count: int = NEWEST) -> list[Any]:
    """The last items that were added, as far as the container keeps an order."""
    if type(container) is set:
        return list(islice(container, count))
    return list(islice(reversed(_values(container)), count))


def _values(container: Any) -> Any:
    kind = type(container)
    if kind is OrderedDict or kind is dict or kind is defaultdict:
        return kind.values(container)
    return container
