"""Declared fixes on the pages: promises, effects, and the list of ticks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from leakline.analysis.comparison.comparison_results import Comparison
from leakline.analysis.results import Verdict
from leakline_server.web.run_page.fix_effects import ticks

MIB = 2**20
PROMISES = {
    "growth_bytes_per_generation": MIB, "peak_bytes": 2**34, "count:app.Env": 2, "gpu_peak_bytes": 2**30,
    "generations": 25, "possible_generations": 12,
}  # fmt: skip
Send = Callable[..., None]
Fixed = Callable[..., None]


@pytest.fixture
def fixed(api: TestClient, make_run: Any) -> Fixed:
    """Twelve generations of a run with these fixes, declared as it begins; it leaks 10 MiB in each."""

    def fixed(run_id: str, fixes: dict[str, dict[str, Any]], later: float = 0.0) -> None:
        run = make_run(id=run_id, instance=f"process of {run_id}")
        run.started += later
        run.create(api)
        wire = run.wire(0, 36)
        event = {
            "sequence": 0,
            "time": run.started,
            "kind": "fix",
            "generation": None,
            "phase": None,
        }
        told = [{**event, "name": name, "data": data} for name, data in fixes.items()]
        wire["events"] = [*told, *wire["events"]]
        answer = api.post(f"/api/v1/runs/{run_id}/batches", json=wire)
        assert answer.status_code == 200, answer.text

    return fixed


@pytest.fixture
def send(fixed: Fixed) -> Send:
    """A run with one fix."""

    def send(run_id: str = "r1", promised: Any = None) -> None:
        data = {"phase": "evolve<b>", "location": "app.py:7", "promises": promised or PROMISES}
        fixed(run_id, {"let them go": data})

    return send


def verdict_of(api: TestClient, run: str = "r1") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/api/v1/runs/{run}/verdict").json()
    return found


def rows_of(page: str) -> dict[str, list[str]]:
    """Return of the table "Expectations": promise of the fix -> its state, what was measured, and the sentence."""
    (section,) = re.findall(
        r'<section class="panel" id="expectations".*?</section>', page, re.DOTALL
    )
    body = section.split("<tbody>")[1]
    rows = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in body.split("<tr")[1:]]
    plain = [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in rows]
    return {row[0].removeprefix("let them go (app.py:7): "): [*row[2:4], row[5]] for row in plain}


def test_the_page_of_a_run_tells_promise_by_promise(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send()
    eventually(lambda: verdict_of(api).get("assertions"))
    rows = rows_of(api.get("/runs/r1").text)
    state, measured, sentence = rows["growth per generation"]
    assert (state, measured) == ("broken", "10.00 MiB")
    assert "10 times the 1.00 MiB promised" in sentence
    assert rows["growth in evolve&lt;b&gt;"][:2] == ["undecided", "not measured"]
    assert rows["peak memory"][0] == "holds"
    assert rows["Env alive"][:2] == ["broken", "178"]
    assert rows["peak GPU memory"][1] == "not measured"
    assert rows["generations to complete"][:2] == ["undecided", "12"]
    state, _, sentence = rows["generations that memory allows"]
    assert state == "holds"
    assert sentence.endswith("12 were promised.")


def test_a_promise_named_as_a_series_or_a_budget_is_neither_on_the_charts(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send(promised={"process.rss_bytes": 2**40, "generation.kept_bytes": 1, "generations": None})
    eventually(lambda: verdict_of(api).get("assertions"))
    page = api.get("/runs/r1")
    assert page.status_code == 200
    assert "No promise of this name is known." in page.text


def test_the_end_of_the_run_decides_what_was_open(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send()
    eventually(lambda: verdict_of(api).get("assertions"))
    api.patch("/api/v1/runs/r1", json={"state": "failed"})
    ended = "The run ended after 12 generations; 25 were promised."
    eventually(lambda: ended in {check["sentence"] for check in verdict_of(api)["assertions"]})
    rows = rows_of(api.get("/runs/r1").text)
    assert rows["generations to complete"][0] == "broken"
    assert "so far" not in rows["peak memory"][2].lower()


def test_the_comparison_shows_the_promises_of_the_run_after(api: TestClient, send: Send) -> None:
    send("r1", {"generations": 99})
    send("r2")
    rows = rows_of(api.get("/compare?before=r1&after=r2").text)
    assert rows["generations to complete"][2].endswith("25 were promised.")
    assert rows["growth per generation"][0] == "broken"


def test_the_answers_are_what_the_description_says(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send("r1")
    send("r2")
    eventually(lambda: verdict_of(api).get("assertions"))
    for path, model in (("runs/r1/verdict", Verdict), ("compare?before=r1&after=r2", Comparison)):
        answer = api.get(f"/api/v1/{path}")
        found = TypeAdapter(model).validate_json(answer.content)
        assert (
            TypeAdapter(model).dump_python(found, mode="json")["assertions"]
            == answer.json()["assertions"]
        )
        promised = {check["metric"] for check in answer.json()["assertions"]}
        assert promised > set(PROMISES) - {"count:app.Env"} | {"type.app.Env.count"}


def test_a_promise_that_is_none_is_shown_and_breaks_no_page(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send(promised={"grows <b>": 5, "peak_bytes": "a lot", "generations": None})
    eventually(lambda: verdict_of(api).get("assertions"))
    rows = rows_of(api.get("/runs/r1").text)
    assert rows["grows &lt;b&gt;"][0] == "undecided"
    assert rows["peak memory"][:2] == ["undecided", "not measured"]


def test_each_of_several_fixes_has_its_effect_in_the_comparison_and_what_was_rejected(
    api: TestClient, fixed: Fixed
) -> None:
    fixed("r1", {})
    fixes = {
        "drop them": {"phase": "evolve", "rejected": "pickling <b>them</b>: too slow"},
        "close them": {"promises": {"count:app.Env": 2}},
        "upload less": {"phase": "upload"},
        "everything": {},
    }
    fixed("r2", fixes)
    answer = api.get("/api/v1/compare?before=r1&after=r2").json()
    effects = {each["fix"]: each for each in answer["effects"]}
    assert set(effects) == set(fixes)
    # Both runs do the same, so what was measured has had no effect; what never ran is not told at all.
    assert effects["close them"]["outcome"] == effects["everything"]["outcome"] == "no_effect"
    assert effects["close them"]["measure"] == "count"
    assert effects["upload less"]["outcome"] == "undecided"
    assert effects["drop them"]["rejected"] == "pickling <b>them</b>: too slow"
    page = api.get("/compare?before=r1&after=r2").text
    (section,) = re.findall(r'<section class="panel" id="effects".*?</section>', page, re.DOTALL)
    assert "no effect" in section and "not decidable" in section
    assert "pickling &lt;b&gt;them&lt;/b&gt;: too slow" in section
    told = api.get("/compare/report.md?before=r1&after=r2").text
    assert "## What each fix has done" in told
    assert "no effect:" in told and "rejected:" in told


def test_fixes_declared_at_the_start_are_told_against_the_baseline_at_their_marks(
    api: TestClient, fixed: Fixed, eventually: Any
) -> None:
    fixed("r1", {})
    api.patch("/api/v1/runs/r1", json={"tags": ["baseline"]})
    fixed("r2", {"everything": {}}, later=60.0)
    eventually(lambda: verdict_of(api, "r2").get("effects"))
    (own,) = verdict_of(api, "r2")["effects"]
    assert own["outcome"] == "undecided" and "a comparison with a run without it" in own["sentence"]
    page = api.get("/runs/r2").text
    (section,) = re.findall(r'<section class="panel" id="effects".*?</section>', page, re.DOTALL)
    assert "no effect" in section and "/compare?before=r1&amp;after=r2" in section
    # At its mark on the trend, which is drawn before.
    assert "against " in page.split('id="effects"')[0]


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
    assert [(shape, word) for shape, word, _ in found.values()] == [
        ("absent", "not measured"), ("confirmed", "failed"), ("learning", "not yet"), ("confirmed", "failed"),
    ]  # fmt: skip
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
    device = {"cuda.0.allocated_bytes": lambda _: GIB, "cuda.0.reserved_bytes": lambda _: 2 * GIB}
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
