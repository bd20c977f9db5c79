"""What a browser loads comes compressed, what it must not wait for does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.paths import STATIC

PLOTLY = next((STATIC / "vendor" / "plotly").glob("*.min.js"))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    config = Config(database_url=f"sqlite:///{tmp_path}/x.db")
    with contextlib.closing(TestClient(create_app(config), "http://127.0.0.1:8765")) as client:
        yield client


def test_pages_and_scripts_come_compressed(client: TestClient) -> None:
    for path in ("/", f"/static/vendor/plotly/{PLOTLY.name}", "/static/css/pages.css"):
        with client.stream("GET", path) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in answer.headers["vary"]
        plain = client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert len(raw) < len(plain.content) / 2


def test_what_a_browser_has_is_not_sent_again(client: TestClient) -> None:
    path = f"/static/vendor/plotly/{PLOTLY.name}"
    etag = client.get(path).headers["etag"]
    again = client.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_whoever_does_not_ask_for_it_gets_it_plain(client: TestClient) -> None:
    answer = client.get("/api/v1/openapi.json", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers
