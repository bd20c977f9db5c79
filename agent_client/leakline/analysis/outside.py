"""Growth that no counted object accounts for: native memory, other processes, devices, garbage in cycles."""

from __future__ import annotations

from collections.abc import Sequence

from .attribution import Cause, Memory
from .candidates import NOWHERE, Candidate, Place, place_of
from .channels import Channel, allocator_rate, garbage_per_generation
from .evidence import Rise, Scale
from .results import Kind
from .series import Lane
from .study import Assessed, LaneStudy, Start, bend_of, first_generation, position_of, window_since
from .trend import NO_GROWTH, floor_slope


def native_growth(
    study: LaneStudy,
    memory: Memory,
    left: float,
    rise: Rise,
    scale: Scale,
    start: Start | None,
    upto: int,
) -> Assessed:
    """Growth that no Python object accounts for."""
    bend = bend_of(study.lane, study.residual(upto), upto) or start
    begin = bend[0] if bend else float(first_generation(study.lane))
    kept = allocator_rate(study.lane, begin, upto)
    kind: Kind = "allocator_retained" if kept is not None and kept >= 0.5 * left else "native"
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
        bend = bend_of(lane, channel.values[:upto], upto)
        first = position_of(lane, bend[0] - 1 if bend else None, upto)
        x = [float(g) for g in lane.generations[first:upto]]
        rate = floor_slope(x, channel.values[first:upto])
        members = tuple(c for c in candidates if c.family in ("graph", "tensor"))
        cause = Cause(
            channel.kind, _channel_place(lane, channel, members, bend, upto),
            members if channel.holds_tensors else (), None, rate,
        )  # fmt: skip
        scale = channel.scale(lane.private, upto, study.remaining(upto))
        witnesses = frozenset({"counts"} if cause.members else ())
        found.append(
            Assessed(
                cause,
                bend,
                window_since(study, bend, upto),
                rise,
                witnesses,
                scale,
                lane.name,
                channel.name,
            )
        )
    garbage = garbage_per_generation(lane, upto)
    if garbage is not None:
        cause = Cause("cyclic_garbage", NOWHERE, (), None, NO_GROWTH)
        found.append(
            Assessed(
                cause, None, float(upto), Rise(), frozenset(), study.scale(upto), lane.name,
                "python.garbage_freed", garbage,
            )
        )  # fmt: skip
    return found


def _channel_place(
    lane: Lane,
    channel: Channel,
    members: Sequence[Candidate],
    bend: Start | None,
    upto: int,
) -> Place:
    if channel.holds_tensors and members and members[0].place.phase:
        return members[0].place
    return place_of(lane, channel.name, bend[0] if bend else float(first_generation(lane)), upto)
