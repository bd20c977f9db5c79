"""Memory of the Metal device, as PyTorch tells it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from leakline.snapshot import Number

_QUESTIONS: Final = {
    "allocated_bytes": "current_allocated_memory",
    "driver_bytes": "driver_allocated_memory",
    "limit_bytes": "recommended_max_memory",
}
# Filled once the program has put something on the device: then nothing there is a reading too.
_used: Final[set[str]] = set()


def read_mps() -> dict[str, Number]:
    """``mps.*``: tensors, all that Metal holds for this process, and what Metal recommends as the most.

    Empty until the program has put something on the device, and in a forked child, which cannot use it.
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
    # Half a module while another thread imports torch.
    is_available = vars(backend).get("is_available")
    is_in_bad_fork = vars(mps).get("_is_in_bad_fork")
    if is_available is None or not is_available():
        return None
    return None if is_in_bad_fork is not None and is_in_bad_fork() else mps
