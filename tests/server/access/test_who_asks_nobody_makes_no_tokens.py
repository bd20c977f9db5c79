"""A server that asks nobody: whoever comes by makes no token that would let them in once it asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.server.access.people import ELSEWHERE, bearer, engine_of, error_of, token
from tests.server.databases import Copies

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store import tokens


@pytest.fixture
def open_to_all(sqlite_copies: Copies, tmp_path: Path) -> Iterator[TestClient]:
    with sqlite_copies.new(tmp_path) as url:
        config = Config(database_url=url, allowed_origins=("*",))
        with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
            yield client


@pytest.mark.parametrize("headers", [{}, {"origin": ELSEWHERE}, {"origin": "http://127.0.0.1"}])
def test_nobody_makes_or_revokes_a_token_over_http(
    headers: dict[str, str], open_to_all: TestClient
) -> None:
    engine = engine_of(open_to_all)
    made, _ = token(engine, "read")
    api = (
        open_to_all.post("/api/v1/tokens", json={"scope": "admin"}, headers=headers),
        open_to_all.delete(f"/api/v1/tokens/{made}", headers=headers),
    )
    for answer in api:
        assert (answer.status_code, error_of(answer)["code"]) == (409, "nobody_is_asked")
        assert "leakline token create" in error_of(answer)["message"]
    form = {"scope": "admin", "expires": "never"}
    pages = (
        open_to_all.post("/settings/tokens", data=form, headers=headers),
        open_to_all.post(f"/settings/tokens/{made}/revoke", headers=headers),
    )
    for page in pages:
        assert page.status_code == 409
        assert "leakline token create" in page.text
    (kept,) = tokens.list_tokens(engine)
    assert (kept.id, kept.revoked_at) == (made, None)


def test_the_page_shows_what_there_is_and_says_where_they_are_made(open_to_all: TestClient) -> None:
    made, secret = token(engine_of(open_to_all), "read")
    page = open_to_all.get("/settings", headers=bearer(secret))
    assert page.status_code == 200
    assert "leakline token create" in page.text and f'id="token-{made}"' in page.text
    assert 'action="/settings/tokens' not in page.text
    assert len(open_to_all.get("/api/v1/tokens").json()["items"]) == 1
