"""Open pages, up to seven in one browser, follow their runs without a reload and show when they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.browser.conftest import serving
from tests.browser.everything import trained
from tests.browser.patience import PATIENCE_MS, drag, until
from tests.browser.training import MadeTraining

Train = Callable[..., MadeTraining]
Open = Callable[..., Page]


def points(page: Page, chart: str = "trend") -> int:
    return int(page.locator(f"#chart-{chart}").get_attribute("data-points") or 0)


def wait_for_points(page: Page, number: int) -> None:
    """Wait for this number of points in the trend, scrolling to it since charts are drawn in view."""
    page.locator("#chart-trend").scroll_into_view_if_needed()
    expect(page.locator("#chart-trend")).to_have_attribute(
        "data-points", str(number), timeout=PATIENCE_MS
    )


def xaxis(page: Page, chart: str) -> list[float]:
    found = page.evaluate(f"document.getElementById('chart-{chart}').layout?.xaxis.range ?? []")
    return [float(each) for each in found]


def never_reloaded(page: Page) -> bool:
    return bool(page.evaluate("window.same === true"))


@pytest.mark.long
def test_a_new_point_and_a_new_verdict_appear_without_a_reload(
    train: Train, open_page: Open
) -> None:
    training = train("live", 2)
    page = open_page("/runs/live")
    page.evaluate("window.same = true")
    wait_for_points(page, 2)
    chip = page.locator(".verdict .chip")
    expect(chip).not_to_contain_text("eak")

    training.run_generation()
    wait_for_points(page, 3)

    training.run_generations(10)
    expect(chip).to_contain_text("eak", timeout=PATIENCE_MS)
    expect(page.locator("#verdict-sentence")).to_contain_text(
        "TradingEnvironment", timeout=PATIENCE_MS
    )
    expect(page.locator("#findings")).to_contain_text("evaluate_population")
    assert never_reloaded(page)


def test_a_section_missing_at_first_paint_is_added_later(train: Train, open_page: Open) -> None:
    training = train("grows-sections")
    page = open_page("/runs/grows-sections")
    expect(page.locator("#large-objects")).to_have_count(0)
    training.run_generations(3)
    expect(page.locator("#large-objects")).to_be_visible(timeout=PATIENCE_MS)
    page.locator("#chart-types").scroll_into_view_if_needed()
    expect(page.locator("#chart-types svg").first).to_be_attached(timeout=PATIENCE_MS)


@pytest.mark.long
def test_zooming_pauses_and_a_double_click_resumes(train: Train, open_page: Open) -> None:
    training = train("zoomed", 6)
    page = open_page("/runs/zoomed")
    mark = page.locator("#live")
    expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    wait_for_points(page, 6)
    drag(page, "trend")
    expect(mark).to_have_attribute("data-live", "paused", timeout=PATIENCE_MS)
    assert "x=" in page.url

    training.run_generation()
    expect(mark).to_contain_text("new", timeout=PATIENCE_MS)
    assert points(page) == 6

    page.locator("#chart-trend .nsewdrag").dblclick()
    expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    wait_for_points(page, 7)
    assert "x=" not in page.url


@pytest.mark.long
def test_the_end_of_a_run_is_shown_on_a_zoomed_page(train: Train, open_page: Open) -> None:
    training = train("ends-zoomed", 6)
    page = open_page("/runs/ends-zoomed")
    mark = page.locator("#live")
    expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    wait_for_points(page, 6)
    drag(page, "trend")
    expect(mark).to_have_attribute("data-live", "paused", timeout=PATIENCE_MS)
    training.run_generation()
    training.finish()
    expect(mark).to_have_attribute("data-live", "ended", timeout=PATIENCE_MS)
    expect(page.locator(".facts .state")).to_have_text("finished", timeout=PATIENCE_MS)
    expect(page.locator(".facts").first).to_contain_text("7 of 25", timeout=PATIENCE_MS)
    assert "x=" in page.url


@pytest.mark.long
def test_a_zoom_moves_every_chart(train: Train, open_page: Open) -> None:
    train("linked", 8)
    page = open_page("/runs/linked?tab=phases")
    wait_for_points(page, 8)
    drag(page, "trend")
    page.locator("#chart-phases").scroll_into_view_if_needed()
    trend = xaxis(page, "trend")
    assert trend[1] - trend[0] < 6
    page.locator("#chart-phases").scroll_into_view_if_needed()
    until(page, lambda: xaxis(page, "phases") == pytest.approx(trend))


def test_the_stream_is_closed_while_the_page_is_hidden(train: Train, open_page: Open) -> None:
    training = train("hidden", 2)
    page = open_page("/runs/hidden")
    mark = page.locator("#live")
    expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    hide(page, hidden=True)
    expect(mark).to_have_attribute("data-live", "closed")
    training.run_generation()
    hide(page, hidden=False)
    expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    wait_for_points(page, 3)


@pytest.mark.long
def test_a_page_continues_after_a_server_restart(open_page: Open, tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        training = trained(address, "goes-on", 2)
        page = open_page("/runs/goes-on", address=address, expect_failed_requests=True)
        page.evaluate("window.same = true")
        mark = page.locator("#live")
        expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
        wait_for_points(page, 2)
    expect(mark).to_have_attribute("data-live", "disconnected", timeout=PATIENCE_MS)
    expect(mark).to_have_text("Disconnected")
    with serving(tmp_path, int(address.rpartition(":")[2])):
        training.run_generation()
        expect(mark).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
        wait_for_points(page, 3)
        assert never_reloaded(page)


def test_the_end_of_a_run_is_seen_live(train: Train, open_page: Open) -> None:
    training = train("ends", 3)
    page = open_page("/runs/ends")
    expect(page.locator("#live")).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    training.finish()
    expect(page.locator("#live")).to_have_text("Ended", timeout=PATIENCE_MS)
    expect(page.locator(".state")).to_have_text("finished", timeout=PATIENCE_MS)


def hide(page: Page, *, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


# A browser opens at most six connections to a server.
WINDOWS = 7
BEAT_MS = 5_000


@pytest.fixture
def one_browser(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


def let_a_beat_pass(pages: list[Page]) -> None:
    """Advance the clocks by a beat, after which each page takes a free stream or polls."""
    for page in pages:
        page.clock.fast_forward(BEAT_MS)


def told_by(page: Page) -> str | None:
    return page.locator("#live").get_attribute("data-by")


@pytest.mark.long
def test_the_seventh_window_loads_and_all_follow_the_run(
    one_browser: BrowserContext, server: str, train: Callable[..., MadeTraining]
) -> None:
    trainings, pages = [], []
    for i in range(WINDOWS):
        # Started just before its window opens: a run that has sent nothing for a while is not live.
        trainings.append(train(f"window-{i}", 2))
        page = one_browser.new_page()
        page.clock.install()
        page.goto(f"{server}/runs/window-{i}")
        expect(page.locator("#live")).to_have_attribute(
            "data-live", "live", timeout=2 * PATIENCE_MS
        )
        pages.append(page)
    assert not any(page.evaluate("document.hidden") for page in pages)

    def have_streams() -> bool:
        by = [told_by(page) for page in pages]
        return by.count("stream") <= 4 and by.count("looks") >= 3

    # If two windows note their stream at the same time, one note is lost until the next beat.
    until(pages[-1], have_streams)

    for training in trainings:
        training.run_generation()
    let_a_beat_pass(pages)
    for page in pages:
        page.locator("#chart-trend").scroll_into_view_if_needed()
        expect(page.locator("#chart-trend")).to_have_attribute(
            "data-points", "3", timeout=2 * PATIENCE_MS
        )

    # A closed window frees its stream for one that had none.
    pages[0].close()
    let_a_beat_pass(pages[1:])
    until(pages[-1], lambda: sum(told_by(page) == "looks" for page in pages[1:]) == 2)

    trainings[-1].finish()
    let_a_beat_pass(pages[1:])
    expect(pages[-1].locator("#live")).to_have_text("Ended", timeout=2 * PATIENCE_MS)
