"""Permissions: every route of the application, requested by every kind of client. A route without an entry fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from fastapi import FastAPI
from google.protobuf.json_format import MessageToJson
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient
from tests.server.access.people import (
    ADDRESS,
    ELSEWHERE,
    PASSWORD,
    answer_of,
    asking,
    bearer,
    call,
    engine_of,
    scope_of,
    session,
    token,
)
from tests.server.conftest import DATABASES, copies_of
from tests.server.otlp_requests import WHO, memory

from leakline_server.app import create_app
from leakline_server.store import access
from leakline_server.web.auth.permissions import declared_by

MINE, FOREIGN = "mine", "foreign"
# What each route needs: nothing, add (to a project), see (one run), read, change. HEAD needs the same as GET.
ROUTES: Final = """
nothing GET /healthz /readyz /static/{path} /sign-in /shared
nothing POST /sign-in /sign-out
add POST /api/v1/runs /api/v1/runs/{run}/batches /v1/metrics
add PATCH /api/v1/runs/{run}
read GET /metrics /api/v1/openapi.json /api/v1/projects /api/v1/runs
see GET /api/v1/runs/{run} /api/v1/runs/{run}/verdict /api/v1/runs/{run}/live /api/v1/runs/{run}/export.{form}
see GET /runs/{run} /runs/{run}/fragments /runs/{run}/lines /runs/{run}/report.html /runs/{run}/report.md
see GET /runs/{run}/report.txt /runs/{run}/changes /runs/{run}/share
read GET /api/v1/runs/{run}/incidents /api/v1/runs/{run}/phases
read GET /api/v1/runs/{run}/types /api/v1/runs/{run}/containers /api/v1/runs/{run}/events
read GET /api/v1/runs/{run}/expectations /api/v1/runs/{run}/census /api/v1/runs/{run}/large-objects
read GET /api/v1/runs/{run}/holders /api/v1/runs/{run}/snapshots /api/v1/runs/{run}/series
read GET /api/v1/runs/{run}/changes
read GET /api/v1/series /api/v1/compare
read GET /api/v1/incidents /api/v1/incidents/{fingerprint} /api/v1/rules /api/v1/rules/presets
read GET /api/v1/rules/{rule} /api/v1/webhooks /api/v1/webhooks/{webhook} /api/v1/webhooks/{webhook}/deliveries
read GET / /runs /compare /compare/lines /compare/report.html /compare/report.csv
read GET /compare/report.md /compare/report.txt /overlay /overlay/lines /incidents /alerts /settings
read GET /docs /docs/{name:path} /alerts/webhooks
change GET /api/v1/tokens
change POST /api/v1/tokens /api/v1/runs/{run}/requests /api/v1/runs/{run}/expectations /runs/{run}/expectations
change POST /runs/{run}/share /runs/{run}/expectations/take-back /api/v1/incidents/{fingerprint}/acknowledge
change POST /api/v1/incidents/{fingerprint}/ignore /api/v1/incidents/{fingerprint}/close /api/v1/rules
change POST /api/v1/webhooks /api/v1/webhooks/{webhook}/test /api/v1/webhooks/{webhook}/rotate
change POST /api/v1/webhooks/{webhook}/enable /api/v1/deliveries/{delivery}/redeliver /deletions /deletions/undo
change POST /incidents/{fingerprint}/{action}
change POST /incidents/{fingerprint}/take-back /alerts/rules /alerts/rules/{rule} /alerts/rules/{rule}/{step}
change POST /alerts/rules/{rule}/delete /alerts/webhooks
change POST /alerts/webhooks/{webhook}/rotate /alerts/webhooks/{webhook}/{action} /alerts/webhooks/{webhook}/delete
change POST /alerts/deliveries/{delivery}/redeliver /settings/tokens /settings/tokens/{token}/revoke
change DELETE /api/v1/tokens/{token} /api/v1/runs/{run} /api/v1/runs/{run}/expectations
change DELETE /api/v1/incidents/{fingerprint}/acknowledge /api/v1/incidents/{fingerprint}/ignore
change DELETE /api/v1/incidents/{fingerprint}/close /api/v1/rules/{rule} /api/v1/rules/presets
change DELETE /api/v1/webhooks/{webhook}
change PATCH /api/v1/rules/{rule} /api/v1/rules/presets /api/v1/webhooks/{webhook}
"""
NEEDS: Final[Mapping[str, str]] = {
    f"{method} {path}": need
    for need, method, *paths in map(str.split, ROUTES.split("\n")[1:-1])
    for path in paths
}
# The clients that each need accepts; all others must authenticate.
MAY: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (), "expired": (), "revoked": (), "ingest": ("add",), "other": ("add",), "browser": ("add",),
    "read": ("see", "read"), "reading session": ("see", "read"), "link": ("see",), "link in a cookie": ("see",),
    "admin": ("add", "see", "read", "change"), "session": ("add", "see", "read", "change"),
}  # fmt: skip
UNKNOWN: Final = ("none", "expired", "revoked")
FILLED: Final = {
    "{run}": MINE, "{fingerprint}": "0123456789abcdef", "{form}": "json", "{path}": "css/base.css",
    "{rule}": "999999", "{action}": "enable", "{webhook}": "999999", "{delivery}": "999999", "{token}": "999999",
}  # fmt: skip
# Routes that return nothing, or something else, without a query.
QUERIES: Final = {
    "GET /runs/{run}/lines": "x=0,1",
    "GET /compare/lines": f"before={MINE}&after={MINE}&x=0,1",
    "GET /overlay/lines": f"run={MINE}&run={MINE}&x=0,1",
    **{
        f"GET {path}": f"before={MINE}&after={MINE}"
        for path in ("/api/v1/compare", "/compare", *(f"/compare/report.{f}" for f in ("html", "md", "txt", "csv")))
    },
    "GET /overlay": f"run={MINE}",
    "GET /api/v1/series": f"run={MINE}",
}  # fmt: skip


def routes_of(app: FastAPI) -> Iterator[str]:
    for route in app.routes:
        yield from routes_of_one(route)


def routes_of_one(route: BaseRoute) -> Iterator[str]:
    if isinstance(route, Mount):
        yield f"GET {route.path}/{{path}}"
    else:
        assert isinstance(route, Route), f"say what {route} needs"
        yield from (f"{method} {route.path}" for method in sorted(route.methods or ()))


def without_an_entry(app: FastAPI) -> list[str]:
    return [each for each in routes_of(app) if each.replace("HEAD ", "GET ") not in NEEDS]


class Everybody:
    """The application, and the headers that each kind of client sends."""

    def __init__(self, client: TestClient, make_run: Any) -> None:
        self.client = client
        engine = engine_of(client)

        def made(*of: Any, **more: Any) -> dict[str, str]:
            return bearer(token(engine, *of, **more)[1])

        revoked, secret = token(engine, "admin")
        access.revoke(engine, revoked, time.time())
        self.headers: dict[str, dict[str, str]] = {
            "none": {}, "expired": made("admin", issued=2 * 86_400.0), "revoked": bearer(secret),
            "ingest": made("ingest", "mine"), "other": made("ingest", "other"), "admin": made("admin"),
            "browser": made("ingest", "mine", browser=True) | {"origin": ELSEWHERE}, "read": made("read"),
            "session": session(client), "reading session": session(client, token(engine, "read")[1]),
        }  # fmt: skip
        self.batch = json.dumps(make_run().wire(0, 3)).encode()
        link = token(engine, "share", run_id=MINE)[1]
        self.headers["link"] = bearer(link)
        self.headers["link in a cookie"] = {"cookie": f"leakline_link={link}"}
        for project, run in (("mine", MINE), ("other", FOREIGN)):
            body = {"id": run, "project": project}
            answer = client.post("/api/v1/runs", json=body, headers=self.headers["admin"])
            assert answer.status_code == 201

    def body(self, route: str) -> tuple[bytes, str]:
        if route == "POST /v1/metrics":
            made = memory([1], who=WHO | {"leakline.project": "mine"})
            return MessageToJson(made).encode(), "application/json"
        if route.endswith("/batches"):
            return self.batch, "application/json"
        if route == "POST /api/v1/runs":
            return b'{"project": "mine"}', "application/json"
        if " /api" in route:
            return b"{}", "application/json"
        secret = f"secret={PASSWORD.replace(' ', '+')}" if route == "POST /sign-in" else ""
        return secret.encode(), "application/x-www-form-urlencoded"

    def ask(
        self, route: str, who: str, run: str = MINE, after: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request, with ``after`` appended to the path."""
        method, _, path = route.partition(" ")
        body, kind = self.body(route)
        for name, value in (FILLED | {"{run}": run}).items():
            path = path.replace(name, value)
        query = QUERIES.get(f"GET {route.partition(' ')[2]}", "").replace(MINE, run)
        headers = {"host": "leakline.example", "content-type": kind} | self.headers[who]
        if route == "POST /sign-out":
            # The session must stay valid for the routes that follow.
            headers.pop("cookie", None)
        scope = scope_of(method, path + after, headers, query)
        answer: tuple[int, dict[str, str], bytes] = call(
            self.client, answer_of, self.client.app, scope, body
        )
        return answer


