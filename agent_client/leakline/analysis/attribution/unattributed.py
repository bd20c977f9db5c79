"""Growth that no counted object accounts for: native memory, other processes, devices, garbage in cycles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..findings.fingerprint import fingerprint_of
from ..javascript_runs import is_javascript
from ..memory.garbage_cycles import garbage_of, may_pass, members_of, no_growth, together
from ..memory.memory_kinds import Channel, allocator_rate, garbage_per_generation
from ..results import Kind
from ..statistics.memory_evidence import Rise, Scale
from ..statistics.onset import Start, bend_of
from ..statistics.trend import NO_GROWTH, floor_slope
from ..timeline import Lane
from ..timeline_analysis import Assessed, LaneStudy, first_generation, position_of, window_since
from .candidates import NOWHERE, Candidate, Place, place_of
from .causes import Cause, Memory

# The share of a growth from which it is called after what the allocator keeps.
_MOSTLY: Final = 0.5


def retained(study: LaneStudy, memory: Memory, causes: Sequence[Cause], upto: int) -> float:
    """Bytes per generation that the C allocator keeps unused, when that is most of what memory gains; else 0.

    What was measured of live objects is not kept by the allocator, whatever it says.
    """
    total = memory.total.estimate
    bend = study.bend(upto)
    begin = bend[0] if bend else float(first_generation(study.lane))
    kept = allocator_rate(study.lane, begin, upto) or 0.0
    kept = min(kept, total - sum(cause.measured or 0.0 for cause in causes))
    return kept if kept >= _MOSTLY * total > 0 else 0.0


def native_growth(
    study: LaneStudy,
    memory: Memory,
    left: float,
    kept: float,
    rise: Rise,
    scale: Scale,
    start: Start | None,
    upto: int,
) -> Assessed:
    """Growth that no Python object accounts for; ``kept`` of it is what the C allocator keeps unused."""
    bend = study.bend(upto) or start
    kind: Kind = "allocator_retained" if kept >= _MOSTLY * left else "native"
    if is_javascript(study.lane.series):
        # Its memory is tensors: they grow larger where their number does not grow.
        kind = "tensors"
    total = max(memory.total.estimate, 1.0)
    rate = memory.total.scaled(left / total)
    cause = Cause(kind, memory.place(), (), None, rate)
    return Assessed(
        cause, bend, window_since(study, bend, upto), rise, frozenset(), scale,
        study.lane.name,
    )  # fmt: skip


def other_channels(study: LaneStudy, upto: int, candidates: Sequence[Candidate]) -> list[Assessed]:
    found = []
    lane = study.lane
    for channel in study.channels:
        rise = study.channel_rise(channel, upto)
        if not rise.window and not rise.visible:
            continue
        at = study.channel_stands(channel, upto)
        bend = bend_of(lane, channel.line(at), at)
        first = position_of(lane, bend[0] - lane.spacing(at) if bend else None, at)
        known = channel.positions(at)
        known = known[min(bisect_left(known, first), max(0, len(known) - 2)) :]
        x = [float(lane.generations[i]) for i in known]
        rate = floor_slope(x, [channel.values[i] for i in known])
        members = tuple(c for c in candidates if c.family in ("graph", "tensor"))
        cause = Cause(
            channel.kind, _channel_place(lane, channel, members, bend, upto),
            members if channel.holds_tensors else (), None, rate,
        )  # fmt: skip
        scale = channel.scale(lane.private, at, study.remaining(upto), lane.spacing(at))
        witnesses = frozenset({"counts"} if cause.members else ())
        found.append(
            Assessed(
                cause,
                bend,
                window_since(study, bend, at),
                rise,
                witnesses,
                scale,
                lane.name,
                channel.name,
            )
        )
    if is_javascript(lane.series):
        found = _once_each(found)
    garbage = garbage_per_generation(lane, upto)
    if garbage is not None and study.waiting.objects is None:
        members = members_of(study.history.holders_by_type, NOWHERE, no_growth(garbage), 0.0)
        cause = Cause("cyclic_garbage", NOWHERE, members, None, NO_GROWTH)
        found.append(
            Assessed(
                cause, None, float(upto), Rise(), frozenset(), study.scale(upto), lane.name,
                "python.garbage_freed", garbage,
            )
        )  # fmt: skip
    return found


def _once_each(found: Sequence[Assessed]) -> list[Assessed]:
    """What is beside the tensors is one finding for each phase, that of what rises most clearly."""
    clear = sorted(found, key=lambda a: (a.rise.strict, a.rise.window), reverse=True)
    first = {fingerprint_of(a.cause): a for a in reversed(clear)}
    return [a for a in found if first[fingerprint_of(a.cause)] is a]


def with_garbage(study: LaneStudy, found: Sequence[Assessed], upto: int) -> list[Assessed]:
    """The same, with what grows by objects that wait for the collector as what it is: one for each phase.

    Memory of no name has the phase in which the allocator's pool ran dry: it goes to the garbage that has one.
    """
    result: list[Assessed] = []
    garbage: dict[str | None, int] = {}
    for a in found:
        cause = garbage_of(a.cause, study.facts, study.waiting)
        told = cause or a.cause
        a = replace(a, passing=may_pass(told, study.facts, study.waiting, a.window, upto))
        if cause is None:
            result.append(a)
            continue
        counted = not a.cause.members and study.waiting.growth is not None
        witnesses = a.witnesses | {"counts"} if counted else a.witnesses
        known = next(iter(garbage.values()), len(result)) if not a.cause.members else len(result)
        position = garbage.setdefault(cause.place.phase, known)
        if position < len(result):
            first = result[position]
            result[position] = replace(
                first, cause=together(first.cause, cause), witnesses=first.witnesses | witnesses
            )
        else:
            result.append(replace(a, cause=cause, witnesses=witnesses, waiting=study.waiting))
    return result


def _channel_place(
    lane: Lane,
    channel: Channel,
    members: Sequence[Candidate],
    bend: Start | None,
    upto: int,
) -> Place:
    if channel.holds_tensors and members and members[0].place.phase:
        return members[0].place
    series = channel.placed_by or channel.name
    return place_of(lane, series, bend[0] if bend else float(first_generation(lane)), upto)
