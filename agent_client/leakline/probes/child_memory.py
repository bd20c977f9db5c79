"""Memory of the child processes, by proportional and unique size, named by what they are there for.

Never by resident size: forked workers share most of their pages with us and with each other, so adding it up
counts the same pages once per worker. Three roles, each reported by the kernel rather than guessed:

- ``loader_workers``: workers of a torch DataLoader. They call themselves ``pt_data_worker`` (those of torch before 2.6
  do not, and are among the others).
- ``ranks``: processes that were started with a ``RANK`` or ``LOCAL_RANK`` that their parent has not, as torchrun and
  other launchers do. What a rank starts inherits its environment and is none.
- ``others``: everything else, such as a subprocess, an environment's worker or the helpers of multiprocessing.

The largest are also reported one by one, by names that `child_names` gives them.

Proportional and unique bytes of child processes, read exactly in turns and followed cheaply in between.

The kernel adds up the pages of a process to tell these sizes: milliseconds for each child of a program with torch. Its
resident anonymous memory takes microseconds and moves by what the child gains or frees for itself. So a reading takes
exact sizes as long as its time lasts, of new children first and then of those read longest ago, and moves the other
sizes by what their anonymous memory has moved since. A new child that there was no time for is as large as the newest
one of the same name, but for the difference in anonymous memory; what both share with their parent is no part of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from leakline.probes.memory.process_memory import PROC, psutil_or_none
from leakline.snapshot import Number

from .child_names import OTHER, ChildNames, Wanted, given_names, wanted_of_command, wanted_of_given

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


LOADER_WORKERS: Final = "loader_workers"
RANKS: Final = "ranks"
OTHERS: Final = "others"
_LOADER_NAME: Final = b"pt_data_worker"
_RANK_VARIABLES: Final = (b"RANK", b"LOCAL_RANK")
# Among the fields of stat after the name, counted from zero.
_STARTED_FIELD: Final = 19

_Rank = tuple[bytes, ...]
# Role -> process id -> the rank that it was started with.
_Roles = dict[str, dict[int, _Rank]]


class _Process(NamedTuple):
    pid: int
    parent: int
    name: bytes
    rest: bytes  # of its stat, after the name

    @property
    def born(self) -> bytes:
        """When it was started: with the pid, what no other process has."""
        return self.rest.split(None, _STARTED_FIELD + 1)[_STARTED_FIELD]

    @property
    def identity(self) -> Child:
        return Child(self.pid, int(self.born), self.parent, self.name)


def read_children(
    proc: Path = PROC,
    parent: int | None = None,
    names: ChildNames | None = None,
    sizes: ChildSizes | None = None,
    seconds: float | None = None,
) -> dict[str, Number]:
    """``children.*`` of all descendants, in all, by role and one by one: how many, and their proportional and unique
    bytes. ``names``: who had which name until now, ``sizes``: what was read of whom; the caller keeps them from one
    reading to the next.

    ``seconds``: how long to read exact sizes, which cost about 10 ms per GB; None: of all. Bytes are absent when no
    child could be read, or one is not known yet, and a role is absent when no child has it.
    """
    names = ChildNames() if names is None else names
    if not (proc / "self").exists():
        return _by_psutil(names)
    root = os.getpid() if parent is None else parent
    children = list(_descendants(proc, root))
    of_each = (sizes or child_sizes(proc)).read([child.identity for child in children], seconds)
    roles = _by_role(proc, root, children)
    named = _named(proc, children, roles, names)
    if of_each is None:
        counts = {f"children.{role}.count": len(pids) for role, pids in roles.items()}
        return {"children.count": len(children), **counts}
    samples = _summed("children", list(of_each.values()))
    for role, pids in roles.items():
        samples.update(_summed(f"children.{role}", [of_each[pid] for pid in pids]))
    samples.update(_one_by_one(named, of_each, names))
    return samples


def child_sizes(proc: Path = PROC) -> ChildSizes:
    """Return what a caller keeps from one reading to the next."""
    return ChildSizes(proc, lambda pid: _read_rollup(f"{proc}/{pid}"))


def _named(
    proc: Path, children: Sequence[_Process], roles: _Roles, names: ChildNames
) -> dict[int, str | None]:
    """Process id -> its name."""
    known = {pid: (role, rank) for role, ranks in roles.items() for pid, rank in ranks.items()}
    # One that has become something else since has another name.
    keys = {
        child.pid: (child.pid, child.born, child.name, known[child.pid][0]) for child in children
    }
    names.keep(keys.values())
    given = given_names()
    # In the order of their birth, which is that of the numbers.
    return {
        child.pid: names.name(
            keys[child.pid], partial(_wanted, proc, child, *known[child.pid], given)
        )
        for child in sorted(children, key=lambda child: (int(child.born), child.pid))
    }


def _wanted(proc: Path, child: _Process, role: str, rank: _Rank, given: dict[int, str]) -> Wanted:
    if role == LOADER_WORKERS:
        # torch counts them from zero.
        return Wanted("loader_worker", 0)
    if role == RANKS:
        # As it was read for its role: of one that ends meanwhile there is nothing to read any more.
        return Wanted(f"rank_{next(filter(None, rank)).decode(errors='replace')}")
    if child.pid in given:
        return wanted_of_given(given[child.pid])
    return wanted_of_command(_content(f"{proc}/{child.pid}/cmdline") or b"", child.name)


def _one_by_one(
    named: dict[int, str | None], sizes: dict[int, Size | None], names: ChildNames
) -> dict[str, Number]:
    """The largest by name, and all others together where there are more."""
    found = {name: size for pid, name in named.items() if name and (size := sizes[pid]) is not None}
    named_children = names.named({name: unique for name, (_, unique) in found.items()})
    samples: dict[str, Number] = {}
    for name in sorted(named_children):
        samples[f"children.process.{name}.pss_bytes"] = found[name][0]
        samples[f"children.process.{name}.uss_bytes"] = found[name][1]
    rest = [sizes[pid] for pid, name in named.items() if name not in named_children]
    if rest:
        samples.update(_summed(f"children.process.{OTHER}", rest))
    return samples


def _summed(name: str, sizes: list[Size | None]) -> dict[str, Number]:
    samples: dict[str, Number] = {f"{name}.count": len(sizes)}
    known = [size for size in sizes if size is not None]
    if known or not sizes:
        samples[f"{name}.pss_bytes"] = sum(pss for pss, _ in known)
        samples[f"{name}.uss_bytes"] = sum(uss for _, uss in known)
    return samples


def _by_role(proc: Path, root: int, children: Sequence[_Process]) -> _Roles:
    # Ours both as it was at the start, which is what a fork shows, and as it is, which is what it hands on.
    ranks = {root: {_rank_of(f"{proc}/{root}"), *([_own_rank()] if root == os.getpid() else [])}}
    roles: _Roles = {}
    # Parents come before their children.
    for child in children:
        rank = _rank_of(f"{proc}/{child.pid}")
        ranks[child.pid] = {rank}
        if child.name == _LOADER_NAME:
            role = LOADER_WORKERS
        elif any(rank) and rank not in ranks.get(child.parent, ()):
            role = RANKS
        else:
            role = OTHERS
        roles.setdefault(role, {})[child.pid] = rank
    return roles


def _rank_of(process: str) -> _Rank:
    """The rank that the process was started with; all absent when it is not ours to read."""
    environment = b"\0" + (_content(f"{process}/environ") or b"")
    return tuple(_variable(environment, variable) for variable in _RANK_VARIABLES)


def _variable(environment: bytes, name: bytes) -> bytes:
    # Most processes have dozens of variables and no rank: nothing is taken apart to find that out.
    at = environment.find(b"\0" + name + b"=")
    if at < 0:
        return b""
    return environment[at + len(name) + 2 :].partition(b"\0")[0]


def _own_rank() -> _Rank:
    return tuple(os.environ.get(variable.decode(), "").encode() for variable in _RANK_VARIABLES)


def _descendants(proc: Path, root: int) -> Iterator[_Process]:
    children: dict[int, list[_Process]] = {}
    for process in _processes(proc):
        children.setdefault(process.parent, []).append(process)
    waiting = children.get(root, [])
    while waiting:
        process = waiting.pop()
        yield process
        waiting.extend(children.get(process.pid, ()))


def _processes(proc: Path) -> Iterator[_Process]:
    with os.scandir(proc) as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    for name in names:
        stat = _content(f"{proc}/{name}/stat")
        if stat is None:
            # It ended since the folder was listed.
            continue
        # The command may contain blanks and brackets: fields start after the last one.
        end = stat.rindex(b")")
        state, parent, _ = stat[end + 2 :].split(None, 2)
        if state != b"Z":
            own = stat[stat.index(b"(") + 1 : end]
            yield _Process(int(name), int(parent), own, stat[end + 2 :])


def _read_rollup(process: str) -> tuple[int, int] | None:
    """(proportional, unique) bytes, or None when the process is gone or not ours to read."""
    rollup = _content(f"{process}/smaps_rollup") or b""
    proportional = _kilobytes(rollup, b"Pss")
    if proportional is None:
        return None
    unique = (_kilobytes(rollup, key) or 0 for key in (b"Private_Clean", b"Private_Dirty"))
    return proportional * 1024, sum(unique) * 1024


def _kilobytes(rollup: bytes, key: bytes) -> int | None:
    at = rollup.find(b"\n" + key + b":")
    return None if at < 0 else int(rollup[at + len(key) + 2 : rollup.index(b"kB", at)])


def _content(path: str) -> bytes | None:
    """Without a file object: there are hundreds of these to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def _by_psutil(names: ChildNames) -> dict[str, Number]:
    """Without procfs the roles are not known, nor proportional bytes."""
    psutil = psutil_or_none()
    if psutil is None:
        return {}
    children = psutil.Process().children(recursive=True)
    keys = {child.pid: (child.pid, child.create_time()) for child in children}
    names.keep(keys.values())
    given = given_names()
    named: dict[int, str | None] = {}
    sizes: dict[int, Size | None] = {}
    for child in children:
        try:
            unique, command = child.memory_full_info().uss, child.name()
        except psutil.Error:
            continue
        own = given.get(child.pid)
        wanted = Wanted(command, 1) if own is None else wanted_of_given(own)
        named[child.pid] = names.name(keys[child.pid], partial(_itself, wanted))
        sizes[child.pid] = (0, unique)
    unique = sum(size[1] for size in sizes.values() if size)
    samples: dict[str, Number] = {"children.count": len(children), "children.uss_bytes": unique}
    named_children = _one_by_one(named, sizes, names)
    return samples | {
        name: n for name, n in named_children.items() if not name.endswith(".pss_bytes")
    }


def _itself(wanted: Wanted) -> Wanted:
    return wanted
