"""The axis range in a page's address, for example ``x=12..40``, in units of the axis.

``x=720s..2400s`` is in seconds since the start, for runs without generations. The axis of
a growing run changes from minutes to hours, but a link must keep showing the same range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ..charts.chart_parts import Axis
from ..errors import InvalidField

# Numbers beyond this are not valid positions on any axis.
_FARTHEST: Final = 1e15


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of the axis, including its ends."""

    first: float
    last: float
    in_seconds: bool = False


@dataclass(frozen=True, slots=True)
class TwoPoints:
    """Two points on a run's axis: ends of generations, or seconds since the run's start."""

    first: float
    last: float


def read_stretch(text: str) -> Stretch:
    """Parse a range such as ``12..40``. Raises InvalidField."""
    wrong = InvalidField(
        "x", text, "must be two numbers, the smaller first, such as 12..40 or 90s..600s"
    )
    ends = text.split("..")
    in_seconds = all(end.endswith("s") for end in ends)
    try:
        first, last = (float(end.removesuffix("s") if in_seconds else end) for end in ends)
    except ValueError:
        raise wrong from None
    if not first < last or not all(math.isfinite(x) and abs(x) < _FARTHEST for x in (first, last)):
        raise wrong
    return Stretch(first, last, in_seconds)


def wanted(stretch: Stretch, axis: Axis, started: float) -> tuple[float, float]:
    """Return the first and last x to read, as whole generations or Unix seconds.

    Generations are rounded outwards, so that lines reach the edge of the chart. Raises InvalidField
    for seconds on an axis of generations.
    """
    if stretch.in_seconds and axis.unit == "generation":
        asked = f"{stretch.first:g}s..{stretch.last:g}s"
        raise InvalidField(
            "x",
            asked,
            f"must have no s suffix, because the unit of this run's axis is the {axis.title}",
        )
    if axis.unit == "generation":
        return math.floor(stretch.first), math.ceil(stretch.last)
    scale = 1 if stretch.in_seconds else axis.seconds
    return started + stretch.first * scale, started + stretch.last * scale


def two_points(stretch: Stretch, axis: Axis, known: TwoPoints) -> TwoPoints | None:
    """Return the recorded points closest to a range's ends, or None if the range is too small.

    A selected range may extend beyond the recorded range: charts have margins and forecasts.
    """
    scale = 1.0 if stretch.in_seconds or axis.unit == "generation" else axis.seconds
    first, last = (each * scale for each in (stretch.first, stretch.last))
    if axis.unit == "generation":
        # The ends of a range selected with the mouse are usually between generations.
        first, last = math.floor(first + 0.5), math.floor(last + 0.5)
    first, last = max(first, known.first), min(last, known.last)
    return TwoPoints(first, last) if first < last else None


def text_of(points: TwoPoints, axis: Axis) -> str:
    """Return the range in the format used in addresses, for example ``12..40``."""
    ends = (points.first, points.last)
    return "..".join(
        f"{each:.15g}" if axis.unit == "generation" else f"{each:.9g}s" for each in ends
    )
