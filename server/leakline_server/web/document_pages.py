"""``/docs``: the documents of this very version, rendered here, with nothing of another host."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.responses import Response

from ..errors import NotFound, shorten
from . import documents
from .documents_view import document_page
from .markdown import INDEX, REPOSITORY, ROOT, address_of
from .templating import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.head(ROOT)
@router.get(ROOT)
def show_index() -> Response:
    return _page("")


@router.head(ROOT + "/{name:path}")
@router.get(ROOT + "/{name:path}")
def show_document(name: str) -> Response:
    file = documents.file_of(name)
    if file is not None:
        headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
        return FileResponse(file, media_type=documents.MEDIA[file.suffix], headers=headers)
    plain = name.rstrip("/")
    if plain in documents.kept().documents:
        # As the file is called, and as its links are written.
        return RedirectResponse(address_of(plain), status_code=308)
    if (plain != name or not name) and documents.document_called(plain):
        return RedirectResponse(f"{ROOT}/{plain}".rstrip("/"), status_code=308)
    return _page(name)


def _page(name: str) -> Response:
    document = documents.document_called(name)
    if document is None:
        raise _not_found(name)
    page = document_page(document, documents.read(document), documents.listed())
    return render("document.html", page)


def _not_found(name: str) -> NotFound:
    if INDEX not in documents.kept().documents:
        message = (
            f"this installation came without its documents; they are at {REPOSITORY}docs/{INDEX}"
        )
    else:
        message = f"there is no document {shorten(name)}; {ROOT} lists all of them"
    return NotFound("document_not_found", message, {"document": str(shorten(name))})
