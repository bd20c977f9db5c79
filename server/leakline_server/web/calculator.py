"""Count × bytes per item against measured growth: does what is suspected explain what is measured? Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from leakline.analysis.estimates import NEAR, RIGHT, rounded_factor
from leakline.errors import BadArgument
from leakline.text_format import size_bytes

from . import formats
from .contexts import Ask, AskField, Section
from .verdict_view import leading_finding

Json = Mapping[str, Any]
# Who takes KiB for MiB is off by about this much.
_A_UNIT: Final = (900.0, 1_150.0)
COUNT: Final = "count"
EACH: Final = "each"


def calculator(
    verdict: Json | None, holders: Sequence[Json], unit: str, address: Mapping[str, str],
) -> Section | None:  # fmt: skip
    """None while nothing grows. ``address``: what the address of the page says, the two fields among it."""
    finding = leading_finding(verdict)
    growth = (finding or verdict or {}).get("growth_bytes_per_generation")
    if growth is None or growth["estimate"] <= 0:
        return None
    count, each = _suspected(finding, holders)
    told = address.get(COUNT, ""), address.get(EACH, "")
    shown = (told[0] or _number(count), told[1] or ("" if each is None else formats.size(each)))
    how = (
        f"How many a {unit} are kept, times what one of them costs, should be what memory grows by. Where it is not, "
        "something else grows, or one of the two numbers is wrong."
    )
    others = tuple((n, v) for n, v in address.items() if n not in (COUNT, EACH) and v)
    fields = (
        AskField(COUNT, f"kept per {unit}", shown[0], "text"),
        AskField(EACH, "bytes per item", shown[1], "text"),
    )
    return Section(
        "calculator", "Does it add up?", how, note=result(*shown, growth["estimate"], unit),
        short="Adds up?", ask=Ask(f"{COUNT} {EACH}", (), fields, others, "Work out"),
    )  # fmt: skip


def _suspected(finding: Json | None, holders: Sequence[Json]) -> tuple[float | None, float | None]:
    """Return how many more of the first suspect there are per generation, and the measured bytes of one with what it
    keeps alive.

    The bytes that the finding gives its first suspect are all of the growth: their share of one would always add up.
    """
    first = next(iter((finding or {}).get("suspects", ())), None)
    if first is None:
        return None, None
    with_all = next((h.get("bytes_each") for h in holders if h["type"] == first["name"]), None)
    return first["count_per_generation"], with_all or None


def result(count_text: str, each_text: str, growth: float, unit: str) -> str:
    """``Off by a factor of about 1,000: 16 × 1.00 KiB explains 16.00 KiB of 16.00 MiB per generation.``"""
    if not count_text or not each_text:
        return "Give both numbers; a size may have a unit, such as 440 MiB."
    count = _read_number(count_text)
    if count is None:
        return f"{count_text} is no count: give a number such as 16."
    try:
        each = size_bytes(each_text.replace(",", "").strip(), EACH)
    except BadArgument:
        return f"{each_text} is no size: give one such as 440 MiB."
    explained = count * each
    if not math.isfinite(explained):
        return f"{count_text} × {each_text} is more than any memory."
    sum_text = f"{_number(count)} × {formats.size(each)}"
    of = f"{formats.size(explained)} of {formats.size(growth)} per {unit}"
    if explained <= 0:
        return f"{sum_text} explains nothing of {formats.size(growth)} per {unit}."
    ratio = growth / explained
    off = max(ratio, 1 / ratio)
    if off <= NEAR:
        word = "It adds up" if off <= RIGHT else "Near, within a factor of 2"
        return f"{word}: {sum_text} explains {of}."
    hint = " So much is often a unit: KiB for MiB." if _A_UNIT[0] <= off <= _A_UNIT[1] else ""
    if ratio > 1:
        return f"Off by a factor of {rounded_factor(off)}: {sum_text} explains {of}.{hint}"
    return (
        f"Too much by a factor of {rounded_factor(off)}: {sum_text} would be {formats.size(explained)}, but memory "
        f"grows by {formats.size(growth)} per {unit}.{hint}"
    )


def _read_number(text: str) -> float | None:
    try:
        found = float(text.replace(",", "").replace("+", ""))
    except ValueError:
        return None
    return found if math.isfinite(found) and found >= 0 else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() or value >= 100 else f"{value:,.2f}"
