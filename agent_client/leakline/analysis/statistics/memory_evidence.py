"""Evidence from memory alone: whether memory keeps rising, since when, and how fast.

All attempts of a run are searched for the onset. Every attempt is a process with its own warm-up, and the initial
memory of a process is not evidence of a leak. Therefore the first generations after a resume are ignored, and the
fitted line may start each attempt at a different level; the bend that marks the onset always lies within an attempt.
If growth begins between the end of one attempt and the end of the next attempt's warm-up, the exact generation is
unknown, so the interval covers that entire gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from ..timeline import Timeline
from .trend import (
    HALF_RATIO,
    MAX_HINGE_POINTS,
    STRICT_HALF_RATIO,
    Hinge,
    Slope,
    block_minima,
    breaks_new_ground,
    fit_hinge,
    floor_slope,
    half_ratio,
    hinge_among,
    is_a_real_start,
    is_more_than_steps,
    is_most_of,
    keeps_rising,
    slows_like_a_logarithm,
    stands_out,
    theil_sen,
    weighted_median,
)

# Growth is material if it adds this share of the baseline within the horizon.
MATERIAL: Final = 0.05
# Growth below this share is trivial.
TRIVIAL: Final = 0.005
_MAX_HORIZON: Final = 100
_NEAR_LIMIT: Final = 0.90
WINDOWS: Final = (8, 12, 16, 24, 36, 54, 81, 122, 183, 275, 412, 618, 927)
# A long window is reduced to this many readings; block minima need no more.
_THINNED: Final = 256
# Number of readings before the window that the sawtooth test includes.
_LOOK_BACK: Final = 256
_MIN_FOR_TREND: Final = 5
# With at least this many readings, a window that covers most of the run shows a slowing rise well enough.
_FEW: Final = 16
# A rise that is this many times as steep as the following rise is a separate rise.
_LOADS: Final = 2.0
# The growth without bounded containers must exceed this share of the growth of these containers, because their
# sizes are known only to within about 10 %.
_OVER_BOUNDED: Final = 0.20


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale by which growth is judged: initial memory, memory limit and remaining generations.

    ``spacing``: units of the axis between two readings. Growth is judged per reading, so that a run that reports
    every hundredth step is judged like a run that reports every step.
    """

    baseline_bytes: float
    limit_bytes: float | None = None
    level_bytes: float = 0.0
    remaining_generations: float | None = None
    spacing: int = 1

    def horizon(self, window: float) -> float:
        """Return how far ahead growth counts, in units of the axis: twice the window, at most 100 readings."""
        return min(_MAX_HORIZON * self.spacing, 2 * max(window, self.spacing))

    def share(self, rate: float, window: float) -> float:
        """Return the growth within the horizon as a share of the baseline; ``window`` in units of the axis."""
        return rate * self.horizon(window) / max(self.baseline_bytes, 1.0)

    def material_rate(self, window: float) -> float:
        """Return the lowest bytes per generation at which growth is material."""
        return MATERIAL * max(self.baseline_bytes, 1.0) / self.horizon(window)

    def ends_near_limit(self, rate: float) -> bool:
        if self.limit_bytes is None or self.remaining_generations is None or rate <= 0:
            return False
        end = self.level_bytes + rate * self.remaining_generations
        return end > _NEAR_LIMIT * self.limit_bytes

    def is_material(self, rate: float, window: float) -> bool:
        return self.share(rate, window) >= MATERIAL or self.ends_near_limit(rate)

    def is_trivial(self, rate: float, window: float) -> bool:
        return self.share(rate, window) < TRIVIAL and not self.ends_near_limit(rate)


@dataclass(frozen=True, slots=True)
class Rise:
    """The growth of one series at one moment.

    ``window`` is the longest range (in readings) over which all tests find lasting growth, or 0 if there is no such
    range; ``strict`` is the longest range with the stricter test for saturation. ``visible`` is also true for a
    material rise that fails the tests because it is too short or slows down. ``generations`` is the length of
    ``window`` in generations.
    """

    window: int = 0
    strict: int = 0
    slope: Slope | None = None
    visible: bool = False
    generations: int = 0


