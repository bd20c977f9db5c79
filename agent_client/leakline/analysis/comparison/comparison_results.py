"""Results of comparing two runs: frozen dataclasses with the field names of the JSON contract."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..results import AssertionCheck, Finding, FixEffect, Interval

Outcome = Literal["fixed", "improved", "no_effect", "worse", "undecided"]
# The growth of two runs of the same program may differ by up to this share.
SAME: Final = 0.20
_NO_PERCENT: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Change:
    """A quantity measured in both runs. ``change_percent`` is None if the first value is zero or unknown."""

    before: Any
    after: Any
    change_percent: float | None


@dataclass(frozen=True, slots=True)
class GrowthChange:
    """Bytes per generation in both runs; ``difference`` is after minus before, with its own 90 % interval."""

    before: Interval | None
    after: Interval | None
    change_percent: float | None
    difference: Interval | None = None


@dataclass(frozen=True, slots=True)
class MemoryAfter:
    """Resident bytes of all processes at the end of ``generation``, the newest generation that both runs have.

    ``generations`` is the number of generations that both runs had completed by that point. ``before`` or ``after``
    is None if the run has no reading for that generation.
    """

    generation: int
    generations: int
    before: float | None
    after: float | None
    change_percent: float | None


@dataclass(frozen=True, slots=True)
class PhaseChange:
    phase: str
    before: Interval | None
    after: Interval | None
    change_percent: float | None
    difference: Interval | None = None


@dataclass(frozen=True, slots=True)
class TypeChange:
    """The growth and the final count of a type, over the generations that both runs have."""

    type: str
    before_per_generation: float | None
    after_per_generation: float | None
    before_last: int | None
    after_last: int | None
    change_percent: float | None = None
    difference: Interval | None = None


@dataclass(frozen=True, slots=True)
class GaugeChange:
    """A reported number other than memory, as its median over the generations that both runs have.

    ``same``: the difference is no larger than usual between two runs of the same program.
    """

    gauge: str
    before: float | None
    after: float | None
    change_percent: float | None
    same: bool | None


@dataclass(frozen=True, slots=True)
class Survival:
    """How far a run got.

    ``oom_at_generation`` is the generation at which memory is forecast to run out, or None without a forecast.
    """

    last_generation: int | None
    ended: bool
    oom_at_generation: Interval | None


@dataclass(frozen=True, slots=True)
class SurvivalChange:
    before: Survival
    after: Survival
    sentence: str


@dataclass(frozen=True, slots=True)
class FindingChanges:
    gone: tuple[Finding, ...] = ()
    still: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    before: str
    after: str
    outcome: Outcome
    summary: str
    generations_compared: int
    growth_bytes_per_generation: GrowthChange
    peak_bytes: Change
    seconds_per_generation: Change
    by_phase: tuple[PhaseChange, ...] = ()
    by_type: tuple[TypeChange, ...] = ()
    findings: FindingChanges = field(default_factory=FindingChanges)
    environment_changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    # The assertions of the second run.
    assertions: tuple[AssertionCheck, ...] = ()
    by_gauge: tuple[GaugeChange, ...] = ()
    survival: SurvivalChange | None = None
    # The effect of each fix in the second run, compared with the first run.
    effects: tuple[FixEffect, ...] = ()
    # None if the runs have no generation in common.
    memory_after: MemoryAfter | None = None
    # Same meaning as in `Verdict`.
    generations_passed: int | None = None


def change_of(
    before: Interval | None, after: Interval | None
) -> tuple[float | None, Interval | None]:
    """Return (percent, difference), or (None, None) if either growth is unknown.

    The errors are independent, so the widths of the intervals are added in quadrature.
    """
    if before is None or after is None:
        return None, None
    middle = after.estimate - before.estimate
    down = math.hypot(after.estimate - after.low, before.high - before.estimate)
    up = math.hypot(after.high - after.estimate, before.estimate - before.low)
    difference = Interval(middle, middle - down, middle + up)
    return percent_of(before.estimate, after.estimate), difference


def percent_of(before: float | None, after: float | None) -> float | None:
    if before is None or after is None or abs(before) < _NO_PERCENT:
        return None
    return round(100 * (after - before) / abs(before), 1)
