"""Owners of growth that Python cannot measure: native handles, and types that are counted in few censuses.

The measured size of a C library's handle is small, and a small tensor can prevent the freed memory around it from
being returned to the system. Growth without measured bytes is therefore attributed to objects whose count rises
with it: since the same generation, in the same phase, and only in generations in which memory rises. Types whose
bytes are fully known (numbers, strings, dictionaries and records of these) are not candidates: they cannot hide
memory.

Bytes of strings, arrays and tensors are read in censuses, which become rarer in a program that does not call this
library: after 2, 4, 8 and 16 intervals. These readings are too few to show a pattern in the counts, but they suffice to
identify the owner if memory and the bytes of one type rose by similar amounts between each two consecutive censuses.
The type's count may stay the same, for example if each batch is concatenated onto a single tensor. The match identifies
the owner of growth, but is not additional evidence of the growth.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

from ...snapshot import GRAPH_NODE
from ..results import Kind
from ..run_history import Value
from ..series_facts import leads_into
from ..statistics.count_evidence import LOOK_BACK, WINDOW, CountGrowth, come_together, grow_larger
from ..timeline_analysis import Assessed, TimelineAnalysis
from .candidates import (
    Candidate,
    bytes_series,
    chain_can_hold,
    counted_in,
    describe,
    family_of,
    may_hide_memory,
)
from .causes import Cause, Memory, brings_some, holds, kind_of

_UNSEEN: Final = ("native", "allocator_retained")
# Class names of objects whose memory is not the process's own, by kind of growth.
_LENT: Final = {
    "children": re.compile(r"(?:^|[._])(\w*Process|Popen|Pool|\w*PoolExecutor|\w*DataLoaderIter)$"),
    "shared_memory": re.compile(r"(?:^|\.)(SharedMemory|mmap)$"),
}
# Precedence among families that grow together: the program's classes own the others.
_ORDER: Final = ("object", "figure", "graph", "library", "tensor", "array", "container", "plain")
_NEAR: Final = (3.0, 0.10)  # in generations, and as a share of the growth's age
_MIN_RISES: Final = 3
# The largest block that glibc takes from its heap, and so the largest hole that one tensor can keep open.
_LARGEST_HOLE: Final = 2**25
# The largest hole that another object keeps open next to it.
_HOLE_OF_A_BLOCK: Final = 2**17
# Smaller objects are in the interpreter's own arenas, where they keep no holes in the C allocator's heap.
_SMALLEST_BLOCK: Final = 512
# A phase with less than this share of the growth does not keep the memory of the objects that it creates.
_HARDLY: Final = 0.1
# For a count that rises at every reading: memory must rise in this share of the generations, by at least this
# share of its mean rate.
_OFTEN: Final = 0.75
_SOME: Final = 0.1


def with_handles(
    study: TimelineAnalysis, found: Sequence[Assessed], candidates: Sequence[Candidate], memory: Memory, end: int
) -> list[Assessed]:  # fmt: skip
    """Merge unexplained growth with the objects whose number rises at the same time.

    ``memory``: the growth of private memory.
    """
    result = list(found)
    for a in found:
        if a.cause.owner is not None or a.cause.kind not in (*_UNSEEN, *_LENT):
            continue
        owner = _rising_with(study, a, candidates, memory, end)
        if owner is None:
            continue
        merged = _merged(study, a, owner, candidates, result, end)
        names = _names(merged)
        result = [
            merged if b is a else b
            for b in result
            if b is a or not (b.cause.members and _names(b) & names and _is_part(a, b))
        ]
    return result


def _rising_with(
    study: TimelineAnalysis, a: Assessed, candidates: Sequence[Candidate], memory: Memory, end: int
) -> Candidate | None:
    near = [
        c
        for c in candidates
        if _may_keep(a, c) and _goes_with(a, c, memory) and _in_step(study, a, c, end)
    ]

    def rank(c: Candidate) -> tuple[bool, bool, bool, int, float, str]:
        owns = any(other.holder and leads_into(other.holder, c.name) for other in near)
        return (
            c.violation is None, not c.declared, not owns, _ORDER.index(c.family), c.growth.slope, c.name,
        )  # fmt: skip

    return min(near, key=rank, default=None)


def _may_keep(a: Assessed, c: Candidate) -> bool:
    """Return True if memory of this kind may belong to a candidate, judging by the candidate's known bytes."""
    kind = a.cause.kind
    if kind in _LENT:
        return c.role == "type" and _LENT[kind].search(c.name) is not None
    is_block = (c.bytes_rate or 0.0) >= _SMALLEST_BLOCK * c.growth.slope > 0
    if kind == "allocator_retained" and c.family in ("tensor", "array"):
        return a.cause.rate.estimate <= _LARGEST_HOLE * c.growth.slope
    if kind == "allocator_retained" and is_block:
        return a.cause.rate.estimate <= _HOLE_OF_A_BLOCK * c.growth.slope
    if c.name == GRAPH_NODE:
        return chain_can_hold(c, a.cause.rate.estimate)
    if c.family in ("graph", "figure"):
        return True
    if c.role == "container":
        return c.bytes_rate is None
    return may_hide_memory(c)


