"""Torch's own tensor types, and the storage behind a tensor.

Only objects of exactly these types are examined, with torch's function overrides switched off. Nothing here loads torch
or copies data from a device, and all functions may be called on any thread.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any


def tensor_types() -> tuple[type, ...]:
    """Return torch's Tensor, Parameter and Buffer, or () if the program has not loaded torch."""
    torch: Any = sys.modules.get("torch")
    nn: Any = sys.modules.get("torch.nn.parameter")
    found = (
        getattr(torch, "Tensor", None), getattr(nn, "Parameter", None), getattr(nn, "Buffer", None),
    )  # fmt: skip
    return tuple(kind for kind in found if isinstance(kind, type))


def storage_key(tensor: Any) -> tuple[int, int] | None:
    """Return (address, bytes) of a tensor's storage, or None if the tensor has no storage of its own.

    The tensor must have one of the `tensor_types`.
    """
    try:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        # A storage without memory (meta device, freed by sharding) has no data address to identify it.
        return (storage.data_ptr() or storage._cdata, size)
    except RuntimeError:
        # Sparse, nested, functional and vmap-batched tensors have no storage of their own.
        return None


def overrides_off() -> Any:
    """Return a context without torch's function overrides, so that our calls do not run the program's modes."""
    torch: Any = sys.modules.get("torch")
    switch = getattr(getattr(torch, "_C", None), "DisableTorchFunction", None)
    return nullcontext() if switch is None else switch()
