"""A server under load with its own client, and latency next to a project with thousands of new names.

Ten minutes (`LEAKLINE_SOAK_SERVER_SECONDS`) of 300 snapshots a second, on each kind of database.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server.under_load import beside_a_crowd, load, median_between, watched

PER_SECOND = 300.0
P99_SECONDS = 0.1
MOST_GROWTH = 0.05
# The server's caches and its state of runs are filled after this share of the time.
WARM_UP = 0.3
WINDOW = 0.1


def test_the_server_handles_the_load_without_growing(
    tmp_path: Path, size: Callable[[str, int], int], report: Any
) -> None:
    seconds = float(size("LEAKLINE_SOAK_SERVER_SECONDS", 600))
    with watched(tmp_path, per="minute") as server:
        figures = load(server, PER_SECOND, seconds)
        verdict = server.verdict()
        first, last = figures.resident[0][0], figures.resident[-1][0]
        length = last - first
        warm = first + WARM_UP * length
        between = {
            name: [
                median_between(resident, warm, warm + WINDOW * length),
                median_between(resident, last - WINDOW * length, last),
            ]
            for name, resident in (("server", figures.resident), ("analysis", figures.analysis))
        }
        report(
            f"{figures.snapshots_a_second():.0f} snapshots/s for {seconds:.0f} s: p99 {figures.p99() * 1e3:.1f} ms, "
            + ", ".join(
                f"{name} {before / 2**20:.1f} MiB resident after warm-up, {after / 2**20:.1f} MiB at the end"
                for name, (before, after) in between.items()
            )
            + f"; of itself: {verdict['status']} ({verdict['summary']}); {len(figures.refused)} refused"
        )
        # In MiB, by tenths of the time, to show where it levels off.
        tenths = [(first + length * i / 10, first + length * (i + 1) / 10) for i in range(10)]
        for name, resident in (("server", figures.resident), ("analysis", figures.analysis)):
            levels = [median_between(resident, *tenth) / 2**20 for tenth in tenths]
            report(f"{name}: " + " ".join(f"{level:.0f}" for level in levels))
        assert figures.refused == []
        assert figures.snapshots_a_second() >= PER_SECOND * 0.99
        assert figures.p99(warm) <= P99_SECONDS
        for name, (before, after) in between.items():
            assert after <= before * (1 + MOST_GROWTH), name
        assert verdict["status"] == "ok", verdict


# -- latency for others next to a project with many names


CROWDED_P99_SECONDS = 0.25


def test_others_wait_less_than_a_quarter_of_a_second(
    serve: Any, database_url: str, report: Any
) -> None:
    alongside = beside_a_crowd(serve(arguments=["--database-url", database_url]).port)
    report(
        f"99 % of the answers to others within {alongside.crowded:.3f} s, {alongside.alone:.3f} s without the crowd, "
        f"half of whose batches took {alongside.of_the_crowd:.1f} s; {len(alongside.refused)} refused"
    )
    assert alongside.refused == []
    assert alongside.crowded < CROWDED_P99_SECONDS
