"""A history as a small line beside its name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from . import number_formats
from .page_contexts import Sparkline

_WIDTH: Final = 120.0
_HEIGHT: Final = 28.0
# Of a line that has more, every so manieth: it is as wide as two words.
MAX_POINTS_SHOWN: Final = 60


def sparkline(
    values: Sequence[float | None], what: str = "Memory",
    write: Callable[[float | None], str] = number_formats.size,
) -> Sparkline | None:  # fmt: skip
    """The line in a box of 120 by 28, from zero if the values come near it, else from the lowest."""
    known = _thinned([(i, value) for i, value in enumerate(values) if value is not None])
    if len(known) < 2:
        return None
    heights = [value for _, value in known]
    low, high = min(heights), max(heights)
    # A change of less than a twentieth is drawn as small as it is: a steady run must look steady.
    floor = max(0.0, min(low, high - max(high - low, 0.2 * high) / 0.9))
    first, last = known[0][0], known[-1][0]
    wide, tall = _WIDTH / (last or 1), (_HEIGHT - 4) / (high - floor or 1.0)
    zero = _HEIGHT - 2 + floor * tall
    # A page has three thousand of these points.
    line = " ".join(["%.1f,%.1f" % (i * wide, zero - value * tall) for i, value in known])  # noqa: UP031
    area = f"{first * wide:.1f},{_HEIGHT:.0f} {line} {last * wide:.1f},{_HEIGHT:.0f}"
    return Sparkline(line, area, f"{what} from {write(heights[0])} to {write(heights[-1])}")


def _thinned(known: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """With the first and the last."""
    step = -(-len(known) // MAX_POINTS_SHOWN)
    return known if step < 2 else [*known[:-1:step], known[-1]]
