"""Tokens as the JSON API takes and gives them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..issuing import DEFAULT_DAYS
from ..limits import MAX_TITLE_LENGTH, MAX_TOKEN_DAYS
from .schemas import NO_CONTROL, Name, Strict

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
