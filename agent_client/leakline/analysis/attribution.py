"""From everything that grows to causes: one leak is one cause, whatever it drags along, and has one rate.

Candidates that rise in the same phase are one cause unless their measured bytes say otherwise. The cause is
named after its owner: the program's own class rather than the arrays it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from .books import BETWEEN_LINE, OTHER_THREADS_LINE
from .candidates import NOWHERE, OWNS, Candidate, Place
from .results import Kind
from .trend import NO_GROWTH, Slope
from .wording import short_name

# A candidate explains a growth when its measured bytes are at least this share of it.
_EXPLAINS: Final = 0.30
_EXPLAINS_MOST: Final = 0.60
# One object of a class nobody declared is hardly larger than this.
_PLAUSIBLE_BYTES: Final = 2**20
# Tensors, what their graphs hold, figures with their canvas, and objects that a container is seen to keep.
_PLAUSIBLE_LARGE_BYTES: Final = 2**27
_COVERS: Final = 0.70
# Measured bytes below this share leave room for a second cause outside Python.
_LEAVES_ROOM: Final = 0.25
_SECOND: Final = 0.20
_SAME_SLOPE: Final = 0.10
# Tensors or arrays that come with one entry of the container that keeps them.
_NESTED: Final = 16
# A container with less than this share of the growth is a story of its own, or none.
_SMALL: Final = 0.05
_OVERSHOOT: Final = 1.30
# What was seen growing nowhere in particular comes after all others.
_LAST: Final = 10
_KINDS: Final[Mapping[str, Kind]] = {
    "object": "objects", "figure": "objects", "library": "objects", "plain": "objects",
    "graph": "graph", "tensor": "tensors", "array": "arrays", "container": "container",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Memory:
    """How fast memory grows: in all, and what stays in each phase (give and take settled), bytes per generation."""

    total: Slope
    phases: Mapping[str, float] = field(default_factory=dict)

    def at(self, place: Place) -> float | None:
        """Growth that stays at a place; None when nothing is known of it."""
        if not self.phases or place == NOWHERE:
            return None
        if place.phase is not None and place.phase not in self.phases:
            # Only phases of the training thread have a line; another thread's share one.
            return self.phases.get(OTHER_THREADS_LINE, 0.0)
        return self.phases.get(place.phase or BETWEEN_LINE, 0.0)

    def without(self, kept: float) -> Memory:
        """What is left when ``kept`` bytes per generation are accounted for, wherever they were gained."""
        if kept <= 0 or self.total.estimate <= 0:
            return self
        share = max(0.0, 1 - kept / self.total.estimate)
        phases = {name: size * share for name, size in self.phases.items()}
        return Memory(self.total.scaled(share), phases)

    def place(self) -> Place:
        """The phase that keeps most of the growth, if one does."""
        kept = {name: size for name, size in self.phases.items() if size > 0}
        total = sum(kept.values())
        if total <= 0:
            return NOWHERE
        best = max(kept, key=lambda name: (kept[name], name))
        share = kept[best] / total
        owns = best not in (BETWEEN_LINE, OTHER_THREADS_LINE) and share >= OWNS
        return Place(best if owns else None, best if owns else None, share)


@dataclass(frozen=True, slots=True)
class Cause:
    """One leak: its members in order of suspicion (none for growth outside Python) and its rate."""

    kind: Kind
    place: Place
    members: tuple[Candidate, ...]
    measured: float | None
    rate: Slope = NO_GROWTH

    @property
    def owner(self) -> Candidate | None:
        return self.members[0] if self.members else None

    def with_rate(self, rate: Slope) -> Cause:
        return replace(self, rate=rate)


def find_causes(candidates: Sequence[Candidate], memory: Memory) -> list[Cause]:
    """Group candidates into causes; rates are still to be shared out."""
    groups: dict[str | None, list[Candidate]] = {}
    homeless: list[Candidate] = []
    for candidate in candidates:
        if candidate.place.phase is None and candidate.place.share is None:
            homeless.append(candidate)
        else:
            groups.setdefault(candidate.place.phase, []).append(candidate)
    _house(homeless, groups)
    _join_tensors(groups)
    causes: list[Cause] = []
    for phase in sorted(groups, key=lambda p: p or ""):
        place = next(c.place for c in groups[phase])
        found = _split(groups[phase], _growth_at(place, memory))
        causes.extend(replace(c, place=memory.place()) if c.place == NOWHERE else c for c in found)
    return sorted(causes, key=lambda c: -(c.measured or 0.0))


def _house(homeless: Sequence[Candidate], groups: dict[str | None, list[Candidate]]) -> None:
    """Rarely read types join the group whose owner is known best and began to grow nearest to them."""
    if not homeless:
        return
    owners = {
        phase: [c for c in members if c.family in ("object", "figure", "graph", "container")]
        for phase, members in groups.items()
    }
    for candidate in homeless:
        own_kind = candidate.violation is not None or (
            candidate.deep and candidate.family == "object"
        )
        near = [
            (
                not (owner.declared or owner.deep),
                abs(owner.growth.start - candidate.growth.start),
                -(owner.bytes_rate or 0.0),
                phase or "",
            )
            for phase, members in owners.items()
            for owner in members
            if _may_hold(owner, candidate)
        ]
        if own_kind or not near:
            groups.setdefault(None, []).append(candidate)
        else:
            groups[min(near)[3] or None].append(candidate)


def _may_hold(owner: Candidate, candidate: Candidate) -> bool:
    """Whether the measured bytes of an owner leave room for the candidate's, where both were measured."""
    whole = owner.deep or owner.role == "container"
    if not whole or owner.bytes_rate is None or candidate.bytes_rate is None:
        return True
    return owner.bytes_rate >= _EXPLAINS * candidate.bytes_rate


