"""Tokens, sessions and the password: how they are stored, what they authorize and when they end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient
from tests.server.access.people import (
    ADDRESS,
    ELSEWHERE,
    NOW,
    PASSWORD,
    Clock,
    asking,
    bearer,
    call,
    engine_of,
    error_of,
    scope_of,
    services_of,
    session,
    sign_in,
    token,
    who,
)
from tests.server.databases import Copies

from leakline.cli import main
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.errors import Unauthorized, Unavailable
from leakline_server.security import credentials
from leakline_server.security.token_issuing import Wish, issue
from leakline_server.store import access
from leakline_server.store.engine import Engine
from leakline_server.store.schema import sessions, settings
from leakline_server.store.schema import tokens as tokens_table
from leakline_server.web.auth import authenticator
from leakline_server.web.auth import pages as sign_in_pages
from leakline_server.web.auth.authenticator import Callers

pytestmark = pytest.mark.usefixtures("cheap_hashes")


def everything_stored(engine: Engine) -> str:
    with engine.connect() as connection:
        tables = (tokens_table, sessions, settings)
        return repr([connection.execute(table.select()).all() for table in tables])


def test_tokens_passwords_and_sessions_are_not_stored(
    asked: TestClient, admin: dict[str, str]
) -> None:
    made = asked.post("/api/v1/tokens", json={"project": "erl"}, headers=admin).json()["token"]
    cookie = session(asked)["cookie"].partition("=")[2]
    stored = everything_stored(engine_of(asked))
    for secret in (made, cookie, PASSWORD, admin["authorization"].partition(" ")[2]):
        assert secret not in stored
    assert made[:20] in stored and made[:21] not in stored
    assert "$argon2id$" in stored


def test_a_password_is_hashed_with_argon2_and_verified() -> None:
    from argon2 import PasswordHasher

    real = PasswordHasher()
    assert real.memory_cost >= 64 * 1024 and real.time_cost >= 3
    hashed = real.hash(PASSWORD)
    assert credentials.is_password(hashed, PASSWORD)
    assert not credentials.is_password(hashed, PASSWORD + " ")
    assert not credentials.is_password("not a hash", PASSWORD)


def test_a_token_is_shown_once_and_listed_with_its_scope(
    asked: TestClient, admin: dict[str, str]
) -> None:
    answer = asked.post(
        "/api/v1/tokens", json={"scope": "ingest", "project": "erl", "name": "job 7"}, headers=admin
    )
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    secret = made.pop("token")
    assert secret.startswith(made["prefix"]) and secret.startswith("leakline_ingest_")
    assert len(secret) == len("leakline_ingest_") + 43
    listed = asked.get("/api/v1/tokens", headers=admin).json()["items"]
    assert listed[0] == made
    assert not {"token", "digest"} & set(listed[0])
    assert secret not in asked.get("/settings", headers=admin).text


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"scope": "root"}, "scope"),
        ({"scope": "read", "project": "erl"}, "project"),
        ({"scope": "admin", "browser": True}, "browser"),
        ({"expires_in_days": 0}, "expires_in_days"),
        ({"expires_in_days": 4_000}, "expires_in_days"),
        ({"project": ""}, "project"),
        ({"scpoe": "read"}, "scpoe"),
    ],
)
def test_an_invalid_token_request_is_refused(
    wish: dict[str, Any], field: str, asked: TestClient, admin: dict[str, str]
) -> None:
    answer = asked.post("/api/v1/tokens", json=wish, headers=admin)
    assert answer.status_code == 422
    assert error_of(answer)["details"]["field"] == field


def test_the_number_of_tokens_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_TOKENS", 2)
    first, _ = token(engine, "read")
    token(engine, "read", issued=2 * 86_400.0)
    token(engine, "read")
    with pytest.raises(Exception, match="revoke one first"):
        token(engine, "read")
    access.revoke(engine, first, time.time())
    token(engine, "read")


def test_tokens_that_expired_long_ago_are_not_listed(engine: Engine) -> None:
    long_ago = NOW - access.SHOWN_SECONDS - 2 * 86_400
    issue(engine, Wish("read", days=1), long_ago)
    kept, _ = issue(engine, Wish("read", days=None), long_ago)
    newest, _ = issue(engine, Wish("read"), NOW)
    assert [each.id for each in access.list_tokens(engine)] == [newest.id, kept.id]


def test_a_token_is_looked_up_once_for_many_batches(
    asked: TestClient, admin: dict[str, str], make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    find = access.find_token
    monkeypatch.setattr(access, "find_token", lambda *a: looks.append(a) or find(*a))
    monkeypatch.setattr(authenticator, "REMEMBERED_SECONDS", 60.0)
    run = make_run()
    asked.headers.update(admin)
    run.create(asked)
    assert run.send(asked, 0, 60, size=3) == 60
    assert len(looks) == 1


def test_a_token_revoked_through_another_server_is_refused_within_seconds(engine: Engine) -> None:
    clock = Clock()
    here = Callers(engine, asking(""), clock)
    made, secret = issue(engine, Wish("read"), NOW)
    assert who(here, bearer(secret)).scope == "read"
    access.revoke(engine, made.id, NOW)
    clock.now += authenticator.REMEMBERED_SECONDS + 0.001
    with pytest.raises(Unauthorized, match="is revoked"):
        who(here, bearer(secret))
    assert authenticator.REMEMBERED_SECONDS <= 5


def test_a_token_revoked_through_this_server_is_refused_immediately(
    asked: TestClient, admin: dict[str, str]
) -> None:
    made, secret = token(engine_of(asked), "read")
    assert asked.get("/api/v1/runs", headers=bearer(secret)).status_code == 200
    assert asked.delete(f"/api/v1/tokens/{made}", headers=admin).status_code == 204
    answer = asked.get("/api/v1/runs", headers=bearer(secret))
    assert (answer.status_code, error_of(answer)["code"]) == (401, "token_revoked")
    assert asked.delete("/api/v1/tokens/999", headers=admin).status_code == 404


def test_a_token_expires_to_the_second_even_while_it_is_cached(engine: Engine) -> None:
    clock = Clock()
    here = Callers(engine, asking(""), clock)
    _, secret = issue(engine, Wish("read", days=1 / 86_400), NOW)
    assert who(here, bearer(secret)).scope == "read"
    clock.now += 1.0
    with pytest.raises(Unauthorized, match="is expired"):
        who(here, bearer(secret))


def test_the_last_use_of_a_token_is_written_rarely(engine: Engine) -> None:
    clock = Clock()
    here = Callers(engine, asking(""), clock)
    made, secret = issue(engine, Wish("read"), NOW)

    def used() -> float | None:
        return next(each.last_used_at for each in access.list_tokens(engine) if each.id == made.id)

    assert used() is None
    who(here, bearer(secret))
    assert used() == NOW
    clock.now += access.USE_SECONDS - 1
    who(here, bearer(secret))
    assert used() == NOW
    clock.now += authenticator.REMEMBERED_SECONDS + 2
    who(here, bearer(secret))
    assert used() == clock.now


def full_disk_of_sqlite() -> OperationalError:
    reason = sqlite3.OperationalError("database or disk is full")
    reason.sqlite_errorcode = 13
    return OperationalError("UPDATE", {}, reason)


@pytest.mark.parametrize(
    ("error", "said", "after"),
    [
        (full_disk_of_sqlite(), "the database disk is full", []),
        (
            OperationalError("UPDATE", {}, Exception("attempt to write a readonly database")),
            "cannot store when tokens were last used",
            ["the last-used times of tokens are being stored again"],
        ),
    ],
)
def test_a_failure_to_record_uses_is_logged_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: Exception, said: str, after: list[str],
) -> None:  # fmt: skip
    def failing(*_: Any) -> None:
        raise error

    secrets = [token(engine, "read")[1] for _ in range(3)]
    clock = Clock()
    found = Callers(engine, asking(""), clock)
    with monkeypatch.context() as broken:
        broken.setattr(access, "note_use", failing)
        for _ in range(3):
            for secret in secrets:
                assert who(found, bearer(secret)).scope == "read"
            clock.now += authenticator.REMEMBERED_SECONDS + 2
    assert [said in message for message in caplog.messages] == [True], caplog.messages
    caplog.clear()
    for _ in range(2):
        for secret in secrets:
            who(found, bearer(secret))
        clock.now += authenticator.REMEMBERED_SECONDS + 2
    assert caplog.messages == after


def test_an_unavailable_database_is_not_reported_as_a_wrong_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise OperationalError("SELECT", {}, Exception("server closed the connection"))

    _, secret = token(engine, "read")
    monkeypatch.setattr(access, "find_token", gone)
    with pytest.raises(Unavailable) as caught:
        who(Callers(engine, asking("")), bearer(secret))
    assert caught.value.retry_after_seconds


def test_signing_in_leads_to_the_requested_page_and_signing_out_works(asked: TestClient) -> None:
    asked.cookies.clear()
    page = {"accept": "text/html", "sec-fetch-mode": "navigate"}
    away = asked.get("/settings?a=b&c", headers=page, follow_redirects=False)
    assert away.status_code == 303
    assert away.headers["location"] == "/sign-in?next=/settings%3Fa%3Db%26c"
    form = asked.get(away.headers["location"], headers=page)
    assert form.status_code == 200
    assert 'value="/settings?a=b&amp;c"' in form.text
    answer = sign_in(asked, asked_for="/settings?a=b&c")
    assert (answer.status_code, answer.headers["location"]) == (303, "/settings?a=b&c")
    shown = asked.get("/settings", headers=page)
    assert shown.status_code == 200 and "Sign out" in shown.text
    cookie = dict(asked.cookies)
    out = asked.post("/sign-out", headers={"origin": ADDRESS}, follow_redirects=False)
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert dict(asked.cookies) == {}
    # A copy of the cookie is no longer valid.
    asked.cookies.update(cookie)
    answer = asked.get("/api/v1/runs")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "session_over")


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "https://evil.example", "/\\evil.example", "\t//evil.example", "/" * 3_000]
)  # fmt: skip
def test_signing_in_never_leads_to_another_site(elsewhere: str, asked: TestClient) -> None:
    assert sign_in(asked, asked_for=elsewhere).headers["location"] == "/"


def test_the_cookie_is_only_for_this_server_and_not_for_scripts(database_url: str) -> None:
    def cookie_of(base_url: str, **more: Any) -> tuple[str, set[str]]:
        with TestClient(create_app(asking(database_url, **more)), base_url=base_url) as client:
            answer = client.post("/sign-in", data={"secret": PASSWORD}, follow_redirects=False)
        name, _, rest = answer.headers["set-cookie"].partition("=")
        return name, {part.strip().lower() for part in rest.split(";")[1:]}

    name, said = cookie_of(ADDRESS)
    assert name == "leakline_session"
    assert said == {"httponly", "samesite=lax", "path=/", "max-age=604800"}
    for base_url, more in (
        ("https://leakline.example", {}),
        (ADDRESS, {"public_url": "https://leakline.example"}),
    ):
        name, said = cookie_of(base_url, **more)
        assert name == "__Host-leakline"
        assert said == {"httponly", "samesite=lax", "path=/", "max-age=604800", "secure"}


@pytest.mark.parametrize(
    "others",
    ['prefs={"a":1}; ', "a=1; b; =c; ", 'q="x\\"; ', "leakline_session_of=another; ", "é=ü; "],
)
def test_cookies_of_other_programs_do_not_break_the_session(others: str, asked: TestClient) -> None:
    cookie = session(asked)["cookie"]
    for sent in (others + cookie, f"{cookie}; {others}"):
        answer = asked.get("/api/v1/runs", headers={"cookie": sent.encode()})
        assert answer.status_code == 200, sent


def test_a_session_can_change_data_only_from_our_pages(asked: TestClient) -> None:
    signed_in = session(asked)
    cookie = {"cookie": signed_in["cookie"]}
    others = ({}, {"origin": ELSEWHERE}, {"origin": "null"}, {"sec-fetch-site": "cross-site"})
    for headers in others:
        answer = asked.post("/api/v1/rules", json={}, headers=cookie | headers)
        assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_refused"), headers
    for headers in ({"origin": ADDRESS}, {"sec-fetch-site": "same-origin"}):
        assert asked.post("/api/v1/rules", json={}, headers=cookie | headers).status_code == 422
    assert asked.get("/api/v1/runs", headers=cookie).status_code == 200
    assert asked.get("/api/v1/runs", headers=cookie | {"origin": ELSEWHERE}).status_code == 403


def test_a_read_token_can_sign_in_until_it_is_revoked(asked: TestClient) -> None:
    made, secret = token(engine_of(asked), "read")
    reader = session(asked, secret)
    page = asked.get("/settings", headers=reader)
    assert page.status_code == 200
    assert 'id="tokens"' not in page.text and "data-reads-only" in page.text
    assert asked.post("/api/v1/rules", json={}, headers=reader).status_code == 403
    administrator = session(asked)
    assert 'id="tokens"' in asked.get("/settings", headers=administrator).text
    said = asked.post(
        f"/settings/tokens/{made}/revoke", headers=administrator, follow_redirects=False
    )
    assert said.status_code == 303
    assert asked.get("/settings", headers=reader, follow_redirects=False).status_code == 401


def test_the_page_creates_tokens_and_shows_each_once(asked: TestClient) -> None:
    administrator = session(asked)
    form = {"scope": "ingest", "project": "<b>erl</b>", "name": "", "expires": "30", "browser": ""}
    answer = asked.post("/settings/tokens", data=form, headers=administrator)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert "leakline_ingest_" in answer.text and "<b>erl" not in answer.text
    for wrong in ({"scope": "root"}, {"expires": "1"}, {"scope": "read", "project": "erl"}):
        refused = asked.post("/settings/tokens", data=form | wrong, headers=administrator)
        assert refused.status_code == 422
        assert 'role="alert"' in refused.text


def test_the_password_follows_the_environment(database_url: str) -> None:
    def served(**settings: Any) -> tuple[int, int]:
        """Return the statuses of signing in with each of the two passwords."""
        app = create_app(asking(database_url, **settings))
        with TestClient(app, base_url=ADDRESS) as client:
            return sign_in(client).status_code, sign_in(client, "another password").status_code

    assert served() == (303, 401)
    assert served(admin_password="another password") == (401, 303)
    with TestClient(create_app(asking(database_url)), base_url=ADDRESS) as client:
        cookie = session(client)
    with TestClient(create_app(asking(database_url)), base_url=ADDRESS) as client:
        # Setting the same password again signs nobody out.
        assert client.get("/api/v1/runs", headers=cookie).status_code == 200
    assert served(admin_password=None) == (401, 401)
    with TestClient(create_app(asking(database_url)), base_url=ADDRESS) as client:
        assert client.get("/api/v1/runs", headers=cookie).status_code == 401


def test_a_password_set_with_the_command_survives_a_restart(engine: Engine) -> None:
    access.set_password(engine, "hash")
    access.take_password(engine, None, str, lambda *_: True)
    assert access.password_hash(engine) == "hash"
    assert access.set_password(engine, None) is True
    assert access.set_password(engine, None) is False


def test_a_stream_ends_when_its_reader_loses_access(
    asked: TestClient, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.web.auth.middleware.REMEMBERED_SECONDS", 0.05)
    assert asked.post("/api/v1/runs", json={"id": "r1"}, headers=admin).status_code == 201
    made, secret = token(engine_of(asked), "read")

    async def watch() -> tuple[int, bool]:
        begun, messages = asyncio.Event(), []

        async def receive() -> dict[str, Any]:
            if not messages:
                return {"type": "http.request", "body": b"", "more_body": False}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            messages.append(message)
            begun.set()

        headers = bearer(secret) | {"host": "leakline.example"}
        scope = scope_of("GET", "/api/v1/runs/r1/live", headers)
        stream = asyncio.create_task(asked.app(scope, receive, send))  # type: ignore[arg-type]
        await begun.wait()
        still = asyncio.wait_for(asyncio.shield(stream), 0.3)
        with pytest.raises(TimeoutError):
            await still
        access.revoke(engine_of(asked), made, time.time())
        services_of(asked).callers.forget()
        await asyncio.wait_for(stream, 10)
        return messages[0]["status"], messages[-1].get("more_body", False)

    assert call(asked, watch) == (200, False)


@pytest.mark.parametrize("settings", [{}, {"host": "0.0.0.0", "insecure": True}])
def test_without_authentication_no_credentials_are_looked_up(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("find_token", "find_session"):
        monkeypatch.setattr(access, name, lambda *_: pytest.fail("nobody is asked"))
    config = Config(database_url=f"sqlite:///{tmp_path}/x.db", **settings)
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        client.headers.update(bearer("of another server"))
        client.cookies.update({"leakline_session": "old"})
        assert client.post("/api/v1/runs", json={"id": "r1"}).status_code == 201
        assert client.post("/api/v1/runs/r1/batches", json={}).status_code == 422
        for path in ("/", "/runs/r1", "/settings", "/metrics", "/api/v1/tokens"):
            assert client.get(path).status_code == 200, path
        assert client.get("/sign-in", follow_redirects=False).headers["location"] == "/"
        assert "Sign out" not in client.get("/").text


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(sessions.c.digest)).all())


def test_a_token_revoked_during_its_lookup_is_not_cached(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Callers(engine, asking(""))
    made, secret = token(engine, "read")
    note_use = access.note_use

    def revoked_meanwhile(engine: Engine, found: access.Token, now: float) -> None:
        # The lookup has found the token active and is about to record its use.
        access.revoke(engine, made, time.time())
        here.forget()
        note_use(engine, found, now)

    monkeypatch.setattr(access, "note_use", revoked_meanwhile)
    # The request arrived before the token was revoked.
    assert who(here, bearer(secret)).scope == "read"
    with pytest.raises(Unauthorized, match="is revoked"):
        who(here, bearer(secret))


def test_signing_in_while_the_password_changes_fails(
    asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(asked)
    is_password = sign_in_pages.is_password

    def changed_meanwhile(hashed: str, secret: str) -> bool:
        found = is_password(hashed, secret)
        access.set_password(engine, credentials.hash_password("another password"))
        return found

    monkeypatch.setattr(sign_in_pages, "is_password", changed_meanwhile)
    assert sign_in(asked).status_code == 401
    assert count(engine) == 0


def test_a_password_change_during_a_sign_in_ends_the_session(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the password after the sign-in has read it and before it writes the session."""
    before, after = (credentials.hash_password(each) for each in (PASSWORD, "another password"))
    access.set_password(engine, before)
    hash_of, changing = access._hash_of, threading.Event()
    changes = threading.Thread(target=access.set_password, args=(engine, after))

    def slowly(found: Any) -> str | None:
        if not changing.is_set():
            changing.set()
            changes.start()
            # The change ends immediately or waits for this transaction; half a second is enough to get there.
            changes.join(0.5)
        return hash_of(found)

    monkeypatch.setattr(access, "_hash_of", slowly)
    assert access.begin(engine, "meanwhile", before, 0.0, 60.0)
    changes.join(30)
    assert access.password_hash(engine) == after
    assert count(engine) == 0


