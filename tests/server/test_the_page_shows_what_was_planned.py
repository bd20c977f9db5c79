"""From a declared plan to the page: bands with their deviations, budgets, the level and the score of forecasts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from leakline.analysis.results import Verdict
from leakline_server.web.expectations_view import expectations
from leakline_server.web.forecasts_view import past_forecasts

MIB, GIB = 2**20, 2**30
RSS = "process.rss_bytes"
Send = Callable[..., None]

PLAN = (
    ("band", RSS, {"first": 0, "last": 3, "low_bytes": 0, "high_bytes": 100 * GIB}),
    ("band", RSS, {"first": 4, "last": None, "low_bytes": 0, "high_bytes": 1 * MIB}),
    ("band", "gauge.<b>", {"first": 0, "last": 20, "low_bytes": 0, "high_bytes": 5}),
    ("budget", "run", {"normal_bytes": 20 * MIB, "leak_bytes": 100 * GIB}),
    ("budget", "generation", {"normal_bytes": 1 * GIB, "leak_bytes": None}),
    ("budget", "evolve<b>", {"normal_bytes": 1, "leak_bytes": 2}),
)


@pytest.fixture
def send(api: TestClient, make_run: Any) -> Send:
    """A run that leaks 10 MiB in each generation, with a plan."""

    def send(generations: int = 12, plan: Any = PLAN) -> None:
        run = make_run(id="r1")
        run.create(api)
        wire = run.wire(0, 3 * generations)
        rows = [
            {
                "sequence": 0, "time": run.started, "kind": kind, "name": name, "data": data,
                "generation": None, "phase": None,
            }
            for kind, name, data in plan
        ]  # fmt: skip
        wire["events"] = [*rows, *wire["events"]]
        answer = api.post("/api/v1/runs/r1/batches", json=wire)
        assert answer.status_code == 200, answer.text

    return send


def verdict_of(api: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/api/v1/runs/r1/verdict").json()
    return found


def rows_of(page: str) -> list[list[str]]:
    (section,) = re.findall(
        r'<section class="panel" id="expectations".*?</section>', page, re.DOTALL
    )
    body = section.split("<tbody>")[1]
    rows = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in body.split("<tr")[1:]]
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in rows]


def test_the_page_lists_each_band_with_its_deviations_and_each_budget(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send()
    eventually(
        lambda: verdict_of(api).get("generations") == 12 and verdict_of(api).get("assertions")
    )
    rows = rows_of(api.get("/runs/r1").text)
    states = {row[0]: (row[1], row[2]) for row in rows if row[2] not in ("above", "below")}
    # What is broken is first, and what holds last.
    assert list(states.items()) == [
        ("app.Env: 2", ("program", "broken")),
        (f"{RSS}, from generation 4 on: 0 B to 1.00 MiB", ("band", "broken")),
        ("budget of the whole run", ("budget", "more than normal")),
        ("gauge.&lt;b&gt;, generations 0 to 20: 0 to 5", ("band", "not measured")),
        ("budget of evolve&lt;b&gt;", ("budget", "not measured")),
        (f"{RSS}, generations 0 to 3: 0 B to 100.00 GiB", ("band", "holds")),
        ("budget of each generation", ("budget", "holds")),
    ]
    first = next(i for i, row in enumerate(rows) if row[0].startswith(f"{RSS}, from"))
    below = rows[first + 1 : first + 9]
    assert [row[0] for row in below] == [f"– generation {g}" for g in range(4, 12)]
    assert all(row[4].startswith("+") and row[2] == "above" for row in below)
    assert [row[-1] for row in rows if "evolve" in row[0]] == ["evolve&lt;b&gt; never ran."]


def test_the_plan_is_drawn_behind_the_trend(api: TestClient, send: Send, eventually: Any) -> None:
    send()
    eventually(lambda: verdict_of(api).get("assertions"))
    page = api.get("/runs/r1").text
    (chart,) = re.findall(r'data-chart[^>]*>(\{"id":"trend".*?)</script>', page)
    assert '"label":"plan"' in chart
    assert page.index('id="findings"') < page.index('id="expectations"') < page.index('id="books"')


def test_many_deviations_are_counted_and_not_all_listed(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send(30, [("band", RSS, {"first": 0, "last": None, "low_bytes": None, "high_bytes": 5})])
    eventually(lambda: verdict_of(api).get("generations") == 30)
    rows = rows_of(api.get("/runs/r1").text)
    assert len(rows) == 13
    assert rows[-1][0] == "– 20 more"


def test_the_answer_is_what_the_description_says(
    api: TestClient, send: Send, eventually: Any
) -> None:
    send(25)
    eventually(lambda: verdict_of(api).get("generations") == 25)
    answer = verdict_of(api)
    found = TypeAdapter(Verdict).validate_python(answer)
    again = TypeAdapter(Verdict).dump_python(found, mode="json")
    for name in ("assertions", "settled_at_generation", "forecast_score"):
        assert again[name] == answer[name]
    assert answer["settled_at_generation"] is None
    assert answer["forecast_score"]["forecasts"] >= 3
    page = api.get("/runs/r1").text
    assert answer["forecast_score"]["sentence"] in page


def test_the_whole_time_of_the_run_is_told_until_it_has_ended(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    """12 of 25 generations, of 1.6 to 2 hours each: report 001 expected 40 to 50 hours."""
    hours = (1.6, 1.8, 2.0)
    run = make_run(id="r1", extra={"generation.seconds": lambda n: 3600 * hours[n // 3 % 3]})
    run.create(api)
    run.send(api, 0, 36)
    eventually(lambda: verdict_of(api).get("generations") == 12)
    duration = verdict_of(api)["duration"]
    assert duration["seconds"]["estimate"] == pytest.approx(45 * 3600)
    assert 40 * 3600 <= duration["seconds"]["low"] <= duration["seconds"]["high"] <= 50 * 3600
    assert duration["sentence"].startswith("All 25 generations take about 45 h 0 min (")
    assert duration["sentence"] in api.get("/runs/r1").text
    assert duration["sentence"] in api.get("/runs/r1/report.md").text
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    eventually(lambda: verdict_of(api)["duration"] is None)
    assert "generations take about" not in api.get("/runs/r1").text


def test_a_verdict_from_before_plans_were_checked_has_no_such_section() -> None:
    assert expectations((), "generation") is None


def test_the_page_tells_how_forecasts_turned_out_by_how_far_ahead_they_looked(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run(id="r1")
    run.create(api)
    run.send(api, 0, 3 * 24)
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    eventually(lambda: verdict_of(api).get("generations") == 24)
    leads = verdict_of(api)["forecast_score"]["by_lead"]
    assert [(lead["ahead_from"], lead["ahead_to"]) for lead in leads] == [(2, 3), (4, 7), (8, 15)]
    page = api.get("/runs/r1").text
    (section,) = re.findall(r'<section class="panel" id="forecasts".*?</section>', page, re.DOTALL)
    for lead in leads:
        assert f"{lead['ahead_from']} to {lead['ahead_to']}" in section
        assert f"{100 * lead['median_error']:.1f} %" in section
        assert f"{lead['within']} of {lead['forecasts']}" in section
        for each in lead["past"]:
            assert f"– generation {each['made_at']} for {each['generation']}" in section


def test_a_run_of_which_nothing_was_foretold_has_no_such_part(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run(id="r1", leak_bytes=0)
    run.create(api)
    run.send(api, 0, 3 * 24)
    eventually(lambda: verdict_of(api).get("generations") == 24)
    assert 'id="forecasts"' not in api.get("/runs/r1").text
    assert past_forecasts(None, "generation") is None
    older = {"forecasts": 1, "median_error": 0.1, "within": 1, "past": [], "sentence": "One."}
    assert past_forecasts(older, "generation") is None


def test_plain_numbers_stay_plain() -> None:
    check = {
        "origin": "band", "metric": "gauge.x", "first": 1, "last": 1, "low": 0.5, "high": None, "leak": None,
        "process": None, "state": "broken", "outside": 1,
        "deviations": [{"generation": 1, "measured": 0.25, "off_by": -0.25}], "sentence": "Below.",
    }  # fmt: skip
    section = expectations([check], "epoch")
    assert section is not None and section.table is not None
    assert [cell.text for cell in section.table.rows[1].cells] == [
        "– epoch 1", "", "below", "0.25", "\u22120.25", "",
    ]  # fmt: skip
