"""Of each process of a run, page and API tell how fast it grows: the same, and "unknown" where nobody can tell."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import update
from tests.server.test_the_page_tells_how_a_run_ended import process

from leakline.analysis.results import TypeGrowth, Verdict, to_json
from leakline_server.store.engine import writing
from leakline_server.store.tables import runs
from leakline_server.web import inventory
from leakline_server.web.contexts import Cell
from leakline_server.web.run_data import first_shown, own_verdict
from leakline_server.web.types_view import suspects_first
from leakline_server.workers.examine import Examiner

MIB = 2**20
GROWTH = {"estimate": 8.0 * MIB, "low": 7.5 * MIB, "high": 8.5 * MIB}
FINDINGS = [
    {"fingerprint": "one", "status": "watch"},
    {"fingerprint": "two", "status": "confirmed"},
]


def cells(*found: dict[str, Any]) -> list[tuple[Cell, Cell]]:
    """(growth, finding) of each row."""
    section = inventory.processes(found, (), FINDINGS, "epoch")
    assert section.table is not None
    heads = [column.label for column in section.table.columns]
    growth, named = heads.index("growth per epoch"), heads.index("finding")
    return [(row.cells[growth], row.cells[named]) for row in section.table.rows]


def test_growth_that_is_not_known_is_said_to_be_unknown() -> None:
    ((growth, named),) = cells(process())
    assert (growth.text, growth.absent, named.text) == ("unknown", True, "–")
    # A database of an older Leakline, or a finding that has gone since.
    ((growth, named),) = cells(process(findings=["gone"]))
    assert (growth.text, named.text) == ("unknown", "–")


def test_growth_is_told_with_its_interval_and_the_worst_finding_that_names_the_process() -> None:
    quiet = {"estimate": 0.0, "low": 0.0, "high": 0.0}
    healthy, leaking = cells(
        process(growth_bytes_per_generation=quiet),
        process(rank=1, growth_bytes_per_generation=GROWTH, findings=["one", "two"]),
    )
    assert (healthy[0].text, healthy[1].text) == ("0 B", "–")
    assert leaking[0].text == "+8.00 MiB"
    assert leaking[1] == Cell("Leaking", status="confirmed", href="#findings")


def test_an_attempt_before_the_newest_says_where_its_curve_goes_on() -> None:
    before, now = cells(
        process(instance="a"), process(instance="b", attempt=2, growth_bytes_per_generation=GROWTH)
    )
    assert before[0].text == "in attempt 2"
    assert now[0].text == "+8.00 MiB"


def test_the_interval_stands_beside_the_growth_where_there_is_one() -> None:
    point = {"estimate": 4.0, "low": 4.0, "high": 4.0}
    grows = (None, point, GROWTH)
    section = inventory.processes([process(growth_bytes_per_generation=each) for each in grows])
    assert section.table is not None
    at = [column.label for column in section.table.columns].index("90 % interval")
    assert [row.cells[at].text for row in section.table.rows] == ["–", "–", "+7.50 MiB to +8.50 MiB"]  # fmt: skip


def ranks(*findings: list[str]) -> dict[str, Any]:
    return {
        "processes": [
            process(instance=f"p{n}", rank=n, findings=each, growth_bytes_per_generation=GROWTH)
            for n, each in enumerate(findings)
        ]
    }


def test_a_page_opens_on_the_process_that_leaks_and_else_on_the_first() -> None:
    assert first_shown({"processes": []}) is None
    assert first_shown(ranks([], [])) == "rank 0 main"
    assert first_shown(ranks([], ["two"], [])) == "rank 1 main"
    more = ranks(["one"], ["two"])
    more["processes"][1]["growth_bytes_per_generation"] = GROWTH | {"estimate": 9.0 * MIB}
    assert first_shown(more) == "rank 1 main"
    # The leading finding counts before the growth of another.
    assert first_shown(more, "one") == "rank 0 main"


def test_beside_the_lines_of_one_rank_nothing_is_drawn_of_what_another_leaks() -> None:
    whole = {"status": "confirmed", "findings": FINDINGS, "growth_bytes_per_generation": {"estimate": 1e9},
             "oom": {"generation": {"estimate": 9}}}  # fmt: skip
    run = ranks([], ["two"])
    assert own_verdict(run, None, "rank 0 main") is None
    alone = ranks(["two"])
    assert own_verdict(alone, whole, "rank 0 main") is whole
    healthy, leaking = (own_verdict(run, whole, f"rank {n} main") for n in (0, 1))
    assert healthy is not None
    assert (healthy["status"], healthy["findings"]) == ("ok", [])
    assert leaking is not None
    assert (leaking["status"], leaking["findings"]) == ("confirmed", FINDINGS[1:])
    assert leaking["growth_bytes_per_generation"] == GROWTH


def test_the_type_that_a_finding_names_comes_first() -> None:
    def row(name: str) -> TypeGrowth:
        return TypeGrowth(name, 1, 9, None, None, None, None, None, None, "grows")

    named = {"status": "confirmed", "suspects": [{"name": "app.Agent"}, {"name": "torch.Tensor"}]}
    grown = (row("torch.Adam"), row("torch.Tensor"), row("app.Agent"))
    assert suspects_first(grown, None) == grown
    assert suspects_first(grown, {"findings": [named | {"status": "ok"}]}) == grown
    found = suspects_first(grown, {"findings": [named]})
    assert [each.name for each in found] == ["app.Agent", "torch.Adam", "torch.Tensor"]


def test_the_api_tells_of_each_process_what_the_verdict_says(
    api: Any, make_run: Any, eventually: Any
) -> None:
    keeps_two = {"type.app.Env.count": lambda _: 2}
    healthy = make_run(id="two", instance="p2", rank=1, leak_bytes=0, extra=keeps_two)
    ranks = [make_run(id="two"), healthy]
    ranks[0].create(api)
    assert api.get("/api/v1/runs/two").json()["processes"] == []
    for each in ranks:
        each.send(api, 0, 36)

    def of(path: str) -> list[dict[str, Any]]:
        names = ("instance", "growth_bytes_per_generation", "findings")
        found = api.get(f"/api/v1/runs/two{path}").json()["processes"]
        return [{name: each[name] for name in names} for each in found]

    def told() -> list[dict[str, Any]]:
        found = of("")
        known = all(each["growth_bytes_per_generation"] for each in found)
        return found if known and found[0]["findings"] else []

    leaking, steady = eventually(told)
    assert of("/verdict") == [leaking, steady]
    assert leaking["growth_bytes_per_generation"]["estimate"] > 9 * MIB
    assert abs(steady["growth_bytes_per_generation"]["estimate"]) < MIB
    assert steady["findings"] == []
    # The curve of the list is of both, as the number beside it.
    (row,) = api.get("/api/v1/runs").json()["items"]
    assert row["sparkline"][-1] == row["rss_bytes"]
    page = api.get("/runs/two").text
    assert "+10.00 MiB" in page[page.index('id="processes-title"') :]


@pytest.fixture
def nobody_examines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Examiner, "once", lambda self: 60.0)


# Before the application starts its examiner.
@pytest.mark.usefixtures("nobody_examines")
def test_a_verdict_of_before_tells_of_no_process(api: Any, make_run: Any) -> None:
    run = make_run(id="old")
    run.create(api)
    run.send(api, 0, 36)
    nothing = to_json(Verdict("old", "generation", 12, "ok", "", None, None))
    older = {name: value for name, value in nothing.items() if name != "processes"}
    engine = api.app.state.services.engine
    with writing(engine) as connection:
        changed = update(runs).where(runs.c.id == "old")
        connection.execute(changed.values(verdict=msgspec.json.encode(older).decode()))
    (one,) = api.get("/api/v1/runs/old").json()["processes"]
    assert (one["growth_bytes_per_generation"], one["findings"]) == (None, [])
    page = api.get("/runs/old").text
    assert "unknown" in page[page.index('id="processes-title"') :]


@pytest.mark.parametrize("sides", [("little", "much"), ("much", "little")])
def test_a_comparison_draws_the_rank_that_leaks_most_in_either_run(
    api: Any, make_run: Any, eventually: Any, sides: tuple[str, str]
) -> None:
    keeps_two = {"type.app.Env.count": lambda _: 2}
    for name, leaks in (("little", (8 * MIB, 0)), ("much", (0, 40 * MIB))):
        for rank, leak in enumerate(leaks):
            more = {} if leak else keeps_two
            run = make_run(
                id=name, instance=f"{name}{rank}", rank=rank, leak_bytes=leak, extra=more
            )
            run.create(api)
            run.send(api, 0, 36)

    def named(name: str) -> list[int]:
        found = api.get(f"/api/v1/runs/{name}").json()["processes"]
        return [each["rank"] for each in found if each["findings"]]

    eventually(lambda: (named("little"), named("much")) == ([0], [1]))
    before, after = sides
    page = api.get(f"/compare?before={before}&after={after}").text
    assert "Private memory of rank 1 main at the end" in page