def _goes_with(a: Assessed, c: Candidate, memory: Memory) -> bool:
    """Return True if memory and the count began to grow at about the same time, and their phases, if known, agree.

    Each start is an interval, and the interval of memory is wide after a warm-up phase. Held objects of the program
    may keep what another phase allocates, such as a hook whose closure keeps weights, if their own phase keeps
    nothing.
    """
    phases = {place.phase for place in (a.cause.place, c.place)} - {None}
    if c.growth.rises < _MIN_RISES or a.start is None:
        return False
    inside = memory.at(c.place) if c.family == "object" and c.holder is not None else None
    if len(phases) > 1 and (inside is None or inside >= _HARDLY * a.cause.rate.estimate):
        return False
    estimate, low, high = a.start
    if c.growth.start_low <= high and low <= c.growth.start_high:
        return True
    # Freed memory that the allocator keeps is used first, so memory may begin to rise later than the tensors in it.
    if a.cause.kind == "allocator_retained" and c.family in ("tensor", "array", "graph"):
        return c.growth.start <= estimate
    least, share = _NEAR
    return abs(c.growth.start - estimate) <= max(least * a.scale.spacing, share * a.window)


def _in_step(study: TimelineAnalysis, a: Assessed, c: Candidate, end: int) -> bool:
    """Return True if memory rises in the same generations as the count.

    Also return True if this cannot be checked. For example, child processes and shared memory are not counted often
    enough.
    """
    timeline = study.timeline
    series = counted_in(study.facts, c)
    if a.cause.kind in _LENT or series is None or not timeline.private:
        return True
    first = max(0, end - WINDOW, bisect_left(timeline.generations, c.growth.start, 0, end) - 1)
    x, memory = [float(g) for g in timeline.generations[first:end]], study.residual(end)[first:]
    at, counts = timeline.points(series, end, newest=WINDOW)
    read = [i for i, g in enumerate(at) if g >= x[0]]
    if not any(counts[b] > counts[b - 1] for b in read[1:]):
        return True
    if any(counts[b] == counts[b - 1] for b in read[1:]):
        # Generations without a new object serve as the comparison, provided that every generation was read.
        spacing = timeline.spacing(end)
        gaps = any(b - a > spacing for a, b in pairwise(at[i] for i in read))
        return gaps or come_together(x, memory, at, counts)
    least = _SOME * max(0.0, memory[-1] - memory[0]) / max(1, len(memory) - 1)
    # Compare two generations at a time, because the heap grows in steps.
    rises = [memory[i + 2] - memory[i] > least for i in range(len(memory) - 2)]
    return not rises or sum(rises) >= _OFTEN * len(rises)


def _merged(
    study: TimelineAnalysis,
    a: Assessed,
    owner: Candidate,
    candidates: Sequence[Candidate],
    found: Sequence[Assessed],
    end: int,
) -> Assessed:
    """Attribute unexplained growth to its owner, and add earlier evidence about the owner's objects."""
    known = next((b for b in found if b is not a and owner in b.cause.members), None)
    members = _members(study, a, owner, candidates, known, end)
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
    study: TimelineAnalysis,
    a: Assessed,
    owner: Candidate,
    candidates: Sequence[Candidate],
    known: Assessed | None,
    end: int,
) -> tuple[Candidate, ...]:
    """Return the owner and the candidates that belong to the owner; objects precede the container that holds them."""
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
    return (*_items_of(study, owner, end)[:1], owner, *kept)


