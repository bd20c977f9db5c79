"""The objects that a census finds although the collector does not list them, each once.

Such an object turns up once for every reference to it, and most have one: whoever has one holder is met once, and
need not be remembered by address. References are counted in C for a whole list at once, in a fraction of the time that
a dictionary of addresses takes.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import compress, repeat
from operator import eq, ne
from typing import Any, Final

from leakline.probes.heap.instance_counts import references_are_counted

# The collector takes these off its list when they hold nothing but atoms.
UNTRACKABLE: Final = frozenset({tuple, dict})

_consume: Final = deque[Any](maxlen=0).extend


class Untracked:
    """Lists by type of what was added. Drop it before returning to the program, whose objects it holds.

    ``kinds`` gives the types of objects, as keys that are safe to hash.
    """

    def __init__(self, kinds: Callable[[Iterable[object]], Iterable[type]]) -> None:
        self._kinds = kinds
        self._by_kind: defaultdict[type, list[Any]] = defaultdict(list)
        self._one_holder = references_with_one_holder()
        # Addresses of those with several references, which are met again. What an array uses the memory of is among
        # them when something else led us there as well: the array is one holder, that the other.
        self.shared: set[int] = set()

    def add(self, found: list[Any]) -> list[Any]:
        """Keep those that are new, and return the containers among them.

        ``found`` has an object once for each reference that we came along, and nothing else of ours may refer to it.
        """
        new = self._new(found)
        kinds = list(self._kinds(new))
        present = set(kinds)
        if len(present) == 1:
            self._by_kind[kinds[0]] += new
        else:
            _consume(map(list.append, map(self._by_kind.__getitem__, kinds), new))
        if UNTRACKABLE.isdisjoint(present):
            return []
        return list(compress(new, map(UNTRACKABLE.__contains__, kinds)))

    def of(self, kind: type) -> list[Any]:
        """Those of exactly this type, in the order they were added."""
        return self._by_kind.get(kind, [])

    def counts(self) -> dict[type, int]:
        """How many there are, by type."""
        return {kind: len(ones) for kind, ones in self._by_kind.items()}

    def settle(self) -> None:
        """Drop second entries, once everything was added.

        What is met twice by way of one holder was met first with that holder, then with us as a second: a local
        variable by its cell and as a local, or what another thread has moved to another container meanwhile. There
        are few, and all have more references than those met once.
        """
        for kind, ones in self._by_kind.items():
            references = _references(ones)
            if references.count(self._one_holder) == len(ones):
                continue
            several = compress(ones, map(ne, references, repeat(self._one_holder)))
            addresses = list(map(id, several))
            if len(set(addresses)) < len(addresses):
                self._by_kind[kind] = list(dict(zip(map(id, ones), ones, strict=True)).values())

    def _new(self, found: list[Any]) -> list[Any]:
        references = _references(found)
        if references.count(self._one_holder) == len(found):
            return found
        several = list(compress(found, map(ne, references, repeat(self._one_holder))))
        by_address = {
            address: one
            for address, one in zip(map(id, several), several, strict=True)
            if address not in self.shared
        }
        self.shared.update(by_address)
        new = list(compress(found, map(eq, references, repeat(self._one_holder))))
        new.extend(by_address.values())
        return new


def references_with_one_holder() -> int:
    """What is read of an object in a list of ours that one container of the program refers to, too.

    Never reached where the interpreter counts references per thread: then every object is remembered.
    """
    if not references_are_counted():
        return -1
    holder = [bytearray()]
    return _references(gc.get_referents(holder))[0]


def _references(found: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, found))
