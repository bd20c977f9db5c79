"""The list of runs at ``/`` (searched, grouped, sorted), the redirect from ``/runs``, and deletion.

Runs are deleted and restored with plain forms, and a deleted run has its own page. `DELETE
/api/v1/runs/{run}` removes a run immediately; the form at first only marks the run as deleted (see
`store/maintenance/run_deletion.py`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field
from starlette.responses import Response

from ...errors import InvalidField, NotFound
from ...limits import MAX_QUERY_LENGTH
from ...store.maintenance import run_deletion
from ...store.runs import runs
from ...text_cleaning import without_control
from ..auth.permissions import CHANGE, READ
from ..rendering import number_formats
from ..rendering.templating import render
from ..request_bodies import Boxes
from ..search_query import parse_query
from ..services import Services, Use, address_of
from .view import runs_page, shown_again, shown_of

router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ]
)

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
    """Show the list; ``deleted`` is the time of a deletion that can be undone."""
    shown = shown_of(without_control(q).strip(), group, sort)
    search = parse_query(shown.query, time.time())
    wanted = runs.RunFilter(**search.filters, limit=RUNS_PER_PAGE, cursor=cursor, order=shown.order)
    try:
        found = runs.list_runs(use.engine, wanted)
    except runs.BadCursor:
        return RedirectResponse(shown.href(), 303)
    waiting = run_deletion.count(use.engine)
    page = runs_page(
        found["items"],
        shown,
        found["next"],
        runs.count_by_status(use.engine, wanted),
        search.problems,
        address_of(request, use),
        _deleted_at(use, deleted) if waiting else (),
        waiting,
        any_runs=bool(found["items"] or shown.query or cursor or waiting),
    )
    return render("runs.html", page)


@router.head("/runs")
@router.get("/runs")
def list_of_runs(request: Request) -> Response:
    """Redirect to the list of runs, because people may shorten a run's address to ``/runs``."""
    query = request.url.query
    return RedirectResponse(f"/?{query}" if query else "/", 303)


def _deleted_at(use: Services, moment: str | None) -> list[run_deletion.Deleted]:
    try:
        at = float(moment or "nan")
    except ValueError:
        return []
    return run_deletion.at(use.engine, at) if math.isfinite(at) else []


@dataclass(frozen=True, slots=True)
class DeletedPage:
    """The template context of ``/runs/{run}`` for a run that is deleted but not yet removed."""

    title: str
    id: str
    name: str
    deleted_at: str
    deleted: str
    until_at: str
    until: str
    running: bool


@router.post("/deletions", dependencies=[CHANGE])
def delete(form: Boxes, use: Use) -> Response:
    """Delete the runs in ``pick``, and redirect to the list that ``view`` describes."""
    picked = form.get("pick", [])
    if not picked:
        raise InvalidField("pick", None, "select at least one run in the list")
    now = time.time()
    shown = shown_again(_one(form, "view"))
    number = run_deletion.mark(use.engine, picked, now)
    return RedirectResponse(shown.href(deleted=repr(now)) if number else shown.href(), 303)


@router.post("/deletions/undo", dependencies=[CHANGE])
def undo(form: Boxes, use: Use) -> Response:
    """Restore the runs in ``run`` or ``pick``, or all runs that were deleted at the time ``deleted``.

    ``view`` is the same as in `delete`.
    """
    alone, picked = form.get("run", []), form.get("pick", [])
    if not (alone or picked or "deleted" in form):
        raise InvalidField("pick", None, "select at least one run in the list")
    known = alone or picked or [each.run_id for each in run_deletion.at(use.engine, _moment(form))]
    if not run_deletion.undo(use.engine, known):
        raise NotFound(
            "deletion_is_over",
            f"the runs can no longer be restored: more than {run_deletion.GRACE_SECONDS / 60:.0f} minutes "
            "have passed, or somebody else has restored them; see the list of runs",
        )
    if len(alone) == 1:
        return RedirectResponse(f"/runs/{quote(alone[0], safe='')}", 303)
    return RedirectResponse(shown_again(_one(form, "view")).href(), 303)


def deleted_run(use: Services, run_id: str) -> Response | None:
    """Return the page that replaces a deleted run's page, or None if the run is not deleted."""
    found = run_deletion.find(use.engine, run_id)
    if found is None:
        return None
    deleted, until = (
        number_formats.moment(found.deleted_at),
        number_formats.moment(found.removed_at),
    )
    page = DeletedPage(
        title=f"{found.name} was deleted",
        id=found.run_id,
        name=found.name,
        deleted_at=deleted,
        deleted=number_formats.clock(deleted),
        until_at=until,
        until=number_formats.clock(until),
        running=found.state == "running",
    )
    return render("deleted.html", page)


def _one(form: dict[str, list[str]], name: str) -> str:
    return next(iter(form.get(name, ())), "")


def _moment(form: dict[str, list[str]]) -> float:
    text = _one(form, "deleted")
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidField(
            "deleted", text, "must be the time of the deletion, as given on the page"
        )
    return found
