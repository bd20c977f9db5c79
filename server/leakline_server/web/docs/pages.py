"""``/docs``: the documents that are installed with this version, as pages that load nothing from another host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from markupsafe import Markup
from starlette.responses import Response

from ...errors import NotFound, shorten
from ...paths import DOCS
from ..rendering.templating import render
from .markdown_html import (
    INDEX,
    REPOSITORY,
    ROOT,
    Heading,
    Listed,
    Written,
    address_of,
    links_of,
    write,
)

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

# Files that a document shows or hands out.
MEDIA: Final = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yml": "text/plain; charset=utf-8",
    ".toml": "text/plain; charset=utf-8",
}
_FEWEST_HEADINGS: Final = 3


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """``/docs/…``; ``contents`` is empty for a short document, ``before`` and ``after`` follow the index."""

    title: str
    document: str
    body: Markup
    contents: tuple[Heading, ...]
    groups: tuple[tuple[str, tuple[Listed, ...]], ...]
    before: Listed | None
    after: Listed | None
    is_index: bool


@router.head(ROOT)
@router.get(ROOT)
def show_index() -> Response:
    return _page("")


@router.head(ROOT + "/{name:path}")
@router.get(ROOT + "/{name:path}")
def show_document(name: str) -> Response:
    path = files().get(name)
    if path is not None and path.suffix in MEDIA:
        headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
        return FileResponse(path, media_type=MEDIA[path.suffix], headers=headers)
    # Links of the repository end in .md.
    other = name if path is not None else document_called(name.rstrip("/"))
    if other is not None and (path is not None or not name or name.endswith("/")):
        return RedirectResponse(address_of(other), status_code=308)
    return _page(name)


@cache
def files() -> Mapping[str, Path]:
    """Return documents and media by their paths below the folder; requested names are only looked up here."""
    found = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*")}
    return {name: path for name, path in found.items() if path.suffix in {".md", *MEDIA}}


def document_called(name: str) -> str | None:
    """``concepts`` or ``integrations`` -> the path of the document; None if there is no such document."""
    tried = [f"{name}.md", f"{name}/{INDEX}"] if name else [INDEX]
    return next((path for path in tried if path in files()), None)


@cache
def read(document: str) -> Written:
    return write(files()[document].read_text(encoding="utf-8"), document, files())


@cache
def listed() -> tuple[Listed, ...]:
    """Return the documents in the order of the index."""
    return tuple(links_of(files()[INDEX].read_text(encoding="utf-8")))


def document_page(document: str, written: Written, listed: Sequence[Listed]) -> DocumentPage:
    order = [INDEX, *(each.document for each in listed)]
    # Before the index and after the last document there is none.
    padded = (None, *listed, None)
    at = order.index(document) if document in order else None
    is_long = document != INDEX and len(written.headings) >= _FEWEST_HEADINGS
    return DocumentPage(
        title=written.title,
        document=document,
        body=written.body,
        contents=written.headings if is_long else (),
        groups=tuple((name, tuple(of)) for name, of in groupby(listed, lambda each: each.group)),
        before=None if at is None else padded[at - 1],
        after=None if at is None else padded[at + 1],
        is_index=document == INDEX,
    )


def _page(name: str) -> Response:
    document = document_called(name)
    if document is None:
        raise _not_found(name)
    return render("document.html", document_page(document, read(document), listed()))


def _not_found(name: str) -> NotFound:
    if INDEX in files():
        message = f"there is no document {shorten(name)}; {ROOT} lists all of them"
    else:
        message = f"this installation has no documents; they are at {REPOSITORY}docs/{INDEX}"
    return NotFound("document_not_found", message, {"document": str(shorten(name))})
