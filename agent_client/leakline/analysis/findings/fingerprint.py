"""What makes two findings the same leak, in this run and in others: kind, phase and owner.

Not the holder, which one run finds late and another never.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from ..attribution.causes import Cause
from ..results import Finding

_NUMBERS = re.compile(r"\d+")
_INDEXES = re.compile(r"\[[^\]]*\]")

# Kinds that are growth of the process's own memory: better readings turn one into another.
_OWN_MEMORY: Final = frozenset(
    {
        "objects", "tensors", "graph", "arrays", "container", "cyclic_garbage", "native",
        "allocator_retained", "count_contract",
    }
)  # fmt: skip
_NEAR: Final = 3.0  # generations


def fingerprint_of(cause: Cause) -> str:
    """16 hexadecimal digits; equal for the same leak whatever the run is called."""
    owner = cause.owner.name if cause.owner is not None else ""
    parts = (cause.kind, cause.place.phase or "", normalised(owner))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def normalised(path: str) -> str:
    """A path without what changes from run to run: indexes, numbers, and ``__main__``."""
    path = _INDEXES.sub("[*]", path.removeprefix("__main__."))
    return _NUMBERS.sub("#", path)


def goes_on_as(old: Finding, new: Finding) -> bool:
    """Whether a finding of another fingerprint is the same leak of the same run, known better by now."""
    kinds = old.kind == new.kind or {old.kind, new.kind} <= _OWN_MEMORY
    phases = old.phase == new.phase or None in (old.phase, new.phase)
    if not (kinds and phases and _of_one_process(old, new)):
        return False
    if old.suspects and new.suspects:
        return shares_names(old, new)
    starts = old.started_at_generation, new.started_at_generation
    return None not in starts and abs(starts[0].estimate - starts[1].estimate) <= _NEAR  # type: ignore[union-attr]


def shares_names(old: Finding, new: Finding) -> bool:
    """Whether a type, container or holder is named in both."""
    a, b = ({normalised(s.name) for s in finding.suspects} for finding in (old, new))
    return bool(a & b)


def _of_one_process(old: Finding, new: Finding) -> bool:
    """Alike ranks are one finding, and one rank may be known better before the others are."""
    if old.process is None or new.process is None:
        return True
    return bool(set(old.process.split(", ")) & set(new.process.split(", ")))
