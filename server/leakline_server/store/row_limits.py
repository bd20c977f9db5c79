"""Rows that requests add are bounded: the oldest go."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, select


def keep_newest(
    connection: Connection,
    key: ColumnElement[Any],
    newest: ColumnElement[Any],
    most: int,
    *which: ColumnElement[bool],
) -> None:
    """Delete all but ``most`` of the rows ``which``, by ``newest``; the caller commits. ``key`` is unique in them."""
    kept = select(key).where(*which).order_by(newest.desc(), key.desc()).limit(most)
    connection.execute(delete(key.table).where(*which, key.not_in(kept)))
