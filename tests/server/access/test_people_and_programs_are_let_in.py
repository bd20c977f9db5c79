"""Tokens, sessions and the password: what is kept of them, who gets in with them, and when not any more."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
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
    engine_of,
    error_of,
    session,
    sign_in,
    token,
    who,
)

from leakline_server import credentials
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.errors import Unauthorized, Unavailable
from leakline_server.issuing import Wish, issue
from leakline_server.store import logins, tokens
from leakline_server.store.engine import Engine
from leakline_server.store.tables import sessions, settings
from leakline_server.store.tables import tokens as tokens_table
from leakline_server.web import callers
from leakline_server.web.callers import Callers

pytestmark = pytest.mark.usefixtures("cheap_hashes")


def everything_stored(engine: Engine) -> str:
    with engine.connect() as connection:
        tables = (tokens_table, sessions, settings)
        return repr([connection.execute(table.select()).all() for table in tables])


# What is kept.


def test_no_token_no_password_and_no_session_is_kept(
    asked: TestClient, admin: dict[str, str]
) -> None:
    made = asked.post("/api/v1/tokens", json={"project": "erl"}, headers=admin).json()["token"]
    cookie = session(asked)["cookie"].partition("=")[2]
    stored = everything_stored(engine_of(asked))
    for secret in (made, cookie, PASSWORD, admin["authorization"].partition(" ")[2]):
        assert secret not in stored
    assert made[:20] in stored and made[:21] not in stored
    assert "$argon2id$" in stored


def test_a_password_is_hashed_with_argon2_and_found_again() -> None:
    from argon2 import PasswordHasher

    real = PasswordHasher()
    assert real.memory_cost >= 64 * 1024 and real.time_cost >= 3
    hashed = real.hash(PASSWORD)
    assert credentials.is_password(hashed, PASSWORD)
    assert not credentials.is_password(hashed, PASSWORD + " ")
    assert not credentials.is_password("not a hash", PASSWORD)


def test_a_token_is_shown_once_and_says_what_it_is_for(
    asked: TestClient, admin: dict[str, str]
) -> None:
    answer = asked.post(
        "/api/v1/tokens", json={"scope": "ingest", "project": "erl", "name": "job 7"}, headers=admin
    )
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    secret = made.pop("token")
    assert secret.startswith(made["begins"]) and secret.startswith("leakline_ingest_")
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
def test_a_token_that_cannot_be_is_refused(
    wish: dict[str, Any], field: str, asked: TestClient, admin: dict[str, str]
) -> None:
    answer = asked.post("/api/v1/tokens", json=wish, headers=admin)
    assert answer.status_code == 422
    assert error_of(answer)["details"]["field"] == field


def test_there_are_not_more_tokens_than_may_be(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    first, _ = token(engine, "read")
    token(engine, "read", issued=2 * 86_400.0)
    token(engine, "read")
    with pytest.raises(Exception, match="revoke one first"):
        token(engine, "read")
    tokens.revoke(engine, first, time.time())
    token(engine, "read")


def test_what_ended_long_ago_is_forgotten(engine: Engine) -> None:
    long_ago = NOW - tokens.SHOWN_SECONDS - 2 * 86_400
    issue(engine, Wish("read", days=1), long_ago)
    kept, _ = issue(engine, Wish("read", days=None), long_ago)
    newest, _ = issue(engine, Wish("read"), NOW)
    assert [each.id for each in tokens.list_tokens(engine)] == [newest.id, kept.id]


# Remembered for seconds.


def test_a_token_is_looked_up_once_for_many_batches(
    asked: TestClient, admin: dict[str, str], make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    find = tokens.find
    monkeypatch.setattr(tokens, "find", lambda *a: looks.append(a) or find(*a))
    monkeypatch.setattr(callers, "REMEMBERED_SECONDS", 60.0)
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
    tokens.revoke(engine, made.id, NOW)
    clock.now += callers.REMEMBERED_SECONDS + 0.001
    with pytest.raises(Unauthorized, match="is revoked"):
        who(here, bearer(secret))
    assert callers.REMEMBERED_SECONDS <= 5


def test_a_token_revoked_through_this_server_is_refused_at_once(
    asked: TestClient, admin: dict[str, str]
) -> None:
    made, secret = token(engine_of(asked), "read")
    assert asked.get("/api/v1/runs", headers=bearer(secret)).status_code == 200
    assert asked.delete(f"/api/v1/tokens/{made}", headers=admin).status_code == 204
    answer = asked.get("/api/v1/runs", headers=bearer(secret))
    assert (answer.status_code, error_of(answer)["code"]) == (401, "token_revoked")
    assert asked.delete("/api/v1/tokens/999", headers=admin).status_code == 404


def test_a_token_expires_to_the_second_also_while_it_is_remembered(engine: Engine) -> None:
    clock = Clock()
    here = Callers(engine, asking(""), clock)
    _, secret = issue(engine, Wish("read", days=1 / 86_400), NOW)
    assert who(here, bearer(secret)).scope == "read"
    clock.now += 1.0
    with pytest.raises(Unauthorized, match="is expired"):
        who(here, bearer(secret))


def test_when_a_token_was_used_last_is_written_rarely(engine: Engine) -> None:
    clock = Clock()
    here = Callers(engine, asking(""), clock)
    made, secret = issue(engine, Wish("read"), NOW)

    def used() -> float | None:
        return next(each.last_used_at for each in tokens.list_tokens(engine) if each.id == made.id)

    assert used() is None
    who(here, bearer(secret))
    assert used() == NOW
    clock.now += tokens.USE_SECONDS - 1
    who(here, bearer(secret))
    assert used() == NOW
    clock.now += callers.REMEMBERED_SECONDS + 2
    who(here, bearer(secret))
    assert used() == clock.now


def test_a_full_disk_keeps_nobody_from_reading(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OperationalError("UPDATE", {}, Exception("database or disk is full"))

    _, secret = token(engine, "read")
    monkeypatch.setattr(tokens, "note_use", full)
    assert who(Callers(engine, asking("")), bearer(secret)).scope == "read"


def full_disk_of_sqlite() -> OperationalError:
    reason = sqlite3.OperationalError("database or disk is full")
    reason.sqlite_errorcode = 13
    return OperationalError("UPDATE", {}, reason)


@pytest.mark.parametrize(
    ("error", "said", "after"),
    [
        (full_disk_of_sqlite(), "the disk of the database is full", []),
        (
            OperationalError("UPDATE", {}, Exception("attempt to write a readonly database")),
            "when tokens were used last is not written",
            ["when tokens were used last is written again"],
        ),
    ],
)
def test_what_keeps_uses_from_being_written_is_said_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: Exception, said: str, after: list[str],
) -> None:  # fmt: skip
    def failing(*_: Any) -> None:
        raise error

    secrets = [token(engine, "read")[1] for _ in range(3)]
    clock = Clock()
    found = Callers(engine, asking(""), clock)
    with monkeypatch.context() as broken:
        broken.setattr(tokens, "note_use", failing)
        for _ in range(3):
            for secret in secrets:
                assert who(found, bearer(secret)).scope == "read"
            clock.now += callers.REMEMBERED_SECONDS + 2
    assert [said in message for message in caplog.messages] == [True], caplog.messages
    caplog.clear()
    for _ in range(2):
        for secret in secrets:
            who(found, bearer(secret))
        clock.now += callers.REMEMBERED_SECONDS + 2
    assert caplog.messages == after


def test_a_database_that_does_not_answer_is_told_apart_from_a_wrong_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise OperationalError("SELECT", {}, Exception("server closed the connection"))

    _, secret = token(engine, "read")
    monkeypatch.setattr(tokens, "find", gone)
    with pytest.raises(Unavailable) as caught:
        who(Callers(engine, asking("")), bearer(secret))
    assert caught.value.retry_after_seconds


# Sessions.


def test_a_person_signs_in_where_they_wanted_to_go_and_out(asked: TestClient) -> None:
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
    # Whoever kept the cookie has nothing.
    asked.cookies.update(cookie)
    answer = asked.get("/api/v1/runs")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "session_over")


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "https://evil.example", "/\\evil.example", "\t//evil.example", "/" * 3_000]
)  # fmt: skip
def test_signing_in_leads_nowhere_else(elsewhere: str, asked: TestClient) -> None:
    assert sign_in(asked, asked_for=elsewhere).headers["location"] == "/"


def test_the_cookie_is_for_this_server_and_no_script(database_url: str) -> None:
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
def test_cookies_of_other_programs_cost_nobody_the_session(others: str, asked: TestClient) -> None:
    cookie = session(asked)["cookie"]
    for sent in (others + cookie, f"{cookie}; {others}"):
        answer = asked.get("/api/v1/runs", headers={"cookie": sent.encode()})
        assert answer.status_code == 200, sent


def test_a_session_changes_things_from_our_pages_alone(asked: TestClient) -> None:
    signed_in = session(asked)
    cookie = {"cookie": signed_in["cookie"]}
    for headers in (
        {},
        {"origin": ELSEWHERE},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = asked.post("/api/v1/rules", json={}, headers=cookie | headers)
        assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_refused"), headers
    for headers in ({"origin": ADDRESS}, {"sec-fetch-site": "same-origin"}):
        assert asked.post("/api/v1/rules", json={}, headers=cookie | headers).status_code == 422
    assert asked.get("/api/v1/runs", headers=cookie).status_code == 200
    assert asked.get("/api/v1/runs", headers=cookie | {"origin": ELSEWHERE}).status_code == 403


def test_a_token_that_reads_signs_in_until_it_is_revoked(asked: TestClient) -> None:
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


def test_a_token_that_only_adds_does_not_sign_in(asked: TestClient) -> None:
    answer = sign_in(asked, token(engine_of(asked), "ingest", "erl")[1])
    assert answer.status_code == 401
    assert "reads nothing" in answer.text


def test_tokens_are_made_on_the_page_and_shown_there_once(asked: TestClient) -> None:
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


def test_the_password_of_the_environment_comes_and_goes(database_url: str) -> None:
    def served(**settings: Any) -> tuple[int, int]:
        """What signing in with the one and with the other answers."""
        app = create_app(asking(database_url, **settings))
        with TestClient(app, base_url=ADDRESS) as client:
            return sign_in(client).status_code, sign_in(client, "another password").status_code

    assert served() == (303, 401)
    assert served(admin_password="another password") == (401, 303)
    with TestClient(create_app(asking(database_url)), base_url=ADDRESS) as client:
        cookie = session(client)
    with TestClient(create_app(asking(database_url)), base_url=ADDRESS) as client:
        # The same again signs nobody out.
        assert client.get("/api/v1/runs", headers=cookie).status_code == 200
    assert served(admin_password=None) == (401, 401)
    with TestClient(create_app(asking(database_url)), base_url=ADDRESS) as client:
        assert client.get("/api/v1/runs", headers=cookie).status_code == 401


def test_a_password_of_the_command_outlives_a_start(engine: Engine) -> None:
    logins.set_password(engine, "hash")
    logins.take_password(engine, None, str, lambda *_: True)
    assert logins.password_hash(engine) == "hash"
    assert logins.set_password(engine, None) is True
    assert logins.set_password(engine, None) is False


# Tokens that only add.


def test_a_foreign_project_is_not_there(asked: TestClient, adding: dict[str, str]) -> None:
    for body in ({"project": "other"}, {"project": "nowhere"}, {"id": "o1", "project": "mine"}):
        answer = asked.post("/api/v1/runs", json=body, headers=adding)
        assert answer.status_code == 404
        assert "other" not in answer.text.replace("knows no 'other'", "").replace(
            '"project":"other"', ""
        )
    answer = asked.patch("/api/v1/runs/o1", json={"state": "finished"}, headers=adding)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "run_not_found")


def test_batches_of_a_foreign_run_are_not_taken(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str], make_run: Any
) -> None:
    for run, status in (("m1", 200), ("o1", 404), ("nowhere", 404)):
        wire = make_run(id=run).wire(0, 3)
        path = f"/api/v1/runs/{run}/batches"
        assert asked.post(path, json=wire, headers=adding).status_code == status
        # Past the short way as well.
        more = adding | {"origin": ADDRESS}
        assert asked.post(path, json=wire, headers=more).status_code == status
    assert asked.get("/api/v1/runs/o1/snapshots", headers=admin).json()["items"] == []


def test_who_names_no_project_adds_to_the_only_one(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str]
) -> None:
    made = asked.post("/api/v1/runs", json={}, headers=adding).json()["id"]
    assert asked.get(f"/api/v1/runs/{made}", headers=admin).json()["project"] == "mine"


def test_a_token_that_adds_ends_its_run_and_replaces_nothing(
    asked: TestClient, adding: dict[str, str]
) -> None:
    for changes in ({"name": "mine now"}, {"tags": ["baseline"]}):
        answer = asked.patch("/api/v1/runs/m1", json=changes, headers=adding)
        assert (answer.status_code, error_of(answer)["code"]) == (403, "scope_too_small")
    told = {"state": "finished", "notes": [{"text": "done"}]}
    answer = asked.patch("/api/v1/runs/m1", json=told, headers=adding)
    assert answer.json() == {"id": "m1", "state": "finished", "url": "/runs/m1"}


def test_a_page_of_an_allowed_origin_adds_with_a_browser_token(database_url: str) -> None:
    config = asking(database_url, allowed_origins=(ELSEWHERE,))
    with TestClient(create_app(config), base_url=ADDRESS) as client:
        engine = engine_of(client)
        page = {"origin": ELSEWHERE}
        _, plain = token(engine, "ingest", "mine")
        _, browser = token(engine, "ingest", "mine", browser=True)
        answer = client.post("/api/v1/runs", json={"project": "mine"}, headers=page | bearer(plain))
        assert answer.status_code == 403
        assert "--browser" in error_of(answer)["message"]
        # The page may read why.
        assert answer.headers["access-control-allow-origin"] == ELSEWHERE
        answer = client.post(
            "/api/v1/runs", json={"project": "mine"}, headers=page | bearer(browser)
        )
        assert answer.status_code == 201
        ask = page | {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        assert client.options("/api/v1/runs", headers=ask).status_code == 200
        assert client.get("/api/v1/runs", headers=page | bearer(browser)).status_code == 403


# Streams.


def test_a_stream_ends_when_its_reader_may_read_no_more(
    asked: TestClient, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.web.door.REMEMBERED_SECONDS", 0.05)
    assert asked.post("/api/v1/runs", json={"id": "r1"}, headers=admin).status_code == 201
    made, secret = token(engine_of(asked), "read")
    portal = asked.portal
    assert portal is not None

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

        headers = [(b"authorization", f"Bearer {secret}".encode()), (b"host", b"leakline.example")]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": "/api/v1/runs/r1/live", "raw_path": b"", "query_string": b"", "root_path": "",
            "headers": headers, "client": ("192.0.2.1", 1), "server": ("leakline.example", 80),
        }  # fmt: skip
        stream = asyncio.create_task(asked.app(scope, receive, send))  # type: ignore[arg-type]
        await begun.wait()
        still = asyncio.wait_for(asyncio.shield(stream), 0.3)
        with pytest.raises(TimeoutError):
            await still
        tokens.revoke(engine_of(asked), made, time.time())
        asked.app.state.services.callers.forget()  # type: ignore[attr-defined]
        await asyncio.wait_for(stream, 10)
        return messages[0]["status"], messages[-1].get("more_body", False)

    assert portal.call(watch) == (200, False)


# Nobody is asked.


@pytest.mark.parametrize("settings", [{}, {"host": "0.0.0.0", "insecure": True}])
def test_where_nobody_is_asked_nothing_is_looked_up(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: Any) -> None:
        raise AssertionError("nobody is asked")

    monkeypatch.setattr(tokens, "find", look)
    monkeypatch.setattr(logins, "find", look)
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


def test_the_description_says_what_each_operation_needs(api: TestClient) -> None:
    spec = json.loads(api.get("/api/v1/openapi.json").text)
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            asks = path not in ("/healthz", "/readyz")
            assert ("security" in operation) == asks, (method, path)
            assert ("401" in operation["responses"]) == asks
            assert "403" in operation["responses"]
