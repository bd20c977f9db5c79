"""Proportional and unique set size of child processes: in total, by role and by name.

Resident size is not used: forked workers share most of their pages with the parent and with each other, so a sum would
count the same pages once per worker. Each child has one of three roles, derived from kernel data:

- ``loader_workers``: workers of a torch DataLoader, which name their process ``pt_data_worker``. Before torch 2.6,
  workers do not set this name and are counted under ``others``.
- ``ranks``: processes started with a ``RANK`` or ``LOCAL_RANK`` that differs from their parent's; torchrun and other
  launchers set these variables. Processes started by a rank inherit its environment and are not ranks themselves.
- ``others``: all other processes, for example subprocesses, environment workers and multiprocessing helpers.

The largest children are also reported individually, under the names that `child_names` assigns.

An exact size is expensive: the kernel adds up the process's pages, which takes milliseconds per child if the program
uses torch. A child's resident anonymous memory can be read in microseconds, and changes when the child allocates or
frees memory. Each reading therefore spends its time budget on exact sizes, first of new children and then of the
children with the oldest sizes. All other sizes are adjusted by the change in anonymous memory. If the budget does not
cover a new child, its size is estimated from the newest child of the same name and the difference in anonymous memory,
without the pages that both children share with their parent.
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
# Limits in seconds: on the unspent budget that is carried over to later readings, and on how far a child with a new
# name may exceed the budget.
_LONGEST_SECONDS: Final = 0.05
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Child(NamedTuple):
    """A child process, identified by its process ID and its start time ``born``."""

    pid: int
    born: int
    parent: int
    name: bytes


class _Exact(NamedTuple):
    """A child's exact size, and the anonymous resident bytes of the child and its parent at that time."""

    child: Child
    size: Size
    anonymous: int
    of_parent: int | None
    number: int  # sequence number of the reading


