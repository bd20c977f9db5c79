"""Comparisons of runs: which part of very long runs is read, the growth without warm-up, and what the tiles show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline import analysis
from leakline.analysis.comparison import run_comparison
from leakline.analysis.generation_axis import WHOLE, generations_to_compare, positions_to_read
from leakline.analysis.results import to_json
from leakline_server.store.engine import Engine
from leakline_server.store.runs import run_history
from leakline_server.web.compare import _changes
from leakline_server.web.run_page.verdict_view import status_of, verdict_view

GENERATIONS = 2_000
SPIKE_AT, SPIKE = 3 * 777 + 1, 50 * 2**30


@pytest.mark.parametrize("ends", [(9_000, 9_000), (9_000, 100_000), (5_000, 700), (300, 30_000)])
@pytest.mark.parametrize("starts", [(0, 0), (0, 1)])
def test_what_both_have_is_the_same_of_both(ends: tuple[int, int], starts: tuple[int, int]) -> None:
    last = min(ends)
    read = []
    for first, end in zip(starts, ends, strict=True):
        generations = range(first, end + 1)
        found = generations_to_compare(generations, last)
        read.append(set(generations) if found is None else found)
        alone = positions_to_read(len(generations))
        # What is said of each by itself rests on no less.
        assert alone is None or {generations[position] for position in alone} <= read[-1]
        assert len(read[-1]) <= 4 * WHOLE
    shared = sorted(read[0] & read[1])
    assert len(shared) >= min(WHOLE // 2, last)
    # The newest without a gap, and some of all that was before.
    newest = max(max(starts), last - 383)
    assert set(range(newest, last + 1)) <= set(shared)
    between = max(b - a for a, b in pairwise(shared))
    assert between <= max(1, last // 64)


def test_a_generation_that_must_be_there_is() -> None:
    found = generations_to_compare(range(9_001), 9_000, {777})
    assert found is not None
    assert 777 in found


@pytest.fixture(scope="module")
def two(shared_api: TestClient, make_run: Any) -> TestClient:
    """The first grows by 4 KiB a generation, with one spike; the other is shorter and grows by nothing."""
    spike: dict[str, Callable[[int], Any]] = {
        "process.rss_bytes": lambda i: SPIKE if i == SPIKE_AT else 2**30 + i // 3 * 4096
    }
    for number, (leak, extra) in enumerate(((4096, spike), (0, {}))):
        make_run(id=f"r{number}", instance=f"p{number}", leak_bytes=leak, extra=extra).begin(
            shared_api, 3 * (GENERATIONS - 300 * number)
        )
    return shared_api


def compared(engine: Engine) -> dict[str, Any]:
    (before, _), (after, _) = run_history.load_to_compare(engine, "r0", "r1")
    found: dict[str, Any] = to_json(analysis.compare(before, after))
    return found


def test_runs_that_are_not_very_long_are_compared_by_all_they_have(two: TestClient) -> None:
    engine = engine_of(two)
    before, after = (run_history.load_history(engine, run) for run in ("r0", "r1"))
    assert compared(engine) == to_json(analysis.compare(before, after))


def test_a_part_says_what_the_whole_says(two: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(two)
    whole = compared(engine)
    monkeypatch.setattr(run_history, "COMPARED_WHOLE", 1_000)
    (before, _), (after, _) = run_history.load_to_compare(engine, "r0", "r1")
    assert sum(map(len, before.processes)) < 2 * GENERATIONS
    part = compared(engine)
    assert part["generations_compared"] < whole["generations_compared"] == GENERATIONS - 300
    # What growth comes to is judged over as many as both have, whatever of them was read.
    assert run_comparison._both_have(before, after, ()) == GENERATIONS - 300
    assert part["outcome"] == whole["outcome"]
    assert part["peak_bytes"] == whole["peak_bytes"]
    assert part["peak_bytes"]["before"] == SPIKE
    assert part["generations_compared"] > 384
    growth = "growth_bytes_per_generation"
    for side in ("before", "after"):
        expected = whole[growth][side]["estimate"]
        assert part[growth][side]["estimate"] == pytest.approx(expected, rel=0.02, abs=8)
    assert part["by_phase"] == whole["by_phase"]
    assert part["environment_changes"] == whole["environment_changes"]


def test_a_long_run_of_few_generations_is_compared_by_all_of_them(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the other run has, nothing of it is left out."""
    monkeypatch.setattr(run_history, "COMPARED_WHOLE", 1_000)
    for name, generations in (("few", 800), ("half", 400)):
        make_run(id=name, instance=name).begin(shared_api, 3 * generations)
    (few, _), (half, _) = run_history.load_to_compare(engine_of(shared_api), "few", "half")
    assert (len(set(few.processes[0].generation)), len(set(half.processes[0].generation))) == (
        800,
        400,
    )
    assert not few.processes[0].left_out.generations


def test_a_run_without_snapshots_is_compared_with_a_long_one(two: TestClient) -> None:
    two.post("/api/v1/runs", json={"id": "empty", "project": "erl", "name": "empty"})
    answer = two.get("/compare?before=r0&after=empty")
    assert answer.status_code == 200
    with pytest.raises(run_history.NoSuchRun):
        run_history.load_to_compare(engine_of(two), "r0", "nobody")


@pytest.fixture(scope="module")
def pages(shared_api: TestClient, make_run: Any) -> TestClient:
    """Runs of 4, 5 and 20 generations that take 1 GiB in the first two, and nothing after."""
    for generations in (4, 5, 20):
        for side in ("a", "b"):
            memory = {"process.anon_bytes": lambda i: 2**30 + min(i // 3, 2) * 2**29}
            make_run(
                id=f"{side}{generations}",
                instance=f"{side}{generations}",
                leak_bytes=0,
                extra=memory,
            ).begin(shared_api, 3 * generations)
    return shared_api


@pytest.mark.parametrize(
    ("generations", "said"),
    [(4, None), (5, "without the first for warm-up"), (20, "without the first 2 for warm-up")],
)
def test_what_is_left_out_is_said_where_the_figure_stands(
    generations: int, said: str | None, pages: TestClient
) -> None:
    address = f"before=a{generations}&after=b{generations}"
    page = pages.get(f"/compare?{address}").text
    assert f"Compared over {generations} generations that both runs have." in page
    assert (said in page) if said else ("warm-up" not in page)
    growth = pages.get(f"/api/v1/compare?{address}").json()["growth_bytes_per_generation"]["before"]
    # With the first two, it would be far above.
    assert (growth["estimate"] == 0) == (generations == 20)


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
