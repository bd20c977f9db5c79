"""How much memory is left before the kernel kills: of the memory group's limit, or of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from leakline.snapshot import Number

from .cgroup import read_cgroup
from .system_memory import read_system


class Headroom(NamedTuple):
    """``left`` of ``limit``, in bytes."""

    left: int
    limit: int


def read_headroom() -> Headroom | None:
    """The tighter of both; None where neither is known."""
    return headroom_of({**read_cgroup(), **read_system()})


def headroom_of(samples: Mapping[str, Number]) -> Headroom | None:
    found = []
    if "cgroup.limit_bytes" in samples:
        limit = int(samples["cgroup.limit_bytes"])
        # The kernel drops all file pages before it kills.
        used = samples["cgroup.used_bytes"] - samples.get("cgroup.active_file_bytes", 0)
        found.append(Headroom(max(0, int(limit - used)), limit))
    if "system.available_bytes" in samples:
        found.append(
            Headroom(int(samples["system.available_bytes"]), int(samples["system.total_bytes"]))
        )
    return min(found, default=None)
