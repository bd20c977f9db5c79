"""Links out of the pages: only to the web, only where they say themselves that they lead. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from leakline.analysis.findings.code_locations import code_link as code_link
from leakline.analysis.findings.code_locations import commit_link as commit_link

from .page_contexts import Cell

MAX_LINK: Final = 2_000
# In running text: up to a space or a mark of quotation, without the mark that ends a sentence.
_ADDRESS: Final = re.compile(r"""(https?://[^\s<>"'“”`]{1,1999}[^\s<>"'“”`.,;:!?)\]}])""")


def with_links(text: str) -> tuple[Cell, ...]:
    """What people wrote, piece by piece: what leads into the web as a link told in full, the rest as it is."""
    # What was caught stands at the odd places.
    pieces = enumerate(_ADDRESS.split(text))
    return tuple(_piece(piece, is_address=at % 2 == 1) for at, piece in pieces if piece)


def _piece(text: str, *, is_address: bool) -> Cell:
    # What cannot be seen can make an address look like another.
    leads = is_address and text.isprintable() and web_link(text) is not None
    return Cell(text, href=text if leads else None, outside=leads)


def web_link(link: object) -> Cell | None:
    """A link of the training, told by its host; None for anything that leads elsewhere than into the web."""
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
