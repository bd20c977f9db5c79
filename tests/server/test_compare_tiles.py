"""The tiles of a comparison: what has no interval, or one about zero, is neither better nor worse."""

from __future__ import annotations

import pytest

from leakline_server.web.compare_view import _changes
from leakline_server.web.verdict_view import status_of, verdict_view


def interval(estimate: float, reach: float = 1.0) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - reach, "high": estimate + reach}


@pytest.mark.parametrize(
    ("difference", "status"),
    [(interval(-90), "ok"), (interval(90), "confirmed"), (interval(-90, 100), None), (None, None)],
)
def test_a_tile_has_a_colour_only_with_an_interval_off_zero(
    difference: dict[str, float] | None, status: str | None
) -> None:
    percent = 90.0 if status == "confirmed" else -90.0
    growth = {
        "before": interval(100), "after": interval(10), "change_percent": percent, "difference": difference,
    }  # fmt: skip
    time = {"before": 1.0, "after": 0.8, "change_percent": -17.1}
    comparison = {
        "growth_bytes_per_generation": growth, "peak_bytes": time, "seconds_per_generation": time,
        "memory_after": {**time, "generation": 9, "generations": 10},
    }  # fmt: skip
    tiles = {tile.label: tile.status for tile in _changes(comparison, "generation")}
    assert tiles == {"GROWTH": status, "AFTER 10": None, "PEAK": None, "TIME": None}


def test_a_suspected_leak_of_an_ended_run_says_what_decides_it() -> None:
    verdict = {
        "status": "suspected", "unit": "epoch", "summary": "s", "generations": 14, "explained_share": None,
        "ruled_out": [], "findings": [],
    }  # fmt: skip
    assert "a few more epochs will settle it" in verdict_view(verdict).support
    support = verdict_view(verdict, over=True).support
    assert "growth over 24 epochs decides it" in support and "settle" not in support
    # The tooltip of its mark is the same in each list, of runs that go on and of those that have ended.
    assert "settle" not in status_of("suspected").meaning


def test_a_run_that_ended_without_a_snapshot_waits_for_none() -> None:
    view = verdict_view(None, over=True)
    assert "Waiting" not in view.sentence and "arrives" not in view.support
    assert "Waiting" in verdict_view(None).sentence
