"""Guessing and flooding are slowed down, in parallel too, and valid tokens and passwords keep working."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from tests.server.access.people import (
    ADDRESS,
    HOST,
    PASSWORD,
    Clock,
    answer_of,
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

from leakline_server.errors import RequestRefused, TooBusy, Unauthorized
from leakline_server.limits import MAX_SECRET_LENGTH, MAX_SIGN_IN_BYTES
from leakline_server.security.credentials import make_session, make_token
from leakline_server.store import access
from leakline_server.store.engine import Engine
from leakline_server.web import request_bodies
from leakline_server.web.auth import authenticator
from leakline_server.web.auth import pages as sign_in_pages
from leakline_server.web.auth.authenticator import MAX_ADDRESSES, Callers, Failures

pytestmark = pytest.mark.usefixtures("cheap_hashes")
FORM = {"host": "leakline.example", "content-type": "application/x-www-form-urlencoded"}


def unknown() -> dict[str, str]:
    """Return the headers of a well-formed token that this server never issued."""
    return bearer(make_token("read"))


def cookie(name: str) -> dict[str, str]:
    return {"cookie": f"leakline_session={name}"}


def fail(here: Callers, many: int, host: str = HOST) -> None:
    for i in range(many):
        with pytest.raises(Unauthorized):
            who(here, bearer(f"guess {i}"), host)


def test_repeated_failures_are_delayed_but_valid_tokens_work(engine: Engine) -> None:
    here = Callers(engine, asking(""))
    _, known = token(engine, "read")
    _, new = token(engine, "read")
    who(here, bearer(known))
    fail(here, authenticator.MAX_WRONG_TOKENS)
    for shown in (bearer("another guess"), unknown(), cookie(make_session())):
        with pytest.raises(TooBusy, match="retry in") as caught:
            who(here, shown)
        assert 0 < (caught.value.retry_after_seconds or 0) <= authenticator.WRONG_TOKENS_SECONDS
    # Trainings behind the same address go on, and new ones can begin.
    for secret in (known, new):
        assert who(here, bearer(secret)).scope == "read"
    with pytest.raises(Unauthorized):
        who(here, unknown(), host="192.0.2.2")
    # Unknown sessions are failures too.
    for _ in range(authenticator.MAX_WRONG_TOKENS):
        with pytest.raises(Unauthorized):
            who(here, cookie(make_session()), host="192.0.2.3")
    with pytest.raises(TooBusy):
        who(here, cookie(make_session()), host="192.0.2.3")


def test_valid_tokens_and_sessions_work_after_a_restart_despite_failures(
    asked: TestClient,
) -> None:
    _, secret = token(engine_of(asked), "read")
    signed_in = session(asked)["cookie"]
    again = Callers(engine_of(asked), asking(""))
    fail(again, authenticator.MAX_WRONG_TOKENS)
    assert who(again, bearer(secret)).scope == "read"
    assert who(again, {"cookie": signed_in}).scope == "admin"


def test_credentials_that_cannot_exist_are_not_looked_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("find_token", "find_session"):
        monkeypatch.setattr(access, name, lambda *_: pytest.fail("it cannot be there"))
    here = Callers(engine, asking(""))
    too_short = make_token("read")[:-1]
    for shown in (bearer("hunter2"), bearer(too_short), cookie("a"), cookie("-" * 44)):
        with pytest.raises(Unauthorized):
            who(here, shown)


def test_a_repeated_wrong_token_is_one_failure(engine: Engine) -> None:
    clock = Clock()
    here = Callers(engine, asking(""), clock)
    _, expired = token(engine, "read", issued=2 * 86_400.0)
    clock.now = time.time()
    for shown in (bearer("of another server"), bearer(expired)):
        for _ in range(3 * authenticator.MAX_WRONG_TOKENS):
            clock.now += authenticator.REMEMBERED_SECONDS + 1
            with pytest.raises(Unauthorized):
                who(here, shown)
    assert here.failures.wait_seconds(HOST) == 0


def test_wrong_credentials_do_not_evict_valid_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "MAX_REMEMBERED", 5)
    here = Callers(engine, asking(""))
    _, secret = token(engine, "read")
    who(here, bearer(secret))
    for i in range(20):
        with pytest.raises(Unauthorized):
            who(here, unknown() if i % 2 else cookie(make_session()))
    assert (len(here._known), len(here._wrong)) == (1, 5)
    monkeypatch.setattr(access, "find_token", lambda *_: pytest.fail("it is remembered"))
    assert who(here, bearer(secret)).scope == "read"


def test_well_formed_guesses_are_looked_up_a_few_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, looking, most = threading.Lock(), 0, 0

    def find(*_: Any) -> None:
        nonlocal looking, most
        with lock:
            looking += 1
            most = max(most, looking)
        time.sleep(0.01)
        with lock:
            looking -= 1

    here = Callers(engine, asking(""))
    fail(here, authenticator.MAX_WRONG_TOKENS)
    monkeypatch.setattr(access, "find_token", find)

    async def guess() -> str:
        headers = [(k.encode(), v.encode()) for k, v in unknown().items()]
        try:
            await here.of(headers, "http", HOST)
        except RequestRefused as error:
            return error.code
        return "let in"

    async def guesses() -> list[str]:
        return await asyncio.gather(*(guess() for _ in range(200)))

    said = Counter(asyncio.run(guesses()))
    looked = authenticator.MAX_LOOKS + authenticator.MAX_LOOKS_WAITING
    assert said == {"too_many_failures": looked, "too_busy": 200 - looked}
    assert 1 <= most <= authenticator.MAX_LOOKS


def test_failures_expire_can_be_taken_back_and_are_bounded() -> None:
    clock = Clock()
    failures = Failures(2, 60.0, clock)
    for _ in range(2):
        failures.add("2001:db8::1")
    assert failures.wait_seconds("2001:db8::ffff") == 60
    assert failures.wait_seconds("2001:db8:0:1::1") == 0
    failures.take_back("2001:db8::2")
    assert failures.wait_seconds("2001:db8::1") == 0
    failures.add("2001:db8::1")
    clock.now += 59.5
    assert failures.wait_seconds("2001:db8::1") == 1
    clock.now += 1
    assert failures.wait_seconds("2001:db8::1") == 0
    failures.add("2001:db8::1")
    assert failures.wait_seconds("2001:db8::1") == 0
    failures.take_back("192.0.2.1")
    for i in range(MAX_ADDRESSES + 10):
        failures.add(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}")
    assert len(failures._found) == MAX_ADDRESSES


def tries(
    client: TestClient,
    secrets: Iterable[str],
    hosts: Iterable[str],
    answered: Callable[[int], None] = lambda status: None,
) -> list[tuple[int, Mapping[str, str]]]:
    """Sign in with all secrets at the same time; call ``answered`` with each status as it arrives."""

    async def one(secret: str, host: str) -> tuple[int, Mapping[str, str]]:
        body = f"secret={secret.replace(' ', '+')}".encode()
        scope = scope_of("POST", "/sign-in", FORM, host=host)
        answer = await answer_of(client.app, scope, body)
        answered(answer[0])
        return answer[:2]

    async def all_of_them() -> list[tuple[int, Mapping[str, str]]]:
        return await asyncio.gather(*map(one, secrets, hosts))

    found: list[tuple[int, Mapping[str, str]]] = call(client, all_of_them)
    return found


def test_password_guessing_is_limited_and_other_credentials_still_work(asked: TestClient) -> None:
    there = session(asked)
    _, reads = token(engine_of(asked), "read")
    _, admin = token(engine_of(asked), "admin")
    for i in range(authenticator.MAX_WRONG_PASSWORDS):
        answer = sign_in(asked, f"guess number {i}")
        assert answer.status_code == 401
        assert "neither the password nor a token" in answer.text
        assert "set-cookie" not in answer.headers
    # The form is not read, so the response does not reveal whether the secret is valid.
    for secret in (PASSWORD, reads, admin):
        answer = sign_in(asked, secret)
        assert answer.status_code == 429
        assert 0 < int(answer.headers["retry-after"]) <= authenticator.WRONG_PASSWORDS_SECONDS
        assert "retry in" in answer.text
    for headers in (bearer(reads), bearer(admin), there):
        assert asked.get("/api/v1/runs", headers=headers).status_code == 200

    async def unfinished() -> dict[str, Any]:
        async with anyio.create_task_group() as tasks:
            found = await hanging(asked, 10, "testclient", tasks)
            with anyio.fail_after(60):
                while "status" not in found:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        return found

    # The response does not wait for the form.
    assert call(asked, unfinished).get("status") == 429


def test_guessing_passwords_in_parallel_is_not_faster(
    asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_password = sign_in_pages.is_password

    def slowly(hashed: str, secret: str) -> bool:
        time.sleep(0.01)
        return is_password(hashed, secret)

    monkeypatch.setattr(sign_in_pages, "is_password", slowly)
    found = tries(asked, (f"guess number {i}" for i in range(40)), [HOST] * 40)
    said = Counter(status for status, _ in found)
    assert said == {
        401: authenticator.MAX_WRONG_PASSWORDS,
        429: 40 - authenticator.MAX_WRONG_PASSWORDS,
    }
    assert all("retry-after" in headers for status, headers in found if status == 429)
    (right,) = tries(asked, [PASSWORD], [HOST])
    assert right[0] == 429
    (elsewhere,) = tries(asked, [PASSWORD], ["192.0.2.2"])
    assert elsewhere[0] == 303


def test_few_sign_ins_wait_for_a_hash_and_rejected_ones_are_no_failures(
    asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = authenticator.MAX_HASHING + authenticator.MAX_HASHING_WAITING
    is_password, enough, turned_away = sign_in_pages.is_password, threading.Event(), []

    def once_the_others_are_answered(hashed: str, secret: str) -> bool:
        assert enough.wait(30)
        return is_password(hashed, secret)

    def answered(status: int) -> None:
        if status == 429:
            turned_away.append(status)
        if len(turned_away) == 40 - room:
            enough.set()

    monkeypatch.setattr(sign_in_pages, "is_password", once_the_others_are_answered)
    hosts = [f"192.0.2.{i}" for i in range(40)]
    found = tries(asked, [PASSWORD] * 40, hosts, answered)
    assert Counter(status for status, _ in found) == {303: room, 429: 40 - room}
    assert {headers["retry-after"] for status, headers in found if status == 429} == {"1"}
    assert not services_of(asked).callers.sign_ins._found


def test_only_an_unknown_token_counts_as_a_failed_sign_in(asked: TestClient) -> None:
    _, adds = token(engine_of(asked), "ingest", "erl")
    failures = services_of(asked).callers.sign_ins
    for _ in range(2 * authenticator.MAX_WRONG_PASSWORDS):
        assert sign_in(asked).status_code == 303
    answer = sign_in(asked, adds)
    assert answer.status_code == 401 and "can only add data" in answer.text
    assert not failures._found
    assert sign_in(asked, make_token("admin")).status_code == 401
    assert failures._found


async def hanging(client: TestClient, size: int, host: str, tasks: Any) -> dict[str, Any]:
    """Send a sign-in form of which ``size`` bytes arrive and the rest never does."""
    found: dict[str, Any] = {}
    parts = [b"a" * size]

    async def receive() -> dict[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": True}
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        found.update(message)

    tasks.start_soon(client.app, scope_of("POST", "/sign-in", FORM, host=host), receive, send)
    return found


def test_forms_that_never_arrive_do_not_block_batches(
    asked: TestClient, admin: dict[str, str], make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    assert asked.post("/api/v1/runs", json=run.header, headers=admin).status_code == 201
    body = run.wire(0, 3)
    monkeypatch.setattr(request_bodies, "MAX_BODIES_BYTES", 4 * MAX_SIGN_IN_BYTES)
    services = services_of(asked)

    async def flood() -> tuple[list[int | None], int, int]:
        async with anyio.create_task_group() as tasks:
            forms = [
                await hanging(asked, MAX_SIGN_IN_BYTES, f"192.0.2.{i}", tasks) for i in range(6)
            ]
            large = await hanging(asked, MAX_SIGN_IN_BYTES + 1, "192.0.2.99", tasks)
            with anyio.fail_after(60):
                while sum("status" in form for form in (*forms, large)) < 3:
                    await anyio.sleep(0.01)
            held = services.signing_in.size
            said = [form.get("status") for form in (*forms, large)]
            answer = await anyio.to_thread.run_sync(
                lambda: asked.post(f"/api/v1/runs/{run.id}/batches", json=body, headers=admin)
            )
            tasks.cancel_scope.cancel()
        return said, held, answer.status_code

    said, held, status = call(asked, flood)
    assert Counter(said) == {None: 4, 429: 2, 413: 1}
    assert held == 4 * MAX_SIGN_IN_BYTES
    assert status == 200
    assert services.signing_in.size == services.coming.size == 0


def test_signing_out_without_a_session_changes_nothing(
    asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((access, "writing"), (services_of(asked).callers, "forget")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("anybody may do this often"))
    headers = cookie(make_session()) | {"origin": ADDRESS}
    assert asked.post("/sign-out", headers=headers, follow_redirects=False).status_code == 303


def test_a_rate_limit_refusal_has_the_usual_error_format(asked: TestClient) -> None:
    for _ in range(authenticator.MAX_WRONG_TOKENS):
        services_of(asked).callers.failures.add("testclient")
    answer = asked.get("/api/v1/runs", headers=unknown())
    assert (answer.status_code, error_of(answer)["code"]) == (429, "too_many_failures")
    assert int(answer.headers["retry-after"]) > 0


def test_disconnecting_during_the_form_leaves_nothing_behind(asked: TestClient) -> None:
    async def leave() -> list[Any]:
        said: list[Any] = []
        parts = [{"type": "http.request", "body": b"secret=", "more_body": True}]

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message.get("status"))

        scope = scope_of("POST", "/sign-in", FORM)
        await asked.app(scope, receive, send)  # type: ignore[arg-type]
        return said

    assert call(asked, leave)[0] == 400
    assert services_of(asked).signing_in.size == 0


def test_the_form_accepts_secrets_up_to_the_limit(asked: TestClient) -> None:
    assert f'maxlength="{MAX_SECRET_LENGTH}"' in asked.get("/sign-in").text
    for longest in ("s" * MAX_SECRET_LENGTH, "\U0001f511" * 1_000):
        assert sign_in(asked, longest, "/compare?before=a&after=b").status_code == 401
    too_long = "s" * (MAX_SECRET_LENGTH + 1)
    for secret, asked_for in [(too_long, "/"), (PASSWORD, f"/{too_long}")] * 10:
        answer = sign_in(asked, secret, asked_for)
        assert answer.status_code == 422
        assert f"at most {MAX_SECRET_LENGTH:,} characters" in answer.text
        assert too_long not in answer.text
    # No secret was checked, so none of them counts as a failure.
    assert sign_in(asked).status_code == 303
