"""Whether an estimate that a person wrote down is right by its own figures, and by what a run measured.

A report once ranked a leak first because "208 episodes x 100 KB" were "about 20 GB". They are 20.8 MB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from .sums import EXAMPLE, Amount, NotUnderstood, Side, read_sum
from .wording import count_of, format_bytes, format_count, short_name

EstimateOutcome = Literal["computed", "right", "near", "out"]
Direction = Literal["too_high", "too_low"]

# Up to these factors an estimate is right, and near enough to plan with. Who states a range has said how far off the
# truth may be: beyond its end by more than rounding is out, and nothing is near.
RIGHT: Final = 1.1
NEAR: Final = 2.0
_ORDER: Final[tuple[EstimateOutcome, ...]] = ("computed", "right", "near", "out")
_MAX_SAID: Final = 90
_DECIMAL: Final = ("B", "KB", "MB", "GB", "TB", "PB")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_IN_DECIMAL: Final = re.compile(r"\d\s*(?:[kmgtp]b|[gt])\b", re.IGNORECASE)
# 962 is told as "about 1,000", and is a step from one unit to the next.
_ABOUT: Final = 0.06
_BEYOND_COUNTING: Final = 1e15
_STEP: Final = 0.1


@dataclass(frozen=True, slots=True)
class EstimateCheck:
    """One equation. ``factor`` is how far apart the nearest ends are: 1 where they meet, None where one is zero."""

    said: str
    computed: Amount
    claimed: Amount | None
    outcome: EstimateOutcome
    factor: float | None
    direction: Direction | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a text says. ``value`` is what it ends in; of a product, ``each`` is its size and ``count`` the rest."""

    text: str
    checks: tuple[EstimateCheck, ...]
    value: Amount
    each: Amount | None
    count: Amount | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured of one class or container; None where it did not. Bytes are those of all that it holds."""

    name: str
    unit: str
    generations: int
    count_per_generation: float | None = None
    bytes_per_generation: float | None = None
    count_now: float | None = None
    bytes_each: float | None = None


def check_estimate(text: str) -> Estimate:
    """Compute what a text says. Raises NotUnderstood, in one line, where it is no sum."""
    sides = read_sum(text)
    found = (_held(left, right) for left, right in pairwise(sides))
    checks = [check for check in found if check is not None]
    if len(sides) == 1 and sides[0].is_sum:
        checks = [_computed(sides[0])]
    if not checks:
        raise NotUnderstood(f"there is nothing to compute in it; write it as {EXAMPLE}")
    product = next((s for s in reversed(sides) if s.is_sum and s.amount.is_size), None)
    each, count = _each_and_count(product) if product else (None, None)
    return Estimate(text, tuple(checks), sides[-1].amount, each, count)


def worst(checks: Iterable[EstimateCheck]) -> EstimateOutcome:
    return max((check.outcome for check in checks), key=_ORDER.index, default="computed")


def _held(left: Side, right: Side) -> EstimateCheck | None:
    """The check of one equals sign; None where it only leads on to the next step."""
    if left.amount.is_size == right.amount.is_size:
        # "20 GB = 208 x 100 KB" is the same claim the other way round.
        turned = right.is_sum and not left.is_sum
        return _check(right, left) if turned else _check(left, right)
    if right.amount.is_size and right.is_sum:
        # "16 x 13 = 208 episodes x 100 KB = 20 GB": the count leads on to the next product.
        first = right.factors[0]
        if first.is_size or not left.is_sum:
            return None
        return _judge(left, first, _count(first.middle), right.said)
    size, count = (left, right) if left.amount.is_size else (right, left)
    raise NotUnderstood(
        f"{_short(count.said)!r} is a number of things and {_short(size.said)!r} a size; "
        f"give the size of one as well, as in {EXAMPLE}"
    )


def _check(side: Side, claim: Side) -> EstimateCheck:
    return _judge(side, claim.amount, _short(claim.said), claim.said)


def _judge(side: Side, claimed: Amount, said: str, beside: str) -> EstimateCheck:
    factor, direction = apart(side.amount, claimed)
    ends = _is_range(side.amount, claimed)
    outcome = _outcome(factor, RIGHT if ends else NEAR)
    told = f"{_short(side.said)} is {_told(side.amount, f'{side.said} {beside}')}"
    if outcome == "out":
        sentence = f"{told}, not {said}: the estimate is {_off(factor, direction, ends, said)}."
    else:
        sentence = f"{told}: {said} is {_right(outcome, factor, direction, ends)}."
    return EstimateCheck(side.said, side.amount, claimed, outcome, factor, direction, sentence)


def _computed(side: Side) -> EstimateCheck:
    told = f"{_short(side.said)} is {_told(side.amount, side.said)}."
    return EstimateCheck(side.said, side.amount, None, "computed", None, None, told)


def apart(true: Amount, claimed: Amount) -> tuple[float | None, Direction | None]:
    """(factor between the nearest ends, whether the claim is too high or too low)."""
    if claimed.low > true.high:
        return (claimed.low / true.high if true.high > 0 else None), "too_high"
    if claimed.high < true.low:
        return (true.low / claimed.high if claimed.high > 0 else None), "too_low"
    return 1.0, None


def _outcome(factor: float | None, near: float = NEAR) -> EstimateOutcome:
    """``near``: the factor beyond which it is out; a measurement scatters, and a person's own figures do not."""
    if factor is None or factor > near:
        return "out"
    return "near" if factor > RIGHT else "right"


