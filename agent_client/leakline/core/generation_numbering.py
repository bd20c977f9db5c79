"""Number the generations of a process on one axis that only goes forward, whatever numbers the program uses.

A notebook cell that runs again, or a second loop in the same run, begins with a number that was there before. On the
axis it continues after the newest generation: measurements of two generations under one number would be mixed, and the
older ones lost. Pure.
"""

from __future__ import annotations

import math
import operator
from typing import Final

from ..snapshot import LARGEST_INTEGER

Given = int | float


def checked_number(number: object) -> Given:
    """Return ``number`` as a plain number; a whole float as an int.

    Raises TypeError for anything else, OverflowError beyond 2**53.
    """
    try:
        given: Given = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        if isinstance(number, (str, bytes)):
            raise
        given = float(number)  # type: ignore[arg-type]
        if not math.isfinite(given):
            raise
        if given.is_integer():
            given = int(given)
    if abs(given) > LARGEST_INTEGER:
        # Python refuses to write very many digits.
        bits = int(given).bit_length()
        raise OverflowError(f"generation number of {bits} bits is beyond 2**53")
    return given


class GenerationNumbers:
    """``axis``: the number of the newest generation on the axis; ``given``: the number that the program used for it."""

    def __init__(self) -> None:
        self.axis: int | None = None
        self.given: Given | None = None
        self.highest: Given | None = None

    def advance(self, given: Given) -> str:
        """Go on to the generation that the program calls ``given``. Return why the axis has another number, or "".

        A number above all before it moves the axis by the difference, so that gaps stay visible.
        """
        if self.axis is None or self.given is None or self.highest is None:
            axis, why = math.floor(given), ""
        elif given <= self.given:
            axis = self.axis + 1
            why = "began again" if given == self.given else f"came after {self.given}"
        else:
            before = self.highest if given > self.highest else self.given
            axis, why = self.axis + max(1, math.floor(given - before)), ""
        if axis > LARGEST_INTEGER:
            raise OverflowError(f"generation number of {axis.bit_length()} bits is beyond 2**53")
        self.axis, self.given = axis, given
        self.highest = given if self.highest is None else max(self.highest, given)
        if not why and not isinstance(given, int):
            why = "is not a whole number"
        return why

    def title(self, unit: str) -> str:
        """``generation 12``, or ``generation 12 (called 3)`` where the program uses another number."""
        called = "" if self.axis == self.given else f" (called {self.given})"
        return f"{unit} {self.axis}{called}"


def renumbered(unit: str, numbers: GenerationNumbers, why: str) -> str:
    """Return the warning at the first generation whose number is not that of the axis."""
    advice: Final = {
        "is not a whole number": f"count {unit}s in whole numbers",
    }.get(why, "for a separate training call leakline.init again")
    return (
        f"{unit} {numbers.given} {why}: it is recorded as {unit} {numbers.axis}, and counting continues from there, "
        f"so that nothing measured before is lost; {advice}"
    )
