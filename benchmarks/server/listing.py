"""Time of a page of 100 of 10,000 runs with their sparklines: the first, a late one, and filtered."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from statistics import median
from typing import Any, Final
from urllib.parse import urlencode

from .feeding import full_or_short, requests_of, running, started_now
from .load import Failed, closed
from .rows import Figure, Line, Part
from .subjects import Leakline

RUNS: Final = full_or_short(10_000, 300)
SNAPSHOTS: Final = 20
PAGE: Final = 100
AT_MOST_MS: Final = 10.0
REPEATS: Final = 9
CONNECTIONS: Final = 50


def measure() -> list[Part]:
    with running(Leakline) as server:
        fill(server)
        # A restart leaves the work for 10,000 new runs out of the measurement.
        server.stop()
        server.start()
        server.settle(30, 1.0)
        connection = HTTPConnection(*server.address, timeout=60)
        late = _late_cursor(connection)
        asked: dict[str, dict[str, str]] = {
            "the first page": {},
            f"the page after {RUNS // 2:,} runs": {"cursor": late},
            "of one project": {"project": "p3"},
            "of one status": {"status": "running"},
            "found by name": {"q": "l77"},
        }
        lines = [_line(connection, name, query) for name, query in asked.items()]
        connection.close()
    worst = max(line.figures["ms"] for line in lines[:2])
    figure = Figure(
        f"list of {RUNS:,} runs: a page of {PAGE} with sparklines", AT_MOST_MS, worst, unit=" ms",
        note="the slower of the first page and one in the middle",
    )  # fmt: skip
    return [Part(f"the list of {RUNS:,} runs over HTTP, median of {REPEATS}", lines, [figure])]


def fill(server: Leakline) -> None:
    """Create ``RUNS`` runs in ten projects, each with some snapshots."""
    names = [f"l{i}" for i in range(RUNS)]
    for i in range(10):
        server.create(names[i::10], project=f"p{i}")
    made = requests_of(
        server, {name: name for name in names}, SNAPSHOTS, SNAPSHOTS, started_now(60)
    )
    closed(
        server.address,
        [[each for queue in made[i::CONNECTIONS] for each in queue] for i in range(CONNECTIONS)],
    )


def _page(connection: HTTPConnection, query: dict[str, str]) -> tuple[float, bytes]:
    """Return milliseconds and the body of the answer."""
    began = time.perf_counter()
    connection.request("GET", f"/api/v1/runs?{urlencode({'limit': PAGE, **query})}")
    answer = connection.getresponse()
    raw = answer.read()
    spent = (time.perf_counter() - began) * 1e3
    if answer.status != 200:
        raise Failed(f"/api/v1/runs: {raw[:400].decode(errors='replace')}")
    return spent, raw


def _late_cursor(connection: HTTPConnection) -> str:
    query: dict[str, str] = {}
    for _ in range(RUNS // 2 // PAGE):
        found: dict[str, Any] = json.loads(_page(connection, query)[1])
        query = {"cursor": found["next"]}
    return query["cursor"]


def _line(connection: HTTPConnection, name: str, query: dict[str, str]) -> Line:
    found = [_page(connection, query) for _ in range(REPEATS + 1)][1:]
    raw = found[-1][1]
    items = json.loads(raw)["items"]
    drawn = sum(bool(item["sparkline"]) for item in items)
    note = f"{len(items)} runs, {drawn} with a sparkline"
    return Line(name, {"ms": median(ms for ms, _ in found), "kib": len(raw) / 1024}, note=note)
