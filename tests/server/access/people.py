"""A server with authentication on, and the kinds of people and programs that send requests to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from starlette.testclient import TestClient
from starlette.types import Message

from leakline_server.config import Config
from leakline_server.security.credentials import Scope
from leakline_server.security.token_issuing import Wish, issue
from leakline_server.store.engine import Engine
from leakline_server.web.auth.authenticator import Caller, Callers

ADDRESS: Final = "http://leakline.example"
PASSWORD: Final = "correct horse battery"
ELSEWHERE: Final = "http://notebook.example"
HOST: Final = "192.0.2.1"
NOW: Final = 1_760_000_000.0


def asking(url: str, **settings: Any) -> Config:
    """Return the settings of a server with authentication on a network address."""
    settings = {"admin_password": PASSWORD, "host": "10.0.0.1"} | settings
    return Config(database_url=url, **settings)


def services_of(client: TestClient) -> Any:
    return client.app.state.services  # type: ignore[attr-defined]


def engine_of(client: TestClient) -> Engine:
    engine: Engine = services_of(client).engine
    return engine


def call(client: TestClient, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on the event loop of the application."""
    assert client.portal is not None
    return client.portal.call(function, *arguments)


def token(
    engine: Engine, scope: Scope, project: str | None = None, *,
    days: float | None = 1.0, issued: float = 0.0, browser: bool = False, run_id: str | None = None,
) -> tuple[int, str]:  # fmt: skip
    """Issue a token ``issued`` seconds ago and return its id and the token."""
    wish = Wish(scope, project, "", days, browser, run_id)
    made, secret = issue(engine, wish, time.time() - issued)
    return made.id, secret


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def sign_in(client: TestClient, secret: str = PASSWORD, asked_for: str = "/") -> Any:
    """Post the sign-in form and return the response; the client keeps the cookie."""
    form = {"secret": secret, "next": asked_for}
    return client.post("/sign-in", data=form, headers={"origin": ADDRESS}, follow_redirects=False)


def session(client: TestClient, secret: str = PASSWORD) -> dict[str, str]:
    """Sign in and return the headers that a browser then sends from a page of the server."""
    answer = sign_in(client, secret)
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    return {"cookie": cookie, "origin": ADDRESS}


def error_of(answer: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer.json()["error"]
    assert set(found) == {"code", "message", "details"}
    assert "\n" not in found["message"]
    return found


def scope_of(
    method: str, path: str, headers: Mapping[str, str], query: str = "", host: str = HOST
) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        "client": (host, 4711), "server": ("leakline.example", 80),
    }  # fmt: skip


async def answer_of(
    app: Any, scope: dict[str, Any], body: bytes
) -> tuple[int, dict[str, str], bytes]:
    """Call the app directly: the test client waits for streams to end. This reader leaves once the response begins."""
    begun, said, parts = anyio.Event(), [(body, False)], []
    found: Message = {}

    async def receive() -> Message:
        if said:
            return {"type": "http.request", "body": said.pop()[0], "more_body": False}
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.update(message)
            begun.set()
        else:
            parts.append(message.get("body", b""))

    with anyio.fail_after(30):
        await app(scope, receive, send)
    told = {k.decode(): v.decode() for k, v in found["headers"]}
    return found["status"], told, b"".join(parts)


class Clock:
    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def who(made: Callers, headers: dict[str, str], host: str = HOST) -> Caller:
    sent = [(k.encode(), v.encode()) for k, v in headers.items()]
    return asyncio.run(made.of(sent, "http", host))
