"""Security headers of every answer, and compression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.paths import STATIC

NEEDED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Iterator[TestClient]:
    url = f"sqlite:///{tmp_path_factory.mktemp('headers')}/x.db"
    app = create_app(Config(database_url=url, allowed_origins=("https://a.example",)))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        make_run().begin(client, 9)
        yield client


ANSWERS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "a page": ("GET", "/", 200, {}),
    "a page that is not there": ("GET", "/runs/nobody", 404, {}),
    "a report as a file": ("GET", "/runs/r1/report.html", 200, {}),
    "JSON": ("GET", "/api/v1/runs", 200, {}),
    "an export": ("GET", "/api/v1/runs/r1/export.csv", 200, {}),
    "the description": ("GET", "/api/v1/openapi.json", 200, {}),
    "metrics": ("GET", "/metrics", 200, {}),
    "a head": ("HEAD", "/", 200, {}),
    "a picture": ("GET", "/static/images/favicon.svg", 200, {}),
    "a file that is not there": ("GET", "/static/nothing.js", 404, {}),
    "a batch": ("POST", "/api/v1/runs/r1/batches", 422, {"content": b"{}"}),
    "a wrong method": ("PUT", "/api/v1/runs", 405, {}),
    "a wrong field": ("GET", "/api/v1/runs?limit=0", 422, {}),
    "a page of another site": ("POST", "/api/v1/runs", 403, {"headers": {"origin": "https://evil.example"}}),
    "a foreign name": ("GET", "/", 403, {"headers": {"host": "evil.example"}}),
    "what a browser asks first": ("OPTIONS", "/api/v1/runs", 200, {
        "headers": {"origin": "https://a.example", "access-control-request-method": "POST"},
    }),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_of_any_kind_has_them(what: str, api: TestClient) -> None:
    method, path, status, more = ANSWERS[what]
    answer = api.request(method, path, **more)
    assert answer.status_code == status, answer.text
    has_them(answer.headers)


def test_an_accepted_batch_has_them(api: TestClient, make_run: Any) -> None:
    answer = api.post("/api/v1/runs/r1/batches", json=make_run().wire(9, 3))
    assert answer.status_code == 200
    has_them(answer.headers)


def test_a_bug_has_them(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr("leakline_server.store.runs.runs.list_runs", broken)
        answer = api.get("/api/v1/runs")
    assert answer.status_code == 500
    has_them(answer.headers)


def has_them(headers: Any) -> None:
    for name, value in NEEDED.items():
        assert headers.get_list(name) == [value], name
    (policy,) = headers.get_list("content-security-policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    scripts = rules.get("script-src", rules["default-src"])
    assert scripts in ("'none'", "'self'")
    assert "unsafe" not in policy


def test_what_is_no_page_may_load_nothing(api: TestClient) -> None:
    for path in (
        "/api/v1/runs",
        "/static/images/favicon.svg",
        "/metrics",
        "/api/v1/runs/r1/export.json",
    ):
        policy = api.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'"), path


def test_a_script_that_pages_of_others_load_still_may_be(api: TestClient) -> None:
    ours = api.get("/static/js/leakline.js").headers
    assert ours["cross-origin-resource-policy"] == "cross-origin"
    assert api.get("/static/css/base.css").headers["cross-origin-resource-policy"] == "same-origin"


PLOTLY = next((STATIC / "vendor" / "plotly").glob("*.min.js"))


def test_pages_and_scripts_come_compressed(api: TestClient) -> None:
    for path in ("/", f"/static/vendor/plotly/{PLOTLY.name}", "/static/css/pages.css"):
        with api.stream("GET", path) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in answer.headers["vary"]
        plain = api.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert len(raw) < len(plain.content) / 2


def test_what_a_browser_has_is_not_sent_again(api: TestClient) -> None:
    path = f"/static/vendor/plotly/{PLOTLY.name}"
    etag = api.get(path).headers["etag"]
    again = api.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_whoever_does_not_ask_for_it_gets_it_plain(api: TestClient) -> None:
    answer = api.get("/api/v1/openapi.json", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers
