"""Two measured quantities beside each other: by how much they differ, and from when on that is a difference."""

from __future__ import annotations

import math
from typing import Final

from .results import Interval

# A change of growth smaller than this is within what two runs of the same program differ by.
SAME: Final = 0.20
_NO_PERCENT: Final = 1e-9


def change_of(
    before: Interval | None, after: Interval | None
) -> tuple[float | None, Interval | None]:
    """(percent, difference). Both err independently, so their intervals add up as squares."""
    if before is None or after is None:
        return None, None
    middle = after.estimate - before.estimate
    down = math.hypot(after.estimate - after.low, before.high - before.estimate)
    up = math.hypot(after.high - after.estimate, before.estimate - before.low)
    difference = Interval(middle, middle - down, middle + up)
    return percent_of(before.estimate, after.estimate), difference


def percent_of(before: float | None, after: float | None) -> float | None:
    if before is None or after is None or abs(before) < _NO_PERCENT:
        return None
    return round(100 * (after - before) / abs(before), 1)
