"""The forms of the rules on ``/alerts``. They work without scripts; one that is refused comes back as it was sent."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from ..errors import RequestRefused
from . import rule_actions
from .alert_pages import alerts_response, back
from .forms import Form
from .rules_view import FORM_FIELDS, Refused
from .schemas import RowId
from .services import Services, Use

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

# Blank fields are not sent on.
_DEFAULTS: Final = {"hold": 1, "grace": 3}


@router.post("/alerts/rules")
def add_rule(form: Form, use: Use) -> Response:
    if "preset" in form:
        given: dict[str, Any] = {n: form[n] for n in ("preset", "project") if n in form}
    else:
        given = _fields(form)
    try:
        added = rule_actions.add(use, given, "page")
    except RequestRefused as error:
        return _again(use, Refused(None, form, error.message), error)
    return back(f"rule-{added[0].id}")


@router.post("/alerts/rules/{rule}")
def change_rule(rule: RowId, form: Form, use: Use) -> Response:
    try:
        rule_actions.change(use, rule, _fields(form))
    except RequestRefused as error:
        return _again(use, Refused(rule, form, error.message), error)
    return back(f"rule-{rule}")


@router.post("/alerts/rules/{rule}/pause")
def pause_rule(rule: RowId, use: Use) -> Response:
    rule_actions.change(use, rule, {"enabled": False})
    return back(f"rule-{rule}")


@router.post("/alerts/rules/{rule}/resume")
def resume_rule(rule: RowId, use: Use) -> Response:
    rule_actions.change(use, rule, {"enabled": True})
    return back(f"rule-{rule}")


@router.post("/alerts/rules/{rule}/delete")
def delete_rule(rule: RowId, use: Use) -> Response:
    rule_actions.remove(use, rule)
    return back("rules")


def _fields(form: dict[str, str]) -> dict[str, Any]:
    """All fields of the form: one that was left blank is taken away."""
    given: dict[str, Any] = {name: form.get(name) for name in FORM_FIELDS}
    if given["measure"] is None:
        del given["measure"]
    for name, usual in _DEFAULTS.items():
        text = given[name] or str(usual)
        given[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
    return given


def _again(use: Services, refused: Refused, error: RequestRefused) -> Response:
    return alerts_response(use, rules=rule_actions.section(use, refused), status=error.status)
