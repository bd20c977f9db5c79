"""Which of the child processes grow: each that is told one by one has series of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from ...text_format import format_bytes
from ..results import Suspect
from ..statistics.trend import floor_slope
from ..timeline import Lane

PREFIX: Final = "children.process."
# Memory of a child alone where it is known, else with its part of what it shares.
SIZES: Final = (".uss_bytes", ".pss_bytes")
# All that have no name, together.
OTHER: Final = "other"
_NEWEST: Final = 256
_FEW: Final = 3
# Of all that the children gain, what one has to gain to be named.
_PART: Final = 0.1
_MAX_NAMED: Final = 8


def sizes_of_children(series: Iterable[str]) -> dict[str, str]:
    """The series of the size of each child among these -> its name, in the order of the names."""
    known = sorted(series)
    found: dict[str, str] = {}
    for size in SIZES:
        for each in known:
            if each.startswith(PREFIX) and each.endswith(size):
                found.setdefault(each[len(PREFIX) : -len(size)], each)
    return {found[name]: name for name in sorted(found)}


class GrowingChildren(NamedTuple):
    """``told``: how many children have series of their own. ``rest``: bytes per generation by which the others grow
    together; 0 where that is no part worth telling, or not known."""

    suspects: tuple[Suspect, ...] = ()
    told: int = 0
    rest: float = 0.0


def growing_children(lane: Lane, since: float | None, rate: float) -> GrowingChildren:
    """Those that account for a growth of all together by ``rate`` bytes per generation, what grows most first.

    ``since``: the generation from which they grow.
    """
    sizes = sizes_of_children(lane.series)
    named = {series: name for series, name in sizes.items() if name != OTHER}
    rates = {name: _rate(lane, series, since) for series, name in named.items()}
    least = _PART * rate
    grown = sorted((name for name in rates if rates[name] >= least > 0), key=lambda n: -rates[n])
    suspects = (Suspect(name, "process", None, round(rates[name], 1)) for name in grown)
    rest = sum(_rate_of_rest(lane, s, named, since) for s in sizes.keys() - named.keys())
    return GrowingChildren(
        tuple(suspects)[:_MAX_NAMED], len(named), rest if rest >= least > 0 else 0.0
    )


def growing_lines(growing: GrowingChildren, unit: str) -> list[str]:
    """``Of 3 children told one by one, this grows: collector-b by 12.00 MiB per generation.``, and of the rest."""
    found = []
    if growing.suspects:
        grown = (
            f"{s.name} by {format_bytes(s.bytes_per_generation or 0.0)}" for s in growing.suspects
        )
        children = "1 child" if growing.told == 1 else f"{growing.told} children"
        verb = "this grows" if len(growing.suspects) == 1 else "these grow"
        found.append(f"Of {children} told one by one, {verb}: {', '.join(grown)} per {unit}.")
    if growing.rest:
        found.append(
            f"The children that have no series of their own grow by {format_bytes(growing.rest)} per {unit}."
        )
    return found


def _rate(lane: Lane, series: str, since: float | None) -> float:
    """Bytes per generation; 0 of one that was read too seldom to tell."""
    xs, ys = lane.points(series, newest=_NEWEST)
    # It grows from what it had in the generation before.
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if since is None or x >= since - 1]
    if len(kept) < _FEW:
        return 0.0
    return floor_slope([x for x, _ in kept], [y for _, y in kept]).estimate


class _Read(NamedTuple):
    generation: int
    size: float
    # Who is told one by one then, in which attempt: the rest is the same children while that is the same.
    beside: Hashable


def _rate_of_rest(lane: Lane, series: str, named: Mapping[str, str], since: float | None) -> float:
    """As `_rate`. A child that joins the rest or leaves it, for a series of its own, takes along all that it has: that
    is no growth. So such a generation counts as the others do on average."""
    read = []
    for generation, row in list(zip(lane.generations, lane.end_rows, strict=True))[-_NEWEST:]:
        size = lane.series[series][row]
        if size is not None and (since is None or generation >= since - 1):
            told = frozenset(name for name in named if lane.series[name][row] is not None)
            read.append(_Read(generation, size, (lane.segment[row], told)))
    alike = [(a, b) for a, b in pairwise(read) if a.beside == b.beside]
    if len(alike) < _FEW - 1:
        return 0.0
    usual = sum(b.size - a.size for a, b in alike) / sum(
        b.generation - a.generation for a, b in alike
    )
    return floor_slope([float(r.generation) for r in read], _without_moves(read, usual)).estimate


def _without_moves(read: Sequence[_Read], usual: float) -> list[float]:
    gains = (
        b.size - a.size if a.beside == b.beside else usual * (b.generation - a.generation)
        for a, b in pairwise(read)
    )
    return list(accumulate(gains, initial=0.0))
