"""Memory that Python cannot measure, merged with the objects that grow in the same generations.

A handle of a C library is small by all that can be measured of it, and a small tensor keeps the freed memory around it
from going back to the system. So growth that no bytes explain belongs to what is counted one by one with it: since the
same generation, in the same phase, and only in generations in which memory rises. Types whose bytes are known whole
(numbers, strings, dictionaries, records of them) are not candidates: they cannot hide memory.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from ..series_facts import leads_into
from ..statistics.count_evidence import WINDOW, come_together
from ..timeline_analysis import Assessed, LaneStudy
from .candidates import Candidate, describe, family_of, may_hide_memory
from .causes import Cause, brings_some, holds, kind_of

_UNSEEN: Final = ("native", "allocator_retained")
# Whose memory is not the process's own: by the name of what the system lends.
_LENT: Final = {
    "children": re.compile(r"(?:^|[._])(\w*Process|Popen|Pool|\w*PoolExecutor|\w*DataLoaderIter)$"),
    "shared_memory": re.compile(r"(?:^|\.)(SharedMemory|mmap)$"),
}
# Who comes first of several that grow together: the program's classes own the others.
_ORDER: Final = ("object", "figure", "graph", "library", "tensor", "array", "container")
_NEAR: Final = (3.0, 0.10)  # generations; share of the age
_MIN_RISES: Final = 3
# The largest block that glibc takes from its heap, and so the largest hole that one tensor may keep open.
_LARGEST_HOLE: Final = 2**25
# Where a count rises every time: the part of the generations in which memory must rise, by this part of its rate.
_OFTEN: Final = 0.75
_SOME: Final = 0.1


def with_handles(
    study: LaneStudy, found: Sequence[Assessed], candidates: Sequence[Candidate], upto: int
) -> list[Assessed]:
    """Return the same, with growth that no bytes explain merged with the objects that rise with it."""
    result = list(found)
    for a in found:
        if a.cause.owner is not None or a.cause.kind not in (*_UNSEEN, *_LENT):
            continue
        owner = _rising_with(study, a, candidates, upto)
        if owner is None:
            continue
        merged = _merged(study, a, owner, candidates, result, upto)
        names = _names(merged)
        result = [
            merged if b is a else b
            for b in result
            if b is a or not (b.cause.members and _names(b) & names and _is_part(a, b))
        ]
    return result


def _rising_with(
    study: LaneStudy, a: Assessed, candidates: Sequence[Candidate], upto: int
) -> Candidate | None:
    near = [
        c
        for c in candidates
        if _may_keep(a, c) and _goes_with(a, c) and _in_step(study, a, c, upto)
    ]

    def rank(c: Candidate) -> tuple[bool, bool, bool, int, float, str]:
        owns = any(other.holder and leads_into(other.holder, c.name) for other in near)
        return (
            c.violation is None, not c.declared, not owns, _ORDER.index(c.family), c.growth.slope, c.name,
        )  # fmt: skip

    return min(near, key=rank, default=None)


def _may_keep(a: Assessed, c: Candidate) -> bool:
    """Return True if memory of this kind may lie behind a candidate, as far as its own bytes are known."""
    kind = a.cause.kind
    if kind in _LENT:
        return c.role == "type" and _LENT[kind].search(c.name) is not None
    if kind == "allocator_retained" and c.family in ("tensor", "array"):
        return a.cause.rate.estimate <= _LARGEST_HOLE * c.growth.slope
    if c.family in ("graph", "figure"):
        return True
    if c.role == "container":
        return c.bytes_rate is None
    return may_hide_memory(c)


def _goes_with(a: Assessed, c: Candidate) -> bool:
    """In the same phase, as far as both are known to be in one, and since about the same generation.

    What is known of a start is an interval: after a program that warms up, that of memory is wide.
    """
    phases = {place.phase for place in (a.cause.place, c.place)} - {None}
    if c.growth.rises < _MIN_RISES or len(phases) > 1 or a.start is None:
        return False
    estimate, low, high = a.start
    if c.growth.start_low <= high and low <= c.growth.start_high:
        return True
    least, share = _NEAR
    return abs(c.growth.start - estimate) <= max(least * a.scale.spacing, share * a.window)


def _in_step(study: LaneStudy, a: Assessed, c: Candidate, upto: int) -> bool:
    """Return True if memory rises in the generations in which the count does; of children nobody counts that often."""
    lane = study.lane
    series = study.facts.series_of(c.name, c.role)
    if a.cause.kind in _LENT or series is None or not lane.private:
        return True
    first = max(0, upto - WINDOW, bisect_left(lane.generations, c.growth.start, 0, upto) - 1)
    x, memory = [float(g) for g in lane.generations[first:upto]], study.residual(upto)[first:]
    at, counts = lane.points(series, upto, newest=WINDOW)
    read = [i for i, g in enumerate(at) if g >= x[0]]
    if not any(counts[b] > counts[b - 1] for b in read[1:]):
        return True
    if any(counts[b] == counts[b - 1] for b in read[1:]):
        # Generations without a new one are there to compare with, if each was read.
        spacing = lane.spacing(upto)
        gaps = any(b - a > spacing for a, b in pairwise(at[i] for i in read))
        return gaps or come_together(x, memory, at, counts)
    least = _SOME * max(0.0, memory[-1] - memory[0]) / max(1, len(memory) - 1)
    # Two together: the heap grows in steps.
    rises = [memory[i + 2] - memory[i] > least for i in range(len(memory) - 2)]
    return not rises or sum(rises) >= _OFTEN * len(rises)


def _merged(
    study: LaneStudy,
    a: Assessed,
    owner: Candidate,
    candidates: Sequence[Candidate],
    found: Sequence[Assessed],
    upto: int,
) -> Assessed:
    """Return the unexplained growth as that of its owner, with what is already known of the same objects."""
    known = next((b for b in found if b is not a and owner in b.cause.members), None)
    members = _members(study, a, owner, candidates, known, upto)
    first = members[0]
    same = known is not None and known.cause.owner == first
    kind = a.cause.kind
    if kind in _UNSEEN:
        kind = (
            known.cause.kind
            if same and known is not None
            else kind_of(first, members[1:], max(a.cause.rate.estimate, 1.0))
        )
    rate = a.cause.rate
    if known is not None and a.channel == known.channel and known.cause.rate.estimate > 0:
        rate = rate.plus(known.cause.rate)
    places = (first.place, known.cause.place if known else first.place, a.cause.place)
    cause = Cause(
        kind, next((p for p in places if p.phase is not None), a.cause.place), members,
        known.cause.measured if same and known is not None else first.bytes_rate if first.deep else None,
        rate, behind=a.cause.kind if a.cause.kind in _UNSEEN else None,
    )  # fmt: skip
    g = first.growth
    steady = {"steady"} if g.pattern in ("constant", "periodic") else set()
    more = known.witnesses if same and known is not None else frozenset()
    return replace(
        a, cause=cause, start=(g.start, g.start_low, g.start_high),
        witnesses=a.witnesses | more | {"counts"} | steady,
    )  # fmt: skip


def _members(
    study: LaneStudy,
    a: Assessed,
    owner: Candidate,
    candidates: Sequence[Candidate],
    known: Assessed | None,
    upto: int,
) -> tuple[Candidate, ...]:
    """Return the owner and what belongs to it; the objects in a container come before the container."""
    if known is not None and known.cause.owner is not None:
        first = known.cause.owner
        inside = owner.holder is not None and leads_into(owner.holder, first.name)
        if first == owner or inside or (_may_keep(a, first) and first.role == "type"):
            return known.cause.members
    kept = [
        c
        for c in candidates
        if c.role == "container" and c != owner and (holds(c, owner) or brings_some(c, owner))
    ]
    if owner.role == "type":
        return (owner, *kept)
    return (*_items_of(study, owner, upto)[:1], owner, *kept)


def _items_of(study: LaneStudy, container: Candidate, upto: int) -> list[Candidate]:
    """Return the types whose count rose as much as the container between each two readings, with its growth."""
    lane, series = study.lane, f"container.{container.name}.length"
    if not lane.has(series):
        return []
    lengths = dict(zip(*lane.points(series, upto), strict=True))
    found = []
    for counted, name, role in study.facts.count_series:
        if role != "type" or family_of(name, role) == "plain":
            continue
        read = [(x, n) for x, n in zip(*lane.points(counted, upto), strict=True) if x in lengths]
        gained = [(n - m, lengths[x] - lengths[w]) for (w, m), (x, n) in pairwise(read)]
        if len(read) >= _MIN_RISES and all(own == theirs > 0 for own, theirs in gained):
            found.append(describe(study.facts, counted, name, "type", container.growth, upto))
    return sorted(found, key=lambda c: (c.holder is None, _ORDER.index(c.family), c.name))


def _is_part(a: Assessed, b: Assessed) -> bool:
    """Return True if another finding of the same names is told with this one: the same memory, or next to none."""
    idle = not b.scale.is_material(b.cause.rate.estimate, b.window)
    return idle or (b.channel == a.channel and b.cause.rate.estimate > 0)


def _names(a: Assessed) -> set[tuple[str, str]]:
    return {(member.name, member.role) for member in a.cause.members}
