"""Sizes as people write them -> bytes -> as they read them; and a word before the sentence that it sums up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from .errors import BadArgument

_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# How the sentence of a run says that the kernel killed it.
KILLED_FOR_MEMORY: Final = "Killed for memory"
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
    """``7.10 GiB``, ``-3.20 MiB``, ``1,009.40 KiB``, ``96 B``."""
    amount, unit = abs(value), 0
    # 1023.995 would be printed as 1024.00 of the smaller unit.
    while unit < len(_BINARY) - 1 and amount >= (1023.995 if unit else 1023.5):
        amount /= 1024
        unit += 1
    # Half up, as in JavaScript; Python's own rounding goes to the even neighbour.
    text = f"{amount:,.2f}" if unit else f"{math.floor(amount + 0.5):,}"
    sign = "-" if value < 0 and text.strip("0.") else ""
    return f"{sign}{text} {_BINARY[unit]}"


def with_forecast(said: str, oom: object) -> str:
    """Return what was said of a run with when its memory runs out, where that is a risk and did not happen."""
    if not isinstance(oom, Mapping) or not oom.get("generation") or not oom.get("sentence"):
        return said
    if oom.get("risk") == "none" or KILLED_FOR_MEMORY in said:
        return said
    return f"{said}; {oom['sentence']}"


def worded(word: str, sentence: str) -> str:
    """``fixed: 16 MiB per generation before, 0 B after``: a status or an outcome, which no sentence need repeat."""
    again = word.replace("_", " ")
    says_it = sentence.lower().startswith((f"{again}: ", f"{again}, "))
    return f"{word}: {sentence[len(again) + 2 :] if says_it else sentence}"
