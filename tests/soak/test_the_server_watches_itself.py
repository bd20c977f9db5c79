"""Ten minutes (`LEAKLINE_SOAK_SERVER_SECONDS`) of 300 snapshots a second, with the server under its own client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server.under_load import load, watched

PER_SECOND = 300.0
P99_SECONDS = 0.1
MOST_GROWTH = 0.05
# What a server remembers of its runs, and its caches, is there after this share of the time.
WARM_UP = 0.3
WINDOW = 0.1


def test_it_takes_the_load_grows_no_further_and_finds_itself_well(
    tmp_path: Path, size: Callable[[str, int], int], tell: Any
) -> None:
    seconds = float(size("LEAKLINE_SOAK_SERVER_SECONDS", 600))
    with watched(tmp_path, per="minute") as server:
        figures = load(server, PER_SECOND, seconds)
        verdict = server.verdict()
        first, last = figures.resident[0][0], figures.resident[-1][0]
        length = last - first
        warm = first + WARM_UP * length
        before = figures.resident_between(warm, warm + WINDOW * length)
        after = figures.resident_between(last - WINDOW * length, last)
        tell(
            f"{figures.snapshots_a_second():.0f} snapshots/s for {seconds:.0f} s: p99 {figures.p99() * 1e3:.1f} ms, "
            f"resident {before / 2**20:.1f} MiB after warm-up, {after / 2**20:.1f} MiB at the end; of itself: "
            f"{verdict['status']} ({verdict['summary']}); {len(figures.refused)} refused"
        )
        assert figures.refused == []
        assert figures.snapshots_a_second() >= PER_SECOND * 0.99
        assert figures.p99(warm) <= P99_SECONDS
        assert after <= before * (1 + MOST_GROWTH)
        assert verdict["status"] == "ok", verdict
