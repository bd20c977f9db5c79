"""A token that is revoked and a password that is changed, while somebody is being let in with them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.access.people import PASSWORD, asking, bearer, engine_of, sign_in, token, who

from leakline_server import credentials
from leakline_server.errors import Unauthorized
from leakline_server.store import logins, tokens
from leakline_server.store.engine import Engine
from leakline_server.store.tables import sessions
from leakline_server.web import sign_in_pages
from leakline_server.web.callers import Callers

pytestmark = pytest.mark.usefixtures("cheap_hashes")


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(sessions.c.digest)).all())


def test_a_token_that_is_revoked_while_it_is_looked_up_is_not_remembered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Callers(engine, asking(""))
    made, secret = token(engine, "read")
    note_use = tokens.note_use

    def revoked_meanwhile(engine: Engine, found: tokens.Token, now: float) -> None:
        # The look has found it active, and waits to write when it was used.
        tokens.revoke(engine, made, time.time())
        here.forget()
        note_use(engine, found, now)

    monkeypatch.setattr(tokens, "note_use", revoked_meanwhile)
    # The request came before it was revoked.
    assert who(here, bearer(secret)).scope == "read"
    with pytest.raises(Unauthorized, match="is revoked"):
        who(here, bearer(secret))


def test_who_signs_in_while_the_password_changes_is_not_in(
    asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(asked)
    is_password = sign_in_pages.is_password

    def changed_meanwhile(hashed: str, secret: str) -> bool:
        found = is_password(hashed, secret)
        logins.set_password(engine, credentials.hash_password("another password"))
        return found

    monkeypatch.setattr(sign_in_pages, "is_password", changed_meanwhile)
    assert sign_in(asked).status_code == 401
    assert count(engine) == 0


def test_a_password_that_is_taken_away_meanwhile_lets_nobody_in(engine: Engine) -> None:
    hashed = credentials.hash_password(PASSWORD)
    logins.set_password(engine, hashed)
    assert logins.begin(engine, "before", hashed, 0.0, 60.0)
    logins.set_password(engine, None)
    assert not logins.begin(engine, "after", hashed, 0.0, 60.0)
    assert count(engine) == 0


def test_a_password_that_changes_beside_a_sign_in_ends_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one transaction has read the password, and the other changes it before the session is written."""
    before, after = (credentials.hash_password(each) for each in (PASSWORD, "another password"))
    logins.set_password(engine, before)
    hash_of, changing = logins._hash_of, threading.Event()
    changes = threading.Thread(target=logins.set_password, args=(engine, after))

    def slowly(found: Any) -> str | None:
        if not changing.is_set():
            changing.set()
            changes.start()
            # It ends at once, or waits for this transaction: long enough to have come to where it would wait.
            changes.join(0.5)
        return hash_of(found)

    monkeypatch.setattr(logins, "_hash_of", slowly)
    assert logins.begin(engine, "beside it", before, 0.0, 60.0)
    changes.join(30)
    assert logins.password_hash(engine) == after
    assert count(engine) == 0