def lasting_rise(
    x: Sequence[float], y: Sequence[float], scale: Scale, bounded: Sequence[float] = ()
) -> Rise:
    """Return the longest windows with lasting growth that end at the last reading.

    ``bounded``: bytes of bounded containers that were subtracted from ``y``, one value for each reading.
    """
    n = len(y)
    if n < _MIN_FOR_TREND or y[-1] <= min(y[-min(n, WINDOWS[-1]) :]):
        return Rise()
    window = strict = 0
    slope: Slope | None = None
    lengths = {w for w in WINDOWS if w <= n} | ({n} if n >= WINDOWS[0] else set())
    for length in sorted(lengths, reverse=True):
        passed = _test(x, y, length, scale, bounded)
        if passed is None:
            continue
        if slope is None:
            window, slope = length, passed[0]
        if passed[1]:
            strict = length
            break
    generations = round(x[-1] - x[n - window]) + 1 if window else 0
    visible = bool(window) or _visible(x, y, scale, bounded)
    return Rise(window, strict, slope, visible, generations)


def _test(
    x: Sequence[float], y: Sequence[float], length: int, scale: Scale, bounded: Sequence[float]
) -> tuple[Slope, bool] | None:
    """Return (slope, whether the strict saturation test passes too), or None if any test rejects growth."""
    n = len(y)
    wx, wy = _thin(x[n - length :], y[n - length :])
    bx, by = block_minima(wx, wy)
    if by[-1] <= by[0]:
        return None
    slope = theil_sen(bx, by)
    if not slope.rises or not scale.is_material(slope.estimate, length * scale.spacing):
        return None
    if not keeps_rising(bx, by, HALF_RATIO) or not is_more_than_steps(bx, by):
        return None
    before_x, before_y = (
        x[max(0, n - length - _LOOK_BACK) : n - length],
        y[max(0, n - length - _LOOK_BACK) : n - length],
    )
    if not stands_out(bx, by, slope) or not breaks_new_ground(wy, before_y):
        return None
    if not is_a_real_start(slope, *block_minima(before_x, before_y), length, n):
        return None
    if not _exceeds(slope, x, bounded, length):
        return None
    steady = not slows_like_a_logarithm(bx, by, x[0], scale.spacing)
    strict = half_ratio(bx, by) >= STRICT_HALF_RATIO
    ahead = n - length
    if ahead > 0 and n < _FEW and is_most_of(length, n):
        # In a short run, test the entire run as well, unless it began with a separate rise while the program was
        # loading.
        loaded = y[ahead] - y[0] > _LOADS * slope.estimate * (x[ahead] - x[0])
        strict = strict and (loaded or half_ratio(*block_minima(x, y)) >= STRICT_HALF_RATIO)
    return slope, steady and strict


