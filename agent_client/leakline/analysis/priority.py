"""How urgent a finding is, by what it costs: three classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Priority = Literal["critical", "major", "minor"]


@dataclass(frozen=True, slots=True)
class Priorities:
    """From how many bytes per generation on a finding is major, and critical."""

    major_bytes: float = 1e9
    critical_bytes: float = 5e9


DEFAULTS: Final = Priorities()


def priority(rate: float, limits: Priorities = DEFAULTS) -> Priority:
    """``rate`` in bytes per generation."""
    if rate >= limits.critical_bytes:
        return "critical"
    return "major" if rate >= limits.major_bytes else "minor"


def one_worse(grade: Priority) -> Priority:
    return "major" if grade == "minor" else "critical"
