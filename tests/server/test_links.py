"""Links that a run gives, and links to its code: only to web addresses and known forges."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.web.rendering.table_cells import code_link, commit_link, web_link

COMMIT = "1f0c9a2b" * 5


@pytest.mark.parametrize(
    "link",
    [
        None, 3, "", "profile", "/runs/r1", "//evil.example", "javascript:alert(1)", "data:text/html,x", "file:///etc",
        "https://", "http://[", "https://github.com@evil.example/", "https://a.example/ x", "https:\\\\a.example",
        "https://a.example/" + "x" * 3_000,
    ],
)  # fmt: skip
def test_what_does_not_lead_into_the_web_is_no_link(link: object) -> None:
    assert web_link(link) is None


def test_a_link_is_told_by_its_host() -> None:
    found = web_link("https://wandb.example:8443/run/7?x=1#top")
    assert found is not None and found.outside
    assert (found.text, found.href) == ("wandb.example", "https://wandb.example:8443/run/7?x=1#top")


@pytest.mark.parametrize(
    "repository",
    [
        None, 7, "", "https://forge.example/a/b", "/srv/git/a.git", "javascript://github.com/a/b",
        "https://github.com.evil.example/a/b", "https://github.com/a/../b", "https://github.com/a", "https://github.com/a/b?x",
    ],
)  # fmt: skip
def test_a_repository_that_is_not_known_gives_no_link(repository: object) -> None:
    assert commit_link({"repository": repository, "commit": COMMIT}) is None


@pytest.mark.parametrize("commit", [None, "", "main", "1f0c9a", "1F0C9A2B", f"{COMMIT}/../x"])
def test_what_is_no_commit_gives_no_link(commit: object) -> None:
    assert commit_link({"repository": "https://github.com/a/b", "commit": commit}) is None


@pytest.mark.parametrize(
    "repository",
    [
        "https://github.com/erl/trading", "https://github.com/erl/trading.git", "https://me:secret@github.com/erl/trading.git/",
        "git@github.com:erl/trading.git", "ssh://git@github.com/erl/trading", "ssh://github.com:22/erl/trading",
    ],
)  # fmt: skip
def test_a_commit_on_a_known_forge_is_linked_however_it_was_fetched(repository: str) -> None:
    environment = {"repository": repository, "commit": COMMIT}
    assert commit_link(environment) == f"https://github.com/erl/trading/commit/{COMMIT}"
    at_line = code_link(environment, "training/erl_trainer.py:281")
    assert at_line == f"https://github.com/erl/trading/blob/{COMMIT}/training/erl_trainer.py#L281"


@pytest.mark.parametrize("location", [None, "", "trainer.py", "../x.py:3", "a b.py:3", "x.py:0x3"])
def test_a_place_that_is_no_line_of_the_repository_gives_no_link(location: object) -> None:
    environment = {"repository": "https://gitlab.com/a/b/c", "commit": COMMIT}
    assert code_link(environment, location) is None


def test_the_head_of_a_run_links_to_its_commit(api: TestClient, make_run: Any) -> None:
    run = make_run()
    environment = {"commit": COMMIT, "repository": "https://codeberg.org/erl/trading.git"}
    for name, told in (("r1", environment), ("r2", {"commit": COMMIT})):
        header = {**run.header, "id": name, "environment": told}
        assert api.post("/api/v1/runs", json=header).status_code == 201
    linked, plain = api.get("/runs/r1").text, api.get("/runs/r2").text
    link = f'<a href="https://codeberg.org/erl/trading/commit/{COMMIT}" rel="noopener noreferrer">'
    assert link in linked
    assert "codeberg" not in plain and COMMIT[:10] in plain


def test_notes_are_listed_newest_first_with_their_links(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    wire = run.wire(0, 9)
    told = {"see <b>this</b>": "https://wandb.example/run", "later": "javascript:alert(1)"}
    note = {"sequence": 2, "kind": "note", "name": "note", "generation": 0, "phase": None}
    wire["events"] = [
        {**note, "time": run.started + i, "data": {"text": text, "link": link}}
        for i, (text, link) in enumerate(told.items())
    ]
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    said = {"notes": [{"text": "checked by hand", "link": "http://wiki.example/x"}]}
    assert api.patch("/api/v1/runs/r1", json=said).status_code == 200
    page = api.get("/runs/r1").text
    notes = page[page.index('id="notes"') :]
    notes = notes[: notes.index("</section>")]
    assert notes.index("checked by hand") < notes.index("later") < notes.index("see &lt;b&gt;this")
    assert '<a href="http://wiki.example/x" rel="noopener noreferrer">wiki.example</a>' in notes
    assert 'href="javascript' not in page
