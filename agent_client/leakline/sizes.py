"""Sizes as people write them -> bytes -> as they read them."""

from __future__ import annotations

import math
import re
from typing import Final

from .errors import BadArgument

_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_BINARY: Final = ("KiB", "MiB", "GiB", "TiB")
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def size_bytes(value: object, name: str, source: str = "argument") -> int:
    """Bytes from a number or a text such as "30 GiB" (2^30) or "30 GB" (10^9)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _UNITS.get(found[2].lower()) if found else None
    size = float(found[1]) * factor if found is not None and factor is not None else math.inf
    if size == math.inf:
        raise BadArgument(name, value, 'must be a size such as "30 GiB"', source)
    return int(size)


def format_bytes(value: float) -> str:
    """``7.10 GiB``, ``-3.20 MiB``, ``96 B``."""
    size = abs(value)
    sign = "-" if value < 0 else ""
    if size < 1024:
        return f"{sign}{size:.0f} B"
    for unit in _BINARY:
        size /= 1024
        if size < 1024 or unit == _BINARY[-1]:
            break
    return f"{sign}{size:.2f} {unit}"