def _is_range(*amounts: Amount) -> bool:
    return any(amount.low < amount.high for amount in amounts)


def _right(
    outcome: EstimateOutcome, factor: float | None, direction: Direction | None, ends: bool
) -> str:
    if factor is None or factor == 1.0:
        return "right"
    if outcome == "right":
        return f"right within {math.ceil(100 * (factor - 1))} %"
    return f"near, {_least(ends)}{factor:.1f} times {_way(direction)}"


def _least(ends: bool) -> str:
    """The factor is that of the nearest ends of a range."""
    return "at least " if ends else ""


def _way(direction: Direction | None) -> str:
    return "too high" if direction == "too_high" else "too low"


def _off(factor: float | None, direction: Direction | None, ends: bool, said: str) -> str:
    if factor is None:
        return f"{_way(direction)}: one of them is nothing"
    slip = _slip(factor, direction, said)
    return f"off by a factor of {_least(ends)}{rounded_factor(factor)} ({_way(direction)}{slip})"


def rounded_factor(factor: float) -> str:
    """``about 1,000`` for 962: what is near a power of ten is one; else two digits are enough."""
    if factor >= _BEYOND_COUNTING:
        return f"over {_BEYOND_COUNTING:,.0f}"
    power = 10.0 ** round(math.log10(factor))
    if power >= 10 and abs(factor / power - 1) <= _ABOUT:
        return f"about {power:,.0f}"
    if factor < 10:
        return f"{factor:.1f}"
    return f"{round(factor, 1 - int(math.log10(factor))):,.0f}"


def _slip(factor: float, direction: Direction | None, said: str) -> str:
    """``; MB, not GB``: a factor of a thousand is one unit taken for the next."""
    if factor >= _BEYOND_COUNTING:
        return ""
    steps = round(math.log(factor, 1000))
    units = re.findall(r"\d\s*([kmgtp]i?b)\b", said, re.IGNORECASE)
    if steps < 1 or not units or abs(factor / 1000.0**steps - 1) > _STEP:
        return ""
    names = _BINARY if "i" in units[-1].lower() else _DECIMAL
    at = [name.lower() for name in names].index(units[-1].lower())
    meant = at - steps if direction == "too_high" else at + steps
    return f"; {names[meant]}, not {names[at]}" if 0 <= meant < len(names) else ""


def _told(amount: Amount, written: str) -> str:
    """A size in binary units, and first in those the person wrote."""
    if not amount.is_size:
        return _span(amount, _count)
    binary = _span(amount, format_bytes)
    if amount.high < 1000 or not _IN_DECIMAL.search(written):
        return binary
    return f"{_span(amount, _decimal)} ({binary})"


