"""The state of one lane at one moment: its causes with their rates, and how much speaks for each.

``assess`` looks only at the first ``upto`` generations, so the same function gives today's answer and the
answer of any earlier day; the ladder in ``verdict`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from .attribution import Cause, Memory, find_causes, share_out
from .books import LEAKLINE_LINE, booked_bytes, phase_slopes, without_give_and_take
from .bounds import without_bounded
from .candidates import NOWHERE, Candidate, Facts, Place, describe, find_candidates, place_of
from .channels import Channel, allocator_rate, channels_of, garbage_per_generation
from .contracts import Violation
from .counts import CountGrowth
from .evidence import Rise, Scale, baseline_of, lasting_rise
from .history import RunHistory
from .limits import limit_of
from .results import Kind
from .series import Lane
from .trend import NO_GROWTH, Slope, fit_hinge, floor_slope

_RATE_WINDOW: Final = 256
_MIN_FOR_NATIVE: Final = 8
# Within the first few generations: a count of tensors this many times larger and memory this much larger,
# in a phase that had run before.
_EXPLOSION_COUNT: Final = 5.0
_EXPLOSION_MEMORY: Final = 0.4
_YOUNG: Final = 4
# Below this share of the later slope the stretch before a bend counts as flat.
_BENDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Assessed:
    """One cause at one moment with what speaks for it."""

    cause: Cause
    start: tuple[float, float, float] | None
    window: float  # generations since the start
    rise: Rise
    witnesses: frozenset[str]
    scale: Scale
    process: str
    channel: str = "private"
    garbage: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything the ladder needs from one moment of a lane."""

    upto: int
    causes: tuple[Assessed, ...]
    rise: Rise
    growth: Slope
    scale: Scale
    filling: tuple[str, ...]


class LaneStudy:
    """One lane with what is worked out once for all its moments."""

    def __init__(self, history: RunHistory, lane: Lane) -> None:
        self.history = history
        self.lane = lane
        self.facts = Facts(history, lane)
        self.limit = limit_of(history, lane)
        self._rises: dict[tuple[str, int], Rise] = {}

    @cached_property
    def booked(self) -> tuple[Mapping[str, float], ...]:
        return booked_bytes(self.lane)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        return channels_of(self.lane)

    def residual(self, upto: int) -> list[float]:
        """Private bytes per generation without what bounded containers gained."""
        private = self.lane.private
        return without_bounded(private, self.facts.bounded, upto) if private else []

    def remaining(self, upto: int) -> float | None:
        if self.history.total is None or not upto:
            return None
        return max(0.0, self.history.total - 1 - self.lane.generations[upto - 1])

    def scale(self, upto: int) -> Scale:
        private = self.lane.private
        baseline = max(baseline_of(private), self._resident_baseline)
        level = private[upto - 1] if private else 0.0
        return Scale(
            baseline, self.limit.bytes if self.limit else None, level, self.remaining(upto)
        )

    @cached_property
    def _resident_baseline(self) -> float:
        if not self.lane.has("process.rss_bytes"):
            return 0.0
        return baseline_of([v for v in self.lane.values("process.rss_bytes")[:3] if v is not None])

    def rise(self, upto: int) -> Rise:
        """What private memory shows at this moment, kept, since confirmations ask for it again."""
        if ("private", upto) not in self._rises:
            x = [float(g) for g in self.lane.generations[:upto]]
            y = self.residual(upto)
            bounded = self.facts.bounded_bytes[:upto]
            self._rises["private", upto] = (
                lasting_rise(x, y, self.scale(upto), bounded) if y else Rise()
            )
        return self._rises["private", upto]

    def channel_rise(self, channel: Channel, upto: int) -> Rise:
        if (channel.name, upto) not in self._rises:
            x = [float(g) for g in self.lane.generations[:upto]]
            scale = channel.scale(self.lane.private, upto, self.remaining(upto))
            self._rises[channel.name, upto] = lasting_rise(x, channel.values[:upto], scale)
        return self._rises[channel.name, upto]


def assess(study: LaneStudy, upto: int) -> Moment:
    """1. what grows, 2. how fast memory grows since then, 3. causes and their shares, 4. the other channels."""
    rise, scale, residual = study.rise(upto), study.scale(upto), study.residual(upto)
    filling = tuple(b.name for b in study.facts.bounded if b.is_filling(upto))
    candidates = [*find_candidates(study.facts, upto)]
    candidates = _with_violations(study, upto, candidates)
    candidates += _exploded(study, upto, candidates)
    start = _start(study, candidates, rise, residual, upto)
    memory = _memory(study, residual, start[0] if start else None, upto)
    rising = bool(rise.window) or (rise.visible and upto >= _MIN_FOR_NATIVE)
    causes, left = share_out(find_causes(candidates, memory), memory, rising)
    found = [_assessed(study, cause, rise, scale, start, upto) for cause in causes]
    if rising and left > 0 and scale.is_material(left, _window(study, start, upto)):
        found.append(_native(study, memory, left, rise, scale, start, upto))
    found.extend(_other_channels(study, upto, candidates))
    return Moment(upto, tuple(found), rise, memory.total, scale, filling)


