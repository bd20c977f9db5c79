"""A link gives read access to one run until it expires or is revoked; its token does not stay in an address."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, engine_of, session, token

from leakline_server.app import create_app
from leakline_server.config import Config


@pytest.fixture
def admin(asking_client: TestClient) -> dict[str, str]:
    return session(asking_client)


@pytest.fixture
def asking_client(database_url: str) -> Iterator[TestClient]:
    app = create_app(asking(database_url))
    with TestClient(app, base_url=ADDRESS, follow_redirects=False) as client:
        headers = bearer(token(engine_of(client), "admin")[1])
        for run in ("mine", "other"):
            body = {"id": run, "project": "erl", "name": f"{run}-name"}
            assert client.post("/api/v1/runs", json=body, headers=headers).status_code == 201
        yield client


def make_link(client: TestClient, headers: dict[str, str], days: str = "7") -> str:
    answer = client.post("/runs/mine/share", data={"days": days}, headers=headers)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    (link,) = re.findall(r'aria-label="Link"><code id="link">([^<]+)</code>', answer.text)
    return html.unescape(link)


def open_link(client: TestClient, link: str) -> tuple[Any, dict[str, SimpleCookie]]:
    """Open a link; return the response and its cookies by path."""
    client.cookies.clear()
    answer = client.get(link)
    client.cookies.clear()
    cookies = [SimpleCookie(each) for each in answer.headers.get_list("set-cookie")]
    return answer, {next(iter(each.values()))["path"]: each for each in cookies}


def shown(cookie: SimpleCookie) -> dict[str, str]:
    (name, value), *_ = cookie.items()
    return {"cookie": f"{name}={value.value}", "accept": "text/html"}


def test_a_link_opens_its_run_with_a_cookie_for_its_paths_only(
    asking_client: TestClient, admin: dict[str, str]
) -> None:
    client = asking_client
    link = make_link(client, admin)
    assert link.startswith(f"{ADDRESS}/shared?token=leakline_share_")
    answer, cookies = open_link(client, link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/mine")
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert set(cookies) == {"/runs/mine", "/api/v1/runs/mine"}
    (made,) = cookies["/runs/mine"].values()
    assert made["httponly"] and made["samesite"] == "lax"
    assert 6 * 86_400 < int(made["max-age"]) <= 7 * 86_400
    headers = shown(cookies["/runs/mine"])
    page = client.get("/runs/mine", headers=headers)
    assert page.status_code == 200
    # The page mentions no other runs, no channels and no actions that would be refused.
    assert "data-reads-only" in page.text and 'aria-label="Pages"' not in page.text
    assert not {"Compare with", "Notify", "Create link"} & set(
        re.findall(r"[A-Z]\w+(?: \w+)*", page.text)
    )
    for path in (
        "/fragments?tab=info",
        "/report.html",
        "/report.md",
        "/report.txt",
        "/lines?x=0..1",
    ):
        assert client.get(f"/runs/mine{path}", headers=headers).status_code == 200, path
    for path in ("", "/verdict", "/export.json"):
        assert client.get(f"/api/v1/runs/mine{path}", headers=headers).status_code == 200, path
    for path, status in (
        ("/runs/other", 404), ("/api/v1/runs/other", 404), ("/compare?before=mine&after=mine", 403),
        ("/", 403), ("/alerts", 403), ("/settings", 403), ("/api/v1/runs", 403), ("/api/v1/tokens", 403),
        ("/api/v1/runs/mine/snapshots", 403), ("/runs/mine?run=other", 404),
    ):  # fmt: skip
        assert client.get(path, headers=headers).status_code == status, path
    for path in ("/runs/mine/share", "/deletions", "/runs/mine/expectations"):
        assert client.post(path, data={"pick": "mine"}, headers=headers).status_code == 403


def test_only_administrators_make_links_and_only_with_authentication(
    asking_client: TestClient, admin: dict[str, str], tmp_path: Any
) -> None:
    client = asking_client
    reading = session(client, token(engine_of(client), "read")[1])
    for days, headers, status in (("7", reading, 403), ("8", admin, 422), ("", admin, 422)):
        answer = client.post("/runs/mine/share", data={"days": days}, headers=headers)
        assert answer.status_code == status
    assert client.post("/runs/nobody/share", data={"days": "1"}, headers=admin).status_code == 404
    assert "Create link" in client.get("/runs/mine", headers=admin).text
    assert "Create link" not in client.get("/runs/mine", headers=reading).text
    form = {"scope": "share", "expires": "30"}
    assert client.post("/settings/tokens", data=form, headers=admin).status_code == 422
    assert client.post("/api/v1/tokens", json={"scope": "share"}, headers=admin).status_code == 422
    config = Config(database_url=f"sqlite:///{tmp_path}/open.db")
    with TestClient(create_app(config), base_url="http://127.0.0.1") as asks_nobody:
        asks_nobody.post("/api/v1/runs", json={"id": "mine"})
        assert asks_nobody.post("/runs/mine/share", data={"days": "1"}).status_code == 409
        page = asks_nobody.get("/runs/mine").text
        assert "Create link" not in page and "LEAKLINE_PUBLIC_URL" in page


def test_a_link_is_listed_as_a_token_and_ends_when_it_is_revoked(
    asking_client: TestClient, admin: dict[str, str]
) -> None:
    client = asking_client
    link = make_link(client, admin, "1")
    _, cookies = open_link(client, link)
    headers = shown(cookies["/runs/mine"])
    assert client.get("/runs/mine", headers=headers).status_code == 200
    (made,) = [
        each
        for each in client.get("/api/v1/tokens", headers=admin).json()["items"]
        if each["scope"] == "share"
    ]
    assert (made["run"], made["name"], made["project"]) == ("mine", "mine-name", None)
    assert "link that reads only run mine" in client.get("/settings", headers=admin).text
    client.post(f"/settings/tokens/{made['id']}/revoke", headers=admin)
    gone = client.get("/runs/mine", headers=headers)
    assert (gone.status_code, gone.headers["location"]) == (303, "/sign-in?next=/runs/mine")
    answer, cookies = open_link(client, link)
    assert (answer.status_code, cookies) == (404, {})
    assert "expired, was revoked, or is incomplete" in answer.text


def test_a_wrong_expired_or_foreign_token_opens_nothing(
    asking_client: TestClient, monkeypatch: pytest.MonkeyPatch, admin: dict[str, str]
) -> None:
    client, engine = asking_client, engine_of(asking_client)
    others = [token(engine, scope)[1] for scope in ("read", "admin")]
    expired = token(engine, "share", run_id="mine", issued=2 * 86_400.0)[1]
    for secret in ("", "x", "leakline_share_" + "x" * 43, "\u20ac", expired, *others):
        answer, cookies = open_link(client, f"/shared?token={secret}")
        assert (answer.status_code, cookies) == (404, {}), secret
    # The cookie does not accept other kinds of tokens.
    for secret in others:
        assert (
            client.get(
                "/api/v1/runs/mine", headers={"cookie": f"leakline_link={secret}"}
            ).status_code
            == 401
        )
    assert client.post("/sign-in", data={"secret": expired}).status_code == 401


def test_a_link_adds_to_a_session_and_outlives_it(
    asking_client: TestClient, admin: dict[str, str]
) -> None:
    client = asking_client
    _, cookies = open_link(client, make_link(client, admin))
    link = shown(cookies["/runs/mine"])["cookie"]
    both = {"cookie": f"{link}; {admin['cookie']}"}
    assert "Create link" in client.get("/runs/mine", headers=both).text
    client.post("/sign-out", headers=admin)
    page = client.get("/runs/mine", headers=both)
    assert page.status_code == 200 and "Create link" not in page.text


def test_with_https_the_cookie_is_secure_and_the_link_uses_the_public_address(
    database_url: str,
) -> None:
    app = create_app(asking(database_url, public_url="https://leakline.example"))
    with TestClient(app, base_url="https://leakline.example", follow_redirects=False) as client:
        headers = bearer(token(engine_of(client), "admin")[1])
        client.post("/api/v1/runs", json={"id": "mine"}, headers=headers)
        link = make_link(client, headers)
        assert link.startswith("https://leakline.example/shared?token=")
        assert "LEAKLINE_PUBLIC_URL" not in client.get("/runs/mine", headers=headers).text
        _, cookies = open_link(client, link)
        (made,) = cookies["/runs/mine"].values()
        assert (made.key, made["secure"]) == ("__Secure-leakline_link", True)


def test_removing_a_run_removes_its_links(asking_client: TestClient, admin: dict[str, str]) -> None:
    client = asking_client
    link = make_link(client, admin)
    engine = engine_of(client)
    headers = bearer(token(engine, "admin")[1])
    client.patch("/api/v1/runs/mine", json={"state": "finished"}, headers=headers)
    assert client.delete("/api/v1/runs/mine", headers=headers).status_code in (200, 204)
    # A new run of the same name has not been shared.
    client.post("/api/v1/runs", json={"id": "mine"}, headers=headers)
    assert open_link(client, link)[0].status_code == 404
