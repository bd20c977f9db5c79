"""Very long runs are read in part and compared; results derived from them are computed once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of, load_for_examination

from leakline import analysis
from leakline.analysis.comparison import run_comparison
from leakline.analysis.generation_axis import (
    WHOLE,
    generations_to_compare,
    positions_to_read,
    thinned,
)
from leakline.analysis.results import Interval, OomForecast, Verdict, to_json
from leakline.report.document import verdict_lines
from leakline.report.terminal_text import Shown, frame
from leakline.text_format import with_forecast
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.run_alerts import oom_alert
from leakline_server.store.engine import Engine
from leakline_server.store.runs import run_history
from leakline_server.web import derived_analysis
from leakline_server.web.compare import _changes
from leakline_server.web.run_page.verdict_view import facts, forecast_text, status_of, verdict_view

GENERATIONS = 1_400
SPIKE_AT, SPIKE = 3 * 777 + 1, 50 * 2**30


@pytest.mark.parametrize("ends", [(9_000, 9_000), (9_000, 100_000), (5_000, 700), (300, 30_000)])
@pytest.mark.parametrize("starts", [(0, 0), (0, 1)])
def test_generations_that_both_runs_have_are_the_same_for_both(
    ends: tuple[int, int], starts: tuple[int, int]
) -> None:
    last = min(ends)
    read = []
    for first, end in zip(starts, ends, strict=True):
        generations = range(first, end + 1)
        found = generations_to_compare(generations, last)
        read.append(set(generations) if found is None else found)
        alone = positions_to_read(len(generations))
        # Statements about each run alone rest on at least as many generations.
        assert alone is None or {generations[position] for position in alone} <= read[-1]
        assert len(read[-1]) <= 4 * WHOLE
    shared = sorted(read[0] & read[1])
    assert len(shared) >= min(WHOLE // 2, last)
    # The newest generations without a gap, and some of all earlier ones.
    newest = max(max(starts), last - 383)
    assert set(range(newest, last + 1)) <= set(shared)
    between = max(b - a for a, b in pairwise(shared))
    assert between <= max(1, last // 64)
    must = generations_to_compare(range(9_001), 9_000, {777})
    assert must is not None and 777 in must


@pytest.fixture(scope="module")
def two(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send two runs: the first grows by 4 KiB per generation, with one spike; the other is shorter and constant."""
    spike: dict[str, Callable[[int], Any]] = {
        "process.rss_bytes": lambda i: SPIKE if i == SPIKE_AT else 2**30 + i // 3 * 4096
    }
    for number, (leak, extra) in enumerate(((4096, spike), (0, {}))):
        make_run(id=f"r{number}", instance=f"p{number}", leak_bytes=leak, extra=extra).begin(
            shared_api, 3 * (GENERATIONS - 200 * number)
        )
    return shared_api


def compared(engine: Engine) -> dict[str, Any]:
    (before, _), (after, _) = run_history.load_to_compare(engine, "r0", "r1")
    found: dict[str, Any] = to_json(analysis.compare(before, after))
    return found


