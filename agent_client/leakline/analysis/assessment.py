"""The state of one timeline at one moment: its causes with their rates and the evidence for each.

``assess`` reads only the first ``end`` generations, so the same function returns the result for the current moment
and for any earlier moment; the status machine compares these results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .assertions.declared_limits import (
    KEPT_BY_PHASE,
    KEPT_BY_RUN,
    Amounts,
    broken_budget_evidence,
    declared_budgets,
    kept_amounts,
)
from .assertions.expected_counts import Violation
from .attribution.candidates import (
    NOWHERE,
    OF_OTHERS,
    Candidate,
    Place,
    describe,
    fills_a_container,
    find_candidates,
    grows_while_a_store_fills,
    is_stored,
)
from .attribution.causes import Cause, find_causes
from .attribution.growth_split import (
    native_growth,
    other_channels,
    retained,
    share_out,
    with_garbage,
)
from .attribution.native_owners import with_handles, with_rarely_counted
from .results import Assertion
from .statistics.count_evidence import (
    LOOK_BACK,
    WINDOW,
    Ceiling,
    CountGrowth,
    ceiling_of,
    come_together,
)
from .statistics.memory_evidence import Rise, Scale, Start
from .statistics.trend import Slope
from .timeline import top_level
from .timeline_analysis import (
    Assessed,
    Moment,
    TimelineAnalysis,
    first_generation,
    last_row_of,
    memory_since,
    window_since,
)

_MIN_FOR_NATIVE: Final = 8
# Key of the moments cached in `TimelineAnalysis.known`.
MOMENT: Final = "moment"
# Thresholds for an explosion of tensors, which is detected only in the first few generations: the count is at least
# this many times the previous count, and memory has grown by at least this share.
_EXPLOSION_COUNT: Final = 5.0
_EXPLOSION_MEMORY: Final = 0.4
_YOUNG: Final = 4


def moment_of(study: TimelineAnalysis, end: int) -> Moment:
    """Return the result of `assess`, cached if later snapshots cannot change it."""
    if is_over(study, end):
        return study.known.once(end, MOMENT, lambda: assess(study, end))
    return assess(study, end)


def is_over(study: TimelineAnalysis, end: int) -> bool:
    """Return True if the moment that ends at ``end`` has no snapshot after its last generation."""
    return last_row_of(study, end) == study.timeline.end_rows[end - 1]


def assess(study: TimelineAnalysis, end: int) -> Moment:
    """Return the state of a timeline after its first ``end`` generations.

    1. Find the counts that grow; 2. measure how fast memory has grown since then; 3. split that growth among causes;
    4. account for memory kept by the allocator and uncollected garbage; 5. add the other channels.
    """
    # Generations without a memory reading carry no information about memory, so memory is judged at its last reading.
    at = study.read_until(end)
    rise, scale, residual = study.rise(end), study.scale(at), study.residual(at)
    private = study.timeline.private
    filling = tuple(b.name for b in study.facts.bounded if b.is_reason_of_growth(private, end))
    candidates = find_candidates(study.facts, end)
    rises = bool(rise.window) or rise.visible
    candidates = [c for c in candidates if not _is_stored(study, c, end, rises=rises)]
    candidates = with_surplus(study, end, candidates)
    candidates += exploded(study, end, candidates)
    start = _start(study, candidates, rise, end)
    memory = memory_since(study, residual, start[0] if start else None, at)
    rising = bool(rise.window) or (rise.visible and at >= _MIN_FOR_NATIVE)
    window = window_since(study, start, at)
    matters = rising or scale.is_material(memory.total.estimate, window)
    causes = find_causes(candidates, memory)
    kept = retained(study, memory, causes, at) if rising else 0.0
    live = memory.without(kept)
    causes, left, elsewhere = share_out(causes, live, rising, matters)
    found = [_assessed(study, cause, rise, scale, start, end) for cause in causes]
    left += kept
    if rising and left > 0 and scale.is_material(left, window):
        moved = replace(memory, phases=elsewhere) if elsewhere else memory
        found.append(native_growth(study, moved, left, kept, rise, scale, start, at))
    found = with_garbage(study, found, end)
    found = with_budgets(study, end, found)
    found.extend(other_channels(study, end, candidates))
    found = with_rarely_counted(study, found, end)
    found = with_handles(study, found, candidates, memory, end)
    return Moment(end, tuple(found), rise, memory.total, scale, filling)


def _is_stored(study: TimelineAnalysis, candidate: Candidate, end: int, *, rises: bool) -> bool:
    """Return True if a store may keep these objects, so that their growth is excused.

    A class of the program is excused only while memory grows no faster than the stores. A built-in type is excused
    even while memory still rises, if the type grew only until a declared store was full.
    """
    if candidate.declared or candidate.role != "type":
        return False
    if fills_a_container(study.facts, candidate, end, rises=rises):
        return True
    if candidate.family == "plain":
        return grows_while_a_store_fills(study.facts, candidate.name, end, full=rises)
    own = candidate.family == "object" and not rises
    return own and is_stored(study.facts, candidate.name, end)


def _start(
    study: TimelineAnalysis,
    candidates: Sequence[Candidate],
    rise: Rise,
    end: int,
) -> Start | None:
    """Return (estimate, low, high) for the first leaking generation.

    The estimate is based on a growing count or, if no count grows, on memory.
    """
    owners = [c for c in candidates if c.family not in OF_OTHERS] or list(candidates)
    sized = [c for c in owners if c.bytes_rate]
    best = max(
        sized or owners, key=lambda c: (c.bytes_rate or 0.0, c.growth.slope, c.name), default=None
    )
    if best is not None:
        return best.growth.start, best.growth.start_low, best.growth.start_high
    if not (rise.window or rise.visible):
        return None
    return study.bend(study.read_until(end))


def _assessed(
    study: TimelineAnalysis,
    cause: Cause,
    rise: Rise,
    scale: Scale,
    start: Start | None,
    end: int,
) -> Assessed:
    owner = cause.owner
    begin = start
    window = window_since(study, start, end)
    if owner is not None:
        g = owner.growth
        begin, window = (g.start, g.start_low, g.start_high), g.generations
    witnesses = _witnesses(cause)
    if "counts" in witnesses and _come_together(study, cause, end):
        witnesses |= {"together"}
    ceiling = _ceiling(study, cause, scale, end) if "counts" in witnesses else None
    return Assessed(
        cause, begin, window, rise, witnesses, scale, study.timeline.name, ceiling=ceiling
    )


def _ceiling(study: TimelineAnalysis, cause: Cause, scale: Scale, end: int) -> Ceiling | None:
    """Return the level at which the owner's count is expected to stop, if memory can hold that many."""
    owner, series = cause.owner, study.counted_in(cause)
    if owner is None or owner.overfull or series is None:
        return None
    x, counts = study.timeline.points(series, end, baseline=True, newest=LOOK_BACK)
    ceiling = ceiling_of(x, counts, owner.growth.start)
    if ceiling is None or scale.limit_bytes is None:
        return ceiling
    each = max(cause.rate.estimate, 0.0) / owner.growth.slope if owner.growth.slope > 0 else 0.0
    full = scale.level_bytes + (ceiling.level - counts[-1]) * each
    return ceiling if full <= scale.limit_bytes else None


