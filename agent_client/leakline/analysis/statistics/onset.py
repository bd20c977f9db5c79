"""From which generation on memory rises, over all attempts of a run.

Every attempt is a process with a warm-up of its own, and what a new one has at its start says nothing about a leak.
So the first generations after a resume are not read here, and each attempt may stand on a level of its own: only
within an attempt does a line bend. What begins between the end of one attempt and the end of the warm-up of the next
may have begun in any generation of that gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from ..timeline import Lane
from .growth_shape import stands_out
from .trend import (
    MAX_HINGE_POINTS,
    Hinge,
    block_minima,
    fit_hinge,
    floor_slope,
    hinge_among,
    weighted_median,
)

# (estimate, low, high) of the first leaking generation
Start = tuple[float, float, float]

# Generations of a resumed process that are its warm-up.
WARM_UP: Final = 4
# Below this share of the later slope the piece before a bend counts as flat.
_BENDS: Final = 0.5
# Readings before a bend in which another can be told.
_MIN_BEFORE: Final = 5
# Readings of an attempt that say how fast it rises; and those that two levels and a slope leave over.
_MIN_READ: Final = 2
_LEFT_OVER: Final = 2
# Attempts that stand on a level of their own; older ones are one, so that work stays bounded.
_MAX_APART: Final = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """The readings of one attempt behind its warm-up."""

    x: Sequence[float]
    y: Sequence[float]

    def __len__(self) -> int:
        return len(self.x)


def bend_of(lane: Lane, values: Sequence[float], upto: int) -> Start | None:
    """Where memory begins to rise. What rises before a bend already, as all that accelerates does, has its own."""
    x = [float(g) for g in lane.generations[:upto]]
    pieces = pieces_of(lane, x, values)
    hinge = _hinge(pieces)
    if hinge is None:
        return None
    at, low, high = hinge.start, hinge.low, hinge.high
    while at > x[0]:
        earlier = _rise_before([_until(s, at) for s in pieces if s.x[0] <= at], hinge.slope)
        if earlier is None or earlier[0] >= at:
            break
        at, low = earlier
    # A line that rises from the first reading on may have risen in that generation already.
    spacing = lane.spacing(upto)
    return tuple(a + spacing if a > x[0] else a for a in (at, min(low, at), high))  # type: ignore[return-value]


def pieces_of(lane: Lane, x: Sequence[float], values: Sequence[float]) -> list[Piece]:
    """The attempts, oldest first, each without its warm-up but for the first: that one is seen as it was."""
    segments = [lane.segment[row] for row in lane.end_rows[: len(x)]]
    resumes = [i for i, (a, b) in enumerate(pairwise(segments), 1) if a != b][-_MAX_APART:]
    ends = [*resumes, len(x)]
    found = [Piece(x[: ends[0]], values[: ends[0]])]
    for begin, end in pairwise(ends):
        begin = min(begin + WARM_UP, end)
        if end - begin >= _MIN_READ:
            found.append(Piece(x[begin:end], values[begin:end]))
    # Attempts that hardly outlive their warm-up are read as one line, or hardly anything would be.
    return found if 2 * sum(map(len, found)) >= len(x) else [Piece(x, values)]


def _until(piece: Piece, at: float) -> Piece:
    n = next((i + 1 for i, a in enumerate(piece.x) if a >= at), len(piece))
    return Piece(piece.x[:n], piece.y[:n])


def _rise_before(pieces: Sequence[Piece], later: float) -> tuple[float, float] | None:
    """(start, its lower end) of a rise in what lies before a bend; None where that is flat.

    Where it rises from its first reading on, the start is that one: warm-up hides what came before.
    """
    x, y = _joined(pieces)
    slope = floor_slope(x, y)
    if len(x) < _MIN_BEFORE:
        return (x[0], x[0]) if len(x) >= 2 and slope.estimate >= _BENDS * later else None
    if not slope.rises or not stands_out(x, y, slope):
        return None
    hinge = _hinge(pieces)
    if hinge is None or hinge.start >= x[-1]:
        return x[0], x[0]
    return hinge.start, hinge.low


def _joined(pieces: Sequence[Piece]) -> tuple[list[float], list[float]]:
    """As one line: each attempt goes on where the one before has left off, and no jump between them is growth."""
    x, y = list(pieces[0].x), list(pieces[0].y)
    for piece in pieces[1:]:
        near = min(len(piece), len(y), _MIN_BEFORE)
        shift = median(y[-near:]) - median(piece.y[:near])
        x += piece.x
        y += [value + shift for value in piece.y]
    return x, y


def _hinge(pieces: Sequence[Piece]) -> Hinge | None:
    """`fit_hinge` where each attempt has a level of its own; the same where there is one."""
    if len(pieces) == 1:
        return fit_hinge(pieces[0].x, pieces[0].y)
    thin = _thinned(pieces)
    fits = []
    for own, piece in enumerate(thin):
        before, after = thin[:own], thin[own + 1 :]
        # What a level of its own takes of each later attempt leaves nothing to say.
        spare = sum(len(s) - 1 for s in after)
        for i in range(len(piece) - 1):
            if i == 0 and own:
                # The same line as one that bends in the gap before.
                continue
            if len(piece) - 1 - i + spare >= _LEFT_OVER:
                at = piece.x[i]
                fits.append((*_fit(before, piece, i, after), at, at))
        if spare >= _LEFT_OVER:
            gap = piece.x[-1], after[0].x[0]
            fits.append((*_fit(before, piece, len(piece) - 1, after), *gap))
    readings = [value for piece in thin for value in piece.y]
    return hinge_among(fits, len(readings), max(readings) - min(readings))


def _thinned(pieces: Sequence[Piece]) -> list[Piece]:
    """The lower envelope, with as many readings of each attempt as its share of all is."""
    total = sum(map(len, pieces))
    if total <= MAX_HINGE_POINTS:
        return list(pieces)
    parts = (max(_MIN_READ, MAX_HINGE_POINTS * len(s) // total) for s in pieces)
    return [Piece(*block_minima(s.x, s.y, n)) for s, n in zip(pieces, parts, strict=True)]


def _fit(
    before: Sequence[Piece], own: Piece, bend: int, after: Sequence[Piece]
) -> tuple[float, float]:
    """(absolute error, slope): flat before, bent within one attempt, and rising through all later ones."""
    flat = median(own.y[: bend + 1])
    at = own.x[bend]
    pairs = [((b - flat) / (a - at), a - at) for a, b in zip(own.x, own.y, strict=True) if a > at]
    for piece in after:
        pairs += _from_its_middle(piece)
    slope = weighted_median(sorted(pairs))
    error = sum(_scatter(piece.y) for piece in before)
    error += sum(
        abs(b - flat - slope * max(0.0, a - at)) for a, b in zip(own.x, own.y, strict=True)
    )
    for piece in after:
        error += _scatter([b - slope * a for a, b in zip(piece.x, piece.y, strict=True)])
    return error, slope


def _from_its_middle(piece: Piece) -> list[tuple[float, float]]:
    """(slope, weight) of each reading of a rising attempt against the middle of all of them."""
    x, y = median(piece.x), median(piece.y)
    each = zip(piece.x, piece.y, strict=True)
    return [((b - y) / (a - x), abs(a - x)) for a, b in each if a != x]


def _scatter(values: Sequence[float]) -> float:
    level = median(values)
    return sum(abs(value - level) for value in values)
