"""Counts instances exactly, through references to their classes and without visiting any instance.

Every instance of a class defined by a ``class`` statement holds one reference to the class, so the change of
``sys.getrefcount(cls)`` since a census is the change in live instances. Annotations, registries and subclasses also
hold references. Unchanged, they are a constant offset; if they change, the class is inexact and is left out until a
later census agrees with its count again. Modules loaded after a census may add hundreds of such references: every class
whose count has changed is then in doubt, and is left out until it is counted again. Static types (``list``,
``numpy.ndarray``) are counted only by censuses. Without the interpreter lock, all classes are counted only by censuses,
because references are then counted per thread, and some are not counted at all.

`Untracked` holds the objects of a census that are not on the collector's list, each object once. A census finds such an
object once for every reference to it. Most of these objects have a single holder, so their addresses need not be
remembered: counting the references of an entire list in C is much faster than a dictionary of addresses.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import compress, repeat
from operator import call, eq, is_, ne, sub
from typing import Any, Final
from weakref import ref

from leakline.probes.native_module import native
from leakline.probes.references.class_names import (
    hashes_plainly,
    is_collectable,
    is_heap_type,
    type_name,
)
from leakline.probes.references.program_code import all_classes

# A count that drifts by at most this much between two censuses is still exact: one more subclass or annotation does not
# matter if there are many instances.
_TOLERATED_DRIFT: Final = 2
_TOLERATED_SHARE: Final = 0.01


def references_are_counted() -> bool:
    """Return True if every reference to a class is counted immediately, which requires the interpreter lock."""
    return getattr(sys, "_is_gil_enabled", lambda: True)() is True


def references_to(classes: list[ref[type]]) -> list[int]:
    """Return the number of references to each class.

    Each number includes a constant number of our own references. For a class that no longer exists, it is 0 or
    arbitrary.
    """
    module = native()
    if module is not None:
        found: list[int] = module.reference_counts(classes)
        return found
    alive = list(map(call, classes))
    return list(map(sys.getrefcount, alive))


@dataclass(frozen=True, slots=True)
class Rows:
    """A few classes prepared for frequent counting: their keys in the result, weak references, and offsets."""

    version: int
    keys: list[str]
    refs: list[ref[type]]
    offsets: list[int]


class ClassCounts:
    """Instance counts of heap classes, calibrated by censuses and read in a fraction of a millisecond.

    The object holds weak references to classes and no references to their instances. Results may have classes as keys:
    drop such results before the next calibration.
    """

    def __init__(self) -> None:
        self._refs: list[ref[type]] = []
        self._position: dict[int, int] = {}
        self._offsets: list[int] = []
        self._by_name: dict[str, list[int]] = {}
        self._inexact: set[int] = set()
        # Known classes that no census has counted yet.
        self._uncounted: set[int] = set()
        # Classes counted while instances were created and freed: the count is off by a constant, but its changes are
        # exact.
        self._approximate: set[int] = set()
        # Classes whose instances the collector does not track.
        self._untracked: set[int] = set()
        # Classes whose number of references changed while modules were loaded: the change may come from instances or
        # from names in these modules.
        self._doubted: set[int] = set()
        # Number of loaded modules at the last check.
        self._modules = len(sys.modules)
        # Instance counts at the last call of `changes`.
        self._last: list[int] = []
        # Rows with a different version must be prepared again.
        self.version = 0

    def doubt(self) -> bool:
        """Mark changed counts as doubtful if modules were loaded since the last call.

        The result is True if any count is in doubt. The call costs nothing if no module was loaded. In torch, the
        imports of the first optimizer step alone add 776 references to ``torch.Tensor``.
        """
        loaded = len(sys.modules)
        if loaded != self._modules:
            self._modules = loaded
            moved = set(compress(range(len(self._refs)), map(ne, self._last, self._counts())))
            moved -= self._uncounted
            if not moved <= self._doubted:
                self._doubted |= moved
                self.version += 1
        return bool(self._doubted)

    def doubts_any(self, names: Iterable[str]) -> bool:
        """Return True if a class with one of these names is in doubt."""
        doubted = self._doubted
        return bool(doubted) and any(
            at in doubted for name in names for at in self._by_name.get(name, ())
        )

    def references(self) -> dict[int, int]:
        """Return the number of references to every class, by class address. Call this method before a sliced census."""
        self.doubt()
        self.version += 1
        self._forget_dead_classes()
        self._register(all_classes())
        return dict(zip(self._position, references_to(self._refs), strict=True))

    def calibrate_between(
        self, before: Mapping[int, int], census_counts: Mapping[int, int], *, alone: bool
    ) -> None:
        """Use a sliced census to calibrate classes without an exact count.

        ``before`` is the result of `references` when the census began, and ``census_counts`` has class addresses as
        keys. Instances may have been created and freed during the census, even in equal numbers. Exact counts are
        therefore not changed, and a new class is counted approximately from now on. A new class is counted exactly only
        if the program was stopped (``alone``) and the class's number of references is unchanged.
        """
        self.doubt()
        self.version += 1
        self._forget_dead_classes()
        new = self._uncounted | self._approximate | self._doubted
        for (key, position), references in zip(
            list(self._position.items()), references_to(self._refs), strict=True
        ):
            if position not in new or key not in before:
                continue
            offset = (before[key] + references) // 2 - census_counts.get(key, 0)
            if alone and before[key] == references:
                self._approximate.discard(position)
                self._start_at(position, references, offset)
            elif position in self._uncounted or position in self._doubted:
                self._approximate.add(position)
                self._start_at(position, references, offset)

    def _start_at(self, position: int, references: int, offset: int) -> None:
        """Set a class's offset without an artificial change in the next result of `changes`.

        A class that was not counted yet starts with the current count; a class in doubt is compared with its last exact
        count; a class that was counted approximately continues without a jump.
        """
        before, self._offsets[position] = self._offsets[position], offset
        if position in self._doubted:
            self._doubted.discard(position)
        elif position in self._uncounted:
            self._uncounted.discard(position)
            self._last[position] = references - offset
        else:
            self._last[position] += before - offset

    def calibrate_tracked(self, tracked_counts: Mapping[int, int]) -> None:
        """Calibrate with the counts of all tracked objects at one point in time, by class address.

        Classes with untracked instances are left unchanged.
        """
        self.doubt()
        self.version += 1
        self._forget_dead_classes()
        self._register(all_classes())
        new = self._uncounted | self._approximate | (self._doubted - self._inexact)
        for (key, position), references in zip(
            list(self._position.items()), references_to(self._refs), strict=True
        ):
            if position in self._untracked:
                continue
            count = tracked_counts.get(key, 0)
            if position in new:
                self._approximate.discard(position)
                self._start_at(position, references, references - count)
            else:
                if position in self._inexact:
                    self._last[position] = count
                self._judge_one(position, references - self._offsets[position], count)
                self._offsets[position] = references - count
                self._doubted.discard(position)

    def calibrate(self, census_counts: Mapping[type, int]) -> None:
        """Calibrate with the counts of a full census.

        ``census_counts`` (``CensusResult.counts``) must be the only part of the census that still refers to classes;
        its own references are taken into account.
        """
        self.doubt()
        self.version += 1
        before = self._predicted(census_counts)
        self._forget_dead_classes()
        self._register(census_counts)
        self._register(all_classes())
        # Read the references in the same way as later, so that our own references are part of the offset.
        references = references_to(self._refs)
        counts = [0] * len(references)
        for cls, count in census_counts.items():
            position = self._position.get(id(cls))
            if position is not None:
                counts[position] = count
                references[position] -= 1
        self._offsets = list(map(sub, references, counts))
        for position in self._uncounted | self._inexact | self._approximate - self._doubted:
            # These classes had no exact count before, so their counts are treated as unchanged.
            self._last[position] = counts[position]
        self._judge(before, counts)
        self._uncounted.clear()
        self._approximate.clear()
        self._doubted.clear()

    def read(self) -> dict[type, int]:
        """Return the number of instances of every exactly counted class, without zeros.

        The result is empty before the first calibration.
        """
        counts = self._counts()
        found = {}
        for position in compress(range(len(counts)), counts):
            cls = self._refs[position]()
            # A negative number means that a registry or subclass has released its reference to the class. This is not a
            # count, and the server would reject the number.
            if cls is not None and counts[position] > 0 and not self._is_left_out(position):
                found[cls] = counts[position]
        return found

    def changes(self) -> list[tuple[type, int, int]]:
        """Return (class, previous count, current count) for exactly counted classes with changed counts.

        The previous count is from the last call, or from the first calibration. A class in doubt is compared only after
        it is counted again. Drop the result soon, because it refers to the classes.
        """
        self.doubt()
        now = self._counts()
        for position in self._doubted:
            now[position] = self._last[position]
        last, self._last = self._last, now
        found = []
        for position in compress(range(len(now)), map(ne, last, now)):
            cls = self._refs[position]()
            if cls is not None and now[position] >= 0 and not self._is_left_out(position):
                found.append((cls, max(0, last[position]), now[position]))
        return found

    def read_names(
        self, names: Iterable[str], approximately: Container[str] = ()
    ) -> dict[str, int]:
        """Return the number of instances by type name, adding up classes with the same name.

        Unknown and inexact counts are absent. ``approximately`` contains names whose counts may be off by a constant.
        """
        return self.read_rows(self.rows_of({name: name for name in names}, approximately))

    def rows_of(self, keys: Mapping[str, str], approximately: Container[str] = ()) -> Rows:
        """Prepare type names (name -> key in the result) for `read_rows`. Rows are valid until the version changes."""
        found: list[tuple[str, int]] = []
        for name, key in keys.items():
            positions = self._by_name.get(name, ())
            if not any(self._is_unknown(at, name in approximately) for at in positions):
                found.extend((key, at) for at in positions)
        return Rows(
            self.version,
            [key for key, _ in found],
            [self._refs[at] for _, at in found],
            [self._offsets[at] for _, at in found],
        )

    def read_rows(self, rows: Rows) -> dict[str, int]:
        """Return the number of instances by key, in a few microseconds for a hundred classes; see `read_names`."""
        counts = list(map(sub, references_to(rows.refs), rows.offsets))
        found = dict(zip(rows.keys, counts, strict=True))
        all_alive = not any(map(is_, map(call, rows.refs), repeat(None)))
        if all_alive and len(found) == len(counts) and min(counts, default=0) >= 0:
            return found
        return _added_up(rows, counts)

    def _is_unknown(self, position: int, approximately: bool) -> bool:
        about = position in self._approximate and not approximately
        return about or self._is_left_out(position)

    def counts_exactly(self, names: Iterable[str]) -> bool:
        """Return False if `calibrate_tracked` would make the count of a class with one of these names exact."""
        kinds = (self._doubted, self._approximate, self._uncounted)
        return not any(kinds) or not any(
            at not in self._untracked and any(at in kind for kind in kinds)
            for name in names
            for at in self._by_name.get(name, ())
        )

    def classes_named(self, names: Iterable[str]) -> list[type]:
        """Return the existing classes with these names."""
        found = (
            self._refs[position]() for name in names for position in self._by_name.get(name, ())
        )
        return [cls for cls in found if cls is not None]

    def count_of(self, address: int) -> int | None:
        """Return the number of instances of the class at this address (``id(cls)``), or None for an unknown or inexact
        count.

        The argument is an address, because a caller's reference to the class would also be counted.
        """
        position = self._position.get(address)
        return None if position is None or position in self._approximate else self._count(position)

    def names(self) -> tuple[str, ...]:
        """Return the names of all exactly counted classes, with or without instances."""
        return tuple(
            name
            for name, positions in self._by_name.items()
            if not any(map(self._is_left_out, positions))
        )

    def _count(self, position: int) -> int | None:
        if self._is_left_out(position):
            return None
        reference = self._refs[position]
        if reference() is None:
            return 0
        count = references_to([reference])[0] - self._offsets[position]
        return count if count >= 0 else None

    def _is_left_out(self, position: int) -> bool:
        left_out = position in self._inexact or position in self._uncounted
        return left_out or position in self._doubted

    def _counts(self) -> list[int]:
        """Return the counts by position; the counts of freed and left-out classes are meaningless."""
        return list(map(sub, references_to(self._refs), self._offsets))

    def _predicted(self, census_counts: Mapping[type, int]) -> dict[int, int]:
        """Return the expected counts by class address, without the census's own references."""
        references = references_to(self._refs)
        held = set(map(id, census_counts))
        return {
            key: references[position] - self._offsets[position] - (key in held)
            for key, position in self._position.items()
        }

    def _forget_dead_classes(self) -> None:
        if all(reference() is not None for reference in self._refs):
            return
        alive = [
            (reference, i) for i, reference in enumerate(self._refs) if reference() is not None
        ]
        moved = {old: new for new, (_, old) in enumerate(alive)}
        self._refs = [reference for reference, _ in alive]
        self._offsets = [self._offsets[old] for _, old in alive]
        self._last = [self._last[old] for _, old in alive]
        self._inexact = {moved[old] for old in self._inexact if old in moved}
        self._uncounted = {moved[old] for old in self._uncounted if old in moved}
        self._approximate = {moved[old] for old in self._approximate if old in moved}
        self._doubted = {moved[old] for old in self._doubted if old in moved}
        self._untracked = {moved[old] for old in self._untracked if old in moved}
        self._position = {key: moved[old] for key, old in self._position.items() if old in moved}
        names = {name: [moved[p] for p in at if p in moved] for name, at in self._by_name.items()}
        self._by_name = {name: at for name, at in names.items() if at}

    def _register(self, classes: Iterable[type]) -> None:
        if not references_are_counted():
            return
        for cls in classes:
            if id(cls) not in self._position and is_heap_type(cls) and hashes_plainly(cls):
                position = len(self._refs)
                self._refs.append(ref(cls))
                # The offset is unknown until a census has counted the class.
                self._offsets.append(0)
                self._last.append(0)
                self._uncounted.add(position)
                if not is_collectable(cls):
                    self._untracked.add(position)
                self._position[id(cls)] = position
                self._by_name.setdefault(type_name(cls), []).append(position)

    def _judge(self, before: Mapping[int, int], counts: list[int]) -> None:
        """Mark each class as inexact if its count disagrees with the census, otherwise as exact."""
        new = self._uncounted | self._approximate | (self._doubted - self._inexact)
        for key, predicted in before.items():
            position = self._position.get(key)
            if position is not None and position not in new:
                self._judge_one(position, predicted, counts[position])

    def _judge_one(self, position: int, predicted: int, count: int) -> None:
        if abs(predicted - count) > min(_TOLERATED_DRIFT, count * _TOLERATED_SHARE):
            self._inexact.add(position)
        else:
            self._inexact.discard(position)


