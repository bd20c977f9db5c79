"""Who may do what: every route of the application, asked by everybody there is. A route without an entry fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from tests.server.access.people import (
    ADDRESS,
    ELSEWHERE,
    PASSWORD,
    answer_of,
    asking,
    bearer,
    engine_of,
    session,
    token,
)
from tests.server.conftest import DATABASES, copies_of

from leakline_server.app import create_app
from leakline_server.store import tokens

MINE, FOREIGN = "mine", "foreign"
# What each route needs: nothing, add (to one project), read, change. What is there for GET is there for HEAD.
NEEDS: Final[Mapping[str, str]] = {
    "GET /healthz": "nothing",
    "GET /readyz": "nothing",
    "GET /static/{path}": "nothing",
    "GET /sign-in": "nothing",
    "POST /sign-in": "nothing",
    "POST /sign-out": "nothing",
    "POST /api/v1/runs": "add",
    "POST /api/v1/runs/{run}/batches": "add",
    "PATCH /api/v1/runs/{run}": "add",
    "POST /v1/metrics": "add",
    "GET /metrics": "read",
    "GET /api/v1/openapi.json": "read",
    "GET /api/v1/projects": "read",
    "GET /api/v1/runs": "read",
    "GET /api/v1/runs/{run}": "read",
    "GET /api/v1/runs/{run}/verdict": "read",
    "GET /api/v1/runs/{run}/incidents": "read",
    "GET /api/v1/runs/{run}/books": "read",
    "GET /api/v1/runs/{run}/types": "read",
    "GET /api/v1/runs/{run}/stores": "read",
    "GET /api/v1/runs/{run}/events": "read",
    "GET /api/v1/runs/{run}/expectations": "read",
    "GET /api/v1/runs/{run}/census": "read",
    "GET /api/v1/runs/{run}/large-objects": "read",
    "GET /api/v1/runs/{run}/holders": "read",
    "GET /api/v1/runs/{run}/snapshots": "read",
    "GET /api/v1/runs/{run}/series": "read",
    "GET /api/v1/runs/{run}/live": "read",
    "GET /api/v1/runs/{run}/export.{form}": "read",
    "GET /api/v1/series": "read",
    "GET /api/v1/compare": "read",
    "GET /api/v1/incidents": "read",
    "GET /api/v1/incidents/{fingerprint}": "read",
    "GET /api/v1/rules": "read",
    "GET /api/v1/rules/presets": "read",
    "GET /api/v1/rules/{rule}": "read",
    "GET /api/v1/webhooks": "read",
    "GET /api/v1/webhooks/{webhook}": "read",
    "GET /api/v1/webhooks/{webhook}/deliveries": "read",
    "GET /": "read",
    "GET /runs/{run}": "read",
    "GET /runs/{run}/fragments": "read",
    "GET /runs/{run}/lines": "read",
    "GET /runs/{run}/report.html": "read",
    "GET /runs/{run}/report.md": "read",
    "GET /runs/{run}/report.txt": "read",
    "GET /compare": "read",
    "GET /compare/lines": "read",
    "GET /compare/report.html": "read",
    "GET /compare/report.csv": "read",
    "GET /compare/report.md": "read",
    "GET /compare/report.txt": "read",
    "GET /overlay": "read",
    "GET /overlay/lines": "read",
    "GET /incidents": "read",
    "GET /alerts": "read",
    "GET /settings": "read",
    "GET /patterns": "read",
    "GET /docs": "read",
    "GET /docs/{name:path}": "read",
    "GET /api/v1/tokens": "change",
    "POST /api/v1/tokens": "change",
    "DELETE /api/v1/tokens/{token}": "change",
    "DELETE /api/v1/runs/{run}": "change",
    "POST /api/v1/runs/{run}/requests": "change",
    "POST /api/v1/runs/{run}/expectations": "change",
    "DELETE /api/v1/runs/{run}/expectations": "change",
    "POST /runs/{run}/expectations": "change",
    "POST /runs/{run}/expectations/take-back": "change",
    "POST /api/v1/incidents/{fingerprint}/acknowledge": "change",
    "POST /api/v1/incidents/{fingerprint}/ignore": "change",
    "POST /api/v1/incidents/{fingerprint}/close": "change",
    "DELETE /api/v1/incidents/{fingerprint}/acknowledge": "change",
    "DELETE /api/v1/incidents/{fingerprint}/ignore": "change",
    "DELETE /api/v1/incidents/{fingerprint}/close": "change",
    "POST /api/v1/rules": "change",
    "PATCH /api/v1/rules/{rule}": "change",
    "DELETE /api/v1/rules/{rule}": "change",
    # Which says what it takes instead.
    "PATCH /api/v1/rules/presets": "change",
    "DELETE /api/v1/rules/presets": "change",
    "POST /api/v1/webhooks": "change",
    "PATCH /api/v1/webhooks/{webhook}": "change",
    "DELETE /api/v1/webhooks/{webhook}": "change",
    "POST /api/v1/webhooks/{webhook}/test": "change",
    "POST /api/v1/webhooks/{webhook}/rotate": "change",
    "POST /api/v1/webhooks/{webhook}/enable": "change",
    "POST /api/v1/deliveries/{delivery}/redeliver": "change",
    "POST /deletions": "change",
    "POST /deletions/undo": "change",
    "POST /incidents/{fingerprint}/acknowledge": "change",
    "POST /incidents/{fingerprint}/ignore": "change",
    "POST /incidents/{fingerprint}/close": "change",
    "POST /incidents/{fingerprint}/take-back": "change",
    "POST /alerts/rules": "change",
    "POST /alerts/rules/{rule}": "change",
    "POST /alerts/rules/{rule}/pause": "change",
    "POST /alerts/rules/{rule}/resume": "change",
    "POST /alerts/rules/{rule}/delete": "change",
    "POST /alerts/webhooks": "change",
    "POST /alerts/webhooks/{webhook}/rotate": "change",
    "POST /alerts/webhooks/{webhook}/test": "change",
    "POST /alerts/webhooks/{webhook}/enable": "change",
    "POST /alerts/webhooks/{webhook}/disable": "change",
    "POST /alerts/webhooks/{webhook}/delete": "change",
    "POST /alerts/deliveries/{delivery}/redeliver": "change",
    "POST /settings/tokens": "change",
    "POST /settings/tokens/{token}/revoke": "change",
}
# Who is let in for what; the others are asked who they are.
MAY: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (), "expired": (), "revoked": (), "ingest": ("add",), "other": ("add",), "browser": ("add",),
    "read": ("read",), "reading session": ("read",),
    "admin": ("add", "read", "change"), "session": ("add", "read", "change"),
}  # fmt: skip
UNKNOWN: Final = ("none", "expired", "revoked")
FILLED: Final = {
    "{run}": MINE, "{fingerprint}": "0123456789abcdef", "{form}": "json", "{path}": "css/base.css",
    "{rule}": "999999", "{webhook}": "999999", "{delivery}": "999999", "{token}": "999999",
}  # fmt: skip
# Those that answer nothing, or something else, without it.
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
        if isinstance(route, Mount):
            yield f"GET {route.path}/{{path}}"
        else:
            assert isinstance(route, Route), f"say what {route} needs"
            yield from (f"{method} {route.path}" for method in sorted(route.methods or ()))


def without_an_entry(app: FastAPI) -> list[str]:
    return [each for each in routes_of(app) if each.replace("HEAD ", "GET ") not in NEEDS]


class Everybody:
    """The application, and what each kind of caller sends."""

    def __init__(self, client: TestClient, make_run: Any) -> None:
        self.client = client
        engine = engine_of(client)
        _, admin = token(engine, "admin")
        _, read = token(engine, "read")
        _, ingest = token(engine, "ingest", "mine")
        _, other = token(engine, "ingest", "other")
        _, browser = token(engine, "ingest", "mine", browser=True)
        _, expired = token(engine, "admin", issued=2 * 86_400.0)
        revoked_id, revoked = token(engine, "admin")
        tokens.revoke(engine, revoked_id, time.time())
        self.headers: dict[str, dict[str, str]] = {
            "none": {}, "ingest": bearer(ingest), "read": bearer(read), "admin": bearer(admin),
            "other": bearer(other), "expired": bearer(expired), "revoked": bearer(revoked),
            "browser": bearer(browser) | {"origin": ELSEWHERE},
            "session": session(client), "reading session": session(client, read),
        }  # fmt: skip
        self.batch = json.dumps(make_run().wire(0, 3)).encode()
        for project, run in (("mine", MINE), ("other", FOREIGN)):
            made = client.post(
                "/api/v1/runs", json={"id": run, "project": project}, headers=self.headers["admin"]
            )
            assert made.status_code == 201

    def body(self, route: str) -> tuple[bytes, str]:
        if route == "POST /v1/metrics":
            return json.dumps(_otlp("mine")).encode(), "application/json"
        if route.endswith("/batches"):
            return self.batch, "application/json"
        if route == "POST /api/v1/runs":
            return b'{"project": "mine"}', "application/json"
        if route == "POST /sign-in":
            return f"secret={PASSWORD}".replace(
                " ", "+"
            ).encode(), "application/x-www-form-urlencoded"
        is_api = route.partition(" ")[2].startswith("/api")
        return (b"{}", "application/json") if is_api else (b"", "application/x-www-form-urlencoded")

    def ask(
        self, route: str, who: str, run: str = MINE, after: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        """``after``: what stands behind the path."""
        method, _, path = route.partition(" ")
        body, kind = self.body(route)
        for name, value in (FILLED | {"{run}": run}).items():
            path = path.replace(name, value)
        query = QUERIES.get(f"GET {route.partition(' ')[2]}", "").replace(MINE, run)
        headers = {"host": "leakline.example", "content-type": kind} | self.headers[who]
        if route == "POST /sign-out":
            # The session is needed by the routes that follow.
            headers.pop("cookie", None)
        portal = self.client.portal
        assert portal is not None
        return portal.call(answer_of, self.client.app, method, path + after, query, headers, body)


def _otlp(project: str) -> dict[str, Any]:
    def attribute(key: str, value: str) -> dict[str, Any]:
        return {"key": key, "value": {"stringValue": value}}

    who = {
        "service.name": "trainer", "service.instance.id": f"worker of {project}", "leakline.project": project,
    }  # fmt: skip
    point = {"timeUnixNano": "1760000000000000000", "asInt": "1048576"}
    metric = {"name": "process.memory.usage", "unit": "By", "gauge": {"dataPoints": [point]}}
    resource = {
        "resource": {"attributes": [attribute(*pair) for pair in who.items()]},
        "scopeMetrics": [{"metrics": [metric]}],
    }
    return {"resourceMetrics": [resource]}


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


def test_a_new_route_without_an_entry_is_found() -> None:
    grown = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    grown.add_api_route("/api/v1/everything", lambda: None, methods=["DELETE"])
    assert without_an_entry(grown) == ["DELETE /api/v1/everything"]


def test_a_route_nobody_has_thought_of_is_not_open(everybody: Everybody) -> None:
    for who in ("none", "ingest", "read"):
        for route in ("POST /nowhere", "DELETE /api/v1/nothing", "PUT /runs/{run}"):
            assert everybody.ask(route, who)[0] in (401, 403), (who, route)
    assert everybody.ask("GET /nowhere", "none")[0] == 401
    assert everybody.ask("GET /static", "none")[0] == 401
    assert everybody.ask("GET /healthz/more", "none")[0] == 401


@pytest.mark.parametrize("who", MAY)
def test_everybody_gets_what_is_theirs_and_nothing_else(
    who: str, everybody: Everybody, app: FastAPI
) -> None:
    wrong = []
    for route in routes_of(app):
        found = everybody.ask(route, who)
        wanted = expected(route, who)
        good = (
            found[0] < 500 and found[0] not in (401, 403) if wanted is None else found[0] == wanted
        )
        if not good:
            wrong.append(f"{route}: {found[0]} instead of {wanted or 'in'} {found[2][:200]!r}")
    assert wrong == []


def expected(route: str, who: str) -> int | None:
    """None: it is let in, and what becomes of it is another matter."""
    method, _, path = route.partition(" ")
    need = NEEDS[f"GET {path}" if method == "HEAD" else route]
    if need == "nothing":
        # Nobody signs in from the page of another site.
        return 403 if who == "browser" and method == "POST" else None
    if who in UNKNOWN:
        return 401
    about_mine = "{run}" in path or MINE in QUERIES.get(f"GET {path}", "") or need == "add"
    if who == "other" and about_mine:
        return 404
    return None if need in MAY[who] else 403


def test_a_line_end_makes_no_route_another(everybody: Everybody, app: FastAPI) -> None:
    """Behind an address it is the same route to the router, and was another to the permissions."""
    for route in routes_of(app):
        for who in MAY:
            assert everybody.ask(route, who, after="\n")[0] == 404, (route, who)


@pytest.mark.parametrize("after", ["\r", "\x00", "\n/more", "\x7f", "\x85", "\u2028"])
def test_no_control_character_is_part_of_an_address(after: str, everybody: Everybody) -> None:
    for route in ("GET /api/v1/tokens", "POST /api/v1/runs/{run}/batches", "GET /sign-in", "GET /"):
        for who in ("none", "ingest", "read"):
            assert everybody.ask(route, who, after=after)[0] == 404, (route, who)


def test_a_refusal_says_why_in_one_line_and_shows_nothing(everybody: Everybody) -> None:
    for who, status in (("none", 401), ("expired", 401), ("revoked", 401), ("ingest", 403)):
        found, headers, body = everybody.ask("GET /api/v1/runs", who)
        assert found == status
        assert set(json.loads(body)["error"]) == {"code", "message", "details"}
        assert ("www-authenticate" in headers) == (status == 401)
    said = {who: everybody.ask("GET /api/v1/runs", who)[2] for who in UNKNOWN}
    assert b"leakline token create" in said["none"]
    assert b"is expired" in said["expired"] and b"is revoked" in said["revoked"]


def test_a_foreign_run_is_as_unknown_as_one_that_is_nowhere(everybody: Everybody) -> None:
    for route in NEEDS:
        if "{run}" in route:
            foreign = everybody.ask(route, "ingest", FOREIGN)
            nowhere = everybody.ask(route, "ingest", "nowhere")
            assert foreign[0] == nowhere[0] == 404, route
            assert foreign[2].replace(FOREIGN.encode(), b"nowhere") == nowhere[2], route


def test_no_other_token_comes_from_a_page_of_another_origin(
    everybody: Everybody, app: FastAPI
) -> None:
    elsewhere = {"origin": ELSEWHERE}
    before = everybody.headers
    everybody.headers = {who: headers | elsewhere for who, headers in before.items()}
    try:
        for who in ("ingest", "read", "admin", "session", "reading session"):
            for route in routes_of(app):
                if NEEDS.get(route, "nothing") != "nothing" or route.startswith("POST /sign"):
                    assert everybody.ask(route, who)[0] == 403, (who, route)
    finally:
        everybody.headers = before
