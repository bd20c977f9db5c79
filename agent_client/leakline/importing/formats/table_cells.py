"""Classifies a table's cells, column by column: sizes, numbers, and the meaning of their commas.

The statistics are collected row by row and take constant memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..imported_log import ImportRefused
from ..names_and_sizes import NUMBER, UNIT, comma_of, pointed

SIZE: Final = re.compile(rf"({NUMBER})\s*({UNIT})", re.IGNORECASE)
_ABSENT: Final = frozenset({"", "-", "na", "n/a", "nan", "null", "none"})
_WITH_COMMA: Final = re.compile(r"[+-]?[0-9][0-9,]*(?:\.[0-9]+)?")
_Seen = tuple[int, str]


def is_absent(cell: str) -> bool:
    return cell.lower() in _ABSENT


def number_in(cell: str, *, decimal: bool = False) -> float | None:
    """Return the number in a cell, or None if the cell contains anything else. ``decimal``: read the ambiguous "1,234"
    as 1.234.
    """
    text: str | None = cell
    if "," in cell:
        is_open = comma_of(cell) == "open"
        text = cell.replace(",", ".") if is_open and decimal else pointed(cell)
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class Cells:
    """Statistics of a table's cells, per column."""

    def __init__(self, path: Path, width: int) -> None:
        self._path = path
        self._sizes, self._numbers, self._present = [True] * width, [True] * width, [False] * width
        self._whole: list[bool] = [True] * width
        self._first: list[float | None] = [None] * width
        self._last: list[float | None] = [None] * width
        self._rises, self._falls = [0] * width, [0] * width
        # Maps each column to the first cell with each kind of comma.
        self._commas: dict[int, dict[str, _Seen]] = {}

    def add(self, line: int, row: Sequence[str]) -> None:
        for at, cell in enumerate(row[: len(self._sizes)]):
            if is_absent(cell):
                continue
            self._present[at] = True
            sized = SIZE.fullmatch(cell) if self._sizes[at] else None
            self._sizes[at] = sized is not None
            number = number_in(cell)
            self._numbers[at] = self._numbers[at] and number is not None
            if number is not None:
                self._whole[at] = self._whole[at] and number.is_integer()
                if self._first[at] is None:
                    self._first[at] = number
                before = self._last[at]
                self._rises[at] += before is None or number > before
                self._falls[at] += before is not None and number < before
                self._last[at] = number
            self._see_comma(line, at, sized[1] if sized else cell)

    def _see_comma(self, line: int, at: int, text: str) -> None:
        if ("," in text or "." in text) and _WITH_COMMA.fullmatch(text):
            comma = comma_of(text)
            # A decimal point in one number means that commas in other numbers separate thousands.
            kind = "thousands" if comma == "none" else comma
            self._commas.setdefault(at, {}).setdefault(kind, (line, text))

    def are_sizes(self, at: int) -> bool:
        """Return True if every cell of the column is a size with a unit."""
        return self._sizes[at]

    def are_numbers(self, at: int) -> bool:
        return self._present[at] and self._numbers[at]

    def are_whole(self, at: int) -> bool:
        """Return True if no number in the column has a fraction."""
        return self._whole[at]

    def steps_forward(self, at: int) -> int:
        """Return the number of distinct values of a column that never decreases, or 0 for any other column."""
        return 0 if self._falls[at] else self._rises[at]

    def first_number(self, at: int) -> float | None:
        return self._first[at]

    def decimal_commas(
        self, sizes: Sequence[int], whole: Sequence[int], head: Sequence[str]
    ) -> bool:
        """Return True if "1,234" means 1.234 in this table. Raises ImportRefused if that cannot be decided.

        ``whole``: columns of integers, in which "1,234" means 1234.
        """
        seen: dict[str, tuple[int, str, int]] = {}
        for at in (*sizes, *whole):
            for kind, (line, text) in self._commas.get(at, {}).items():
                meaning = "thousands" if at in whole and kind == "open" else kind
                seen.setdefault(meaning, (line, text, at))
        if "open" not in seen:
            return "decimal" in seen
        if "decimal" in seen and "thousands" not in seen:
            return True
        if "thousands" in seen and "decimal" not in seen:
            return False
        line, text, at = seen["open"]
        raise ImportRefused(
            self._path, f"{text[:40]!r} in column {head[at][:40]!r} can mean {text.replace(',', '')[:40]} or "
            f"{text.replace(',', '.')[:40]}; replace it with the intended number", line,
        )  # fmt: skip
