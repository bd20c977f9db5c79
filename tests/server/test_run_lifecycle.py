"""Attempts of a run, the clocks of its processes, and how it ends: numbers, limits, corrections and inferred ends."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, token
from tests.server.conftest import StartServer
from tests.server.databases import Copies
from tests.server.stored import engine_of, serving

from leakline.cli import main
from leakline.snapshot import ProcessIdentity
from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.store import schema
from leakline_server.store.engine import writing
from leakline_server.store.ingest import inbox
from leakline_server.store.maintenance.retention_policy import PerProject
from leakline_server.store.runs import lifecycle, runs
from leakline_server.store.runs.process_list import iso
from leakline_server.store.runs.run_registration import Placed, place
from leakline_server.store.schema import attempts, intake

T = 1_760_000_000.0


@dataclass(frozen=True)
class Known:
    rank: int
    attempt: int
    started_at: float


def placed(started: float, *known: Known, rank: int = 0, live: bool = False, **who: Any) -> Placed:
    begun: dict[int, float] = {}
    for one in known:
        begun[one.attempt] = min(begun.get(one.attempt, one.started_at), one.started_at)
    return place(ProcessIdentity("new", rank, **who), started, known, begun, live=live)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (placed(100), Placed(1)),
        # Its folder has two earlier attempts, the server has none.
        (placed(100, attempt=3), Placed(3)),
        # It has no earlier attempt in its folder, because it is on another machine.
        (placed(900, Known(0, 1, 100)), Placed(2)),
        (placed(900, Known(0, 1, 100), attempt=2), Placed(2)),
        # Another rank of the same launch, and one that joins late while the run goes on.
        (placed(103, Known(0, 1, 100), rank=1), Placed(1)),
        (placed(2_000, Known(0, 1, 100), rank=1, live=True), Placed(1)),
        # The same, if that rank took part in an earlier launch as well.
        (placed(905, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 900), rank=1), Placed(2)),
        # ... and if it missed one.
        (placed(1_905, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 900), Known(0, 3, 1_900), rank=1), Placed(3)),
        # A new rank, the first of its launch to join, long after the others fell silent.
        (placed(9_000, Known(0, 1, 100), rank=5), Placed(2)),
        # Joins late: before the only attempt, and between two.
        (placed(50, Known(0, 1, 100)), Placed(1, moves=True)),
        (placed(500, Known(0, 1, 100), Known(0, 2, 900), attempt=7), Placed(2, moves=True)),
        (placed(500, Known(0, 1, 100), Known(0, 3, 900)), Placed(2)),
        # Another rank of that earlier launch finds its attempt.
        (placed(51, Known(0, 1, 50), Known(0, 2, 100), Known(1, 2, 101), rank=1), Placed(1)),
        # A launcher that restarts states the attempt itself.
        (placed(130, Known(0, 1, 100), attempt=2, rank=1), Placed(2)),
        # A launch soon after another one, another rank of it, and a late spool of the first launch.
        (placed(130, Known(0, 1, 100), Known(1, 1, 101)), Placed(2)),
        (placed(131, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 130), rank=1), Placed(2)),
        (placed(102, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 130), rank=2), Placed(1)),
        # A child process belongs to the attempt of its parent process.
        (placed(950, Known(0, 1, 100), Known(0, 2, 900), role="child"), Placed(2)),
        (placed(950, Known(1, 1, 100), role="child", attempt=4), Placed(4)),
    ],
)  # fmt: skip
def test_a_process_finds_its_attempt(found: Placed, expected: Placed) -> None:
    assert found == expected


def test_a_later_launch_is_a_later_attempt_in_any_order_of_joins() -> None:
    """Three launches of three ranks join in any order: each launch is one attempt, in the order of the launches."""
    generator = random.Random(7)
    launches = [
        [Known(rank, 0, T + 1_000 * launch + generator.uniform(0, 20)) for rank in range(3)]
        for launch in range(3)
    ]
    everyone = [(launch, one) for launch, ranks in enumerate(launches) for one in ranks]
    for _ in range(300):
        generator.shuffle(everyone)
        known: list[tuple[int, Known]] = []
        # How many earlier launches each launch knows: from none to all.
        says = [generator.randint(1, launch + 1) for launch in range(3)]
        for launch, one in everyone:
            told = says[launch]
            where = placed(one.started_at, *(k for _, k in known), rank=one.rank, attempt=told)
            if where.moves:
                known = [
                    (n, Known(k.rank, k.attempt + (k.attempt >= where.number), k.started_at))
                    for n, k in known
                ]
            known.append((launch, Known(one.rank, where.number, one.started_at)))
        numbers = [sorted({k.attempt for n, k in known if n == launch}) for launch in range(3)]
        assert all(len(of_launch) == 1 for of_launch in numbers), numbers
        assert numbers == sorted(numbers), numbers


RUNS = "/api/v1/runs"


def join(
    api: TestClient, run: Any, *, behind: float | None = None, environment: Any = None, **who: Any
) -> dict[str, Any]:
    """Join as the process itself, with a clock this far behind; None means that another program brings its spool."""
    process = {"instance": run.instance, "rank": run.rank, "host": f"node-{run.rank}", **who}
    body = {**run.header, "process": process, "environment": environment or {}}
    if behind is not None:
        body["sent_at"] = time.time() - behind
    answer = api.post(RUNS, json=body)
    assert answer.status_code in (200, 201), answer.text
    joined: dict[str, Any] = answer.json()
    return joined


def hello(api: TestClient, run: Any, told: int = 1, role: str = "main", **environment: Any) -> int:
    """Join, and return the attempt that the process belongs to."""
    return int(join(api, run, environment=environment, attempt=told, role=role)["attempt"])


def found(api: TestClient, run: str = "r1") -> dict[str, Any]:
    answer: dict[str, Any] = api.get(f"{RUNS}/{run}").json()
    return answer


def end(
    api: TestClient, instance: str, state: str = "finished", run: str = "r1", **more: Any
) -> dict[str, Any]:
    change = {"state": state, "instance": instance, "ended_at": T + 300.0, **more}
    answer = api.patch(f"{RUNS}/{run}", json=change)
    assert answer.status_code == 200, answer.text
    ended: dict[str, Any] = answer.json()
    return ended


def finish(api: TestClient) -> None:
    assert api.patch(f"{RUNS}/r1", json={"state": "finished"}).status_code == 200


def numbers(run: dict[str, Any]) -> dict[str, int]:
    return {each["instance"]: each["attempt"] for each in run["processes"]}


def test_the_unit_is_open_until_a_generation_is_stored(api: TestClient, make_run: Any) -> None:
    def says(run: Any, unit: str) -> str:
        process = {"instance": run.instance, "rank": run.rank, "host": "node"}
        answer = api.post(RUNS, json={**run.header, "process": process, "unit": unit})
        assert answer.status_code in (200, 201), answer.text
        return str(found(api, run.id)["unit"])

    named, late = make_run(), make_run(id="r2", instance="p2")
    assert [says(named, unit) for unit in ("generation", "epoch", "step")] == [
        "generation",
        *["epoch"] * 2,
    ]
    assert says(late, "generation") == "generation"
    late.send(api, 0, 6)
    assert says(late, "epoch") == "generation"


@pytest.mark.parametrize("unit", ["second", "minute"])
def test_generations_replace_a_unit_of_time(api: TestClient, make_run: Any, unit: str) -> None:
    # `leakline run` declares seconds and finds generations later.
    run = make_run()
    process = {"instance": run.instance, "rank": run.rank, "host": "node"}
    assert api.post(RUNS, json={**run.header, "process": process, "unit": unit}).is_success
    assert found(api, run.id)["unit"] == unit
    run.send(api, 0, 6)
    assert found(api, run.id)["unit"] == "generation"


def test_a_run_resumed_on_another_machine_begins_its_next_attempt(
    api: TestClient, make_run: Any
) -> None:
    first, second = make_run(), make_run(instance="p2", started=T + 900)
    assert hello(api, first, commit="aaa", dirty=True) == 1
    first.send(api, 0, 6)
    # It was killed and could not report it. The next process also says attempt 1, and so do its batches.
    started = {"commit": "bbb", "dirty": False}
    assert hello(api, second, **started) == 2
    assert second.send(api, 0, 3) == 3
    assert hello(api, second, **started) == 2
    assert numbers(found(api)) == {"p1": 1, "p2": 2}
    run = end(api, "p2")
    assert (run["state"], run["attempt"]) == ("finished", 2)
    assert run["rss_bytes"] == second.snapshot(2).samples["process.rss_bytes"]
    assert [a["environment"] for a in run["attempts"]] == [
        {"commit": "aaa", "dirty": True}, started,
    ]  # fmt: skip
    assert run["environment"] == started


def test_the_ranks_of_a_launch_are_one_attempt(api: TestClient, make_run: Any) -> None:
    for rank in range(2):
        one = make_run(instance=f"a{rank}", rank=rank, started=T + rank)
        assert hello(api, one) == 1
        one.send(api, 0, 3)
    # Rank 1 joins first this time, and rank 2 is new.
    for at, rank in enumerate((1, 0, 2)):
        one = make_run(instance=f"b{rank}", rank=rank, started=T + 900 + at)
        assert hello(api, one) == 2
    assert [a["number"] for a in found(api)["attempts"]] == [1, 2]
    for rank in range(2):
        assert end(api, f"b{rank}")["state"] == "running"
    # Those of the first attempt have no end, and they keep nothing open.
    assert end(api, "b2")["state"] == "finished"


def test_an_attempt_that_joins_late_takes_its_place(api: TestClient, make_run: Any) -> None:
    late, newest = make_run(instance="late", started=T), make_run(instance="new", started=T + 900)
    assert hello(api, newest, commit="new") == 1
    newest.send(api, 0, 6)
    assert end(api, "new")["state"] == "finished"
    before = found(api)
    # The spool of the first machine is synced.
    assert hello(api, late, commit="late") == 1
    assert late.send(api, 0, 9) == 9
    end(api, "late", "killed", reason="SIGKILL")
    run = found(api)
    assert numbers(run) == {"late": 1, "new": 2}
    # Their lines are joined in this order.
    assert [each["instance"] for each in run["processes"]] == ["late", "new"]
    series = api.get("/api/v1/runs/r1/series?name=process.rss_bytes").json()["items"]
    assert [line["process"] for line in series] == ["late", "new"]
    described = [(a["number"], a["environment"]) for a in run["attempts"]]
    assert described == [(1, {"commit": "late"}), (2, {"commit": "new"})]
    # The state of the run and its last usage are those of its newest attempt.
    for name in ("state", "reason", "ended_at", "environment", "rss_bytes", "peak_bytes"):
        assert run[name] == before[name], name
    assert run["started_at"] < before["started_at"]
    # A batch of the newest attempt still counts as such.
    assert newest.send(api, 6, 3) == 3
    assert found(api)["rss_bytes"] == newest.snapshot(8).samples["process.rss_bytes"]
    # Two attempts move to make room for an even earlier one.
    assert hello(api, make_run(instance="first", started=T - 900), commit="first") == 1
    run = found(api)
    assert numbers(run) == {"first": 1, "late": 2, "new": 3}
    commits = [attempt["environment"]["commit"] for attempt in run["attempts"]]
    assert commits == ["first", "late", "new"] and run["environment"] == {"commit": "new"}


def test_ranks_that_join_at_the_same_moment_are_one_attempt(api: TestClient, make_run: Any) -> None:
    for n in range(3):
        ready = threading.Barrier(4)

        def join_at_once(rank: int, n: int = n, ready: threading.Barrier = ready) -> int:
            ready.wait(20)
            return hello(
                api, make_run(id=f"run{n}", instance=f"p{rank}", rank=rank, started=T + rank)
            )

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(join_at_once, range(4))) == [1] * 4
        run = found(api, f"run{n}")
        assert len(run["processes"]) == 4
        assert [a["number"] for a in run["attempts"]] == [1]


def test_a_child_process_neither_ends_nor_describes_the_run(api: TestClient, make_run: Any) -> None:
    main, child = make_run(), make_run(instance="c1", started=T + 60)
    # Its spool arrives first.
    assert hello(api, child, role="child", command_line="eval.py") == 1
    assert hello(api, main, command_line="train.py") == 1
    run = found(api)
    assert run["environment"] == {"command_line": "train.py"}
    assert [a["environment"] for a in run["attempts"]] == [{"command_line": "train.py"}]
    assert end(api, "c1", "failed")["state"] == "running"
    assert end(api, "p1")["state"] == "finished"
    # A child that joins after the end does not make the run live again.
    other = make_run(instance="c2", started=T + 70)
    assert hello(api, other, role="child", command_line="eval.py") == 1
    assert found(api)["state"] == "finished"
    assert {each["role"] for each in found(api)["processes"]} == {"main", "child"}


def asked(api: TestClient, resume: str, run: Any, **who: Any) -> Any:
    process = {"instance": run.instance, "rank": run.rank, **who}
    return api.post(RUNS, json={**run.header, "process": process, "resume": resume})


def test_a_child_that_is_reported_first_does_not_make_its_run_old(
    api: TestClient, make_run: Any
) -> None:
    child = make_run(instance="c1", started=T + 900)
    assert asked(api, "never", child, role="child").status_code == 201
    assert asked(api, "never", make_run(instance="p1", started=T)).json()["attempt"] == 1


def test_a_run_that_must_exist_is_joined_or_refused(api: TestClient, make_run: Any) -> None:
    first, second = make_run(), make_run(instance="p2", started=T + 900)
    error = refused(asked(api, "must", first), 404, "run_not_found")
    assert 'r1 does not exist, but resume="must"' in error["message"]
    refused(api.post(RUNS, json={**first.header, "resume": "must"}), 404, "run_not_found")
    # A refusal leaves nothing behind, and a child process may come before its parent.
    assert api.get(f"{RUNS}/r1").status_code == 404
    assert asked(api, "must", first, role="child").status_code == 201
    assert hello(api, make_run(instance="p1-main")) == 1
    assert asked(api, "must", second).json()["attempt"] == 2


def test_a_run_that_must_be_new_has_one_attempt(api: TestClient, make_run: Any) -> None:
    def launch(name: str, at: float) -> list[Any]:
        ranks = (make_run(instance=f"{name}{r}", rank=r, started=at + r) for r in range(2))
        return [asked(api, "never", each) for each in ranks]

    # All ranks of a launch may join, and a process that registers again.
    assert [answer.json()["attempt"] for answer in launch("a", T)] == [1, 1]
    assert [answer.status_code for answer in launch("a", T)] == [200, 200]
    # A later launch, and one whose recording began earlier.
    for name, at in (("b", T + 900), ("c", T + 30), ("d", T - 900)):
        for answer in launch(name, at):
            error = refused(answer, 409, "run_exists")
            assert 'r1 already exists, but resume="never"' in error["message"]
    refused(api.post(RUNS, json={**make_run().header, "resume": "never"}), 409, "run_exists")
    child = make_run(instance="c1", started=T + 60)
    assert asked(api, "never", child, role="child").json()["attempt"] == 1
    run = found(api)
    assert numbers(run) == {"a0": 1, "a1": 1, "c1": 1}
    assert [a["number"] for a in run["attempts"]] == [1]


def test_one_of_several_simultaneous_starts_is_the_new_run(api: TestClient, make_run: Any) -> None:
    ready = threading.Barrier(4)

    def start(number: int) -> int:
        ready.wait(20)
        one = make_run(instance=f"p{number}", started=T + number)
        return int(asked(api, "never", one).status_code)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(start, range(4))) == [201, 409, 409, 409]
    assert len(found(api)["processes"]) == 1


def test_ranks_of_a_new_run_may_know_of_unreported_attempts(api: TestClient, make_run: Any) -> None:
    for rank in range(2):
        one = make_run(instance=f"a{rank}", rank=rank, started=T + rank)
        assert asked(api, "never", one, attempt=3).json()["attempt"] == 3


def test_another_value_of_resume_is_refused(api: TestClient, make_run: Any) -> None:
    refused(asked(api, "auto", make_run()), 422, "invalid_field")


LONG = "x" * 50_000


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    return error


def counted(api: TestClient, project: str = "default") -> int:
    """Return the bytes of today."""
    with engine_of(api).connect() as connection:
        query = select(intake.c.bytes).where(intake.c.project == project)
        return int(connection.execute(query).scalar_one())


def test_the_attempts_of_a_run_are_bounded_and_the_last_one_continues(
    api: TestClient, patch: Any
) -> None:
    patch("store.runs.run_registration.MAX_RUN_ATTEMPTS", 3)
    for _ in range(3):
        api.post(RUNS, json={"id": "r1"})
        finish(api)
    new = {"id": "r1", "process": {"instance": "p9", "attempt": 4}}
    for header in ({"id": "r1"}, new):
        error = refused(api.post(RUNS, json=header), 409, "too_many_attempts")
        assert "start another run" in error["message"]
    run = found(api)
    # The refused request has left nothing behind.
    assert (run["attempt"], run["state"], run["processes"]) == (3, "finished", [])
    # Other processes of the last attempt are accepted.
    patch("store.runs.run_registration.MAX_RUN_ATTEMPTS", 1)
    for rank in range(3):
        header = {"id": "r2", "process": {"instance": f"p{rank}", "rank": rank}}
        assert api.post(RUNS, json=header).json()["attempt"] == 1


LAST = 2**31 - 1


def a_process(instance: str, started_at: float, attempt: int = LAST) -> Any:
    """Return a header with a process that states its attempt."""
    process = {"instance": instance, "attempt": attempt}
    return {"id": "r1", "started_at": started_at, "process": process}


def test_no_attempt_follows_the_highest_possible_number(api: TestClient) -> None:
    assert api.post(RUNS, json=a_process("p1", 1e9)).json()["attempt"] == LAST
    finish(api)
    for header in ({"id": "r1"}, a_process("p2", 1.7e9)):
        refused(api.post(RUNS, json=header), 409, "too_many_attempts")
    run = found(api)
    assert (run["attempt"], run["state"], numbers(run)) == (LAST, "finished", {"p1": LAST})


def test_a_child_with_the_highest_number_does_not_block_inserted_attempts(
    api: TestClient, make_run: Any
) -> None:
    assert api.post(RUNS, json=a_process("p1", 1e9, attempt=1)).status_code == 201
    # It has never joined and only sends batches.
    wire = make_run(instance="child", attempt=LAST).wire(0, 1)
    wire["process"]["role"] = "child"
    assert api.post(f"{RUNS}/r1/batches", json=wire).status_code == 200
    earlier = api.post(RUNS, json=a_process("earlier", 1e8, attempt=1))
    assert earlier.json().get("attempt") == 1, earlier.text
    assert numbers(found(api)) == {"earlier": 1, "p1": 2, "child": LAST}


@pytest.mark.parametrize(
    ("field", "limit"),
    [("config", limits.MAX_CONFIG_BYTES), ("environment", limits.MAX_ENVIRONMENT_BYTES)],
)
def test_config_and_environment_of_a_run_are_bounded_as_json(
    shared_api: TestClient, field: str, limit: int
) -> None:
    # {"a":"..."}, where each of these takes two bytes
    fits = {"a": "é" * ((limit - 8) // 2)}
    assert shared_api.post(RUNS, json={field: fits}).status_code == 201
    error = refused(
        shared_api.post(RUNS, json={field: {"a": fits["a"] + "é"}}), 422, "invalid_field"
    )
    assert error["details"]["field"] == field
    assert f"has more than {limit} bytes" in error["message"]


@pytest.fixture
def bounded(database_url: str) -> Iterator[TestClient]:
    with serving(database_url, bytes_per_day=PerProject(300_000)) as client:
        yield client


def test_headers_count_as_stored_bytes_of_the_day(bounded: TestClient) -> None:
    header = {"id": "r1", "environment": {"a": LONG}}
    statuses = []
    for _ in range(9):
        answer = bounded.post(RUNS, json=header)
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            refused(answer, 429, "too_many_bytes")
            assert 1 <= int(answer.headers["retry-after"]) <= 3_600
        # A run may always report its end.
        finish(bounded)
    # The run keeps the newest header, and each attempt keeps its own.
    assert statuses == [201, 200, 200, *[429] * 6]
    assert 300_000 <= counted(bounded) < 302_000
    with bounded.app.state.services.engine.connect() as connection:  # type: ignore[attr-defined]
        stored = connection.scalars(select(attempts.c.environment)).all()
    assert [len(text) for text in stored] == [len(LONG) + len('{"a":""}')] * 3


def test_a_process_that_joins_again_counts_nothing(api: TestClient) -> None:
    header = {"id": "r1", "environment": {"a": LONG}, "process": {"instance": "p1"}}
    api.post(RUNS, json=header)
    before = counted(api)
    assert before > 2 * len(LONG)
    for _ in range(3):
        api.post(RUNS, json=header)
    # Another rank counts itself, but not the environment of its attempt again.
    api.post(RUNS, json=header | {"process": {"instance": "p2", "rank": 1}})
    assert 0 < counted(api) - before < 1_000


def test_notes_and_names_of_series_count_as_stored_bytes(
    bounded: TestClient, make_run: Any
) -> None:
    bounded.post(RUNS, json={"id": "r1"})
    before = counted(bounded)
    notes = [{"text": "n" * 4_000} for _ in range(30)]
    assert bounded.patch(f"{RUNS}/r1", json={"notes": notes}).status_code == 200
    assert 120_000 < counted(bounded) - before < 125_000
    run = make_run()
    wire = run.wire(0, 1)
    wire["columns"]["series"] = {f"gauge.{i:0>500}": [1] for i in range(600)}
    assert bounded.post(f"{RUNS}/r1/batches", json=wire).status_code == 200
    refused(bounded.post(f"{RUNS}/r1/batches", json=run.wire(1, 1)), 429, "too_many_bytes")
    answer = bounded.patch(f"{RUNS}/r1", json={"notes": notes})
    assert refused(answer, 429, "too_many_bytes")["details"]["project"] == "default"
    assert len(bounded.get(f"{RUNS}/r1").json()["notes"]) == 30


def test_a_response_of_three_fields_reads_no_more(
    sqlite_copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        sqlite_copies.new(tmp_path) as url,
        TestClient(create_app(asking(url)), base_url=ADDRESS) as client,
    ):
        who = bearer(token(engine_of(client), "ingest", "erl")[1])
        client.post(RUNS, json={"id": "r1"}, headers=who)
        read: list[str] = []
        monkeypatch.setattr(runs, "get_run", lambda _, run_id: read.append(run_id))
        answer = client.patch(f"{RUNS}/r1", json={"state": "finished"}, headers=who)
        assert answer.json() == {"id": "r1", "state": "finished", "url": "/runs/r1"}
        assert read == []


BATCHES = f"{RUNS}/r1/batches"
HOURS = 3 * 3_600.0
TRAININGS = """
import json, os, sys, time
real = time.time
time.time = lambda: real() - float(sys.argv[1])
import leakline
for settings in json.loads(sys.argv[2]):
    os.environ.update(settings)
    run = leakline.init(project="p", name="n")
    for generation in range(4):
        with run.generation(generation):
            pass
    run.finish()
