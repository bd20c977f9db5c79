"""Tokens, the password of administrators, and who is signed in. Hashes and digests only (`credentials.py`).

Tokens are made, listed, found by their digest and revoked; a token itself never comes here. A password of the
environment is owned by the environment: it replaces whatever was there, and goes when it is taken away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    and_,
    delete,
    func,
    insert,
    inspect,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from ..limits import MAX_PAST, MAX_SESSIONS, MAX_SESSIONS_OF_ONE, MAX_TOKENS
from .engine import keep_newest, writing
from .schema import sessions, settings, tokens
from .schema import tokens as tokens_table

# How long one that is revoked or expired stays in the list.
SHOWN_SECONDS: Final = 90 * 86_400.0
# When a token was used last is written no more often.
USE_SECONDS: Final = 600.0


class TooManyTokens(Exception):
    """MAX_TOKENS may be used already."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of one. Times are Unix seconds; ``project`` is None where it is of all, ``run_id`` where it opens
    more than one run.
    """

    id: int
    name: str
    scope: str
    project: str | None
    browser: bool
    prefix: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None
    run_id: str | None = None

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
    prefix: str
    digest: str
    expires_at: float | None
    run_id: str | None = None


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


def find_token(engine: Engine, digest: str) -> Token | None:
    """Whatever its state is."""
    with engine.connect() as connection:
        row = connection.execute(select(*_COLUMNS).where(tokens.c.digest == digest)).first()
    return None if row is None else _as_token(row)


def _find_by_id(connection: Connection, token_id: int) -> Token | None:
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


def _has_admin(connection: Connection, now: float) -> bool:
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


PASSWORD_KEY: Final = "password"

Source = Literal["environment", "command"]


class StoredPassword(msgspec.Struct):
    hash: str
    source: Source


@dataclass(frozen=True, slots=True)
class Session:
    """``token``: what it was signed in with; None: the password."""

    expires_at: float
    token: Token | None


def password_hash(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return _hash_of(_stored(connection))


def set_password(engine: Engine, hashed: str | None, source: Source = "command") -> bool:
    """None takes it away. Who signed in with the one before is signed out. False: there was and is none."""
    with writing(engine) as connection:
        there = _stored(connection)
        if there is None and hashed is None:
            return False
        _put(connection, hashed, source, there)
    return True


def take_password(
    engine: Engine,
    password: str | None,
    make: Callable[[str], str],
    holds: Callable[[str, str], bool],
) -> None:
    """What the environment says, at the start of a server; the same again changes nothing and signs nobody out."""
    with engine.connect() as connection:
        there = _stored(connection)
    if password is None:
        if there is not None and there.source == "environment":
            set_password(engine, None)
    elif there is None or not holds(there.hash, password):
        # Servers that start together on one database have the same one.
        with contextlib.suppress(IntegrityError):
            set_password(engine, make(password), "environment")


def can_sign_in(engine: Engine, now: float) -> bool:
    """Whether there is a password, or a token of an administrator. Also of a database that is empty or older."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(tokens_table.name):
            return False
        return _stored(connection) is not None or _has_admin(connection, now)


def begin(engine: Engine, digest: str, proof: int | str, now: float, seconds: float) -> bool:
    """Somebody has signed in: with the token of this id, or the password of this hash. False: it was changed since.

    The oldest go where there are too many, first of the same token or password.
    """
    token_id = proof if isinstance(proof, int) else None
    with writing(engine) as connection:
        # Held until this is written: who changes the password meanwhile ends it with the others.
        if token_id is None and _hash_of(_stored(connection, hold=True)) != proof:
            return False
        connection.execute(delete(sessions).where(sessions.c.expires_at < now))
        same = (
            sessions.c.token_id.is_(None) if token_id is None else sessions.c.token_id == token_id
        )
        for which, most in ((same, MAX_SESSIONS_OF_ONE), (true(), MAX_SESSIONS)):
            keep_newest(connection, sessions.c.digest, sessions.c.expires_at, most - 1, which)
        connection.execute(
            insert(sessions).values(
                digest=digest, token_id=token_id, created_at=now, expires_at=now + seconds
            )
        )
    return True


def find_session(engine: Engine, digest: str) -> Session | None:
    with engine.connect() as connection:
        row = connection.execute(select(sessions).where(sessions.c.digest == digest)).first()
        if row is None:
            return None
        token = None if row.token_id is None else _find_by_id(connection, row.token_id)
    return Session(row.expires_at, token)


def end(engine: Engine, digest: str) -> bool:
    """False: there was none, and nothing is written: anybody may sign out of anything."""
    if find_session(engine, digest) is None:
        return False
    with writing(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.digest == digest))
    return True


def _stored(connection: Connection, *, hold: bool = False) -> StoredPassword | None:
    """``hold``: nobody else changes it before the end of this transaction."""
    query = select(settings.c.value).where(settings.c.key == PASSWORD_KEY)
    found = connection.scalar(query.with_for_update() if hold else query)
    try:
        return None if found is None else msgspec.json.decode(found, type=StoredPassword)
    except msgspec.MsgspecError:
        # A damaged one opens to nobody, and does not open to everybody.
        return StoredPassword("", "command")


def _hash_of(found: StoredPassword | None) -> str | None:
    return None if found is None else found.hash


def _put(
    connection: Connection, hashed: str | None, source: Source, there: StoredPassword | None
) -> None:
    this = settings.c.key == PASSWORD_KEY
    if hashed is None:
        connection.execute(delete(settings).where(this))
    else:
        value = msgspec.json.encode(StoredPassword(hashed, source)).decode()
        if there is None:
            connection.execute(insert(settings).values(key=PASSWORD_KEY, value=value))
        else:
            connection.execute(update(settings).where(this).values(value=value))
    # After it: whoever signs in meanwhile holds the row, and is among these then.
    connection.execute(delete(sessions).where(sessions.c.token_id.is_(None)))
