"""A few readings are enough: declared counts that are broken, tensors that multiply while memory leaps, and sizes that
grow in step with memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .candidates import Candidate, bytes_series, describe
from .contracts import Violation
from .counts import LOOK_BACK, CountGrowth
from .study import LaneStudy, first_generation, last_row_of

# Within the first few generations: a count of tensors this many times larger and memory this much larger,
# in a phase that had run before.
_EXPLOSION_COUNT: Final = 5.0
_EXPLOSION_MEMORY: Final = 0.4
_YOUNG: Final = 4
# Looks at the heap that say what memory grows by: at each, the measured bytes have risen by so much of what memory has.
_LOOKS: Final = 3
_IN_STEP: Final = 0.5
_MOST_LOOKS: Final = 16

# Generation, count, bytes.
_Look = tuple[float, float, float]


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


def in_step(study: LaneStudy, upto: int, known: Sequence[Candidate]) -> Candidate | None:
    """The type whose measured bytes rise with private memory from look to look, and account for most of it.

    Looks become rarer while no count is known to rise, so a count has its four rises late, half a minute into a run by
    the second. Until then this says whose memory it is; that the memory grows is for others to say. ``known``: what is
    told already.
    """
    named = {candidate.name for candidate in known}
    found = [
        candidate
        for series, name, role in study.facts.count_series
        if role == "type" and name not in named
        and (candidate := _in_step(study, series, name, upto)) is not None
    ]  # fmt: skip
    return max(
        found, key=lambda candidate: (candidate.bytes_rate or 0.0, candidate.name), default=None
    )


def _in_step(study: LaneStudy, series: str, name: str, upto: int) -> Candidate | None:
    looks = _looks_in_step(study, series, bytes_series(name), upto)
    if len(looks) < _LOOKS:
        return None
    (first, few, small), (last, many, large) = looks[0], looks[-1]
    each, size = (many - few) / (last - first), (large - small) / (last - first)
    growth = CountGrowth(
        "irregular", each, each, each, first, first, looks[1][0], len(looks) - 1, last - first, each
    )
    candidate = describe(study.facts, series, name, "type", growth, upto)
    return replace(candidate, bytes_rate=size)


def _looks_in_step(study: LaneStudy, series: str, sizes: str, upto: int) -> list[_Look]:
    """The newest looks in order, where at each both have risen since the one before; empty where they have not."""
    lane, found = study.lane, list[_Look]()
    if not (lane.private and lane.has(sizes)):
        return found
    counts = lane.values(series)
    newest = [count for count in counts[max(0, upto - LOOK_BACK) : upto] if count is not None]
    # Of hundreds of types most stand still, and are done with here.
    if len(newest) < _LOOKS or not newest[0] <= newest[-2] < newest[-1]:
        return found
    owned = lane.values(sizes)
    for i in range(upto - 1, max(-1, upto - 1 - LOOK_BACK), -1):
        count, size = counts[i], owned[i]
        if count is None or size is None:
            continue
        look = (float(lane.generations[i]), float(count), float(size))
        if found and not _rises_with(study, look, found[-1]):
            return []
        found.append(look)
        if len(found) == _MOST_LOOKS:
            break
    return found[::-1]


def _rises_with(study: LaneStudy, before: _Look, now: _Look) -> bool:
    private, position = study.lane.private, study.lane.position
    gained = private[position[int(now[0])]] - private[position[int(before[0])]]
    return now[1] > before[1] and gained > 0 and now[2] - before[2] >= _IN_STEP * gained
