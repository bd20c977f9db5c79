"""How many leaks a written report tells, beside how many fixes it numbers and how many rows its table has.

    Root cause: 4 separate memory leaks                      the number told, that of the first such line
    ### Fix #1: ...  ### Fix #2: ...                          numbered from 1 on, without a gap
    | MAJOR | old agents | 2-3 GB/gen |                       rows of a table, until one of TOTAL

One leak may need two fixes, so a difference is no proof of a mistake; that they differ and nothing says why is worth a
line. Only what is there is counted: a log without such lines says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .log import Slip

_WORDS: Final = (
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_NUMBERS: Final = {word: number for number, word in enumerate(_WORDS, 2)}
# "7 distinct memory leaks", and not "7 GB of leaks".
_TOLD: Final = re.compile(
    rf"\b(?P<number>\d{{1,3}}|{'|'.join(_WORDS)})\s+"
    r"(?:(?:distinct|separate|different|independent|critical|major|memory)\s+){0,3}leaks\b",
    re.IGNORECASE,
)
# At the beginning of its line: elsewhere a fix is spoken of.
_FIX: Final = re.compile(r"[\s#*>-]{0,12}Fix\s?#?\s?(?P<number>\d{1,3})\b\s?[:.)–-]", re.IGNORECASE)
_ROW: Final = re.compile(r"\s*\|.*\d\s?[KMGT]i?B\b.*\|\s*", re.IGNORECASE)
_TOTAL: Final = re.compile(r"\s*\|[\s*]*(?:total|sum)\b", re.IGNORECASE)


class ToldCounts:
    """Lines in their order; then ``slips``."""

    def __init__(self) -> None:
        self._told: tuple[int, int] | None = None
        # Line of the first, and how far they go on without a gap.
        self._first_fix = self._fixes = 0
        self._rows = 0
        # (line of the total, rows above it) of the first table that has one.
        self._table: tuple[int, int] | None = None

    def line(self, number: int, text: str) -> None:
        if not text.lstrip().startswith("|"):
            self._rows = 0
            self._in_words(number, text)
        elif _TOTAL.match(text):
            if self._rows and self._table is None:
                self._table = number, self._rows
        elif _ROW.fullmatch(text):
            self._rows += 1

    def _in_words(self, number: int, text: str) -> None:
        told = _TOLD.search(text) if self._told is None else None
        if told is not None:
            said = told["number"].lower()
            self._told = number, _NUMBERS[said] if said in _NUMBERS else int(said)
        fix = _FIX.match(text)
        if fix is not None and int(fix["number"]) == self._fixes + 1:
            self._first_fix = self._first_fix or number
            self._fixes += 1

    def slips(self) -> Iterator[Slip]:
        if self._told is None:
            return
        line, told = self._told
        others = []
        # One numbered line is a reference to somebody else's list.
        if self._fixes > 1 and self._fixes != told:
            others.append(f"{self._fixes} fixes are numbered from line {self._first_fix} on")
        if self._table is not None and self._table[1] != told:
            others.append(f"the table that ends in line {self._table[0]} has {self._table[1]} rows")
        if others:
            yield Slip(line, f"{told} leaks are told; {', and '.join(others)}")
