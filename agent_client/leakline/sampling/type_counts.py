"""Selects the types to count at every phase end: watched, expected and growing types, and types that tend to pile up.

Thousands of classes can be counted exactly in a fraction of a millisecond; the counts of at most
128 watched, expected and growing types are sent.

This module also decides which growth is news and therefore justifies a heap scan. Growth is news only for a while after
it has begun: a list of past losses, for example, grows in every generation of a healthy run. After a search for
holders, a class is still counted, but its growth justifies further scans only if it becomes faster.

Weak references to instances serve as samples for the search for holders, and to count created and freed instances of
watched classes. The newest instances of a class are at the young end of the heap, where the native module finds them in
well under two milliseconds. Without the native module, a census supplies some instances.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from ..probes.heap.arrays import array_types
from ..probes.heap.census import INSTANCES_OF_A_CLASS
from ..probes.heap.instance_counts import ClassCounts, Rows
from ..probes.heap.tensor_storages import tensor_types
from ..probes.heap.watched_instances import (
    AgeSamples,
    WatchedClasses,
    is_known_to_pile_up,
    known_to_pile_up,
    pick_newest,
    piling_in_census,
)
from ..probes.native_module import native
from ..probes.references.class_names import hides_memory, is_class, is_heap_type, type_name
from ..probes.references.program_code import is_user_class
from ..snapshot import Number

# Number of rises before growth is news: every cache and every lazy import begins with a single
# rise.
AGAIN: Final = 2
# Number of rises for which growth stays news; after that, censuses and a search for holders have
# examined it.
NEWS_FOR: Final = 4
FASTER: Final = 2.0
# With each rise, the fastest rise so far is multiplied by this factor, so that growth from loading
# libraries does not hide a leak of the same type.
FORGET: Final = 0.8


@dataclass(slots=True)
class News:
    """The growth of a number that is read once per generation, such as a count or a length."""

    rises: int = 0
    fastest: float = 0.0
    until: int = NEWS_FOR

    def rose(self, by: float) -> None:
        """Record that the number has risen by ``by`` since the previous generation."""
        self.rises += 1
        if by > FASTER * self.fastest:
            self.until = self.rises + NEWS_FOR
        self.fastest = max(by, FORGET * self.fastest)

    def looked_at(self) -> None:
        """Record that a search for holders has examined this growth."""
        self.until = self.rises

    @property
    def is_news(self) -> bool:
        return AGAIN <= self.rises <= self.until


SENT_TYPES_LIMIT: Final = 128
# Number of generations in which a class must have risen before its holders are searched for.
RISES_BEFORE_HOLDERS: Final = 3
# Minimum rise in instances, unless the class belongs to the program itself.
LIBRARY_RISE_BEFORE_HOLDERS: Final = 64
# Minimum rise in instances for library classes whose instances hold memory.
MEMORY_RISE_BEFORE_HOLDERS: Final = 16
# Minimum rise as a fraction of the count after the first rise: among a thousand arrays, a few dozen
# are always being created and freed.
LIBRARY_PART_BEFORE_HOLDERS: Final = 0.05
LIBRARY_RISES: Final = 6
_TENSOR: Final = "torch.Tensor"
# Library classes whose instances hold memory and usually belong to other objects.
_HOLDS_MEMORY: Final = frozenset({_TENSOR, "torch.nn.parameter.Parameter", "numpy.ndarray"})
# Cache entries are excluded, because the objects that they hold are counted and searched for under
# their own class names.
_NOT_SEARCHED: Final = frozenset({"functools._lru_list_elem"})
FOLLOWED_LIMIT: Final = 32
# A fluctuating count goes up every other generation, so only a new maximum counts as a rise. The
# maximum decays by this fraction of each drop below it, so that a peak while the program loads does
# not hide a leak.
FADES: Final = 0.2
# If a class that only censuses count loses more than this fraction of its gain, its number of rises is reset.
TAKEN_BACK: Final = 0.5
# If a class still rises after a search, its holders are searched for again after this many
# generations.
SEARCH_AGAIN_AFTER: Final = 8
# How many bytes a type must gain between two censuses, and how often in a row, before its largest
# object is searched for.
GROWS_LARGER_BYTES: Final = 1 << 20
GROWS_LARGER_TIMES: Final = 2
# During that growth, the type's count may rise by at most this fraction of the relative rise of its
# bytes: among thousands of strings, a few are always being created and freed.
FEW_MORE: Final = 0.1


@dataclass(slots=True)
class Size:
    """A type's count and bytes at the newest census.

    ``times`` is the number of consecutive censuses in which the bytes rose while the count hardly rose.
    """

    count: int
    bytes: int
    times: int = 0


@dataclass(slots=True)
class Rise:
    """The growth of a class from one generation end to the next."""

    cls: ref[type]
    first: int
    highest: float
    # The count after the first rise, which is attributed to loading the program.
    loaded: float = 0.0
    rises: int = 0
    news: News = field(default_factory=News)
    rises_now: bool = False
    is_static: bool = False
    is_own: bool = False
    holds_memory: bool = False
    # True if the instances hold memory that no size includes, for example behind handles, so that
    # even a few instances matter.
    hides_memory: bool = False
    is_entry: bool = False
    search_at_rise: int = field(init=False)

    def __post_init__(self) -> None:
        self.search_at_rise = self._first_search

    @property
    def _first_search(self) -> int:
        """The number of rises required for the first search.

        Classes counted only by censuses need one more rise, because a census may run at any moment within a generation.
        """
        return RISES_BEFORE_HOLDERS + self.is_static

    def begin_anew(self) -> None:
        """Reset the class to its state after the first rise, so that another search needs several new rises."""
        self.search_at_rise = max(self._first_search, self.search_at_rise - self.rises + 1)
        self.rises = min(self.rises, 1)

    def matters(self) -> bool:
        """Return True if the rise may be a leak.

        This applies to the program's own classes, to classes that hide memory, and to other classes with a large rise,
        except cache entries.
        """
        least = MEMORY_RISE_BEFORE_HOLDERS if self.holds_memory else LIBRARY_RISE_BEFORE_HOLDERS
        enough = max(least, LIBRARY_PART_BEFORE_HOLDERS * self.loaded)
        many = self.highest - self.loaded >= enough
        return self.is_own or self.hides_memory or (many and not self.is_entry)

    def is_worth_a_search(self) -> bool:
        """Return True if the class has risen enough for a search for holders.

        Most library classes must have risen several times, because libraries create many objects while they load.
        """
        few = self.is_own or self.holds_memory or self.hides_memory
        long = few or self.rises >= LIBRARY_RISES
        return long and self.matters()


class TypeGrowth:
    """The growth of class counts during the run, and the choice of names whose counts are sent."""

    def __init__(self) -> None:
        self._counts = ClassCounts()
        self._asked: dict[str, None] = {}
        self._growing: list[str] = []
        # Loaded classes that are known to pile up in training programs.
        self._piling: tuple[str, ...] = ()
        self._rises: dict[str, Rise] = {}
        # The prepared rows for the names whose counts are sent; None after the names have changed.
        self._rows: Rows | None = None
        self._unreported_at_zero: list[str] = []
        # Counts by name of all types in the last census, including static ones.
        self._seen: dict[str, int] = {}
        # Sizes by type name, for types whose instances can grow.
        self._sizes: dict[str, Size] = {}
        self.calibrations = 0

    def ask(self, name: str) -> None:
        """Send the count of this type from now on, even before it grows."""
        if len(self._asked) < SENT_TYPES_LIMIT:
            self._asked[name] = None
            self._rows = None

    def resolve(self, name: str) -> str | None:
        """Return the full name of a class from its bare or partly qualified name, or None for an unknown class."""
        if name in self._seen or self._counts.classes_named([name]):
            return name
        known = {*self._counts.names(), *self._seen}
        ending = [full for full in known if full.endswith(f".{name}")]
        return min(ending, key=lambda full: (len(full), full), default=None)

    def note_sizes(self, rows: Iterable[tuple[str, int, int | None]]) -> None:
        """Record (name, count, bytes) of each type from a complete census."""
        can_grow = _can_grow()
        for name, count, size in rows:
            if size is None or name not in can_grow:
                continue
            known = self._sizes.setdefault(name, Size(count, size))
            few = known.count * FEW_MORE * (size - known.bytes) / max(known.bytes, 1)
            grows = size - known.bytes >= GROWS_LARGER_BYTES and count - known.count <= few
            known.times = known.times + 1 if grows else 0
            known.count, known.bytes = count, size

    def grows_larger(self) -> type | None:
        """Return a type whose instances have grown in enough consecutive censuses, otherwise None."""
        for name, size in self._sizes.items():
            if size.times >= GROWS_LARGER_TIMES:
                return _can_grow().get(name)
        return None

    def searched_largest(self, kind: type) -> None:
        """Reset this type's counter, so that the next search for its largest object needs more growth."""
        self._sizes[type_name(kind)].times = 0

    def references(self) -> dict[int, int]:
        """Return the number of references to every class, by class address, for the start of a sliced census."""
        return self._counts.references()

    def calibrate_between(
        self,
        before: Mapping[int, int],
        counts: Mapping[int, int],
        names: Mapping[str, int],
        *,
        alone: bool,
    ) -> None:
        """Record the counts of a sliced census, by class address (``counts``) and by class name (``names``)."""
        self._note_names(names)
        self._counts.calibrate_between(before, counts, alone=alone)
        self.calibrations += 1

    def calibrate_tracked(self, counts: Mapping[int, int]) -> None:
        """Record the counts of all tracked objects at one point in time, by class address."""
        self._counts.calibrate_tracked(counts)
        self.calibrations += 1

    def calibrate(self, counts: Mapping[type, int]) -> None:
        """Record the exact counts of a census at one point in time."""
        names: dict[str, int] = {}
        for cls, count in counts.items():
            name = type_name(cls)
            names[name] = names.get(name, 0) + count
        self._note_names(names)
        self._counts.calibrate(counts)
        self.calibrations += 1

    def _note_names(self, names: Mapping[str, int]) -> None:
        """Store the counts by name, and record changes of types that only a census counts, for example arrays."""
        for name, count in names.items():
            before = self._seen.get(name, 0)
            # A drop also matters if the type has risen before.
            is_news = count > before or (count < before and name in self._rises)
            cls = _static_class(name) if before and is_news else None
            if cls is not None:
                self._note_rise(cls, before, count)
        self._seen, self._piling, self._rows = dict(names), known_to_pile_up(), None

    def read(self) -> dict[str, Number]:
        """Return ``type.<name>.count`` for the types whose counts are sent."""
        self._counts.doubt()
        if self._rows is None or self._rows.version != self._counts.version:
            self._rows = self._arrange()
        found: dict[str, Number] = {**self._counts.read_rows(self._rows)}
        for key in self._unreported_at_zero:
            if found.get(key) == 0:
                del found[key]
        return found

    def _arrange(self) -> Rows:
        growing = self._growing[: SENT_TYPES_LIMIT - len(self._asked)]
        named = {*self._asked, *growing}
        self._unreported_at_zero = [
            f"type.{name}.count" for name in self._piling if name not in named
        ]
        names = (*self._asked, *growing, *self._piling)
        return self._counts.rows_of(
            {name: f"type.{name}.count" for name in names}, self._known_by_changes
        )

    def read_census(self) -> dict[str, Number]:
        """Return the last census's counts for the same types as `read`.

        They are needed for two reasons: while the census result is alive, each count from `read` is one too high, and
        only censuses count static types.
        """
        names = (*self._asked, *self._growing)[:SENT_TYPES_LIMIT]
        counts = {f"type.{name}.count": self._seen[name] for name in names if name in self._seen}
        return {**piling_in_census(self._seen), **counts}

    def count_of(self, address: int) -> int | None:
        """Return the number of live instances of the class at this address, or None if the count is not exact."""
        self._counts.doubt()
        return self._counts.count_of(address)

    def close_generation(self) -> bool:
        """Compare counts with the previous generation end.

        Return True if any class's rise is worth a deeper scan.
        """
        if not self.calibrations:
            return False
        for rise in self._rises.values():
            # Classes that only a census counts are compared from one census to the next.
            rise.rises_now = rise.rises_now and rise.is_static
        risen = self._risen()
        news = [self._note_rise(cls, before, now) for cls, before, now in risen]
        self._choose()
        return any(news)

    def _risen(self) -> list[tuple[type, int, int]]:
        """Return (class, count before, count now) for each class whose count has risen.

        If several classes have the same name, as after a reload, only the class with the largest rise is returned.
        """
        most: dict[str, tuple[type, int, int]] = {}
        for change in self._counts.changes():
            cls, before, now = change
            if now > before and not _is_ours(cls):
                name = type_name(cls)
                known = most.get(name)
                if known is None or now - before > known[2] - known[1]:
                    most[name] = change
        return list(most.values())

    def is_in_doubt(self) -> bool:
        """Return True if a requested class has no exact count because modules were loaded since the last count."""
        return self._counts.doubt() and self._counts.doubts_any(self._asked)

    def counts_exactly(self) -> bool:
        """Return False if a recount would make the count of a requested class exact."""
        self._counts.doubt()
        return self._counts.counts_exactly(self._asked)

    def exact_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of live instances by name, for exactly counted classes."""
        self._counts.doubt()
        return self._counts.read_names(names)

    def reported_counts(self) -> dict[str, int]:
        """Return the number of live instances by name, for requested and growing classes and tensors.

        The counts of growing classes may be off by a constant.
        """
        names = (_TENSOR, *self._asked, *self._growing)
        self._counts.doubt()
        return self._counts.read_names(names, self._known_by_changes)

    @property
    def _known_by_changes(self) -> frozenset[str]:
        """Names of growing classes that nobody requested: only changes in their counts must be exact."""
        return frozenset(self._growing) - self._asked.keys()

    def classes_of(self, name: str) -> list[type]:
        """Return the classes with this full or partial name.

        The lookup must be cheap: while the budget is too small, it is repeated.
        """
        full = self.resolve(name) or name
        static = _static_class(full)
        return self._counts.classes_named([full]) or ([] if static is None else [static])

    def to_follow(self) -> list[type]:
        """Return the classes whose instances are followed: watched, expected and the program's own growing classes."""
        names = [*self._asked, *self._growing]
        own = [name for name in names if name in self._asked or self._rises[name].is_own]
        return self._counts.classes_named(own[:FOLLOWED_LIMIT])

    def to_search(self, limit: int) -> list[type]:
        """Return the classes for the next search for holders: the program's own first, then the fastest growing."""
        due = [
            rise
            for rise in self._rises.values()
            # If the count has stopped rising, the class was loaded late and does not leak.
            if rise.rises_now and rise.rises >= rise.search_at_rise and rise.is_worth_a_search()
        ]
        due.sort(key=lambda rise: rise.first - rise.highest)
        classes = [cls for rise in due if (cls := rise.cls()) is not None]
        # A leaked agent keeps hundreds of parameters alive, and the agent's holder explains all of
        # them.
        classes.sort(key=lambda cls: not is_user_class(cls))
        return classes[:limit]

    def searched(self, classes: Iterable[type]) -> None:
        for cls in classes:
            rise = self._rises[type_name(cls)]
            rise.search_at_rise = rise.rises + SEARCH_AGAIN_AFTER
            rise.rises_now = False
            rise.news.looked_at()

    def _note_rise(self, cls: type, before: int, count: int) -> bool:
        """Record a count that changed from ``before``. Return True if the class is worth a deeper scan."""
        name = type_name(cls)
        rise = self._rises.get(name)
        if rise is None:
            rise = self._rises[name] = Rise(
                ref(cls), before, before, is_static=not is_heap_type(cls), is_own=is_user_class(cls),
                holds_memory=name in _HOLDS_MEMORY, is_entry=name in _NOT_SEARCHED,
                hides_memory=hides_memory(cls) or is_known_to_pile_up(name),
            )  # fmt: skip
        if rise.cls() is not cls:
            # Use the newest class with this name, because an older class may be deleted.
            rise.cls, rise.highest, rise.loaded = ref(cls), before, min(rise.loaded, before)
        beyond = count - rise.highest
        if beyond <= 0:
            if rise.is_static and -beyond > TAKEN_BACK * (rise.highest - rise.loaded):
                rise.begin_anew()
            rise.highest, rise.rises_now = rise.highest + FADES * beyond, False
            return False
        if not rise.rises:
            rise.loaded = count
        rise.highest, rise.rises, rise.rises_now = count, rise.rises + 1, True
        if rise.matters():
            rise.news.rose(beyond)
        return rise.news.is_news

    def _choose(self) -> None:
        room = SENT_TYPES_LIMIT - len(self._asked)
        growing = [
            (rise.rises, rise.highest - rise.first, name)
            for name, rise in self._rises.items()
            if rise.highest > rise.first and name not in self._asked
        ]
        growing.sort(reverse=True)
        chosen = [name for _, _, name in growing[:room]]
        if chosen != self._growing:
            self._growing, self._rows = chosen, None


