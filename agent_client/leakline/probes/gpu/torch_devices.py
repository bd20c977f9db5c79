"""CUDA and Metal memory as reported by PyTorch. Nothing here loads torch or initialises a device."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from leakline.snapshot import Number

from .device_mapping import cuda_in_use, devices_in_use, has_context

_STATISTICS: Final = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "active_bytes": ("active_bytes", "all", "current"),
}
# Counters that only torch's own allocator keeps; other allocators report zero.
_OF_TORCH_ITSELF: Final = {
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
}


def read_cuda() -> dict[str, Number]:
    """Return ``cuda.<i>.*`` for each device with a context of the program, or {} without CUDA.

    Only counters are read: nothing is synchronised, no context is created, and the current device does not change.
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
    """Return the bytes reserved by torch's allocator on a device.

    The result is None if the number is unknown or the program has no context on the device.
    """
    cuda = cuda_in_use()
    if cuda is None or index >= cuda.device_count() or not has_context(index):
        return None
    return _follow(_statistics(cuda, index), _STATISTICS["reserved_bytes"])


def _statistics(cuda: Any, index: int) -> Any:
    try:
        return cuda.memory_stats_as_nested_dict(index)
    except RuntimeError:
        # A custom allocator of the program keeps no statistics.
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


def read_pinned() -> dict[str, Number]:
    """Return ``pinned.allocated_bytes`` (in use) and ``pinned.reserved_bytes`` (with torch's cache of free blocks).

    The result is empty unless the program has initialised CUDA and its torch has ``torch.cuda.host_memory_stats``.
    Verified against the documented interface only, not on a GPU.
    """
    read = getattr(cuda_in_use(), "host_memory_stats", None)
    if read is None:
        return {}
    try:
        statistics = read()
    except RuntimeError:
        return {}
    # Newer versions of torch call the blocks in use active, and all blocks of the cache allocated.
    names = ("active_bytes", "allocated_bytes")
    if "active_bytes.current" not in statistics:
        names = ("allocated_bytes", "reserved_bytes")
    of = zip(("pinned.allocated_bytes", "pinned.reserved_bytes"), names, strict=True)
    return {
        name: int(statistics[f"{key}.current"])
        for name, key in of
        if f"{key}.current" in statistics
    }


_QUESTIONS: Final = {
    "allocated_bytes": "current_allocated_memory",
    "driver_bytes": "driver_allocated_memory",
    "limit_bytes": "recommended_max_memory",
}
# Not empty once the program has used the device; from then on, zero is a valid value.
_used: Final[set[str]] = set()


def read_mps() -> dict[str, Number]:
    """Return ``mps.*``: tensor bytes, bytes that Metal holds for this process, and Metal's recommended maximum.

    The result is empty until the program has used the device. It is also empty in a forked child, which cannot use the
    device.
    """
    mps = _mps_in_use()
    if mps is None:
        return {}
    samples: dict[str, Number] = {}
    for name, question in _QUESTIONS.items():
        ask = getattr(mps, question, None)
        if ask is not None:
            samples[f"mps.{name}"] = int(ask())
    if samples.get("mps.allocated_bytes"):
        _used.add("mps")
    return samples if _used else {}


def _mps_in_use() -> Any | None:
    mps, backend = sys.modules.get("torch.mps"), sys.modules.get("torch.backends.mps")
    if type(mps) is not ModuleType or type(backend) is not ModuleType:
        return None
    # The module is incomplete while another thread imports torch.
    is_available = vars(backend).get("is_available")
    is_in_bad_fork = vars(mps).get("_is_in_bad_fork")
    if is_available is None or not is_available():
        return None
    return None if is_in_bad_fork is not None and is_in_bad_fork() else mps
