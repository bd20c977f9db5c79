"""A page with charts names all modules that its script needs: none waits until the one that imports it was read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.paths import STATIC

AHEAD = re.compile(r'<link rel="modulepreload" href="/static/js/([\w-]+\.js)">')
SCRIPT = re.compile(r'<script type="module" src="/static/js/([\w-]+\.js)"></script>')
IMPORT = re.compile(r'^\s*import\b.*?"\./([\w-]+\.js)"', re.MULTILINE | re.DOTALL)


def needed(name: str, found: set[str]) -> set[str]:
    if name not in found:
        found.add(name)
        for other in IMPORT.findall((STATIC / "js" / name).read_text()):
            needed(other, found)
    return found


@pytest.fixture(scope="module")
def api(shared_api: TestClient, make_run: Any) -> TestClient:
    for number in (1, 2):
        run = make_run(id=f"r{number}", instance=f"p{number}")
        run.create(shared_api)
        run.send(shared_api, 0, 30)
    return shared_api


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("/runs/r1", "run.js"),
        ("/compare?before=r1&after=r2", "compare.js"),
        ("/overlay?run=r1&run=r2", "overlay.js"),
    ],
)
def test_what_a_script_needs_is_named_ahead_of_it(path: str, entry: str, api: TestClient) -> None:
    page = api.get(path).text
    assert entry in SCRIPT.findall(page)
    assert page.index("modulepreload") < page.index(f'/static/js/{entry}"></script>')
    named = AHEAD.findall(page)
    assert len(named) == len(set(named)) > 5
    assert set(named) == needed(entry, set())
    for name in named:
        assert api.get(f"/static/js/{name}").status_code == 200


def test_a_page_of_lists_loads_no_charts(api: TestClient) -> None:
    assert not AHEAD.findall(api.get("/").text)
