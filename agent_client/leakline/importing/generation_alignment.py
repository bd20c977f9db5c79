"""Aligns the generation numbers in a log, which may call the same generation both "Generation 0" and "Gen 1"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

UNITS: Final = {
    "generation": "generation", "gen": "generation", "episode": "episode", "ep": "episode", "epoch": "epoch",
    "step": "step", "iteration": "step", "iter": "step",
}  # fmt: skip
# From coarse to fine: a log that counts both episodes and steps is divided into episodes.
COARSE_FIRST: Final = ("generation", "episode", "epoch", "step")
MARKER: Final = re.compile(
    r"(?<![A-Za-z_])(?:global[_ ])?(?P<word>generation|gen|episode|ep|epoch|step|iteration|iter)s?\.?[\"' :#=\[]{0,4}"
    r"(?P<number>\d{1,12})(?![\d.]*\d*[.\w])(?:\s{0,3}(?:/|of)\s{0,3}(?P<total>\d{1,12}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A generation that a line names. ``style`` is the word used, such as ``gen``, or ``gen /`` if a total follows."""

    line: int
    style: str
    unit: str
    number: int
    total: int | None
    # True if the mark comes from the label of a reading.
    is_label: bool = False


def mark_of(line: int, text: str, *, is_label: bool = False) -> Mark | None:
    """Return the mark with the coarsest unit in the line, or None if the line has no mark."""
    marks = list(_marks(line, text, is_label))
    return min(marks, key=lambda mark: COARSE_FIRST.index(mark.unit), default=None)


def _marks(line: int, text: str, is_label: bool) -> Iterator[Mark]:
    for found in MARKER.finditer(text):
        word = found["word"].lower()
        total = int(found["total"]) if found["total"] else None
        style = word if total is None else f"{word} /"
        yield Mark(line, style, UNITS[word], int(found["number"]), total, is_label)


@dataclass(frozen=True, slots=True)
class Numbering:
    """A log's generation numbers. ``shifts`` maps a style to the offset that aligns its numbers with the labels."""

    unit: str | None
    total: int | None
    shifts: dict[str, int]
    notes: tuple[str, ...]

    def number_of(self, mark: Mark | None) -> int | None:
        if mark is None or mark.unit != self.unit:
            return None
        return mark.number + self.shifts.get(mark.style, 0)


def numbering_of(marks: Sequence[Mark]) -> Numbering:
    """Align the generation numbers in a log with the numbers in its labels.

    Each number is compared with the label that follows.
    """
    labels = [mark for mark in marks if mark.is_label] or list(marks)
    units = {mark.unit for mark in labels}
    unit = next((unit for unit in COARSE_FIRST if unit in units), None)
    own = [mark for mark in marks if mark.unit == unit]
    styles = Counter(mark.style for mark in labels if mark.unit == unit)
    if not styles:
        return Numbering(None, None, {}, ())
    main = styles.most_common(1)[0][0]
    total = max((mark.total for mark in own if mark.total is not None), default=None)
    shifts, notes = {}, []
    for style in sorted({mark.style for mark in own} - {main}):
        shift = _shift(own, style, main)
        if shift is None:
            notes.append(
                f"the {unit} numbers of {_shown(style)} and {_shown(main)} could not be aligned"
            )
        elif shift:
            shifts[style] = shift
            first = next(mark for mark in own if mark.style == style)
            notes.append(
                f"the same {unit} is {first.number} in {_shown(style)} (line {first.line}) and "
                f"{first.number + shift} in {_shown(main)}: all numbers are aligned with {_shown(main)}; "
                "--offset shifts all numbers"
            )
    return Numbering(unit, total, shifts, tuple(notes))


def _shift(marks: Sequence[Mark], style: str, main: str) -> int | None:
    """Return the offset between the numbers in ``style`` and in the main style, or None if the offset varies."""
    differences: Counter[int] = Counter()
    waiting: int | None = None
    for mark in marks:
        if mark.style == style:
            waiting = mark.number
        elif mark.style == main and waiting is not None:
            differences[mark.number - waiting] += 1
            waiting = None
    return next(iter(differences)) if len(differences) == 1 else None


def _shown(style: str) -> str:
    word = style.removesuffix(" /").capitalize()
    return f"{word!r}" if not style.endswith("/") else f"{word + ' N / TOTAL'!r}"
