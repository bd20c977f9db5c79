"""Two readings are enough: declared counts that are broken, and tensors that multiply while memory leaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .candidates import Candidate, describe
from .contracts import Violation
from .counts import CountGrowth
from .study import LaneStudy, first_generation, last_row_of

# Within the first few generations: a count of tensors this many times larger and memory this much larger,
# in a phase that had run before.
_EXPLOSION_COUNT: Final = 5.0
_EXPLOSION_MEMORY: Final = 0.4
_YOUNG: Final = 4


def with_surplus(study: LaneStudy, upto: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    violations = study.facts.violations(last_row_of(study, upto))
    found = []
    for candidate in candidates:
        broken = violations.pop(candidate.name, None) if candidate.role == "type" else None
        found.append(replace(candidate, violation=broken) if broken else candidate)
    for name, violation in violations.items():
        growth = _growth_since_violation(study, name, violation, upto)
        found.append(
            describe(study.facts, f"type.{name}.count", name, "type", growth, upto, violation)
        )
    return found


def _growth_since_violation(
    study: LaneStudy, name: str, violation: Violation, upto: int
) -> CountGrowth:
    """How a broken count moved, from the last reading that held to the newest: two readings are enough."""
    lane = study.lane
    begin = float(lane.generation[violation.first_row] or first_generation(lane))
    held = None if violation.row_before is None else lane.generation[violation.row_before]
    until = lane.generation[: last_row_of(study, upto) + 1]
    newest = float(max((g for g in until if g is not None), default=begin))
    if violation.count_before is None:
        # It never held: what it gained since its first reading is all that is known to have grown.
        gained = violation.count - violation.first_count
        span = max(1.0, newest - begin)
    else:
        gained, span = violation.count - violation.count_before, newest - begin + 1
    low = begin if held is None else min(begin, float(held))
    each = gained / span
    return CountGrowth("irregular", each, each, each, begin, low, begin, 1, span, gained)


def exploded(study: LaneStudy, upto: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Tensors that multiply within a phase which ran before, while memory leaps: too early for any trend."""
    lane = study.lane
    if upto >= _YOUNG or upto < 2 or len(lane.private) < 2 or candidates:
        return []
    if lane.private[upto - 1] < (1 + _EXPLOSION_MEMORY) * lane.private[upto - 2]:
        return []
    found = []
    for series, name, role in study.facts.count_series:
        if name.rsplit(".", 1)[-1] not in ("Tensor", "ndarray"):
            continue
        x, counts = lane.points(series, upto)
        if len(x) < 2 or counts[-2] <= 0 or counts[-1] < _EXPLOSION_COUNT * counts[-2]:
            continue
        gained = counts[-1] - counts[-2]
        growth = CountGrowth(
            "irregular", gained, gained, gained, x[-1], x[-1], x[-1], 1, 1.0, gained
        )
        candidate = describe(study.facts, series, name, role, growth, upto)
        if candidate.family in ("tensor", "graph"):
            found.append(candidate)
    return found
