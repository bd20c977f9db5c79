"""Leaks over all runs in the JSON API, and what people say of them."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from ..errors import InvalidField
from ..store import incident_groups, runs
from ..store.acknowledgements import Kind
from . import incident_actions, schemas
from .bodies import described, json_body
from .incident_schemas import Acknowledging, Closing, Fingerprint, Leak, Leaks
from .incidents_view import with_sentence
from .json_response import json_response
from .read_api import Limit, Text
from .schemas import Name
from .services import Services, Use

router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"])

_INVALID: Final[dict[int | str, dict[str, Any]]] = {
    422: {"model": schemas.Error, "description": "a field is wrong: named, with its value"},
}
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    **_INVALID,
    404: {"model": schemas.Error, "description": "no such incident in that project"},
}
_BODY: Final[dict[int | str, dict[str, Any]]] = {
    **_ERRORS,
    400: {"model": schemas.Error, "description": "not JSON"},
    503: {"model": schemas.Error, "description": "the database does not take writes"},
}
Project = Annotated[Name, Query()]


def _answer(model: Any, errors: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
    return {"response_model": None, "responses": {200: {"model": model}, **errors}}


@router.get("", summary="Incidents over all runs, newest change first", **_answer(Leaks, _INVALID))
def list_leaks(
    use: Use,
    project: Text = None,
    status: Text = None,
    limit: Limit = 50,
    cursor: Text = None,
) -> Response:
    """`status` is one of open, acknowledged, ignored, closed, over, watched."""
    wanted = incident_groups.GroupFilter(
        time.time(), project, states_of(status), limit=limit, cursor=cursor
    )
    try:
        found = incident_groups.list_groups(use.engine, wanted)
    except runs.BadCursor as error:
        raise InvalidField(
            "cursor", cursor, "must be the value of next from an earlier answer"
        ) from error
    items = [with_sentence(group) for group in found["items"]]
    return json_response({"items": items, "next": found["next"]})


@router.get("/{fingerprint}", summary="One leak over all runs", **_answer(Leak, _ERRORS))
def get_leak(fingerprint: Fingerprint, project: Project, use: Use) -> Response:
    return json_response(incident_actions.get(use, project, fingerprint))


@router.post(
    "/{fingerprint}/acknowledge",
    summary="Tell nothing more of a leak until it expires or gets worse",
    openapi_extra=described(Acknowledging),
    **_answer(Leak, _BODY),
)
def acknowledge(
    fingerprint: Fingerprint, body: Annotated[Acknowledging, json_body(Acknowledging)], use: Use
) -> Response:
    return _say(use, fingerprint, "acknowledged", body)


@router.post(
    "/{fingerprint}/ignore",
    summary="Never tell of a leak",
    openapi_extra=described(Acknowledging),
    **_answer(Leak, _BODY),
)
def ignore(
    fingerprint: Fingerprint, body: Annotated[Acknowledging, json_body(Acknowledging)], use: Use
) -> Response:
    return _say(use, fingerprint, "ignored", body)


@router.post(
    "/{fingerprint}/close",
    summary="Close a leak with a note, which is told when it comes back",
    openapi_extra=described(Closing),
    **_answer(Leak, _BODY),
)
def close(
    fingerprint: Fingerprint, body: Annotated[Closing, json_body(Closing)], use: Use
) -> Response:
    said = incident_actions.say(use, body.project, fingerprint, "closed", body.reason)
    return json_response(said)


@router.delete(
    "/{fingerprint}/acknowledge",
    summary="Take an acknowledgement back",
    **_answer(Leak, _ERRORS),
)
def take_back_acknowledgement(fingerprint: Fingerprint, project: Project, use: Use) -> Response:
    return json_response(incident_actions.take_back(use, project, fingerprint, "acknowledged"))


@router.delete("/{fingerprint}/ignore", summary="Ignore no more", **_answer(Leak, _ERRORS))
def take_back_ignoring(fingerprint: Fingerprint, project: Project, use: Use) -> Response:
    return json_response(incident_actions.take_back(use, project, fingerprint, "ignored"))


@router.delete("/{fingerprint}/close", summary="Open a leak again", **_answer(Leak, _ERRORS))
def take_back_closing(fingerprint: Fingerprint, project: Project, use: Use) -> Response:
    return json_response(incident_actions.take_back(use, project, fingerprint, "closed"))


def states_of(status: str | None) -> tuple[str, ...]:
    """What to list. Raises InvalidField."""
    if status is None:
        return ()
    if status not in incident_groups.STATES:
        known = ", ".join(incident_groups.STATES)
        raise InvalidField("status", status, f"must be one of {known}")
    return (status,)


def _say(use: Services, fingerprint: str, kind: Kind, body: Acknowledging) -> Response:
    expires_at = body.expires_at
    if body.expires_in_seconds is not None:
        if expires_at is not None:
            raise InvalidField(
                "expires_at", expires_at, "give expires_at or expires_in_seconds, not both"
            )
        expires_at = time.time() + body.expires_in_seconds
    said = incident_actions.say(
        use, body.project, fingerprint, kind, body.reason, expires_at=expires_at
    )
    return json_response(said)