def _can_grow() -> dict[str, type]:
    """Return the types whose instances can grow one by one, such as lists and tensors, by name."""
    kinds = (*tensor_types(), *array_types(), str, bytes, bytearray, list, dict, set)
    return {type_name(kind): kind for kind in kinds}


def _static_class(name: str) -> type | None:
    """Return the static class with this full name, or None if its instances do not matter for leaks."""
    module, _, qualified = name.rpartition(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(qualified) if module else None
    if found is None or not is_class(type(found)) or is_heap_type(found):
        return None
    return found if module not in sys.stdlib_module_names or hides_memory(found) else None


def _is_ours(cls: type) -> bool:
    """Return True for our own classes, which never count as growing.

    If requested by name, they are counted like any other class.
    """
    return type_name(cls).startswith("leakline.")


# Number of the newest instances of each class that a census records without the native module.
_NEWEST: Final = 8


class Following:
    """Instances of watched and growing classes, updated by the training thread at generation ends and censuses."""

    def __init__(self, types: TypeGrowth) -> None:
        self._types = types
        self._samples, self._watched = AgeSamples(), WatchedClasses()

    def watch(self, name: str) -> None:
        """Count created and freed instances of this class from now on."""
        self._watched.watch(name)

    def at_generation_end(self) -> dict[str, Number]:
        """Return ``type.<name>.created`` and ``.freed`` for watched classes."""
        if native() is not None:
            newest = pick_newest(self._types.to_follow())
            self._samples.note(newest)
            self._watched.note(newest)
        return self._watched.read(self._types.exact_counts(self._watched.names))

    def at_census(self, instances: Mapping[type, Sequence[object]]) -> None:
        """Record the newest instances of classes that the census lists completely.

        With the native module, this does nothing.
        """
        if native() is None:
            whole = {c: ones for c, ones in instances.items() if len(ones) < INSTANCES_OF_A_CLASS}
            self._watched.note({cls: ones[-_NEWEST:] for cls, ones in whole.items()})

    def instances(self, classes: Sequence[type]) -> dict[type, list[ref[Any]]]:
        """Return known instances of each class, old and new, as starting points for a search for holders."""
        known = {cls: self._samples.instances(cls) for cls in classes}
        return {cls: ones for cls, ones in known.items() if ones}
