"""Comparing two points of a run: selected by brushing, clicks, a form without scripts, or a shared link."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect
from tests.browser.patience import PATIENCE_MS, drag, eventually, text_of, until
from tests.browser.training import MadeTraining

from leakline.transport.http_delivery import request_json

Open = Callable[..., Page]
GENERATIONS = 20
LEAKING_RANK = "rank 1 main"


@pytest.fixture(scope="module")
def run(server: str) -> str:
    """Send a run with two ranks, the second of which leaks. It has ended, so its page does not change by itself."""
    for rank in (0, 1):
        training = MadeTraining(server, "ranged", leaking=rank == 1, rank=rank)
        training.start()
        training.run_generations(GENERATIONS)
        training.finish()
    eventually(
        lambda: request_json(server, "GET", "/runs/ranged/verdict")["generations"] == GENERATIONS
    )
    return "/runs/ranged"


def drawn(page: Page) -> None:
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-points", str(GENERATIONS), timeout=PATIENCE_MS
    )


def first_of(page: Page, title: str) -> list[str]:
    """Return name and amount of the first bar in a list of the panel."""
    bar = page.locator(".ranked > div", has_text=title).locator("li").first
    return bar.locator("span").all_inner_texts()


def shows_the_leak(page: Page, first: int, last: int) -> None:
    """Check that the panel, the address and the table of types show the same range."""
    expect(page.locator("#changes h2")).to_have_text(
        f"Changes between generation {first} and {last}"
    )
    assert parse_qs(urlsplit(page.url).query)["x"][0]
    count = 16 * (last - first)
    name, amount = first_of(page, "Objects by type")
    assert name == "TradingEnvironment"
    assert amount.endswith(f"+{count:,}")
    assert first_of(page, "Phases")[0] == "evaluate_population"
    assert first_of(page, "Processes")[0] == LEAKING_RANK
    heads = page.locator("[data-part='types.table'] th").all_inner_texts()
    assert heads[2:4] == [f"at generation {first}", f"at generation {last}"]
    row = page.locator("[data-part='types.table'] tbody tr").first.locator("td").all_inner_texts()
    assert row[4:6] == [f"+{count:,}", "+16"]


def point(page: Page, generation: int) -> None:
    """Click a generation in the chart, once it is hovered. The chart moves while the page around it is loaded."""
    legend, at = page.locator("#chart-trend .hoverlayer .legend"), [0.0, 0.0]

    def hovers() -> bool:
        at[:] = page.evaluate(
            """(x) => {
                const { left, top } = document.getElementById("chart-trend").getBoundingClientRect();
                const { xaxis, yaxis } = document.getElementById("chart-trend")._fullLayout;
                return [left + xaxis._offset + xaxis.l2p(x), top + yaxis._offset + yaxis._length / 2];
            }""",
            generation,
        )
        page.mouse.move(at[0] - 2, at[1])
        page.mouse.move(*at)
        # The text follows the mouse after a moment.
        page.wait_for_timeout(200)
        return any(f"generation {generation}" in text for text in legend.all_text_contents())

    until(page, hovers)
    page.mouse.click(*at)


def marked(page: Page) -> bool:
    """Return True if a line in the chart marks the clicked point."""
    found: bool = page.evaluate(
        """() => document.getElementById("chart-trend").layout.shapes.some(({ name }) => name === "clicked")"""
    )
    return found


def no_double_click(page: Page) -> None:
    """Wait until the next click cannot be a double click: plotly joins clicks within 600 ms, wherever they are."""
    at = page.evaluate("performance.now()")
    until(page, lambda: page.evaluate("performance.now()") > at + 650)


def test_brushing_shows_what_changed_and_a_reset_removes_it(run: str, open_page: Open) -> None:
    page = open_page(run)
    drawn(page)
    drag(page, "trend", 0.25, 0.5)
    expect(page.locator("#changes h2")).to_be_visible()
    said = re.fullmatch(
        r"Changes between generation (\d+) and (\d+)", page.locator("#changes h2").inner_text()
    )
    assert said is not None
    shows_the_leak(page, int(said[1]), int(said[2]))

    page.keyboard.press("r")
    expect(page.locator("#changes .panel")).to_have_count(0)
    assert "x=" not in page.url
    # The entire run again; its rows may differ by then, rated by the last verdict.
    expect(page.locator("[data-part='types.table'] th").nth(3)).to_have_text("first")


def test_two_clicks_select_a_range(run: str, open_page: Open) -> None:
    page = open_page(run)
    drawn(page)
    page.locator("#chart-trend").scroll_into_view_if_needed()
    line = page.locator("#marked-point")
    point(page, 5)
    expect(line).to_contain_text("Click a second point to compare")
    assert marked(page)
    no_double_click(page)
    point(page, 12)
    expect(line).to_be_empty()
    shows_the_leak(page, 5, 12)
    assert "x=5..12" in page.url
    assert not marked(page)


@pytest.mark.parametrize("way", ["Escape", "elsewhere", "double click", "the same again"])
def test_a_marked_point_is_cleared(way: str, run: str, open_page: Open) -> None:
    page = open_page(run)
    drawn(page)
    page.locator("#chart-trend").scroll_into_view_if_needed()
    line = page.locator("#marked-point")
    point(page, 5)
    expect(line).not_to_be_empty()
    if way == "Escape":
        page.keyboard.press("Escape")
    elif way == "elsewhere":
        page.locator("#verdict-sentence").click()
    else:
        if way == "the same again":
            no_double_click(page)
        point(page, 5)
    expect(line).to_be_empty()
    assert not marked(page)
    assert "x=" not in page.url


def test_a_note_is_added_at_a_clicked_point(
    train: Callable[..., MadeTraining], open_page: Open
) -> None:
    train("noted", GENERATIONS)
    page = open_page("/runs/noted?tab=events")
    drawn(page)
    page.locator("#chart-trend").scroll_into_view_if_needed()
    note = page.get_by_label("Note at this point")
    expect(note).to_be_hidden()
    point(page, 7)
    note.fill("a larger batch from here")
    page.get_by_role("button", name="Add note").click()
    expect(page.locator("#marked-point")).to_contain_text("Note added")
    expect(note).to_be_hidden()
    assert not marked(page)
    row = page.locator("#events tbody tr", has_text="a larger batch from here")
    expect(row.locator("td").first).to_have_text("7")
    until(
        page,
        lambda: page.evaluate(
            """() => document.getElementById("chart-trend").data.some(
                ({ x, text }) => text?.some((each, i) => each.includes("a larger batch") && x[i] === 7))"""
        ),
    )


def test_the_form_compares_without_scripts(run: str, open_page: Open) -> None:
    page = open_page(f"{run}?tab=objects&process=rank+0+main", java_script_enabled=False)
    page.get_by_text("Compare two points").click()
    page.get_by_label("From generation").fill("4")
    page.get_by_label("to", exact=True).fill("14")
    page.get_by_role("button", name="Compare", exact=True).click()
    shows_the_leak(page, 4, 14)
    asked = parse_qs(urlsplit(page.url).query)
    # The first tab is the default.
    assert asked == {"process": ["rank 0 main"], "x": ["4..14"]}

    # The same page with other ranges, and with the entire run.
    page.get_by_role("link", name="Last 10 generations").click()
    shows_the_leak(page, 9, 19)
    assert parse_qs(urlsplit(page.url).query)["process"] == ["rank 0 main"]
    page.locator("#types").get_by_role("link", name="Whole run").click()
    expect(page.locator("#changes .panel")).to_have_count(0)
    assert page.locator("[data-part='types.table'] th").all_inner_texts()[3] == "first"


def test_the_form_needs_no_mouse(run: str, open_page: Open) -> None:
    page = open_page(run)
    drawn(page)
    page.locator("#changes summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("3")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-of", "stretch", timeout=PATIENCE_MS
    )
    shows_the_leak(page, 3, 8)


def test_typed_text_survives_live_updates(
    train: Callable[..., MadeTraining], open_page: Open
) -> None:
    training = train("typing", 6)
    page = open_page("/runs/typing")
    expect(page.locator("#live")).to_have_attribute("data-live", "live")
    page.get_by_text("Compare two points").click()
    page.get_by_label("From generation").fill("2")
    field = page.get_by_label("to", exact=True)
    field.fill("5")
    training.run_generation()
    expect(page.locator('[data-part="state"]')).to_contain_text("7 of 25 generations")
    expect(field).to_have_value("5")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#changes h2")).to_have_text("Changes between generation 2 and 5")


def test_a_shared_link_shows_the_range_immediately(run: str, server: str, open_page: Open) -> None:
    assert "Changes between generation 5 and 12" in text_of(f"{server}{run}?x=4.6..12.4")
    page = open_page(f"{run}?x=4.6..12.4")
    shows_the_leak(page, 5, 12)
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-of", "stretch", timeout=PATIENCE_MS
    )
    page.get_by_role("link", name="Phases and time").click()
    expect(page.locator("#changes h2")).to_have_text("Changes between generation 5 and 12")
    page.get_by_role("link", name="Whole run").click()
    expect(page.locator("#changes .panel")).to_have_count(0)


@pytest.mark.parametrize(
    ("x", "why"),
    [
        ("12..5", "must be two numbers, the smaller first"),
        ("7.6..8.2", "Choose a wider range within generation 0 to 19."),
        ("40..60", "Choose a wider range within generation 0 to 19."),
        ("<b>", "must be two numbers"),
    ],
)
def test_a_range_without_two_points_says_why(x: str, why: str, run: str, open_page: Open) -> None:
    page = open_page(f"{run}?x={x}", java_script_enabled=False)
    expect(page.locator("#changes h2")).to_have_text("Nothing to compare")
    expect(page.locator("#changes")).to_contain_text(why)
    expect(page.locator("[data-part='types.table'] th").nth(3)).to_have_text("first")
