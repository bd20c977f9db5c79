"""Each page shows what the contract requires, with its numbers, and the empty pages say what to do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.everything import World, trained
from tests.browser.patience import drag, eventually, fits, text_of, until
from tests.browser.training import GIB, KEPT_EACH, MIB, MadeTraining, post
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, ProcessIdentity, Snapshot
from leakline.transport.http_delivery import request_json

Open = Callable[..., Page]
Train = Callable[..., MadeTraining]
# Section -> required texts.
ON_THE_PAGE_OF_A_RUN = {
    "trend": ("Private memory of all processes together changes by", "incident", "alert", "fix", "cleanup", "mark"),
    "findings": ("critical", "TradingEnvironment", "population_history", "confidence"),
    "checklist": ("GPU memory does not keep growing",),
    "phases": ("evaluate_population", "between", "sum"),
    "memory": ("private memory is accounted for", "The C allocator keeps"),
    "gpu": ("Allocated memory is held by live tensors",),
    "types": ("problem: expected 2", "expected: 17 after evolve_population", "+16"),
    "holders": ("erl_trainer.Trainer.population_history[*]",),
    "containers": ("50,000", "100 %", "full"),
    "large-objects": ("440.00 MiB",),
    "gauges": ("Numbers reported by the training script",),
    "expectations": (
        "broken", "holds", "growth per generation", "peak memory", "generations 0 to 5: 30.00 GiB to 40.00 GiB",
        "budget of",
    ),
    "events": (
        "detach losses", "training/erl_trainer.py:281", "learning rate drop", "freed nothing",
        "see the profile", "example.org",
        "rule.fired", "Much memory fired: process.rss_bytes is", "incident.confirmed",
    ),
    "processes": ("main", "node-7", "5.6"),
    "children": ("loader_worker-0", "loader_worker-1", "collector-7", "118.00 MiB", "+64.00 KiB"),
    "cost": ("share of the run's time", "longest recent pause"),
    "attempts": ("1f0c9a2",),
    "delivery": ("stored",),
    "environment": ("packages torch",),
}  # fmt: skip


def chart(page: Page, name: str) -> dict[str, Any]:
    text = page.locator(f'[data-part="{name}.data"] script').text_content()
    found: dict[str, Any] = json.loads(text or "{}")
    return found


@pytest.mark.long
def test_the_run_page_shows_everything_in_the_contract(world: World, open_page: Open) -> None:
    address = f"{world.address}/runs/live/fragments?tab=all"
    eventually(lambda: '"alert"' in text_of(address))
    page = open_page("/runs/live?tab=all", address=world.address)
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    for section, words in ON_THE_PAGE_OF_A_RUN.items():
        for word in words:
            expect(page.locator(f"#{section}"), f"{word} in {section}").to_contain_text(word)
    # There are two ranks, each with its memory; the page shows one of them at a time.
    expect(page.locator("#processes tbody tr")).to_have_count(2)
    expect(page.locator('[data-part="processes"] a')).to_have_count(2)
    # Each growing type has a sparkline of its history.
    histories = page.locator("#types .sparkline")
    assert histories.count() >= 2
    newest = 418 + 144 * (world.live.generation - 2)
    # The type named by the finding comes first.
    expect(page.locator("[data-part='types.table'] tbody tr").first).to_contain_text(
        "TradingEnvironment"
    )
    arrays = page.locator("[data-part='types.table'] tr", has_text="numpy.ndarray").locator(
        ".sparkline"
    )
    expect(arrays).to_have_attribute("aria-label", f"Instances from 418 to {newest:,}")


@pytest.mark.long
def test_the_trend_shows_plan_forecast_and_events(world: World, open_page: Open) -> None:
    page = open_page("/runs/live?tab=phases", address=world.address)
    # The forecast begins at the newest generation of both ranks once the verdict on it is there.
    newest = world.live.generation - 1
    until(page, lambda: chart(page, "trend")["cone"]["x"][0] == newest)
    trend = chart(page, "trend")
    plans = [band for band in trend["bands"] if band["label"] == "plan"]
    assert [band["high"] for band in plans] == [40 * GIB, 45 * GIB]
    starts = [band["group"] for band in trend["bands"] if band["label"] == "leak starts"]
    assert starts == ["total", "rss", "private"]
    happened = {mark["kind"] for mark in trend["marks"]}
    assert {"alert", "incident", "fix", "note", "mark", "cleanup"} <= happened
    alert = next(mark for mark in trend["marks"] if mark["kind"] == "alert")
    assert alert["text"].startswith("Much memory fired: process.rss_bytes is ")
    # The sum of all processes is shown first.
    expect(page.get_by_role("button", name="Total")).to_have_attribute("aria-pressed", "true")
    levels = [level["label"] for level in chart(page, "phases")["levels"]]
    assert levels == ["budget", "leak threshold"]


def test_rows_of_object_tables_are_filtered(train: Train, open_page: Open) -> None:
    training = train("filtered", 8)
    page = open_page("/runs/filtered?tab=objects")
    rows = page.locator("#types tbody tr")
    expect(rows.first).to_be_visible()
    every = rows.count()
    field = page.get_by_label("Filter rows")
    field.fill("tradingenv")
    shown = page.locator("#types tbody tr:visible")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("TradingEnvironment")
    # A live update replaces the table and keeps the filter.
    before = shown.inner_text()
    training.run_generation()
    expect(shown).not_to_have_text(before, use_inner_text=True)
    expect(shown).to_have_count(1)
    field.fill("")
    expect(page.locator("#types tbody tr:visible")).to_have_count(every)


def test_hovering_a_mark_shows_its_text(train: Train, open_page: Open) -> None:
    train("marked", 10)
    page = open_page("/runs/marked")
    texts: list[str] = []

    def are_there() -> bool:
        texts[:] = page.evaluate(
            """() => (document.getElementById("chart-trend").data ?? [])
                .filter((trace) => trace.yaxis === "y2").flatMap((trace) => trace.text)"""
        )
        return bool(texts)

    until(page, are_there)
    assert any("learning rate drop" in text for text in texts)
    assert any("cleanup" in text and "freed nothing" in text for text in texts)


@pytest.mark.long
def test_list_and_incidents_show_the_priority_of_a_leak(world: World, open_page: Open) -> None:
    # An incident has the priority of the run that changed it last, like its sentence.
    for path, words in (
        ("/?q=live", "critical"), ("/compare?before=live&after=fixed", "critical"),
        ("/incidents", "critical|major"),
    ):  # fmt: skip
        page = open_page(path, address=world.address)
        tag = page.locator("[data-priority]").first
        expect(tag).to_have_text(re.compile(f"^({words})$"))
        expect(tag).to_have_attribute(
            "title", re.compile("LEAKLINE_PRIORITIES sets the thresholds")
        )


@pytest.mark.long
def test_a_comparison_shows_everything_in_the_contract(world: World, open_page: Open) -> None:
    page = open_page("/compare?before=live&after=fixed", address=world.address)
    for tile in ("GROWTH", "PEAK", "TIME"):
        expect(page.locator(".changes")).to_contain_text(tile)
    for section in ("overlay", "phases-before", "phases-after"):
        expect(page.locator(f"#{section} .chart")).to_have_count(1)
    for title in ("Gone", "Still there", "New"):
        expect(page.locator("#findings h3", has_text=title).first).to_be_attached()
    phases, types = page.locator("#by-phase tbody"), page.locator("#by-type tbody")
    expect(phases).to_contain_text("evaluate_population")
    expect(phases).to_contain_text(" to ")
    # Only significant changes are rated better or worse.
    rated = phases.locator("tr:has(td[data-status]) td:first-child")
    assert rated.all_inner_texts() == ["evaluate_population"]
    environments = types.locator("tr", has_text="TradingEnvironment")
    expect(environments).to_contain_text("−16")
    expect(environments).to_contain_text("−100.0 %")
    expect(page.locator("#environment")).to_contain_text("2.13.1")


@pytest.mark.long
def test_a_server_without_runs_shows_how_to_start(world: World, open_page: Open) -> None:
    for path in ("/", "/compare"):
        page = open_page(path, address=world.empty)
        expect(page.locator("pre")).to_contain_text(f'server="{world.empty}"')
        expect(page.locator("main")).to_contain_text(f"leakline run --server {world.empty}")
        expect(page.locator("main")).to_contain_text("leakline demo")
        if path == "/":
            expect(page.get_by_role("link", name="quickstart")).to_be_visible()
    page = open_page("/?q=nothing-like-this", address=world.address)
    expect(page.locator("main")).to_contain_text("No run matches this search.")


def test_a_new_run_says_what_its_verdict_waits_for(
    train: Train, server: str, open_page: Open
) -> None:
    begun = {"id": "just-begun", "project": "erl-trading", "name": "just-begun", "unit": "epoch"}
    post(f"{server}/api/v1/runs", {**begun, "started_at": time.time()})
    page = open_page("/runs/just-begun?tab=phases")
    expect(page.locator("#verdict-sentence")).to_have_text("No verdict yet: no epoch has ended")
    expect(page.locator(".verdict")).to_contain_text(
        "A verdict needs 5 whole epochs: 5 more to go."
    )
    expect(page.locator("#phases")).to_contain_text("Growth by phase needs two whole epochs.")

    train("young", 3)
    eventually(lambda: request_json(server, "GET", "/runs/young/verdict")["generations"] == 3)
    page = open_page("/runs/young")
    # A broken expectation may be reported earlier.
    text = page.locator(".verdict").inner_text()
    assert "2 more to go" in text or "TradingEnvironment" in text


MINUTE = 60.0
MOST_OF_A_BATCH = 200


def by_time(server: str, run: str, minutes: int) -> None:
    """Send a program without generations that began this many minutes ago, with a reading per minute."""
    began = time.time() - minutes * MINUTE
    header = {"id": run, "project": "erl-trading", "name": run, "unit": "generation"}
    post(f"{server}/api/v1/runs", {**header, "started_at": began})
    who = ProcessIdentity(f"{run}-1", 0, 7, "node-7", "main", 1)
    rows = [
        Snapshot(
            number, began + number * MINUTE, number * MINUTE, None, None, "", "sample",
            {"process.rss_bytes": (100 + number) * MIB, "process.anon_bytes": (90 + number) * MIB},
        )
        for number in range(minutes)
    ]  # fmt: skip
    for first in range(0, minutes, MOST_OF_A_BATCH):
        part = tuple(rows[first : first + MOST_OF_A_BATCH])
        post(f"{server}/api/v1/runs/{run}/batches", batch_to_wire(Batch(who, part)))


def shown(page: Page) -> list[float]:
    found = page.evaluate("document.getElementById('chart-trend').layout?.xaxis.range ?? []")
    return [float(each) for each in found]


@pytest.mark.long
def test_a_program_without_generations_is_shown_in_minutes(server: str, open_page: Open) -> None:
    for run in ("by-minutes", "by-minutes-too"):
        by_time(server, run, 90)
        eventually(lambda run=run: request_json(server, "GET", f"/runs/{run}/verdict")["findings"])  # type: ignore[misc]
    page = open_page("/runs/by-minutes")
    expect(page.locator("#verdict-sentence")).to_contain_text("1.00 MiB per minute")
    expect(page.locator(".facts").first).to_contain_text("1 h 30 min")
    for part in (".verdict", ".figures", "#trend", "#findings"):
        expect(page.locator(part).first).not_to_contain_text("generation")
    expect(page.locator("#findings")).to_contain_text("spread over the whole program")
    trend = chart(page, "trend")
    assert [line["name"] for line in trend["lines"] if line["group"] == "private"] == ["memory"]
    page = open_page("/compare?before=by-minutes&after=by-minutes-too")
    expect(page.locator("#overlay .main-svg").first).to_be_attached()
    assert [len(line["x"]) for line in chart(page, "overlay")["lines"]] == [90, 90]
    page = open_page("/?q=by-minutes-too")
    expect(page.locator("table.runs")).to_contain_text("per minute")


def test_a_link_to_a_time_range_works_with_an_axis_in_hours(server: str, open_page: Open) -> None:
    by_time(server, "by-hours", 300)
    page = open_page("/runs/by-hours?x=600s..1800s")
    until(page, lambda: len(shown(page)) == 2)
    assert shown(page) == pytest.approx([1 / 6, 0.5])
    title = page.evaluate("document.getElementById('chart-trend').layout.xaxis.title.text")
    assert title == "hours since the start"
    # Full resolution: one point per minute.
    expect(page.locator("#chart-trend")).to_have_attribute("data-of", "stretch")
    read = page.evaluate("document.getElementById('chart-trend').data[0].x")
    assert len(read) in (20, 21) and read[0] == pytest.approx(1 / 6, abs=1e-3)
    # The viewer's zoom is written to the address in seconds too.
    drag(page, "trend")
    until(page, lambda: "x=600s" not in page.url)
    first, last = (float(each.rstrip("s")) for each in page.url.split("x=")[1].split(".."))
    assert 900 < first < 1000 and 1250 < last < 1350


# -- a run of two ranks, one of which leaks


@pytest.fixture(scope="module")
def ranks(server: str) -> str:
    trained(server, "two-ranks", 14, leaking=False)
    trained(server, "two-ranks", 14, rank=1)
    eventually(lambda: request_json(server, "GET", "/runs/two-ranks/verdict")["findings"])
    return "two-ranks"


def rows(page: Page) -> list[dict[str, Any]]:
    """Return the rows of the table of processes: heading -> text."""
    table = page.locator("#processes table")
    heads = table.locator("thead th").all_text_contents()
    found = [row.locator("td").all_text_contents() for row in table.locator("tbody tr").all()]
    return [dict(zip(heads, map(str.strip, row), strict=True)) for row in found]


def chart_of(page: Page) -> str:
    return page.locator('[data-part="trend.data"] script').text_content() or ""


def test_the_page_marks_the_leaking_rank_and_shows_both_growths(
    server: str, ranks: str, open_page: Open
) -> None:
    page = open_page(f"/runs/{ranks}?tab=info")
    expect(page.locator("#processes a[href='#findings']")).to_have_count(1, timeout=60_000)
    # The lines are those of the leaking rank, with the start of the leak.
    expect(page.locator('[data-part="processes"] [aria-current]')).to_have_text("rank 1 main")
    assert "leak starts" in chart_of(page)
    expect(page.locator("#trend .note")).to_contain_text("of rank 1 main, which is shown")
    healthy, leaking = rows(page)
    growth = "growth per generation"
    assert healthy["finding"] == "–"
    assert leaking["finding"] in ("Leaking", "Suspected")
    assert "GiB" in leaking[growth]
    assert leaking[growth] != healthy[growth]
    expect(page.locator("#findings")).to_contain_text("rank 1 main")

    # The same numbers as in the API.
    told = request_json(server, "GET", f"/runs/{ranks}")
    whole = told["growth_bytes_per_generation"]["estimate"]
    each = [p["growth_bytes_per_generation"] for p in told["processes"]]
    assert each[1]["estimate"] == pytest.approx(16 * KEPT_EACH, rel=0.2)
    assert abs(each[0]["estimate"]) < 0.1 * KEPT_EACH
    assert sum(growth["estimate"] for growth in each) == pytest.approx(whole)
    verdict = request_json(server, "GET", f"/runs/{ranks}/verdict")
    named = {f["fingerprint"] for f in verdict["findings"] if f["process"] == "rank 1 main"}
    assert told["processes"][0]["findings"] == []
    assert set(told["processes"][1]["findings"]) <= named
    assert told["processes"][1]["findings"]


def test_a_healthy_rank_is_shown_without_the_leak_of_the_other(ranks: str, open_page: Open) -> None:
    page = open_page(f"/runs/{ranks}?process=rank 0 main&tab=info")
    expect(page.locator("#processes a[href='#findings']")).to_have_count(1, timeout=60_000)
    expect(page.locator('[data-part="processes"] [aria-current]')).to_have_text("rank 0 main")
    trend = chart(page, "trend")
    assert {band["group"] for band in trend["bands"] if band["label"] == "leak starts"} == {"total"}
    assert trend["cone"] and trend["cones"]["private"] is None


@pytest.mark.long
def test_the_growth_of_each_rank_is_visible_on_a_phone(ranks: str, open_page: Open) -> None:
    page = open_page(f"/runs/{ranks}?tab=info", width=390)
    page.locator("#processes").scroll_into_view_if_needed()
    for row in page.locator("#processes tbody tr").all():
        expect(row.locator("td").nth(2)).to_be_in_viewport(ratio=1)
    expect(page.locator("#processes a[href='#findings']")).to_be_in_viewport()
    assert fits(page, 390)
