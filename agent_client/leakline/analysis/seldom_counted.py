"""Types that only censuses count, where those were few: growth of no name beside one whose bytes rose by as much.

Bytes, strings and arrays are counted when a census is taken, ever more seldom in a program that calls nothing of ours:
after 2, 4, 8 and 16 intervals. That is too few for a pattern of counts, and enough to say what memory was gained by:
between any two of them, memory and the bytes of one type rose alike. It gives a growth its name, and no witness more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

from .candidates import Candidate, bytes_series, describe, family_of
from .counts import LOOK_BACK, CountGrowth
from .series import Lane
from .study import Assessed, LaneStudy

_MIN_READINGS: Final = 3
# Of what memory gained between the first of them and the last, and between any two.
_MOST: Final = 0.6
_EACH: Final = 0.4
_OVERSHOOT: Final = 1.3
# The part of the growth's time that lies between the first reading and the last: their gaps double at most.
_PART: Final = 0.4


def with_seldom_counted(study: LaneStudy, found: Sequence[Assessed], upto: int) -> list[Assessed]:
    """The same, with native growth named after the type whose bytes rose by most of it, if there is one."""
    return [_named(study, a, upto) if a.cause.kind == "native" else a for a in found]


def _named(study: LaneStudy, a: Assessed, upto: int) -> Assessed:
    rising = [
        candidate
        for series, name, role in study.facts.count_series
        if role == "type" and (candidate := _risen_with(study, a, series, name, role, upto))
    ]
    if not rising or a.cause.owner is not None:
        return a
    owner = max(rising, key=lambda c: (c.bytes_rate or 0.0, c.name))
    kind: Literal["objects", "arrays", "tensors"] = "objects"
    if owner.family in ("array", "tensor"):
        kind = "arrays" if owner.family == "array" else "tensors"
    place = a.cause.place if a.cause.place.phase is not None else owner.place
    cause = replace(a.cause, kind=kind, place=place, members=(owner,), measured=owner.bytes_rate)
    return replace(a, cause=cause)


def _risen_with(
    study: LaneStudy, a: Assessed, series: str, name: str, role: Literal["type"], upto: int
) -> Candidate | None:
    """The type as what grows, when memory rose by its bytes since the growth began."""
    family = family_of(name, role)
    if not study.lane.has(bytes_series(name, family)):
        return None
    begin = a.start[0] - 1 if a.start is not None else 0.0
    x, sizes = _since(study.lane, bytes_series(name, family), upto, begin)
    at, counts = _since(study.lane, series, upto, begin)
    if len(x) < _MIN_READINGS or at != x or x[-1] - x[0] < _PART * a.window:
        return None
    if not (_is_what_memory_gained(study, x, sizes, upto) and _rises(counts)):
        return None
    growth = _growth(a, x, counts)
    known = describe(study.facts, series, name, role, growth, upto)
    return replace(known, bytes_rate=(sizes[-1] - sizes[0]) / (x[-1] - x[0]))


def _since(lane: Lane, series: str, upto: int, begin: float) -> tuple[list[float], list[float]]:
    """What is counted more often than that has a pattern of its own."""
    x, y = lane.points(series, upto, newest=LOOK_BACK)
    first = next((i for i, at in enumerate(x) if at >= begin), len(x))
    return x[first:], y[first:]


def _rises(values: Sequence[float]) -> bool:
    return all(before < now for before, now in pairwise(values))


def _is_what_memory_gained(
    study: LaneStudy, x: Sequence[float], sizes: Sequence[float], upto: int
) -> bool:
    memory = study.residual(upto)
    level = [memory[study.lane.position[int(at)]] for at in x]
    gained = level[-1] - level[0]
    if not _MOST * gained <= sizes[-1] - sizes[0] <= _OVERSHOOT * gained:
        return False
    steps = zip(pairwise(level), pairwise(sizes), strict=True)
    return all(size[1] - size[0] >= _EACH * max(0.0, now - was) for (was, now), size in steps)


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
