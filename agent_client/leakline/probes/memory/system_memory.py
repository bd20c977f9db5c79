"""The entire machine's memory, and the headroom until the kernel kills processes.

The machine's memory is context and never decides a verdict, because other programs also change it. The headroom is the
smaller of two values: the memory group's headroom and the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from leakline.probes.memory.process_memory import psutil_or_none
from leakline.snapshot import Number

from .cgroup import read_cgroup
from .kernel_file import KeptFile

MEMINFO: Final = Path("/proc/meminfo")
_LINES: Final = {b"MemTotal": "system.total_bytes", b"MemAvailable": "system.available_bytes"}
# Number of bytes read: both keys are in the first lines.
_BEGINNING: Final = 512

_own = KeptFile(str(MEMINFO), _BEGINNING)


def read_system(meminfo: Path = MEMINFO) -> dict[str, Number]:
    """Return ``system.total_bytes`` and ``system.available_bytes``."""
    text = (_own if meminfo is MEMINFO else KeptFile(str(meminfo))).read()
    if text is None:
        return _by_psutil()
    samples: dict[str, Number] = {}
    for line in text.splitlines()[:8]:
        key, _, rest = line.partition(b":")
        if key in _LINES:
            samples[_LINES[key]] = int(rest.split()[0]) * 1024
    return samples


def _by_psutil() -> dict[str, Number]:
    psutil = psutil_or_none()
    if psutil is None:
        return {}
    memory = psutil.virtual_memory()
    return {"system.total_bytes": memory.total, "system.available_bytes": memory.available}


class Headroom(NamedTuple):
    """The bytes left until the limit, and the limit in bytes."""

    left: int
    limit: int


def read_headroom() -> Headroom | None:
    """Return the memory group's or the machine's headroom, whichever is smaller, or None if both are unknown."""
    return _headroom_of({**read_cgroup(), **read_system()})


def _headroom_of(samples: Mapping[str, Number]) -> Headroom | None:
    found = []
    if "cgroup.limit_bytes" in samples:
        limit = int(samples["cgroup.limit_bytes"])
        # Active file pages do not count as used, because the kernel drops all file pages before it kills a process.
        used = samples["cgroup.used_bytes"] - samples.get("cgroup.active_file_bytes", 0)
        found.append(Headroom(max(0, int(limit - used)), limit))
    if "system.available_bytes" in samples:
        found.append(
            Headroom(int(samples["system.available_bytes"]), int(samples["system.total_bytes"]))
        )
    return min(found, default=None)
