"""Pages of other sites can neither change a run nor read a server that listens on loopback."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config


@pytest.fixture
def make_client(tmp_path: Path) -> Any:
    with contextlib.ExitStack() as stack:

        def make(base_url: str = "http://127.0.0.1:8765", **settings: Any) -> TestClient:
            config = Config(database_url=f"sqlite:///{tmp_path}/x.db", **settings)
            client = TestClient(create_app(config), base_url, raise_server_exceptions=False)
            return stack.enter_context(client)

        yield make


def status(client: TestClient, origin: str, method: str = "POST") -> int:
    answer = client.request(method, "/api/v1/runs", json={}, headers={"origin": origin})
    if answer.status_code == 403:
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "details"}
    return int(answer.status_code)


def test_a_page_of_another_site_changes_nothing(make_client: Any) -> None:
    client = make_client()
    for origin in (
        "http://evil.example",
        "null",
        "",
        "http://127.0.0.1:9",
        "file://127.0.0.1:8765",
    ):
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            assert status(client, origin, method) == 403
    assert client.get("/api/v1/runs").json()["items"] == []


def test_our_pages_and_allowed_origins_may(make_client: Any) -> None:
    client = make_client(
        allowed_origins=("https://a.example",), public_url="https://leakline.example"
    )
    for origin in ("http://127.0.0.1:8765", "https://A.example", "https://leakline.example"):
        assert status(client, origin) == 201
    assert status(client, "https://b.example") == 403


def test_reading_needs_no_origin_of_ours(make_client: Any) -> None:
    headers = {"origin": "https://b.example"}
    assert make_client().get("/api/v1/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "10.0.0.1", "[::1", "::"])
def test_a_foreign_name_for_loopback_is_refused_in_one_sentence(
    host: str, make_client: Any
) -> None:
    answer = make_client().get("/api/v1/runs", headers={"host": host})
    assert answer.status_code == 403
    assert "LEAKLINE_PUBLIC_URL" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.2:8765", "[::1]:8765"])
def test_every_name_of_loopback_is_answered(host: str, make_client: Any) -> None:
    assert make_client().get("/healthz", headers={"host": host}).status_code == 200


def test_a_public_address_and_a_public_server_are_answered(make_client: Any) -> None:
    named = {"host": "leakline.example"}
    public = make_client(public_url="https://leakline.example")
    assert public.get("/healthz", headers=named).status_code == 200
    assert make_client(insecure=True).get("/healthz", headers=named).status_code == 200


def test_a_bug_is_an_error_of_the_contract_and_a_page(
    make_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()

    def broken(*_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("leakline_server.store.runs.list_runs", broken)
    answer = client.get("/api/v1/runs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    page = client.get("/")
    assert page.status_code == 500
    assert page.headers["content-type"].startswith("text/html")
    assert "nobody foresaw" not in page.text + answer.text


def test_head_is_answered_where_get_is(make_client: Any) -> None:
    client = make_client()
    client.post("/api/v1/runs", json={"id": "r1"})
    for path in ("/", "/runs/r1", "/healthz", "/readyz"):
        assert client.head(path).status_code == 200
    assert client.head("/runs/nobody").status_code == 404


def test_a_change_nobody_knows_is_refused(make_client: Any) -> None:
    client = make_client()
    client.post("/api/v1/runs", json={"id": "r1"})
    answer = client.patch("/api/v1/runs/r1", json={"stats": "finished"})
    assert answer.status_code == 422
    assert answer.json()["error"]["details"]["field"] == "stats"


def test_control_characters_reach_no_database(api: TestClient) -> None:
    api.post("/api/v1/runs", json={"id": "r1", "process": {"instance": "p"}})
    end = {"state": "failed", "reason": "killed\x00\x1b by hand", "instance": "p"}
    assert api.patch("/api/v1/runs/r1", json=end).json()["reason"] == "killed by hand"
    wrong = api.patch("/api/v1/runs/r1", json={"state": "failed", "instance": "p\x00"})
    assert wrong.status_code == 422
    for query in ("r%00", "project:a%00b", "tag:%00", "status:%00", "%00"):
        assert api.get(f"/?q={query}").status_code == 200


def test_stars_are_matched_in_linear_time(api: TestClient, make_run: Any) -> None:
    run = make_run(extra={"gauge." + "a" * 500: lambda _: 1})
    run.create(api)
    run.send(api, 0, 6)

    def names(*patterns: str) -> set[str]:
        query = [("name", p) for p in patterns] + [("x", "sequence")]
        answer = api.get("/api/v1/runs/r1/series", params=query)
        return {item["name"] for item in answer.json()["items"]}

    started = time.monotonic()
    assert names(*["*a" * 200 + "*b"] * 50) == set()
    assert time.monotonic() - started < 5
    assert names("*.anon_*") == {"process.anon_bytes"}
    assert names("process.*rss*s") == {"process.rss_bytes"}
    assert names("process.rss_bytes*rss_bytes") == set()
    assert len(names("*")) > 4
    answer = api.get("/api/v1/runs/r1/series", params={"name": "x" * 513})
    assert answer.status_code == 422


def test_ctrl_c_during_an_upload_is_quiet_and_prompt(serve: Any) -> None:
    server = serve()
    assert server.request("POST", "/api/v1/runs", {"id": "r1"})[0] == 201
    paths = ("/api/v1/runs/r1/batches", "/api/v1/runs")
    with contextlib.ExitStack() as stack:
        for path in paths:
            upload = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            upload.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            # The server asks for the body: it waits for it now.
            assert b"100" in upload.recv(100)
            upload.sendall(b"{")
        seconds, said = server.interrupt()
    assert seconds < 2
    assert not re.search("Traceback|Error|Cancel", said), said
