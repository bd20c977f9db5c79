"""PyTorch's own view of device memory. Never the one who loads torch or wakes a device."""

from __future__ import annotations

import sys
from typing import Any, Final

from leakline.snapshot import Number

_STATISTICS: Final = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "retries": ("num_alloc_retries",),
}


def read_cuda() -> dict[str, Number]:
    """``cuda.<i>.*`` for each device the process sees; empty unless the program itself uses CUDA."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    samples: dict[str, Number] = {}
    for index in range(cuda.device_count()):
        statistics = cuda.memory_stats_as_nested_dict(index)
        for name, path in _STATISTICS.items():
            value = _follow(statistics, path)
            if value is not None:
                samples[f"cuda.{index}.{name}"] = value
    return samples


def _follow(statistics: Any, path: tuple[str, ...]) -> int | None:
    for key in path:
        if not isinstance(statistics, dict) or key not in statistics:
            return None
        statistics = statistics[key]
    return int(statistics)
