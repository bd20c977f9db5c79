"""Charts with touch, mouse and keyboard: scrolling, following, zoom reset, logarithmic axes, and saved images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import LEAK
from tests.browser.patience import PATIENCE_MS, drag, until
from tests.browser.training import MadeTraining

Open = Callable[..., Page]
Train = Callable[..., MadeTraining]
PHONE = {"width": 390, "height": 844, "is_mobile": True, "has_touch": True}


def drawn(page: Page, points: int) -> None:
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-points", str(points), timeout=PATIENCE_MS
    )


def xaxis(page: Page) -> list[float]:
    found: list[float] = page.locator("#chart-trend").evaluate("(e) => e.layout.xaxis.range")
    return found


def numbers(page: Page) -> dict[str, list[str]]:
    """Return line -> last, min, max, change from the table below the chart."""
    rows: list[list[str]] = page.locator("[data-numbers=trend] tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return {name: cells for name, *cells in rows}


def swipe(page: Page, chart: str, pixels: int) -> None:
    """Swipe with one finger upwards from the middle of a chart, with the browser's own gesture."""
    box = page.locator(f"#chart-{chart} .nsewdrag").first.bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    session.send(
        "Input.synthesizeScrollGesture",
        {
            "x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2,
            "yDistance": -pixels, "gestureSourceType": "touch", "speed": 1200,
        },
    )  # fmt: skip


def test_a_finger_on_a_chart_scrolls_the_page(two_runs: None, open_page: Open) -> None:
    page = open_page(f"/runs/{LEAK}", **PHONE)
    drawn(page, 8)
    chart = page.locator("#chart-trend")
    box = chart.bounding_box()
    assert box is not None and box["height"] == 220
    chart.evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    before, shown = page.evaluate("scrollY"), xaxis(page)
    swipe(page, "trend", 200)
    until(page, lambda: page.evaluate("scrollY") > before + 100)
    assert xaxis(page) == shown and "x=" not in page.url
    expect(page.locator("[data-tools=trend] [data-reset]")).to_be_hidden()


def test_a_zoom_is_reset_with_a_button_by_mouse_and_by_keyboard(
    two_runs: None, open_page: Open
) -> None:
    page = open_page(f"/runs/{LEAK}")
    drawn(page, 8)
    whole = xaxis(page)
    tools = page.locator("[data-tools=trend]")
    reset = tools.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_hidden()
    drag(page, "trend")
    expect(reset).to_be_visible()
    # No notification covers the controls.
    expect(page.locator(".plotly-notifier")).to_have_count(0)
    reset.click()
    expect(reset).to_be_hidden()
    until(page, lambda: xaxis(page) == whole and "x=" not in page.url)
    # The focus of a keyboard user stays at the chart.
    expect(tools.get_by_role("button", name="PNG")).to_be_focused()

    drag(page, "trend")
    expect(reset).to_be_visible()
    tools.get_by_role("button", name="Last 10").focus()
    page.keyboard.press("Tab")
    expect(reset).to_be_focused()
    page.keyboard.press("Enter")
    until(page, lambda: xaxis(page) == whole)


@pytest.mark.long
def test_going_live_resets_the_zoom(train: Train, open_page: Open) -> None:
    training = train("live-again", 6)
    page = open_page("/runs/live-again")
    mark = page.locator("#live")
    expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    drawn(page, 6)
    drag(page, "trend")
    expect(mark).to_have_attribute("data-live", "paused")
    training.run_generation()
    expect(mark).to_contain_text("new", timeout=PATIENCE_MS)
    mark.click()
    expect(mark).to_have_attribute("data-live", "live")
    drawn(page, 7)
    until(page, lambda: xaxis(page)[0] < 0 and xaxis(page)[1] > 6)
    assert "x=" not in page.url


@pytest.mark.long
def test_the_last_generations_are_followed_while_the_page_is_live(
    train: Train, open_page: Open
) -> None:
    training = train("followed", 13)
    page = open_page("/runs/followed")
    drawn(page, 13)
    tools = page.locator("[data-tools=trend]")
    tools.get_by_role("button", name="Last 10").click()
    until(page, lambda: xaxis(page) == [1.5, 12.5])
    expect(page.locator("#live")).to_have_attribute("data-live", "live")
    training.run_generation()
    until(page, lambda: xaxis(page) == [2.5, 13.5])
    assert "last=10" in page.url

    again = open_page("/runs/followed?last=10")
    until(again, lambda: xaxis(again) == [2.5, 13.5])
    button = again.locator("[data-tools=trend]").get_by_role("button", name="Last 10")
    expect(button).to_have_attribute("aria-pressed", "true")
    again.keyboard.press("r")
    until(again, lambda: xaxis(again)[0] < 0 and "last=" not in again.url)
    expect(button).to_have_attribute("aria-pressed", "false")


