"""``/incidents``: all leaks over all runs, with plain forms to say something of each."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field
from starlette.responses import Response

from ..errors import InvalidField
from ..limits import MAX_QUERY_LENGTH, MAX_REASON_LENGTH
from ..store import incident_groups, runs
from ..store.acknowledgements import Kind
from ..texts import without_control
from . import incident_actions
from .forms import Form
from .incident_schemas import Fingerprint
from .incidents_api import states_of
from .incidents_view import EXPIRIES, Shown, incidents_page
from .services import Services, Use
from .templating import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

LEAKS_PER_PAGE: Final = 25
# Growth that was never called a leak is shown to who asks for it.
LEAKS: Final = tuple(state for state in incident_groups.STATES if state != "watched")
Asked = Annotated[str | None, Field(max_length=MAX_QUERY_LENGTH)]


@router.head("/incidents")
@router.get("/incidents")
def list_page(
    use: Use,
    status: Asked = None,
    project: Asked = None,
    fingerprint: Asked = None,
    cursor: Asked = None,
) -> Response:
    shown = Shown(_given(status), _given(project), _given(fingerprint))
    now = time.time()
    states = states_of(shown.state) or (() if shown.fingerprint else LEAKS)
    wanted = incident_groups.GroupFilter(
        now, shown.project, states, shown.fingerprint, LEAKS_PER_PAGE, cursor
    )
    try:
        found = incident_groups.list_groups(use.engine, wanted)
    except runs.BadCursor:
        return RedirectResponse(shown.href(), 303)
    counts = incident_groups.counts_by_state(use.engine, now, shown.project)
    page = incidents_page(found["items"], shown, counts, runs.projects(use.engine), found["next"])
    return render("incidents.html", page)


@router.post("/incidents/{fingerprint}/acknowledge")
def acknowledge(fingerprint: Fingerprint, form: Form, use: Use) -> Response:
    return _say(use, fingerprint, form, "acknowledged")


@router.post("/incidents/{fingerprint}/ignore")
def ignore(fingerprint: Fingerprint, form: Form, use: Use) -> Response:
    return _say(use, fingerprint, form, "ignored")


@router.post("/incidents/{fingerprint}/close")
def close(fingerprint: Fingerprint, form: Form, use: Use) -> Response:
    return _say(use, fingerprint, form, "closed")


@router.post("/incidents/{fingerprint}/take-back")
def take_back(fingerprint: Fingerprint, form: Form, use: Use) -> Response:
    kinds: dict[str, Kind] = {
        "acknowledged": "acknowledged", "ignored": "ignored", "closed": "closed",
    }  # fmt: skip
    kind = kinds.get(form.get("kind", ""))
    if kind is None:
        raise InvalidField("kind", form.get("kind"), f"must be one of {', '.join(kinds)}")
    project = _project(form)
    incident_actions.take_back(use, project, fingerprint, kind)
    return _to_leak(project, fingerprint)


def _say(use: Services, fingerprint: str, form: dict[str, str], kind: Kind) -> Response:
    project, reason = _project(form), form.get("reason", "")
    if len(reason) > MAX_REASON_LENGTH:
        raise InvalidField("reason", reason, f"has more than {MAX_REASON_LENGTH} characters")
    seconds = form.get("expires", "")
    if seconds not in [known for known, _ in EXPIRIES]:
        raise InvalidField("expires", seconds, "must be one of the choices of the page")
    expires_at = time.time() + int(seconds) if seconds else None
    incident_actions.say(use, project, fingerprint, kind, reason, expires_at)
    return _to_leak(project, fingerprint)


def _to_leak(project: str, fingerprint: str) -> Response:
    # Alone on its page, because it may not be in the list that was shown any more.
    return RedirectResponse(Shown(project=project, fingerprint=fingerprint).href(), 303)


def _project(form: dict[str, str]) -> str:
    project = form.get("project")
    if project is None:
        raise InvalidField("project", None, "is missing")
    return project


def _given(value: str | None) -> str | None:
    """A field that a form left empty was not asked for."""
    return without_control(value or "") or None
