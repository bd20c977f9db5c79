"""Device memory as the driver counts it: every process on the card, and what of it is ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from leakline.snapshot import Number


class _Driver:
    """NVML, opened once per process; absent for good when it cannot be opened."""

    def __init__(self) -> None:
        self._pid = -1
        self._nvml: Any = None

    def open(self) -> Any:
        """The module, ready for calls; None without the binding, without a driver, or without permission."""
        if self._pid != os.getpid():
            # A forked child must not use its parent's handles.
            self._pid = os.getpid()
            self._nvml = _initialise()
        return self._nvml


_driver = _Driver()


def read_nvml() -> dict[str, Number]:
    """``gpu.<i>.used_bytes``, ``.total_bytes`` and ``.process_bytes``, numbered as the process sees its devices.

    ``process_bytes`` is absent when the driver does not name us, as in containers with their own process numbers.
    """
    nvml = _driver.open()
    if nvml is None:
        return {}
    samples: dict[str, Number] = {}
    try:
        for index, device in enumerate(_devices(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))):
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            samples[f"gpu.{index}.used_bytes"] = int(memory.used)
            samples[f"gpu.{index}.total_bytes"] = int(memory.total)
            ours = _process_bytes(nvml, device)
            if ours is not None:
                samples[f"gpu.{index}.process_bytes"] = ours
    except nvml.NVMLError:
        # A card that fell off the bus: what was read before it is still true.
        return samples
    return samples


def _initialise() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _devices(nvml: Any, visible: str | None) -> Iterator[Any]:
    count = nvml.nvmlDeviceGetCount()
    if visible is None:
        yield from (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count))
        return
    for name in filter(None, (part.strip() for part in visible.split(","))):
        if name.isdecimal():
            if int(name) >= count:
                # CUDA itself ignores everything from the first wrong entry on.
                return
            yield nvml.nvmlDeviceGetHandleByIndex(int(name))
        elif name.startswith("GPU-"):
            yield nvml.nvmlDeviceGetHandleByUUID(name)
        else:
            return


def _process_bytes(nvml: Any, device: Any) -> int | None:
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    except nvml.NVMLError:
        return None
    ours = [p.usedGpuMemory for p in processes if p.pid == os.getpid()]
    known = [size for size in ours if size is not None]
    return sum(known) if known else None
