"""Issues and revokes tokens for the API, the pages and the command line. All errors are RequestRefused."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from leakline.snapshot import DEFAULT_PROJECT

from ..errors import Conflict, InvalidField, NotFound
from ..limits import MAX_LABEL_LENGTH, MAX_TOKEN_DAYS, MAX_TOKENS
from ..store import access
from ..store.access import NewToken, Token, TooManyTokens
from ..store.engine import Engine
from ..store.runs.runs import iso, iso_or_none
from .credentials import SCOPES, Scope, digest_of, make_token, prefix_of

DEFAULT_DAYS: Final = 365.0
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a new token.

    If ``days`` is None, the token does not expire. ``project`` is allowed only for the scope ``ingest`` and is
    ``default`` if not given. ``run_id`` is required for ``share``, which gives access to that run, and not allowed for
    other scopes.
    """

    scope: Scope = "ingest"
    project: str | None = None
    name: str = ""
    days: float | None = DEFAULT_DAYS
    browser: bool = False
    run_id: str | None = None


def only_where_asked(asked: bool) -> None:
    """Raise Conflict if authentication is off: tokens created anonymously would stay valid after it is turned on."""
    if not asked:
        raise Conflict(
            "nobody_is_asked",
            "authentication is off, so tokens cannot be created or revoked here: use leakline token create or revoke "
            "on the server's machine, or set LEAKLINE_LOGIN=1",
        )


def issue(engine: Engine, wish: Wish, now: float) -> tuple[Token, str]:
    """Create a token; return its record and the token itself, which is never shown again.

    Raises InvalidField or Conflict.
    """
    _check(wish)
    project = (wish.project or DEFAULT_PROJECT) if wish.scope == "ingest" else None
    secret = make_token(wish.scope)
    new = NewToken(
        name=wish.name or project or wish.scope,
        scope=wish.scope,
        project=project,
        browser=wish.browser,
        prefix=prefix_of(secret),
        digest=digest_of(secret),
        expires_at=None if wish.days is None else now + wish.days * _DAY_SECONDS,
        run_id=wish.run_id,
    )
    try:
        return access.make(engine, new, now), secret
    except TooManyTokens as error:
        raise Conflict(
            "too_many_tokens",
            f"there are already {MAX_TOKENS} tokens, the maximum; revoke one first",
        ) from error


def revoke(engine: Engine, token_id: int, now: float) -> Token:
    """Revoke a token. Raises NotFound. Servers that have cached the token accept it for a few more seconds."""
    found = access.revoke(engine, token_id, now)
    if found is None:
        raise NotFound(
            "token_not_found",
            f"token {token_id} not found; list the tokens with leakline token list or GET /api/v1/tokens",
            {"token": token_id},
        )
    return found


def to_json(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scope": token.scope,
        "project": token.project,
        "run": token.run_id,
        "browser": token.browser,
        "prefix": token.prefix,
        "state": token.state_at(time.time()),
        "created_at": iso(token.created_at),
        "expires_at": iso_or_none(token.expires_at),
        "last_used_at": iso_or_none(token.last_used_at),
        "revoked_at": iso_or_none(token.revoked_at),
    }


def _check(wish: Wish) -> None:
    if wish.scope not in SCOPES:
        raise InvalidField("scope", wish.scope, f"must be one of {', '.join(SCOPES)}")
    if (wish.scope == "share") != (wish.run_id is not None):
        raise InvalidField(
            "scope",
            wish.scope,
            "create links to a run on the run's page, under Share",
        )
    if wish.scope != "ingest" and wish.project is not None:
        raise InvalidField(
            "project",
            wish.project,
            f"{wish.scope} tokens cover all projects; only ingest tokens can be limited to a project",
        )
    if not 0 < len(wish.project or DEFAULT_PROJECT) <= MAX_LABEL_LENGTH:
        raise InvalidField("project", wish.project, f"must have 1 to {MAX_LABEL_LENGTH} characters")
    if wish.scope != "ingest" and wish.browser:
        raise InvalidField(
            "browser",
            True,
            "is only for ingest tokens, because everybody who opens the page can read its token",
        )
    if wish.days is not None and not 0 < wish.days <= MAX_TOKEN_DAYS:
        raise InvalidField(
            "expires_in_days",
            wish.days,
            f"must be a number of days above 0 and at most {MAX_TOKEN_DAYS:,.0f}",
        )
