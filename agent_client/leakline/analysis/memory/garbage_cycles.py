"""Reference cycles that wait for the collector: whether they are what grows, told apart from what is alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ...snapshot import CYCLIC_GARBAGE
from ...text_format import format_count
from ..attribution.candidates import Candidate, Place, family_of, scaled
from ..attribution.causes import Cause
from ..run_facts import Holders
from ..series_facts import Facts
from ..statistics.count_evidence import CountGrowth, count_growth
from ..statistics.trend import Slope, floor_slope
from ..timeline import Lane

_OBJECTS: Final = "python.garbage_objects"
_BYTES: Final = "python.garbage_bytes"
_LOOKED_AT: Final = "python.garbage_looked_at"
_WHOLE: Final = "python.garbage_is_whole"
_ENABLED: Final = "python.collector_enabled"
_PENDING: Final = "python.collector_pending"
# Fewer wait at any time in any program.
_MATTERS: Final = 1_000
_LOOKS: Final = 4
# Garbage that falls below this share of what it was has been collected.
_COLLECTED: Final = 0.5
# A look at the newest objects alone sees no more than those; what it sees is what grows when it is this much of them.
_MOSTLY: Final = 0.5
# A look at the newest that goes through more objects than another by this factor reaches older ones, too.
_FURTHER: Final = 1.5
# Bytes of garbage that are at least this share of a growth explain it.
_EXPLAINS: Final = 0.30
_WINDOW: Final = 64
_TYPES_NAMED: Final = 3
# A class of which less than this share of the most frequent type is garbage does not stand for the rest.
_FEW: Final = 0.1


@dataclass(frozen=True, slots=True)
class Waiting:
    """Garbage that is not being collected: ``objects`` at the newest look, and how they grow.

    ``objects`` is None where nobody looked, or what was seen does not grow; then a holder path alone may tell.
    """

    objects: float | None = None
    growth: CountGrowth | None = None
    bytes_rate: float = 0.0  # per generation; 0 where it is not known
    mostly: bool = False  # most of the newest objects are garbage
    least: bool = False  # only the newest objects were looked at
    collector_off: bool = False

    def told(self, unit: str) -> str:
        """One line of evidence."""
        off = " The collector is switched off." if self.collector_off else ""
        if self.objects is None:
            return f"Nothing but each other refers to them: only the collector can free them.{off}"
        more = f", {format_count(self.growth.slope)} more per {unit}" if self.growth else ""
        least = "At least " if self.least else ""
        return (
            f"{least}{format_count(self.objects)} objects wait for the collector{more}: "
            f"nothing but each other refers to them.{off}"
        )


def waiting_of(lane: Lane) -> Waiting:
    """What is known of the garbage of a lane; without ``objects`` when no look says that it grows."""
    off = _newest(lane, _ENABLED) == 0
    nothing = Waiting(collector_off=off)
    if not lane.has(_OBJECTS):
        return nothing
    x, counts = lane.points(_OBJECTS, newest=_WINDOW)
    recent = counts[-_LOOKS:]
    fell = any(b < _COLLECTED * a for a, b in pairwise(recent))
    if len(recent) < _LOOKS or recent[-1] < _MATTERS or fell:
        return nothing
    if _newest(lane, _WHOLE) != 0:
        growth = count_growth(x, counts, None, lane.spacing(len(lane)))
        rate = max(0.0, floor_slope(*lane.points(_BYTES, newest=_WINDOW)).estimate)
        return nothing if growth is None else Waiting(recent[-1], growth, rate, False, False, off)
    share = recent[-1] / max(1.0, _newest(lane, _LOOKED_AT) or 0.0)
    if share >= _MOSTLY:
        return _by_share(lane, recent[-1], share, off)
    return _among_the_newest(lane, recent[-1]) if off else nothing


def _among_the_newest(lane: Lane, objects: float) -> Waiting:
    """Where nothing is collected and looks reach no further back than before: what there is more of has come since."""
    _, reached = lane.points(_LOOKED_AT, newest=_WINDOW)
    growth = count_growth(*lane.points(_OBJECTS, newest=_WINDOW), None, lane.spacing(len(lane)))
    if growth is None or not reached or reached[-1] > _FURTHER * min(reached):
        return Waiting(collector_off=True)
    rate = max(0.0, floor_slope(*lane.points(_BYTES, newest=_WINDOW)).estimate)
    return Waiting(objects, growth, rate, False, True, True)


def _by_share(lane: Lane, objects: float, share: float, off: bool) -> Waiting:
    """Where only the newest objects are looked at: while the collector is off, what waits for it is counted apart."""
    pending = off and lane.has(_PENDING)
    spacing = lane.spacing(len(lane))
    found = count_growth(*lane.points(_PENDING, newest=_WINDOW), None, spacing) if pending else None
    if found is None:
        return Waiting(objects, None, 0.0, True, True, off)
    growth = scaled(found, share)
    each = (_newest(lane, _BYTES) or 0.0) / objects
    return Waiting(objects, growth, growth.slope * each, True, True, off)


def _newest(lane: Lane, series: str) -> float | None:
    known = [float(v) for v in lane.series.get(series, ()) if v is not None]
    return known[-1] if known else None


def garbage_of(cause: Cause, facts: Facts, waiting: Waiting) -> Cause | None:
    """The same cause as what it is when garbage is what grows; None when it is not."""
    owner = cause.owner
    if owner is not None and owner.role == "type":
        in_cycles = facts.holders.get(owner.name) == CYCLIC_GARBAGE or (
            waiting.mostly and owner.name in facts.history.holders_by_type.garbage_types
        )
        if in_cycles:
            return replace(cause, kind="cyclic_garbage")
    # Numbers and strings follow whoever holds them: in cycles, too, they are what the cycles hold.
    nameless = owner is None or owner.family == "plain"
    if not nameless or cause.kind not in ("native", "objects") or waiting.objects is None:
        return None
    if waiting.bytes_rate < _EXPLAINS * cause.rate.estimate and not (waiting.mostly and not owner):
        return None
    growth = waiting.growth or no_growth(0.0)
    members = members_of(facts.history.holders_by_type, cause.place, growth, waiting.bytes_rate)
    measured = min(waiting.bytes_rate, cause.rate.estimate) or None
    names = {member.name for member in members}
    members += tuple(member for member in cause.members if member.name not in names)
    return replace(cause, kind="cyclic_garbage", members=members, measured=measured)


def may_pass(cause: Cause, facts: Facts, waiting: Waiting, window: float, upto: int) -> bool:
    """Whether a collection may still free most of it, for the collector runs.

    Garbage of which little waits, or a growth that is no more than what waits, of no name or of a class that was seen
    in it: such garbage rises for many generations where its objects and the collector's threshold keep a slow beat.
    """
    lane, owner = facts.lane, cause.owner
    _, enabled = lane.points(_ENABLED, upto) if lane.has(_ENABLED) else ([], [])
    if enabled and not enabled[-1]:
        return False
    in_cycles = cause.kind == "cyclic_garbage"
    if in_cycles and waiting.objects is not None:
        return False
    nameless = owner is None or owner.family == "plain"
    seen = owner is not None and owner.name in facts.history.holders_by_type.garbage_types
    if not lane.has(_BYTES) or not (in_cycles or nameless or seen):
        return False
    _, found = lane.points(_BYTES, upto)
    return bool(found) and found[-1] >= _EXPLAINS * cause.rate.estimate * window


def together(first: Cause, second: Cause) -> Cause:
    """Two causes that are one: what lies in cycles drags along what it refers to. The program's own class leads."""
    a, b = first.rate, second.rate
    rate = Slope(a.estimate + b.estimate, a.low + b.low, a.high + b.high, max(a.points, b.points))
    measured = (first.measured or 0.0) + (second.measured or 0.0)
    names = {member.name for member in first.members}
    more = tuple(member for member in second.members if member.name not in names)
    members = sorted((*first.members, *more), key=lambda member: member.family != "object")
    return replace(first, members=tuple(members), measured=measured or None, rate=rate)


def no_growth(each: float) -> CountGrowth:
    """So many in each generation, without anything known of a beginning or a pattern."""
    return CountGrowth("irregular", each, each, each, 0, 0, 0, 0, 1, each)


def _telling(types: Mapping[str, int]) -> list[str]:
    """The program's own classes before the lists and dictionaries they hold, which are as many; then the most."""
    few = _FEW * max(types.values(), default=0)

    def rank(name: str) -> tuple[bool, int]:
        own = family_of(name, "type") == "object" and types[name] >= few
        return not own, -types[name]

    return sorted(types, key=rank)


def members_of(
    holders: Holders, place: Place, growth: CountGrowth, bytes_rate: float
) -> tuple[Candidate, ...]:
    """The types of the garbage that tell most, each with its share of the growth."""
    types = holders.garbage_types
    total = sum(types.values())
    found = []
    for name in _telling(types)[:_TYPES_NAMED]:
        share = types[name] / total
        own = scaled(growth, share)
        family = family_of(name, "type")
        found.append(
            Candidate(
                name, "type", family, own, place, bytes_rate * share or None, False, False, CYCLIC_GARBAGE
            )
        )  # fmt: skip
    return tuple(found)
