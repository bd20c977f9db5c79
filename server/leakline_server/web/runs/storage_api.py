"""What is kept: projects with their sizes, and the removal of a run."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from ...errors import Conflict, run_not_found
from ...store.maintenance import run_deletion, storage_sizes
from .. import api_schemas
from ..api_schemas import RunId
from ..responses import json_response
from ..services import Use

router = APIRouter(prefix="/api/v1", tags=["runs"])


class Project(BaseModel):
    """`bytes` is what is packed for its runs, counted within a minute of their last news."""

    name: str
    runs: int
    bytes: int


class Projects(BaseModel):
    items: list[Project]
    next: str | None


_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    204: {"description": "it is gone"},
    404: {"model": api_schemas.Error, "description": "no such run"},
    409: {"model": api_schemas.Error, "description": "the run is live"},
}


@router.get(
    "/projects",
    summary="Projects, and how large they are",
    response_model=None,
    responses={200: {"model": Projects}},
)
def get_projects(use: Use) -> Response:
    return json_response(
        {"items": [asdict(p) for p in storage_sizes.projects(use.engine)], "next": None}
    )


@router.delete(
    "/runs/{run}",
    summary="Remove a run",
    response_class=Response,
    status_code=204,
    responses=_ERRORS,
)
def delete_run(run: RunId, use: Use) -> Response:
    """It is gone at once, for everybody; the space of its rows is freed in the next seconds to minutes. A live run is
    refused: its next batch would begin it anew."""
    removed = run_deletion.remove(use.engine, run, time.time())
    if removed == "unknown":
        raise run_not_found(run)
    if removed == "live":
        raise Conflict(
            "run_is_live",
            f"run {run} is running: its next batch would begin it anew; end it first, or PATCH its state",
            {"run": run},
        )
    use.live.wake(run)
    use.retain()
    return Response(status_code=204)
