"""Grouping of candidates into causes: each leak is one cause, with a fingerprint that identifies it across runs.

Candidates that rise in the same phase are one cause unless their measured bytes contradict that. The cause is named
after its owner: the program's own class rather than the arrays it holds. Rates are assigned in ``growth_split.py``.

Two findings describe the same leak, within a run and across runs, if their kinds, phases and owners are equal. The
holder is not part of the fingerprint, because some runs find the holder late or never.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...snapshot import GRAPH_NODE
from ...text_format import short_name
from ..memory.memory_by_phase import BETWEEN_LINE, OTHER_THREADS_LINE
from ..results import Finding, Kind
from ..series_facts import leads_into
from ..statistics.trend import NO_GROWTH, Slope
from .candidates import NOWHERE, OWNS, Candidate, Place, is_of_the_program, may_hide_memory, scaled

# A candidate explains growth when its measured bytes are at least this share of the growth.
EXPLAINS: Final = 0.30
_EXPLAINS_MOST: Final = 0.60
_COVERS: Final = 0.70
SECOND: Final = 0.20
_SAME_SLOPE: Final = 0.10
# Maximum number of tensors or arrays per entry of the container that keeps them.
_NESTED: Final = 16
# Accepted range of objects per container entry.
_SOME: Final = range(2, _NESTED + 1)
# A container below this share of the growth is not merged into another cause.
SMALL: Final = 0.05
_OVERSHOOT: Final = 1.30
# Families whose growth may bring along types that are counted too rarely to be located.
_OWNERS: Final = ("object", "figure", "graph", "container")
# Rank penalty that puts candidates without a known place after all others.
_LAST: Final = 10
_KINDS: Final[Mapping[str, Kind]] = {
    "object": "objects", "figure": "objects", "library": "objects", "plain": "objects",
    "graph": "graph", "tensor": "tensors", "array": "arrays", "container": "container",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Memory:
    """Growth of memory in bytes per generation, in total and net by phase (allocations minus frees).

    ``living``: True if ``phases`` contains the memory that each phase allocated and that is still in use.
    """

    total: Slope
    phases: Mapping[str, float] = field(default_factory=dict)
    living: bool = False

    def at(self, place: Place) -> float | None:
        """Return the growth that a place keeps, or None if unknown."""
        if not self.phases or place == NOWHERE:
            return None
        if place.phase is not None and place.phase not in self.phases:
            # Only phases of the training thread have accounts of their own; phases of other threads share one account.
            return self.phases.get(OTHER_THREADS_LINE, 0.0)
        return self.phases.get(place.phase or BETWEEN_LINE, 0.0)

    def without(self, kept: float) -> Memory:
        """Return the growth without ``kept`` bytes per generation, with all phases reduced by the same factor."""
        if kept <= 0 or self.total.estimate <= 0:
            return self
        share = max(0.0, 1 - kept / self.total.estimate)
        phases = {name: size * share for name, size in self.phases.items()}
        return replace(self, total=self.total.scaled(share), phases=phases)

    def place(self) -> Place:
        """Return the place that keeps most of the growth.

        The phase of this place is None if no single phase keeps most of the growth.
        """
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
    """One leak, with its rate and its members, likeliest owner first.

    Growth outside Python has no members.
    """

    kind: Kind
    place: Place
    members: tuple[Candidate, ...]
    measured: float | None
    rate: Slope = NO_GROWTH
    # The kind of memory that makes up most of the growth, if the only known link between this memory and the members is
    # that both rise together.
    behind: Kind | None = None

    @property
    def owner(self) -> Candidate | None:
        return self.members[0] if self.members else None

    def with_rate(self, rate: Slope) -> Cause:
        return replace(self, rate=rate)


def find_causes(candidates: Sequence[Candidate], memory: Memory) -> list[Cause]:
    """Group candidates into causes; the causes' rates are assigned later."""
    groups: dict[str | None, list[Candidate]] = {}
    homeless: list[Candidate] = []
    for candidate in candidates:
        if candidate.place.phase is None and candidate.place.share is None:
            homeless.append(candidate)
        else:
            groups.setdefault(candidate.place.phase, []).append(candidate)
    _house(homeless, groups)
    _join_containers(groups)
    _join_held(groups, memory)
    _join_tensors(groups)
    causes: list[Cause] = []
    for phase in sorted(groups, key=lambda p: p or ""):
        place = next(c.place for c in groups[phase])
        found = _split(groups[phase], _growth_at(place, memory))
        causes.extend(replace(c, place=memory.place()) if c.place == NOWHERE else c for c in found)
    return sorted(_with_items(causes), key=lambda c: -(c.measured or 0.0))


