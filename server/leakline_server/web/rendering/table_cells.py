"""Tables written the way they read: heads as words, fields as texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from leakline.text_format import count_of

from . import number_formats
from .page_contexts import Cell, Column, Row, Table

Field = Cell | str


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Field]], *,
    caption: str = "", tall: bool = True, sums: Sequence[Field] | None = None,
) -> Table:  # fmt: skip
    """Heads that begin with ``#`` stand over numbers. ``sums`` is the last row, set apart."""
    columns = tuple(Column(head.lstrip("#"), number=head.startswith("#")) for head in heads)
    body = [Row(tuple(map(_cell, row))) for row in rows]
    if sums is not None:
        body.append(Row(tuple(map(_cell, sums)), sum=True))
    return Table(columns, tuple(body), caption, tall)


def _cell(field: Field) -> Cell:
    if isinstance(field, Cell):
        return field
    return Cell(field, absent=field == number_formats.NOT_MEASURED)


def code(text: str | None) -> Cell:
    return Cell(text, code=True) if text else Cell("–")


def rated(text: str, status: str) -> Cell:
    return Cell(text, status=status)


def at(unix_seconds: float) -> Cell:
    """A clock time; the page shows it in the viewer's zone."""
    text = datetime.fromtimestamp(unix_seconds, UTC).strftime("%H:%M:%S UTC")
    return Cell(text, time=number_formats.moment(unix_seconds))


def at_iso(iso: str | None) -> Cell:
    return Cell(number_formats.clock(iso), time=iso) if iso else Cell("–")


def place(generation: int | None) -> str:
    return "–" if generation is None else f"{generation:,}"


def shown(rows: int, total: int, what: str, rest: str = "newest first") -> str:
    """``100 of 2,000 generations, newest first``."""
    amount = count_of(total, what)
    return (
        f"{amount}, {rest}" if rows == total else f"{rows:,} of {amount}, {rest}; the CSV has all"
    )
