"""Main thread time of a live page when snapshots arrive, with charts in view and without.

The same updates are measured twice: on a page that shows charts, and on one scrolled to where it shows none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from benchmarks.server.feeding import full_or_short, running, streamed
from benchmarks.server.load import closed
from benchmarks.server.rows import Figure, Line, Part
from benchmarks.server.samples import SECONDS_APART, Samples, stream
from benchmarks.server.subjects import Leakline
from playwright.sync_api import Browser, Page

from .browser import main_thread_seconds, new_page, until_drawn, watch_charts
from .opening import NEWS, Unpinned

GENERATIONS: Final = 2_000
UPDATES: Final = full_or_short(40, 6)
SECONDS_BETWEEN: Final = 0.4
AT_MOST_MS: Final = 20.0
# Counts how often each chart is drawn, by whether it is in view or within the margin in which charts are prepared.
_COUNT: Final = """() => {
  globalThis.drawn = { inside: 0, outside: 0 };
  for (const chart of document.querySelectorAll(".js-plotly-plot")) {
    chart.on("plotly_afterplot", () => {
      const { top, bottom } = chart.getBoundingClientRect();
      drawn[bottom > -200 && top < innerHeight + 200 ? "inside" : "outside"] += 1;
    });
  }
}"""


def measure(browser: Browser) -> list[Part]:
    with running(Unpinned) as server:
        server.create(["live"], total=2 * GENERATIONS)
        length = NEWS * GENERATIONS
        pieces = stream(
            1, length + 3 * NEWS * UPDATES, time.time() - length * SECONDS_APART, length
        )
        closed(server.address, [streamed(server, "live", [next(pieces)])])
        news = (part for piece in pieces for part in piece.parts(NEWS))
        server.settle(30, 1.0)
        with_charts = _line(browser, server, news, "with charts in view", "window.scrollTo(0, 0)")
        without = _line(
            browser, server, news, "with none in view", "window.scrollTo(0, document.body.scrollHeight)"
        )  # fmt: skip
    drawn = with_charts.figures["drawn"]
    outside = with_charts.figures["drawn_outside"] + without.figures["drawn_outside"]
    figures = [
        Figure(
            "main thread per update, charts in view", AT_MOST_MS,
            with_charts.figures["ms_per_update"] if drawn else None,
            unit=" ms", missing="no chart was redrawn", note=f"charts drawn {drawn:,.0f} times in {UPDATES} updates",
        ),
        Figure("charts out of view that an update draws", 0.0, outside),
    ]  # fmt: skip
    return [Part("live updates on an open page", [with_charts, without], figures)]


def _line(
    browser: Browser, server: Leakline, news: Iterator[Samples], name: str, scroll: str
) -> Line:
    with new_page(browser) as (page, session):
        session.send("Performance.enable")
        watch_charts(page)
        page.goto(f"http://127.0.0.1:{server.port}/runs/live?tab=info", wait_until="load")
        until_drawn(page)
        page.locator("#live[data-live=live]").wait_for()
        page.evaluate(scroll)
        page.wait_for_timeout(1_000)
        page.evaluate(_COUNT)
        before = main_thread_seconds(session)
        _updates(page, server, news)
        spent = main_thread_seconds(session) - before
        drawn = page.evaluate("drawn")
    figures = {
        "ms_per_update": spent * 1e3 / UPDATES,
        "drawn": drawn["inside"],
        "drawn_outside": drawn["outside"],
    }
    return Line(name, figures)


def _updates(page: Page, server: Leakline, news: Iterator[Samples]) -> None:
    for _ in range(UPDATES):
        closed(server.address, [[server.request("live", next(news))]])
        page.wait_for_timeout(SECONDS_BETWEEN * 1e3)
    # Wait until the last updates are drawn and the charts that the server renders have arrived.
    page.wait_for_timeout(3_000)
