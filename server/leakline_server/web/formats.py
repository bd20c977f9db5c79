"""Numbers as people read them: binary sizes that say so, and never a zero for what nobody measured.

static/js/formats.js is the twin for charts; both are held to tests/data/formats.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from leakline.analysis.wording import format_count_change, format_range, in_brackets
from leakline.sizes import format_bytes

NOT_MEASURED: Final = "not measured"
MINUS: Final = "\u2212"


def size(value: float | None) -> str:
    """``7.10 GiB``; bytes below one KiB as whole numbers."""
    if value is None:
        return NOT_MEASURED
    return format_bytes(value).replace("-", MINUS)


def change(value: float | None) -> str:
    """A size with its sign: ``+1.20 GiB``."""
    text = size(value)
    return text if value is None or value <= 0 else f"+{text}"


def count(value: float | None) -> str:
    """``1,234`` or ``0.25``."""
    if value is None:
        return NOT_MEASURED
    text = f"{abs(value):,.0f}" if float(value).is_integer() else f"{abs(value):,.2f}"
    return f"{_sign(value, text)}{text}"


def rate(value: float | None) -> str:
    """Return a count per generation with its sign, as the terminal writes it: ``+16``, ``+0.20``, ``+3,072``."""
    if value is None:
        return NOT_MEASURED
    return format_count_change(value).replace("-", MINUS)


def seconds(value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    if value < 0.0995:
        return f"{value * 1000:.1f} ms"
    if value < 60:
        return f"{value:.2f} s"
    whole = _round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = _round(value / 60)
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = _round(value / 3600)
    return f"{hours // 24} d {hours % 24} h"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of one: ``97 %``."""
    if share is None:
        return NOT_MEASURED
    text = f"{abs(share) * 100:,.{digits}f}"
    return f"{_sign(share, text)}{text} %"


def percent_change(value: float | None) -> str:
    """Percent as the comparison gives it: ``−95.0 %``."""
    if value is None:
        return NOT_MEASURED
    text = f"{abs(value):,.1f}"
    sign = _sign(value, text) or ("+" if value > 0 else "")
    return f"{sign}{text} %"


def interval(value: Mapping[str, Any] | None, write: Any = size) -> str:
    """Return ``7.10 GiB (6.90 GiB to 7.30 GiB)``; without the brackets where both ends read the same."""
    if value is None:
        return NOT_MEASURED
    return (
        f"{write(value['estimate'])}{in_brackets(format_range(value['low'], value['high'], write))}"
    )


def moment(unix_seconds: float | None) -> str:
    """ISO 8601 in UTC for a ``datetime`` attribute; empty when unknown."""
    if unix_seconds is None:
        return ""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")


def clock(iso: str | None) -> str:
    """``2026-08-24 09:15 UTC``: what the page says until a script knows the viewer's zone."""
    if not iso:
        return "unknown"
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _sign(value: float, text: str) -> str:
    return MINUS if value < 0 and any(digit in "123456789" for digit in text) else ""


def _round(value: float) -> int:
    # Half up, as in JavaScript; Python's round() goes to the even neighbour.
    return math.floor(value + 0.5)
