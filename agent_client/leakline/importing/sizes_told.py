"""Sizes as logs print them -> bytes, and how far apart two printed figures may be.

A comma is a thousands sign in groups of three ("1,234 MB"), and a decimal sign everywhere else ("35,23 GB").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Told:
    """A size as it was printed. ``slack`` is half of its last digit, in bytes; ``factor`` are the bytes of one."""

    bytes: float
    slack: float
    said: str
    factor: int = 1
    unit: str = "B"

    def like(self, size: float) -> str:
        """Another size, in the unit that this one was printed in."""
        return f"{size / self.factor:+.2f} {self.unit}"


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


def told(number: str, unit: str, *, binary: bool = False) -> Told | None:
    """``9.12``, ``GB``. None where the unit or the number is none."""
    factor, digits = factor_of(unit, binary=binary), pointed(number.lstrip("+"))
    if factor is None or digits is None:
        return None
    decimals = len(digits.partition(".")[2])
    return Told(
        float(digits) * factor,
        0.5 * 10.0**-decimals * factor,
        f"{number} {unit}".strip(),
        factor,
        unit,
    )


def apart(printed: Told, computed: float, *others: Told) -> bool:
    """Whether a printed figure differs from the one computed from others by more than their rounding allows."""
    slack = printed.slack + sum(other.slack for other in others)
    return abs(printed.bytes - computed) > slack * 1.001
