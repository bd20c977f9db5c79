"""`run.band` and `run.budget`: what travels, and that what nothing could lie between does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import leakline
from leakline import declarations
from leakline.errors import BadArgument
from leakline.snapshot import Snapshot

Recorded = Callable[[], list[Snapshot]]


def test_a_band_may_go_on_to_the_end_and_a_number_is_in_the_unit_of_its_series() -> None:
    assert declarations.band_data((11, None), "40 GB", "50 GB") == {
        "first": 11, "last": None, "low_bytes": 40 * 10**9, "high_bytes": 50 * 10**9,
    }  # fmt: skip
    assert declarations.band_data((1, 5), 0.25, None)["low_bytes"] == 0.25
    assert declarations.band_data((0, 0), -1.5, 1.5)["low_bytes"] == -1.5


@pytest.mark.parametrize(
    ("span", "low", "high", "named"),
    [
        ((5, 1), 0, 1, "span"), ((1, 5), None, None, "low"), ((1, 5), 2, 1, "high"), ((1, 5), "many", None, "low"),
        ((1, 5), None, float("nan"), "high"), ((1, 5), True, None, "low"),
    ],
)  # fmt: skip
def test_a_band_that_nothing_lies_in_is_refused_whole(
    span: Any, low: Any, high: Any, named: str
) -> None:
    with pytest.raises(BadArgument) as caught:
        declarations.band_data(span, low, high)
    assert caught.value.name == named
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("span", [(None, 5), (1.5, 2), ("1", 2), (1,), 5, (2**60, None)])
def test_a_band_without_whole_generations_is_refused(span: Any) -> None:
    with pytest.raises((BadArgument, TypeError, ValueError, OverflowError)):
        declarations.band_data(span, 0, 1)


@pytest.mark.parametrize(
    ("normal", "leak", "named"),
    [(None, None, "normal"), ("5 GiB", "4 GiB", "leak"), (-1, None, "normal"), (None, "x", "leak")],
)
def test_a_budget_that_says_nothing_is_refused_whole(normal: Any, leak: Any, named: str) -> None:
    with pytest.raises(BadArgument) as caught:
        declarations.budget_data(normal, leak)
    assert caught.value.name == named


def test_what_is_refused_never_reaches_the_loop(
    offline: leakline.Run, recorded: Recorded, internal_exceptions: Any
) -> None:
    offline.band("process.rss_bytes", (5, 1), low=0, high=1)
    offline.budget("run", normal="2 GiB", leak="1 GiB")
    offline.budget("run", normal="1 GiB", leak="1 GiB")
    offline.finish()
    assert len(internal_exceptions) == 2
    internal_exceptions.clear()
    told = [(e.kind, e.name) for s in recorded() for e in s.events if e.kind in ("band", "budget")]
    assert told == [("budget", "run")]


def test_the_report_of_a_recording_tells_how_the_plan_stands(offline: leakline.Run) -> None:
    offline.band("process.rss_bytes", (0, 1), high="1 TiB")
    offline.band("process.rss_bytes", (2, 9), low="1 TiB")
    offline.band("gauge.pending", (0, 3), high=5)
    offline.budget("run", normal="1 TiB", leak="2 TiB")
    offline.budget("train", normal="1 TiB")
    for generation in range(3):
        offline.generation(generation)
        offline.gauge("pending", 2 * generation)
        with offline.phase("train"):
            pass
    offline.snapshot("now")
    lines = offline.report().splitlines()
    told = lines[lines.index("PLAN AND BUDGETS") + 2 :]
    assert told[0] == "gauge.pending, generations 0 to 3: up to 5"
    assert "process.rss_bytes, generations 0 to 1: up to 1.00 TiB" in told
    assert "   as planned: Within in all 2 generations." in told
    assert "budget of the whole run" in told
    assert "budget of train" in told
    assert sum(line.startswith("   within budget: ") for line in told) == 2
