"""Expected counts of a run in the JSON API, and those that people accept."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from leakline.analysis.history import Expectation

from ..errors import InvalidField
from . import expectation_actions, schemas
from .bodies import described, json_body
from .expectation_schemas import Accepting, Expectations, TypeName
from .json_response import json_response
from .schemas import Phase, RunId
from .services import Use

router = APIRouter(prefix="/api/v1/runs/{run}/expectations", tags=["findings"])

_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": schemas.Error, "description": "no such run, or nothing to take back"},
    422: {"model": schemas.Error, "description": "a field is wrong: named, with its value"},
}
_BODY: Final[dict[int | str, dict[str, Any]]] = {
    **_ERRORS,
    400: {"model": schemas.Error, "description": "not JSON"},
    409: {"model": schemas.Error, "description": "the program declares it, or there are too many"},
    503: {"model": schemas.Error, "description": "the database does not take writes"},
}


def _answer(errors: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
    return {"response_model": None, "responses": {200: {"model": Expectations}, **errors}}


@router.get("", summary="Expected counts, and those that a run keeps to", **_answer(_ERRORS))
def get_expectations(run: RunId, use: Use) -> Response:
    return json_response(expectation_actions.get(use, run))


@router.post(
    "",
    summary="Expect a count of the runs of this project from now on",
    openapi_extra=described(Accepting),
    **_answer(_BODY),
)
def accept(run: RunId, body: Annotated[Accepting, json_body(Accepting)], use: Use) -> Response:
    if body.high < body.low:
        raise InvalidField("high", body.high, f"must be low ({body.low}) or more")
    wanted = Expectation(body.type, body.low, body.high, body.after, accepted=True)
    expectation_actions.accept(use, run, wanted)
    return json_response(expectation_actions.get(use, run))


@router.delete("", summary="Take an accepted count back", **_answer(_ERRORS))
def take_back(
    run: RunId,
    type: Annotated[TypeName, Query()],
    use: Use,
    after: Annotated[Phase | None, Query()] = None,
) -> Response:
    expectation_actions.take_back(use, run, type, after)
    return json_response(expectation_actions.get(use, run))
