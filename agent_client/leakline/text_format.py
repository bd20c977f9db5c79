"""Formats numbers, sizes, durations, intervals and lists for verdicts, reports, the terminal and the pages.

Every other module may import this module. The pages replace the hyphen of a negative number with a minus sign.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .errors import BadArgument

NOT_MEASURED: Final = "not measured"
# Part of the summary of a run that the kernel killed.
KILLED_FOR_MEMORY: Final = "Killed for memory"
_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_PROCESSES_NAMED: Final = 4
# Changes in counts below this number are shown with two decimals.
_ONE_EACH: Final = 0.95
# Rates below this number of objects per unit are easier to read as an interval between two increases.
_RATE_WRITTEN_FROM: Final = 0.67

Write = Callable[[float], str]


def size_bytes(value: object, name: str, source: str = "argument") -> int:
    """Return the size in bytes given by a number or a string such as "30 GiB" (2^30) or "30 GB" (10^9)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _UNITS.get(found[2].lower()) if found else None
    size = float(found[1]) * factor if found is not None and factor is not None else math.inf
    if size == math.inf:
        raise BadArgument(name, value, 'must be a size such as "30 GiB"', source)
    return int(size)


def format_bytes(value: float) -> str:
    """Format a size in binary units: ``7.10 GiB``, ``-3.20 MiB``, ``1,009.40 KiB``, ``96 B``."""
    amount, unit = abs(value), 0
    # An amount at or above the limit would be rounded to 1024 of the smaller unit.
    while unit < len(_BINARY) - 1 and amount >= (1023.995 if unit else 1023.5):
        amount /= 1024
        unit += 1
    text = f"{amount:,.2f}" if unit else f"{_half_up(amount):,}"
    return f"{_minus(value, text)}{text} {_BINARY[unit]}"


def format_change(value: float) -> str:
    """Format a change in size with its sign: ``+1.20 GiB``, ``-3.20 MiB``."""
    return ("+" if value >= 0 else "") + format_bytes(value)


def format_gib(value: float, sign: str = "") -> str:
    """Format a size in GiB even if it is small: ``4.23 GiB``. With ``sign="+"``, positive values have a sign too."""
    return f"{value / 2**30:{sign}.2f} GiB"


def format_count(value: float) -> str:
    """Format a count with at most one decimal: ``16``, ``0.4``, ``3,072``."""
    if abs(value) >= 10 or abs(value - round(value)) < 0.05:
        return f"{round(value):,}"
    return f"{value:.1f}"


def format_count_change(value: float) -> str:
    """Format a change with its sign: ``+16``, ``+3.4``, ``-2``. Values below one have two decimals."""
    text = f"{value:.2f}" if 0.005 <= abs(value) < _ONE_EACH else format_count(value)
    return f"{_plus(value, text)}{text}"


def format_number(value: float) -> str:
    """Format a number with three significant digits: ``16``, ``0.25``, ``3,072``."""
    if abs(value) >= 100 or float(value).is_integer():
        return format_count(round(value))
    return f"{value:.3g}"


def format_decimal(value: float) -> str:
    """Format a number with two decimals unless it is an integer: ``1,234``, ``0.25``."""
    text = f"{abs(value):,.0f}" if float(value).is_integer() else f"{abs(value):,.2f}"
    return f"{_minus(value, text)}{text}"


def format_share(share: float, digits: int = 0) -> str:
    """Format a fraction as a percentage: ``97 %``.

    Verdicts contain shares with three decimals. Rounding to them first gives evidence and verdict the same text.
    """
    text = f"{abs(round(share, 3 + digits)) * 100:,.{digits}f}"
    return f"{_minus(share, text)}{text} %"


def format_percent_change(percent: float) -> str:
    """Format a relative change with its sign: ``-95.0 %``, ``+1,200 %``, ``0.0 %``."""
    text = f"{abs(percent):,.0f}" if abs(percent) >= 1000 else f"{abs(percent):,.1f}"
    return f"{_minus(percent, text) or _plus(percent, text)}{text} %"


def format_seconds(seconds: float) -> str:
    """Format a duration: ``3.4 ms``, ``0.50 s``, ``1 min 1 s``, ``2 h 1 min``, ``2 d 2 h``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = _half_up(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = _half_up(seconds / 60)
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = _half_up(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def format_estimated_seconds(seconds: float) -> str:
    """Format an estimated duration with little precision: ``40 s``, ``12 min``, ``46 h 40 min``."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 60 else f"{round(seconds)} s"


def format_silence(seconds: float) -> str:
    """Format a duration for a sentence, in a single unit: ``61 seconds``, ``12 minutes``, ``3 hours``."""
    if seconds < 120:
        return count_of(round(seconds), "second")
    minutes = round(seconds / 60)
    return count_of(minutes, "minute") if minutes < 120 else count_of(round(minutes / 60), "hour")