def _join_tensors(groups: dict[str | None, list[Candidate]]) -> None:
    """Tensors without an owner that rise in several phases are one growth, where most of them are made.

    A kept graph holds the weights of agents replaced elsewhere: their number rises there, and says nothing.
    """
    loose = {phase: members for phase, members in groups.items() if _is_loose(members)}
    if len(loose) < 2:
        return

    def weight(phase: str | None) -> tuple[bool, float, str]:
        has_graph = any(c.family == "graph" for c in loose[phase])
        return has_graph, max(c.growth.slope for c in loose[phase]), phase or ""

    most = max(loose, key=weight)
    for phase in loose:
        if phase != most:
            groups[most].extend(groups.pop(phase))


def _is_loose(members: Sequence[Candidate]) -> bool:
    """Tensors that no object of the program owns. The container that keeps graphs may be among them."""
    families = {c.family for c in members}
    anonymous = {"tensor", "graph", "library", "plain"}
    if "graph" in families:
        anonymous.add("container")
    return bool(families & {"tensor", "graph"}) and families <= anonymous


def _growth_at(place: Place, memory: Memory) -> float:
    kept = memory.at(place)
    return max(kept if kept is not None else memory.total.estimate, 1.0)


def _split(members: Sequence[Candidate], growth: float) -> list[Cause]:
    """The causes in one phase: the likeliest owner, and others only where its measured bytes leave room."""
    left = _ranked(members, growth)
    causes: list[Cause] = []
    explained = 0.0
    while left:
        owner, rest = left[0], left[1:]
        measured = _measured(owner, rest, growth)
        others = [c for c in rest if _stands_alone(c, owner, explained + (measured or 0.0), growth)]
        mine = [c for c in rest if c not in others]
        causes.append(
            Cause(_kind(owner, mine, growth), _place(owner, mine), (owner, *mine), measured)
        )
        if measured is None:
            break
        explained += measured
        left = others
    return causes


def _stands_alone(candidate: Candidate, owner: Candidate, explained: float, growth: float) -> bool:
    size = candidate.bytes_rate
    if size is None or candidate.family not in ("object", "container", "graph", "figure"):
        return False
    if candidate.role == "container" and holds(candidate, owner):
        return False
    if candidate.family == "object" and _is_like(candidate, owner):
        return False
    if candidate.role == "container" and size < _SMALL * growth:
        return True
    room = explained < _COVERS * growth and explained + size <= _OVERSHOOT * growth
    return room and size >= _SECOND * growth


