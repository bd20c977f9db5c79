"""``/``: the list of runs, searched, grouped and sorted as its address says."""

from __future__ import annotations

import math
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field
from starlette.responses import Response

from ...limits import MAX_QUERY_LENGTH
from ...store.maintenance import run_deletion
from ...store.runs import runs
from ...text_cleaning import without_control
from ..rendering.templating import render
from ..search_query import parse_query
from ..services import Services, Use, address_of
from .view import runs_page, shown_of

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

RUNS_PER_PAGE: Final = 50
Asked = Annotated[str | None, Field(max_length=MAX_QUERY_LENGTH)]


@router.head("/")
@router.get("/")
def list_page(
    request: Request,
    use: Use,
    q: Annotated[str, Field(max_length=MAX_QUERY_LENGTH)] = "",
    group: Asked = None,
    sort: Asked = None,
    cursor: Asked = None,
    deleted: Asked = None,
) -> Response:
    """``deleted``: the moment at which runs were deleted that may be brought back."""
    shown = shown_of(without_control(q).strip(), group, sort)
    wanted = runs.RunFilter(
        **parse_query(shown.query), limit=RUNS_PER_PAGE, cursor=cursor, order=shown.order
    )
    try:
        found = runs.list_runs(use.engine, wanted)
    except runs.BadCursor:
        return RedirectResponse(shown.href(), 303)
    waiting = run_deletion.count(use.engine)
    page = runs_page(
        found["items"],
        shown,
        found["next"],
        address_of(request, use),
        _deleted_at(use, deleted) if waiting else (),
        waiting,
        any_runs=bool(found["items"] or shown.query or cursor or waiting),
    )
    return render("runs.html", page)


def _deleted_at(use: Services, moment: str | None) -> list[run_deletion.Deleted]:
    try:
        at = float(moment or "nan")
    except ValueError:
        return []
    return run_deletion.at(use.engine, at) if math.isfinite(at) else []