def _items_of(study: TimelineAnalysis, container: Candidate, end: int) -> list[Candidate]:
    """Return the types whose count rose in exact step with the container's length.

    Each type gets the growth of the container.
    """
    timeline, series = study.timeline, f"container.{container.name}.length"
    if not timeline.has(series):
        return []
    lengths = dict(zip(*timeline.points(series, end), strict=True))
    found = []
    for counted, name, role in study.facts.count_series:
        if role != "type" or family_of(name, role) == "plain":
            continue
        read = [(x, n) for x, n in zip(*timeline.points(counted, end), strict=True) if x in lengths]
        gained = [(n - m, lengths[x] - lengths[w]) for (w, m), (x, n) in pairwise(read)]
        if len(read) >= _MIN_RISES and all(own == theirs > 0 for own, theirs in gained):
            found.append(describe(study.facts, counted, name, "type", container.growth, end))
    return sorted(found, key=lambda c: (c.holder is None, _ORDER.index(c.family), c.name))


def _is_part(a: Assessed, b: Assessed) -> bool:
    """Return True if ``b``, which names the same objects, is part of ``a``.

    This is the case if both are growth of the same kind of memory, or if the growth of ``b`` is negligible.
    """
    idle = not b.scale.is_material(b.cause.rate.estimate, b.window)
    return idle or (b.channel == a.channel and b.cause.rate.estimate > 0)


def _names(a: Assessed) -> set[tuple[str, str]]:
    return {(member.name, member.role) for member in a.cause.members}


_NAMELESS: Final = ("native", "allocator_retained")
_MIN_READINGS: Final = 3
# Maximum number of readings compared step by step: with more, the noise of memory between two readings is too large.
_STEPS: Final = 8
_STEPS_THAT_MAY_MISS_ONE: Final = 4
# Share of memory's gain that the bytes must explain, from the first reading to the last and in each step.
_MOST: Final = 0.6
_EACH: Final = 0.4
_OVERSHOOT: Final = 1.3
# Share of the growth's duration that the readings must span; this share is enough because gaps between censuses at
# most double.
_PART: Final = 0.4
# Number of generations that the readings must span if they span a smaller share of the growth's duration.
_MIN_SPAN: Final = 8


def with_rarely_counted(
    study: TimelineAnalysis, found: Sequence[Assessed], end: int
) -> list[Assessed]:
    """Attribute unnamed growth to a type whose bytes explain most of the growth."""
    return [
        _named(study, a, found, end) if a.cause.kind in _NAMELESS and a.cause.owner is None else a
        for a in found
    ]


