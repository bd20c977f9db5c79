"""The container's memory limit: what the kernel kills by, on cgroup v2 and v1.

``cgroup.used_bytes`` leaves out inactive file pages, as ``docker stats`` and the kubelet do: the kernel drops
those before it kills anybody. Used and limit are of the same group: the one with the tightest limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from leakline.snapshot import Number

ROOT: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
# v1 writes "no limit" as the largest number of whole pages; nobody has such a machine.
_NO_LIMIT_BYTES: Final = 1 << 60


class _Version(NamedTuple):
    used: str
    limit: str
    events: str
    inactive: bytes


_V2: Final = _Version("memory.current", "memory.max", "memory.events", b"inactive_file")
_V1: Final = _Version(
    "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", b"total_inactive_file"
)


def read_cgroup(root: Path = ROOT, proc: Path = OWN_GROUPS) -> dict[str, Number]:
    """``cgroup.used_bytes``, ``.limit_bytes`` and ``.kills``; empty outside a memory group.

    The limit is absent when neither the group nor one above it has any.
    """
    try:
        own_groups = proc.read_text()
    except OSError:
        return {}
    version, groups = _groups(root, own_groups)
    if not groups:
        return {}
    limits = [(limit, group) for group in groups if (limit := _limit(group, version)) is not None]
    limit, group = min(limits, key=lambda pair: pair[0], default=(None, groups[0]))
    samples: dict[str, Number] = {}
    used = _number(group / version.used)
    if used is not None:
        inactive = _line(group / "memory.stat", version.inactive) or 0
        samples["cgroup.used_bytes"] = max(0, used - inactive)
    if limit is not None:
        samples["cgroup.limit_bytes"] = limit
    kills = _line(group / version.events, b"oom_kill")
    if kills is not None:
        samples["cgroup.kills"] = kills
    return samples


@lru_cache(maxsize=4)
def _groups(root: Path, own_groups: str) -> tuple[_Version, list[Path]]:
    """Our memory group and those above it, nearest first."""
    lines = own_groups.splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    # On a mixed machine the memory controller belongs to v1, and v2 is there without it.
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return _V1, list(_upwards(root / "memory", path, _V1.used))
    for mount in (root, root / "unified"):
        groups = list(_upwards(mount, paths.get("", "/"), _V2.used))
        if groups:
            return _V2, groups
    return _V2, []


def _upwards(mount: Path, path: str, must_have: str) -> Iterator[Path]:
    # Inside a container the path may be the host's, which does not exist here: then the mount is our group.
    group = mount / path.strip("/")
    while True:
        if (group / must_have).exists():
            yield group
        if group == mount or mount not in group.parents:
            return
        group = group.parent


def _limit(group: Path, version: _Version) -> int | None:
    limit = _number(group / version.limit)
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def _number(path: Path) -> int | None:
    try:
        text = path.read_bytes().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _line(path: Path, key: bytes) -> int | None:
    """The number behind ``key`` in a file of "key number" lines."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(b" ")
        if name == key and rest.strip().isdigit():
            return int(rest)
    return None