def _span(amount: Amount, write: Callable[[float], str]) -> str:
    low, high = write(amount.low), write(amount.high)
    return low if low == high else f"{low} to {high}"


def _decimal(value: float) -> str:
    at = min(len(_DECIMAL) - 1, int(math.log(max(1.0, value), 1000) + 1e-9))
    return f"{value / 1000**at:.4g} {_DECIMAL[at]}"


def _count(value: float) -> str:
    return format_count(value) if value >= 10 or value == round(value) else f"{value:.3g}"


def _short(said: str) -> str:
    return said if len(said) <= _MAX_SAID else said[: _MAX_SAID - 1] + "…"


def _each_and_count(side: Side) -> tuple[Amount | None, Amount | None]:
    """Of a plain product with one size: that size, and the product of the counts."""
    sizes = [factor for factor in side.factors if factor.is_size]
    if not side.is_product or len(sizes) != 1:
        return None, None
    low = math.prod(factor.low for factor in side.factors if not factor.is_size)
    high = math.prod(factor.high for factor in side.factors if not factor.is_size)
    return sizes[0], Amount(low, high, False)


def is_named(text: str, name: str) -> bool:
    """Whether a text speaks of a class or container: by its whole name or its last part, one or many of it."""
    words = {word.strip(".-").lower() for word in re.findall(r"[A-Za-z_][\w.\[\]-]*", text)}
    whole = name.replace("[*]", "").strip(".").lower()
    names = {whole, short_name(whole)}
    return bool(words & (names | {f"{each}s" for each in names}))


def speaks_of_one(text: str, unit: str) -> bool:
    """Whether a text is about a single generation (``25 GB per generation``, ``/gen``) and not about the run."""
    words = rf"(?:{re.escape(unit)}|gen(?:eration)?)" if unit == "generation" else re.escape(unit)
    return bool(re.search(rf"(?:\bper|/|\beach|\bevery)\s*{words}\b", text, re.IGNORECASE))


def held_against(estimate: Estimate, measured: Measured) -> tuple[EstimateCheck, ...]:
    """The size, the number and the size of one, each against what a run measured; what is unknown is left out."""
    one = speaks_of_one(estimate.text, measured.unit)
    span = (
        f" per {measured.unit}"
        if one
        else f" after {count_of(measured.generations, measured.unit)}"
    )
    size = estimate.value if estimate.value.is_size else None
    questions = (
        (f"size{span}", size, _size_of(measured, one)),
        (f"number{span}", estimate.count, _number_of(measured, one)),
        ("size of one", estimate.each, measured.bytes_each),
    )
    return tuple(
        _against(measured.name, title, claimed, true)
        for title, claimed, true in questions
        if claimed is not None and true is not None
    )


def _number_of(measured: Measured, one: bool) -> float | None:
    rate = measured.count_per_generation
    if one:
        return rate
    if measured.count_now is not None:
        return measured.count_now
    return None if rate is None else rate * measured.generations


def _size_of(measured: Measured, one: bool) -> float | None:
    number, each, rate = (
        _number_of(measured, one),
        measured.bytes_each,
        measured.bytes_per_generation,
    )
    if one and rate is not None:
        return rate
    if number is not None and each is not None:
        return number * each
    return None if rate is None else rate * measured.generations


def _against(name: str, title: str, claimed: Amount, true: float) -> EstimateCheck:
    exact = Amount(max(0.0, true), max(0.0, true), claimed.is_size)
    factor, direction = apart(exact, claimed)
    outcome = _outcome(factor)
    write = format_bytes if claimed.is_size else _count
    end = (
        _off(factor, direction, _is_range(claimed), "")
        if outcome == "out"
        else _right(outcome, factor, direction, _is_range(claimed))
    )
    sentence = f"{short_name(name)}, {title}: {write(exact.low)} measured, {_span(claimed, write)} said: {end}."
    return EstimateCheck(name, exact, claimed, outcome, factor, direction, sentence)