def _visible(
    x: Sequence[float], y: Sequence[float], scale: Scale, bounded: Sequence[float]
) -> bool:
    """Return True if a material rise continues in the second half of the run so far."""
    n = len(y)
    half = max(_MIN_FOR_TREND - 1, n // 2)
    recent = floor_slope(x[n - half :], y[n - half :])
    whole = floor_slope(x[-_THINNED:], y[-_THINNED:])
    matters = scale.is_material(recent.estimate, half * scale.spacing) and scale.is_material(
        whole.estimate, n * scale.spacing
    )
    # If memory was flat for half the run, the slope over all of it may not be significant.
    rises = whole.rises or min(y[n - half :]) > max(y[: n - half])
    if not (rises and recent.rises and matters and _exceeds(recent, x, bounded, half)):
        return False
    # With few readings, a single jump looks like a slope, for example when a table doubles after the program has
    # loaded.
    return n >= _FEW or is_more_than_steps(x[n - half :], y[n - half :], steps=1)


def _exceeds(slope: Slope, x: Sequence[float], bounded: Sequence[float], length: int) -> bool:
    if not bounded:
        return True
    n = len(bounded)
    gained = bounded[-1] - bounded[n - length]
    span = max(x[-1] - x[n - length], 1.0)
    return slope.estimate > _OVER_BOUNDED * gained / span


def _thin(x: Sequence[float], y: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return block_minima(x, y, _THINNED) if len(x) > _THINNED else (x, y)


def baseline_of(values: Sequence[float]) -> float:
    """Return the level that growth is compared with: the median of the first three generations."""
    return median(values[:3]) if values else 0.0


# (estimate, low, high) of the first leaking generation
Start = tuple[float, float, float]

# Number of warm-up generations of a resumed process.
WARM_UP: Final = 4
# The readings before a bend count as flat if their slope is below this share of the later slope.
_BENDS: Final = 0.5
# Minimum number of readings before a bend in which another bend can be found.
_MIN_BEFORE: Final = 5
# Minimum number of readings that an attempt needs for a slope, and number of readings that must remain after two
# levels and a slope are fitted.
_MIN_READ: Final = 2
_LEFT_OVER: Final = 2
# Maximum number of newest resumes after which an attempt has its own level; older attempts share a level, to bound
# the work.
_MAX_APART: Final = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """The readings of one attempt after its warm-up."""

    x: Sequence[float]
    y: Sequence[float]

    def __len__(self) -> int:
        return len(self.x)


def bend_of(timeline: Timeline, values: Sequence[float], end: int) -> Start | None:
    """Return (estimate, low, high) of the generation in which memory begins to rise, or None.

    Accelerating growth begins before the bend of the best fit.
    """
    x = [float(g) for g in timeline.generations[:end]]
    pieces = pieces_of(timeline, x, values)
    hinge = _hinge(pieces)
    if hinge is None:
        return None
    at, low, high = hinge.start, hinge.low, hinge.high
    while at > x[0]:
        earlier = _rise_before([_until(s, at) for s in pieces if s.x[0] <= at], hinge.slope)
        if earlier is None or earlier[0] >= at:
            break
        at, low = earlier
    # A line that rises from its first reading may already have risen in that generation.
    spacing = timeline.spacing(end)
    return tuple(a + spacing if a > x[0] else a for a in (at, min(low, at), high))  # type: ignore[return-value]


def pieces_of(timeline: Timeline, x: Sequence[float], values: Sequence[float]) -> list[Piece]:
    """Return the attempts, oldest first, without their warm-up; only the first attempt is complete."""
    segments = [timeline.segment[row] for row in timeline.end_rows[: len(x)]]
    resumes = [i for i, (a, b) in enumerate(pairwise(segments), 1) if a != b][-_MAX_APART:]
    ends = [*resumes, len(x)]
    found = [Piece(x[: ends[0]], values[: ends[0]])]
    for begin, end in pairwise(ends):
        begin = min(begin + WARM_UP, end)
        if end - begin >= _MIN_READ:
            found.append(Piece(x[begin:end], values[begin:end]))
    # If the attempts hardly outlive their warm-up, treat all readings as one line, since too few would remain.
    return found if 2 * sum(map(len, found)) >= len(x) else [Piece(x, values)]


def _until(piece: Piece, at: float) -> Piece:
    n = next((i + 1 for i, a in enumerate(piece.x) if a >= at), len(piece))
    return Piece(piece.x[:n], piece.y[:n])


def _rise_before(pieces: Sequence[Piece], later: float) -> tuple[float, float] | None:
    """Return (start, its lower bound) of a rise before a bend, or None if the readings are flat.

    If the readings rise from the beginning, the start is the first reading, because warm-up hides any earlier
    start.
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
    """Join the attempts into one line.

    Each attempt is shifted to the end of the previous attempt, so that jumps do not count as growth.
    """
    x, y = list(pieces[0].x), list(pieces[0].y)
    for piece in pieces[1:]:
        near = min(len(piece), len(y), _MIN_BEFORE)
        shift = median(y[-near:]) - median(piece.y[:near])
        x += piece.x
        y += [value + shift for value in piece.y]
    return x, y


def _hinge(pieces: Sequence[Piece]) -> Hinge | None:
    """Fit a hinge like `fit_hinge`, but with a separate level for each attempt."""
    if len(pieces) == 1:
        return fit_hinge(pieces[0].x, pieces[0].y)
    thin = _thinned(pieces)
    fits = []
    for own, piece in enumerate(thin):
        before, after = thin[:own], thin[own + 1 :]
        # Fitting a level to each later attempt uses up one of its readings.
        spare = sum(len(s) - 1 for s in after)
        for i in range(len(piece) - 1):
            if i == 0 and own:
                # This line is the same as a line that bends in the gap before this attempt.
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
    """Reduce the attempts to lower envelopes, with readings in proportion to the length of each attempt."""
    total = sum(map(len, pieces))
    if total <= MAX_HINGE_POINTS:
        return list(pieces)
    parts = (max(_MIN_READ, MAX_HINGE_POINTS * len(s) // total) for s in pieces)
    return [Piece(*block_minima(s.x, s.y, n)) for s, n in zip(pieces, parts, strict=True)]


def _fit(
    before: Sequence[Piece], own: Piece, bend: int, after: Sequence[Piece]
) -> tuple[float, float]:
    """Return (absolute error, slope) of a line that is flat, bends within ``own``, and rises in all later attempts."""
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
    """Return (slope, weight) of each reading of a rising attempt relative to the attempt's median."""
    x, y = median(piece.x), median(piece.y)
    each = zip(piece.x, piece.y, strict=True)
    return [((b - y) / (a - x), abs(a - x)) for a, b in each if a != x]


def _scatter(values: Sequence[float]) -> float:
    level = median(values)
    return sum(abs(value - level) for value in values)
