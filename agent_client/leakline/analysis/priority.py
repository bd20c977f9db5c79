"""How urgent a finding is, by what it costs: three classes."""

from __future__ import annotations

from typing import Final, Literal

Priority = Literal["critical", "major", "minor"]

# Defaults of the classes, bytes per generation.
CRITICAL_BYTES: Final = 5e9
MAJOR_BYTES: Final = 1e9


def priority(rate: float) -> Priority:
    """``rate`` in bytes per generation."""
    if rate >= CRITICAL_BYTES:
        return "critical"
    return "major" if rate >= MAJOR_BYTES else "minor"


def one_worse(grade: Priority) -> Priority:
    return "major" if grade == "minor" else "critical"
