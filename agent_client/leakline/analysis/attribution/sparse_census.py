"""Types whose bytes rose by what memory gained, however many of them there are: growth without a name gets theirs.

Bytes of strings, arrays and tensors are read when a census is taken, ever more seldom in a program that calls nothing
of ours: after 2, 4, 8 and 16 intervals. That is too few for a pattern of counts, and enough to say what memory was
gained by: between any two of them, memory and the bytes of one type rose alike. Their number may stay the same: one
tensor that is concatenated with each batch grows by itself. It gives a growth its name, and no witness more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

from ..results import Kind
from ..run_history import Value
from ..statistics.count_evidence import LOOK_BACK, CountGrowth, grow_larger
from ..timeline_analysis import Assessed, LaneStudy
from .candidates import Candidate, bytes_series, describe, family_of

_NAMELESS: Final = ("native", "allocator_retained")
_MIN_READINGS: Final = 3
# Readings that are compared step by step: of more, memory scatters between two.
_STEPS: Final = 8
_STEPS_THAT_MAY_MISS_ONE: Final = 4
# Of what memory gained between the first of them and the last, and between any two.
_MOST: Final = 0.6
_EACH: Final = 0.4
_OVERSHOOT: Final = 1.3
# The part of the growth's time that lies between the first reading and the last: their gaps double at most.
_PART: Final = 0.4
# Generations between the two at least, where less than this part is.
_MIN_SPAN: Final = 8


def with_seldom_counted(study: LaneStudy, found: Sequence[Assessed], upto: int) -> list[Assessed]:
    """The same, with growth that has no name named after the type whose bytes rose by most of it, if there is one."""
    return [
        _named(study, a, found, upto) if a.cause.kind in _NAMELESS and a.cause.owner is None else a
        for a in found
    ]


def _named(study: LaneStudy, a: Assessed, found: Sequence[Assessed], upto: int) -> Assessed:
    memory = _without_named(study, a, found, upto)
    begin = a.start[0] - 1 if a.start is not None else 0.0
    # What is counted more often than that has a pattern of its own.
    first = max(0, upto - LOOK_BACK, bisect_left(study.lane.generations, begin))
    rising = [
        candidate
        for series, name, role in study.facts.count_series
        if role == "type"
        and (candidate := _risen_with(study, a, memory, series, name, first, upto))
    ]
    if not rising:
        return a
    # All classes of tensors share one series of bytes: take the class whose own bytes rose most in a census, then
    # the one whose number did.
    owner = max(
        rising,
        key=lambda c: (c.bytes_rate or 0.0, _gained(study, c, first, upto), c.growth.slope, c.name),
    )
    kind: Literal["objects", "arrays", "tensors"] = "objects"
    if owner.family in ("array", "tensor"):
        kind = "arrays" if owner.family == "array" else "tensors"
    place = a.cause.place if a.cause.place.phase is not None else owner.place
    behind: Kind | None = "allocator_retained" if a.cause.kind == "allocator_retained" else None
    cause = replace(
        a.cause, kind=kind, place=place, members=(owner,), measured=owner.bytes_rate, behind=behind
    )
    return replace(a, cause=cause)


def _gained(study: LaneStudy, candidate: Candidate, first: int, upto: int) -> float:
    """Return by how much the bytes of the type itself rose; 0 where no census has counted them."""
    series = f"type.{candidate.name}.bytes"
    if not study.lane.has(series):
        return 0.0
    _, sizes = _read(study.lane.values(series), first, upto)
    return sizes[-1] - sizes[0] if sizes else 0.0


def _without_named(
    study: LaneStudy, a: Assessed, found: Sequence[Assessed], upto: int
) -> list[float]:
    """Return memory by generation without what other causes gain that have a name, from the start of each."""
    memory = list(study.residual(upto))
    for other in found:
        if other is a or other.channel != a.channel or other.cause.owner is None:
            continue
        rate, start = other.cause.rate.estimate, other.start[0] if other.start is not None else 0.0
        for i, generation in enumerate(study.lane.generations[: len(memory)]):
            memory[i] -= rate * max(0.0, generation - start)
    return memory


def _risen_with(
    study: LaneStudy, a: Assessed, memory: Sequence[float], series: str, name: str, first: int, upto: int
) -> Candidate | None:  # fmt: skip
    """The type as what grows, when memory rose by its bytes since the growth began, at position ``first``."""
    lane, owned = study.lane, bytes_series(name, family_of(name, "type"))
    if not lane.has(owned):
        return None
    ends = _ends(lane.values(owned), first, upto)
    # Of thousands of types hardly one gains what memory does: no more of the others is read.
    if ends is None or not _explains(memory, lane.values(owned), *ends):
        return None
    where, sizes = _read(lane.values(owned), first, upto)
    counts = _known_by(lane.values(series), where)
    x = [float(lane.generations[i]) for i in where]
    if not counts or len(x) < _MIN_READINGS:
        return None
    if x[-1] - x[0] < _PART * a.window and not _goes_on(study, memory, where, sizes):
        return None
    if not _in_step([memory[i] for i in where], sizes):
        return None
    if grow_larger((counts[0], sizes[0]), (counts[-1], sizes[-1])):
        counts = [counts[-1]] * len(counts)
    known = describe(study.facts, series, name, "type", _growth(a, x, counts), upto)
    return replace(known, bytes_rate=(sizes[-1] - sizes[0]) / (x[-1] - x[0]))


def _goes_on(
    study: LaneStudy, memory: Sequence[float], where: Sequence[int], sizes: Sequence[float]
) -> bool:
    """Return True if memory has gone on rising as the bytes did: where nothing was counted since, the name stays."""
    lane, last = study.lane, len(memory) - 1
    before = lane.generations[where[-1]] - lane.generations[where[0]]
    since = lane.generations[last] - lane.generations[where[-1]]
    if before < _MIN_SPAN * lane.spacing(len(memory)) or not since:
        return False
    rate = (sizes[-1] - sizes[0]) / before
    return (
        _MOST * (memory[last] - memory[where[-1]])
        <= rate * since
        <= _OVERSHOOT * (memory[last] - memory[where[-1]])
    )


def _ends(values: Sequence[Value], first: int, upto: int) -> tuple[int, int] | None:
    """Where the first and the last reading is."""
    begin = next((i for i in range(first, upto) if values[i] is not None), None)
    if begin is None:
        return None
    return begin, next(i for i in range(upto - 1, begin - 1, -1) if values[i] is not None)


def _read(values: Sequence[Value], first: int, upto: int) -> tuple[list[int], list[float]]:
    """Return positions and readings, at most `_STEPS` of them, the first and the last among these."""
    there = [(i, float(v)) for i, v in enumerate(values[first:upto], first) if v is not None]
    if len(there) > _STEPS:
        there = [there[round(k * (len(there) - 1) / (_STEPS - 1))] for k in range(_STEPS)]
    return [i for i, _ in there], [v for _, v in there]


def _known_by(counted: Sequence[Value], where: Sequence[int]) -> list[float]:
    """Return the newest count at each of these positions; empty where none was read by the last."""
    counts: list[float] = []
    for i in where:
        known = next((float(v) for v in reversed(counted[: i + 1]) if v is not None), None)
        if known is not None:
            counts += [known] * (1 if counts else where.index(i) + 1)
    return counts


def _explains(memory: Sequence[float], sizes: Sequence[Value], first: int, last: int) -> bool:
    """Whether the bytes gained what memory gained between the two."""
    gained, before, now = memory[last] - memory[first], sizes[first] or 0, sizes[last] or 0
    return gained > 0 and _MOST * gained <= now - before <= _OVERSHOOT * gained


def _in_step(memory: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return True if the bytes rose with memory in each step, but for one of several: in the first generations memory
    also gains what the program loads, and a census in slices reports the bytes of the generation before.
    """
    steps = zip(pairwise(memory), pairwise(sizes), strict=True)
    behind = [size for (was, now), size in steps if size[1] - size[0] < _EACH * max(0.0, now - was)]
    few = len(sizes) - 1 < _STEPS_THAT_MAY_MISS_ONE
    return not behind or (not few and len(behind) == 1 and behind[0][1] > behind[0][0])


def _growth(a: Assessed, x: Sequence[float], counts: Sequence[float]) -> CountGrowth:
    rises = [
        (now - was) / (at - before)
        for (before, at), (was, now) in zip(pairwise(x), pairwise(counts), strict=True)
    ]
    gained, (start, low, high) = counts[-1] - counts[0], a.start or (x[0], x[0], x[0])
    return CountGrowth(
        "irregular", gained / (x[-1] - x[0]), min(rises), max(rises), start, low, high,
        len(rises), a.window, gained / len(rises),
    )  # fmt: skip
