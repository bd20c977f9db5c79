"""Split of memory growth among the causes, and growth that no counted object accounts for.

Each cause gets a rate, and the rates add up to the entire growth. Unattributed growth is native memory, memory
of other processes or devices, or garbage in reference cycles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from ...snapshot import GRAPH_NODE
from ..memory.memory_by_phase import BETWEEN_LINE, OTHER_THREADS_LINE
from ..memory.memory_kinds import (
    FILES_OF_RUN,
    FILES_OF_USER,
    KEPT_BY_ALLOCATOR,
    SHARED,
    Channel,
    allocator_rate,
    garbage_per_generation,
)
from ..memory.uncollected_memory import garbage_of, may_pass, members_of, no_growth, together
from ..results import Kind
from ..run_history import is_javascript
from ..statistics.memory_evidence import Rise, Scale, Start, bend_of
from ..statistics.trend import NO_GROWTH, Slope, floor_slope
from ..timeline import Timeline
from ..timeline_analysis import (
    Assessed,
    TimelineAnalysis,
    first_generation,
    position_of,
    window_since,
)
from .candidates import NOWHERE, OF_OTHERS, Candidate, Place, chain_can_hold, place_of
from .causes import EXPLAINS, SECOND, SMALL, Cause, Memory, fingerprint_of, is_like

# Largest plausible size of one object of an undeclared class.
_PLAUSIBLE_BYTES: Final = 2**20
# Largest plausible size of a tensor with its graph, a figure with its canvas, or an object known to be kept by a
# container.
_PLAUSIBLE_LARGE_BYTES: Final = 2**27
# If less than this share of the growth is measured, there is room for a second cause outside Python.
_LEAVES_ROOM: Final = 0.25
# Files rise only in one phase if at least this share of their rise lies there, and if the probability that the files
# of another program do so by chance is at most this.
_ALWAYS: Final = 0.95
_BY_CHANCE: Final = 1e-6
_SECONDS: Final = "generation.seconds"
# Other phases are separated only if they and the causes add up to at most this multiple of the growth.
_ALL: Final = 1.1


def share_out(
    causes: Sequence[Cause], memory: Memory, memory_rises: bool, matters: bool
) -> tuple[list[Cause], float, Mapping[str, float]]:
    """Assign each cause a rate, so that all rates add up to the growth of memory.

    ``matters``: True if the growth is large enough to be split; otherwise each cause keeps its measured rate.

    Return (causes, unattributed bytes per generation, unattributed bytes by phase if the phase is known).
    """
    total = memory.total
    active = _taking_part(causes, memory)
    idle = [c.with_rate(_around(c.measured or 0.0)) for c in causes if c not in active]
    if not active:
        return idle, total.estimate if memory_rises else 0.0, {}
    if not (total.rises and matters):
        return [*(c.with_rate(_unsure(c, total)) for c in active), *idle], 0.0, {}
    claims = [_claim(c, memory, active) for c in active]
    claimed = sum(claims)
    room = memory_rises and claimed < _LEAVES_ROOM * total.estimate
    elsewhere = _unclaimed(active, claimed, memory) if memory_rises and not room else {}
    apart = min(sum(elsewhere.values()), max(0.0, total.estimate - claimed))
    scale = 1.0 if room or claimed <= 0 else (total.estimate - apart) / claimed
    rated = [
        c.with_rate(total.scaled(claim * scale / total.estimate))
        for c, claim in zip(active, claims, strict=True)
    ]
    return [*rated, *idle], total.estimate - claimed if room else apart, elsewhere


def _unclaimed(causes: Sequence[Cause], claimed: float, memory: Memory) -> dict[str, float]:
    """Return the live bytes of phases that have no cause but keep a substantial share of the growth.

    The result is empty unless all causes were measured and leave room for these bytes, because memory allocated in
    one phase and kept by another belongs to the causes: all phases together have no more in use than what causes
    claim plus these bytes.
    """
    if not memory.living or any(c.measured is None or c.place.phase is None for c in causes):
        return {}
    total, places = memory.total.estimate, {c.place.phase for c in causes}
    found = {
        phase: size
        for phase, size in memory.phases.items()
        if phase not in (*places, BETWEEN_LINE, OTHER_THREADS_LINE) and size >= SECOND * total > 0
    }
    in_use = min(total, sum(memory.phases.values()))
    return found if claimed + sum(found.values()) <= _ALL * in_use else {}


def _taking_part(causes: Sequence[Cause], memory: Memory) -> list[Cause]:
    """Return the causes that have a claim on the growth of memory.

    Growth by phase is weak evidence: the allocator reuses in one phase what another phase freed, so memory grows in
    the phase in which the allocator's pool runs out. Counts show which cause retains objects; sizes show whether
    these objects can account for all of the growth.
    """
    total = max(memory.total.estimate, 0.0)
    measured = [c for c in causes if c.measured is not None and c.measured >= SMALL * total]
    if sum(c.measured or 0.0 for c in measured) >= _LEAVES_ROOM * total and measured:
        return measured
    guessed = [c for c in causes if c.measured is None and _is_plausible(c, total)]
    guessed.sort(key=lambda c: _likelihood(c, memory), reverse=True)
    # Without sizes there is no basis for a split: keep the likeliest cause, and others whose phase retains enough
    # memory.
    kept = guessed[:1] + [c for c in guessed[1:] if (memory.at(c.place) or 0.0) >= EXPLAINS * total]
    return measured + kept


def _is_plausible(cause: Cause, total: float) -> bool:
    owner = cause.owner
    if owner is None or owner.growth.slope <= 0:
        return owner is not None and owner.violation is not None
    if owner.declared or owner.violation is not None:
        return True
    each = total / owner.growth.slope
    # Objects that a container gains one by one are retained, even if their size has not been measured yet.
    kept = any(m.role == "container" and is_like(m, owner) for m in cause.members[1:])
    if owner.name == GRAPH_NODE:
        return chain_can_hold(owner, total)
    if owner.family in ("tensor", "graph", "figure") or (owner.family == "object" and kept):
        return each <= _PLAUSIBLE_LARGE_BYTES
    if owner.place == NOWHERE or owner.family in OF_OTHERS:
        return False
    return each <= _PLAUSIBLE_BYTES


def _likelihood(cause: Cause, memory: Memory) -> tuple[bool, bool, float, float]:
    owner = cause.owner
    if owner is None:
        return False, False, 0.0, 0.0
    broken = owner.violation is not None
    return broken, owner.declared, memory.at(cause.place) or 0.0, owner.growth.slope


def _claim(cause: Cause, memory: Memory, active: Sequence[Cause]) -> float:
    in_phase = memory.at(cause.place)
    if cause.measured is None:
        if len(active) == 1:
            return memory.total.estimate
        return max(in_phase if in_phase is not None else memory.total.estimate / len(active), 0.0)
    # A heap walk that was cut short measures too little; phase accounting is then the better estimate.
    left = None if in_phase is None else in_phase - _measured_outside(cause, active)
    return left if left is not None and cause.measured < 0.5 * left else cause.measured


def _measured_outside(cause: Cause, active: Sequence[Cause]) -> float:
    """Return the bytes per generation measured for the other causes in the same phase."""
    others = [c for c in active if c is not cause and c.place.phase == cause.place.phase]
    return sum(c.measured or 0.0 for c in others)


def _around(size: float) -> Slope:
    return Slope(size, 0.5 * size, 1.5 * size, 0)


def _unsure(cause: Cause, total: Slope) -> Slope:
    """Return the measured rate, capped at the highest likely growth of memory."""
    if cause.measured is None:
        return total
    size = min(cause.measured, max(total.high, 0.0))
    return Slope(size, min(total.low, 0.5 * size), max(total.high, size), total.points)


# Growth is classified as memory retained by the allocator if that memory is at least this share of the growth.
_MOSTLY: Final = 0.5


def retained(study: TimelineAnalysis, memory: Memory, causes: Sequence[Cause], end: int) -> float:
    """Return the bytes per generation that the C allocator keeps unused.

    Return 0 if these bytes are a minor part of the growth. Memory measured in live objects is not attributed to the
    allocator, regardless of what the allocator reports.
    """
    total = memory.total.estimate
    if not study.timeline.has(KEPT_BY_ALLOCATOR):
        return 0.0
    bend = study.bend(end)
    begin = bend[0] if bend else float(first_generation(study.timeline))
    kept = allocator_rate(study.timeline, begin, end) or 0.0
    kept = min(kept, total - sum(cause.measured or 0.0 for cause in causes))
    return kept if kept >= _MOSTLY * total > 0 else 0.0


def native_growth(
    study: TimelineAnalysis,
    memory: Memory,
    left: float,
    kept: float,
    rise: Rise,
    scale: Scale,
    start: Start | None,
    end: int,
) -> Assessed:
    """Return the growth that no Python object accounts for.

    ``left``: bytes per generation without an owner; ``kept``: the part that the C allocator keeps unused.
    """
    bend = study.bend(end) or start
    kind: Kind = "allocator_retained" if kept >= _MOSTLY * left else "native"
    if is_javascript(study.timeline.series):
        # In JavaScript this growth consists of tensors that grow larger while their number does not grow.
        kind = "tensors"
    total = max(memory.total.estimate, 1.0)
    rate = memory.total.scaled(left / total)
    cause = Cause(kind, memory.place(), (), None, rate)
    return Assessed(
        cause, bend, window_since(study, bend, end), rise, frozenset(), scale,
        study.timeline.name,
    )  # fmt: skip


def other_channels(
    study: TimelineAnalysis, end: int, candidates: Sequence[Candidate]
) -> list[Assessed]:
    found = []
    timeline = study.timeline
    for channel in study.channels:
        rise = study.channel_rise(channel, end)
        if not rise.window and not rise.visible:
            continue
        at = study.channel_stands(channel, end)
        bend = bend_of(timeline, channel.line(at), at)
        first = position_of(timeline, bend[0] - timeline.spacing(at) if bend else None, at)
        known = channel.positions(at)
        known = known[min(bisect_left(known, first), max(0, len(known) - 2)) :]
        x = [float(timeline.generations[i]) for i in known]
        rate = floor_slope(x, [channel.values[i] for i in known])
        members = tuple(c for c in candidates if c.family in ("graph", "tensor"))
        place = _channel_place(timeline, channel, members, bend, end)
        is_ours = channel.name == FILES_OF_USER and grows_with_a_phase(
            timeline, channel, place, first, at
        )
        cause = Cause(
            "shared_memory" if is_ours else channel.kind, place,
            members if channel.holds_tensors else (), None, rate,
        )  # fmt: skip
        scale = channel.scale(timeline.private, at, study.remaining(end), timeline.spacing(at))
        witnesses = frozenset({"counts"} if cause.members else ())
        found.append(
            Assessed(
                cause,
                bend,
                window_since(study, bend, at),
                rise,
                witnesses,
                scale,
                timeline.name,
                channel.name,
            )
        )
    if is_javascript(timeline.series):
        found = _once_each(found)
    if any(a.channel == SHARED and a.rise.window for a in found):
        # Files that this process has mapped are part of its shared memory, whose phase is known better.
        found = [a for a in found if a.channel != FILES_OF_RUN]
    garbage = garbage_per_generation(timeline, end)
    if garbage is not None and study.waiting.objects is None:
        members = members_of(study.history.holders_by_type, NOWHERE, no_growth(garbage), 0.0)
        cause = Cause("cyclic_garbage", NOWHERE, members, None, NO_GROWTH)
        found.append(
            Assessed(
                cause, None, float(end), Rise(), frozenset(), study.scale(end), timeline.name,
                "python.garbage_freed", garbage,
            )
        )  # fmt: skip
    return found


def grows_with_a_phase(
    timeline: Timeline, channel: Channel, place: Place, first: int, end: int
) -> bool:
    """Return True if files of unknown creators rise only while one short phase of this process runs.

    Files of another program rise in a phase as often as its share of the time suggests. The memory group's shared
    memory, which is read after each phase, must rise as much as the files.
    """
    seconds = f"phase.{place.phase}.seconds"
    known = channel.placed_by and timeline.has(seconds) and timeline.has(_SECONDS)
    if not known or (place.share or 0.0) < _ALWAYS:
        return False
    ours, whole = (
        sum(v for v in timeline.values(name)[first:end] if v is not None)
        for name in (seconds, _SECONDS)
    )
    _, group = timeline.points(channel.placed_by, end, newest=end - first)
    files = channel.values[first:end]
    if whole <= 0 or len(group) < 2 or group[-1] - group[0] < _ALWAYS * (files[-1] - files[0]):
        return False
    rises = sum(b > a for a, b in pairwise(files))
    return min(1.0, ours / whole) ** rises <= _BY_CHANCE


def _once_each(found: Sequence[Assessed]) -> list[Assessed]:
    """Keep the assessment with the clearest rise for each kind, phase and owner."""
    clear = sorted(found, key=lambda a: (a.rise.strict, a.rise.window), reverse=True)
    first = {fingerprint_of(a.cause): a for a in reversed(clear)}
    return [a for a in found if first[fingerprint_of(a.cause)] is a]


def with_garbage(study: TimelineAnalysis, found: Sequence[Assessed], end: int) -> list[Assessed]:
    """Mark growth from uncollected objects as garbage and merge it by phase.

    Memory without named objects is charged to the phase in which the allocator's pool ran out, so it is merged into
    garbage that is already known.
    """
    result: list[Assessed] = []
    garbage: dict[str | None, int] = {}
    for a in found:
        cause = garbage_of(a.cause, study.facts, study.waiting)
        blamed = cause or a.cause
        a = replace(a, passing=may_pass(blamed, study.facts, study.waiting, a.window, end))
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
    timeline: Timeline,
    channel: Channel,
    members: Sequence[Candidate],
    bend: Start | None,
    end: int,
) -> Place:
    if channel.holds_tensors and members and members[0].place.phase:
        return members[0].place
    series = channel.placed_by or channel.name
    return place_of(timeline, series, bend[0] if bend else float(first_generation(timeline)), end)
