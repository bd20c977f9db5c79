"""The page of a run: how its processes ended, what they delivered and how they grow; tables of types and stores."""

from __future__ import annotations

import contextlib
import html
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, event, update
from starlette.testclient import TestClient
from tests.json_batches import batch_to_wire
from tests.server.stored import engine_of, load_for_examination

from leakline import analysis
from leakline.analysis.findings.growth_tables import change_rating
from leakline.analysis.results import TypeGrowth, Verdict, to_json
from leakline.report.verdict_facts import rating_words
from leakline.snapshot import Batch, Census, Event, ProcessIdentity, Snapshot
from leakline.transport.spool_format import DROPPED, THINNED
from leakline_server.store import details, snapshot_rows
from leakline_server.store.engine import Engine, writing
from leakline_server.store.ingest.ingest_cache import load_run
from leakline_server.store.runs import run_history
from leakline_server.store.schema import runs
from leakline_server.store.series import chart_points
from leakline_server.web.rendering.page_contexts import Cell, Section
from leakline_server.web.run_page import inventory_tables, process_sections
from leakline_server.web.run_page.counted_objects import suspects_first
from leakline_server.web.run_page.run_data import first_shown, own_verdict
from leakline_server.web.run_page.view import progress

GIB = 2**30


def process(**changed: Any) -> dict[str, Any]:
    return {
        "instance": "p1", "rank": 0, "role": "main", "pid": 7, "host": "box", "attempt": 1,
        "started_at": "2026-01-31T12:00:00.000Z", "last_seen_at": "2026-01-31T12:10:00.000Z",
        "ended_at": "2026-01-31T12:10:02.000Z", "end_state": "killed", "end_reason": "memory: 9.70 GiB of 10.00 GiB",
        "end_inferred": False, "taken": 10, "stored": 10, "left_out": 0, "lost": {}, "log_lines": [],
        "log_lines_left_out": 0, "growth_bytes_per_generation": None, "findings": [],
        "clock_skew_seconds": None, **changed,
    }  # fmt: skip


def a_run(**changed: Any) -> dict[str, Any]:
    return {
        "state": "killed", "reason": "memory: 9.70 GiB of 10.00 GiB", "end_inferred": False, "unit": "generation",
        "last_seen_at": "2026-01-31T12:10:00.000Z", "processes": [process()], "attempts": [], "attempts_left_out": 0,
        "processes_left_out": 0,
        **changed,
    }  # fmt: skip


def snapshot(**changed: Any) -> dict[str, Any]:
    return {
        "process": "p1", "sequence": 10, "time": 1769861400.0, "generation": 7, "phase": "evaluate",
        "kind": "phase_end", "label": "generation 7: after evaluate",
        "samples": {
            "process.rss_bytes": 97 * GIB // 10, "cgroup.used_bytes": 98 * GIB // 10, "cgroup.limit_bytes": 10 * GIB,
        }, **changed,
    }  # fmt: skip


def texts_of(section: Section | None) -> list[list[str]]:
    """Return the texts of the cells of each row."""
    assert section is not None and section.table is not None
    return [[cell.text for cell in row.cells] for row in section.table.rows]


def note_of(section: Section | None) -> str:
    assert section is not None
    return section.note


@pytest.mark.parametrize(
    ("done", "total", "told"),
    [(25, 25, "25 of 25 generations"), (7, 25, "7 of 25 generations"), (1, None, "1 generation")],
)
def test_a_run_says_how_many_of_its_generations_are_complete(
    done: int, total: int | None, told: str
) -> None:
    run = {"unit": "generation", "generations": done, "total": total, "state": "finished"}
    assert progress(run) == told


def test_a_killed_run_shows_its_last_reading() -> None:
    section = process_sections.end(a_run(), [snapshot()])
    assert note_of(section) == (
        "Killed for memory. 9.70 GiB of 10.00 GiB. Last reading of rank 0: RSS 9.70 GiB of a limit of 10.00 GiB at "
        "generation 7: after evaluate, 2.00 s before the end."
    )
    assert texts_of(section) == [[
        "0", "killed for memory", "2026-01-31 12:10 UTC", "9.70 GiB", "9.80 GiB", "98 %", "not measured",
        "generation 7: after evaluate",
    ]]  # fmt: skip


def test_a_silent_run_shows_since_when_and_promises_no_seconds() -> None:
    silent = process(end_state="silent", end_reason="", end_inferred=True)
    section = process_sections.end(
        a_run(state="silent", reason="", processes=[silent]), [snapshot(label="sample")]
    )
    assert note_of(section) == (
        "The run stopped sending without reporting an end. Last reading of rank 0: RSS 9.70 GiB of a limit of "
        "10.00 GiB at generation 7, sample."
    )


