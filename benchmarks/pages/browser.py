"""A real Chromium and its measurements of a page: when charts were painted, bytes loaded, main thread time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.server.load import Failed
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

VIEW: Final = {"width": 1280, "height": 900}
LONGEST_SECONDS: Final = 60.0
# The page is complete when no chart was drawn for this long.
QUIET_MS: Final = 600
_ARGUMENTS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_CHROMIUMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A chart counts when its frame has been painted: two frames after it was drawn.
_WATCH: Final = """
globalThis.bench = { first: 0, last: 0 };
new MutationObserver(() => {
  requestAnimationFrame(() => requestAnimationFrame(() => {
    bench.last = performance.now();
    bench.first ||= bench.last;
  }));
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-points"] });
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Milliseconds since the start of the navigation, and bytes transferred."""

    first_chart: float
    all_in_view: float
    wire_bytes: float


@contextmanager
def chromium() -> Iterator[Browser]:
    found = os.environ.get("LEAKLINE_CHROMIUM") or next(
        filter(None, map(shutil.which, _CHROMIUMS)), None
    )
    if found is None:
        raise SystemExit(
            "bench-pages: needs Chromium; install it (Debian: apt-get install chromium) or name it "
            "in LEAKLINE_CHROMIUM"
        )
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(_ARGUMENTS))
        yield started
        started.close()


@contextmanager
def new_page(browser: Browser) -> Iterator[tuple[Page, CDPSession]]:
    """Open a page without cache and storage of earlier pages."""
    context = browser.new_context(viewport=VIEW)  # type: ignore[arg-type]
    page = context.new_page()
    session = context.new_cdp_session(page)
    yield page, session
    context.close()


def opened(browser: Browser, address: str, charts: bool = True) -> Opened:
    """Open a page and measure it; ``charts`` says whether it has any."""
    received = 0.0

    def finished(told: dict[str, Any]) -> None:
        nonlocal received
        received += told["encodedDataLength"]

    with new_page(browser) as (page, session):
        session.send("Network.enable")
        session.on("Network.loadingFinished", finished)
        page.add_init_script(_WATCH)
        page.goto(address, wait_until="load")
        if charts:
            until_drawn(page)
        first, last = page.evaluate("[bench.first, bench.last]")
    return Opened(first, last, received)


def until_drawn(page: Page) -> None:
    """Wait until all charts in view are drawn. Raises Failed."""
    until = time.monotonic() + LONGEST_SECONDS
    # Polled, because the page's content security policy does not allow evaluation inside it.
    while not page.evaluate(f"bench.first && performance.now() - bench.last > {QUIET_MS}"):
        if time.monotonic() > until:
            raise Failed(f"{page.url}: no chart was drawn within {LONGEST_SECONDS:g} s")
        page.wait_for_timeout(100)


def watch_charts(page: Page) -> None:
    """Record when charts are painted. Call it before the page is opened."""
    page.add_init_script(_WATCH)


def main_thread_seconds(session: CDPSession) -> float:
    """Return the seconds of work on the page's main thread so far. Needs ``Performance.enable`` before."""
    found = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))
