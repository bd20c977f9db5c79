"""What is derived of a run is computed once for each of its revisions, and never shown for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline import analysis
from leakline.analysis.generation_axis import thinned
from leakline.analysis.results import to_json
from leakline_server.store.runs import run_history
from leakline_server.web import derived_analysis


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose history was read, by a route or by the examiner."""
    seen: list[str] = []
    load = run_history.load_history_at

    def counted(engine: Any, run_id: str, **how: Any) -> Any:
        seen.append(run_id)
        return load(engine, run_id, **how)

    monkeypatch.setattr("leakline_server.store.runs.run_history.load_history_at", counted)
    return seen


def without_rating(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "change_rating"}


# A verdict, which comes when it comes, has a say in rates and ratings.
def test_new_batches_are_seen_at_once(standing_back: None, api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    for generation in range(1, 4):
        run.send(api, 3 * (generation - 1), 3)
        past = run_history.load_history(engine_of(api), "r1")
        for path, derive in (("types", analysis.type_growth), ("stores", analysis.store_fill)):
            shown = api.get(f"/api/v1/runs/r1/{path}").json()["items"]
            # The route rates changes with the verdict.
            assert [without_rating(row) for row in shown] == [
                without_rating(row) for row in to_json(derive(past))
            ]
        assert api.get("/api/v1/runs/r1/books").json() == to_json(analysis.books(past))


def test_a_run_that_rests_is_read_once(
    api: TestClient, make_run: Any, loads: list[str], eventually: Any
) -> None:
    make_run().begin(api, 30)
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    api.get("/runs/r1")

    def resting() -> bool:
        loads.clear()
        for path in ("/api/v1/runs/r1/books", "/api/v1/runs/r1/stores", "/runs/r1"):
            assert api.get(path).status_code == 200
        return not loads

    eventually(resting)
    for _ in range(2):
        assert api.get("/api/v1/compare?before=r1&after=r1").status_code == 200
    assert len(loads) <= 2


GENERATIONS = 1_500


@pytest.fixture(scope="module")
def long_run(shared_api: TestClient, make_run: Any) -> TestClient:
    """Of every generation each phase keeps another amount, and one of the middle a great deal."""
    run = make_run(
        extra={
            "phase.evaluate.bytes": lambda i: 10**9 if i == 3 * 700 + 2 else i % 7 * 1024 if i % 3 == 2 else None,
            "phase.between.bytes": lambda i: 512 if i % 3 == 2 and i % 2 else None,
            "phase.evaluate.executions": lambda i: 2 if i % 3 == 2 else None,
        }
    )  # fmt: skip
    run.begin(shared_api, 3 * GENERATIONS)
    return shared_api


def test_the_books_of_a_run_that_is_read_in_part_are_those_of_all_its_generations(
    long_run: TestClient,
) -> None:
    engine = engine_of(long_run)
    whole = analysis.books(run_history.load_history(engine, "r1"))
    shown = analysis.books(run_history.load_for_pages(engine, "r1")[0])
    assert len(shown.generations) < 800
    assert len(whole.generations) == whole.count() == shown.count() == GENERATIONS
    assert sum(shown.total) == sum(whole.total)
    for line, all_of_it in zip(shown.lines, whole.lines, strict=True):
        assert line.name == all_of_it.name
        assert sum(line.bytes) == sum(all_of_it.bytes)
        assert sum(line.executions) == sum(all_of_it.executions)
    # Each entry is of the generations since the one before it.
    at = 0
    for i, span in enumerate(shown.spans):
        assert shown.total[i] == sum(whole.total[at : at + span])
        assert shown.generations[i] == whole.generations[at + span - 1]
        at += span


def test_the_page_of_a_run_that_is_read_in_part_tells_of_the_whole(long_run: TestClient) -> None:
    page = long_run.get("/runs/r1").text
    told = long_run.get("/api/v1/runs/r1/books").json()
    assert sum(told["spans"]) == GENERATIONS
    assert f"{sum(told['lines'][0]['executions']):,}" in page


def test_an_answer_that_takes_long_is_worked_out_anew_while_the_one_before_is_shown(
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
    assert derivations.of("r1").books.count() == 10
    run.send(api, 30, 30)
    # The examiner reads it too.
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"] == 20)
    for _ in range(3):
        assert derivations.of("r1", at_once=True).books.count() == 10
    (work,) = waiting
    work()
    loads.clear()
    assert derivations.of("r1").books.count() == 20
    assert not loads
    run.send(api, 60, 3)
    derivations.of("r1", at_once=True)
    # Who asks for the run as it is, waits; and nobody is shown what is old.
    assert derivations.of("r1").books.count() == 21
    run.send(api, 63, 3)
    monkeypatch.setattr(derived_analysis, "STALE_SECONDS", 0.0)
    assert derivations.of("r1", at_once=True).books.count() == 22
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    assert api.delete("/api/v1/runs/r1").status_code == 204
    waiting[-1]()
    with pytest.raises(run_history.NoSuchRun):
        derivations.of("r1")


def test_a_run_that_is_read_in_part_is_what_thinning_makes_of_all_of_it(
    long_run: TestClient,
) -> None:
    engine = engine_of(long_run)
    read = run_history.load_for_examination(engine, "r1")[0]
    assert read.processes[0].left_out.generations
    assert to_json(thinned(run_history.load_history(engine, "r1")).processes) == to_json(
        read.processes
    )


@pytest.mark.parametrize("load", [run_history.load_for_examination, run_history.load_for_pages])
def test_a_long_run_is_the_same_read_in_blocks(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    """Also sums of generations in several blocks, and those with fractions before a block without."""
    id_ = load.__name__
    amounts: dict[str, Callable[[int], Any]] = {
        "phase.evaluate.bytes": lambda i: i + 0.5 if i < 1_000 else 7 if i % 3 == 2 else None,
        "phase.train.bytes": lambda i: 0.5 if i < 1_000 else None,
        "phase.train.executions": lambda i: None if 600 < i < 2_000 else 1,
    }
    run = make_run(id=id_, instance=id_, extra=amounts)
    run.create(shared_api)
    # A batch that comes late lies behind its place.
    for first, last in ((0, 900), (930, 3_000), (900, 930)):
        run.send(shared_api, first, last - first)
    engine = engine_of(shared_api)
    monkeypatch.setattr(run_history, "SNAPSHOTS_AT_ONCE", 10**9)
    whole = to_json(load(engine, id_)[0].processes)
    monkeypatch.setattr(run_history, "SNAPSHOTS_AT_ONCE", 150)
    assert to_json(load(engine, id_)[0].processes) == whole


def test_the_books_of_ranks_of_other_lengths_add_up(shared_api: TestClient, make_run: Any) -> None:
    """Of each, other generations are left out."""
    amounts = {"phase.evaluate.bytes": lambda i: 1024 + i % 5 if i % 3 == 2 else None}
    for rank, generations in enumerate((1_152, 1_151, 900)):
        run = make_run(id="ranks", instance=f"rank-{rank}", rank=rank, extra=amounts)
        if not rank:
            run.create(shared_api)
        run.send(shared_api, 0, 3 * generations)
    engine = engine_of(shared_api)
    whole = analysis.books(run_history.load_history(engine, "ranks"))
    read = run_history.load_for_pages(engine, "ranks")[0]
    kept = [set(each.generation) for each in read.processes]
    assert kept[1] - kept[0]
    shown = analysis.books(read)
    assert shown.count() == 1_152
    at = 0
    for i, span in enumerate(shown.spans):
        assert shown.total[i] == sum(whole.total[at : at + span])
        at += span
