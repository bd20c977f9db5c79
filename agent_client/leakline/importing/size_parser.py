"""Sizes as logs print them -> bytes.

A comma is a thousands sign in groups of three ("1,234 MB"), and a decimal sign everywhere else ("35,23 GB").
"""

from __future__ import annotations

import re
from typing import Final, Literal

_POWERS: Final = {"b": 0, "byte": 0, "bytes": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_BINARY_NAME: Final = re.compile(r"[kmgt]i?b?|b|bytes?", re.IGNORECASE)
UNIT: Final = r"(?:[kKMGT]i?B|bytes|B)"
# Whole, never the rest of a longer one: what is tried at each digit of a long row of them costs its square.
NUMBER: Final = r"(?<![0-9])(?<![0-9][.,])[0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?"
_THOUSANDS: Final = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_DECIMAL: Final = re.compile(r"[0-9]+,[0-9]+")
_OPEN: Final = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")
_OPEN_SIZE: Final = re.compile(rf"({NUMBER})\s?{UNIT}\b")


def factor_of(unit: str, *, binary: bool = False) -> int | None:
    """Bytes of one. ``binary``: MB means MiB, as many programs print it. None: no unit of size."""
    name = unit.strip().lower()
    if not _BINARY_NAME.fullmatch(name):
        return None
    power = _POWERS.get(name, _POWERS.get(name[0], 0))
    return int((1024 if binary or "i" in name else 1000) ** power)


Comma = Literal["none", "thousands", "decimal", "open", "neither"]


def comma_of(number: str) -> Comma:
    """What the commas of a number are; "open" where it may be either: "1,234"."""
    digits = number.lstrip("+-")
    if "," not in digits:
        return "none"
    if _OPEN.fullmatch(digits):
        return "open"
    if _THOUSANDS.fullmatch(digits):
        return "thousands"
    return "decimal" if _DECIMAL.fullmatch(digits) else "neither"


def pointed(number: str) -> str | None:
    """With a point as its decimal sign, and no other; None where it is no number. What is open counts thousands."""
    comma = comma_of(number)
    if comma == "neither":
        return None
    return number.replace(",", "." if comma == "decimal" else "")


def pointed_number(number: str) -> float | None:
    """Return the value of a printed number, which may have an exponent; None if it is not one."""
    digits, exponent, power = number.lower().partition("e")
    plain = pointed(digits)
    return None if plain is None else float(f"{plain}{exponent}{power}")


def open_size(text: str) -> str | None:
    """The first size of a line whose comma may be either."""
    if "," not in text:
        return None
    found = (size[0] for size in _OPEN_SIZE.finditer(text) if comma_of(size[1]) == "open")
    return next(found, None)


def note_of_open(line: int, size: str) -> str:
    return f"{size} in line {line} is read with its comma as a thousands sign; write a point where it is a decimal one"


def size_in_bytes(number: str, unit: str, *, binary: bool = False) -> float | None:
    """Return the bytes of ``9.12`` and ``GB``, or None if one of them is not understood."""
    factor, digits = factor_of(unit, binary=binary), pointed(number.lstrip("+"))
    return None if factor is None or digits is None else float(digits) * factor
