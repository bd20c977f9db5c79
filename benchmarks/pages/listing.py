"""The list of 10,000 runs as a page, with and without a search; and the transfer size of each page."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from statistics import median
from typing import Final
from urllib.parse import urlencode

from benchmarks.server.feeding import running
from benchmarks.server.listing import RUNS, fill
from benchmarks.server.load import Failed
from benchmarks.server.rows import Figure, Line, Part
from playwright.sync_api import Browser

from .browser import opened
from .opening import Unpinned

REPEATS: Final = 9
SERVER_MS: Final = 300.0
WEIGHT_KB: Final = 500.0
_SEARCHES: Final = {
    "all": "", "by name": "l77", "by words that none has": "nothing has this",
    "by project, status and name": "project:p3 status:learning l1",
}  # fmt: skip


def measure(browser: Browser) -> list[Part]:
    with running(Unpinned) as server:
        fill(server)
        # A restart leaves the work for so many new runs out of the measurement.
        server.stop()
        server.start()
        server.settle(30, 1.0)
        connection = HTTPConnection(*server.address, timeout=60)
        lines = [_line(connection, name, query) for name, query in _SEARCHES.items()]
        connection.close()
        address = f"http://127.0.0.1:{server.port}"
        weights = [
            _weight(browser, "the list", address, charts=False),
            _weight(browser, "a run", f"{address}/runs/l1"),
            _weight(browser, "a comparison", f"{address}/compare?before=l1&after=l2"),
        ]
    slowest = max(line.figures["ms"] for line in lines)
    heaviest = max(line.figures["wire_kb"] for line in weights)
    return [
        Part(
            f"the page of {RUNS:,} runs over HTTP, median of {REPEATS}", lines,
            [Figure(f"{RUNS:,} runs listed by a search", SERVER_MS, slowest, unit=" ms", note="the slowest of all")],
        ),
        Part(
            "transfer size of a page, nothing cached", weights,
            [Figure("page weight, compressed, in all", WEIGHT_KB, heaviest, unit=" kB", note="the heaviest")],
        ),
    ]  # fmt: skip


def _line(connection: HTTPConnection, name: str, query: str) -> Line:
    found = [_page(connection, query) for _ in range(REPEATS + 1)][1:]
    return Line(name, {"ms": median(ms for ms, _ in found), "kib": found[-1][1] / 1024}, note=query)


def _page(connection: HTTPConnection, query: str) -> tuple[float, int]:
    """Return the milliseconds until the page has arrived, and its size in bytes."""
    began = time.perf_counter()
    connection.request("GET", f"/?{urlencode({'q': query})}", headers={"accept-encoding": "gzip"})
    answer = connection.getresponse()
    raw = answer.read()
    spent = (time.perf_counter() - began) * 1e3
    if answer.status != 200:
        raise Failed(f"/: {answer.status}")
    return spent, len(raw)


def _weight(browser: Browser, name: str, address: str, charts: bool = True) -> Line:
    return Line(name, {"wire_kb": opened(browser, address, charts).wire_bytes / 1e3})
