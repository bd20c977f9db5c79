"""What is said of a run as a whole, worked out once: every one of its processes asks for it.

A run may have thousands of processes, each with events and holders of its own. Whoever looked through all of them for
each process would take the square of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..snapshot import CYCLIC_GARBAGE, Event, Holder

if TYPE_CHECKING:
    from .run_history import ProcessHistory

T = TypeVar("T")

# The holder of every thread that runs.
_THREADS: Final = "threading._active[*]"


class Said:
    """Results by what was asked and by the very tuples that it was asked of."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, what: str, of: tuple[object, ...], work: Callable[[], T]) -> T:
        """What ``work`` gave when this was asked of the same objects first. It must depend on nothing else."""
        key = (what, *map(id, of))
        if key not in self._found:
            # With what it is of: as long as that is here, nothing else has its id.
            self._found[key] = (of, work())
        found: T = self._found[key][1]
        return found


class Holders:
    """All holders of a run, by the types that they keep."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self._holders = holders

    @cached_property
    def garbage(self) -> Mapping[str, Holder]:
        """type -> the newest holder that says its objects only keep each other."""
        return {name: looks[-1] for name, looks in self.garbage_looks.items()}

    @cached_property
    def garbage_looks(self) -> Mapping[str, Sequence[Holder]]:
        """type -> the holders that say its objects only keep each other, oldest first."""
        found: dict[str, list[Holder]] = {}
        for holder in sorted(self._holders, key=lambda one: one.sequence):
            if holder.path == CYCLIC_GARBAGE:
                found.setdefault(holder.type, []).append(holder)
        return found

    @cached_property
    def garbage_types(self) -> Mapping[str, int]:
        """type -> objects that only each other kept, when last looked; most first."""
        ranked = sorted(self.garbage.values(), key=lambda h: (-h.count, h.type))
        return {holder.type: holder.count for holder in ranked}

    @cached_property
    def newest(self) -> Mapping[str, Mapping[str, int]]:
        """type -> path -> how many objects it held when the type was last looked for."""
        return _newest(self._holders)

    def looks(self, name: str) -> Mapping[int, Mapping[str, int]]:
        """Return the searches for the holders of a type, oldest first: sequence -> path -> objects held."""
        return self._looks.get(name, {})

    @cached_property
    def _looks(self) -> Mapping[str, Mapping[int, Mapping[str, int]]]:
        found: dict[str, dict[int, dict[str, int]]] = {}
        for holder in sorted(self._holders, key=lambda one: one.sequence):
            paths = found.setdefault(holder.type, {}).setdefault(holder.sequence, {})
            paths[holder.path] = max(paths.get(holder.path, holder.count), holder.count)
        return found

    @cached_property
    def newest_kept(self) -> Mapping[str, Mapping[str, int]]:
        """The same without garbage."""
        return _newest([h for h in self._holders if h.path != CYCLIC_GARBAGE])

    @cached_property
    def newest_unsized(self) -> Mapping[str, Mapping[str, int]]:
        """The same of searches that say nothing of the size of one more, as those for the largest object of a type."""
        return _newest([h for h in self._holders if h.bytes_each is None])

    @cached_property
    def best(self) -> Mapping[str, str]:
        """type -> the path that held most of its objects when last looked for."""
        return {name: most_of(paths) for name, paths in self.newest.items()}

    @cached_property
    def bytes_each(self) -> Mapping[str, int]:
        newest: dict[str, tuple[int, int]] = {}
        # What a thread works on are locals of its call: no size of the thread object has them in it.
        threads = {holder.type for holder in self._holders if holder.path == _THREADS}
        for holder in self._holders:
            if holder.bytes_each is not None and holder.type not in threads:
                row = (holder.sequence, holder.bytes_each)
                newest[holder.type] = max(newest.get(holder.type, row), row)
        return {name: each for name, (_, each) in newest.items()}


def most_of(paths: Mapping[str, int]) -> str:
    return max(paths, key=lambda path: (paths[path], path))


def _newest(holders: Sequence[Holder]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    at: dict[str, int] = {}
    for holder in holders:
        paths = found.setdefault(holder.type, {})
        if holder.sequence > at.get(holder.type, holder.sequence - 1):
            paths.clear()
            at[holder.type] = holder.sequence
        if holder.sequence == at[holder.type]:
            paths[holder.path] = max(paths.get(holder.path, holder.count), holder.count)
    return found


def of_kind(events: Sequence[Event]) -> Mapping[str, Sequence[Event]]:
    """The events by their kind, in their order."""
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.kind, []).append(event)
    return found


def by_instance(processes: Sequence[ProcessHistory]) -> Mapping[str, Sequence[ProcessHistory]]:
    found: dict[str, list[ProcessHistory]] = {}
    for process in processes:
        found.setdefault(process.instance, []).append(process)
    return found