def holds(container: Candidate, owner: Candidate) -> bool:
    """Whether a growing container is part of the owner's story: it keeps it, or is kept by it."""
    if short_name(owner.name) in container.name.split("."):
        return True
    if owner.holder is not None and owner.holder.startswith(container.name):
        return True
    if owner.family in ("graph", "tensor", "array"):
        return container.growth.slope * _NESTED >= owner.growth.slope
    return _is_like(container, owner)


def _is_like(a: Candidate, b: Candidate) -> bool:
    """A container that gains one entry for each new object is how the object is held, not a second leak."""
    larger = max(a.growth.slope, b.growth.slope)
    return abs(a.growth.slope - b.growth.slope) <= _SAME_SLOPE * larger


def _ranked(members: Sequence[Candidate], growth: float) -> list[Candidate]:
    containers = [c for c in members if c.role == "container"]

    def rank(c: Candidate) -> tuple[float, float, float, str]:
        share = None if c.bytes_rate is None else c.bytes_rate / growth
        held = any(_is_like(c, container) for container in containers)
        size = -(c.bytes_rate or 0.0) if c.deep or c.role == "container" else 0.0
        unknown = _LAST if c.place == NOWHERE and not (c.deep or c.declared or c.violation) else 0
        # Of objects the fewest own the others; of tensors and arrays the most are the ones kept.
        owns = c.growth.slope if c.family in ("object", "figure") else -c.growth.slope
        return _rank(c, share, held) + unknown, size, owns, c.name

    return sorted(members, key=rank)


def _rank(c: Candidate, share: float | None, held: bool) -> float:
    """Smaller is likelier to be the owner of a growth of which it explains ``share``."""
    if c.violation is not None:
        return 0
    explains = share is not None and share >= _EXPLAINS
    if c.family in ("object", "figure"):
        if c.deep:
            return 1 if explains else 6
        return 2 if c.declared else 2.5 if held else 4
    if c.family == "graph":
        return 2.2 if share is not None and share >= _EXPLAINS_MOST else 3
    if c.family == "container":
        return 3.5 if explains else 5.5
    if c.family in ("tensor", "array"):
        return 4.5 if explains or share is None else 5
    return 5.2 if c.family == "library" else 7


def _measured(owner: Candidate, rest: Sequence[Candidate], growth: float) -> float | None:
    """Bytes per generation measured for a cause: its owner's, or what it holds.

    Containers add up, since each counts its own items; arrays and tensors are totals and do not.
    """
    if owner.deep:
        return owner.bytes_rate
    containers = [
        c.bytes_rate for c in (owner, *rest) if c.role == "container" and c.bytes_rate is not None
    ]
    # Totals of arrays and tensors are the owner's only if something says that they belong together.
    near = owner.declared or owner.role == "container" or owner.place == NOWHERE
    totals = [
        c.bytes_rate
        for c in rest
        if c.deep and c.bytes_rate is not None and (near or c.place.phase == owner.place.phase)
    ]
    known = [*totals, sum(containers)] if containers else totals
    if owner.bytes_rate is not None:
        known.append(owner.bytes_rate)
    if not known:
        return None
    size = max(known)
    # Shallow bytes say nothing of what hangs below; only a real share of the growth is an answer.
    return size if size >= _EXPLAINS * growth or owner.role == "container" else None


def _kind(owner: Candidate, rest: Iterable[Candidate], growth: float) -> Kind:
    if owner.family == "container":
        for c in rest:
            if c.family == "graph":
                return "graph"
            if c.family == "array" and (c.bytes_rate or 0.0) >= 0.5 * max(
                owner.bytes_rate or 0.0, growth
            ):
                return "arrays"
    return _KINDS[owner.family]


def _place(owner: Candidate, rest: Iterable[Candidate]) -> Place:
    if owner.place.phase is not None:
        return owner.place
    return next((c.place for c in rest if c.place.phase is not None), owner.place)


