"""A zoom loads points of a higher resolution: a spike is visible in the entire run, and exact after a zoom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect
from tests.browser.patience import drag, eventually, text_of, until
from tests.browser.training import MadeTraining, post
from tests.json_batches import batch_to_wire

from leakline.snapshot import (
    Batch,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    header_to_wire,
)
from leakline.transport.http_delivery import request_json

Open = Callable[..., Page]
PATIENCE_MS = 60_000
GENERATIONS = 12_000
SPIKE_AT = 7_337
MIB, GIB = 2**20, 2**30
SPIKE = 40 * GIB
# Maximum number of snapshots per batch.
BATCH = 200


def snapshot(generation: int) -> Snapshot:
    private = SPIKE if generation == SPIKE_AT else 4 * GIB + generation % 7 * MIB
    samples = {
        "process.anon_bytes": private,
        "process.swap_bytes": 0,
        "process.rss_bytes": private + 404 * MIB,
    }
    started = 1_750_000_000.0
    return Snapshot(
        generation, started + generation, 100.0 + generation, generation, None, f"generation {generation}: end",
        "generation_end", samples,
    )  # fmt: skip


@pytest.fixture(scope="module")
def long_run(server: str) -> str:
    """Send 12,000 generations, one of which was large for a moment."""
    header = RunHeader("long", "zoom", "long", "generation", GENERATIONS, 1_750_000_000.0)
    post(f"{server}/api/v1/runs", header_to_wire(header))
    who = ProcessIdentity("long-1", 0, 1, "node-7", "main", 1)
    for first in range(0, GENERATIONS, BATCH):
        rows = tuple(snapshot(g) for g in range(first, min(first + BATCH, GENERATIONS)))
        post(f"{server}/api/v1/runs/long/batches", batch_to_wire(Batch(who, rows)))
    # Results for so many generations are cached while the run does not change, so no test waits for them.
    text_of(f"{server}/runs/long")
    verdict = "/runs/long/verdict"
    eventually(lambda: request_json(server, "GET", verdict)["generations"] == GENERATIONS)
    text_of(f"{server}/runs/long")
    return "/runs/long"


def drawn(page: Page, chart: str = "trend") -> list[dict[str, Any]]:
    """Return the traces of a plotly chart: name, x and y in the unit of the chart."""
    found: list[dict[str, Any]] = page.evaluate(
        """(id) => (document.getElementById(id).data ?? []).map((trace) => (
            { name: trace.name ?? "", x: [...trace.x], y: [...trace.y], fill: trace.fill ?? "" }))""",
        f"chart-{chart}",
    )
    return found


def line(page: Page) -> dict[int, float]:
    (found,) = [trace for trace in drawn(page) if trace["name"] == "generation end"]
    return dict(zip(found["x"], found["y"], strict=True))


def is_zoomed(page: Page) -> None:
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-of", "stretch", timeout=PATIENCE_MS
    )


def test_a_spike_is_visible_in_the_entire_run_and_exact_after_a_zoom(
    long_run: str, open_page: Open
) -> None:
    page = open_page(long_run)
    trend = page.locator("#chart-trend")
    expect(trend).to_have_attribute("data-points", "250", timeout=PATIENCE_MS)
    bands = [trace for trace in drawn(page) if trace["fill"] == "tonexty"]
    assert max(max(band["y"]) for band in bands) == pytest.approx(SPIKE / GIB)
    assert max(line(page).values()) < SPIKE / GIB / 2

    # Zoom towards the spike in steps, as a viewer would.
    middle = SPIKE_AT / GENERATIONS
    drag(page, "trend", middle - 0.05, middle + 0.05)
    is_zoomed(page)
    until(page, lambda: 1_000 < len(line(page)) <= 2_000)
    first, last = min(line(page)), max(line(page))
    share = (SPIKE_AT - first) / (last - first)
    drag(page, "trend", share - 0.1, share + 0.1)
    until(page, lambda: line(page).get(SPIKE_AT) == pytest.approx(SPIKE / GIB))
    near = line(page)
    assert sorted(near) == list(range(int(min(near)), int(max(near)) + 1))


def test_a_link_to_a_range_shows_its_points_immediately(long_run: str, open_page: Open) -> None:
    page = open_page(f"{long_run}?x={SPIKE_AT - 20}.5..{SPIKE_AT + 20}.5")
    is_zoomed(page)
    until(page, lambda: line(page).get(SPIKE_AT) == pytest.approx(SPIKE / GIB))
    assert len(line(page)) == 42


def test_a_zoom_changes_only_the_charts(long_run: str, open_page: Open) -> None:
    page = open_page(long_run)
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-points", "250", timeout=PATIENCE_MS
    )
    before = [page.locator(each).inner_text() for each in (".figures", "#verdict-sentence")]
    rows = page.locator("[data-part='trend.table']").inner_html()
    drag(page, "trend", 0.4, 0.6)
    is_zoomed(page)
    assert [page.locator(each).inner_text() for each in (".figures", "#verdict-sentence")] == before
    assert page.locator("[data-part='trend.table']").inner_html() == rows

    page.keyboard.press("r")
    expect(page.locator("#chart-trend")).to_have_attribute("data-of", "all")
    assert "x=" not in page.url
    assert len(line(page)) == 250


def test_a_late_answer_does_not_replace_a_newer_one(long_run: str, open_page: Open) -> None:
    page = open_page(long_run)
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-points", "250", timeout=PATIENCE_MS
    )
    waiting: list[Route] = []
    page.route("**/lines?*", lambda route: waiting.append(route))
    drag(page, "trend", 0.2, 0.8)
    until(page, lambda: len(waiting) == 1)
    drag(page, "trend", 0.4, 0.5)
    until(page, lambda: len(waiting) == 2)
    waiting[1].continue_()
    is_zoomed(page)
    wanted = parse_qs(urlsplit(page.url).query)["x"][0]
    assert parse_qs(urlsplit(waiting[1].request.url).query)["x"][0] == wanted
    first, last = map(float, wanted.split(".."))
    assert first - 1 <= min(line(page)) and max(line(page)) <= last + 1
    # The browser itself cancelled the older request.
    assert waiting[0].request.failure == "net::ERR_ABORTED"


def test_a_zoom_reloads_both_runs_of_a_comparison(
    long_run: str, train: Callable[..., MadeTraining], open_page: Open
) -> None:
    train("short", 8)
    stretch = f"x={SPIKE_AT - 5}..{SPIKE_AT + 5}"
    page = open_page(f"/compare?before=long&after=short&{stretch}")
    expect(page.locator("#chart-overlay")).to_have_attribute(
        "data-of", "stretch", timeout=PATIENCE_MS
    )
    before = next(trace for trace in drawn(page, "overlay") if trace["name"] == "before")
    assert dict(zip(before["x"], before["y"], strict=True))[SPIKE_AT] == pytest.approx(SPIKE / GIB)
    page.keyboard.press("r")
    expect(page.locator("#chart-overlay")).to_have_attribute("data-of", "all")
    assert urlsplit(page.url).query == "before=long&after=short"


@pytest.mark.long
def test_a_copied_link_restores_the_view(
    train: Callable[..., MadeTraining], open_page: Open
) -> None:
    train("seen", 8)
    page = open_page("/runs/seen")
    expect(page.locator("#chart-trend")).to_have_attribute("data-points", "8", timeout=PATIENCE_MS)
    page.get_by_role("button", name="RSS").click()
    page.locator("#chart-trend .legendtoggle").first.click()
    until(page, lambda: "hide=" in page.url)
    drag(page, "trend", 0.3, 0.7)
    until(page, lambda: "x=" in page.url)
    hidden = hidden_lines(page)
    assert len(hidden) == 1

    again = open_page(urlsplit(page.url).path + "?" + urlsplit(page.url).query)
    is_zoomed(again)
    expect(again.get_by_role("button", name="RSS")).to_have_attribute("aria-pressed", "true")
    until(again, lambda: hidden_lines(again) == hidden)
    assert again.url == page.url

    # The hidden lines can be shown again.
    again.locator("#chart-trend .legendtoggle").first.click()
    until(again, lambda: not hidden_lines(again) and "hide=" not in again.url)


def hidden_lines(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        """() => document.getElementById("chart-trend").data
            .filter((trace) => trace.visible === "legendonly").map((trace) => trace.name)"""
    )
    return found
