"""Memory of the whole machine: context, never the verdict; other programs move it too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from leakline.probes.process import psutil_or_none
from leakline.snapshot import Number

MEMINFO: Final = Path("/proc/meminfo")
_LINES: Final = {b"MemTotal": "system.total_bytes", b"MemAvailable": "system.available_bytes"}


def read_system(meminfo: Path = MEMINFO) -> dict[str, Number]:
    """``system.total_bytes`` and ``system.available_bytes``."""
    try:
        lines = meminfo.read_bytes().splitlines()
    except OSError:
        return _by_psutil()
    samples: dict[str, Number] = {}
    for line in lines[:8]:
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