def test_a_part_of_a_run_gives_the_results_of_the_entire_run(
    two: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(two)
    whole = compared(engine)
    read = [run for run, _ in run_history.load_to_compare(engine, "r0", "r1")]
    lengths = [sum(map(len, run.processes)) for run in read]
    assert lengths == [3 * GENERATIONS, 3 * (GENERATIONS - 200)]
    monkeypatch.setattr(run_history, "COMPARED_WHOLE", 1_000)
    (before, _), (after, _) = run_history.load_to_compare(engine, "r0", "r1")
    assert sum(map(len, before.processes)) < 2 * GENERATIONS
    part = compared(engine)
    assert part["generations_compared"] < whole["generations_compared"] == GENERATIONS - 200
    # The growth is judged over as many generations as both have, whatever was read of them.
    assert run_comparison._both_have(before, after, ()) == GENERATIONS - 200
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
    two.post("/api/v1/runs", json={"id": "empty", "project": "erl", "name": "empty"})
    assert two.get("/compare?before=r0&after=empty").status_code == 200
    with pytest.raises(run_history.NoSuchRun):
        run_history.load_to_compare(engine, "r0", "nobody")


def test_a_long_run_of_few_generations_is_compared_by_all_of_them(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No generation that the other run has is left out."""
    monkeypatch.setattr(run_history, "COMPARED_WHOLE", 1_000)
    for name, generations in (("few", 800), ("half", 400)):
        make_run(id=name, instance=name).begin(shared_api, 3 * generations)
    (few, _), (half, _) = run_history.load_to_compare(engine_of(shared_api), "few", "half")
    assert [len(set(each.processes[0].generation)) for each in (few, half)] == [800, 400]
    assert not few.processes[0].left_out.generations


@pytest.fixture(scope="module")
def pages(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send runs of 4, 5 and 20 generations that take 1 GiB in the first two and nothing afterwards."""
    for generations in (4, 5, 20):
        for side in ("a", "b"):
            name = f"{side}{generations}"
            memory = {"process.anon_bytes": lambda i: 2**30 + min(i // 3, 2) * 2**29}
            run = make_run(id=name, instance=name, leak_bytes=0, extra=memory)
            run.begin(shared_api, 3 * generations)
    return shared_api


@pytest.mark.parametrize(
    ("generations", "said"),
    [
        (4, None),
        (5, "excludes the first generation as warm-up"),
        (20, "excludes the first 2 generations as warm-up"),
    ],
)
def test_an_omitted_warm_up_is_named_with_the_figure(
    generations: int, said: str | None, pages: TestClient
) -> None:
    address = f"before=a{generations}&after=b{generations}"
    page = pages.get(f"/compare?{address}").text
    assert f"Compared over {generations} generations that both runs have." in page
    assert (said in page) if said else ("warm-up" not in page)
    growth = pages.get(f"/api/v1/compare?{address}").json()["growth_bytes_per_generation"]["before"]
    # With the first two generations it would be far above.
    assert (growth["estimate"] == 0) == (generations == 20)


def interval(estimate: float, reach: float = 1.0) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - reach, "high": estimate + reach}


@pytest.mark.parametrize(
    ("difference", "status"),
    [(interval(-90), "ok"), (interval(90), "confirmed"), (interval(-90, 100), None), (None, None)],
)
def test_a_tile_is_coloured_only_if_its_interval_excludes_zero(
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
    assert "a few more epochs will show whether there is one" in verdict_view(verdict).support
    support = verdict_view(verdict, over=True).support
    assert "that takes 24 epochs of growth" in support and "will show whether" not in support
    # The tooltip of its mark is the same in each list, for live runs and for ended ones.
    assert "will show whether" not in status_of("suspected").meaning


def test_a_run_that_ended_without_a_snapshot_is_not_waiting_for_one() -> None:
    view = verdict_view(None, over=True)
    assert "Waiting" not in view.sentence and "arrives" not in view.support
    assert "Waiting" in verdict_view(None).sentence


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the runs whose history was read, by a route or by the examiner."""
    seen: list[str] = []
    load = run_history.load_history_at

    def counted(engine: Any, run_id: str, **how: Any) -> Any:
        seen.append(run_id)
        return load(engine, run_id, **how)

    monkeypatch.setattr("leakline_server.store.runs.run_history.load_history_at", counted)
    return seen


def without_rating(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "change_rating"}


# The examiner does not run, because a verdict would change rates and ratings.
def test_new_batches_are_seen_immediately(
    standing_back: None, api: TestClient, make_run: Any
) -> None:
    run = make_run()
    run.create(api)
    for generation in range(1, 4):
        run.send(api, 3 * (generation - 1), 3)
        past = run_history.load_history(engine_of(api), "r1")
        for path, derive in (
            ("types", analysis.type_growth),
            ("containers", analysis.container_fill),
        ):
            shown = api.get(f"/api/v1/runs/r1/{path}").json()["items"]
            # The route rates changes with the verdict.
            assert [without_rating(row) for row in shown] == [
                without_rating(row) for row in to_json(derive(past))
            ]
        assert api.get("/api/v1/runs/r1/phases").json() == to_json(analysis.phase_accounts(past))


def test_an_idle_run_is_read_once(
    api: TestClient, make_run: Any, loads: list[str], eventually: Any
) -> None:
    make_run().begin(api, 30)
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    api.get("/runs/r1")

    def resting() -> bool:
        loads.clear()
        for path in ("/api/v1/runs/r1/phases", "/api/v1/runs/r1/containers", "/runs/r1"):
            assert api.get(path).status_code == 200
        return not loads

    eventually(resting)
    for _ in range(2):
        assert api.get("/api/v1/compare?before=r1&after=r1").status_code == 200
    assert len(loads) <= 2


LONG_GENERATIONS = 1_000


@pytest.fixture(scope="module")
def long_run(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send a run whose phases keep different amounts in each generation, with a large one in the middle."""
    run = make_run(
        id="long",
        instance="long",
        extra={
            "phase.evaluate.bytes": lambda i: 10**9 if i == 3 * 700 + 2 else i % 7 * 1024 if i % 3 == 2 else None,
            "phase.between.bytes": lambda i: 512 if i % 3 == 2 and i % 2 else None,
            "phase.evaluate.executions": lambda i: 2 if i % 3 == 2 else None,
        }
    )  # fmt: skip
    run.begin(shared_api, 3 * LONG_GENERATIONS)
    return shared_api


def test_phase_accounts_of_a_part_are_those_of_the_entire_run(
    long_run: TestClient,
) -> None:
    engine = engine_of(long_run)
    whole = analysis.phase_accounts(run_history.load_history(engine, "long"))
    shown = analysis.phase_accounts(run_history.load_for_pages(engine, "long")[0])
    assert len(shown.generations) < 800
    assert len(whole.generations) == whole.count() == shown.count() == LONG_GENERATIONS
    assert sum(shown.total) == sum(whole.total)
    for line, all_of_it in zip(shown.lines, whole.lines, strict=True):
        assert line.name == all_of_it.name
        assert sum(line.bytes) == sum(all_of_it.bytes)
        assert sum(line.executions) == sum(all_of_it.executions)
    adds_up(shown, whole)
    page = long_run.get("/runs/long?tab=all").text
    assert f"{sum(shown.lines[0].executions):,}" in page


def adds_up(shown: Any, whole: Any) -> None:
    """Check that each entry is the sum of the generations since the previous entry."""
    at = 0
    for i, span in enumerate(shown.spans):
        assert shown.total[i] == sum(whole.total[at : at + span])
        assert shown.generations[i] == whole.generations[at + span - 1]
        at += span


def test_a_slow_result_is_recomputed_while_the_old_one_is_shown(
    api: TestClient,
    make_run: Any,
    loads: list[str],
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run().begin(api, 30)
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(derived_analysis, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(derived_analysis, "REST_FACTOR", 0.0)
    derivations = derived_analysis.Derivations(engine_of(api), waiting.append)
    assert derivations.of("r1").phase_accounts.count() == 10
    run.send(api, 30, 30)
    # The examiner reads the history, too.
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"] == 20)
    for _ in range(3):
        assert derivations.of("r1", at_once=True).phase_accounts.count() == 10
    (work,) = waiting
    work()
    loads.clear()
    assert derivations.of("r1").phase_accounts.count() == 20
    assert not loads
    run.send(api, 60, 3)
    derivations.of("r1", at_once=True)
    # A request for the current state waits, and no old result is returned.
    assert derivations.of("r1").phase_accounts.count() == 21
    run.send(api, 63, 3)
    monkeypatch.setattr(derived_analysis, "STALE_SECONDS", 0.0)
    assert derivations.of("r1", at_once=True).phase_accounts.count() == 22
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    assert api.delete("/api/v1/runs/r1").status_code == 204
    waiting[-1]()
    with pytest.raises(run_history.NoSuchRun):
        derivations.of("r1")


def test_a_run_that_is_read_in_part_equals_the_thinned_run(
    long_run: TestClient,
) -> None:
    engine = engine_of(long_run)
    read = load_for_examination(engine, "long")[0]
    assert read.processes[0].left_out.generations
    thin = thinned(run_history.load_history(engine, "long"))
    assert to_json(thin.processes) == to_json(read.processes)


@pytest.mark.parametrize("load", [load_for_examination, run_history.load_for_pages])
def test_a_long_run_reads_the_same_in_blocks(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    """This includes sums of generations in several blocks, and fractions in a block before one without any."""
    id_ = load.__name__
    amounts: dict[str, Callable[[int], Any]] = {
        "phase.evaluate.bytes": lambda i: i + 0.5 if i < 1_000 else 7 if i % 3 == 2 else None,
        "phase.train.bytes": lambda i: 0.5 if i < 1_000 else None,
        "phase.train.executions": lambda i: None if 600 < i < 2_000 else 1,
    }
    run = make_run(id=id_, instance=id_, extra=amounts)
    run.create(shared_api)
    # A late batch is stored after its position.
    for first, last in ((0, 900), (930, 3_000), (900, 930)):
        run.send(shared_api, first, last - first)
    engine = engine_of(shared_api)
    monkeypatch.setattr(run_history, "SNAPSHOTS_AT_ONCE", 10**9)
    whole = to_json(load(engine, id_)[0].processes)
    monkeypatch.setattr(run_history, "SNAPSHOTS_AT_ONCE", 150)
    assert to_json(load(engine, id_)[0].processes) == whole


def test_phase_accounts_of_ranks_of_different_lengths_add_up(
    shared_api: TestClient, make_run: Any
) -> None:
    """Other generations are left out of each rank."""
    amounts = {"phase.evaluate.bytes": lambda i: 1024 + i % 5 if i % 3 == 2 else None}
    for rank, generations in enumerate((896, 895, 800)):
        run = make_run(id="ranks", instance=f"rank-{rank}", rank=rank, extra=amounts)
        if not rank:
            run.create(shared_api)
        run.send(shared_api, 0, 3 * generations)
    engine = engine_of(shared_api)
    whole = analysis.phase_accounts(run_history.load_history(engine, "ranks"))
    read = run_history.load_for_pages(engine, "ranks")[0]
    kept = [set(each.generation) for each in read.processes]
    assert kept[1] - kept[0]
    shown = analysis.phase_accounts(read)
    assert shown.count() == 896
    adds_up(shown, whole)


SAID = "OOM near generation 415 of 1,000 at this rate (380 to 460)"
OOM = OomForecast("high", 2**34, "system", Interval(415, 380, 460), None, 1_000, SAID)
VERDICT = Verdict("r1", "generation", 20, "confirmed", "it leaks", None, None, oom=OOM)
JSON: dict[str, Any] = to_json(VERDICT)


def test_the_forecast_reads_the_same_everywhere() -> None:
    """It is shown on the page, in the list, in the terminal, in reports and in alerts."""
    (tile,) = (each for each in facts(JSON, "generation") if each.label == "OOM")
    assert f"{tile.value} {tile.detail}".startswith(SAID)
    assert "limit 16.00 GiB (machine)" in tile.detail
    assert forecast_text(JSON["oom"], "generation") == SAID
    assert f"forecast: {SAID}, high risk" in list(verdict_lines(JSON))
    run = {
        "project": "p", "name": "n", "state": "running", "generations": 20, "total": 1_000, "unit": "generation",
        "rss_bytes": None, "peak_bytes": None, "sparkline": [],
    }  # fmt: skip
    assert f"forecast  {SAID}, high risk" in frame(Shown(run, JSON, {"lines": []}, ()), 120)
    alert = oom_alert(ExaminedRun("r1", "p", "n", VERDICT, 1_000.0), None)
    assert alert is not None
    assert alert.payload["summary"] == f"Risk high: {SAID}"
    assert alert.payload["forecast"]["text"] == SAID
    assert alert.payload["forecast"]["planned"] == 1_000
    # The exit summary has no forecast without a risk, or after a kill for memory.
    assert with_forecast("leak", JSON["oom"]) == f"leak; {SAID}"
    assert with_forecast("leak", JSON["oom"] | {"risk": "none"}) == "leak"
    killed = "confirmed: Killed for memory after 20 generations. It leaks"
    assert with_forecast(killed, JSON["oom"]) == killed
