"""The stretch of the axis that a viewer looks at, as it stands in the address: ``x=12..40``, in units of the axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ..chart_parts import Axis
from ..errors import InvalidField

# Past it a number of an address is no place on any axis.
_FARTHEST: Final = 1e15


@dataclass(frozen=True, slots=True)
class Stretch:
    """Both ends belong to it."""

    first: float
    last: float


def read_stretch(text: str) -> Stretch:
    """Raises InvalidField."""
    wrong = InvalidField("x", text, "must be two numbers, the smaller first, such as 12..40")
    ends = text.split("..")
    try:
        first, last = map(float, ends)
    except ValueError:
        raise wrong from None
    if not first < last or not all(math.isfinite(x) and abs(x) < _FARTHEST for x in (first, last)):
        raise wrong
    return Stretch(first, last)


def wanted(stretch: Stretch, axis: Axis, started: float) -> tuple[float, float]:
    """First and last x to read: whole generations, so that a line goes on to the edge of the chart; Unix seconds."""
    if axis.unit == "generation":
        return math.floor(stretch.first), math.ceil(stretch.last)
    return started + stretch.first * axis.seconds, started + stretch.last * axis.seconds
