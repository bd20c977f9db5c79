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
    sizes = {child.pid: _read_rollup(proc / str(child.pid)) for child in children}
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
    ranks = {root: {_rank_of(proc / str(root)), *([_own_rank()] if root == os.getpid() else [])}}
    roles: dict[str, list[int]] = {}
    # Parents come before their children.
    for child in children:
        rank = _rank_of(proc / str(child.pid))
        ranks[child.pid] = {rank}
        if child.name == _LOADER_NAME:
            role = LOADER_WORKERS
        elif any(rank) and rank not in ranks.get(child.parent, ()):
            role = RANKS
        else:
            role = OTHERS
        roles.setdefault(role, []).append(child.pid)
    return roles


def _rank_of(process: Path) -> _Rank:
    """The rank that the process was started with; all absent when it is not ours to read."""
    try:
        environment = (process / "environ").read_bytes()
    except OSError:
        environment = b""
    found = dict(entry.partition(b"=")[::2] for entry in environment.split(b"\0"))
    return tuple(found.get(variable, b"") for variable in _RANK_VARIABLES)


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
        try:
            stat = (proc / name / "stat").read_bytes()
        except OSError:
            # It ended since the folder was listed.
            continue
        # The command may contain blanks and brackets: fields start after the last one.
        end = stat.rindex(b")")
        state, parent = stat[end + 2 :].split()[:2]
        if state != b"Z":
            yield _Process(int(name), int(parent), stat[stat.index(b"(") + 1 : end])


def _read_rollup(process: Path) -> tuple[int, int] | None:
    """(proportional, unique) bytes, or None when the process is gone or not ours to read."""
    try:
        rollup = (process / "smaps_rollup").read_bytes()
    except OSError:
        return None
    kilobytes = {
        key: int(rest.split()[0])
        for key, _, rest in (line.partition(b":") for line in rollup.splitlines()[1:])
    }
    if b"Pss" not in kilobytes:
        return None
    unique = kilobytes.get(b"Private_Clean", 0) + kilobytes.get(b"Private_Dirty", 0)
    return kilobytes[b"Pss"] * 1024, unique * 1024


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
