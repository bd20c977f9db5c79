"""What a run shows over some of its generations: growth, what phases keep, counts of a class. Processes add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from .assertions.declared_counts import matching_types
from .memory.memory_by_phase import LEAKLINE_LINE
from .results import Interval
from .statistics.memory_evidence import Scale
from .statistics.trend import Slope, floor_slope, theil_sen
from .timeline import SPACED, lies_within, spacing_of, top_level
from .timeline_analysis import LaneStudy
from .window import added, kept_per_generation

# Generations a phase is compared over; more say nothing more.
_PHASES_KEPT: Final = 256


class Stretch:
    """``positions``: of each study, which of its generations count, ascending."""

    def __init__(self, studies: Sequence[LaneStudy], positions: Sequence[Sequence[int]]) -> None:
        self._lanes = [(s, at) for s, at in zip(studies, positions, strict=True) if len(at) >= 2]
        self.generations = len({s.lane.generations[i] for s, at in self._lanes for i in at})

    def growth(self) -> Interval | None:
        """Private memory without what declared containers gained."""
        slopes = []
        for study, at in self._lanes:
            if study.lane.private:
                rest = study.residual(len(study.lane))
                slopes.append(floor_slope(_generations(study, at), [rest[i] for i in at]))
        return added(slopes)

    def kept(self) -> dict[str, Interval]:
        """By top-level phase, and by what lies outside of all."""
        found: dict[str, list[Slope]] = {}
        for study, at, booked in self._booked():
            x = _generations(study, at)
            tops = [_by_top_level(line) for line in booked]
            for name in sorted({name for line in tops for name in line} - {LEAKLINE_LINE}):
                amounts = [line.get(name, 0.0) for line in tops]
                found.setdefault(name, []).append(kept_per_generation(x, amounts))
        return {name: total for name, slopes in found.items() if (total := added(slopes))}

    def kept_by(self, phase: str) -> Interval | None:
        """Of one phase, which may be a nested one; None where it never ran."""
        slopes = []
        for study, at, booked in self._booked():
            inside = [_within(line, phase) for line in booked]
            if any(amount is not None for amount in inside):
                x = _generations(study, at)
                slopes.append(kept_per_generation(x, [amount or 0.0 for amount in inside]))
        return added(slopes)

    def counted(self, declared: str) -> Interval | None:
        """Instances of a class by which there are more per generation; None where nobody counted it."""
        slopes = []
        for study, at in self._lanes:
            for name in matching_types(study.lane, declared):
                column = study.lane.values(f"type.{name}.count")
                known = [(study.lane.generations[i], v) for i in at if (v := column[i]) is not None]
                if len(known) >= 2:
                    slopes.append(theil_sen([float(x) for x, _ in known], [float(y) for _, y in known]))  # fmt: skip
        return added(slopes)

    @cached_property
    def baseline(self) -> float:
        return sum(s.scale(1).baseline_bytes for s, _ in self._lanes if len(s.lane))

    def growth_that_matters(self) -> float:
        """Return the bytes per generation below which the verdict does not mind."""
        scale = Scale(self.baseline, spacing=self.spacing)
        return scale.material_rate(self.generations * self.spacing)

    @cached_property
    def spacing(self) -> int:
        """Return the usual distance between two of its generations."""
        return spacing_of(
            sorted({s.lane.generations[i] for s, at in self._lanes for i in at})[-SPACED:]
        )

    def _booked(self) -> Iterator[tuple[LaneStudy, range, Sequence[Mapping[str, float]]]]:
        """(study, positions, their books): without a gap, because what is kept is a running total."""
        for study, at in self._lanes:
            begin, end = max(at[0], at[-1] + 1 - _PHASES_KEPT), at[-1] + 1
            yield study, range(begin, end), study.booked[begin:end]


def _generations(study: LaneStudy, at: Sequence[int]) -> list[float]:
    return [float(study.lane.generations[i]) for i in at]


def _by_top_level(line: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path, amount in line.items():
        top = top_level(path)
        found[top] = found.get(top, 0.0) + amount
    return found


def _within(line: Mapping[str, float], phase: str) -> float | None:
    """None where nothing is booked to the phase."""
    found = [amount for path, amount in line.items() if lies_within(path, phase)]
    return sum(found) if found else None