def _last_row(study: LaneStudy, upto: int) -> int:
    """The newest snapshot known at this moment; for the newest moment also those of an open generation."""
    lane = study.lane
    return len(lane.kind) - 1 if upto >= len(lane) else lane.end_rows[upto - 1]


def _with_violations(
    study: LaneStudy, upto: int, candidates: Sequence[Candidate]
) -> list[Candidate]:
    violations = study.facts.violations(_last_row(study, upto))
    found = []
    for candidate in candidates:
        broken = violations.pop(candidate.name, None) if candidate.role == "type" else None
        found.append(_replace_violation(candidate, broken) if broken else candidate)
    for name, violation in violations.items():
        growth = _growth_since_violation(study, name, violation)
        found.append(
            describe(study.facts, f"type.{name}.count", name, "type", growth, upto, violation)
        )
    return found


def _replace_violation(c: Candidate, violation: Violation) -> Candidate:
    return replace(c, violation=violation)


def _growth_since_violation(study: LaneStudy, name: str, violation: Violation) -> CountGrowth:
    """How a broken count moved, from the last reading that held to the newest: two readings are enough."""
    lane = study.lane
    begin = float(lane.generation[violation.first_row] or _first(lane))
    held = None if violation.row_before is None else lane.generation[violation.row_before]
    newest = float(max((g for g in lane.generation if g is not None), default=begin))
    if violation.count_before is None:
        # It never held: what it gained since its first reading is all that is known to have grown.
        gained = violation.count - violation.first_count
        span = max(1.0, newest - begin)
    else:
        gained, span = violation.count - violation.count_before, newest - begin + 1
    low = begin if held is None else min(begin, float(held))
    each = gained / span
    return CountGrowth("irregular", each, each, each, begin, low, begin, 1, span, gained)


def _first(lane: Lane) -> int:
    return lane.generations[0] if lane.generations else 0


def _exploded(study: LaneStudy, upto: int, candidates: Sequence[Candidate]) -> list[Candidate]:
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


def _start(
    study: LaneStudy,
    candidates: Sequence[Candidate],
    rise: Rise,
    residual: Sequence[float],
    upto: int,
) -> tuple[float, float, float] | None:
    """(estimate, low, high) of the first leaking generation, by counts where they grow, else by memory."""
    owners = [c for c in candidates if c.family not in ("plain", "library")] or list(candidates)
    sized = [c for c in owners if c.bytes_rate]
    best = max(
        sized or owners, key=lambda c: (c.bytes_rate or 0.0, c.growth.slope, c.name), default=None
    )
    if best is not None:
        return best.growth.start, best.growth.start_low, best.growth.start_high
    if not (rise.window or rise.visible):
        return None
    return _bend(study.lane, residual, upto)


def _bend(lane: Lane, values: Sequence[float], upto: int) -> tuple[float, float, float] | None:
    x = [float(g) for g in lane.generations[:upto]]
    hinge = fit_hinge(x, values)
    if hinge is None:
        return None
    flat = [(a, b) for a, b in zip(x, values, strict=True) if a <= hinge.start]
    if len(flat) >= 2 and floor_slope(*zip(*flat, strict=True)).estimate >= _BENDS * hinge.slope:
        # Memory rose just as fast before the bend: warm-up hides the start, which may be the first reading.
        return x[0], x[0], hinge.high + 1
    # A line that rises from the first reading on may have risen in that generation already.
    start, low, high = (at + 1 if at > x[0] else at for at in (hinge.start, hinge.low, hinge.high))
    return start, low, high


def _window(study: LaneStudy, start: tuple[float, float, float] | None, upto: int) -> float:
    newest = study.lane.generations[upto - 1] if upto else 0
    begin = start[0] if start else float(_first(study.lane))
    return max(1.0, newest - begin + 1)


def _memory(study: LaneStudy, residual: Sequence[float], start: float | None, upto: int) -> Memory:
    """Growth since the start (since early in the run without one), in all and by phase."""
    lane = study.lane
    if len(residual) < 2:
        return Memory(NO_GROWTH)
    first = _position(lane, start - 1 if start is not None else None, upto)
    x = [float(g) for g in lane.generations[first:upto]]
    total = floor_slope(x, residual[first:upto])
    slopes = phase_slopes(study.booked, lane.generations, first, upto)
    phases = {name: slope.estimate for name, slope in slopes.items() if name != LEAKLINE_LINE}
    return Memory(total, without_give_and_take(phases))


