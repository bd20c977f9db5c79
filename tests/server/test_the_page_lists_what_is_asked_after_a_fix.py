"""From recorded cleanups and findings to the list of ticks on the page of a run."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

from leakline_server.web.checklist import ticks

GIB = 2**30


def listed(page: str) -> dict[str, tuple[str, str, str]]:
    """question -> (shape, word, evidence), as they stand on the page."""
    (part,) = re.findall(r'<ul class="panel-body ticks">.*?</ul>', page, re.DOTALL)
    pattern = r'#(\w+)"/>.*?<b>(.*?)</b> <span class="word">(.*?)</span><br>(.*?)</p>'
    return {
        question: (shape, word, re.sub(r"<.*?>", "", evidence).replace("\xa0", " "))
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


def test_a_healthy_run_shows_four_ticks_on_its_page(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    """Level memory here and on its device, past where a fix promised, and a cleanup that gives GPU memory back."""
    device = {
        "cuda.0.allocated_bytes": lambda _: GIB,
        "cuda.0.reserved_bytes": lambda _: 2 * GIB,
    }
    run = make_run(leak_bytes=0, extra=device)
    run.create(api)
    wire = run.wire(0, 60)
    freed = {
        "before_bytes": 9000, "after_bytes": 9000, "freed_bytes": 0, "seconds": 0.5,
        "devices": {"cuda.0.allocated_bytes": [GIB, GIB], "cuda.0.reserved_bytes": [9 * GIB, 2 * GIB]},
    }  # fmt: skip
    wire["events"] = [
        *(each for each in wire["events"] if each["kind"] != "expect"),
        {"sequence": 0, "time": run.started, "kind": "fix", "name": "detach losses", "generation": 0,
         "phase": None, "data": {"promises": {"generations": 12}}},
        {"sequence": 4, "time": run.started, "kind": "cleanup", "name": "agent GPU", "generation": 1,
         "phase": None, "data": freed},
    ]  # fmt: skip
    answer = api.post("/api/v1/runs/r1/batches", json=wire)
    assert answer.status_code == 200, answer.text
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"] == 20)
    found = listed(api.get("/runs/r1").text)
    assert [(shape, word) for shape, word, _ in found.values()] == [("ok", "done")] * 4, found
    evidence = [said for _, _, said in found.values()]
    assert "the most on one device was 2.00 GiB" in evidence[0]
    assert "held against the 12 that the fix promised" in evidence[2]
    assert "agent GPU ran once and freed 7.00 GiB of GPU memory." in evidence[3]


def test_a_verdict_of_before_there_was_a_checklist_has_none() -> None:
    assert ticks(None) == ()
    assert ticks({"status": "ok"}) == ()
