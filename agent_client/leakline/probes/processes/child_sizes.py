"""Proportional and unique bytes of child processes, read exactly in turns and followed cheaply in between.

The kernel adds up the pages of a process to tell these sizes: milliseconds for each child of a program with torch. Its
resident anonymous memory takes microseconds and moves by what the child gains or frees for itself. So a reading takes
exact sizes as long as its time lasts, of new children first and then of those read longest ago, and moves the other
sizes by what their anonymous memory has moved since. A new child that there was no time for is as large as the newest
one of the same name, but for the difference in anonymous memory; what both share with their parent is no part of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

Size = tuple[int, int]  # proportional and unique bytes
# Exact sizes take no more than this beyond their time, and save up no more.
_LONGEST_SECONDS: Final = 0.05
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Child(NamedTuple):
    """``born``: when it was started, with the process id what no other process has."""

    pid: int
    born: int
    parent: int
    name: bytes


class _Exact(NamedTuple):
    """An exact reading of one child, with what was resident in it and in its parent."""

    child: Child
    size: Size
    anonymous: int
    of_parent: int | None
    number: int  # of the reading


class ChildSizes:
    """``read_exact`` returns the sizes of a process, None when it is gone or not ours to read."""

    def __init__(
        self,
        proc: Path,
        read_exact: Callable[[int], Size | None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._proc, self._read_exact, self._clock = proc, read_exact, clock
        self._known: dict[Child, _Exact] = {}
        self._number = 0
        # Of the time for exact sizes what is left, and what the last one took.
        self._spare = self._each = 0.0

    def read(
        self, children: Sequence[Child], seconds: float | None
    ) -> dict[int, Size | None] | None:
        """Return process id -> size; None for those that cannot be read.

        ``seconds``: how long to take exact sizes; None: of all. Returns None when the size of a new child is neither
        read nor known from another one: a total would be too low.
        """
        self._number += 1
        self._known = {c: self._known[c] for c in children if c in self._known}
        resident = {p: self._anonymous(p) for p in {p for c in children for p in (c.pid, c.parent)}}
        names = {child.name for child in self._known}
        # What one reading has not spent, or spent too much, counts in the next ones.
        self._spare += seconds or 0.0
        found: dict[int, Size | None] = {}
        for child in sorted(children, key=self._turn):
            least = self._each if child.name in names else -_LONGEST_SECONDS
            if seconds is not None and self._spare < least:
                continue
            started = self._clock()
            size = found[child.pid] = self._read_exact(child.pid)
            self._each = self._clock() - started
            self._spare -= self._each if seconds is not None else 0.0
            anonymous, of_parent = resident[child.pid], resident[child.parent]
            if size is not None and anonymous is not None:
                names.add(child.name)
                self._known[child] = _Exact(child, size, anonymous, of_parent, self._number)
        self._spare = min(self._spare, _LONGEST_SECONDS)
        newest = {exact.child.name: exact for exact in sorted(self._known.values(), key=_age)}
        for child in children:
            if child.pid not in found:
                like = self._known.get(child) or newest.get(child.name)
                if like is None:
                    return None
                found[child.pid] = _moved(like, child, resident)
        return found

    def _turn(self, child: Child) -> tuple[int, int]:
        """New children first, the newest of them first: it says most about the others. Then the stalest."""
        known = self._known.get(child)
        return (0, -child.born) if known is None else (known.number, child.born)

    def _anonymous(self, pid: int) -> int | None:
        """Return resident bytes that no file backs; None when they cannot be read."""
        try:
            # Without a file object: there are hundreds of these to read.
            fd = os.open(f"{self._proc}/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            _, resident, shared, *_ = os.read(fd, 256).split()
            return (int(resident) - int(shared)) * _PAGE
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)


def _age(exact: _Exact) -> int:
    return exact.child.born


def _moved(like: _Exact, child: Child, resident: Mapping[int, int | None]) -> Size | None:
    """Return an exact size moved by what anonymous memory has moved since; None when that cannot be read."""
    (proportional, unique), now, of_parent = like.size, resident[child.pid], resident[child.parent]
    if now is None:
        return None
    more = now - like.anonymous
    if child != like.child and like.of_parent and of_parent is not None:
        # It shares as much more with its parent as that has grown since.
        shared = max(0, like.anonymous - unique)
        more -= round(shared * (of_parent / like.of_parent - 1))
    return max(0, proportional + more), max(0, unique + more)
