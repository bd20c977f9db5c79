"""Moments as texts of the API."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """UTC, to the millisecond: 2026-01-31T12:00:00.000Z"""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


def unix(text: str) -> float:
    """Seconds, of what `iso` wrote."""
    return datetime.fromisoformat(text).timestamp()