@pytest.fixture
def open_to_all(sqlite_copies: Copies, tmp_path: Path) -> Iterator[TestClient]:
    with sqlite_copies.new(tmp_path) as url:
        config = Config(database_url=url, allowed_origins=("*",))
        with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
            yield client


@pytest.mark.parametrize("headers", [{}, {"origin": ELSEWHERE}, {"origin": "http://127.0.0.1"}])
def test_without_authentication_tokens_cannot_be_managed_over_http(
    headers: dict[str, str], open_to_all: TestClient
) -> None:
    engine = engine_of(open_to_all)
    made, secret = token(engine, "read")
    form = {"scope": "admin", "expires": "never"}
    for answer in (
        open_to_all.post("/api/v1/tokens", json={"scope": "admin"}, headers=headers),
        open_to_all.delete(f"/api/v1/tokens/{made}", headers=headers),
        open_to_all.post("/settings/tokens", data=form, headers=headers),
        open_to_all.post(f"/settings/tokens/{made}/revoke", headers=headers),
    ):
        assert answer.status_code == 409
        assert "leakline token create" in answer.text
        if answer.request.url.path.startswith("/api"):
            assert error_of(answer)["code"] == "nobody_is_asked"
    (kept,) = access.list_tokens(engine)
    assert (kept.id, kept.revoked_at) == (made, None)
    # The page lists the tokens and says where they are made.
    page = open_to_all.get("/settings", headers=bearer(secret))
    assert page.status_code == 200
    assert "leakline token create" in page.text and f'id="token-{made}"' in page.text
    assert 'action="/settings/tokens' not in page.text
    assert len(open_to_all.get("/api/v1/tokens").json()["items"]) == 1