def _added_up(rows: Rows, counts: list[int]) -> dict[str, int]:
    """Return the sum of the counts by key; freed classes count as 0, and keys with a negative count are left out."""
    found: dict[str, int] = {}
    unknown: set[str] = set()
    for key, reference, count in zip(rows.keys, rows.refs, counts, strict=True):
        alive = count if reference() is not None else 0
        if alive < 0:
            unknown.add(key)
        found[key] = found.get(key, 0) + alive
    return {key: count for key, count in found.items() if key not in unknown}


# The collector removes objects of these types from its list if they hold only atoms.
UNTRACKABLE: Final = frozenset({tuple, dict})

_consume: Final = deque[Any](maxlen=0).extend


class Untracked:
    """Unlisted objects of the program, in lists by type; drop them before the program continues.

    ``kinds`` returns the types of objects as keys that are safe to hash.
    """

    def __init__(self, kinds: Callable[[Iterable[object]], Iterable[type]]) -> None:
        self._kinds = kinds
        self._by_kind: defaultdict[type, list[Any]] = defaultdict(list)
        self._one_holder = _references_with_one_holder()
        # Addresses of objects with several references, which may be found again, including the owner of an array's
        # memory if another object also holds the owner.
        self.shared: set[int] = set()

    def add(self, found: list[Any]) -> list[Any]:
        """Keep the new objects, and return the containers among them.

        ``found`` contains an object once for each reference that was followed. No other object of ours may refer to
        these objects.
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
        """Return the objects of exactly this type, in insertion order."""
        return self._by_kind.get(kind, [])

    def counts(self) -> dict[type, int]:
        """Return the number of objects by type."""
        return {kind: len(ones) for kind, ones in self._by_kind.items()}

    def settle(self) -> None:
        """Drop duplicate entries; call this method after adding all objects.

        An object with one holder may be found twice: a closure variable is found both through its cell and as a local
        variable, and another thread may move an object to another container during the walk. The second time, our own
        list is another holder. Duplicates are few and have more references than objects found once.
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


def _references_with_one_holder() -> int:
    """Return the reference count of an object held by one of our lists and one of the program's containers.

    If the interpreter counts references per thread, the result is -1, which matches no object: every object is then
    remembered by address.
    """
    if not references_are_counted():
        return -1
    holder = [bytearray()]
    return _references(gc.get_referents(holder))[0]


def _references(found: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, found))