"""


def rows_of(api: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"{RUNS}/r1/snapshots?limit=200").json()["items"]
    return sorted(found, key=lambda row: int(row["sequence"]))


def events_of(api: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"{RUNS}/r1/events").json()["items"]
    return found


def test_a_late_recording_is_not_a_wrong_clock(api: TestClient, make_run: Any) -> None:
    """Send a spool without clock data, and one of a process whose server was away for a day."""
    day = time.time() - 86_400
    synced, waited = make_run(started=day), make_run(instance="p2", rank=1, started=day)
    join(api, synced, behind=None)
    join(api, waited, behind=0)
    synced.send(api, 0, 6)
    waited.send(api, 0, 6)
    first, second = found(api)["processes"]
    assert first["clock_skew_seconds"] is None
    assert abs(second["clock_skew_seconds"]) < 30
    assert first["lost"] == second["lost"] == {}
    rows = rows_of(api)
    assert {row["time"] for row in rows} == {day + i / 2 for i in range(6)}
    assert "Clocks were wrong at first contact" not in api.get("/runs/r1?tab=all").text


@pytest.mark.parametrize("more", [-60, 60])
@pytest.mark.parametrize("way", [1, -1], ids=["behind", "ahead"])
def test_the_same_limit_applies_in_both_directions(
    shared_api: TestClient, make_run: Any, more: float, way: int
) -> None:
    behind = way * (limits.MAX_SKEW_SECONDS + more)
    run = make_run(id=f"by{more}at{way}", started=time.time() - behind)
    join(shared_api, run, behind=behind)
    run.send(shared_api, 0, 3)
    (process,) = found(shared_api, run.id)["processes"]
    assert process["clock_skew_seconds"] == pytest.approx(behind, abs=30)
    reason = "clock_behind" if way > 0 else "clock_ahead"
    assert process["lost"] == ({reason: 3} if more > 0 else {})
    page = shared_api.get(f"/runs/{run.id}?tab=all").text
    assert ("Clocks were wrong at first contact" in page) == (more > 0)


def test_a_clock_behind_is_corrected_reported_and_never_refused(
    api: TestClient, make_run: Any
) -> None:
    run = make_run(started=time.time() - HOURS - 20)
    join(api, run, behind=HOURS)
    for accepted in (33, 0):
        wire = run.wire(0, 33)
        assert api.post(BATCHES, json=wire).json()["accepted"] == accepted
    # Sent in parts, some of which are stored already: each event moves once.
    assert api.post(BATCHES, json=run.wire(30, 36)).json()["accepted"] == 33
    now = time.time()
    rows = rows_of(api)
    assert len(rows) == 66
    assert all(now - 60 <= row["time"] <= now + 60 for row in rows)
    steps = sorted(row["time"] for row in rows)
    assert steps[-1] - steps[0] == pytest.approx(65 / 2, abs=0.01)
    events = events_of(api)
    assert len(events) > 2
    assert all(now - 60 <= event["time"] <= now + 60 for event in events)
    end(api, "p1", ended_at=time.time() - HOURS)
    (process,) = found(api)["processes"]
    assert process["lost"] == {"clock_behind": 66}
    started, ended = process["started_at"], process["ended_at"]
    assert started < ended and started[:13] >= time.strftime("%Y-%m-%dT%H", time.gmtime(now - 120))
    page = api.get("/runs/r1?tab=all").text
    assert "node-0 was 3 h 0 min behind the server" in page.replace("\u00a0", " ")
    assert "clock was minutes behind" in page
    # The rest does not belong to another snapshot either.
    wire["columns"]["series"]["process.rss_bytes"][0] += 1
    assert api.post(BATCHES, json=wire).status_code == 409


def test_a_rank_whose_clock_is_behind_belongs_to_the_attempt_it_joins(
    api: TestClient, make_run: Any
) -> None:
    """By its own clock it began hours before the others, in a separate attempt."""
    first = make_run(started=time.time() - 5)
    join(api, first, behind=0)
    second = make_run(instance="p2", rank=1, started=time.time() - HOURS)
    assert join(api, second, behind=HOURS)["attempt"] == 1
    second.send(api, 0, 3)
    first.send(api, 0, 3)
    third = make_run(instance="p3", rank=0, attempt=2, started=time.time() + HOURS)
    join(api, third, behind=-HOURS, attempt=2)
    run = found(api)
    assert numbers(run) == {"p1": 1, "p2": 1, "p3": 2}
    skews = {p["instance"]: round(p["clock_skew_seconds"] / HOURS) for p in run["processes"]}
    assert skews == {"p1": 0, "p2": 1, "p3": -1}


def test_a_clock_set_right_within_a_batch_moves_only_earlier_times(
    api: TestClient, make_run: Any
) -> None:
    now = time.time()
    run = make_run(started=now - HOURS)
    join(api, run, behind=HOURS)
    wire = run.wire(0, 6)
    told = wire["columns"]["time"]
    wire["columns"]["time"] = [*told[:3], *(at + HOURS for at in told[3:])]
    wire["events"] = [
        {"sequence": n, "time": wire["columns"]["time"][n], "kind": "mark", "name": f"m{n}", "data": {}}
        for n in (0, 5)
    ]  # fmt: skip
    assert api.post(BATCHES, json=wire).json()["accepted"] == 6
    end(api, "p1", ended_at=now + 3)
    # The first measurement counts, because times were corrected by it.
    join(api, run, behind=0)
    (process,) = found(api)["processes"]
    assert process["lost"] == {"clock_behind": 3}
    assert process["clock_skew_seconds"] == pytest.approx(HOURS, abs=30)
    rows = rows_of(api)
    steps = [row["time"] - now for row in rows]
    assert steps == pytest.approx([n / 2 for n in range(6)], abs=5)
    assert steps[3:] == pytest.approx([1.5, 2, 2.5], abs=0.001)
    events = events_of(api)
    marks = {each["name"]: each["time"] - now for each in events if each["kind"] == "mark"}
    assert marks == pytest.approx({"m0": 0, "m5": 2.5}, abs=5)
    assert process["ended_at"] == iso(now + 3)
    # A repeat is not a contradiction.
    assert api.post(BATCHES, json=wire).json()["accepted"] == 0


@pytest.mark.long
def test_a_training_with_a_clock_behind_and_its_synced_spool_are_stored(
    serve: StartServer, tmp_path: Path
) -> None:
    server = serve()
    trainings = [
        {"LEAKLINE_RUN_ID": "live", "LEAKLINE_SERVER": server.url},
        {"LEAKLINE_RUN_ID": "late", "LEAKLINE_MODE": "offline"},
    ]
    done = subprocess.run(
        [sys.executable, "-c", TRAININGS, str(HOURS), json.dumps(trainings)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert main(["sync", str(tmp_path / ".leakline"), "--server", server.url]) == 0
    (live,) = server.request("GET", "/api/v1/runs/live")[1]["processes"]
    (late,) = server.request("GET", "/api/v1/runs/late")[1]["processes"]
    assert live["clock_skew_seconds"] == pytest.approx(HOURS, abs=30)
    assert live["lost"]["clock_behind"] == live["stored"] > 0
    assert late["clock_skew_seconds"] is None
    assert "clock_behind" not in late["lost"] and late["stored"] > 0


GIB = 2**30
LIMIT = {"cgroup.limit_bytes": lambda sequence: 10 * GIB}
FULL = {"cgroup.used_bytes": lambda sequence: 10 * GIB, **LIMIT}


def conclude(api: Any, before: float = 4e9, soon: float = 4e9) -> lifecycle.Concluded:
    engine = api.app.state.services.engine
    silent = lifecycle.suspects(engine, lifecycle.Silence(before, max(before, soon)))
    with writing(engine) as connection:
        return lifecycle.conclude(connection, silent, silent.runs)


def joined(api: Any, run: Any, role: str = "main") -> Any:
    join(api, run, role=role, host="host", pid=100)
    return run


def state_of(api: Any, run_id: str = "r1") -> tuple[str, str]:
    run = found(api, run_id)
    return run["state"], run["reason"]


AT_LIMIT = {"cgroup.used_bytes": lambda sequence: int((9 + sequence / 10) * GIB), **LIMIT}
WITHOUT_MEMORY = {
    "system.available_bytes": lambda sequence: GIB // 4,
    "system.total_bytes": lambda sequence: 16 * GIB,
}


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (AT_LIMIT, "9.80 GiB of the 10.00 GiB limit was in use at the last reading"),
        (WITHOUT_MEMORY, "256.00 MiB of 16.00 GiB was left on the machine at the last reading"),
    ],
)
def test_a_run_silent_after_exhausting_memory_was_killed_for_it(
    api: Any, make_run: Any, extra: Any, why: str
) -> None:
    joined(api, make_run(extra=extra)).send(api, 0, 9)
    assert conclude(api).runs == ("r1",)
    assert state_of(api) == ("killed", f"memory: {why}")
    run = found(api)
    assert run["end_inferred"]
    assert run["processes"][0]["end_state"] == "killed"
    assert conclude(api) == lifecycle.Concluded()


def test_evidence_of_a_kill_is_conclusive_sooner_than_silence_alone(
    api: Any, make_run: Any
) -> None:
    joined(api, make_run(extra=FULL)).send(api, 0, 3)
    heard_at(api, "p1", 1500.0, run="r1")
    # While no process is seen at all, the server may be unreachable.
    assert conclude(api, before=1000.0, soon=2000.0) == lifecycle.Concluded()
    make_run(id="r2", instance="p2").begin(api, 3)
    assert conclude(api, before=1000.0, soon=2000.0).runs == ("r1",)
    assert found(api, "r2")["state"] == "running"


@pytest.mark.parametrize("state", ["killed", "silent"])
def test_a_process_that_was_inferred_dead_and_reports_is_alive(
    api: Any, make_run: Any, state: str
) -> None:
    run = joined(api, make_run())
    run.send(api, 0, 3)
    end(api, "p1", state, reason="memory: found")
    then = found(api)
    assert then["end_inferred"] and then["ended_at"] == "2025-10-09T08:58:20.000Z"
    run.send(api, 0, 3)
    assert state_of(api) == (state, "memory: found")
    run.send(api, 3, 3)
    assert state_of(api) == ("running", "")
    assert found(api)["processes"][0]["end_state"] is None


def test_an_empty_batch_is_no_sign_of_life_unless_more_was_lost(api: Any, make_run: Any) -> None:
    run = joined(api, make_run())
    run.send(api, 0, 3)
    conclude(api)
    body = run.wire(3, 0)
    for lost, state in (({}, "silent"), ({"queue_full": 2}, "running")):
        assert api.post("/api/v1/runs/r1/batches", json={**body, "lost": lost}).status_code == 200
        assert state_of(api)[0] == state


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"cgroup.used_bytes": lambda sequence: int(8.9 * GIB), **LIMIT},
        # It used all of its limit for a while, long before it fell silent.
        dict.fromkeys(FULL, lambda sequence: 10 * GIB if sequence < 3 else None),
    ],
)
def test_silence_without_evidence_is_not_a_kill(api: Any, make_run: Any, extra: Any) -> None:
    run = joined(api, make_run(extra=extra))
    run.send(api, 0, 180)
    conclude(api)
    assert state_of(api) == ("silent", "")


def heard_at(api: Any, instance: str, at: float, run: str | None = None) -> None:
    """Set when the server last saw this process, and when it last saw the ``run``."""
    of_process = update(schema.processes).where(schema.processes.c.instance == instance)
    of_run = update(schema.runs).where(schema.runs.c.id == run)
    with writing(api.app.state.services.engine) as connection:
        for changed in (of_process, of_run):
            connection.execute(changed.values(last_seen_at=at))


def one_vanished(api: Any, make_run: Any, counted: Any, of_other: Any, count: int = 12) -> Any:
    """Create a rank that fell silent next to another, and the kills that each counted in its memory group."""
    dead = joined(api, make_run(extra={"cgroup.kills": lambda sequence: counted}))
    alive = joined(api, make_run(instance="p2", rank=1, extra={"cgroup.kills": of_other}))
    dead.send(api, 0, 6)
    alive.send(api, 0, count)
    heard_at(api, "p1", 1000.0)
    return dead


def test_a_rank_killed_among_others_is_reported_and_the_run_goes_on(
    api: Any, make_run: Any
) -> None:
    """The group of the surviving rank counts a kill after the last reading of the other."""
    dead = one_vanished(api, make_run, 0, lambda sequence: int(sequence > 9))
    concluded = conclude(api, before=2000.0, soon=2000.0)
    assert concluded.runs == ()
    (vanished,) = concluded.processes
    assert (vanished.rank, vanished.reason) == (
        0,
        "memory: the kernel killed a process in the run's memory group",
    )
    assert state_of(api)[0] == "running"
    assert conclude(api, before=2000.0, soon=2000.0) == lifecycle.Concluded()
    # The launcher ends the others, which report it; people must still learn what happened to the first.
    end(api, "p2", "terminated", reason="SIGTERM")
    killed = "memory: the kernel killed a process in the run's memory group (rank 0)"
    assert state_of(api) == ("killed", killed)
    # The end was only inferred.
    assert found(api)["end_inferred"]
    dead.send(api, 6, 3)
    assert state_of(api)[0] == "running"


@pytest.mark.parametrize(
    ("counted", "of_other", "count", "vanished"),
    [(0, lambda sequence: int(sequence > 9), 1_000, 1), (2, lambda sequence: 2, 12, 0)],
    ids=["however many snapshots it has sent since", "but not one of before"],
)
def test_a_kill_that_another_rank_counted_is_evidence(
    api: Any, make_run: Any, counted: int, of_other: Any, count: int, vanished: int
) -> None:
    one_vanished(api, make_run, counted, of_other, count)
    assert len(conclude(api, before=2000.0, soon=2000.0).processes) == vanished


def test_a_child_that_vanishes_is_ended_and_not_reported(api: Any, make_run: Any) -> None:
    joined(api, make_run()).send(api, 0, 3)
    joined(api, make_run(instance="p2", extra=FULL), role="child").send(api, 0, 3)
    heard_at(api, "p2", 1000.0)
    assert conclude(api, before=2000.0, soon=2000.0) == lifecycle.Concluded()
    run = found(api)
    assert (run["state"], [p["end_state"] for p in run["processes"]]) == (
        "running", [None, "killed"]
    )  # fmt: skip


@pytest.mark.parametrize("evidence", [False, True])
def test_a_failed_rank_explains_why_another_was_killed_by_a_signal(
    api: Any, make_run: Any, evidence: bool
) -> None:
    joined(api, make_run(extra=FULL if evidence else {})).send(api, 0, 3)
    joined(api, make_run(instance="p2", rank=1)).send(api, 0, 3)
    end(api, "p2", "failed", reason="ValueError")
    assert conclude(api).runs == ("r1",)
    reason = "memory: 10.00 GiB of the 10.00 GiB limit was in use at the last reading (rank 0)"
    assert state_of(api) == (("killed", reason) if evidence else ("failed", "ValueError"))


def test_a_run_whose_processes_have_all_ended_is_not_silent(api: Any, make_run: Any) -> None:
    joined(api, make_run()).send(api, 0, 3)
    end(api, "p1", "failed", reason="ValueError")
    api.patch("/api/v1/runs/r1", json={"state": "running"})
    assert conclude(api).runs == ("r1",)
    assert state_of(api) == ("failed", "ValueError")


def test_a_reported_end_is_not_overruled_by_inference_or_late_data(api: Any, make_run: Any) -> None:
    run = joined(api, make_run())
    run.send(api, 0, 3)
    end(api, "p1", "failed", reason="ValueError")
    end(api, "p1", "silent")
    end(api, "p1", "killed", reason="memory: found")
    run.send(api, 3, 3)
    assert state_of(api) == ("failed", "ValueError")
    assert not found(api)["end_inferred"]


@pytest.mark.parametrize(
    ("states", "ends_as"),
    [
        (["finished", "failed"], "failed"), (["failed", "finished"], "failed"),
        (["terminated", "finished"], "killed"), (["silent", "finished"], "silent"), (["silent", "failed"], "failed"),
        (["failed", "terminated"], "failed"), (["terminated", "silent"], "silent")],
)  # fmt: skip
def test_a_run_of_several_processes_ends_with_the_last_as_the_worst(
    shared_api: TestClient, make_run: Any, states: list[str], ends_as: str
) -> None:
    run = "-".join(states)
    for rank in range(2):
        joined(shared_api, make_run(id=run, instance=f"p{rank}", rank=rank))
    end(shared_api, "p0", states[0], run, reason="first")
    assert state_of(shared_api, run)[0] == "running"
    end(shared_api, "p1", states[1], run, reason="second")
    assert state_of(shared_api, run)[0] == ends_as
    told = [process["end_reason"] for process in found(shared_api, run)["processes"]]
    assert sorted(told) == ["first", "second"]


# How long a thread continues that should wait for the other one.
MEANWHILE_SECONDS = 0.5


def report_finished(api: Any, instance: str) -> threading.Thread:
    """Report the end in a separate thread, which may have to wait."""
    engine = api.app.state.services.engine
    changes = runs.Changes(state="finished", instance=instance, ended_at=1_760_000_300.0)
    thread = threading.Thread(target=runs.change_run, args=(engine, "r1", changes, 1_760_000_300.0))
    thread.start()
    thread.join(MEANWHILE_SECONDS)
    return thread


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, do: Callable[[], threading.Thread]
) -> list[threading.Thread]:
    """Run ``do`` once, just after the first call of a function; return the thread that runs it."""
    begun: list[threading.Thread] = []
    real = getattr(room, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        if not begun:
            begun.append(threading.current_thread())
            begun[0] = do()
        return result

    monkeypatch.setattr(room, name, call)
    return begun


def test_two_ranks_that_finish_at_the_same_moment_finish_the_run(
    api: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        joined(api, make_run(instance=f"p{rank}", rank=rank))
    begun = meanwhile(
        monkeypatch, lifecycle, "_of_newest_attempt", lambda: report_finished(api, "p1")
    )
    end(api, "p0", "finished")
    begun[0].join(30)
    assert state_of(api)[0] == "finished"


def test_a_run_that_finishes_while_silence_is_concluded_has_finished(
    api: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(api, make_run()).send(api, 0, 3)
    begun = meanwhile(monkeypatch, lifecycle, "why_killed", lambda: report_finished(api, "p1"))
    conclude(api)
    begun[0].join(30)
    run = found(api)
    assert (run["state"], run["processes"][0]["end_state"]) == ("finished", "finished")


def test_a_process_may_end_while_its_first_batch_is_written(
    api: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits for the other."""
    joined(api, make_run()).send(api, 0, 3)
    # The writer knows the run already, but not this process.
    run = joined(api, make_run(instance="p2", rank=1))
    begun = meanwhile(monkeypatch, inbox, "new_process", lambda: report_finished(api, "p2"))
    assert run.send(api, 0, 3) == 3
    begun[0].join(30)
    run = found(api)["processes"]
    assert [p["end_state"] for p in run] == [None, "finished"]


def test_runs_are_locked_in_the_order_of_the_database(api: Any, make_run: Any) -> None:
    """A group of batches locks them in the same order: otherwise each could hold what the other waits for."""
    for name in ("B", "a", "C", "b"):
        joined(api, make_run(id=name))

    @event.listens_for(api.app.state.services.engine, "before_cursor_execute", retval=True)
    def _ordered(_c: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> tuple[str, Any]:
        """Sort like a language that ignores case, which is not the order of Python."""
        return statement.replace("ORDER BY runs.id", "ORDER BY lower(runs.id), runs.id DESC"), given

    assert conclude(api).runs == ("a", "b", "B", "C")
