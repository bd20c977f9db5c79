"""Cyclic garbage: how much waits for the collector, by type, without letting it run. By the native module alone.

With the collector switched off, or far from its next full run, objects that only refer to each other stay. They are
neither live nor kept by the allocator, and no holder leads to them: a figure of their own. What is looked at are the
newest objects, as many as fit the time; cycles that reach into older ones are missed, and nothing alive is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leakline.probes.heap.arrays import array_types
from leakline.probes.native_module import native
from leakline.probes.references.class_names import type_name
from leakline.snapshot import CYCLIC_GARBAGE, Holder, Number

TYPES_TOLD: Final = 16
# Fewer wait at any time in any program.
OBJECTS_TOLD: Final = 1_000
# Before the first look has told: measured 75 to 380.
NANOSECONDS_PER_OBJECT: Final = 300.0
# Less is not worth the mapping of our own memory.
OBJECTS_AT_LEAST: Final = 1_000
OBJECTS_AT_MOST: Final = 400_000
# A look that finds this much more than any before it names the types; others would say the same again.
_MORE: Final = 1.1
# Types with less than this share of the objects say nothing of where they come from.
_PART: Final = 0.02
_FORGET: Final = 0.8
# A look that is given up tells nothing, so it is planned to end before the time does.
_AIM: Final = 0.8
# What a look that was given up must have cost at least.
_DEARER: Final = 1.5
_TESTED: Final = 8
_TEST_OBJECTS: Final = 512
_TEST_NANOSECONDS: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class GarbageResult:
    """What one look found. ``types`` rows are (name, objects, bytes they keep), most objects first.

    ``is_whole``: all objects that the collector tracks were looked at, not only the newest.
    """

    looked_at: int
    is_whole: bool
    objects: int
    bytes: int
    seconds: float
    types: tuple[tuple[str, int, int], ...]

    def samples(self) -> dict[str, Number]:
        """``python.garbage_objects`` and ``.garbage_bytes``; ``.garbage_looked_at``, of how many objects, and whether
        those were all (``.garbage_is_whole``: 0 or 1).
        """
        return {
            "python.garbage_objects": self.objects,
            "python.garbage_bytes": self.bytes,
            "python.garbage_looked_at": self.looked_at,
            "python.garbage_is_whole": int(self.is_whole),
        }

    def holders(self, sequence: int) -> tuple[Holder, ...]:
        """The most frequent types as held by nothing but each other."""
        return tuple(
            Holder(sequence, name, CYCLIC_GARBAGE, count, size // count)
            for name, count, size in self.types
        )


class GarbageProbe:
    """Looks at as many objects as its own speed allows in the time. ``find`` gives the native module: for tests."""

    def __init__(self, find: Callable[[], Any | None] = native) -> None:
        self._find = find
        self._trusted: bool | None = None
        self._nanoseconds_per_object = NANOSECONDS_PER_OBJECT
        self._most = 0

    def read(self, limit_seconds: float) -> GarbageResult | None:
        """One look of at most about ``limit_seconds`` of CPU time; None when it cannot tell in that.

        ``types`` is filled when there is more garbage than at any look before.
        """
        module = self._find()
        if module is None or self._trusted is False:
            return None
        if self._trusted is None:
            self._trusted = proves_itself(module)
            return self.read(limit_seconds)
        nanoseconds = limit_seconds * 1e9
        fitting = int(_AIM * nanoseconds / self._nanoseconds_per_object)
        if fitting < OBJECTS_AT_LEAST:
            # One stall of the machine must not end this for good.
            self._nanoseconds_per_object *= _FORGET
            return None
        arrays = next(iter(array_types()), None)
        found = module.garbage(min(fitting, OBJECTS_AT_MOST), int(nanoseconds), TYPES_TOLD, arrays)
        if found is None:
            self._nanoseconds_per_object *= _DEARER
            return None
        looked_at, is_whole, objects, size, taken, rows = found
        self._nanoseconds_per_object = (
            self._nanoseconds_per_object + taken / max(1, looked_at)
        ) / 2
        told = objects >= max(OBJECTS_TOLD, self._most * _MORE)
        if told:
            self._most = objects
        if not told:
            rows = ()
        types = tuple(
            (type_name(cls), count, held) for cls, count, held in rows if count >= _PART * objects
        )
        return GarbageResult(looked_at, is_whole, objects, size, taken / 1e9, types)


class _Cycle:
    """An object that holds itself."""

    __slots__ = ("__weakref__", "me")

    def __init__(self) -> None:
        self.me: _Cycle | None = self


def proves_itself(module: Any) -> bool:
    """Whether the module finds what we plant, and not while somebody holds it. A collection may run in between."""
    return any(_finds_what_is_planted(module) for _ in range(3))


def _finds_what_is_planted(module: Any) -> bool:
    planted = [_Cycle() for _ in range(_TESTED)]
    ways_back = [weakref.ref(one) for one in planted]
    while_held = _planted_found(module)
    planted.clear()
    afterwards = _planted_found(module)
    for way_back in ways_back:
        one = way_back()
        if one is not None:
            one.me = None
    return (while_held, afterwards) == (0, _TESTED)


def _planted_found(module: Any) -> int:
    found = module.garbage(_TEST_OBJECTS, _TEST_NANOSECONDS, _TEST_OBJECTS)
    rows = () if found is None else found[5]
    return sum(count for cls, count, _ in rows if cls is _Cycle)