def _come_together(study: TimelineAnalysis, cause: Cause, end: int) -> bool:
    owner, timeline = cause.owner, study.timeline
    if owner is None or not timeline.private:
        return False
    series = study.counted_in(cause)
    if series is None:
        return False
    at, counts = timeline.points(series, end, newest=WINDOW)
    first = max(
        0,
        end - WINDOW,
        *(i for i, g in enumerate(timeline.generations[:end]) if g < owner.growth.start),
    )
    x = [float(g) for g in timeline.generations[first:end]]
    return come_together(x, study.residual(end)[first:], at, counts)


def _witnesses(cause: Cause) -> frozenset[str]:
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
    return frozenset(found)


def with_surplus(
    study: TimelineAnalysis, end: int, candidates: Sequence[Candidate]
) -> list[Candidate]:
    violations = study.facts.violations(last_row_of(study, end))
    found = []
    for candidate in candidates:
        broken = violations.pop(candidate.name, None) if candidate.role == "type" else None
        found.append(replace(candidate, violation=broken) if broken else candidate)
    for name, violation in violations.items():
        growth = _growth_since_violation(study, name, violation, end)
        found.append(
            describe(study.facts, f"type.{name}.count", name, "type", growth, end, violation)
        )
    return found


def _growth_since_violation(
    study: TimelineAnalysis, name: str, violation: Violation, end: int
) -> CountGrowth:
    """Return the growth of a violating count since its last reading within bounds; two readings are enough."""
    timeline = study.timeline
    begin = float(timeline.generation[violation.first_row] or first_generation(timeline))
    held = None if violation.row_before is None else timeline.generation[violation.row_before]
    until = timeline.generation[: last_row_of(study, end) + 1]
    newest = float(max((g for g in until if g is not None), default=begin))
    if violation.count_before is None:
        # No reading was within bounds, so only the gain since the first reading is known to be growth.
        gained = violation.count - violation.first_count
        span = max(1.0, newest - begin)
    else:
        gained, span = violation.count - violation.count_before, newest - begin + 1
    low = begin if held is None else min(begin, float(held))
    each = gained / span
    return CountGrowth("irregular", each, each, each, begin, low, begin, 1, span, gained)


