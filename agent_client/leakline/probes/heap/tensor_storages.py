"""torch's own tensor types, and the memory under a tensor.

Only objects whose exact type is one of these are asked anything, with torch's function overrides switched off. Nothing
here loads torch or copies from a device, and all of it may be asked on any thread.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any


def tensor_types() -> tuple[type, ...]:
    """Tensor, Parameter and Buffer of torch, or nothing while the program has not loaded torch."""
    torch: Any = sys.modules.get("torch")
    nn: Any = sys.modules.get("torch.nn.parameter")
    found = (
        getattr(torch, "Tensor", None), getattr(nn, "Parameter", None), getattr(nn, "Buffer", None),
    )  # fmt: skip
    return tuple(kind for kind in found if isinstance(kind, type))


def storage_key(tensor: Any) -> tuple[int, int] | None:
    """(address, bytes) of the memory under a tensor of an exact torch type; None where it has no single one."""
    try:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        # A storage without memory of its own (meta device, freed by sharding) has no address to go by.
        return (storage.data_ptr() or storage._cdata, size)
    except RuntimeError:
        # Sparse, nested, batched by vmap, or functional: no storage of its own.
        return None


def overrides_off() -> Any:
    """A context without torch's function overrides: ours must not run the program's modes."""
    torch: Any = sys.modules.get("torch")
    switch = getattr(getattr(torch, "_C", None), "DisableTorchFunction", None)
    return nullcontext() if switch is None else switch()
