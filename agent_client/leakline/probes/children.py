"""Memory of the child processes, by proportional and unique size, named by what they are there for.

Never by resident size: forked workers share most of their pages with us and with each other, so adding it up
counts the same pages once per worker. Three roles, each told by the kernel rather than guessed:

- ``loader_workers``: workers of a torch DataLoader. They call themselves ``pt_data_worker`` (those of torch before 2.6
  do not, and are among the others).
- ``ranks``: processes that were started with a ``RANK`` or ``LOCAL_RANK`` that their parent has not, as torchrun and
  other launchers do. What a rank starts inherits its environment and is none.
- ``others``: everything else, such as a subprocess, an environment's worker or the helpers of multiprocessing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from leakline.probes.process import PROC, psutil_or_none
from leakline.snapshot import Number

LOADER_WORKERS: Final = "loader_workers"
RANKS: Final = "ranks"
OTHERS: Final = "others"
_LOADER_NAME: Final = b"pt_data_worker"
_RANK_VARIABLES: Final = (b"RANK", b"LOCAL_RANK")

_Rank = tuple[bytes, ...]


class _Process(NamedTuple):
    pid: int
    parent: int
    name: bytes


def read_children(proc: Path = PROC, parent: int | None = None) -> dict[str, Number]:
    """``children.*`` of all descendants, in all and by role: how many, and their proportional and unique bytes.

    The cost grows with their memory (about 10 ms per GB), so the caller asks by budget. Bytes are absent when no
    child could be read, and a role is absent when no child has it.
    """
    if not (proc / "self").exists():
        return _by_psutil()
    root = os.getpid() if parent is None else parent
    children = list(_descendants(proc, root))
    sizes = {child.pid: _read_rollup(f"{proc}/{child.pid}") for child in children}
    samples = _summed("children", list(sizes.values()))
    for role, pids in _by_role(proc, root, children).items():
        samples.update(_summed(f"children.{role}", [sizes[pid] for pid in pids]))
    return samples


def _summed(name: str, sizes: list[tuple[int, int] | None]) -> dict[str, Number]:
    samples: dict[str, Number] = {f"{name}.count": len(sizes)}
    known = [size for size in sizes if size is not None]
    if known or not sizes:
        samples[f"{name}.pss_bytes"] = sum(pss for pss, _ in known)
        samples[f"{name}.uss_bytes"] = sum(uss for _, uss in known)
    return samples


def _by_role(proc: Path, root: int, children: list[_Process]) -> dict[str, list[int]]:
    # Ours both as it was at the start, which is what a fork shows, and as it is, which is what it hands on.
    ranks = {root: {_rank_of(f"{proc}/{root}"), *([_own_rank()] if root == os.getpid() else [])}}
    roles: dict[str, list[int]] = {}
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
        roles.setdefault(role, []).append(child.pid)
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
        state, parent = stat[end + 2 :].split()[:2]
        if state != b"Z":
            yield _Process(int(name), int(parent), stat[stat.index(b"(") + 1 : end])


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


def _by_psutil() -> dict[str, Number]:
    """Without procfs the roles are not known."""
    psutil = psutil_or_none()
    if psutil is None:
        return {}
    children = psutil.Process().children(recursive=True)
    unique = 0
    for child in children:
        try:
            unique += child.memory_full_info().uss
        except psutil.Error:
            continue
    return {"children.count": len(children), "children.uss_bytes": unique}
