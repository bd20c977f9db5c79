"""Number formats for people, with binary units; missing values are never shown as zero.

static/js/formats.js is the equivalent for charts. Tests compare both with tests/data/formats.json.
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
    """Return a size such as ``7.10 GiB``; bytes below one KiB are whole numbers."""
    return _written(format_bytes, value)


def change(value: float | None) -> str:
    """Return a size with its sign: ``+1.20 GiB``."""
    text = size(value)
    return text if value is None or value <= 0 else f"+{text}"


def count(value: float | None) -> str:
    """Return a number such as ``1,234`` or ``0.25``."""
    return _written(format_decimal, value)


def rate(value: float | None) -> str:
    """Return a signed count per generation: ``+16``, ``+0.20``, ``+3,072``."""
    return _written(format_count_change, value)


def seconds(value: float | None) -> str:
    """Return a duration such as ``0.50 s`` or ``2 h 1 min``."""
    return _written(format_seconds, value)


def percent(share: float | None, digits: int = 0) -> str:
    """Return a fraction as a percentage such as ``97 %``."""
    return _written(lambda value: format_share(value, digits), share)


def percent_change(value: float | None) -> str:
    """Return a change in percent such as ``−95.0 %``, as used in comparisons."""
    return _written(format_percent_change, value)


def interval(value: Mapping[str, Any] | None, write: Any = size) -> str:
    """Return ``7.10 GiB (6.90 GiB to 7.30 GiB)``, or only the estimate if both ends look identical."""
    if value is None:
        return NOT_MEASURED
    return format_interval(value["estimate"], value["low"], value["high"], write)


def moment(unix_seconds: float | None) -> str:
    """Return a time in ISO 8601 (UTC) for a ``datetime`` attribute, or an empty string if unknown."""
    if unix_seconds is None:
        return ""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")


def clock(iso: str | None) -> str:
    """Return a time such as ``2026-08-24 09:15 UTC``; scripts convert times to the viewer's zone."""
    if not iso:
        return "unknown"
    return format_utc(datetime.fromisoformat(iso).timestamp())


def _written(write: Callable[[float], str], value: float | None) -> str:
    return NOT_MEASURED if value is None else write(value).replace("-", MINUS)