def _with_items(causes: Sequence[Cause]) -> list[Cause]:
    """Divide a total of tensors or arrays among the containers of several causes, if these keep all of it.

    The total is known per type only. It joins one of the causes, which then claims what the others keep as well.
    """
    totals = [m for c in causes for m in c.members if m.family in ("tensor", "array")]
    if len(totals) != 1 or not totals[0].bytes_rate or totals[0].growth.slope <= 0:
        return list(causes)
    total, size, count = totals[0], totals[0].bytes_rate, totals[0].growth.slope
    # The container of each cause with its bytes, by position of the cause.
    kept: dict[int, tuple[Candidate, float]] = {}
    for i, cause in enumerate(causes):
        large = (
            m
            for m in cause.members
            if m.role == "container" and (m.bytes_rate or 0.0) >= SMALL * size
        )
        if (container := next(large, None)) is not None:
            kept[i] = container, container.bytes_rate or 0.0
    sizes = sum(own for _, own in kept.values())
    entries = sum(container.growth.slope for container, _ in kept.values())
    off = max(abs(sizes - size) / size, abs(entries - count) / count)
    if len(kept) < 2 or off > _SAME_SLOPE:
        return list(causes)
    divided = list(causes)
    for i, (container, own) in kept.items():
        items = replace(
            total, growth=scaled(total.growth, container.growth.slope / count), bytes_rate=own,
            place=container.place,
        )  # fmt: skip
        members = (*(m for m in causes[i].members if m != total), items)
        divided[i] = replace(
            causes[i], kind=kind_of(members[0], members[1:], own), members=members,
            measured=own if total in causes[i].members else causes[i].measured,
        )  # fmt: skip
    return divided