def _named(study: TimelineAnalysis, a: Assessed, found: Sequence[Assessed], end: int) -> Assessed:
    memory = _without_named(study, a, found, end)
    begin = a.start[0] - 1 if a.start is not None else 0.0
    # Look back no further than the search for patterns of counts, because a type that is counted often has a pattern.
    first = max(0, end - LOOK_BACK, bisect_left(study.timeline.generations, begin))
    rising = [
        candidate
        for series, name, role in study.facts.count_series
        if role == "type" and (candidate := _risen_with(study, a, memory, series, name, first, end))
    ]
    if not rising:
        return a
    # All tensor classes share one series of bytes: prefer the class whose own bytes rose most in a census, then
    # the class whose number rose most.
    owner = max(
        rising,
        key=lambda c: (c.bytes_rate or 0.0, _gained(study, c, first, end), c.growth.slope, c.name),
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


def _gained(study: TimelineAnalysis, candidate: Candidate, first: int, end: int) -> float:
    """Return the growth of the type's own bytes, or 0 if no census measured these bytes."""
    series = f"type.{candidate.name}.bytes"
    if not study.timeline.has(series):
        return 0.0
    _, sizes = _read(study.timeline.values(series), first, end)
    return sizes[-1] - sizes[0] if sizes else 0.0


def _without_named(
    study: TimelineAnalysis, a: Assessed, found: Sequence[Assessed], end: int
) -> list[float]:
    """Return memory by generation minus the growth of other named causes since their start."""
    memory = list(study.residual(end))
    for other in found:
        if other is a or other.channel != a.channel or other.cause.owner is None:
            continue
        rate, start = other.cause.rate.estimate, other.start[0] if other.start is not None else 0.0
        for i, generation in enumerate(study.timeline.generations[: len(memory)]):
            memory[i] -= rate * max(0.0, generation - start)
    return memory


def _risen_with(
    study: TimelineAnalysis, a: Assessed, memory: Sequence[float], series: str, name: str, first: int, end: int
) -> Candidate | None:  # fmt: skip
    """Return the type as a candidate if memory rose with its bytes since position ``first``, otherwise None."""
    timeline, owned = study.timeline, bytes_series(name, family_of(name, "type"))
    if not timeline.has(owned):
        return None
    ends = _ends(timeline.values(owned), first, end)
    # Almost none of the thousands of types gain as much as memory does, so initially only the first and last
    # readings are compared.
    if ends is None or not _explains(memory, timeline.values(owned), *ends):
        return None
    where, sizes = _read(timeline.values(owned), first, end)
    counts = _known_by(timeline.values(series), where)
    x = [float(timeline.generations[i]) for i in where]
    if not counts or len(x) < _MIN_READINGS:
        return None
    if x[-1] - x[0] < _PART * a.window and not _goes_on(study, memory, where, sizes):
        return None
    if not _rises_in_step([memory[i] for i in where], sizes):
        return None
    if grow_larger((counts[0], sizes[0]), (counts[-1], sizes[-1])):
        counts = [counts[-1]] * len(counts)
    known = describe(study.facts, series, name, "type", _growth(a, x, counts), end)
    return replace(known, bytes_rate=(sizes[-1] - sizes[0]) / (x[-1] - x[0]))


def _goes_on(
    study: TimelineAnalysis, memory: Sequence[float], where: Sequence[int], sizes: Sequence[float]
) -> bool:
    """Return True if memory has kept rising at the rate of the bytes since the last census."""
    timeline, last = study.timeline, len(memory) - 1
    before = timeline.generations[where[-1]] - timeline.generations[where[0]]
    since = timeline.generations[last] - timeline.generations[where[-1]]
    if before < _MIN_SPAN * timeline.spacing(len(memory)) or not since:
        return False
    rate = (sizes[-1] - sizes[0]) / before
    return (
        _MOST * (memory[last] - memory[where[-1]])
        <= rate * since
        <= _OVERSHOOT * (memory[last] - memory[where[-1]])
    )


def _ends(values: Sequence[Value], first: int, end: int) -> tuple[int, int] | None:
    """Return the positions of the first and last reading, or None if there is no reading."""
    begin = next((i for i in range(first, end) if values[i] is not None), None)
    if begin is None:
        return None
    return begin, next(i for i in range(end - 1, begin - 1, -1) if values[i] is not None)


def _read(values: Sequence[Value], first: int, end: int) -> tuple[list[int], list[float]]:
    """Return the positions and values of at most `_STEPS` readings, including the first and the last."""
    there = [(i, float(v)) for i, v in enumerate(values[first:end], first) if v is not None]
    if len(there) > _STEPS:
        there = [there[round(k * (len(there) - 1) / (_STEPS - 1))] for k in range(_STEPS)]
    return [i for i, _ in there], [v for _, v in there]


def _known_by(counted: Sequence[Value], where: Sequence[int]) -> list[float]:
    """Return the newest count at each of these positions.

    Positions before the first count get the first count. The result is empty if no count was read up to the last
    position.
    """
    counts: list[float] = []
    for i in where:
        known = next((float(v) for v in reversed(counted[: i + 1]) if v is not None), None)
        if known is not None:
            counts += [known] * (1 if counts else where.index(i) + 1)
    return counts


def _explains(memory: Sequence[float], sizes: Sequence[Value], first: int, last: int) -> bool:
    """Return True if the bytes and memory rose by similar amounts between the two positions."""
    gained, before, now = memory[last] - memory[first], sizes[first] or 0, sizes[last] or 0
    return gained > 0 and _MOST * gained <= now - before <= _OVERSHOOT * gained


def _rises_in_step(memory: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return True if the bytes rose with memory in each step.

    Of several steps, one may lag behind: in the first generations, memory also grows while the program loads, and a
    sliced census reports the bytes of the previous generation.
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
