"""PyTorch's own view of device memory. Never the one who loads torch or wakes a device."""

from __future__ import annotations

from typing import Any, Final

from leakline.snapshot import Number

from .device_mapping import cuda_in_use, devices_in_use, has_context

_STATISTICS: Final = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "active_bytes": ("active_bytes", "all", "current"),
}
# What only torch's own allocator counts; the others answer zero to these.
_OF_TORCH_ITSELF: Final = {
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
}


def read_cuda() -> dict[str, Number]:
    """``cuda.<i>.*`` for each device on which the program has a context; empty unless the program itself uses CUDA.

    Counters only: nothing is synchronised, no context is made, no device is made current.
    """
    cuda = cuda_in_use()
    if cuda is None:
        return {}
    wanted = {**_STATISTICS, **(_OF_TORCH_ITSELF if _allocates_itself(cuda) else {})}
    samples: dict[str, Number] = {}
    for index in devices_in_use(cuda):
        statistics = _statistics(cuda, index)
        for name, path in wanted.items():
            value = _follow(statistics, path)
            if value is not None:
                samples[f"cuda.{index}.{name}"] = value
    return samples


def reserved_bytes(index: int) -> int | None:
    """What torch's allocator has taken from this device; None while it has no context there, or does not tell."""
    cuda = cuda_in_use()
    if cuda is None or index >= cuda.device_count() or not has_context(index):
        return None
    return _follow(_statistics(cuda, index), _STATISTICS["reserved_bytes"])


def _statistics(cuda: Any, index: int) -> Any:
    try:
        return cuda.memory_stats_as_nested_dict(index)
    except RuntimeError:
        # An allocator that the program plugged in keeps no statistics.
        return {}


def _allocates_itself(cuda: Any) -> bool:
    backend = getattr(cuda, "get_allocator_backend", None)
    return backend is None or backend() == "native"


def _follow(statistics: Any, path: tuple[str, ...]) -> int | None:
    for key in path:
        if not isinstance(statistics, dict) or key not in statistics:
            return None
        statistics = statistics[key]
    return int(statistics)
