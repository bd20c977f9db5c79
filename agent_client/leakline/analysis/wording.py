"""Numbers and names as a tired person reads them: binary units with two decimals, short class names."""

from __future__ import annotations

from typing import Final

from ..sizes import format_bytes as format_bytes
from ..sizes import worded as worded

_PROCESSES_TOLD: Final = 4


def format_change(value: float) -> str:
    """As format_bytes, with a sign in front of growth too."""
    return ("+" if value >= 0 else "") + format_bytes(value)


def range_of(estimate: float, low: float, high: float, share: str = "") -> str:
    """`` (6.90 GiB to 7.30 GiB)``; empty where both ends are written as the estimate is."""
    ends = format_bytes(low), format_bytes(high)
    return "" if set(ends) == {format_bytes(estimate)} else f" ({ends[0]} to {ends[1]}{share})"


def format_count(value: float) -> str:
    """``16``, ``0.4``, ``3,072``."""
    if abs(value) >= 10 or abs(value - round(value)) < 0.05:
        return f"{round(value):,}"
    return f"{value:.1f}"


def count_of(number: float, unit: str) -> str:
    """``1 generation``, ``3,072 generations``."""
    return f"{format_count(number)} {unit}{'' if number == 1 else 's'}"


def seen_of(number: int, passed: int | None, unit: str) -> str:
    """``59 seconds``; ``59 readings in 581 seconds`` where so many ``passed`` and not each was read."""
    if passed is None:
        return count_of(number, unit)
    return f"{count_of(number, 'reading')} in {count_of(passed, unit)}"


def processes_told(named: str) -> str:
    """``rank 1 main, rank 2 main`` as it is; of more than a line has room for, the first and how many more."""
    names = named.split(", ")
    more = len(names) - _PROCESSES_TOLD
    return named if more <= 0 else f"{', '.join(names[:_PROCESSES_TOLD])} and {more} more"


def entries_in(number: float, container: str) -> str:
    """``1 more entry in Trainer.history``, ``3,000 more entries in …``."""
    count = format_count(number)
    return f"{count} more {'entry' if count == '1' else 'entries'} in {container}"


def capital(said: str) -> str:
    """The same with a capital letter in front."""
    return said[:1].upper() + said[1:]


def short_name(name: str) -> str:
    """The class without its module: ``trading.TradingEnvironment`` -> ``TradingEnvironment``."""
    return name.rsplit(".", 1)[-1]


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
