"""Rules in the JSON API."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

from ..errors import InvalidField
from ..store import assertions
from ..store.assertions import Rule
from . import rule_actions, rule_schemas, schemas
from .bodies import described, json_body
from .json_response import json_response
from .read_api import Limit, Text
from .rule_schemas import NewRule, RuleChanges
from .schemas import RowId
from .services import Services, Use

router = APIRouter(prefix="/api/v1", tags=["rules"])

# As large as both databases hold.
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": schemas.Error, "description": "no such rule"},
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": schemas.Error, "description": "not JSON"},
    409: {"model": schemas.Error, "description": "a rule of the file, or there is one that says the same"},
    422: {"model": schemas.Error, "description": "a field is wrong: named, with its value"},
}  # fmt: skip


@router.get(
    "/rules",
    summary="List rules",
    response_model=None,
    responses={200: {"model": rule_schemas.Rules}, 422: _REFUSED[422]},
)
def list_rules(use: Use, limit: Limit = 50, cursor: Text = None) -> Response:
    found = assertions.list_rules(use.engine, limit + 1, _after(cursor))
    shown = found[:limit]
    more = str(shown[-1].id) if len(found) > limit else None
    return json_response({"items": rule_actions.to_json(use, shown), "next": more})


@router.post(
    "/rules",
    summary="Add a rule, or those of a preset",
    response_model=None,
    openapi_extra=described(NewRule),
    responses={
        201: {
            "model": rule_schemas.Rule | rule_schemas.Rules,
            "description": "added; a list where the preset has several rules",
        },
        **_REFUSED,
    },
)
def add_rule(body: Annotated[NewRule, json_body(NewRule)], use: Use) -> Response:
    added = rule_actions.add(use, body.model_dump(exclude_unset=True), "api")
    if len(added) == 1:
        return _answer(use, added[0], 201)
    return json_response({"items": rule_actions.to_json(use, added), "next": None}, 201)


@router.get(
    "/rules/presets",
    summary="Ready-made rules",
    response_model=None,
    responses={200: {"model": rule_schemas.Presets}},
)
def list_presets() -> Response:
    return json_response({"items": rule_actions.presets_to_json(), "next": None})


@router.api_route("/rules/presets", methods=["PATCH", "DELETE"], include_in_schema=False)
def change_presets() -> Response:
    """Or it would be taken for a rule by that name."""
    raise HTTPException(405)


@router.get(
    "/rules/{rule}",
    summary="One rule, and where it fires",
    response_model=None,
    responses={200: {"model": rule_schemas.Rule}, **_NOT_FOUND},
)
def get_rule(rule: RowId, use: Use) -> Response:
    return _answer(use, rule_actions.get(use, rule))


@router.patch(
    "/rules/{rule}",
    summary="Change a rule",
    response_model=None,
    openapi_extra=described(RuleChanges),
    responses={200: {"model": rule_schemas.Rule}, **_NOT_FOUND, **_REFUSED},
)
def change_rule(
    rule: RowId, body: Annotated[RuleChanges, json_body(RuleChanges)], use: Use
) -> Response:
    """A rule that is about something else then, or is disabled, forgets where it fired."""
    return _answer(use, rule_actions.change(use, rule, body.model_dump(exclude_unset=True)))


@router.delete(
    "/rules/{rule}",
    summary="Delete a rule",
    response_model=None,
    status_code=204,
    responses={**_NOT_FOUND, 409: _REFUSED[409]},
)
def delete_rule(rule: RowId, use: Use) -> Response:
    """What it told stays; that it is over is not told."""
    rule_actions.remove(use, rule)
    return Response(status_code=204)


def _answer(use: Services, rule: Rule, status: int = 200) -> Response:
    return json_response(rule_actions.to_json(use, [rule])[0], status)


def _after(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidField("cursor", cursor, "must be the value of next from an earlier answer")
    return int(cursor)