def test_numbers_of_the_visible_range_are_below_the_chart(two_runs: None, open_page: Open) -> None:
    page = open_page(f"/runs/{LEAK}")
    drawn(page, 8)
    until(page, lambda: "rank 0 main" in numbers(page) or "generation end" in numbers(page))
    (name,) = [each for each in numbers(page) if each in ("rank 0 main", "generation end")]
    last, least, most, change = numbers(page)[name]
    assert least != last and change.startswith("+") and all("GiB" in each for each in (last, most))

    drag(page, "trend", 0.1, 0.5)
    until(page, lambda: numbers(page).get(name, [last])[0] != last)
    page.keyboard.press("r")
    until(page, lambda: numbers(page)[name] == [last, least, most, change])
    # In the viewer's units, like the rest of the page.
    page.keyboard.press("u")
    until(page, lambda: all(" GB" in each for each in numbers(page)[name]))
    page.get_by_role("button", name="RSS").click()
    until(page, lambda: "after train_population" in numbers(page))


def test_a_logarithmic_axis_is_kept_in_the_address(two_runs: None, open_page: Open) -> None:
    page = open_page(f"/runs/{LEAK}")
    drawn(page, 8)

    def axis() -> str:
        return str(page.locator("#chart-trend").evaluate("(e) => e.layout.yaxis.type"))

    button = page.locator("[data-tools=trend] [data-log]")
    button.click()
    until(page, lambda: axis() == "log" and "log=trend" in page.url)
    page.reload()
    drawn(page, 8)
    until(page, lambda: axis() == "log")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    until(page, lambda: axis() == "linear" and "log=" not in page.url)


def test_a_saved_image_names_its_chart_and_run(two_runs: None, open_page: Open) -> None:
    page = open_page(f"/runs/{LEAK}")
    drawn(page, 8)
    # Checks the figure passed to the image export, since text in pixels cannot be checked.
    page.evaluate(
        """() => {
            const draw = Plotly.downloadImage;
            Plotly.downloadImage = (figure, ...rest) => {
                document.body.dataset.title = figure.layout.title.text;
                document.body.dataset.subtitle = figure.layout.title.subtitle.text;
                return draw(figure, ...rest);
            };
        }"""
    )
    with page.expect_download(timeout=PATIENCE_MS) as saved:
        page.locator("[data-tools=trend] [data-png]").click()
    assert saved.value.suggested_filename == "leakline-trend.png"
    body = page.locator("body")
    expect(body).to_have_attribute("data-title", f"Memory (GiB), erl-trading / {LEAK}")
    subtitle = body.get_attribute("data-subtitle") or ""
    assert subtitle.startswith("generation 0 to ") and "20" in subtitle.partition(", ")[2]


def test_the_time_axis_works_without_scripts_and_live(train: Train, open_page: Open) -> None:
    training = train("by-the-clock", 4)
    page = open_page("/runs/by-the-clock", java_script_enabled=False)
    page.get_by_role("link", name="time", exact=True).click()
    assert "axis=time" in page.url
    expect(page.get_by_role("link", name="time", exact=True)).to_have_attribute(
        "aria-current", "true"
    )

    live = open_page("/runs/by-the-clock?log=trend")
    drawn(live, 4)
    live.get_by_role("link", name="time", exact=True).click()
    # Each phase end is a reading: a baseline, three phases and the end of each generation.
    drawn(live, 17)
    assert "log=trend" in live.url
    title = live.locator("#chart-trend .xtitle")
    expect(title).to_have_text("minutes since the start")
    training.run_generation()
    drawn(live, 21)
    live.get_by_role("link", name="Phases and time").click()
    until(live, lambda: "tab=phases" in live.url and "axis=time" in live.url)
    expect(live.locator("#chart-phases")).to_have_count(0)
