"""Expected and accepted counts of a run: the JSON API, and the forms on the run's page."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from leakline.analysis.assertions.expected_counts import stands_for
from leakline.analysis.results import AssertionCheck, StableCount, to_json
from leakline.analysis.run_history import Expectation

from ...errors import Conflict, InvalidField, NotFound, run_not_found, shorten
from ...limits import MAX_ACCEPTED_COUNTS, MAX_INTEGER, MAX_NAME_LENGTH
from ...store.alerts import assertions
from ...store.runs.runs import iso
from .. import api_schemas
from ..api_schemas import NO_CONTROL, Phase, RunId, Strict
from ..auth.permissions import CHANGE, READ
from ..request_bodies import Form, described, json_body
from ..responses import json_response
from ..run_page.pages import known_run
from ..services import Services, Use

router = APIRouter(prefix="/api/v1/runs/{run}/expectations", tags=["findings"], dependencies=[READ])
# Plain forms on a run's page: one click accepts a count, another click revokes it.
pages = APIRouter(
    prefix="/runs/{run}",
    include_in_schema=False,
    default_response_class=HTMLResponse,
    dependencies=[CHANGE],
)

TypeName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, pattern=NO_CONTROL)]
_COUNT: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class Accepting(Strict):
    """A count to accept: from `low` to `high` instances of `type`. The count is expected at every
    reading or, with `after`, only at the end of that phase. The count applies to this run and to all
    runs of its project that send data after this request. Declarations by programs take precedence.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    type: TypeName
    low: Count
    high: Count
    after: Phase | None = None


class Accepted(BaseModel):
    """An accepted count; a person accepted the count on the page of `run`."""

    type: str
    low: int
    high: int
    after: str | None
    run: str
    created_at: str


class Expectations(BaseModel):
    """The expected counts of a run. `items` are the run's expectations with the measured values.
    `stable` are counts that did not change in the run's last generations and are not expected yet.
    `accepted` are the accepted counts of the run's project.
    """

    items: list[AssertionCheck]
    stable: list[StableCount]
    accepted: list[Accepted]
    next: None = None


_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": Expectations},
    404: {"model": api_schemas.Error, "description": "no such run, or nothing to revoke"},
    422: {
        "model": api_schemas.Error,
        "description": "a field is invalid; the error names the field and its value",
    },
}
_BODY: Final[dict[int | str, dict[str, Any]]] = {
    **_ERRORS,
    400: {"model": api_schemas.Error, "description": "not JSON"},
    409: {
        "model": api_schemas.Error,
        "description": "the program declares this count, or the project has too many accepted counts",
    },
    503: {"model": api_schemas.Error, "description": "the database does not accept writes"},
}


@router.get(
    "",
    summary="Expected counts, and stable counts of a run",
    response_model=None,
    responses=_ERRORS,
)
def get_expectations(run: RunId, use: Use) -> Response:
    project = known_run(use, run)["project"]
    derived = use.derived.of(run)
    accepted = [
        {k: v for k, v in asdict(each.expectation).items() if k in Accepted.model_fields}
        | {"run": each.run, "created_at": iso(each.created_at)}
        for each in assertions.accepted_in(use.engine, project)
    ]
    found = {"items": to_json(derived.counts), "stable": to_json(derived.stable)}
    return json_response(found | {"accepted": accepted, "next": None})


@router.post(
    "",
    dependencies=[CHANGE],
    summary="Accept a count as expected in this project",
    openapi_extra=described(Accepting),
    response_model=None,
    responses=_BODY,
)
def accept_count(
    run: RunId, body: Annotated[Accepting, json_body(Accepting)], use: Use
) -> Response:
    if body.high < body.low:
        raise InvalidField("high", body.high, f"must be at least low ({body.low})")
    accept(use, run, Expectation(body.type, body.low, body.high, body.after, accepted=True))
    return get_expectations(run, use)