def exploded(study: TimelineAnalysis, end: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the tensor types whose counts multiply while memory jumps.

    Only runs that are too short for a trend are searched.
    """
    timeline = study.timeline
    if end >= _YOUNG or end < 2 or len(timeline.private) < 2 or candidates:
        return []
    if timeline.private[end - 1] < (1 + _EXPLOSION_MEMORY) * timeline.private[end - 2]:
        return []
    found = []
    for series, name, role in study.facts.count_series:
        if name.rsplit(".", 1)[-1] not in ("Tensor", "ndarray"):
            continue
        x, counts = timeline.points(series, end)
        if len(x) < 2 or counts[-2] <= 0 or counts[-1] < _EXPLOSION_COUNT * counts[-2]:
            continue
        gained = counts[-1] - counts[-2]
        growth = CountGrowth(
            "irregular", gained, gained, gained, x[-1], x[-1], x[-1], 1, 1.0, gained
        )
        candidate = describe(study.facts, series, name, role, growth, end)
        if candidate.family in ("tensor", "graph"):
            found.append(candidate)
    return found


def with_budgets(study: TimelineAnalysis, end: int, found: Sequence[Assessed]) -> list[Assessed]:
    """Add each broken budget to the cause that explains the excess, or as a separate cause."""
    result = list(found)
    for budget in declared_budgets(study.history):
        if budget.leak is None:
            continue
        amounts = kept_amounts(study, budget, end)
        if not amounts or amounts[-1][1] < budget.leak:
            continue
        generation, kept = amounts[-1]
        if generation != study.timeline.generations[end - 1]:
            continue
        said = broken_budget_evidence(budget, study.history.unit, kept)
        index = _explained_by(budget, result)
        if index is None:
            result.append(_alone(study, end, budget, amounts, said))
        else:
            a = result[index]
            note = f"{a.note} {said}" if a.note else said
            result[index] = replace(a, witnesses=a.witnesses | {"budget"}, note=note)
    return result


def _explained_by(budget: Assertion, found: Sequence[Assessed]) -> int | None:
    """Return the position of the first material cause that may explain a broken budget, or None.

    The budget of a phase is explained only by a cause in that phase.
    """
    for i, a in enumerate(found):
        theirs = budget.metric != KEPT_BY_PHASE or a.cause.place.phase == budget.name
        if theirs and a.scale.is_material(a.cause.rate.estimate, a.window):
            return i
    return None


def _alone(
    study: TimelineAnalysis, end: int, budget: Assertion, amounts: Amounts, said: str
) -> Assessed:
    kept, leak = amounts[-1][1], budget.leak or 0.0
    generation = float(amounts[-1][0])
    place = NOWHERE
    if budget.metric == KEPT_BY_PHASE:
        place = Place(top_level(budget.name), budget.name, 1.0)
    elif budget.metric == KEPT_BY_RUN:
        kept /= len(amounts)
        generation = float(next(g for g, amount in amounts if amount >= leak))
    cause = Cause("native", place, (), None, Slope(kept, 0.0, kept, 1))
    start = (generation, generation, generation)
    return Assessed(
        cause, start, 1.0, Rise(), frozenset({"budget"}), study.scale(end), study.timeline.name, note=said
    )  # fmt: skip