def format_utc(unix_seconds: float) -> str:
    """Format a time in UTC: ``2026-08-24 09:15 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_seconds))


def format_range(low: float, high: float, write: Write = format_bytes) -> str:
    """Format a range: ``6.90 MiB to 7.30 MiB``. Return an empty string if both ends have the same text."""
    first, last = write(low), write(high)
    return "" if first == last else f"{first} to {last}"


def format_span(first: int, last: int) -> str:
    """Format a range of integers: ``7`` or ``1,000 to 1,200``."""
    return format_range(first, last, "{:,}".format) or f"{first:,}"


def format_interval(
    estimate: float, low: float, high: float, write: Write = format_bytes, write_end: Write | None = None
) -> str:  # fmt: skip
    """Format an estimate with its interval: ``7.10 GiB (6.90 GiB to 7.30 GiB)``.

    The interval is left out if both ends have the same text. ``write_end`` formats the ends if their format differs
    from the estimate's format.
    """
    return f"{write(estimate)}{in_brackets(format_range(low, high, write_end or write))}"


def in_brackets(text: str) -> str:
    """Return the text in parentheses, after a space. Return an empty string if the text is empty."""
    return f" ({text})" if text else ""


def format_rate(count: float, unit: str, more: str = "") -> str:
    """Format a rate: ``16 per generation`` or, if it is low, ``1 about every 3 generations``.

    ``more`` is inserted after the number: ``16 more Env per generation``.
    """
    what = f" {more}" if more else ""
    if 0 < count < _RATE_WRITTEN_FROM:
        return f"1{what} about every {count_of(1 / count, unit)}"
    return f"{format_count(count)}{what} per {unit}"


def entries_in(number: float, container: str, unit: str) -> str:
    """Describe the growth of a container: ``1 more entry in Trainer.history per generation``."""
    one = 0 < number < _RATE_WRITTEN_FROM or format_count(number) == "1"
    return format_rate(number, unit, f"more {plural('entry', 1 if one else 2)} in {container}")


def plural(word: str, number: float) -> str:
    """Return the word, pluralized unless the number is one: ``run``, ``runs``, ``batches``, ``tries``."""
    if number == 1:
        return word
    if word.endswith(("s", "tch")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def count_of(number: float, word: str) -> str:
    """Format a count with its noun: ``1 generation``, ``3,072 generations``."""
    return f"{format_count(number)} {plural(word, number)}"


def format_times(number: float) -> str:
    """Format a number of repetitions: ``once``, ``twice``, ``3 times``."""
    if number in (1, 2):
        return "once" if number == 1 else "twice"
    return f"{format_count(number)} times"


def ordinal(number: int) -> str:
    """Format an ordinal number: ``1st``, ``2nd``, ``13th``."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def join_words(words: Sequence[str]) -> str:
    """Join words into a list: ``a``, ``a and b``, ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def join_processes(names: str) -> str:
    """Join process names, followed by "together" if there are several processes: ``rank 1 main and rank 2 main
    together``.

    ``names`` are separated by commas. A list that is too long for a line ends with the number of omitted names.
    """
    each = names.split(", ")
    if len(each) == 1:
        return names
    more = len(each) - _PROCESSES_NAMED
    shown = each if more <= 0 else [*each[:_PROCESSES_NAMED], f"{more} more"]
    return f"{join_words(shown)} together"


def seen_of(number: int, passed: int | None, unit: str) -> str:
    """Return text such as ``59 seconds`` or, with ``passed``, ``59 readings in 581 seconds``."""
    if passed is None:
        return count_of(number, unit)
    return f"{count_of(number, 'reading')} in {count_of(passed, unit)}"


# What the sentence about a run that ended abnormally begins with.
_CRASHED: Final = ("Failed", "Killed", "Interrupted")


def worded(word: str, sentence: str) -> str:
    """Prefix a sentence with its status: ``fixed: 16 MiB per generation before, 0 B after``.

    The status is not repeated if the sentence already begins with the same words. ``learning`` is left out before the
    end of a run that crashed.
    """
    if word == "learning" and sentence.startswith(_CRASHED):
        return sentence
    again = word.replace("_", " ")
    says_it = sentence.lower().startswith((f"{again}: ", f"{again}, "))
    return f"{word}: {sentence[len(again) + 2 :] if says_it else sentence}"


def with_forecast(sentence: str, oom: object) -> str:
    """Append the forecast to the sentence if memory may run out and the run was not killed for memory."""
    if not isinstance(oom, Mapping) or not oom.get("generation") or not oom.get("sentence"):
        return sentence
    if oom.get("risk") == "none" or KILLED_FOR_MEMORY in sentence:
        return sentence
    return f"{sentence}; {oom['sentence']}"


def capital(text: str) -> str:
    """Return the text with its first letter capitalized."""
    return text[:1].upper() + text[1:]


def short_name(name: str) -> str:
    """Return a class name without its module: ``TradingEnvironment`` for ``trading.TradingEnvironment``."""
    return name.rsplit(".", 1)[-1]


def printable(text: str, kept: str = "") -> str:
    """Replace unprintable characters with spaces, except those in ``kept``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else " " for c in text)


def _half_up(value: float) -> int:
    # Round half up, as JavaScript does. Python's round() rounds half to even.
    return math.floor(value + 0.5)


def _minus(value: float, text: str) -> str:
    """Return a minus sign for a negative value, unless it is formatted as zero."""
    return "-" if value < 0 and text.strip("0.,") else ""


def _plus(value: float, text: str) -> str:
    return "+" if value > 0 and text.strip("0.,") else ""
