"""Expectations: declared plans and counts, counts that a person accepts, promises of fixes, and the checklist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from pydantic import TypeAdapter
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline.analysis.comparison.comparison_results import Comparison
from leakline.analysis.results import Verdict
from leakline.snapshot import Event
from leakline_server.store.schema import alerts
from leakline_server.web.expectations.view import expectations
from leakline_server.web.run_page.fix_effects import ticks
from leakline_server.web.run_page.verdict_view import past_forecasts

Send = Callable[..., None]
MIB, GIB = 2**20, 2**30
RSS = "process.rss_bytes"

PLAN = (
    ("band", RSS, {"first": 0, "last": 3, "low_bytes": 0, "high_bytes": 100 * GIB}),
    ("band", RSS, {"first": 4, "last": None, "low_bytes": 0, "high_bytes": 1 * MIB}),
    ("band", "gauge.<b>", {"first": 0, "last": 20, "low_bytes": 0, "high_bytes": 5}),
    ("budget", "run", {"normal_bytes": 20 * MIB, "leak_bytes": 100 * GIB}),
    ("budget", "generation", {"normal_bytes": 1 * GIB, "leak_bytes": None}),
    ("budget", "evolve<b>", {"normal_bytes": 1, "leak_bytes": 2}),
)


@pytest.fixture
def send_plan(api: TestClient, make_run: Any) -> Send:
    """Return a function that sends a run with a plan; the run leaks 10 MiB in each generation."""

    def send_plan(generations: int = 12, plan: Any = PLAN) -> None:
        begin_with(api, make_run(), generations, plan)

    return send_plan


def begin_with(
    api: TestClient, run: Any, generations: int, events: Any, without: str | None = None
) -> None:
    """Create the run and send these generations in one batch, with the events at its beginning."""
    run.create(api)
    wire = run.wire(0, 3 * generations)
    at = {"sequence": 0, "time": run.started, "generation": None, "phase": None}
    rows = [{**at, "kind": kind, "name": name, "data": data} for kind, name, data in events]
    wire["events"] = [*rows, *(each for each in wire["events"] if each["kind"] != without)]
    answer = api.post(f"/api/v1/runs/{run.id}/batches", json=wire)
    assert answer.status_code == 200, answer.text


def verdict_of(api: TestClient, run: str = "r1") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/api/v1/runs/{run}/verdict").json()
    return found


def rows_of(page: str) -> list[list[str]]:
    (section,) = re.findall(
        r'<section class="panel" id="expectations".*?</section>', page, re.DOTALL
    )
    body = section.split("<tbody>")[1]
    rows = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in body.split("<tr")[1:]]
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in rows]


def test_the_page_lists_each_band_with_its_deviations_and_each_budget(
    api: TestClient, send_plan: Send, eventually: Any
) -> None:
    send_plan()
    eventually(lambda: verdict_of(api).get("generations") == 12)
    page = api.get("/runs/r1?tab=all").text
    # It is also drawn behind the trend.
    (chart,) = re.findall(r'data-chart[^>]*>(\{"id":"trend".*?)</script>', page)
    assert '"label":"plan"' in chart
    assert page.index('id="findings"') < page.index('id="expectations"') < page.index('id="phases"')
    rows = rows_of(page)
    states = {row[0]: (row[1], row[2]) for row in rows if row[2] not in ("above", "below")}
    # Broken expectations come first, and those that hold come last.
    assert list(states.items()) == [
        ("app.Env: 2", ("program", "broken")),
        (f"{RSS}, from generation 4 onward: 0 B to 1.00 MiB", ("band", "broken")),
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


def test_many_deviations_are_counted_and_only_some_are_listed(
    api: TestClient, send_plan: Send, eventually: Any
) -> None:
    send_plan(30, [("band", RSS, {"first": 0, "last": None, "low_bytes": None, "high_bytes": 5})])
    eventually(lambda: verdict_of(api).get("generations") == 30)
    rows = rows_of(api.get("/runs/r1?tab=all").text)
    assert len(rows) == 13
    assert rows[-1][0] == "– 20 more"


def test_the_duration_of_the_run_is_predicted_until_it_has_ended(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    """Complete 12 of 25 generations of 1.6 to 2 hours each; report 001 expected 40 to 50 hours."""
    hours = (1.6, 1.8, 2.0)
    make_run(id="r1", extra={"generation.seconds": lambda n: 3600 * hours[n // 3 % 3]}).begin(
        api, 36
    )
    eventually(lambda: verdict_of(api).get("generations") == 12)
    duration = verdict_of(api)["duration"]
    assert duration["seconds"]["estimate"] == pytest.approx(45 * 3600)
    assert 40 * 3600 <= duration["seconds"]["low"] <= duration["seconds"]["high"] <= 50 * 3600
    assert duration["sentence"].startswith("All 25 generations take about 45 h 0 min (")
    assert duration["sentence"] in api.get("/runs/r1?tab=all").text
    assert duration["sentence"] in api.get("/runs/r1/report.md").text
    finished = api.patch("/api/v1/runs/r1", json={"state": "finished"})
    assert finished.status_code == 200
    eventually(lambda: verdict_of(api)["duration"] is None)
    assert "generations take about" not in api.get("/runs/r1?tab=all").text


def test_a_verdict_from_before_plans_were_checked_has_no_plan_section() -> None:
    assert expectations((), "generation") is None


def test_the_page_shows_the_accuracy_of_forecasts_by_lead_time(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    make_run(id="r1").begin(api, 3 * 24)
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    eventually(lambda: verdict_of(api).get("generations") == 24)
    answer = verdict_of(api)
    again = TypeAdapter(Verdict).dump_python(
        TypeAdapter(Verdict).validate_python(answer), mode="json"
    )
    for name in ("assertions", "settled_at_generation", "forecast_score"):
        assert again[name] == answer[name]
    assert answer["settled_at_generation"] is None
    assert answer["forecast_score"]["forecasts"] >= 3
    leads = answer["forecast_score"]["by_lead"]
    assert [(lead["lead_from"], lead["lead_to"]) for lead in leads] == [(2, 3), (4, 7), (8, 15)]
    page = api.get("/runs/r1?tab=all").text
    assert answer["forecast_score"]["sentence"] in page
    (section,) = re.findall(r'<section class="panel" id="forecasts".*?</section>', page, re.DOTALL)
    for lead in leads:
        assert f"{lead['lead_from']} to {lead['lead_to']}" in section
        assert f"{100 * lead['median_error']:.1f} %" in section
        assert f"{lead['within']} of {lead['forecasts']}" in section
        for each in lead["past"]:
            assert f"– generation {each['made_at']} for {each['generation']}" in section


def test_a_run_without_forecasts_has_no_forecast_section(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    make_run(id="r1", leak_bytes=0).begin(api, 3 * 24)
    eventually(lambda: verdict_of(api).get("generations") == 24)
    assert 'id="forecasts"' not in api.get("/runs/r1?tab=all").text
    assert past_forecasts(None, "generation") is None
    older = {"forecasts": 1, "median_error": 0.1, "within": 1, "past": [], "sentence": "One."}
    assert past_forecasts(older, "generation") is None


def test_plain_numbers_stay_plain() -> None:
    check = {
        "origin": "band", "metric": "gauge.x", "first": 1, "last": 1, "low": 0.5, "high": None, "leak": None,
        "process": None, "state": "broken", "violations": 1,
        "deviations": [{"generation": 1, "measured": 0.25, "difference": -0.25}], "sentence": "Below.",
    }  # fmt: skip
    section = expectations([check], "epoch")
    assert section is not None and section.table is not None
    assert [cell.text for cell in section.table.rows[1].cells] == [
        "– epoch 1", "", "below", "0.25", "\u22120.25", "",
    ]  # fmt: skip


# Complete generations of three snapshots each; one more than learning takes.
LEARNED = 27
AGENTS_17 = {"type": "app.Agent", "low": 17, "high": 17}
OF_FIRST = "/api/v1/runs/first/expectations"


class Forms(HTMLParser):
    """The forms of a page: label of the button -> (action, fields)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, dict[str, str]]] = {}
        self._action, self._fields = "", dict[str, str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._action, self._fields = told.get("action", ""), {}
        elif tag == "input" and told.get("type") == "hidden":
            self._fields[told["name"]] = told["value"]
        elif tag == "button" and "aria-label" in told:
            self.found[told["aria-label"]] = (self._action, self._fields)


def agents(count: Callable[[int], int], environments: int = 2) -> dict[str, Any]:
    """Return the counts of a run with constant environments; the count of agents differs by generation."""
    return {
        "type.app.Agent.count": lambda sequence: count(sequence // 3),
        "type.app.Env.count": lambda sequence: environments,
    }


def steady(make_run: Any, run: str, count: int = 17) -> Any:
    return make_run(id=run, instance=run, leak_bytes=0, extra=agents(lambda _: count))


def doubling(make_run: Any) -> Any:
    """Return a later run whose count of agents doubles after two generations."""
    extra = agents(lambda generation: 17 if generation < 2 else 33)
    return make_run(id="later", instance="later", leak_bytes=0, extra=extra)


@pytest.fixture
def learned(api: TestClient, make_run: Any) -> Iterator[TestClient]:
    """Yield an application with a run that always has 17 agents."""
    run = steady(make_run, "first")
    run.begin(api, LEARNED)
    yield api


def expected(api: TestClient, run: str) -> list[tuple[str, int, bool]]:
    found = api.get(f"/api/v1/runs/{run}").json()["expectations"]
    return [(each["type"], each["high"], each["accepted"]) for each in found]


def test_one_click_applies_to_every_later_run_until_it_is_withdrawn(
    learned: TestClient, make_run: Any, eventually: Any
) -> None:
    def page(run: str) -> str:
        return learned.get(f"/runs/{run}?tab=all").text

    def click(run: str, label: str) -> None:
        action, fields = Forms(page(run)).found[label]
        assert learned.post(action, data=fields, follow_redirects=False).status_code == 303

    assert "was 17 at every reading of the last 8 generations" in page("first")
    click("first", "Expect 17 app.Agent")
    assert "is accepted as 17 in project erl" in page("first")
    assert "Expect 17 app.Agent" not in Forms(page("first")).found

    # Two generations are enough, because nothing has to be learned again.
    doubling(make_run).begin(learned, 12)
    found = eventually(lambda: verdict_of(learned, "later")["findings"], 60.0)
    assert found[0]["kind"] == "count_contract"
    assert "Agent count is 33, accepted as 17" in found[0]["evidence"][0]
    assert "a person" in page("later") and "broken" in page("later")
    with engine_of(learned).connect() as connection:
        sent = connection.scalars(
            select(alerts.c.payload).where(alerts.c.event == "contract.violated")
        )
        assert [json.loads(payload)["origin"] for payload in sent] == ["accepted"]

    def is_current() -> bool:
        return bool(learned.get("/api/v1/runs/between").json()["verdict_is_current"])

    steady(make_run, "between").begin(learned, 2)
    assert learned.patch("/api/v1/runs/between", json={"state": "finished"}).status_code == 200
    eventually(is_current, 60.0)
    click("later", "Stop expecting 17 app.Agent")
    # An ended run on which nobody accepted the count is not examined again.
    assert is_current()
    over = ("suspected", "confirmed")
    eventually(lambda: verdict_of(learned, "later")["status"] not in over, 60.0)
    # The two runs are examined one after the other.
    eventually(lambda: "Expect 17 app.Agent" in Forms(page("first")).found, 60.0)
    assert "is accepted as" not in page("first")


def test_runs_of_other_projects_and_ended_runs_are_not_affected(
    learned: TestClient, make_run: Any
) -> None:
    steady(make_run, "ended").begin(learned, LEARNED)
    assert learned.patch("/api/v1/runs/ended", json={"state": "finished"}).status_code == 200
    elsewhere = steady(make_run, "elsewhere")
    header = elsewhere.header | {"project": "other"}
    assert learned.post("/api/v1/runs", json=header).status_code == 201
    elsewhere.send(learned, 0, LEARNED)
    answer = learned.post(OF_FIRST, json=AGENTS_17)
    assert answer.status_code == 200, answer.text
    assert ("app.Agent", 17, True) in expected(learned, "first")
    for run in ("ended", "elsewhere"):
        assert expected(learned, run) == [("app.Env", 2, False)]
    assert "this run had already ended" in learned.get("/runs/ended").text
    assert "Expect 17 app.Agent" in learned.get("/runs/elsewhere").text


def test_counts_can_be_learned_from_a_finished_run(learned: TestClient) -> None:
    assert learned.patch("/api/v1/runs/first", json={"state": "finished"}).status_code == 200
    action, fields = Forms(learned.get("/runs/first").text).found["Expect 17 app.Agent"]
    assert "Expect 17" not in learned.get("/runs/first/report.html").text
    answer = learned.post(action, data=fields, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/first#expectations")
    assert ("app.Agent", 17, True) in expected(learned, "first")
    (row,) = [row for row in learned.get(OF_FIRST).json()["items"] if row["origin"] == "accepted"]
    assert (row["name"], row["high"], row["state"]) == ("app.Agent", 17, "holds")


def test_a_declared_count_takes_precedence_and_cannot_be_accepted(
    learned: TestClient, make_run: Any
) -> None:
    assert "Expect 2 app.Env" not in learned.get("/runs/first").text
    answer = learned.post(OF_FIRST, json={"type": "app.Env", "low": 3, "high": 3})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "count_is_declared"
    assert learned.post(OF_FIRST, json=AGENTS_17).status_code == 200

    class Declares(make_run):  # type: ignore[misc]
        def _details(self, sequence: int, generation: int, phase: str | None) -> dict[str, Any]:
            found = super()._details(sequence, generation, phase)
            if found:
                bound = {"low": 20, "high": 20}
                told = Event(sequence, self.started, "expect", "Agent", data=bound)
                found["events"] = (*found["events"], told)
            return found

    speaks = Declares(id="speaks", instance="speaks", leak_bytes=0, extra=agents(lambda _: 20))
    speaks.begin(learned, LEARNED)
    assert ("app.Agent", 17, True) not in expected(learned, "speaks")
    assert ("Agent", 20, False) in expected(learned, "speaks")
    states = {
        row["name"]: row["state"]
        for row in learned.get("/api/v1/runs/speaks/expectations").json()["items"]
    }
    assert states["app.Agent"] == "holds"
    assert "own declaration takes precedence" in learned.get("/runs/speaks").text


def test_a_later_legitimate_change_is_learned_without_code(
    learned: TestClient, make_run: Any
) -> None:
    assert learned.post(OF_FIRST, json=AGENTS_17).status_code == 200
    steady(make_run, "changed", count=33).begin(learned, LEARNED)
    (found,) = learned.get("/api/v1/runs/changed/expectations").json()["stable"]
    assert (found["count"], found["replaces"]) == (33, "17")
    action, fields = Forms(learned.get("/runs/changed").text).found["Expect 33 app.Agent"]
    assert learned.post(action, data=fields, follow_redirects=False).status_code == 303
    told = learned.get("/api/v1/runs/changed/expectations").json()
    assert [(each["low"], each["run"]) for each in told["accepted"]] == [(33, "changed")]
    assert told["stable"] == []


def test_counts_for_one_phase_and_for_all_readings_replace_each_other(
    learned: TestClient,
) -> None:
    def accept(after: str | None, count: int) -> list[tuple[str | None, int]]:
        wanted = {"type": "app.Agent", "low": count, "high": count, "after": after}
        answer = learned.post(OF_FIRST, json=wanted)
        assert answer.status_code == 200, answer.text
        return [(each["after"], each["low"]) for each in answer.json()["accepted"]]

    assert accept(None, 17) == [(None, 17)]
    assert accept("evaluate", 16) == [("evaluate", 16)]
    assert accept("train", 17) == [("evaluate", 16), ("train", 17)]
    assert accept("train", 18) == [("evaluate", 16), ("train", 18)]
    gone = learned.delete(OF_FIRST, params={"type": "app.Agent", "after": "evaluate"})
    assert [each["after"] for each in gone.json()["accepted"]] == ["train"]
    assert accept(None, 17) == [(None, 17)]
    again = learned.delete(OF_FIRST, params={"type": "app.Agent"})
    assert again.json()["accepted"] == []
    twice = learned.delete(OF_FIRST, params={"type": "app.Agent"})
    assert (twice.status_code, twice.json()["error"]["code"]) == (404, "nothing_to_take_back")


def test_a_form_with_an_unknown_type_or_phase_is_refused(learned: TestClient) -> None:
    agent = {"type": "app.Agent"}
    for fields in (
        agent, agent | {"count": "-1"}, agent | {"count": "1e3"}, agent | {"count": "9" * 16},
        agent | {"count": "17", "after": "nowhere"}, {"type": "app.Nothing", "count": "17"}, {"count": "17"},
    ):  # fmt: skip
        answer = learned.post("/runs/first/expectations", data=fields, follow_redirects=False)
        assert answer.status_code == 422, fields
    assert learned.get(OF_FIRST).json()["accepted"] == []


def test_bounds_are_checked_and_an_unknown_run_has_none(learned: TestClient) -> None:
    turned = {"type": "app.Agent", "low": 18, "high": 17}
    assert learned.post(OF_FIRST, json=turned).status_code == 422
    assert learned.post("/api/v1/runs/nobody/expectations", json=AGENTS_17).status_code == 404
    assert learned.get("/api/v1/runs/nobody/expectations").status_code == 404


def test_more_than_five_counts_are_folded_and_changed_ones_come_first(
    api: TestClient, make_run: Any
) -> None:
    counts = {
        f"type.app.Class{n}.count": lambda sequence, n=n: n if sequence < 60 else n + 9
        for n in range(1, 9)
    }
    run = make_run(leak_bytes=0, extra=counts).begin(api, LEARNED)
    page = api.get("/runs/r1?tab=all").text
    assert "<summary>3 more</summary>" in page
    assert {f"Expect {n} app.Class{n}" for n in range(1, 9)} <= Forms(page).found.keys()
    for n in (3, 7):
        wanted = {"type": f"app.Class{n}", "low": n, "high": n}
        assert api.post("/api/v1/runs/r1/expectations", json=wanted).status_code == 200
    run.send(api, LEARNED, 60)
    steady = api.get("/api/v1/runs/r1/expectations").json()["stable"]
    assert [(each["type"], each["replaces"]) for each in steady][:3] == [
        ("app.Class3", "3"), ("app.Class7", "7"), ("app.Class1", None),
    ]  # fmt: skip


PROMISES = {
    "growth_bytes_per_generation": MIB,
    "peak_bytes": 2**34,
    "count:app.Env": 2,
    "gpu_peak_bytes": 2**30,
    "generations": 25,
    "possible_generations": 12,
}  # fmt: skipFixed = Callable[..., None]


@pytest.fixture
def fixed(api: TestClient, make_run: Any) -> Send:
    """Return a function that sends twelve generations with fixes declared at the start; each leaks 10 MiB."""

    def fixed(run_id: str, fixes: dict[str, dict[str, Any]], later: float = 0.0) -> None:
        run = make_run(id=run_id, instance=f"process of {run_id}")
        run.started += later
        begin_with(api, run, 12, [("fix", name, data) for name, data in fixes.items()])

    return fixed


@pytest.fixture
def send(fixed: Send) -> Send:
    """Return a function that sends a run with one fix."""

    def send(run_id: str = "r1", promised: Any = None) -> None:
        data = {"phase": "evolve<b>", "location": "app.py:7", "promises": promised or PROMISES}
        fixed(run_id, {"let them go": data})

    return send


def promises_of(page: str) -> dict[str, list[str]]:
    """Return the state, the measurement and the sentence of each promise of the fix."""
    rows = rows_of(page)
    return {row[0].removeprefix("let them go (app.py:7): "): [*row[2:4], row[5]] for row in rows}


def test_the_page_of_a_run_lists_each_promise(api: TestClient, send: Send, eventually: Any) -> None:
    send()
    eventually(lambda: verdict_of(api).get("assertions"))
    described(api, "runs/r1/verdict", Verdict)
    rows = promises_of(api.get("/runs/r1?tab=all").text)
    state, measured, sentence = rows["growth per generation"]
    assert (state, measured) == ("broken", "10.00 MiB")
    assert "10 times the 1.00 MiB promised" in sentence
    assert rows["growth in evolve&lt;b&gt;"][:2] == ["undecided", "not measured"]
    assert rows["peak memory"][0] == "holds"
    assert rows["Env alive"][:2] == ["broken", "178"]
    assert rows["peak GPU memory"][1] == "not measured"
    assert rows["generations to complete"][:2] == ["undecided", "12"]
    state, _, sentence = rows["generations that fit in memory"]
    assert state == "holds"
    assert sentence.endswith("the fix promised 12.")
    # A comparison shows the promises of the later run.
    send("r0", {"generations": 99})
    after = promises_of(api.get("/compare?before=r0&after=r1").text)
    assert after["generations to complete"][2].endswith("the fix promised 25.")
    assert after["growth per generation"][0] == "broken"
    described(api, "compare?before=r0&after=r1", Comparison)
    # The end of the run decides promises that were still open.
    api.patch("/api/v1/runs/r1", json={"state": "failed"})
    ended = "The run ended after 12 generations; the fix promised 25."
    eventually(lambda: ended in {check["sentence"] for check in verdict_of(api)["assertions"]})
    rows = promises_of(api.get("/runs/r1?tab=all").text)
    assert rows["generations to complete"][0] == "broken"
    assert "so far" not in rows["peak memory"][2].lower()


def described(api: TestClient, path: str, model: type[Verdict | Comparison]) -> None:
    """Check that the response matches the description of the API."""
    answer = api.get(f"/api/v1/{path}")
    adapter = TypeAdapter(model)
    again = adapter.dump_python(adapter.validate_json(answer.content), mode="json")
    assert again["assertions"] == answer.json()["assertions"]
    promised = {check["metric"] for check in answer.json()["assertions"]}
    assert promised > set(PROMISES) - {"count:app.Env"} | {"type.app.Env.count"}


def test_an_invalid_promise_is_shown_and_breaks_no_page(
    api: TestClient, send: Send, eventually: Any
) -> None:
    """A promise that is named like a series or a budget breaks no page either."""
    promised = {"grows <b>": 5, "peak_bytes": "a lot", "generations": None}
    send(promised=promised | {"process.rss_bytes": 2**40, "generation.kept_bytes": 1})
    eventually(lambda: verdict_of(api).get("assertions"))
    page = api.get("/runs/r1?tab=all").text
    assert "Leakline cannot check a promise with this name." in page
    rows = promises_of(page)
    assert rows["grows &lt;b&gt;"][0] == "undecided"
    assert rows["peak memory"][:2] == ["undecided", "not measured"]


def test_each_of_several_fixes_shows_its_effect_and_rejected_alternatives(
    api: TestClient, fixed: Send
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
    # Both runs do the same, so a measured fix has no effect; a fix in a phase that never ran is not listed.
    assert effects["close them"]["outcome"] == effects["everything"]["outcome"] == "no_effect"
    assert effects["close them"]["measure"] == "count"
    assert effects["upload less"]["outcome"] == "undecided"
    assert effects["drop them"]["rejected"] == "pickling <b>them</b>: too slow"
    page = api.get("/compare?before=r1&after=r2").text
    (section,) = re.findall(r'<section class="panel" id="effects".*?</section>', page, re.DOTALL)
    assert "no effect" in section and "undecided" in section
    assert "pickling &lt;b&gt;them&lt;/b&gt;: too slow" in section
    told = api.get("/compare/report.md?before=r1&after=r2").text
    assert "## What each fix has done" in told
    assert "no effect:" in told and "rejected:" in told


def test_fixes_declared_at_the_start_are_compared_with_the_baseline(
    api: TestClient, fixed: Send, eventually: Any
) -> None:
    fixed("r1", {})
    api.patch("/api/v1/runs/r1", json={"tags": ["baseline"]})
    fixed("r2", {"everything": {}}, later=60.0)
    eventually(lambda: verdict_of(api, "r2").get("effects"))
    (own,) = verdict_of(api, "r2")["effects"]
    assert (
        own["outcome"] == "undecided"
        and "compare this run with a run without the fix" in own["sentence"]
    )
    page = api.get("/runs/r2?tab=all").text
    (section,) = re.findall(r'<section class="panel" id="effects".*?</section>', page, re.DOTALL)
    assert "no effect" in section and "/compare?before=r1&amp;after=r2" in section
    # The mark on the trend, which comes earlier on the page, shows the effect too.
    assert "against " in page.split('id="effects"')[0]


FREED_NOTHING = {"before_bytes": 9000, "after_bytes": 9000, "freed_bytes": 0, "seconds": 0.5}


def listed(page: str) -> dict[str, tuple[str, str, str]]:
    """Return the (shape, word, evidence) of each question on the page."""
    (part,) = re.findall(r'<ul class="panel-body ticks">.*?</ul>', page, re.DOTALL)
    pattern = r'#(\w+)"/>.*?<b>(.*?)</b> <span class="word">(.*?)</span><br>(.*?)</p>'
    return {
        question: (shape, word, re.sub(r"<.*?>", "", evidence).replace("\xa0", " "))
        for shape, question, word, evidence in re.findall(pattern, part, re.DOTALL)
    }


def test_the_page_lists_four_questions_with_their_evidence(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    begin_with(api, make_run(), 12, [("cleanup", "agent<b>", FREED_NOTHING)])
    eventually(lambda: verdict_of(api)["generations"] == 12)
    page = api.get("/runs/r1?tab=all").text
    found = listed(page)
    assert [(shape, word) for shape, word, _ in found.values()] == [
        ("absent", "not measured"), ("confirmed", "failed"), ("learning", "not yet"), ("confirmed", "failed"),
    ]  # fmt: skip
    planned, cleanups = (
        found["Every planned generation has run"],
        found["Cleanups run and free something"],
    )
    assert "Completed 12 generations, compared with the 25" in planned[2]
    assert "agent&lt;b&gt; ran once and freed nothing." in cleanups[2]
    # The list follows the findings, in the tab of events.
    assert (
        page.index('id="findings"') < page.index('id="tab-events"') < page.index('id="checklist"')
    )


def test_a_healthy_run_shows_four_ticks_on_its_page(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    """Memory is level here and on the device, past the generation of the promise, and a cleanup frees GPU memory."""
    device = {"cuda.0.allocated_bytes": lambda _: GIB, "cuda.0.reserved_bytes": lambda _: 2 * GIB}
    devices = {"cuda.0.allocated_bytes": [GIB, GIB], "cuda.0.reserved_bytes": [9 * GIB, 2 * GIB]}
    events = [
        ("fix", "detach losses", {"promises": {"generations": 12}}),
        ("cleanup", "agent GPU", {**FREED_NOTHING, "devices": devices}),
    ]
    begin_with(api, make_run(leak_bytes=0, extra=device), 20, events, without="expect")
    eventually(lambda: verdict_of(api)["generations"] == 20)
    found = listed(api.get("/runs/r1?tab=all").text)
    assert [(shape, word) for shape, word, _ in found.values()] == [("ok", "done")] * 4, found
    evidence = [said for _, _, said in found.values()]
    assert "the highest reading on one device was 2.00 GiB" in evidence[0]
    assert "compared with the 12 that the fix promised" in evidence[2]
    assert "agent GPU ran once and freed 7.00 GiB of GPU memory." in evidence[3]


def test_a_verdict_from_before_the_checklist_has_no_ticks() -> None:
    assert ticks(None) == ()
    assert ticks({"status": "ok"}) == ()
