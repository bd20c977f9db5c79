"""Memory usage and limit of the container's cgroup (v2 or v1); the kernel kills processes at this limit.

``cgroup.used_bytes`` excludes inactive file pages, as ``docker stats`` and the kubelet do: the kernel drops these pages
before it kills a process. The kernel also drops active file pages, but later; ``cgroup.active_file_bytes`` is their
part of the used bytes. Usage and limit both come from the group with the tightest limit.

``cgroup.shmem_bytes`` (shared memory and files in /dev/shm) and ``cgroup.slab_bytes`` (the kernel's own objects, only
in v2) are parts of the used bytes that are missing from every process's private memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from leakline.snapshot import Number

from .kernel_file import KeptFile

ROOT: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
# v1 reports "no limit" as the largest multiple of the page size, which is more memory than any machine has.
_NO_LIMIT_BYTES: Final = 1 << 60
# Search all groups and limits only after this interval, because a search costs ten times as much as a reading.
LOOK_EVERY_SECONDS: Final = 10.0
# If our group cannot be read, search again after this interval.
LOOK_AGAIN_SECONDS: Final = 3.0


class _Version(NamedTuple):
    used: str
    limit: str
    events: str
    inactive: bytes
    # Metric -> its key in memory.stat.
    parts: tuple[tuple[str, bytes], ...]


_V2: Final = _Version(
    "memory.current", "memory.max", "memory.events", b"inactive_file",
    (
        ("cgroup.active_file_bytes", b"active_file"), ("cgroup.shmem_bytes", b"shmem"),
        ("cgroup.slab_bytes", b"slab"), ("cgroup.slab_unreclaimable_bytes", b"slab_unreclaimable"),
    ),
)  # fmt: skip
_V1: Final = _Version(
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.oom_control",
    b"total_inactive_file",
    (("cgroup.active_file_bytes", b"total_active_file"), ("cgroup.shmem_bytes", b"total_shmem")),
)


class _Group(NamedTuple):
    """The group with the tightest limit. Its files stay open."""

    version: _Version
    used: KeptFile
    stat: KeptFile
    events: KeptFile
    limit: int | None
    folder: Path

    def read(self) -> dict[str, Number]:
        """Return the group's metrics, or {} if the group no longer exists."""
        used = _number(self.used.read())
        if used is None:
            return {}
        stat = self.stat.read()
        inactive = _line(stat, self.version.inactive)
        samples: dict[str, Number] = {"cgroup.used_bytes": max(0, used - (inactive or 0))}
        for name, key in self.version.parts:
            if (size := _line(stat, key)) is not None:
                samples[name] = size
        if self.limit is not None:
            samples["cgroup.limit_bytes"] = self.limit
        kills = _line(self.events.read(), b"oom_kill")
        if kills is not None:
            samples["cgroup.kills"] = kills
        return samples


class _Look(NamedTuple):
    """The result of a search, with the process ID and time of the search."""

    pid: int
    at: float
    group: _Group | None


class ContainerMemory:
    """Memory usage of this process's group, for any thread. A forked child searches for its own group.

    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        root: Path = ROOT,
        proc: Path = OWN_GROUPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._proc, self._clock = root, proc, clock
        # Replaced as one object, so that no thread combines one group's limit with another group's usage.
        self._last = _Look(-1, 0.0, None)

    def read(self) -> dict[str, Number]:
        """Return ``cgroup.used_bytes``, its parts, ``.limit_bytes`` and ``.kills``.

        The result is {} outside a memory group. The limit is absent if neither the group nor its parents have a limit.
        """
        now, last = self._clock(), self._last
        if last.pid != os.getpid() or now - last.at >= LOOK_EVERY_SECONDS:
            return self._look(now)
        samples = {} if last.group is None else last.group.read()
        if not samples and last.group is not None and now - last.at >= LOOK_AGAIN_SECONDS:
            return self._look(now)
        return samples

    def identity(self) -> str | None:
        """Return an ID of the memory group that is unique across machines, or None outside a memory group."""
        group = self._last.group if self.read() else None
        try:
            return group and f"{BOOT.read_text().strip()}:{group.folder.stat().st_ino}"
        except OSError:
            return None

    def _look(self, now: float) -> dict[str, Number]:
        group = _find(self._root, self._proc)
        self._last = _Look(os.getpid(), now, group)
        return {} if group is None else group.read()


_own = ContainerMemory()


def read_cgroup(root: Path = ROOT, proc: Path = OWN_GROUPS) -> dict[str, Number]:
    """Return ``cgroup.*`` of this process; see `ContainerMemory.read`. Only a search in the default paths is cached."""
    is_own = root is ROOT and proc is OWN_GROUPS
    return (_own if is_own else ContainerMemory(root, proc)).read()


def memory_group() -> str | None:
    """Return the ID of this process's memory group; see `ContainerMemory.identity`."""
    return _own.identity()


def _find(root: Path, proc: Path) -> _Group | None:
    try:
        own_groups = proc.read_text()
    except OSError:
        return None
    version, groups = _groups(root, own_groups)
    if not groups:
        return None
    limits = [(limit, group) for group in groups if (limit := _limit(group, version)) is not None]
    limit, group = min(limits, key=lambda pair: pair[0], default=(None, groups[0]))
    names = version.used, "memory.stat", version.events
    used, stat, events = (KeptFile(str(group / name)) for name in names)
    return _Group(version, used, stat, events, limit, group)


def _groups(root: Path, own_groups: str) -> tuple[_Version, list[Path]]:
    """Return our memory group and its parents, nearest first."""
    lines = own_groups.splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    # On a hybrid system, the memory controller belongs to v1, and v2 is mounted without this controller.
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return _V1, list(_upwards(root / "memory", path, _V1.used))
    for mount in (root, root / "unified"):
        groups = list(_upwards(mount, paths.get("", "/"), _V2.used))
        if groups:
            return _V2, groups
    return _V2, []


def _upwards(mount: Path, path: str, must_have: str) -> Iterator[Path]:
    # Inside a container, the path may be a path on the host, which does not exist here; the mount is then our group.
    group = mount / path.strip("/")
    while True:
        if (group / must_have).exists():
            yield group
        if group == mount or mount not in group.parents:
            return
        group = group.parent


def _limit(group: Path, version: _Version) -> int | None:
    try:
        limit = _number((group / version.limit).read_bytes())
    except OSError:
        return None
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def _number(text: bytes | None) -> int | None:
    number = b"" if text is None else text.strip()
    return int(number) if number.isdigit() else None


def _line(text: bytes | None, key: bytes) -> int | None:
    """Return the number after ``key`` in a line "key number", or None if no line has this key."""
    if text is None:
        return None
    lines = b"\n" + text
    at = lines.find(b"\n" + key + b" ")
    return _number(lines[at + len(key) + 2 :].partition(b"\n")[0]) if at >= 0 else None