@pytest.mark.parametrize(
    "processes",
    [
        (process(end_state="failed", end_reason="RuntimeError"), process(instance="p2", rank=1),
         process(instance="p0", rank=1, attempt=0)),
        # Of killed processes, the one that ran out of memory is shown.
        (process(instance="p0", end_reason="SIGTERM"), process(rank=1), process(instance="p2", rank=2, role="child")),
    ],
)  # fmt: skip
def test_the_process_that_ended_worst_is_shown(processes: tuple[dict[str, Any], ...]) -> None:
    rows = [snapshot(process=name) for name in ("p2", "p1", "p0")]
    section = process_sections.end(a_run(processes=list(processes)), rows)
    assert "Last reading of rank 1" in note_of(section)
    assert len(texts_of(section)) == 2 + (processes[0]["instance"] == "p0")


def test_an_attempt_ended_as_the_worst_of_its_main_processes() -> None:
    processes = [
        process(instance="p0", end_reason="SIGTERM"),
        process(instance="p1", rank=1, end_state="failed", end_reason="ValueError"),
        process(instance="p2", rank=1, role="child"),
        process(instance="p3", rank=1, role="child", end_state=None, end_reason="", ended_at=None),
    ]
    attempt = {"number": 1, "started_at": "2026-01-31T12:00:00.000Z", "environment": {}}
    section = process_sections.attempts(a_run(processes=processes, attempts=[attempt]))
    assert "failed: ValueError" in texts_of(section)[0]


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_live_or_finished_run_has_no_such_section(state: str) -> None:
    assert process_sections.end(a_run(state=state, reason=""), [snapshot()]) is None


def test_the_snapshot_counts_of_a_process_add_up() -> None:
    lost = {"queue_full": 2, "spool_thinned": 10, "thinned": 40, "events": 1}
    section = process_sections.delivery([process(taken=100, stored=80, lost=lost)])
    assert texts_of(section) == [[
        "0", "main", "1", "100", "80", "12", "8", "queue full 2, spool thinned 10, thinned 40, events 1",
    ]]  # fmt: skip
    assert "LEAKLINE_SPOOL_LIMIT" in note_of(section)
    assert "LEAKLINE_MAX_OVERHEAD" in note_of(section)


def test_every_reason_that_counts_snapshots_is_explained() -> None:
    assert set(process_sections._REASONS) >= DROPPED | THINNED


def test_an_unknown_reason_is_shown_without_an_explanation() -> None:
    assert note_of(process_sections.delivery([process(lost={"<b>new</b>": 3})])) == ""


def test_attempts_show_what_changed_between_them() -> None:
    packages = {"torch": "2.1", "numpy": "2.0", "old": "1"}
    attempts = [
        {
            "number": 1, "started_at": "2026-01-31T12:00:00.000Z",
            "environment": {
                "commit": "a" * 40, "dirty": True, "command_line": ["python", "-m", "train"], "packages": packages,
            },
        },
        {
            "number": 2, "started_at": "2026-01-31T13:00:00.000Z",
            "environment": {
                "commit": "b" * 40, "dirty": False, "packages": {"torch": "2.2", "numpy": "2.0", "new": "3"},
            },
        },
        {"number": 3, "started_at": "2026-01-31T14:00:00.000Z", "environment": {}},
    ]  # fmt: skip
    processes = [process(), process(instance="p2", attempt=2, ended_at=None, end_state=None)]
    told = texts_of(process_sections.attempts(a_run(attempts=attempts, processes=processes)))
    assert told[0][0] == "3"
    assert told[1][3:] == [
        "running", "bbbbbbbbbb", "–", "3 packages; torch 2.1 → 2.2, new 3 is new, old is gone",
    ]  # fmt: skip
    assert told[2][3:] == [
        "killed for memory", "aaaaaaaaaa with changes", "python -m train", "3 packages",
    ]  # fmt: skip


def test_an_earlier_attempt_is_not_shown_as_running() -> None:
    started = "2026-01-31T12:00:00.000Z"
    attempts = [{"number": n, "started_at": started, "environment": {}} for n in (1, 2)]
    nothing_told = {"ended_at": None, "end_state": None, "end_reason": ""}
    first, second = process(**nothing_told), process(instance="p2", attempt=2, **nothing_told)
    section = process_sections.attempts(a_run(attempts=attempts, processes=[first, second]))
    assert [row[3] for row in texts_of(section)] == ["running", "no end reported"]
    processes = inventory_tables.processes([first, second])
    assert [row[4] for row in texts_of(processes)] == ["no end reported", "running"]