# As at the beginning of docs/access.md: the token determines the project.
PROGRAM = """
import json, os, sys, leakline
for name, settings in json.loads(sys.argv[1]):
    os.environ.update(settings)
    run = leakline.init(name=name)
    for generation in range(3):
        run.generation(generation)
    run.finish()
    print("--", file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.flow
def test_a_training_reports_to_a_server_with_authentication(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leakline(*arguments: str, shown: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv("LEAKLINE_TOKEN", shown)
        capsys.readouterr()
        return main(arguments), *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    # Serving would block this process.
    monkeypatch.setattr("leakline_server.serve._serve", lambda *_: pytest.fail("it serves"))
    on_a_network = ("--host", "0.0.0.0")
    status, _, said = leakline("serve", *on_a_network, "--port", "0")
    assert status == 2
    for word in ("0.0.0.0", "leakline password", "leakline token create", "LEAKLINE_INSECURE"):
        assert word in said
    assert not (tmp_path / ".leakline-server").exists()

    status, made, said = leakline("token", "create", "--project", "erl")
    assert status == 0, said
    adds = made.strip()
    # With only an ingest token, nobody could sign in yet.
    assert leakline("serve", *on_a_network, "--port", "0")[0] == 2
    reader = leakline("token", "create", "--scope", "read")[1].strip()
    admin = leakline("token", "create", "--scope", "admin")[1].strip()
    server = serve(arguments=on_a_network)

    # Data that one program could not send would be sent by the next one in the same folder.
    trainings: list[tuple[str, dict[str, str]]] = [
        ("asked", {"LEAKLINE_SERVER": server.url, "LEAKLINE_DIR": f"spool{number}", "LEAKLINE_TOKEN": shown})
        for number, shown in enumerate(("", "leakline_ingest_wrong", adds))
    ]  # fmt: skip
    trainings.append(("later", {"LEAKLINE_MODE": "offline", "LEAKLINE_DIR": "later"}))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(trainings)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    of_each = ended.stderr.split("--\n")[:-1]
    refused = ["does not accept this run" in errors for errors in of_each]
    assert refused == [True, True, False, False], ended.stderr
    assert "this token cannot read it" in of_each[2]
    # A run recorded without a server can be synced as well.
    status, _, said = leakline("sync", "later", "--server", server.url, shown=adds)
    assert status == 0, said
    status, listed, said = leakline("runs", "--server", server.url, "--json", shown=reader)
    assert status == 0, said
    runs = json.loads(listed)["items"]
    assert {(run["name"], run["project"], run["state"]) for run in runs} == {
        (name, "erl", "finished") for name in ("asked", "later")
    }
    status, listed, said = leakline("runs", "--server", server.url)
    assert (status, listed) == (1, "")
    assert "LEAKLINE_TOKEN" in said

    def status(path: str, shown: str = "") -> int:
        found: int = server.request("GET", path, headers=bearer(shown) if shown else {})[0]
        return found

    assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
    assert status("/metrics", reader) == status("/api/v1/tokens", admin) == 200
    assert status("/api/v1/tokens", reader) == 403


IN_A_PROJECT = """
import sys, leakline
run = leakline.init(project=sys.argv[1] or None)
for generation in range(3):
    run.generation(generation)
