"""Estimates such as ``208 x 100 KB = 20 GB``, checked by their own arithmetic and by measured growth."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from ..text_format import format_bytes, format_count

Direction = Literal["too_high", "too_low"]
EXAMPLE: Final = "write it as 208 x 100 KB = 20 GB"
# The largest factor of a right estimate, and of one that is near enough to plan with.
RIGHT: Final = 1.1
NEAR: Final = 2.0
_MAX_TEXT: Final = 500
_MAX_NUMBER: Final = 1e30
_COUNTS: Final = {"": 1.0, "%": 0.01, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "billion": 1e9}  # fmt: skip
_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_TOKEN: Final = re.compile(
    rf"(?P<low>{_NUMBER})(?:\s*(?:-|–|\bto\b)\s*(?P<high>{_NUMBER}))?"
    r"\s?(?P<unit>%|(?:(?:[KMGTP]i?)?B|bytes?|[KM]|thousand|[mb]illion)(?!\w)|)"
    # Letters right after a number may be an unknown unit; the x of 208x100 is a sign.
    r"(?![\d,.]*\d|(?!x(?:[\s\d~]|$))[^\W\d])"
    r"|(?P<sign>[×*+]|(?<![A-Z_])x(?![A-Z_])|/(?=[\s~]*\d))"
    r"|[^\W\d][\w-]*|[\s,;:!?'\"~/]|\.(?!\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A range, with equal ends for a single number. A size is in bytes; any other amount is a count."""

    low: float
    high: float
    is_size: bool


@dataclass(frozen=True, slots=True)
class EstimateCheck:
    """A claim next to the right amount. ``factor`` is between their nearest ends, None if one of them is zero."""

    computed: Amount
    claimed: Amount | None
    outcome: Literal["computed", "right", "near", "out"]
    factor: float | None
    direction: Direction | None
    sentence: str


def check_estimate(text: str) -> EstimateCheck:
    """Compute a sum and compare it with the claim after the equals sign, if any.

    Raise ValueError, with one line, for a text that is not understood.
    """
    sides = [side.strip(" \t.!") for side in re.split(r"[=≈][=≈\s]*", text)]
    if len(text) > _MAX_TEXT or len(sides) > 2:
        raise ValueError(f"it is too long, or has several equals signs; {EXAMPLE}")
    (computed, is_sum), *claims = map(_parse, sides)
    if claims and claims[0][1] and not is_sum:
        sides.reverse()
        (computed, is_sum), claims = claims[0], [(computed, is_sum)]
    fact = f"{sides[0]} is {_format(computed, binary='iB' in text)}"
    if not claims and is_sum:
        return EstimateCheck(computed, None, "computed", None, None, f"{fact}.")
    if not claims or claims[0][0].is_size != computed.is_size:
        raise ValueError(f"both sides must be sizes, or both counts; {EXAMPLE}")
    # A range states its own uncertainty.
    is_range = any(amount.low < amount.high for amount in (computed, claims[0][0]))
    return _compare(f"{fact}; {sides[1]}", computed, claims[0][0], RIGHT if is_range else NEAR)


def compare_with_growth(check: EstimateCheck, subject: str, growth: float) -> EstimateCheck:
    """Compare a claim, or the sum of a text without one, with measured bytes."""
    size, claimed = max(0.0, growth), check.claimed or check.computed
    measured = Amount(size, size, True)
    fact = f"{subject}: {_format(measured, binary=True)} measured; {_format(claimed, binary=True)}"
    return _compare(fact, measured, claimed, NEAR)


def _compare(fact: str, computed: Amount, claimed: Amount, near: float) -> EstimateCheck:
    """Return a check with a sentence that begins with ``fact``; a factor up to ``near`` is not out."""
    is_high = claimed.low > computed.high
    large, small = (claimed.low, computed.high) if is_high else (computed.low, claimed.high)
    if large <= small:
        return EstimateCheck(computed, claimed, "right", 1.0, None, f"{fact} is right.")
    factor = large / small if small > 0 else None
    direction: Direction = "too_high" if is_high else "too_low"
    if factor is not None and factor <= RIGHT:
        return EstimateCheck(computed, claimed, "right", factor, direction, f"{fact} is right.")
    is_near = factor is not None and factor <= near
    by = "" if factor is None else f" by a factor of {rounded_factor(factor)}"
    sentence = f"{fact} is {'near, off' if is_near else 'off'}{by} ({direction.replace('_', ' ')})."
    return EstimateCheck(
        computed, claimed, "near" if is_near else "out", factor, direction, sentence
    )


def rounded_factor(factor: float) -> str:
    """Return ``about 1,000`` for 962, which is near a power of ten; else two digits."""
    if factor > 1e15:
        return "over 1e15"
    power = 10.0 ** round(math.log10(factor))
    if power >= 10 and abs(factor / power - 1) <= 0.06:
        return f"about {power:,.0f}"
    return f"{factor:.1f}" if factor < 10 else f"{float(f'{factor:.2g}'):,.0f}"


def _parse(text: str) -> tuple[Amount, bool]:
    """Return the amount of one side of the equals sign, and True if it is a sum. Raise ValueError."""
    terms: list[Amount] = []
    sign, is_sum, at = "+", False, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at : at + 20]!r} is not understood; {EXAMPLE}")
        at = token.end()
        if token["sign"] and not sign:
            sign, is_sum = token["sign"], True
        elif token["sign"] or (token["low"] and not sign):
            raise ValueError(f"one sign must come before {token.group()!r}; {EXAMPLE}")
        elif token["low"]:
            amount = _amount(token)
            terms.append(amount if sign == "+" else _combine(terms.pop(), sign, amount))
            sign = ""
    if sign or len({term.is_size for term in terms}) > 1:
        raise ValueError(f"a number is missing, or sizes and counts are added; {EXAMPLE}")
    low, high = sum(term.low for term in terms), sum(term.high for term in terms)
    if not high <= _MAX_NUMBER or any(term.low > term.high for term in terms):
        raise ValueError("a number is too large, or a range is reversed")
    return Amount(low, high, terms[0].is_size), is_sum


def _amount(token: re.Match[str]) -> Amount:
    """Return the amount of ``8-10 MB``, ``100 KB`` or ``45M``."""
    unit, ends = token["unit"].lower(), (token["low"], token["high"] or token["low"])
    scale = _COUNTS.get(unit) or (1024 if "i" in unit else 1000) ** ("kmgtp".find(unit[0]) + 1)
    low, high = (float(end.replace(",", "")) * scale for end in ends)
    return Amount(low, high, unit not in _COUNTS)


def _combine(left: Amount, sign: str, right: Amount) -> Amount:
    if sign != "/" and not (left.is_size and right.is_size):
        return Amount(left.low * right.low, left.high * right.high, left.is_size or right.is_size)
    if sign == "/" and right.low > 0 and (left.is_size or not right.is_size):
        return Amount(left.low / right.high, left.high / right.low, left.is_size != right.is_size)
    raise ValueError("two sizes are multiplied, or something is divided by zero or by a size")


def _format(amount: Amount, *, binary: bool) -> str:
    write = format_count if not amount.is_size else format_bytes if binary else _decimal
    low, high = write(amount.low), write(amount.high)
    return low if low == high else f"{low} to {high}"


def _decimal(value: float) -> str:
    power = min(5, int(math.log(max(1.0, value), 1000) + 1e-9))
    return f"{value / 1000**power:.4g} {'KMGTP'[power - 1] if power else ''}B"
