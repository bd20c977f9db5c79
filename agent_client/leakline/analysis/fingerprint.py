"""What makes two findings the same leak, in this run and in others: kind, phase and owner.

Not the holder, which one run finds late and another never.
"""

from __future__ import annotations

import hashlib
import re

from .attribution import Cause

_NUMBERS = re.compile(r"\d+")
_INDEXES = re.compile(r"\[[^\]]*\]")


def fingerprint_of(cause: Cause) -> str:
    """16 hexadecimal digits; equal for the same leak whatever the run is called."""
    owner = cause.owner.name if cause.owner is not None else ""
    parts = (cause.kind, cause.place.phase or "", normalised(owner))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def normalised(path: str) -> str:
    """A path without what changes from run to run: indexes, numbers, and ``__main__``."""
    path = _INDEXES.sub("[*]", path.removeprefix("__main__."))
    return _NUMBERS.sub("#", path)