def _position(lane: Lane, generation: float | None, upto: int) -> int:
    """Where the window of the rate begins; always leaves two readings."""
    if generation is None:
        # Without a leak the first generations are warm-up, not growth.
        first = min(upto // 4, 4)
    else:
        first = next((i for i, g in enumerate(lane.generations) if g >= generation), 0)
    return max(0, min(first, upto - 2), upto - _RATE_WINDOW)


def _assessed(
    study: LaneStudy,
    cause: Cause,
    rise: Rise,
    scale: Scale,
    start: tuple[float, float, float] | None,
    upto: int,
) -> Assessed:
    owner = cause.owner
    begin = start
    window = _window(study, start, upto)
    if owner is not None:
        g = owner.growth
        begin, window = (g.start, g.start_low, g.start_high), g.generations
    return Assessed(
        cause, begin, window, rise, _witnesses(cause, study, upto), scale, study.lane.name
    )


def _witnesses(cause: Cause, study: LaneStudy, upto: int) -> frozenset[str]:
    found = set()
    for c in cause.members:
        if c.violation is not None and c.violation.above and c.violation.proven:
            found.add("contract")
    owner = cause.owner
    if owner is not None and owner.growth.rises >= 3:
        found.add("counts")
        if owner.growth.pattern in ("constant", "periodic"):
            found.add("steady")
    if owner is not None and owner.growth.rises == 1 and owner.violation is None:
        found.add("explosion")
    if (
        owner is not None
        and owner.role == "type"
        and any(c.role == "container" for c in cause.members)
    ):
        found.add("container")
    if cause.measured is not None and cause.measured >= 0.5 * max(cause.rate.estimate, 1.0):
        found.add("measured")
    if _over_budget(study, cause.place.phase, upto):
        found.add("budget")
    return frozenset(found)


def _over_budget(study: LaneStudy, phase: str | None, upto: int) -> bool:
    """The phase kept more than its declared budget in its newest generation (never judged on its first)."""
    limits = [
        e.data.get("leak_bytes")
        for e in study.history.events
        if e.kind == "budget" and e.name == phase
    ]
    if not limits or limits[-1] is None or upto < 2:
        return False
    line = study.booked[upto - 1]
    kept = sum(v for path, v in line.items() if path.split("/", 1)[0] == phase)
    return bool(kept >= limits[-1])


def _native(
    study: LaneStudy,
    memory: Memory,
    left: float,
    rise: Rise,
    scale: Scale,
    start: tuple[float, float, float] | None,
    upto: int,
) -> Assessed:
    """Growth that no Python object accounts for."""
    bend = _bend(study.lane, study.residual(upto), upto) or start
    begin = bend[0] if bend else float(_first(study.lane))
    kept = allocator_rate(study.lane, begin, upto)
    kind: Kind = "allocator_retained" if kept is not None and kept >= 0.5 * left else "native"
    total = max(memory.total.estimate, 1.0)
    rate = memory.total.scaled(left / total)
    cause = Cause(kind, memory.place(), (), None, rate)
    return Assessed(
        cause, bend, _window(study, bend, upto), rise, _witnesses(cause, study, upto), scale,
        study.lane.name,
    )  # fmt: skip


def _other_channels(study: LaneStudy, upto: int, candidates: Sequence[Candidate]) -> list[Assessed]:
    found = []
    lane = study.lane
    for channel in study.channels:
        rise = study.channel_rise(channel, upto)
        if not rise.window and not rise.visible:
            continue
        bend = _bend(lane, channel.values[:upto], upto)
        first = _position(lane, bend[0] - 1 if bend else None, upto)
        x = [float(g) for g in lane.generations[first:upto]]
        rate = floor_slope(x, channel.values[first:upto])
        members = tuple(c for c in candidates if c.family in ("graph", "tensor"))
        cause = Cause(
            channel.kind, _channel_place(lane, channel, members, bend, upto),
            members if channel.kind == "gpu" else (), None, rate,
        )  # fmt: skip
        scale = channel.scale(lane.private, upto, study.remaining(upto))
        witnesses = frozenset({"counts"} if cause.members else ())
        found.append(
            Assessed(
                cause,
                bend,
                _window(study, bend, upto),
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
    bend: tuple[float, float, float] | None,
    upto: int,
) -> Place:
    if channel.kind == "gpu" and members and members[0].place.phase:
        return members[0].place
    return place_of(lane, channel.name, bend[0] if bend else float(_first(lane)), upto)
