"""Tables built from strings and cells; cells may contain links, times and sparklines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from leakline.analysis.findings.code_locations import code_link as code_link
from leakline.analysis.findings.code_locations import commit_link as commit_link
from leakline.text_format import count_of

from . import number_formats
from .page_contexts import Cell, Column, Row, Sparkline, Table

Field = Cell | str


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Field]], *,
    caption: str = "", tall: bool = True, sums: Sequence[Field] | None = None,
) -> Table:  # fmt: skip
    """Return a table.

    Headings that begin with ``#`` mark columns of numbers. ``sums`` becomes a separate last row.
    """
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
    """Return a cell with a time of day; the page shows times in the viewer's time zone."""
    text = datetime.fromtimestamp(unix_seconds, UTC).strftime("%H:%M:%S UTC")
    return Cell(text, time=number_formats.moment(unix_seconds))


def at_iso(iso: str | None) -> Cell:
    return Cell(number_formats.clock(iso), time=iso) if iso else Cell("–")


def place(generation: int | None) -> str:
    return "–" if generation is None else f"{generation:,}"


def shown(rows: int, total: int, what: str, rest: str = "newest first") -> str:
    """Return a caption such as ``100 of 2,000 generations, newest first``."""
    amount = count_of(total, what)
    return (
        f"{amount}, {rest}"
        if rows == total
        else f"{rows:,} of {amount}, {rest}; the CSV has all rows"
    )


MAX_LINK: Final = 2_000
# A web address in text: up to a space or quotation mark, without trailing punctuation.
_ADDRESS: Final = re.compile(r"""(https?://[^\s<>"'“”`]{1,1999}[^\s<>"'“”`.,;:!?)\]}])""")


def with_links(text: str) -> tuple[Cell, ...]:
    """Split a person's text into cells: web addresses become links, and other text is unchanged."""
    # `split` returns the captured addresses at odd positions.
    pieces = enumerate(_ADDRESS.split(text))
    return tuple(_piece(piece, is_address=at % 2 == 1) for at, piece in pieces if piece)


def _piece(text: str, *, is_address: bool) -> Cell:
    # Invisible characters can make an address look like another address.
    leads = is_address and text.isprintable() and web_link(text) is not None
    return Cell(text, href=text if leads else None, outside=leads)


def web_link(link: object) -> Cell | None:
    """Return a link labelled with its host, or None if ``link`` is not a web address."""
    if not isinstance(link, str) or len(link) > MAX_LINK or re.search(r"[\s\x00-\x1f\\]", link):
        return None
    try:
        parts = urlsplit(link)
        host = parts.hostname
    except ValueError:
        return None
    # Text before an @ can look like a host and hide the actual one.
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        return None
    return Cell(host, href=link, title=link, outside=True)


_WIDTH: Final = 120.0
_HEIGHT: Final = 28.0
# Longer lines are thinned out evenly: a sparkline is only as wide as two words.
MAX_POINTS_SHOWN: Final = 60


def sparkline(
    values: Sequence[float | None], what: str = "Memory",
    write: Callable[[float | None], str] = number_formats.size,
) -> Sparkline | None:  # fmt: skip
    """Return a sparkline, or None for fewer than two values.

    The scale starts at zero if values come near zero, otherwise near the lowest value.
    """
    known = _thinned([(i, value) for i, value in enumerate(values) if value is not None])
    if len(known) < 2:
        return None
    heights = [value for _, value in known]
    low, high = min(heights), max(heights)
    # The scale covers at least a fifth of the highest value, so that a steady run looks steady.
    floor = max(0.0, min(low, high - max(high - low, 0.2 * high) / 0.9))
    first, last = known[0][0], known[-1][0]
    wide, tall = _WIDTH / (last or 1), (_HEIGHT - 4) / (high - floor or 1.0)
    zero = _HEIGHT - 2 + floor * tall
    # This must be fast: a page has three thousand of these points.
    line = " ".join(["%.1f,%.1f" % (i * wide, zero - value * tall) for i, value in known])  # noqa: UP031
    area = f"{first * wide:.1f},{_HEIGHT:.0f} {line} {last * wide:.1f},{_HEIGHT:.0f}"
    return Sparkline(line, area, f"{what} from {write(heights[0])} to {write(heights[-1])}")


def _thinned(known: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return evenly spaced values, including the first and the last value."""
    step = -(-len(known) // MAX_POINTS_SHOWN)
    return known if step < 2 else [*known[:-1:step], known[-1]]