@router.delete(
    "",
    dependencies=[CHANGE],
    summary="Revoke an accepted count",
    response_model=None,
    responses=_ERRORS,
)
def take_back_count(
    run: RunId,
    type: Annotated[TypeName, Query()],
    use: Use,
    after: Annotated[Phase | None, Query()] = None,
) -> Response:
    take_back(use, run, type, after)
    return get_expectations(run, use)


@pages.post("/expectations")
def accept_form(run: str, form: Form, use: Use) -> Response:
    """Accept ``count`` instances of ``type``, with ``after`` only at the end of that phase."""
    count = form.get("count", "")
    if not _COUNT.fullmatch(count) or int(count) > MAX_INTEGER:
        raise InvalidField("count", count, "must be a whole number, as given on the page")
    wanted = Expectation(_type(form), int(count), int(count), form.get("after"), accepted=True)
    accept(use, run, wanted)
    return _back(run)


@pages.post("/expectations/take-back")
def take_back_form(run: str, form: Form, use: Use) -> Response:
    take_back(use, run, _type(form), form.get("after"))
    return _back(run)


def accept(use: Services, run_id: str, wanted: Expectation) -> None:
    """Accept a count as expected. Raises NotFound, InvalidField and Conflict."""
    run = known_run(use, run_id)
    _check(run, wanted)
    try:
        concerned = assertions.accept(use.engine, run_id, wanted, time.time())
    except assertions.TooManyAcceptedCounts as error:
        project = shorten(run["project"])
        raise Conflict(
            "too_many_accepted_counts",
            f"project {project} has {MAX_ACCEPTED_COUNTS} accepted counts, which is the maximum; revoke some "
            "counts first",
            {"project": project, "limit": MAX_ACCEPTED_COUNTS},
        ) from error
    _examine_again(use, run_id, concerned)


def take_back(use: Services, run_id: str, name: str, after: str | None) -> None:
    """Revoke an accepted count. Raises NotFound if no such count is accepted."""
    concerned = assertions.take_back(use.engine, run_id, name, after, time.time())
    if concerned == []:
        run, name, phase = shorten(run_id), shorten(name), shorten(after)
        where = "" if after is None else f" after {phase}"
        raise NotFound(
            "nothing_to_take_back",
            f"no count of {name}{where} is accepted in the project of run {run}",
            {"run": run, "type": name, "after": phase},
        )
    _examine_again(use, run_id, concerned)


def _type(form: dict[str, str]) -> str:
    if "type" not in form:
        raise InvalidField("type", None, "is missing")
    return form["type"]


def _back(run: str) -> Response:
    return RedirectResponse(f"/runs/{quote(run, safe='')}#expectations", 303)


def _check(run: Mapping[str, Any], wanted: Expectation) -> None:
    if f"type.{wanted.type}.count" not in run["series"]:
        why = "was not counted in this run; GET /api/v1/runs/{run}/types lists the counted types"
        raise InvalidField("type", wanted.type, why)
    phases, after = list(dict.fromkeys((*run["phases"], *run["phases_seen"]))), wanted.after
    if after is not None and not any(p == after or p.endswith(f"/{after}") for p in phases):
        known = ", ".join(phases[:10]) or "none"
        raise InvalidField("after", after, f"must be one of the run's phases: {known}")
    if any(not e["accepted"] and stands_for(e["type"], wanted.type) for e in run["expectations"]):
        name = shorten(wanted.type)
        raise Conflict(
            "count_is_declared",
            f"the program itself declares the count of {name}, and this declaration takes "
            "precedence; change run.expect in the program",
            {"run": run["id"], "type": name},
        )


def _examine_again(use: Services, run_id: str, concerned: list[str] | None) -> None:
    if concerned is None:
        raise run_not_found(run_id)
    for each in concerned:
        use.live.wake(each)
        use.examine(each, False)
    # Renew the cached results now, so that the user sees the change immediately.
    use.derived.of(run_id)
