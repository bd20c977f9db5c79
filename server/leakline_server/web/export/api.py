"""The export of an entire run as a streamed file, so that memory use stays small."""

from __future__ import annotations

from typing import Any, Final, Literal

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from ...errors import Unavailable, run_not_found
from ...run_export import ParquetMissing, export
from ...store.runs.run_history import NoSuchRun
from .. import api_schemas
from ..api_schemas import RunId
from ..auth.permissions import READ, SEE
from ..services import Use

PARQUET: Final = "application/vnd.apache.parquet"
MEDIA_TYPES: Final = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": PARQUET,
}

router = APIRouter(prefix="/api/v1", dependencies=[READ])

_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {kind.split(";")[0]: {} for kind in MEDIA_TYPES.values()}, "description": "the file"},
    404: {"model": api_schemas.Error, "description": "no such run"},
    503: {"model": api_schemas.Error, "description": "pyarrow, which Parquet requires, is not installed on the server"},
}  # fmt: skip


@router.get(
    "/runs/{run}/export.{form}",
    dependencies=[SEE],
    tags=["samples"],
    summary="A run as a file",
    response_class=Response,
    responses=_RESPONSES,
)
def get_export(run: RunId, form: Literal["json", "csv", "parquet"], use: Use) -> Response:
    """The file has one row per snapshot, process by process; CSV and Parquet have one column per
    series. If the run is removed during the download, the response is truncated and the file is
    incomplete.
    """
    try:
        pieces = export(use.engine, run, form)
    except NoSuchRun as error:
        raise run_not_found(run) from error
    except ParquetMissing as error:
        raise Unavailable("parquet_not_installed", str(error)) from error
    named = {"Content-Disposition": f'attachment; filename="{run}.{form}"'}
    return StreamingResponse(pieces, headers=named, media_type=MEDIA_TYPES[form])
