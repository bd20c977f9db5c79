"""Time to open the page of a run, from navigation to charts: for a short run and one of 1,000,000 snapshots.

Each time, the browser has an empty cache and a new snapshot has invalidated the server's results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from benchmarks.server.feeding import full_or_short, log_progress, running, streamed
from benchmarks.server.load import closed
from benchmarks.server.rows import Figure, Line, Part
from benchmarks.server.samples import SECONDS_APART, Samples, stream
from benchmarks.server.subjects import Leakline
from playwright.sync_api import Browser

from .browser import Opened, opened

SHORT_RUN: Final = 1_000
LONG_RUN: Final = full_or_short(1_000_000, 20_000)
REPEATS: Final = full_or_short(7, 2)
# Snapshots of a generation; one generation arrives before each page load.
NEWS: Final = 4
AT_MOST_TIMES: Final = 1.5
FIRST_CHART_MS: Final = 1_000.0
SETTLING_SECONDS: Final = full_or_short(120, 20)


class Unpinned(Leakline):
    """Not bound to a core, so that it runs like the browser."""

    pinned = False


def measure(browser: Browser) -> list[Part]:
    lengths = (SHORT_RUN, LONG_RUN)
    with running(Unpinned) as server:
        left = {length: _fed(server, seed, length) for seed, length in enumerate(lengths)}
        server.settle(SETTLING_SECONDS, 2.0)
        found: dict[int, list[Opened]] = {length: [] for length in lengths}
        # In turns; the first of each includes one-time work and is dropped.
        for turn in range(REPEATS + 1):
            for length in lengths:
                closed(server.address, [[server.request(f"r{length}", next(left[length]))]])
                one = opened(browser, f"http://127.0.0.1:{server.port}/runs/r{length}")
                found[length] += [one] if turn else []
    lines = [_line(length, found[length]) for length in lengths]
    short, long = (line.figures["opened_ms"] for line in lines)
    slowest = max(line.figures["first_chart_ms"] for line in lines)
    figures = [
        Figure(f"a run of {LONG_RUN:,} snapshots opens, of one of {SHORT_RUN:,}", AT_MOST_TIMES, long / short,
               unit=" ×", note=f"{long:,.0f} of {short:,.0f} ms"),
        Figure("first chart after the navigation", FIRST_CHART_MS, slowest, unit=" ms", note="the slower of both"),
    ]  # fmt: skip
    title = f"the page of a run, nothing cached, median of {REPEATS}"
    return [Part(title, lines, figures)]


def _fed(server: Leakline, seed: int, length: int) -> Iterator[Samples]:
    """Create a run of this many snapshots; return the generations that come after them."""
    run = f"r{length}"
    server.create([run], total=length // NEWS)
    log_progress(f"{length:,} snapshots")
    started = time.time() - length * SECONDS_APART
    pieces = stream(seed, length + NEWS * (REPEATS + 1), started)
    parts = _parts(pieces, length)
    closed(server.address, [streamed(server, run, _until(parts, length))])
    return parts


def _parts(pieces: Iterator[Samples], length: int) -> Iterator[Samples]:
    """Yield batches up to the length, and single generations beyond it."""
    for piece in pieces:
        inside = max(0, min(piece.count, length - piece.first))
        yield from piece.part(0, inside).parts(200)
        yield from piece.part(inside, piece.count - inside).parts(NEWS)


def _until(parts: Iterator[Samples], length: int) -> Iterator[Samples]:
    for part in parts:
        yield part
        if part.first + part.count >= length:
            return


def _line(length: int, found: Sequence[Opened]) -> Line:
    figures = {
        "first_chart_ms": median(one.first_chart for one in found),
        "opened_ms": median(one.all_in_view for one in found),
        "wire_kb": median(one.wire_bytes for one in found) / 1e3,
    }
    return Line(f"a run of {length:,} snapshots", figures)
