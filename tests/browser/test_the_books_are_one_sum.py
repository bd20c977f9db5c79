"""A person reads the books as a sum: newest, mean, or the generation they clicked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.patience import until
from tests.browser.training import MadeTraining

Train = Callable[..., MadeTraining]
Open = Callable[..., Page]
PATIENCE_MS = 30_000


def steps(page: Page) -> dict[str, float]:
    """Step -> length of its bar, in the unit of the chart."""
    bars: list[list[Any]] = page.evaluate(
        """() => (document.getElementById("chart-waterfall").data ?? []).flatMap((bar) =>
            bar.customdata.map((name, i) => [name, bar.x[i]]))"""
    )
    return dict(bars)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_person_chooses_the_generation(train: Train, open_page: Open, scripts: bool) -> None:
    train(f"summed-{scripts}", 8)
    page = open_page(f"/runs/summed-{scripts}", java_script_enabled=scripts)
    section = page.locator("#waterfall")
    expect(section.locator("[data-part$=note] .note")).to_contain_text("Generation 7")
    section.get_by_role("link", name="mean of all").click()
    expect(section.locator("[data-part$=note] .note")).to_contain_text("The mean of 8 generations")
    assert "g=mean" in page.url
    section.get_by_role("spinbutton").fill("3")
    section.get_by_role("button", name="Show").click()
    expect(section.locator("[data-part$=note] .note")).to_contain_text("Generation 3")
    expect(section.locator("table")).to_contain_text("evaluate_population")
    assert "g=3" in page.url


def test_the_bars_add_up_and_a_click_into_the_books_shows_that_generation(
    train: Train, open_page: Open
) -> None:
    train("clicked", 8)
    page = open_page("/runs/clicked")
    page.evaluate("window.same = true")
    page.locator("#chart-waterfall").scroll_into_view_if_needed()
    until(page, lambda: len(steps(page)) > 3)
    bars = steps(page)
    begin, end = bars.pop("begin"), bars.pop("end")
    assert begin + sum(bars.values()) == pytest.approx(end)
    assert bars["evaluate_population"] > 6

    books = page.locator("#chart-books .nsewdrag")
    books.scroll_into_view_if_needed()
    box = books.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.6)
    page.mouse.click(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.6)
    until(page, lambda: "g=" in page.url)
    shown = page.url.split("g=")[1].split("&")[0].split("#")[0]
    expect(page.locator("#waterfall [data-part$=note] .note")).to_contain_text(
        f"Generation {shown}:", timeout=PATIENCE_MS
    )
    assert page.evaluate("window.same") is True


def test_marks_are_told_when_one_points_at_them(train: Train, open_page: Open) -> None:
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


def test_what_somebody_types_is_not_taken_away_by_an_update(train: Train, open_page: Open) -> None:
    training = train("typing", 20)
    page = open_page("/runs/typing")
    field = page.locator("#since").get_by_label("label or generation")
    expect(field).to_be_visible(timeout=PATIENCE_MS)
    field.fill("12 Mi")
    training.run_generations(2)
    # On a busy machine the page rests half a minute after a look that took three seconds: after the one when it
    # opens, and after one between the two generations.
    expect(page.locator("#waterfall [data-part$=note] .note")).to_contain_text(
        "Generation 21", timeout=4 * PATIENCE_MS
    )
    expect(field).to_have_value("12 Mi")
    expect(field).to_be_focused()
    field.press("End")
    field.press_sequentially("B")
    field.press("Enter")
    expect(page.locator("#since [data-part$=note] .note")).to_contain_text(
        "No snapshot is called 12 MiB"
    )
    expect(field).to_be_focused()


def test_the_keyboard_keeps_its_place_from_choice_to_choice(train: Train, open_page: Open) -> None:
    train("by-keyboard", 8)
    page = open_page("/runs/by-keyboard")
    until(page, lambda: page.locator("#live").get_attribute("data-live") == "live")
    mean = page.get_by_role("link", name="mean of all")
    mean.focus()
    page.keyboard.press("Enter")
    expect(mean).to_have_attribute("aria-current", "true")
    expect(mean).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="newest")).to_have_attribute("aria-current", "true")
    assert "g=" not in page.url
