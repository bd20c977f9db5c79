"""Tokens: made, listed, found by their digest, revoked. The token itself never comes here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    and_,
    delete,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)

from ...limits import MAX_PAST, MAX_TOKENS
from ..engine import writing
from ..row_limits import keep_newest
from ..schema import tokens

# How long one that is revoked or expired stays in the list.
SHOWN_SECONDS: Final = 90 * 86_400.0
# When a token was used last is written no more often.
USE_SECONDS: Final = 600.0


class TooManyTokens(Exception):
    """MAX_TOKENS may be used already."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of one. Times are Unix seconds; ``project`` is None where it is of all."""

    id: int
    name: str
    scope: str
    project: str | None
    browser: bool
    begins: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None

    def state_at(self, now: float) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.expires_at is None or now < self.expires_at else "expired"


@dataclass(frozen=True, slots=True)
class NewToken:
    name: str
    scope: str
    project: str | None
    browser: bool
    begins: str
    digest: str
    expires_at: float | None


def make(engine: Engine, new: NewToken, now: float) -> Token:
    """Raises TooManyTokens. What was revoked or expired long ago goes."""
    with writing(engine) as connection:
        connection.execute(delete(tokens).where(_ended_before(now - SHOWN_SECONDS)))
        keep_newest(connection, tokens.c.id, tokens.c.id, MAX_PAST, not_(_may_be_used(now)))
        count = select(func.count()).select_from(tokens).where(_may_be_used(now))
        if (connection.scalar(count) or 0) >= MAX_TOKENS:
            raise TooManyTokens
        values = {name: getattr(new, name) for name in NewToken.__slots__}
        row = connection.execute(
            insert(tokens).values(**values, created_at=now).returning(*_COLUMNS)
        ).one()
    return _as_token(row)


def list_tokens(engine: Engine) -> list[Token]:
    """The newest first, with those that ended of late."""
    with engine.connect() as connection:
        rows = connection.execute(select(*_COLUMNS).order_by(tokens.c.id.desc())).all()
    return [_as_token(row) for row in rows]


def find(engine: Engine, digest: str) -> Token | None:
    """Whatever its state is."""
    with engine.connect() as connection:
        row = connection.execute(select(*_COLUMNS).where(tokens.c.digest == digest)).first()
    return None if row is None else _as_token(row)


def find_by_id(connection: Connection, token_id: int) -> Token | None:
    row = connection.execute(select(*_COLUMNS).where(tokens.c.id == token_id)).first()
    return None if row is None else _as_token(row)


def revoke(engine: Engine, token_id: int, now: float) -> Token | None:
    """From now on nobody is let in with it; None when there is none. One that is revoked stays so since then."""
    this = tokens.c.id == token_id
    with writing(engine) as connection:
        connection.execute(
            update(tokens).where(this, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
        )
        row = connection.execute(select(*_COLUMNS).where(this)).first()
    return None if row is None else _as_token(row)


def note_use(engine: Engine, token: Token, now: float) -> bool:
    """Rarely, because it is a write: whether it was time for one. Servers that note it at once agree."""
    before = now - USE_SECONDS
    if token.last_used_at is not None and token.last_used_at > before:
        return False
    stale = or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at <= before)
    with writing(engine, durable=False) as connection:
        connection.execute(
            update(tokens).where(tokens.c.id == token.id, stale).values(last_used_at=now)
        )
    return True


def has_admin(connection: Connection, now: float) -> bool:
    admins = select(tokens.c.id).where(tokens.c.scope == "admin", _may_be_used(now)).limit(1)
    return connection.execute(admins).first() is not None


def _may_be_used(now: float) -> ColumnElement[bool]:
    later = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now)
    return and_(tokens.c.revoked_at.is_(None), later)


def _ended_before(moment: float) -> ColumnElement[bool]:
    return or_(tokens.c.revoked_at < moment, tokens.c.expires_at < moment)


def _as_token(row: Row[Any]) -> Token:
    return Token(**row._mapping)


_COLUMNS: Final = tuple(tokens.c[name] for name in Token.__slots__)
