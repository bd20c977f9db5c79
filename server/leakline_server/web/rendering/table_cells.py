"""Tables written the way they read, heads as words, fields as texts, links and small lines."""

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


MAX_LINK: Final = 2_000
# In running text: up to a space or a mark of quotation, without the mark that ends a sentence.
_ADDRESS: Final = re.compile(r"""(https?://[^\s<>"'“”`]{1,1999}[^\s<>"'“”`.,;:!?)\]}])""")


def with_links(text: str) -> tuple[Cell, ...]:
    """What people wrote, piece by piece: web addresses as links in full, the rest as it is."""
    # What was caught stands at the odd places.
    pieces = enumerate(_ADDRESS.split(text))
    return tuple(_piece(piece, is_address=at % 2 == 1) for at, piece in pieces if piece)


def _piece(text: str, *, is_address: bool) -> Cell:
    # What cannot be seen can make an address look like another.
    leads = is_address and text.isprintable() and web_link(text) is not None
    return Cell(text, href=text if leads else None, outside=leads)


def web_link(link: object) -> Cell | None:
    """A link of the training, shown by its host; None for anything that leads elsewhere than into the web."""
    if not isinstance(link, str) or len(link) > MAX_LINK or re.search(r"[\s\x00-\x1f\\]", link):
        return None
    try:
        parts = urlsplit(link)
        host = parts.hostname
    except ValueError:
        return None
    # What stands before an @ is a way to show one host and lead to another.
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        return None
    return Cell(host, href=link, title=link, outside=True)


_WIDTH: Final = 120.0
_HEIGHT: Final = 28.0
# Of a line that has more, every so manieth: it is as wide as two words.
MAX_POINTS_SHOWN: Final = 60


def sparkline(
    values: Sequence[float | None], what: str = "Memory",
    write: Callable[[float | None], str] = number_formats.size,
) -> Sparkline | None:  # fmt: skip
    """The line in a box of 120 by 28, from zero if the values come near it, else from the lowest."""
    known = _thinned([(i, value) for i, value in enumerate(values) if value is not None])
    if len(known) < 2:
        return None
    heights = [value for _, value in known]
    low, high = min(heights), max(heights)
    # A change of less than a twentieth is drawn as small as it is: a steady run must look steady.
    floor = max(0.0, min(low, high - max(high - low, 0.2 * high) / 0.9))
    first, last = known[0][0], known[-1][0]
    wide, tall = _WIDTH / (last or 1), (_HEIGHT - 4) / (high - floor or 1.0)
    zero = _HEIGHT - 2 + floor * tall
    # A page has three thousand of these points.
    line = " ".join(["%.1f,%.1f" % (i * wide, zero - value * tall) for i, value in known])  # noqa: UP031
    area = f"{first * wide:.1f},{_HEIGHT:.0f} {line} {last * wide:.1f},{_HEIGHT:.0f}"
    return Sparkline(line, area, f"{what} from {write(heights[0])} to {write(heights[-1])}")


def _thinned(known: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """With the first and the last."""
    step = -(-len(known) // MAX_POINTS_SHOWN)
    return known if step < 2 else [*known[:-1:step], known[-1]]
