"""Which of the child processes grow: each that is told one by one has series of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .results import Suspect
from .series import Lane
from .trend import floor_slope
from .wording import format_bytes

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


def growing_children(lane: Lane, since: float | None, rate: float) -> tuple[Suspect, ...]:
    """Those that account for a growth of all together by ``rate`` bytes per generation, what grows most first.

    ``since``: the generation from which they grow.
    """
    rates = {
        name: _rate(lane, series, since) for series, name in sizes_of_children(lane.series).items()
    }
    grown = sorted(
        (name for name in rates if rates[name] >= _PART * rate > 0), key=lambda n: -rates[n]
    )
    return tuple(
        Suspect(name, "process", None, round(rates[name], 1)) for name in grown[:_MAX_NAMED]
    )


def growing_line(lane: Lane, suspects: Iterable[Suspect], unit: str) -> str | None:
    """``Of 3 children told one by one, this grows: collector-b by 12.00 MiB per generation.``"""
    told = [name for name in sizes_of_children(lane.series).values() if name != OTHER]
    grown = [
        f"{s.name} by {format_bytes(s.bytes_per_generation or 0.0)}"
        for s in suspects
        if s.role == "process"
    ]
    if not grown:
        return None
    children = "1 child" if len(told) == 1 else f"{len(told)} children"
    verb = "this grows" if len(grown) == 1 else "these grow"
    return f"Of {children} told one by one, {verb}: {', '.join(grown)} per {unit}."


def _rate(lane: Lane, series: str, since: float | None) -> float:
    """Bytes per generation; 0 of one that was read too seldom to tell."""
    xs, ys = lane.points(series, newest=_NEWEST)
    # It grows from what it had in the generation before.
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if since is None or x >= since - 1]
    if len(kept) < _FEW:
        return 0.0
    return floor_slope([x for x, _ in kept], [y for _, y in kept]).estimate
