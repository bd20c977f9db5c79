"""Runs deleted from the pages, and brought back: plain forms, and the page of a run that is deleted.

`DELETE /api/v1/runs/{run}` removes one at once; this does not (`store/maintenance/run_deletion.py`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from ...errors import InvalidField, NotFound
from ...store.maintenance import run_deletion
from ..forms import Boxes
from ..rendering import number_formats
from ..rendering.templating import render
from ..services import Services, Use
from .view import shown_again

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class DeletedPage:
    """``/runs/{run}`` of a run that is deleted and not yet removed."""

    title: str
    id: str
    name: str
    deleted_at: str
    deleted: str
    until_at: str
    until: str
    running: bool


@router.post("/deletions")
def delete(form: Boxes, use: Use) -> Response:
    """``pick``: the runs; ``view``: what the list showed, which is where it leads back to."""
    picked = form.get("pick", [])
    if not picked:
        raise InvalidField("pick", None, "pick at least one run in the list")
    now = time.time()
    shown = shown_again(_one(form, "view"))
    number = run_deletion.mark(use.engine, picked, now)
    return RedirectResponse(shown.href(deleted=repr(now)) if number else shown.href(), 303)


@router.post("/deletions/undo")
def undo(form: Boxes, use: Use) -> Response:
    """``run`` or ``pick``: these runs, or ``deleted``: those deleted at that moment. ``view`` as above."""
    alone, picked = form.get("run", []), form.get("pick", [])
    if not (alone or picked or "deleted" in form):
        raise InvalidField("pick", None, "pick at least one run in the list")
    known = alone or picked or [each.run_id for each in run_deletion.at(use.engine, _moment(form))]
    if not run_deletion.undo(use.engine, known):
        raise NotFound(
            "deletion_is_over",
            f"{run_deletion.GRACE_SECONDS / 60:.0f} minutes are over, or somebody else has brought them "
            "back: see the list",
        )
    if len(alone) == 1:
        return RedirectResponse(f"/runs/{quote(alone[0], safe='')}", 303)
    return RedirectResponse(shown_again(_one(form, "view")).href(), 303)


def deleted_run(use: Services, run_id: str) -> Response | None:
    """What stands in for the page of a run that is deleted."""
    found = run_deletion.find(use.engine, run_id)
    if found is None:
        return None
    deleted, until = (
        number_formats.moment(found.deleted_at),
        number_formats.moment(found.removed_at),
    )
    page = DeletedPage(
        title=f"{found.name} is deleted",
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
        raise InvalidField("deleted", text, "must be the moment that the page names")
    return found
