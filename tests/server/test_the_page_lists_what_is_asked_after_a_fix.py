"""From recorded cleanups and findings to the list of ticks on the page of a run."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

from leakline_server.web.checklist import ticks


def listed(page: str) -> dict[str, tuple[str, str, str]]:
    """question -> (shape, word, evidence), as they stand on the page."""
    (part,) = re.findall(r'<ul class="panel-body ticks">.*?</ul>', page, re.DOTALL)
    pattern = r'#(\w+)"/>.*?<b>(.*?)</b> <span class="word">(.*?)</span><br>(.*?)</p>'
    return {
        question: (shape, word, re.sub(r"<.*?>", "", evidence))
        for shape, question, word, evidence in re.findall(pattern, part, re.DOTALL)
    }


def test_the_page_lists_four_questions_with_their_evidence(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run()
    run.create(api)
    wire = run.wire(0, 36)
    data = {"before_bytes": 9000, "after_bytes": 9000, "freed_bytes": 0, "seconds": 0.5}
    event = {
        "sequence": 4,
        "time": run.started,
        "kind": "cleanup",
        "name": "agent<b>",
        "data": data,
    }
    wire["events"] = [*wire["events"], {"generation": 1, "phase": None, **event}]
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"] == 12)
    page = api.get("/runs/r1").text
    found = listed(page)
    assert [word for _, word, _ in found.values()] == [
        "not measured",
        "failed",
        "not yet",
        "failed",
    ]
    assert [shape for shape, _, _ in found.values()] == [
        "absent",
        "confirmed",
        "learning",
        "confirmed",
    ]
    assert (
        "12 generations complete, held against the 25"
        in found["Every planned generation has run"][2]
    )
    assert (
        "agent&lt;b&gt; ran once and freed nothing." in found["Cleanups run and free something"][2]
    )
    # After what was found, and named in the contents.
    assert page.index('id="findings"') < page.index('id="checklist"') < page.index('id="books"')
    assert 'href="#checklist"' in page


def test_a_verdict_of_before_there_was_a_checklist_has_none() -> None:
    assert ticks(None) == ()
    assert ticks({"status": "ok"}) == ()
