"""`/api/v1/tokens`: issued, listed, revoked. For administrators; where the server asks nobody, only listed."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from .. import issuing
from ..issuing import Wish, only_where_asked
from ..store import tokens
from . import schemas, token_schemas
from .bodies import described, json_body
from .json_response import json_response
from .schemas import RowId
from .services import Use

router = APIRouter(prefix="/api/v1", tags=["access"])

_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": schemas.Error, "description": "no such token"},
    409: {"model": schemas.Error, "description": "the server asks nobody who they are"},
    422: {"model": schemas.Error, "description": "a field is wrong: named, with its value"},
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": schemas.Error, "description": "not JSON"},
    409: {
        "model": schemas.Error,
        "description": "there are too many, or the server asks nobody who they are",
    },
    422: _NOT_FOUND[422],
}


@router.get(
    "/tokens",
    summary="Tokens, newest first",
    response_model=None,
    responses={200: {"model": token_schemas.Tokens}},
)
def list_tokens(use: Use) -> Response:
    """With those that were revoked or have expired in the last 90 days."""
    items = [issuing.to_json(token) for token in tokens.list_tokens(use.engine)]
    return json_response({"items": items, "next": None})


@router.post(
    "/tokens",
    summary="Issue a token",
    response_model=None,
    openapi_extra=described(token_schemas.NewToken),
    responses={201: {"model": token_schemas.IssuedToken, "description": "issued"}, **_REFUSED},
)
def issue_token(
    body: Annotated[token_schemas.NewToken, json_body(token_schemas.NewToken)], use: Use
) -> Response:
    """The answer shows the token, and nothing later does."""
    only_where_asked(use.callers.asked)
    wish = Wish(body.scope, body.project, body.name, body.expires_in_days, body.browser)
    token, secret = issuing.issue(use.engine, wish, time.time())
    response = json_response({**issuing.to_json(token), "token": secret}, 201)
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
    issuing.revoke(use.engine, token, time.time())
    use.callers.forget()
    return Response(status_code=204)
