"""Alert rules: the JSON API, and the forms on the page ``/alerts``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from starlette.responses import Response

from ...alerts.rules.rule_fields import (
    NewRule,
    RuleChanges,
    WrongField,
    changed_rule,
    check_fields,
    new_rules,
)
from ...alerts.rules.rule_presets import SETS
from ...errors import Conflict, InvalidField, NotFound, RequestRefused
from ...store.alerts import assertions
from ...store.alerts.assertions import FILE, Measure, Source
from ...store.runs.runs import iso
from .. import api_schemas
from ..alerts.pages import alerts_response, back
from ..api_schemas import RowId
from ..auth.permissions import CHANGE, READ
from ..request_bodies import Form, described, json_body
from ..responses import json_response
from ..runs.api import Limit, Text
from ..services import Services, Use
from .view import FORM_FIELDS, Refused

router = APIRouter(prefix="/api/v1", tags=["rules"], dependencies=[READ])
# Forms on ``/alerts``, which work without scripts. A rejected form is shown again as sent.
pages = APIRouter(
    prefix="/alerts/rules",
    include_in_schema=False,
    default_response_class=HTMLResponse,
    dependencies=[CHANGE],
)


class FiringRun(BaseModel):
    """A run where the rule is firing, with the generation and value when the rule fired."""

    run: str
    project: str
    name: str
    generation: int | None
    value: float | None
    since: str


class RuleTerms(BaseModel):
    name: str
    series: str | None
    measure: Measure
    above: float | None
    below: float | None
    hold: int
    grace: int
    advice: str


class Rule(RuleTerms):
    """An alert rule. `source` is api, page or file; rules from the file are changed in the file."""

    id: int
    project: str | None
    run: str | None
    enabled: bool
    source: str
    created_at: str
    firing: list[FiringRun]


class Rules(BaseModel):
    items: list[Rule]
    next: str | None


class PresetRule(RuleTerms):
    preset: str


class PresetSet(BaseModel):
    """A set of ready-made rules; adding its `preset` adds all of its rules."""

    preset: str
    title: str
    about: str
    rules: list[PresetRule]


class Presets(BaseModel):
    items: list[PresetSet]
    next: None = None


_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": api_schemas.Error, "description": "no such rule"},
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": api_schemas.Error, "description": "not JSON"},
    409: {"model": api_schemas.Error, "description": "the rule comes from the file, or an identical rule exists"},
    422: {"model": api_schemas.Error, "description": "a field is invalid; the error names the field and its value"},
}  # fmt: skip


@router.get(
    "/rules",
    summary="List rules",
    response_model=None,
    responses={200: {"model": Rules}, 422: _REFUSED[422]},
)
def list_rules(use: Use, limit: Limit = 50, cursor: Text = None) -> Response:
    found = assertions.list_rules(use.engine, limit + 1, _after(cursor))
    more = str(found[limit - 1].id) if len(found) > limit else None
    return json_response({"items": _to_json(use, found[:limit]), "next": more})


@router.post(
    "/rules",
    dependencies=[CHANGE],
    summary="Add a rule or a preset's rules",
    response_model=None,
    openapi_extra=described(NewRule),
    responses={
        201: {"model": Rule | Rules, "description": "added; a list if the preset has several rules"},
        **_REFUSED,
    },
)  # fmt: skip
def add_rule(body: Annotated[NewRule, json_body(NewRule)], use: Use) -> Response:
    added = _to_json(use, add(use, body, "api"))
    return json_response(added[0] if len(added) == 1 else {"items": added, "next": None}, 201)


@router.get(
    "/rules/presets",
    summary="Ready-made rules",
    response_model=None,
    responses={200: {"model": Presets}},
)
def list_presets() -> Response:
    items = [
        {
            "preset": name,
            "title": preset.title,
            "about": preset.about,
            "rules": [
                {"preset": each, **{field: getattr(rule, field) for field in RuleTerms.model_fields}}
                for each, rule in preset.rules.items()
            ],
        }
        for name, preset in SETS.items()
    ]  # fmt: skip
    return json_response({"items": items, "next": None})


@router.api_route(
    "/rules/presets", dependencies=[CHANGE], methods=["PATCH", "DELETE"], include_in_schema=False
)
def change_presets() -> Response:
    """Return 405; otherwise "presets" would be parsed as a rule id."""
    raise HTTPException(405)


@router.get(
    "/rules/{rule}",
    summary="One rule, and the runs where it fires",
    response_model=None,
    responses={200: {"model": Rule}, **_NOT_FOUND},
)
def get_rule(rule: RowId, use: Use) -> Response:
    return json_response(_to_json(use, [_found(use, rule)])[0])


@router.patch(
    "/rules/{rule}",
    dependencies=[CHANGE],
    summary="Change a rule",
    response_model=None,
    openapi_extra=described(RuleChanges),
    responses={200: {"model": Rule}, **_NOT_FOUND, **_REFUSED},
)
def change_rule(
    rule: RowId, body: Annotated[RuleChanges, json_body(RuleChanges)], use: Use
) -> Response:
    """If the rule is disabled, or its condition or scope changes, its firing state is cleared."""
    change(use, rule, body)
    return get_rule(rule, use)


@router.delete(
    "/rules/{rule}",
    dependencies=[CHANGE],
    summary="Delete a rule",
    response_model=None,
    status_code=204,
    responses={**_NOT_FOUND, 409: _REFUSED[409]},
)
def delete_rule(rule: RowId, use: Use) -> Response:
    """Alerts already sent are kept; no alert reports the deletion."""
    remove(use, rule)
    return Response(status_code=204)


@pages.post("")
def add_form(form: Form, use: Use) -> Response:
    if "preset" in form:
        given: dict[str, Any] = {n: form[n] for n in ("preset", "project") if n in form}
    else:
        given = _fields(form)
    try:
        added = add(use, given, "page")
    except RequestRefused as error:
        refused = Refused(None, form, error.message)
        return alerts_response(use, status=error.status, refused=refused)
    return back(f"rule-{added[0].id}")


@pages.post("/{rule}")
def change_form(rule: RowId, form: Form, use: Use) -> Response:
    try:
        change(use, rule, _fields(form))
    except RequestRefused as error:
        refused = Refused(rule, form, error.message)
        return alerts_response(use, status=error.status, refused=refused)
    return back(f"rule-{rule}")


@pages.post("/{rule}/delete")
def delete_form(rule: RowId, use: Use) -> Response:
    remove(use, rule)
    return back("rules")


@pages.post("/{rule}/{step}")
def switch_form(rule: RowId, step: Literal["pause", "resume"], use: Use) -> Response:
    change(use, rule, {"enabled": step == "resume"})
    return back(f"rule-{rule}")


def add(use: Services, given: NewRule | Mapping[str, Any], source: Source) -> list[assertions.Rule]:
    with _refused():
        new = new_rules(check_fields(NewRule, given))
        return assertions.add_rules(use.engine, new, source, time.time())


def change(use: Services, rule_id: int, given: RuleChanges | Mapping[str, Any]) -> None:
    before = _of_people(_found(use, rule_id))
    with _refused():
        changed = changed_rule(before, check_fields(RuleChanges, given))
        if assertions.change_rule(use.engine, rule_id, changed) is None:
            # The rule was deleted in the meantime.
            raise _not_found(rule_id)


def remove(use: Services, rule_id: int) -> None:
    _of_people(_found(use, rule_id))
    assertions.remove_rule(use.engine, rule_id)


def _fields(form: dict[str, str]) -> dict[str, Any]:
    """Return all fields of the form; blank fields get their default or None."""
    given: dict[str, Any] = {name: form.get(name) for name in FORM_FIELDS}
    for name in ("measure", "hold", "grace", "advice"):
        given[name] = form.get(name) or RuleChanges.model_fields[name].default
    for name in ("hold", "grace"):
        text = str(given[name])
        given[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
    return given


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except WrongField as error:
        raise InvalidField(error.field, error.value, error.why) from error
    except assertions.SameRule as error:
        (number,) = error.args
        raise Conflict(
            "rule_exists",
            f"rule {number} is identical; change it with PATCH /api/v1/rules/{number}",
            {"rule": number},
        ) from error
    except assertions.TooManyRules as error:
        raise Conflict("too_many_rules", str(error)) from error


def _found(use: Services, rule_id: int) -> assertions.Rule:
    rule = assertions.get_rule(use.engine, rule_id)
    if rule is None:
        raise _not_found(rule_id)
    return rule


def _not_found(rule_id: int) -> NotFound:
    return NotFound("rule_not_found", f"rule {rule_id} was not found", {"rule": rule_id})


def _of_people(rule: assertions.Rule) -> assertions.Rule:
    if rule.source == FILE:
        raise Conflict(
            "rule_of_file",
            f"rule {rule.id} comes from the file in LEAKLINE_RULES; change the file and restart the server",
            {"rule": rule.id},
        )
    return rule


def _to_json(use: Services, rules: Sequence[assertions.Rule]) -> list[dict[str, Any]]:
    firing = assertions.firing(use.engine, [rule.id for rule in rules])
    return [
        asdict(rule)
        | {"series": rule.series or None, "created_at": iso(rule.created_at)}
        | {"firing": [each | {"since": iso(each["since"])} for each in firing.get(rule.id, ())]}
        for rule in rules
    ]  # fmt: skip


def _after(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidField("cursor", cursor, "must be the value of next from an earlier response")
    return int(cursor)