def share_out(
    causes: Sequence[Cause], memory: Memory, memory_rises: bool, matters: bool
) -> tuple[list[Cause], float]:
    """Give each cause its rate, so that together they are what memory gained.

    ``matters``: whether memory gains enough to be shared out at all; below that each keeps what was measured.

    Returns the causes and the bytes per generation that none of them accounts for.
    """
    total = memory.total
    active = _taking_part(causes, memory)
    idle = [c.with_rate(_around(c.measured or 0.0)) for c in causes if c not in active]
    if not active:
        return idle, total.estimate if memory_rises else 0.0
    if not (total.rises and matters):
        return [*(c.with_rate(_unsure(c, total)) for c in active), *idle], 0.0
    claims = [_claim(c, memory, len(active)) for c in active]
    claimed = sum(claims)
    room = memory_rises and claimed < _LEAVES_ROOM * total.estimate
    scale = 1.0 if room or claimed <= 0 else total.estimate / claimed
    rated = [
        c.with_rate(total.scaled(claim * scale / total.estimate))
        for c, claim in zip(active, claims, strict=True)
    ]
    return [*rated, *idle], total.estimate - claimed if room else 0.0


def _taking_part(causes: Sequence[Cause], memory: Memory) -> list[Cause]:
    """The causes with a claim on what memory gained.

    What phases gained decides little: the allocator gives one phase what another freed, so that memory grows
    where its pool ran dry. Counts say who keeps; sizes say whether that can be all.
    """
    total = max(memory.total.estimate, 0.0)
    measured = [c for c in causes if c.measured is not None and c.measured >= _SMALL * total]
    if sum(c.measured or 0.0 for c in measured) >= _LEAVES_ROOM * total and measured:
        return measured
    guessed = [c for c in causes if c.measured is None and _is_plausible(c, total)]
    guessed.sort(key=lambda c: _likelihood(c, memory), reverse=True)
    # Without sizes nothing tells how to share: the likeliest answer stands, and others that hold their phase.
    kept = guessed[:1] + [
        c for c in guessed[1:] if (memory.at(c.place) or 0.0) >= _EXPLAINS * total
    ]
    return measured + kept


def _is_plausible(cause: Cause, total: float) -> bool:
    owner = cause.owner
    if owner is None or owner.growth.slope <= 0:
        return owner is not None and owner.violation is not None
    if owner.declared or owner.violation is not None:
        return True
    each = total / owner.growth.slope
    # What a list gains one by one, in every generation, is kept; nobody has said yet how large it is.
    kept = any(m.role == "container" and _is_like(m, owner) for m in cause.members[1:])
    if owner.family in ("tensor", "graph", "figure") or (owner.family == "object" and kept):
        return each <= _PLAUSIBLE_LARGE_BYTES
    if owner.place == NOWHERE or owner.family in ("library", "plain"):
        return False
    return each <= _PLAUSIBLE_BYTES


def _likelihood(cause: Cause, memory: Memory) -> tuple[bool, bool, float, float]:
    owner = cause.owner
    if owner is None:
        return False, False, 0.0, 0.0
    broken = owner.violation is not None
    return broken, owner.declared, memory.at(cause.place) or 0.0, owner.growth.slope


def _claim(cause: Cause, memory: Memory, among: int) -> float:
    in_phase = memory.at(cause.place)
    if among == 1 and cause.measured is None:
        return memory.total.estimate
    if cause.measured is None:
        return max(in_phase if in_phase is not None else memory.total.estimate / among, 0.0)
    # A walk that ended early measures too little; the books of its phase then say more.
    if in_phase is not None and cause.measured < 0.5 * in_phase:
        return in_phase
    return cause.measured


def _around(size: float) -> Slope:
    return Slope(size, 0.5 * size, 1.5 * size, 0)


def _unsure(cause: Cause, total: Slope) -> Slope:
    """Memory does not show the rise (yet): what was measured, within what memory allows."""
    if cause.measured is None:
        return total
    size = min(cause.measured, max(total.high, 0.0))
    return Slope(size, min(total.low, 0.5 * size), max(total.high, size), total.points)
