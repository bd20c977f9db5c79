"""Tokens, the administrator password and browser sessions.

Only password hashes and token digests are stored (`credentials.py`); this module never sees the tokens themselves. A
password set in the environment replaces any stored password. It is removed when a server starts without that setting.
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

# Revoked and expired tokens stay in the list for this long.
SHOWN_SECONDS: Final = 90 * 86_400.0
# Minimum interval between updates of a token's `last_used_at`.
USE_SECONDS: Final = 600.0


class TooManyTokens(Exception):
    """Raised when MAX_TOKENS usable tokens already exist."""


@dataclass(frozen=True, slots=True)
class Token:
    """A stored token, without its digest. Times are Unix seconds.

    ``project`` is None for a token that is valid for all projects; ``run_id`` is set for a share token, which gives
    access to that run only.
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
        """Return ``active``, ``expired`` or ``revoked``."""
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
    """Store a new token, and delete old revoked and expired tokens. Raises TooManyTokens."""
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
    """Return all stored tokens, including revoked and expired tokens, newest first."""
    with engine.connect() as connection:
        rows = connection.execute(select(*_COLUMNS).order_by(tokens.c.id.desc())).all()
    return [_as_token(row) for row in rows]


def find_token(engine: Engine, digest: str) -> Token | None:
    """Return the token with this digest, or None. Revoked and expired tokens are also returned."""
    with engine.connect() as connection:
        row = connection.execute(select(*_COLUMNS).where(tokens.c.digest == digest)).first()
    return None if row is None else _as_token(row)


def _find_by_id(connection: Connection, token_id: int) -> Token | None:
    row = connection.execute(select(*_COLUMNS).where(tokens.c.id == token_id)).first()
    return None if row is None else _as_token(row)


def revoke(engine: Engine, token_id: int, now: float) -> Token | None:
    """Revoke and return a token, or return None if no such token exists. An earlier revocation time is kept."""
    this = tokens.c.id == token_id
    with writing(engine) as connection:
        connection.execute(
            update(tokens).where(this, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
        )
        row = connection.execute(select(*_COLUMNS).where(this)).first()
    return None if row is None else _as_token(row)


def note_use(engine: Engine, token: Token, now: float) -> bool:
    """Update `last_used_at` at most once every USE_SECONDS, to save writes. Return True if an update was due.

    The condition is repeated in the UPDATE, so that concurrent servers update the row only once.
    """
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
    """A browser session. ``token`` is the token used to sign in, or None if the password was used."""

    expires_at: float
    token: Token | None


def password_hash(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return _hash_of(_stored(connection))


def set_password(engine: Engine, hashed: str | None, source: Source = "command") -> bool:
    """Set the password, or remove it if ``hashed`` is None. Return False if there was no password to remove.

    All sessions started with the previous password end.
    """
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
    """Apply the environment's password setting at server start; ``password`` is None without that setting.

    Existing sessions stay valid if the password is unchanged. ``make`` hashes a password, and ``holds(hash, password)``
    compares a password with a hash.
    """
    with engine.connect() as connection:
        there = _stored(connection)
    if password is None:
        if there is not None and there.source == "environment":
            set_password(engine, None)
    elif there is None or not holds(there.hash, password):
        # Servers that start together on one database share the same password, so losing the race is harmless.
        with contextlib.suppress(IntegrityError):
            set_password(engine, make(password), "environment")


def can_sign_in(engine: Engine, now: float) -> bool:
    """Return True if a password or a usable admin token is stored. The database may still lack its tables."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(tokens_table.name):
            return False
        return _stored(connection) is not None or _has_admin(connection, now)


def begin(engine: Engine, digest: str, proof: int | str, now: float, seconds: float) -> bool:
    """Store a session. ``proof`` is the token id or the password hash that was used to sign in.

    Return False if the password has changed since then. The oldest sessions are deleted if one token or password has
    more than MAX_SESSIONS_OF_ONE sessions, or if there are more than MAX_SESSIONS in total.
    """
    token_id = proof if isinstance(proof, int) else None
    with writing(engine) as connection:
        # Lock the password until the session is written: a concurrent password change then waits for
        # this transaction and also ends this session.
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
    """Delete a session, and return True if it existed.

    A missing session causes no write, because anyone may request a sign-out.
    """
    if find_session(engine, digest) is None:
        return False
    with writing(engine) as connection:
        connection.execute(delete(sessions).where(sessions.c.digest == digest))
    return True


def _stored(connection: Connection, *, hold: bool = False) -> StoredPassword | None:
    """Return the stored password. ``hold`` locks its row until the end of the transaction."""
    query = select(settings.c.value).where(settings.c.key == PASSWORD_KEY)
    found = connection.scalar(query.with_for_update() if hold else query)
    try:
        return None if found is None else msgspec.json.decode(found, type=StoredPassword)
    except msgspec.MsgspecError:
        # Treat a damaged entry as a password that nothing matches, because a server without a password may be open to
        # everyone.
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
    # Delete the sessions last: a concurrent sign-in holds a lock on the password row, so by now its session exists
    # and is deleted too.
    connection.execute(delete(sessions).where(sessions.c.token_id.is_(None)))