def test_log_lines_are_open_if_the_run_did_not_finish() -> None:
    second = process(instance="p2", attempt=2, rank=1, log_lines=["two", "three"])
    said = [process(log_lines=["one"]), second]
    section = process_sections.lines(a_run(processes=said))
    assert texts_of(section) == [["1", "0", "one"], ["2", "1", "two"], ["2", "1", "three"]]
    assert section is not None and not section.fold
    finished = process_sections.lines(a_run(state="finished", processes=said))
    assert finished is not None and finished.fold
    assert process_sections.lines(a_run()) is None


def test_log_lines_have_columns_only_for_what_differs() -> None:
    second = process(instance="p2", attempt=2, log_lines=["two"])
    alone = process_sections.lines(a_run(processes=[second]))
    both = process_sections.lines(a_run(processes=[second, process(log_lines=["one"])]))
    assert alone is not None and alone.table is not None
    assert [column.label for column in alone.table.columns] == ["line"]
    assert texts_of(both) == [["1", "one"], ["2", "two"]]


HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "{% raw %}", "]]></script>",
    "javascript:alert(1)", "\u202egnirts", "&lt;b&gt;", "' onmouseover='x", "x" * 1000,
)  # fmt: skip


def test_hostile_log_lines_are_text(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    body = run.wire(0, 3)
    event = {"sequence": 0, "time": run.started, "kind": "log", "name": "log"}
    body["events"].append(event | {"data": {"lines": list(HOSTILE)}})
    assert api.post("/api/v1/runs/r1/batches", json=body).status_code == 200
    page = api.get("/runs/r1?tab=all").text
    section = page[page.index('id="lines"') :]
    section = section[: section.index("</section>")]
    assert "<img" not in section
    assert "<script" not in section
    cells = re.findall(r"<code>(.*?)</code>", section)
    shown = [html.unescape(re.sub("<wbr>|\u200b", "", each)) for each in cells]
    # A mark that changes the direction of the following text is removed.
    assert shown == [line.replace("\u202e", "") for line in HOSTILE]


def test_a_state_is_shown_with_its_reason(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 1, 6)
    told = {"instance": "p1", "state": "failed", "reason": "ValueError", "ended_at": 1.77e9}
    assert api.patch("/api/v1/runs/r1", json=told).status_code == 200
    page = api.get("/runs/r1?tab=all").text
    assert '<span class="state" data-state="failed"><b>failed: ValueError</b></span>' in page
    assert 'id="end"' in page
    assert "Failed: ValueError. Last reading of rank 0: RSS 1.0" in page
    assert '<span class="state" data-state="failed">failed: ValueError</span>' in api.get("/").text


def test_a_run_without_processes_has_a_page(api: TestClient, make_run: Any) -> None:
    make_run().create(api)
    told = {"state": "killed", "reason": "SIGTERM"}
    assert api.patch("/api/v1/runs/r1", json=told).status_code == 200
    page = api.get("/runs/r1")
    assert page.status_code == 200
    assert "killed by SIGTERM" in page.text


MIB = 2**20
GROWTH = {"estimate": 8.0 * MIB, "low": 7.5 * MIB, "high": 8.5 * MIB}
FINDINGS = [{"fingerprint": n, "status": s} for n, s in (("one", "watch"), ("two", "confirmed"))]


def cells(*found: dict[str, Any]) -> list[tuple[Cell, Cell]]:
    """Return (growth, finding) of each row."""
    section = inventory_tables.processes(found, (), FINDINGS, "epoch")
    assert section.table is not None
    heads = [column.label for column in section.table.columns]
    growth, named = heads.index("growth per epoch"), heads.index("finding")
    return [(row.cells[growth], row.cells[named]) for row in section.table.rows]


def test_unknown_growth_is_shown_as_unknown() -> None:
    ((growth, named),) = cells(process())
    assert (growth.text, growth.absent, named.text) == ("unknown", True, "–")
    # From a database of an older Leakline, or with a finding that no longer exists.
    ((growth, named),) = cells(process(findings=["gone"]))
    assert (growth.text, named.text) == ("unknown", "–")


def test_growth_is_shown_with_the_worst_finding() -> None:
    quiet = {"estimate": 0.0, "low": 0.0, "high": 0.0}
    healthy, leaking = cells(
        process(growth_bytes_per_generation=quiet),
        process(rank=1, growth_bytes_per_generation=GROWTH, findings=["one", "two"]),
    )
    assert (healthy[0].text, healthy[1].text) == ("0 B", "–")
    assert leaking[0].text == "+8.00 MiB"
    assert leaking[1] == Cell("Leaking", status="confirmed", href="#findings")


def test_an_earlier_attempt_says_where_its_curve_continues() -> None:
    before, now = cells(
        process(instance="a"), process(instance="b", attempt=2, growth_bytes_per_generation=GROWTH)
    )
    assert before[0].text == "in attempt 2"
    assert now[0].text == "+8.00 MiB"


def test_growth_is_shown_with_its_interval() -> None:
    point = {"estimate": 4.0, "low": 4.0, "high": 4.0}
    grows = (None, point, GROWTH)
    rows = [process(growth_bytes_per_generation=each) for each in grows]
    section = inventory_tables.processes(rows)
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


def test_a_page_opens_on_the_process_that_leaks() -> None:
    assert first_shown({"processes": []}) is None
    assert first_shown(ranks([], [])) == "rank 0 main"
    assert first_shown(ranks([], ["two"], [])) == "rank 1 main"
    more = ranks(["one"], ["two"])
    more["processes"][1]["growth_bytes_per_generation"] = GROWTH | {"estimate": 9.0 * MIB}
    assert first_shown(more) == "rank 1 main"
    # The leading finding takes precedence over the growth of another process.
    assert first_shown(more, "one") == "rank 0 main"


def test_a_rank_has_only_its_own_findings() -> None:
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


def test_the_api_has_growth_of_each_process(api: Any, make_run: Any, eventually: Any) -> None:
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

    def known_growth() -> list[dict[str, Any]]:
        found = of("")
        known = all(each["growth_bytes_per_generation"] for each in found)
        return found if known and found[0]["findings"] else []

    leaking, steady = eventually(known_growth)
    assert of("/verdict") == [leaking, steady]
    assert leaking["growth_bytes_per_generation"]["estimate"] > 9 * MIB
    assert abs(steady["growth_bytes_per_generation"]["estimate"]) < MIB
    assert steady["findings"] == []
    # The curve of the list is of both, like the number next to it.
    (row,) = api.get("/api/v1/runs").json()["items"]
    assert row["sparkline"][-1] == row["rss_bytes"]
    page = api.get("/runs/two?tab=info").text
    assert "+10.00 MiB" in page[page.index('id="processes-title"') :]


# Applied before the application starts its examiner.
@pytest.mark.usefixtures("standing_back")
def test_a_verdict_of_an_older_version_names_no_process(api: Any, make_run: Any) -> None:
    make_run(id="old").begin(api, 36)
    nothing = to_json(Verdict("old", "generation", 12, "ok", "", None, None))
    older = {name: value for name, value in nothing.items() if name != "processes"}
    with writing(engine_of(api)) as connection:
        changed = update(runs).where(runs.c.id == "old")
        connection.execute(changed.values(verdict=msgspec.json.encode(older).decode()))
    (one,) = api.get("/api/v1/runs/old").json()["processes"]
    assert (one["growth_bytes_per_generation"], one["findings"]) == (None, [])
    page = api.get("/runs/old?tab=info").text
    assert "unknown" in page[page.index('id="processes-title"') :]


def test_a_comparison_draws_the_rank_that_leaks_most(
    api: Any, make_run: Any, eventually: Any
) -> None:
    keeps_two = {"type.app.Env.count": lambda _: 2}
    for name, leaks in (("little", (8 * MIB, 0)), ("much", (0, 40 * MIB))):
        for rank, leak in enumerate(leaks):
            more = {} if leak else keeps_two
            make_run(
                id=name, instance=f"{name}{rank}", rank=rank, leak_bytes=leak, extra=more
            ).begin(api, 36)

    def named(name: str) -> list[int]:
        found = api.get(f"/api/v1/runs/{name}").json()["processes"]
        return [each["rank"] for each in found if each["findings"]]

    eventually(lambda: (named("little"), named("much")) == ([0], [1]))
    for before, after in (("little", "much"), ("much", "little")):
        page = api.get(f"/compare?before={before}&after={after}").text
        assert "Private memory of rank 1 main in both runs" in page


def layers(api: TestClient, address: str = "/runs/r1/lines?x=-1..99") -> dict[str, Any]:
    """Return the lines of the total by name."""
    lines = api.get(address).json()["lines"]["trend"]
    return {each["name"]: each for each in lines if each["group"] == "total"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_layer_of_children_is_the_sum_over_all_processes(
    ranks: int, api: TestClient, make_run: Any
) -> None:
    for rank in range(ranks):
        extra = {"children.uss_bytes": lambda _, rank=rank: (rank + 1) * 64 * MIB}
        make_run(instance=f"p{rank}", rank=rank, extra=extra).begin(api, 36)
    found = layers(api)["child processes"]
    assert set(found["y"]) == {64 * MIB if ranks == 1 else 192 * MIB}


def test_ranks_that_report_themselves_are_counted_once(api: TestClient, make_run: Any) -> None:
    """Rank 0 has started rank 1, and a worker."""
    extra = {
        "children.uss_bytes": lambda _: 500 * MIB,
        "children.ranks.uss_bytes": lambda _: 436 * MIB,
    }
    make_run(instance="p0", rank=0, extra=extra).begin(api, 36)
    # As long as it does not report itself, it is a child like the others.
    assert set(layers(api)["child processes"]["y"]) == {500 * MIB}
    make_run(instance="p1", rank=1).begin(api, 36)
    found = layers(api)["child processes"]
    assert set(found["y"]) == {64 * MIB}


def test_the_charts_have_a_time_axis_if_the_address_says_so(api: TestClient, make_run: Any) -> None:
    make_run().begin(api, 36)
    page = api.get("/runs/r1").text
    assert '<a href="?" data-axis aria-current="true">generation</a>' in page
    assert '<a href="?axis=time" data-axis>time</a>' in page
    by_time = api.get("/runs/r1?axis=time&tab=phases").text
    assert '<a href="?tab=phases" data-axis>generation</a>' in by_time
    assert "tab=events&amp;axis=time" in by_time
    assert '"x_unit":"time"' in by_time and '"x_unit":"generation"' not in by_time
    # Charts that count generations are left out.
    assert 'id="chart-seconds"' not in by_time and 'id="chart-phases"' not in by_time
    assert "Phases are measured by generation, not by time." in by_time
    assert '"x_unit":"time"' in api.get("/runs/r1/fragments?axis=time").text
    answer = api.get("/runs/r1/lines?axis=time&x=-1s..99999s").json()
    assert answer["x_seconds"] in (60, 3600) and len(answer["lines"]["trend"][0]["x"]) > 12
    # Generations are not seconds.
    assert api.get("/runs/r1/lines?x=0s..9s").status_code == 422


def test_on_a_time_axis_growth_begins_at_its_generation(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run(leak_bytes=40 * MIB)
    run.begin(api, 36)

    def starts() -> list[dict[str, Any]]:
        found = []
        for address in ("/runs/r1", "/runs/r1?axis=time"):
            text = api.get(address).text.partition('data-chart>{"id":"trend"')[2]
            chart = json.loads('{"id":"trend"' + text.partition("</script>")[0])
            found += [each for each in chart["bands"] if each["label"] == "leak starts"][:1]
            assert address == "/runs/r1" or chart["cone"] is None
        return found

    eventually(lambda: len(starts()) == 2)
    by_generation, by_time = starts()
    rows = api.get("/runs/r1/lines?axis=time&x=-1..99999").json()
    (line,) = [each for each in rows["lines"]["trend"] if each["group"] == "total"]
    first, last = line["x"][0], line["x"][-1]
    assert first <= by_time["first"] < by_time["last"] <= last
    # All generations of this run take equally long.
    share = (by_generation["last"] - 0.5) / (36 / 3 - 1)
    assert (by_time["last"] - first) / (last - first) == pytest.approx(share, abs=0.2)


FEW = 3
ALL = 5


@pytest.fixture
def many(api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Send ranks 0 to 4, each larger than the one before it."""
    monkeypatch.setattr(run_history, "MAX_PROCESSES_STUDIED", FEW)
    for rank in range(ALL):
        size = {"process.rss_bytes": lambda _, rank=rank: (rank + 1) * 2**30}
        make_run(id="many", instance=f"p{rank}", rank=rank, extra=size).begin(api, 9)
    return api


@pytest.mark.parametrize("load", [load_for_examination, run_history.load_for_pages])
def test_the_largest_processes_are_analysed(many: TestClient, load: Any) -> None:
    read, _ = load(engine_of(many), "many")
    assert [process.instance for process in read.processes] == ["p2", "p3", "p4"]
    assert read.processes_left_out == ALL - FEW
    # Each process reported one holder.
    assert len(read.holders) == FEW


def test_the_verdict_and_a_comparison_say_how_many_are_left_out(many: TestClient) -> None:
    said = "(of the 3 largest processes; 2 more are not analyzed)"
    read, _ = load_for_examination(engine_of(many), "many")
    assert analysis.examine(read).summary.endswith(said)
    compared = many.get("/api/v1/compare?before=many&after=many").json()
    assert compared["summary"].endswith(said)
    assert many.get("/runs/many").status_code == 200


def test_an_export_has_every_process(many: TestClient) -> None:
    read = run_history.load_history(engine_of(many), "many")
    assert (len(read.processes), read.processes_left_out) == (ALL, 0)


def test_series_over_the_limit_are_not_read(
    many: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart_points, "MAX_PROCESSES_READ", FEW)
    path = "/api/v1/runs/many/series?name=process.rss_bytes"
    whole = many.get(path).json()
    # There is room for all of them.
    assert (len(whole["items"]), whole["left_out"], whole["processes_left_out"]) == (ALL, 0, 0)
    monkeypatch.setattr(chart_points, "MAX_ITEMS", 2)
    cut = many.get(path).json()
    assert (len(cut["items"]), cut["left_out"], cut["processes_left_out"]) == (2, 1, 2)


def test_snapshots_are_of_the_newest_processes(
    many: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_rows, "MAX_PROCESSES_READ", FEW)
    told = many.get("/api/v1/runs/many/snapshots").json()
    assert {row["process"] for row in told["items"]} == {"p2", "p3", "p4"}
    assert told["processes_left_out"] == ALL - FEW


@contextlib.contextmanager
def counted(target: Engine | Connection) -> Iterator[list[str]]:
    """Record the queries of this thread; the workers of the server make their own meanwhile."""
    asked: list[str] = []
    me = threading.get_ident()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and threading.get_ident() == me:
            asked.append(statement)

    event.listen(target, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(target, "before_cursor_execute", note)


def test_the_newest_large_objects_are_read_with_one_query(api: TestClient, make_run: Any) -> None:
    for rank in range(4):
        make_run(id="many", instance=f"p{rank}", rank=rank).begin(api, 34)
    with counted(engine_of(api)) as asked:
        found = details.newest_large_objects(engine_of(api), "many")
    assert len(asked) == 1
    assert {(row["process"], row["sequence"]) for row in found} == {(f"p{n}", 32) for n in range(4)}
    assert len(found) == 8


def questions_for(api: TestClient, run_id: str) -> int:
    with engine_of(api).connect() as connection, counted(connection) as asked:
        state = load_run(connection, run_id)
    assert state is not None
    for rank in range(len(state.processes)):
        process = state.processes[f"{run_id}-{rank}"]
        # Sealed or waiting, with the gap between them.
        assert [*process.known] == [(0, 2), (5, 7)]
    return len(asked)


def test_many_processes_take_as_many_queries_as_one(api: TestClient, make_run: Any) -> None:
    for run_id, ranks in (("one", 1), ("many", 12)):
        for rank in range(ranks):
            run = make_run(id=run_id, instance=f"{run_id}-{rank}", rank=rank).begin(api, 3)
            run.send(api, 5, 3)
    assert questions_for(api, "many") == questions_for(api, "one")


RATED_GENERATIONS = 13
BEGAN = time.time() - 3600
GROWS = ("problem: grows", "expected: it grows, but no finding names it")
# type -> (first, last, the row of a leaking run, the row of a steady run)
CHANGES = {
    "app.TradingEnvironment": (2, 2, "expected: 2", "expected: 2"),
    "app.DDPGAgent": (16, 17, "expected: 16 to 17", "expected: 16 to 17"),
    "app.Scaler": (5, 5, "good", "good"),
    "app.Critic": (4, 9, "problem: expected 4", "problem: expected 4"),
    "app.Transition": (1_000, 3_222, *GROWS),
    "app.Step": (100, 424, *GROWS),
    "numpy.ndarray": (1_234, 15_678, *GROWS),
    "torch.Tensor": (567, 1_234, *GROWS),
}
DECLARED = {"app.TradingEnvironment": (2, 2), "app.DDPGAgent": (16, 17), "app.Critic": (4, 4)}


def generation_end(n: int, samples: Mapping[str, Any], **more: Any) -> Snapshot:
    return Snapshot(n, BEGAN + n, float(n), n, None, "", "generation_end", samples, **more)


def batch(leaked: int, generations: int) -> Batch:
    rows = []
    for n in range(generations):
        share = n / (RATED_GENERATIONS - 1)
        samples = {
            f"type.{name}.count": first + math.ceil((last - first) * share)
            for name, (first, last, *_) in CHANGES.items()
        }  # fmt: skip
        memory = 4096 * MIB + n * leaked
        samples |= {"process.anon_bytes": memory, "process.rss_bytes": memory}
        declared = tuple(
            Event(0, BEGAN, "expect", name, data={"low": low, "high": high, "after": None})
            for name, (low, high) in DECLARED.items()
        )
        rows.append(generation_end(n, samples, events=declared if n == 0 else ()))
    return Batch(ProcessIdentity("r1", pid=1, host="box"), tuple(rows))


def post(api: TestClient, eventually: Any, sent: Batch) -> None:
    """Send one snapshot for each generation and wait for the verdict."""
    new = {"id": "r1", "project": "erl", "name": "before", "unit": "generation", "total": 25}
    assert api.post("/api/v1/runs", json=new).status_code == 201
    assert api.post("/api/v1/runs/r1/batches", json=batch_to_wire(sent)).status_code == 200
    count = len(sent.snapshots)
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json().get("generations") == count)


def of_page(api: TestClient) -> dict[str, list[str]]:
    """Return the cells of each type, without marks."""
    page = api.get("/runs/r1?tab=all").text.replace("<wbr>", "")
    table = page[page.index('id="types"') :].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("</tr>")]
    plain = [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in rows if row]
    return {row[0]: row for row in plain}


@pytest.mark.parametrize("leaked", [64 * MIB, 0])
def test_each_change_has_its_rating_on_the_page_in_the_api_and_in_markdown(
    leaked: int, api: TestClient, eventually: Any
) -> None:
    post(api, eventually, batch(leaked, RATED_GENERATIONS))
    verdict = api.get("/api/v1/runs/r1/verdict").json()
    items = {each["name"]: each for each in api.get("/api/v1/runs/r1/types").json()["items"]}
    page, markdown = of_page(api), api.get("/runs/r1/report.md").text
    for name, (first, last, *words) in CHANGES.items():
        said = words[0] if verdict["status"] in ("suspected", "confirmed", "watch") else words[1]
        told = items[name]
        counts = (told["first_count"], told["last_count"], told["difference"])
        assert counts == (first, last, last - first)
        assert told["change_rating"] == said.partition(":")[0]
        assert rating_words(told) == said
        row = page[name]
        assert row[1] == said
        assert row[3:6] == [f"{first:,}", f"{last:,}", f"{last - first:+,}"]
        if told["rating"] != "steady":
            assert re.search(
                rf"`{re.escape(name)}` \| {first:,} \| {last:,} \| \{last - first:+,} \|.* {said} \|",
                markdown,
            )


def test_before_there_is_a_verdict_a_rise_is_neither_good_nor_bad(
    api: TestClient, eventually: Any
) -> None:
    post(api, eventually, batch(64 * MIB, 3))
    page = of_page(api)
    assert page["numpy.ndarray"][1] == "not known yet"
    assert (page["app.Scaler"][1], page["app.TradingEnvironment"][1]) == ("good", "expected: 2")


@pytest.mark.parametrize(
    ("rating", "difference", "readings", "status", "told"),
    [
        ("steady", -3, 2, None, "good"), ("steady", 0, 1, "learning", "good"), ("steady", 14_444, 4, "ok", "good"),
        # The verdict on another leak says nothing about this one.
        ("steady", 14_444, 3, "confirmed", "unknown"), ("steady", 7, 8, "learning", "unknown"),
        ("grows", 14_444, 8, None, "unknown"), ("grows", 14_444, 8, "filling", "expected"),
        ("grows", 1, 8, "watch", "expected"), ("grows", 1, 8, "recovered", "unknown"),
        ("problem", 0, 1, None, "problem"), ("expected", 1, 1, None, "expected"),
    ],
)  # fmt: skip
def test_a_change_is_rated_by_the_verdict(
    rating: str, difference: int, readings: int, status: str | None, told: str
) -> None:
    assert change_rating(rating, difference, readings, status, is_blamed=False) == told


GENERATIONS = 10


def send(
    api: TestClient, eventually: Any, series: Mapping[str, Any], census_at: int | None = None
) -> None:
    """Send the reading of each of ``series`` by generation; None means no reading."""
    rows = []
    for n in range(GENERATIONS):
        read = {name: value(n) for name, value in series.items()}
        samples = {name: value for name, value in read.items() if value is not None}
        samples |= {"process.anon_bytes": 800 * MIB, "process.rss_bytes": 900 * MIB}
        census = Census(n, "full", 1.0, 9, (("dict", 9, 3 * MIB),)) if n == census_at else None
        rows.append(generation_end(n, samples, census=census))
    post(api, eventually, Batch(ProcessIdentity("p1", pid=1, host="box"), tuple(rows)))


def table_of(api: TestClient, section: str) -> list[dict[str, str]]:
    """Return the rows of a table by the heads of its columns."""
    page = api.get("/runs/r1?tab=all").text.replace("<wbr>", "")
    table = page[page.index(f'id="{section}"') :].partition("<table>")[2].partition("</table>")[0]
    cells = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in table.split("</tr>")
    ]  # fmt: skip
    heads, *rows = [row for row in cells if row]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def items_of(api: TestClient, what: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in api.get(f"/api/v1/runs/r1/{what}").json()["items"]}


def test_bytes_of_a_store_on_devices_are_next_to_those_on_the_host(
    api: TestClient, eventually: Any
) -> None:
    stores = {
        "tracked.replay.length": lambda n: 100 * (n + 1),
        "tracked.replay.bytes": lambda n: 12 * MIB * (n + 1),
        "tracked.replay.device_bytes": lambda n: 2 * MIB * (n + 1),
        # Moved to the host after a while: its earlier bytes on the device are not there now.
        "tracked.moved.length": lambda n: 100,
        "tracked.moved.bytes": lambda n: 4 * MIB,
        "tracked.moved.device_bytes": lambda n: 4 * MIB if n < 5 else None,
        # Device and host were not distinguished.
        "tracked.plain.length": lambda n: 10,
        "tracked.plain.bytes": lambda n: MIB,
        "tracked.unsized.length": lambda n: 10,
    }
    send(api, eventually, stores)
    told = items_of(api, "containers")
    parts = ("bytes", "host_bytes", "device_bytes")
    assert {name: tuple(each[part] for part in parts) for name, each in told.items()} == {
        "replay": (120 * MIB, 100 * MIB, 20 * MIB),
        "moved": (4 * MIB, 4 * MIB, 0),
        "plain": (MIB, None, None),
        "unsized": (None, None, None),
    }
    rows = {row["container"]: row for row in table_of(api, "containers")}
    shown = ("bytes", "on the host", "on devices")
    assert [rows["replay"][head] for head in shown] == ["120.00 MiB", "100.00 MiB", "20.00 MiB"]
    assert [rows["moved"][head] for head in shown] == ["4.00 MiB", "4.00 MiB", "0 B"]
    assert [rows["plain"][head] for head in shown] == ["1.00 MiB", "not measured", "not measured"]


def test_a_watched_class_shows_how_many_were_created_freed_and_are_alive(
    api: TestClient, eventually: Any
) -> None:
    counts = {
        "type.app.Env.count": lambda n: 116 * (n + 1),
        "type.app.Env.created": lambda n: 2_320 * (n + 1) if n else None,
        "type.app.Env.freed": lambda n: 2_204 * (n + 1) if n else None,
        "type.app.Agent.count": lambda n: 16,
    }
    send(api, eventually, counts)
    told = items_of(api, "types")
    parts = ("last_count", "created_at_least", "freed_at_least")
    assert [told["app.Env"][part] for part in parts] == [1_160, 23_200, 22_040]
    assert [told["app.Agent"][part] for part in parts] == [16, None, None]
    rows = {row["type"]: row for row in table_of(api, "types")}
    shown = ("last", "created, at least", "freed, at least")
    assert [rows["app.Env"][head] for head in shown] == ["1,160", "23,200", "22,040"]
    assert [rows["app.Agent"][head] for head in shown] == ["16", "–", "–"]


def test_an_older_count_shows_its_generation(api: TestClient, eventually: Any) -> None:
    counts = {
        "type.app.Env.count": lambda n: n + 1,
        "type.app.Rare.count": lambda n: 10 + n if n % 4 == 0 else None,
    }
    send(api, eventually, counts)
    told = items_of(api, "types")
    assert (told["app.Env"]["last_generation"], told["app.Rare"]["last_generation"]) == (9, 8)
    rows = {row["type"]: row for row in table_of(api, "types")}
    assert [rows[name]["counted at generation"] for name in ("app.Env", "app.Rare")] == ["9", "8"]
    assert rows["app.Rare"]["last"] == "18"


def test_empty_columns_are_left_out(api: TestClient, eventually: Any) -> None:
    """Devices without a store on one, created and freed without a watched class, and the generation of the count."""
    store = {"tracked.replay.length": lambda n: n, "tracked.replay.bytes": lambda n: n}
    send(api, eventually, {"type.app.Env.count": lambda n: n + 1, **store})
    (of_store,), (of_type,) = table_of(api, "containers"), table_of(api, "types")
    assert "bytes" in of_store and not any("devices" in head for head in of_store)
    assert of_type["last"] == "10"
    assert not any("at least" in head or head.startswith("counted at") for head in of_type)


@pytest.mark.parametrize(("at", "older"), [(4, True), (GENERATIONS - 1, False)])
def test_an_older_census_shows_its_generation(
    at: int, older: bool, api: TestClient, eventually: Any
) -> None:
    send(api, eventually, {"tensors.bytes": lambda n: MIB}, census_at=at)
    page = api.get("/runs/r1?tab=all").text.replace("\u00a0", " ")
    assert "other objects 3.00 MiB" in page
    assert (f"Other objects are from the census at generation {at}." in page) is older


def test_an_empty_tab_says_so_and_can_show_later_data(api: TestClient, make_run: Any) -> None:
    make_run().begin(api, 6)
    for address in ("/runs/r1", "/runs/r1/fragments"):
        page = api.get(f"{address}?tab=gpu").text
        assert re.search(r'<a href="[^"]*tab=gpu[^"]*" aria-current="true">GPU</a>', page)
        tab = page[page.index('id="tab-gpu"') :]
        assert "No data of this kind was measured in this run." in tab
    assert "tab=gpu" not in api.get("/runs/r1").text
