"""Leaks across runs and their acknowledgements: JSON API, the ``/incidents`` page and its forms."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response

from ...errors import InvalidField, NotFound, shorten
from ...limits import (
    MAX_FINGERPRINT_LENGTH,
    MAX_QUERY_LENGTH,
    MAX_REASON_LENGTH,
    MAX_SNOOZE_SECONDS,
)
from ...store import incident_groups
from ...store.engine import writing
from ...store.incident_groups import Acknowledgement, Kind
from ...store.runs import runs
from ...text_cleaning import without_control
from .. import api_schemas
from ..api_schemas import Name, Strict, UnixSeconds
from ..auth.middleware import is_run_page
from ..auth.permissions import CHANGE, READ
from ..rendering.templating import render
from ..request_bodies import Form, described, json_body
from ..responses import json_response
from ..run_page.verdict_view import EXPIRIES
from ..runs.api import Limit, Text
from ..services import Services, Use
from .view import Shown, incidents_page, with_sentence

router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"], dependencies=[READ])
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

LEAKS_PER_PAGE: Final = 25
# Growth that was never classified as a leak is listed only on request.
LEAKS: Final = tuple(state for state in incident_groups.STATES if state != "watched")
_INVALID: Final[dict[int | str, dict[str, Any]]] = {
    422: {
        "model": api_schemas.Error,
        "description": "a field is invalid; the error names the field and its value",
    },
}
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    **_INVALID,
    404: {"model": api_schemas.Error, "description": "no such incident in that project"},
}
_BODY: Final[dict[int | str, dict[str, Any]]] = {
    **_ERRORS,
    400: {"model": api_schemas.Error, "description": "not JSON"},
    503: {"model": api_schemas.Error, "description": "the database does not accept writes"},
}

Fingerprint = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_FINGERPRINT_LENGTH, pattern=r"^[0-9A-Za-z][0-9A-Za-z_.:-]*$"
    ),
]
Reason = Annotated[
    str,
    AfterValidator(lambda text: without_control(text).strip()),
    Field(max_length=MAX_REASON_LENGTH),
]
Seconds = Annotated[float, Field(gt=0, le=MAX_SNOOZE_SECONDS, allow_inf_nan=False)]
Project = Annotated[Name, Query()]
Asked = Annotated[str | None, Field(max_length=MAX_QUERY_LENGTH)]


class Closing(Strict):
    """A request to close a leak. `reason` is the note shown if the leak returns in a later run."""

    model_config = ConfigDict(strict=True, extra="forbid")

    project: Name
    reason: Reason = ""


class Acknowledging(Closing):
    """A request to mute a leak until `expires_at` (Unix seconds) or for `expires_in_seconds`. If
    neither is given, the leak stays muted until the acknowledgement is revoked.
    """

    expires_in_seconds: Seconds | None = None
    expires_at: UnixSeconds | None = None


class Acknowledged(BaseModel):
    """An acknowledgement that is in force."""

    kind: Kind
    reason: str
    created_at: str
    expires_at: str | None


class IncidentRun(BaseModel):
    """A run with the leak; `reopened` is true if the run began after the leak was closed."""

    run: str
    name: str
    unit: str
    url: str
    status: str
    summary: str
    first_seen_at: str
    changed_at: str
    reopened: bool


class Leak(BaseModel):
    """All incidents of a project with the same fingerprint; `runs` lists the newest runs, oldest first."""

    project: str
    fingerprint: str
    state: Literal["open", "acknowledged", "ignored", "closed", "over", "watched"]
    kind: str
    phase: str | None
    priority: str
    summary: str
    sentence: str
    first_seen_at: str
    changed_at: str
    runs_total: int
    runs: list[IncidentRun]
    acknowledgements: list[Acknowledged]
    finding: dict[str, Any]


class Leaks(BaseModel):
    items: list[Leak]
    next: str | None


def _answer(model: Any, errors: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
    return {"response_model": None, "responses": {200: {"model": model}, **errors}}


@router.get(
    "", summary="Incidents across all runs, newest change first", **_answer(Leaks, _INVALID)
)
def list_leaks(
    use: Use,
    project: Text = None,
    status: Text = None,
    limit: Limit = 50,
    cursor: Text = None,
) -> Response:
    """`status` is one of open, acknowledged, ignored, closed, over, watched."""
    wanted = incident_groups.GroupFilter(
        time.time(), project, _states_of(status), limit=limit, cursor=cursor
    )
    try:
        found = incident_groups.list_groups(use.engine, wanted)
    except runs.BadCursor as error:
        raise InvalidField(
            "cursor", cursor, "must be the value of next from an earlier response"
        ) from error
    items = [with_sentence(group) for group in found["items"]]
    return json_response({"items": items, "next": found["next"]})


@router.get("/{fingerprint}", summary="One leak across all runs", **_answer(Leak, _ERRORS))
def get_leak(fingerprint: Fingerprint, project: Project, use: Use) -> Response:
    found = incident_groups.get_group(use.engine, project, fingerprint, time.time())
    if found is None:
        raise _unknown(project, fingerprint)
    return json_response(with_sentence(found))


# Last part of the path -> (kind, body model, summary, name and summary of the route that revokes it).
_ACTIONS: Final[dict[str, tuple[Kind, type[Closing], str, str, str]]] = {
    "acknowledge": (
        "acknowledged", Acknowledging, "Mute a leak until the acknowledgement expires or the leak gets worse",
        "take_back_acknowledgement", "Revoke an acknowledgement",
    ),
    "ignore": (
        "ignored", Acknowledging, "Mute a leak for good", "take_back_ignoring", "Stop ignoring a leak",
    ),
    "close": (
        "closed", Closing, "Close a leak with a note that is shown if the leak returns",
        "take_back_closing", "Reopen a leak",
    ),
}  # fmt: skip


def _add_routes(action: str) -> None:
    kind, model, summary, name_back, summary_back = _ACTIONS[action]
    path, sent = f"/{{fingerprint}}/{action}", json_body(model)

    @router.post(
        path,
        name=action,
        summary=summary,
        dependencies=[CHANGE],
        openapi_extra=described(model),
        **_answer(Leak, _BODY),
    )
    def say_it(fingerprint: Fingerprint, use: Use, body: Any = sent) -> Response:
        expires_at = _end_of(body) if isinstance(body, Acknowledging) else None
        if kind != "ignored":
            _check_reason(body.reason)
        say(use, body.project, fingerprint, kind, body.reason, expires_at)
        return get_leak(fingerprint, body.project, use)

    @router.delete(
        path, name=name_back, dependencies=[CHANGE], summary=summary_back, **_answer(Leak, _ERRORS)
    )
    def take_it_back(fingerprint: Fingerprint, project: Project, use: Use) -> Response:
        take_back(use, project, fingerprint, kind)
        return get_leak(fingerprint, project, use)


for _action in _ACTIONS:
    _add_routes(_action)


@pages.head("/incidents")
@pages.get("/incidents")
def list_page(
    use: Use,
    status: Asked = None,
    project: Asked = None,
    fingerprint: Asked = None,
    cursor: Asked = None,
) -> Response:
    shown = Shown(_given(status), _given(project), _given(fingerprint))
    now = time.time()
    states = _states_of(shown.state) or (() if shown.fingerprint else LEAKS)
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


@pages.post("/incidents/{fingerprint}/take-back", dependencies=[CHANGE])
def take_back_form(fingerprint: Fingerprint, form: Form, use: Use) -> Response:
    kinds: dict[str, Kind] = {kind: kind for kind, *_ in _ACTIONS.values()}
    kind = kinds.get(form.get("kind", ""))
    if kind is None:
        raise InvalidField("kind", form.get("kind"), f"must be one of {', '.join(kinds)}")
    project, back = _project(form), _back(form, fingerprint)
    take_back(use, project, fingerprint, kind)
    return back


@pages.post("/incidents/{fingerprint}/{action}", dependencies=[CHANGE])
def say_form(
    fingerprint: Fingerprint,
    action: Literal["acknowledge", "ignore", "close"],
    form: Form,
    use: Use,
) -> Response:
    """Acknowledge a leak. Only closing requires a reason, because others will read the reason."""
    project, reason, seconds = _project(form), form.get("reason", ""), form.get("expires", "")
    back = _back(form, fingerprint)
    if len(reason) > MAX_REASON_LENGTH:
        raise InvalidField("reason", reason, f"has more than {MAX_REASON_LENGTH} characters")
    if seconds not in [known for known, _ in EXPIRIES]:
        raise InvalidField("expires", seconds, "must be one of the choices on the page")
    if action == "close":
        _check_reason(reason)
    expires_at = time.time() + int(seconds) if seconds else None
    say(use, project, fingerprint, _ACTIONS[action][0], reason, expires_at)
    return back


def say(
    use: Services, project: str, fingerprint: str, kind: Kind, reason: str, expires_at: float | None
) -> None:
    """Store an acknowledgement of a leak. Raises NotFound and InvalidField."""
    now = time.time()
    if expires_at is not None and expires_at <= now:
        raise InvalidField("expires_at", expires_at, "is in the past; give a future time")
    with writing(use.engine) as connection:
        worst = incident_groups.worst_of(connection, project, fingerprint)
        if worst is None:
            raise _unknown(project, fingerprint)
        said = Acknowledgement(kind, reason, *worst, created_at=now, expires_at=expires_at)
        incident_groups.say(connection, project, fingerprint, said)


def take_back(use: Services, project: str, fingerprint: str, kind: Kind) -> None:
    """Revoke an acknowledgement. Raises NotFound if no acknowledgement of this kind is in force."""
    with writing(use.engine) as connection:
        if not incident_groups.end(connection, project, fingerprint, kind, time.time()):
            raise NotFound(
                "nothing_to_take_back",
                f"leak {shorten(fingerprint)} of project {shorten(project)} is not {kind}",
                {"project": shorten(project), "fingerprint": shorten(fingerprint)},
            )


def _end_of(body: Acknowledging) -> float | None:
    if body.expires_in_seconds is None:
        return body.expires_at
    if body.expires_at is not None:
        raise InvalidField(
            "expires_at", body.expires_at, "give expires_at or expires_in_seconds, not both"
        )
    return time.time() + body.expires_in_seconds


def _states_of(status: str | None) -> tuple[str, ...]:
    """Return the states to list, or () for all states. Raises InvalidField."""
    if status is None:
        return ()
    if status not in incident_groups.STATES:
        known = ", ".join(incident_groups.STATES)
        raise InvalidField("status", status, f"must be one of {known}")
    return (status,)


def _unknown(project: str, fingerprint: str) -> NotFound:
    return NotFound(
        "incident_not_found",
        f"no run of project {shorten(project)} has an incident {shorten(fingerprint)}; "
        "GET /api/v1/incidents lists all incidents",
        {"project": shorten(project), "fingerprint": shorten(fingerprint)},
    )


def _check_reason(reason: str) -> None:
    if not reason:
        raise InvalidField(
            "reason", reason, "must give a reason in a few words, because others will read it"
        )


def _back(form: dict[str, str], fingerprint: str) -> Response:
    """Redirect to the run page that contained the form or, by default, to the leak's page.

    Raises InvalidField if ``back`` is not the address of a run page.
    """
    back = form.get("back")
    if back is None:
        # Show only this leak, because the list that was shown may no longer contain it.
        return RedirectResponse(Shown(project=_project(form), fingerprint=fingerprint).href(), 303)
    if not is_run_page(back):
        raise InvalidField("back", back, "must be the path of a run's page, without the server")
    return RedirectResponse(f"{back}#findings", 303)


def _project(form: dict[str, str]) -> str:
    project = form.get("project")
    if project is None:
        raise InvalidField("project", None, "is missing")
    return project


def _given(value: str | None) -> str | None:
    """Return a form field without control characters, or None if the field is empty."""
    return without_control(value or "") or None
