"""The password of administrators, and who is signed in. Hashes and digests only (`credentials.py`).

A password of the environment is the environment's: it replaces whatever was there, and goes when it is taken away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, inspect, select, true, update
from sqlalchemy.exc import IntegrityError

from ...limits import MAX_SESSIONS, MAX_SESSIONS_OF_ONE
from ..engine import writing
from ..row_limits import keep_newest
from ..schema import sessions, settings
from ..schema import tokens as tokens_table
from .tokens import Token, find_by_id, has_admin

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
        return _stored(connection) is not None or has_admin(connection, now)


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


def find(engine: Engine, digest: str) -> Session | None:
    with engine.connect() as connection:
        row = connection.execute(select(sessions).where(sessions.c.digest == digest)).first()
        if row is None:
            return None
        token = None if row.token_id is None else find_by_id(connection, row.token_id)
    return Session(row.expires_at, token)


def end(engine: Engine, digest: str) -> bool:
    """False: there was none, and nothing is written: anybody may sign out of anything."""
    if find(engine, digest) is None:
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
