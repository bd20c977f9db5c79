"""Links out of the pages: only to the web, only where they say themselves that they lead. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from leakline.analysis.locations import code_link as code_link
from leakline.analysis.locations import commit_link as commit_link

from .contexts import Cell

MAX_LINK: Final = 2_000


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