class ChildSizes:
    """Sizes of child processes, read exactly or estimated.

    ``read_exact`` returns a process's exact size, or None if the process has exited or cannot be read.
    """

    def __init__(
        self,
        proc: Path,
        read_exact: Callable[[int], Size | None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._proc, self._read_exact, self._clock = proc, read_exact, clock
        self._known: dict[Child, _Exact] = {}
        self._number = 0
        # Unspent seconds of the budget for exact sizes, and the duration of the last exact reading.
        self._spare = self._each = 0.0

    def read(
        self, children: Sequence[Child], seconds: float | None
    ) -> dict[int, Size | None] | None:
        """Return each child's size by process ID; an unreadable size is None.

        ``seconds`` is the time budget for exact sizes; with None, all sizes are read exactly. The result is None if the
        size of a new child was neither read nor estimated, because a total would be too low.
        """
        self._number += 1
        self._known = {c: self._known[c] for c in children if c in self._known}
        resident = {p: self._anonymous(p) for p in {p for c in children for p in (c.pid, c.parent)}}
        names = {child.name for child in self._known}
        # Unspent or overspent time carries over to the next readings.
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
        """Return the sort key for exact readings: new children first, then the children with the oldest sizes.

        Among new children, the newest comes first: its size serves as the estimate for other new children of the same
        name.
        """
        known = self._known.get(child)
        return (0, -child.born) if known is None else (known.number, child.born)

    def _anonymous(self, pid: int) -> int | None:
        """Return the process's resident anonymous bytes, or None if they cannot be read."""
        try:
            # Use a raw descriptor: hundreds of these files are read, and a file object is slower.
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
    """Return an exact size adjusted to the child's current anonymous memory, or None if that memory is unknown."""
    (proportional, unique), now, of_parent = like.size, resident[child.pid], resident[child.parent]
    if now is None:
        return None
    more = now - like.anonymous
    if child != like.child and like.of_parent and of_parent is not None:
        # The pages that the child shares with its parent are assumed to have grown in proportion to the parent.
        shared = max(0, like.anonymous - unique)
        more -= round(shared * (of_parent / like.of_parent - 1))
    return max(0, proportional + more), max(0, unique + more)


LOADER_WORKERS: Final = "loader_workers"
RANKS: Final = "ranks"
OTHERS: Final = "others"
_LOADER_NAME: Final = b"pt_data_worker"
_RANK_VARIABLES: Final = (b"RANK", b"LOCAL_RANK")
# Indices of the start time and the resident pages among the fields of ``stat`` that follow the process name.
_STARTED_FIELD: Final = 19
_RESIDENT_FIELD: Final = 21

_Rank = tuple[bytes, ...]
# Role -> process ID -> rank variables that the process was started with.
_Roles = dict[str, dict[int, _Rank]]


class _Process(NamedTuple):
    pid: int
    parent: int
    name: bytes
    rest: bytes  # fields of ``stat`` after the name

    @property
    def born(self) -> bytes:
        """The start time in clock ticks; together with the process ID, it identifies the process."""
        return self.rest.split(None, _STARTED_FIELD + 1)[_STARTED_FIELD]

    @property
    def resident(self) -> int:
        """Resident bytes, including pages that other processes share."""
        return int(self.rest.split(None, _RESIDENT_FIELD + 1)[_RESIDENT_FIELD]) * _PAGE

    @property
    def identity(self) -> Child:
        return Child(self.pid, int(self.born), self.parent, self.name)


def read_children(
    proc: Path = PROC,
    parent: int | None = None,
    names: ChildNames | None = None,
    sizes: ChildSizes | None = None,
    seconds: float | None = None,
    note: Callable[[dict[int, tuple[str, int]]], None] = lambda _: None,
) -> dict[str, Number]:
    """Return ``children.*``: the number of descendants and their proportional, unique and resident bytes.

    The metrics cover all descendants together, each role, and the largest children individually. The caller keeps
    ``names`` (assigned names) and ``sizes`` (last exact sizes) from one reading to the next. ``seconds`` is the time
    budget for exact sizes, which cost about 10 ms per GB; with None, all sizes are read exactly. Bytes are absent if no
    child could be read, or while any child's size is unknown. A role without children is absent. ``note`` receives the
    name and the unique bytes of each named child, by process ID.
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
    samples["children.rss_bytes"] = sum(child.resident for child in children)
    for role, pids in roles.items():
        samples.update(_summed(f"children.{role}", [of_each[pid] for pid in pids]))
    samples.update(_one_by_one(named, of_each, names))
    sizes_by_name = ((pid, name, of_each[pid]) for pid, name in named.items())
    note({pid: (name, size[1]) for pid, name, size in sizes_by_name if name and size})
    return samples


def child_sizes(proc: Path = PROC) -> ChildSizes:
    """Return the `ChildSizes` that a caller keeps from one reading to the next."""
    return ChildSizes(proc, lambda pid: _read_rollup(f"{proc}/{pid}"))


def _named(
    proc: Path, children: Sequence[_Process], roles: _Roles, names: ChildNames
) -> dict[int, str | None]:
    """Return each child's name by process ID; children beyond the limit of names have None."""
    known = {pid: (role, rank) for role, ranks in roles.items() for pid, rank in ranks.items()}
    # A process gets another name if its program or role has changed since the last reading.
    keys = {
        child.pid: (child.pid, child.born, child.name, known[child.pid][0]) for child in children
    }
    names.keep(keys.values())
    given = given_names()
    # Names are numbered in the order in which the processes were started.
    return {
        child.pid: names.name(
            keys[child.pid], partial(_wanted, proc, child, *known[child.pid], given)
        )
        for child in sorted(children, key=lambda child: (int(child.born), child.pid))
    }


def _wanted(proc: Path, child: _Process, role: str, rank: _Rank, given: dict[int, str]) -> Wanted:
    if role == LOADER_WORKERS:
        # torch numbers its workers from zero.
        return Wanted("loader_worker", 0)
    if role == RANKS:
        # Use the rank from which the role was determined, because the process may have exited in the meantime.
        return Wanted(f"rank_{next(filter(None, rank)).decode(errors='replace')}")
    if child.pid in given:
        return wanted_of_given(given[child.pid])
    return wanted_of_command(_content(f"{proc}/{child.pid}/cmdline") or b"", child.name)


def _one_by_one(
    named: dict[int, str | None], sizes: dict[int, Size | None], names: ChildNames
) -> dict[str, Number]:
    """Return the metrics of the largest children by name, and of all other children as ``other``."""
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
    # A forked child shows the environment that we were started with; a child started by exec shows our current
    # environment.
    ranks = {root: {_rank_of(f"{proc}/{root}"), *([_own_rank()] if root == os.getpid() else [])}}
    roles: _Roles = {}
    # A parent precedes its children in this list.
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
    """Return the rank variables from the process's initial environment, or empty values if it cannot be read."""
    environment = b"\0" + (_content(f"{process}/environ") or b"")
    return tuple(_variable(environment, variable) for variable in _RANK_VARIABLES)


def _variable(environment: bytes, name: bytes) -> bytes:
    # Most processes have dozens of variables but no rank, so search the environment before parsing it.
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
            # The process has exited since the directory was listed.
            continue
        # The process name may contain spaces and parentheses, so the fields start after the last parenthesis.
        end = stat.rindex(b")")
        state, parent, _ = stat[end + 2 :].split(None, 2)
        if state != b"Z":
            own = stat[stat.index(b"(") + 1 : end]
            yield _Process(int(name), int(parent), own, stat[end + 2 :])


def _read_rollup(process: str) -> tuple[int, int] | None:
    """Return (proportional, unique) bytes, or None if the process has exited or cannot be read."""
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
    """Return the content of a file, or None if it cannot be read.

    Hundreds of these files are read, and a raw descriptor is faster than a file object.
    """
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
    """Return ``children.*`` on systems without procfs, except roles and proportional bytes."""
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