def _house(homeless: Sequence[Candidate], groups: dict[str | None, list[Candidate]]) -> None:
    """Add candidates without a place (rarely read types) to the groups.

    Each candidate joins the group of the best-known owner that began to grow at nearly the same time. Candidates
    with evidence of their own, or without a suitable owner, form the group None.
    """
    if not homeless:
        return
    owners = {
        phase: [c for c in members if c.family in _OWNERS or (c.family == "library" and c.deep)]
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
    """Return True if the owner's measured bytes leave room for the candidate's bytes.

    Also return True if either size is unknown.
    """
    whole = owner.deep or owner.role == "container"
    if not whole or owner.bytes_rate is None or candidate.bytes_rate is None:
        return True
    return owner.bytes_rate >= EXPLAINS * candidate.bytes_rate


def _join_held(groups: dict[str | None, list[Candidate]], memory: Memory) -> None:
    """Move tensors and arrays to the group of the growing candidate that holds them.

    Tensors and arrays are counted rarely, and by type across the entire program, so objects that come and go in one
    phase obscure where other objects are kept. If objects are made in one phase and filled in another, memory grows
    in the second phase.
    """
    parts: dict[str, list[tuple[str | None, Candidate]]] = {}
    for phase, members in groups.items():
        for candidate in members:
            if candidate.family in ("tensor", "array") and candidate.holder is not None:
                parts.setdefault(candidate.name, []).append((phase, candidate))
    for found in parts.values():
        alike = [candidate for _, candidate in found]
        homes = [
            phase
            for phase, members in groups.items()
            if any(_keeps(owner, alike, memory) for owner in members)
        ]
        for phase, candidate in found:
            if homes and phase not in homes:
                groups[phase].remove(candidate)
                groups[homes[0]].append(candidate)
    for phase in [p for p, members in groups.items() if not members]:
        del groups[phase]


def _is_filled(held: Candidate, owner: Candidate, memory: Memory) -> bool:
    """Return True if memory grows in the phase of the held objects rather than in their owner's phase."""
    size, inside, made = held.bytes_rate, memory.at(held.place), memory.at(owner.place)
    if size is None or inside is None or made is None or held.place.phase == owner.place.phase:
        return False
    return inside >= _COVERS * size > 0 and made < EXPLAINS * size


def _join_containers(groups: dict[str | None, list[Candidate]]) -> None:
    """Move containers to the group of the phase that makes their objects.

    A container is moved if it gains one entry per new object, even if another phase adds the objects.
    """
    for phase, members in list(groups.items()):
        for container in [c for c in members if c.role == "container"]:
            made = [
                home
                for home, others in groups.items()
                if home is not None and home != phase
                if any(_is_item_of(c, container) for c in others)
            ]
            if made and not any(_is_item_of(c, container) for c in members):
                groups[phase].remove(container)
                groups[made[0]].append(container)
    for phase in [p for p, members in groups.items() if not members]:
        del groups[phase]


def _is_item_of(c: Candidate, container: Candidate) -> bool:
    held = c.holder is not None and leads_into(c.holder, container.name)
    return c.family == "object" and c.role == "type" and held and is_like(c, container)


def _keeps(owner: Candidate, alike: Sequence[Candidate], memory: Memory) -> bool:
    """Return True if ``owner`` may keep all of ``alike``, the candidates of one type in several phases.

    The owner's bytes must cover the bytes of ``alike`` or be most of the growth of memory. If bytes are unknown,
    the type must rise in a single phase, and its memory must not grow in a phase other than the owner's.
    """
    holder = alike[0].holder
    if owner.family not in ("object", "container") or holder is None:
        return False
    if not leads_into(holder, owner.name):
        return False
    sizes = [c.bytes_rate for c in alike if c.bytes_rate is not None]
    whole = owner.bytes_rate if owner.deep or owner.role == "container" else None
    if whole is None or not sizes:
        return len(alike) == 1 and not (whole is None and _is_filled(alike[0], owner, memory))
    return sum(sizes) <= _OVERSHOOT * whole or whole >= _COVERS * memory.total.estimate


def _join_tensors(groups: dict[str | None, list[Candidate]]) -> None:
    """Merge ownerless tensors from all phases into the group of the phase that makes most of these tensors.

    A retained graph keeps weights alive that another phase replaces, so a rise in the number of tensors in that
    phase is not evidence of a second leak.
    """
    loose = {phase: members for phase, members in groups.items() if _is_loose(members)}
    if len(loose) < 2:
        return

    def weight(phase: str | None) -> tuple[bool, float, str]:
        has_graph = any(c.family == "graph" for c in loose[phase])
        return has_graph, max(c.growth.slope for c in loose[phase]), phase or ""

    most = max(loose, key=weight)
    for phase, members in loose.items():
        # Graphs have already been separated by the phase that makes them.
        if phase != most and not any(c.family == "graph" for c in members):
            groups[most].extend(groups.pop(phase))


def _is_loose(members: Sequence[Candidate]) -> bool:
    """Return True if a group consists of tensors that no object of the program owns.

    The group may also contain the container that keeps graphs.
    """
    families = {c.family for c in members}
    anonymous = {"tensor", "graph", "library", "plain"}
    if "graph" in families:
        anonymous.add("container")
    return bool(families & {"tensor", "graph"}) and families <= anonymous


def _growth_at(place: Place, memory: Memory) -> float:
    kept = memory.at(place)
    return max(kept if kept is not None else memory.total.estimate, 1.0)


def _split(members: Sequence[Candidate], growth: float) -> list[Cause]:
    """Return the causes in one phase.

    The likeliest owner comes first. Other owners follow if the measured bytes leave room for them.
    """
    left = _ranked(members, growth)
    causes: list[Cause] = []
    explained = 0.0
    while left:
        owner, separate = left[0], _separate_containers(left, growth)
        rest = [c for c in left[1:] if c not in separate]
        # With several containers, a total of tensors or arrays cannot be assigned to a single container.
        sized = [c for c in rest if c.role == "container"] if separate else rest
        measured = _measured(owner, sized, growth)
        explains = explained + (measured or 0.0)
        others = [c for c in left[1:] if c in separate or _stands_alone(c, owner, explains, growth)]
        mine = [c for c in rest if c not in others]
        causes.append(
            Cause(kind_of(owner, mine, growth), _place(owner, mine), (owner, *mine), measured)
        )
        if measured is None:
            break
        explained += measured
        left = others
    return causes


def _separate_containers(ranked: Sequence[Candidate], growth: float) -> list[Candidate]:
    """Return the containers, except the first, that keep a substantial share of the growth.

    The result is empty if all containers together keep more than the growth, because one container is then inside
    another and counted twice.
    """
    containers = [c for c in ranked if c.role == "container" and c.bytes_rate is not None]
    total = sum(c.bytes_rate or 0.0 for c in containers)
    if ranked[0] not in containers or total > _OVERSHOOT * growth:
        return []
    return [c for c in containers if c != ranked[0] and (c.bytes_rate or 0.0) >= SECOND * growth]


def _stands_alone(candidate: Candidate, owner: Candidate, explained: float, growth: float) -> bool:
    size = candidate.bytes_rate
    if size is None or candidate.family not in ("object", "container", "graph", "figure"):
        return False
    if candidate.role == "container" and holds(candidate, owner):
        return False
    # All graphs share one measurement of bytes, and reading a chain exposes tensors that carry a graph.
    if candidate.family == "graph" and owner.name == GRAPH_NODE:
        return False
    if candidate.family == "object" and is_like(candidate, owner):
        return False
    if candidate.role == "container" and size < SMALL * growth:
        return True
    room = explained < _COVERS * growth and explained + size <= _OVERSHOOT * growth
    return room and size >= SECOND * growth


def holds(container: Candidate, owner: Candidate) -> bool:
    """Return True if a growing container and an owner are one leak.

    Either one keeps the other, or both grow equally fast.
    """
    if short_name(owner.name) in container.name.split("."):
        return True
    if owner.holder is not None and owner.holder.startswith(container.name):
        return True
    if owner.family in ("graph", "tensor", "array"):
        return container.growth.slope * _NESTED >= owner.growth.slope
    return is_like(container, owner)


def brings_some(container: Candidate, owner: Candidate) -> bool:
    """Return True if each container entry comes with a fixed number of objects, as in a pool of workers.

    Return False if the objects have a known holder in the program, or if the container belongs to a library.
    """
    known = owner.holder is not None and is_of_the_program(owner.holder)
    if known or owner.role != "type" or not is_of_the_program(container.name):
        return False
    more = container.growth.slope
    alike = container.growth.pattern == owner.growth.pattern == "constant"
    same_phase = container.place.phase == owner.place.phase is not None
    return alike and same_phase and more > 0 and round(owner.growth.slope / more) in _SOME


def is_like(a: Candidate, b: Candidate) -> bool:
    """Return True if two candidates grow at nearly the same rate.

    A container that gains one entry per new object holds these objects; it is not a second leak.
    """
    larger = max(a.growth.slope, b.growth.slope)
    return abs(a.growth.slope - b.growth.slope) <= _SAME_SLOPE * larger


def _ranked(members: Sequence[Candidate], growth: float) -> list[Candidate]:
    containers = [c for c in members if c.role == "container"]

    def rank(c: Candidate) -> tuple[float, float, float, str]:
        share = None if c.bytes_rate is None else c.bytes_rate / growth
        held = any(is_like(c, container) for container in containers)
        size = -(c.bytes_rate or 0.0) if c.deep or c.role == "container" else 0.0
        # A type counted only in censuses has no phase; it takes the phase of the growing container that holds
        # it.
        inside = any(
            is_like(c, one) and c.holder is not None and leads_into(c.holder, one.name)
            for one in containers
        )
        nowhere = c.place == NOWHERE and not inside
        unknown = _LAST if nowhere and not (c.deep or c.declared or c.violation) else 0
        # The least numerous objects own the others, whereas the most numerous tensors or arrays are the retained ones.
        few = c.family in ("object", "figure", "library")
        owns = c.growth.slope if few else -c.growth.slope
        return _rank(c, share, held) + unknown, size, owns, c.name

    return sorted(members, key=rank)


def _rank(c: Candidate, share: float | None, held: bool) -> float:
    """Return a candidate's rank as the owner of growth; lower is likelier.

    ``share``: the share of the growth that the candidate explains.
    """
    if c.violation is not None:
        return 0
    explains = share is not None and share >= EXPLAINS
    if c.family in ("object", "figure"):
        if c.deep:
            return 1 if explains else 6
        return 2 if c.declared else 2.5 if held else 4
    if c.name == GRAPH_NODE:
        return 2.1
    if c.family == "graph":
        return 2.2 if share is not None and share >= _EXPLAINS_MOST else 3
    if c.family == "container":
        return 3.5 if explains else 5.5
    if c.family in ("tensor", "array"):
        return 4.5 if explains or share is None else 5
    if c.family == "library":
        return 5.1 if may_hide_memory(c) else 5.2
    # The measured size of a plain type such as ``bytes`` is complete, so a type that explains the growth ranks before a
    # type that only grows in number.
    return 6.5 if explains else 7


def _measured(owner: Candidate, rest: Sequence[Candidate], growth: float) -> float | None:
    """Return the bytes per generation measured for a cause, or None if no bytes were measured.

    The bytes belong to the owner or to objects that the owner holds. Containers are added up, since each counts its
    own items; arrays and tensors are not, since their bytes are totals.
    """
    if owner.deep:
        return owner.bytes_rate
    containers = [
        c.bytes_rate for c in (owner, *rest) if c.role == "container" and c.bytes_rate is not None
    ]
    # Totals of arrays and tensors are attributed to the owner only if something connects them.
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
    # Shallow bytes exclude what the objects refer to, so they are used only if they are a substantial share of the
    # growth.
    return size if size >= EXPLAINS * growth or owner.role == "container" else None


def kind_of(owner: Candidate, rest: Iterable[Candidate], growth: float) -> Kind:
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


_NUMBERS = re.compile(r"\d+")
_INDEXES = re.compile(r"\[[^\]]*\]")

# Kinds of growth of the process's own memory: better readings may change one kind into another.
_OWN_MEMORY: Final = frozenset(
    {
        "objects", "tensors", "graph", "arrays", "container", "cyclic_garbage", "native",
        "allocator_retained", "count_contract",
    }
)  # fmt: skip
_NEAR: Final = 3.0  # generations
# Roles of the first suspects of two findings that may be the same leak although the suspects have different names.
_ONE_LEAK: Final = ({"type", "container"}, {"type", "library"}, {"container", "library"})


def fingerprint_of(cause: Cause) -> str:
    """Return 16 hexadecimal digits that are equal for the same leak, regardless of the run's name."""
    owner = cause.owner.name if cause.owner is not None else ""
    parts = (cause.kind, cause.place.phase or "", normalised(owner))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def normalised(path: str) -> str:
    """Return a path without the parts that vary between runs: indexes, numbers and ``__main__``."""
    path = _INDEXES.sub("[*]", path.removeprefix("__main__."))
    return _NUMBERS.sub("#", path)


def goes_on_as(old: Finding, new: Finding) -> bool:
    """Return True if ``new`` identifies the same leak of the same run better than ``old`` does."""
    kinds = old.kind == new.kind or {old.kind, new.kind} <= _OWN_MEMORY
    if not (kinds and _of_one_process(old, new)):
        return False
    owners = {finding.suspects[0].role for finding in (old, new) if finding.suspects}
    if old.phase != new.phase and None not in (old.phase, new.phase):
        # The growth of a container may first be attributed to the phase that fills it, and then to the phase that makes
        # its items.
        return "container" in owners and shares_names(old, new, types=False)
    if old.suspects and new.suspects:
        if shares_names(old, new):
            return True
        # A type, the container that keeps its objects and the library that allocates their memory have different
        # names; two types or containers are two leaks.
        if old.phase != new.phase or owners not in _ONE_LEAK:
            return False
    starts = old.started_at_generation, new.started_at_generation
    return None not in starts and abs(starts[0].estimate - starts[1].estimate) <= _NEAR  # type: ignore[union-attr]


def shares_names(old: Finding, new: Finding, *, types: bool = True) -> bool:
    """Return True if both findings name the same type, container or holder, or if one name leads into the other.

    ``types``: False to compare only containers and holders.
    """
    a, b = (
        {normalised(s.name) for s in finding.suspects if types or s.role in ("container", "holder")}
        for finding in (old, new)
    )
    return any(leads_into(x, y) or leads_into(y, x) for x in a for y in b)


def _of_one_process(old: Finding, new: Finding) -> bool:
    """Return True if two findings share a process, or if either finding names no process.

    Ranks with the same behaviour form one finding, but better readings may reach one rank before the others.
    """
    if old.process is None or new.process is None:
        return True
    return bool(set(old.process.split(", ")) & set(new.process.split(", ")))
