"""Numbers as people read them: binary sizes that say so, and never a zero for what nobody measured.

static/js/formats.js is the twin for charts; both are held to tests/data/formats.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from leakline.text_format import NOT_MEASURED as NOT_MEASURED
from leakline.text_format import (
    format_bytes,
    format_count_change,
    format_decimal,
    format_interval,
    format_percent_change,
    format_seconds,
    format_share,
    format_utc,
)

MINUS: Final = "\u2212"


def size(value: float | None) -> str:
    """Return ``7.10 GiB``; bytes below one KiB as whole numbers."""
    return _written(format_bytes, value)


def change(value: float | None) -> str:
    """Return a size with its sign: ``+1.20 GiB``."""
    text = size(value)
    return text if value is None or value <= 0 else f"+{text}"


def count(value: float | None) -> str:
    """Return ``1,234`` or ``0.25``."""
    return _written(format_decimal, value)


def rate(value: float | None) -> str:
    """Return a count per generation with its sign, as the terminal writes it: ``+16``, ``+0.20``, ``+3,072``."""
    return _written(format_count_change, value)


def seconds(value: float | None) -> str:
    """Return ``0.50 s``, ``2 h 1 min``."""
    return _written(format_seconds, value)


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share of one as ``97 %``."""
    return _written(lambda value: format_share(value, digits), share)


def percent_change(value: float | None) -> str:
    """Return percent as the comparison gives it: ``−95.0 %``."""
    return _written(format_percent_change, value)


def interval(value: Mapping[str, Any] | None, write: Any = size) -> str:
    """Return ``7.10 GiB (6.90 GiB to 7.30 GiB)``; without the brackets where both ends read the same."""
    if value is None:
        return NOT_MEASURED
    return format_interval(value["estimate"], value["low"], value["high"], write)


def moment(unix_seconds: float | None) -> str:
    """ISO 8601 in UTC for a ``datetime`` attribute; empty when unknown."""
    if unix_seconds is None:
        return ""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")


def clock(iso: str | None) -> str:
    """``2026-08-24 09:15 UTC``: what the page says until a script knows the viewer's zone."""
    if not iso:
        return "unknown"
    return format_utc(datetime.fromisoformat(iso).timestamp())


def _written(write: Callable[[float], str], value: float | None) -> str:
    return NOT_MEASURED if value is None else write(value).replace("-", MINUS)
