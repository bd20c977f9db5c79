"""Plain forms on the page of a run: a count is accepted with one click, and taken back."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from leakline.analysis.history import Expectation

from ..errors import InvalidField
from ..limits import MAX_INTEGER
from . import expectations_api
from .forms import Form
from .services import Use

router = APIRouter(
    prefix="/runs/{run}", include_in_schema=False, default_response_class=HTMLResponse
)
_COUNT: Final = re.compile(r"[0-9]{1,16}", re.ASCII)


@router.post("/expectations")
def accept(run: str, form: Form, use: Use) -> Response:
    """``type``, ``count``, and ``after`` where it is that of the end of a phase."""
    count = form.get("count", "")
    if not _COUNT.fullmatch(count) or int(count) > MAX_INTEGER:
        raise InvalidField("count", count, "must be a whole number, as the page names it")
    wanted = Expectation(_type(form), int(count), int(count), form.get("after"), accepted=True)
    expectations_api.accept(use, run, wanted)
    return _back(run)


@router.post("/expectations/take-back")
def take_back(run: str, form: Form, use: Use) -> Response:
    expectations_api.take_back(use, run, _type(form), form.get("after"))
    return _back(run)


def _type(form: dict[str, str]) -> str:
    if "type" not in form:
        raise InvalidField("type", None, "is missing")
    return form["type"]


def _back(run: str) -> Response:
    return RedirectResponse(f"/runs/{quote(run, safe='')}#expectations", 303)
