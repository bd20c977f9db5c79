"""Numbers and names as a tired person reads them: binary units with two decimals, short class names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..sizes import format_bytes as format_bytes
from ..sizes import worded as worded

_PROCESSES_TOLD: Final = 4
# Below this rate a change needs two decimals.
_ONE_EACH: Final = 0.95
# Below this rate a count reads better as the distance between two rises.
_RATE_WRITTEN_FROM: Final = 0.67


def format_change(value: float) -> str:
    """As format_bytes, with a sign in front of growth too."""
    return ("+" if value >= 0 else "") + format_bytes(value)


def format_count(value: float) -> str:
    """``16``, ``0.4``, ``3,072``."""
    if abs(value) >= 10 or abs(value - round(value)) < 0.05:
        return f"{round(value):,}"
    return f"{value:.1f}"


def format_count_change(value: float) -> str:
    """Return ``+16``, ``+3.4``, ``-2``; two decimals below one, where a rise every fifty generations is not zero."""
    text = f"{value:.2f}" if 0.005 <= abs(value) < _ONE_EACH else format_count(value)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def format_range(low: float, high: float, write: Callable[[float], str] = format_bytes) -> str:
    """Return ``6.90 MiB to 7.30 MiB``; empty where both ends read the same, because that says nothing new."""
    first, last = write(low), write(high)
    return "" if first == last else f"{first} to {last}"


def in_brackets(text: str) -> str:
    """Return `` (text)``, to follow a number; empty for an empty text."""
    return f" ({text})" if text else ""


def format_rate(count: float, unit: str, more: str = "") -> str:
    """Return ``16 per generation`` or, for a low rate, ``1 about every 3 generations``.

    ``more`` follows the number: ``16 more Env per generation``.
    """
    what = f" {more}" if more else ""
    if 0 < count < _RATE_WRITTEN_FROM:
        return f"1{what} about every {count_of(1 / count, unit)}"
    return f"{format_count(count)}{what} per {unit}"


def count_of(number: float, unit: str) -> str:
    """``1 generation``, ``3,072 generations``."""
    return f"{format_count(number)} {unit}{'' if number == 1 else 's'}"


def seen_of(number: int, passed: int | None, unit: str) -> str:
    """``59 seconds``; ``59 readings in 581 seconds`` where so many ``passed`` and not each was read."""
    if passed is None:
        return count_of(number, unit)
    return f"{count_of(number, 'reading')} in {count_of(passed, unit)}"


def processes_told(named: str) -> str:
    """Return ``rank 1 main``, or ``rank 1 main and rank 2 main together``, because numbers are sums over them.

    Of more than a line has room for, the first ones and the number of the others.
    """
    names = named.split(", ")
    if len(names) == 1:
        return named
    more = len(names) - _PROCESSES_TOLD
    *first, last = names if more <= 0 else [*names[:_PROCESSES_TOLD], f"{more} more"]
    return f"{', '.join(first)} and {last} together"


def entries_in(number: float, container: str, unit: str) -> str:
    """Return ``1 more entry in Trainer.history per generation``, ``3,000 more entries in …``."""
    one = 0 < number < _RATE_WRITTEN_FROM or format_count(number) == "1"
    return format_rate(number, unit, f"more {'entry' if one else 'entries'} in {container}")


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
