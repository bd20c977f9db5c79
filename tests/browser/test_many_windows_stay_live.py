"""Seven windows of one browser, all in view: it has six connections to a server, and all seven pages are live."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.browser.patience import until
from tests.browser.training import MadeTraining

PATIENCE_MS = 60_000
WINDOWS = 7


@pytest.fixture
def one_browser(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


def told_by(page: Page) -> str | None:
    return page.locator("#live").get_attribute("data-by")


@pytest.mark.long
def test_the_seventh_window_loads_and_all_follow_the_run(
    one_browser: BrowserContext, server: str, train: Callable[..., MadeTraining]
) -> None:
    trainings = [train(f"window-{i}", 2) for i in range(WINDOWS)]
    pages = []
    for i in range(WINDOWS):
        page = one_browser.new_page()
        page.goto(f"{server}/runs/window-{i}")
        expect(page.locator("#live")).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
        pages.append(page)
    assert not any(page.evaluate("document.hidden") for page in pages)
    by = [told_by(page) for page in pages]
    assert by.count("stream") <= 4 and by.count("looks") >= 3

    for training in trainings:
        training.run_generation()
    for page in pages:
        page.locator("#chart-trend").scroll_into_view_if_needed()
        expect(page.locator("#chart-trend")).to_have_attribute(
            "data-points", "3", timeout=PATIENCE_MS
        )

    # A window that closes leaves its stream to one that had none.
    pages[0].close()
    until(pages[-1], lambda: sum(told_by(page) == "looks" for page in pages[1:]) == 2)

    trainings[-1].finish()
    expect(pages[-1].locator("#live")).to_have_text("Ended", timeout=PATIENCE_MS)
