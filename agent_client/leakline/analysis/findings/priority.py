"""How urgent a finding is, by when memory runs out, by its share of the limit and by its bytes: three classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from ..results import Finding, Interval

Priority = Literal["critical", "major", "minor"]

# Findings about memory of devices, which has limits of its own.
OF_DEVICES: Final = ("gpu", "gpu_fragmentation")


@dataclass(frozen=True, slots=True)
class Priorities:
    """From how many bytes per generation on a finding is major, and critical, whatever the limit is.

    Below that a finding that takes ``share`` of the limit by the planned end is major, and critical where memory runs
    out before. Without a plan the end is ``hours`` away.
    """

    major_bytes: float = 1e9
    critical_bytes: float = 5e9
    share: float = 0.10
    hours: float = 24.0


DEFAULTS: Final = Priorities()


@dataclass(frozen=True, slots=True)
class Ahead:
    """A run up to its planned end, or as many ``hours`` on: generations from ``now``, and until memory runs out."""

    limit_bytes: float
    now: float
    generations: float
    left: float | None


def priority(rate: float, limits: Priorities = DEFAULTS) -> Priority:
    """``rate`` in bytes per generation."""
    if rate >= limits.critical_bytes:
        return "critical"
    return "major" if rate >= limits.major_bytes else "minor"


def one_worse(grade: Priority) -> Priority:
    return "major" if grade == "minor" else "critical"


def raised(
    findings: Sequence[Finding],
    ahead: Ahead | None,
    on_device: Ahead | None = None,
    limits: Priorities = DEFAULTS,
) -> list[Finding]:
    """Return the findings with the class that the time to the end of memory gives, where that is a higher one.

    ``on_device``: until the memory of a device runs out.
    """
    order = get_args(Priority)
    found = []
    for each in findings:
        until = on_device if each.kind in OF_DEVICES else ahead
        if until is not None:
            grade = min(each.priority, by_limit(each, until, limits), key=order.index)
            each = replace(each, priority=grade)
        found.append(each)
    return found


def by_limit(finding: Finding, ahead: Ahead, limits: Priorities = DEFAULTS) -> Priority:
    """Rate what a finding has taken and takes until the end by its share of the limit."""
    if finding.status not in ("watch", "suspected", "confirmed"):
        return "minor"
    start: Interval | None = finding.started_at_generation
    since = max(0.0, ahead.now - start.estimate) if start else 0.0
    rate = finding.growth_bytes_per_generation.estimate
    if rate * (since + ahead.generations) < limits.share * ahead.limit_bytes:
        return "minor"
    runs_out = ahead.left is not None and ahead.left <= ahead.generations
    # What is only watched may still stop.
    return "critical" if runs_out and finding.status != "watch" else "major"
