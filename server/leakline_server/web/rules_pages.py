"""The forms of the rules on ``/alerts``. They work without scripts; one that is refused comes back as it was sent."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from ..alerts.rule_fields import RuleChanges
from ..errors import RequestRefused
from . import rules_api
from .alert_pages import alerts_response, back
from .forms import Form
from .rules_view import FORM_FIELDS, Refused
from .schemas import RowId
from .services import Services, Use

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.post("/alerts/rules")
def add_rule(form: Form, use: Use) -> Response:
    if "preset" in form:
        given: dict[str, Any] = {n: form[n] for n in ("preset", "project") if n in form}
    else:
        given = _fields(form)
    try:
        added = rules_api.add(use, given, "page")
    except RequestRefused as error:
        return _again(use, Refused(None, form, error.message), error)
    return back(f"rule-{added[0].id}")


@router.post("/alerts/rules/{rule}")
def change_rule(rule: RowId, form: Form, use: Use) -> Response:
    try:
        rules_api.change(use, rule, _fields(form))
    except RequestRefused as error:
        return _again(use, Refused(rule, form, error.message), error)
    return back(f"rule-{rule}")


@router.post("/alerts/rules/{rule}/delete")
def delete_rule(rule: RowId, use: Use) -> Response:
    rules_api.remove(use, rule)
    return back("rules")


@router.post("/alerts/rules/{rule}/{step}")
def switch_rule(rule: RowId, step: Literal["pause", "resume"], use: Use) -> Response:
    rules_api.change(use, rule, {"enabled": step == "resume"})
    return back(f"rule-{rule}")


def _fields(form: dict[str, str]) -> dict[str, Any]:
    """Return all fields of the form: one that was left blank has its default, or none."""
    given: dict[str, Any] = {name: form.get(name) for name in FORM_FIELDS}
    for name in ("measure", "hold", "grace", "advice"):
        given[name] = form.get(name) or RuleChanges.model_fields[name].default
    for name in ("hold", "grace"):
        text = str(given[name])
        given[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
    return given


def _again(use: Services, refused: Refused, error: RequestRefused) -> Response:
    return alerts_response(use, rules=rules_api.section(use, refused), status=error.status)
