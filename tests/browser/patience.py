"""Functions that wait with a deadline, and mouse moves shared by several tests.

Playwright's own wait for an expression needs eval, which our pages forbid.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable

from playwright.sync_api import Page, expect

# Only failing tests wait this long: a busy machine is slow.
DEADLINE_SECONDS = 90.0
PATIENCE_MS = 60_000


def until(page: Page, check: Callable[[], bool]) -> None:
    """Wait until the check is true; events of the page are handled between two checks."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not check():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:.0f} s"
        page.wait_for_timeout(50)


def eventually(check: Callable[[], bool]) -> None:
    """Wait until the check is true, without an open page."""
    pause, end = threading.Event(), time.monotonic() + DEADLINE_SECONDS
    while not check():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:.0f} s"
        pause.wait(0.05)


def text_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=DEADLINE_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def draw_everything(page: Page) -> int:
    """Scroll to all charts, since they are drawn when they come into view, and return their number."""
    charts = page.locator(".chart").all()
    for chart in charts:
        chart.scroll_into_view_if_needed()
        expect(chart.locator("svg.main-svg").first).to_be_attached(timeout=PATIENCE_MS)
    return len(charts)


def open_all(page: Page) -> None:
    """Open all folded elements and draw all charts."""
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    draw_everything(page)


def drag(page: Page, chart: str, left: float = 0.3, right: float = 0.6) -> None:
    """Drag over a part of a chart to zoom; left and right are shares of its width."""
    area = page.locator(f"#chart-{chart} .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * left, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * right, middle, steps=5)
    page.mouse.up()


def fits(page: Page, width: int) -> bool:
    """Return True if nothing on the page is wider than a screen of this width."""
    return bool(page.evaluate("document.documentElement.scrollWidth") <= width)