@pytest.fixture(scope="module", params=DATABASES)
def everybody(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, make_run: Any
) -> Iterator[Everybody]:
    with copies_of(request).new(tmp_path_factory.mktemp("matrix")) as url:
        app = create_app(asking(url, allowed_origins=(ELSEWHERE,)))
        with TestClient(app, base_url=ADDRESS) as client:
            yield Everybody(client, make_run)


@pytest.fixture(scope="module")
def app(everybody: Everybody) -> FastAPI:
    assert isinstance(everybody.client.app, FastAPI)
    return everybody.client.app


def test_every_route_has_an_entry_and_every_entry_a_route(app: FastAPI) -> None:
    assert without_an_entry(app) == []
    assert set(NEEDS) - set(routes_of(app)) == set()
    grown = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    grown.add_api_route("/api/v1/everything", lambda: None, methods=["DELETE"])
    assert without_an_entry(grown) == ["DELETE /api/v1/everything"]


def test_every_route_declares_what_it_requires(app: FastAPI) -> None:
    for route in app.routes:
        for name in routes_of_one(route):
            assert declared_by(route) == NEEDS[name.replace("HEAD ", "GET ")], name


def test_a_route_without_a_declaration_is_for_administrators(
    everybody: Everybody, app: FastAPI
) -> None:
    app.router.routes.append(Route("/undeclared", lambda _: Response("in")))
    try:
        for who, may in MAY.items():
            status = everybody.ask("GET /undeclared", who)[0]
            assert status == (401 if who in UNKNOWN else 200 if "change" in may else 403), who
    finally:
        app.router.routes.pop()


