"""`/api/v1/tokens`: issued, listed, revoked. For administrators; where the server asks nobody, only listed."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ...limits import MAX_TITLE_LENGTH, MAX_TOKEN_DAYS
from ...security import token_issuing
from ...security.token_issuing import DEFAULT_DAYS, Wish, only_where_asked
from ...store.access import tokens
from .. import api_schemas
from ..api_schemas import NO_CONTROL, Name, RowId, Strict
from ..request_bodies import described, json_body
from ..responses import json_response
from ..services import Use

router = APIRouter(prefix="/api/v1", tags=["access"])

_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": api_schemas.Error, "description": "no such token"},
    409: {"model": api_schemas.Error, "description": "the server asks nobody who they are"},
    422: {"model": api_schemas.Error, "description": "a field is wrong: named, with its value"},
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": api_schemas.Error, "description": "not JSON"},
    409: {
        "model": api_schemas.Error,
        "description": "there are too many, or the server asks nobody who they are",
    },
    422: _NOT_FOUND[422],
}


TokenName = Annotated[str, Field(max_length=MAX_TITLE_LENGTH, pattern=NO_CONTROL)]


class NewToken(Strict):
    """`ingest` adds to one project and reads nothing, `read` reads everything, `admin` does all. `browser` is for pages
    of other origins. `expires_in_days` null: it never expires."""

    model_config = ConfigDict(strict=True, extra="forbid")

    scope: Literal["ingest", "read", "admin"] = "ingest"
    project: Name | None = None
    name: TokenName = ""
    expires_in_days: Annotated[float, Field(gt=0, le=MAX_TOKEN_DAYS)] | None = DEFAULT_DAYS
    browser: bool = False


class Token(BaseModel):
    """`begins` is all that is ever shown of it again; `last_used_at` is right to ten minutes."""

    id: int
    name: str
    scope: Literal["ingest", "read", "admin"]
    project: str | None
    browser: bool
    begins: str
    state: Literal["active", "expired", "revoked"]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class IssuedToken(Token):
    """The only answer that ever shows the token."""

    token: str


class Tokens(BaseModel):
    items: list[Token]
    next: None = None


@router.get(
    "/tokens",
    summary="Tokens, newest first",
    response_model=None,
    responses={200: {"model": Tokens}},
)
def list_tokens(use: Use) -> Response:
    """With those that were revoked or have expired in the last 90 days."""
    items = [token_issuing.to_json(token) for token in tokens.list_tokens(use.engine)]
    return json_response({"items": items, "next": None})


@router.post(
    "/tokens",
    summary="Issue a token",
    response_model=None,
    openapi_extra=described(NewToken),
    responses={201: {"model": IssuedToken, "description": "issued"}, **_REFUSED},
)
def issue_token(body: Annotated[NewToken, json_body(NewToken)], use: Use) -> Response:
    """The answer shows the token, and nothing later does."""
    only_where_asked(use.callers.asked)
    wish = Wish(body.scope, body.project, body.name, body.expires_in_days, body.browser)
    token, secret = token_issuing.issue(use.engine, wish, time.time())
    response = json_response({**token_issuing.to_json(token), "token": secret}, 201)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.delete(
    "/tokens/{token}",
    summary="Revoke a token",
    response_class=Response,
    status_code=204,
    responses={204: {"description": "nobody is let in with it any more"}, **_NOT_FOUND},
)
def revoke_token(token: RowId, use: Use) -> Response:
    """Who signed in with it is signed out. Other servers on the same database follow within seconds."""
    only_where_asked(use.callers.asked)
    token_issuing.revoke(use.engine, token, time.time())
    use.callers.forget()
    return Response(status_code=204)