run.finish()
"""


@pytest.mark.long
@pytest.mark.flow
def test_a_program_with_the_token_of_another_project_says_what_works(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tokens = {}
    for project in ("ranks", "pgtest"):
        assert main(("token", "create", "--project", project)) == 0
        tokens[project] = capsys.readouterr()[0].strip()
    monkeypatch.setenv("LEAKLINE_ADMIN_PASSWORD", PASSWORD)
    server = serve()

    def said_by(command: list[str], **environ: str) -> str:
        settings = {"LEAKLINE_SERVER": server.url, "LEAKLINE_TOKEN": tokens["pgtest"], **environ}
        ended = subprocess.run(
            [sys.executable, *command], env={**os.environ, **settings}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended.stderr

    given = said_by(["-c", IN_A_PROJECT, "ranks"], LEAKLINE_PROJECT="pgtest")
    assert "adds to project 'pgtest', not to 'ranks'" in given
    assert "the argument project='ranks' takes precedence over LEAKLINE_PROJECT" in given
    assert "does not accept" not in said_by(["-c", IN_A_PROJECT, "pgtest"])
    of_variable = said_by(["-c", IN_A_PROJECT, ""], LEAKLINE_PROJECT="ranks")
    assert "the project is set with LEAKLINE_PROJECT=ranks" in of_variable
    assert "does not accept" not in said_by(["-c", IN_A_PROJECT, ""], LEAKLINE_PROJECT="pgtest")
    for said in (given, of_variable):
        upload = re.search(
            r"with a token of project 'ranks' in LEAKLINE_TOKEN: leakline (sync \S+)", said
        )
        assert upload is not None, said
        said_by(["-m", "leakline", *upload[1].split()], LEAKLINE_TOKEN=tokens["ranks"])