def test_an_unlisted_route_is_not_open(everybody: Everybody) -> None:
    for who in ("none", "ingest", "read"):
        for route in (
            "POST /nowhere",
            "DELETE /api/v1/nothing",
            "PUT /runs/{run}",
            "POST /static/x",
        ):
            assert everybody.ask(route, who)[0] in (401, 403), (who, route)
    assert everybody.ask("GET /nowhere", "none")[0] == 401
    assert everybody.ask("GET /static", "none")[0] == 401
    assert everybody.ask("GET /healthz/more", "none")[0] == 401


@pytest.mark.parametrize("who", MAY)
def test_each_client_can_use_exactly_the_routes_it_may(
    who: str, everybody: Everybody, app: FastAPI
) -> None:
    wrong = []
    for route in routes_of(app):
        found = everybody.ask(route, who)
        wanted = expected(route, who)
        is_let_in = found[0] < 500 and found[0] not in (401, 403)
        if not (is_let_in if wanted is None else found[0] == wanted):
            wrong.append(f"{route}: {found[0]} instead of {wanted or 'in'} {found[2][:200]!r}")
    assert wrong == []


def expected(route: str, who: str) -> int | None:
    """Return the expected status, or None if the request is authorized and its status does not matter here."""
    method, _, path = route.partition(" ")
    need = NEEDS[f"GET {path}" if method == "HEAD" else route]
    if need == "nothing":
        # A page of another site cannot sign in.
        return 403 if who == "browser" and method == "POST" else None
    if who in UNKNOWN:
        return 401
    about_mine = "{run}" in path or MINE in QUERIES.get(f"GET {path}", "") or need == "add"
    if who == "other" and about_mine:
        return 404
    return None if need in MAY[who] else 403


@pytest.mark.parametrize("after", ["\n", "\r", "\x00", "\n/more", "\x7f", "\x85", "\u2028"])
def test_a_control_character_in_an_address_is_not_found(
    after: str, everybody: Everybody, app: FastAPI
) -> None:
    # With a line end appended, the router found the same route but the permissions did not.
    few = ("GET /api/v1/tokens", "POST /api/v1/runs/{run}/batches", "GET /sign-in", "GET /")
    for route in routes_of(app) if after == "\n" else few:
        for who in ("none", "ingest", "read"):
            assert everybody.ask(route, who, after=after)[0] == 404, (route, who)


def test_a_refusal_says_why_in_one_line_and_reveals_nothing(everybody: Everybody) -> None:
    for who, status in (("none", 401), ("expired", 401), ("revoked", 401), ("ingest", 403)):
        found, headers, body = everybody.ask("GET /api/v1/runs", who)
        assert found == status
        assert set(json.loads(body)["error"]) == {"code", "message", "details"}
        assert ("www-authenticate" in headers) == (status == 401)
    said = {who: everybody.ask("GET /api/v1/runs", who)[2] for who in UNKNOWN}
    assert b"leakline token create" in said["none"]
    assert b"is expired" in said["expired"] and b"is revoked" in said["revoked"]


def test_a_foreign_run_looks_like_a_missing_one(everybody: Everybody) -> None:
    for route in NEEDS:
        if "{run}" in route:
            for who in ("ingest", "link"):
                foreign = everybody.ask(route, who, FOREIGN)
                nowhere = everybody.ask(route, who, "nowhere")
                # Batches are refused before the run is looked up.
                adds = who == "link" and route.endswith("/batches")
                assert foreign[0] == nowhere[0] == (403 if adds else 404), (route, who)
                assert foreign[2].replace(FOREIGN.encode(), b"nowhere") == nowhere[2], (route, who)


def test_only_browser_tokens_work_from_another_origin(
    everybody: Everybody, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {"origin": ELSEWHERE}
    sent = {who: headers | elsewhere for who, headers in everybody.headers.items()}
    monkeypatch.setattr(everybody, "headers", sent)
    for who in (
        "ingest",
        "read",
        "admin",
        "session",
        "reading session",
        "link",
        "link in a cookie",
    ):
        for route in routes_of(app):
            if NEEDS.get(route, "nothing") != "nothing" or route.startswith("POST /sign"):
                assert everybody.ask(route, who)[0] == 403, (who, route)
