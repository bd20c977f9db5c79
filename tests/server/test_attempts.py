"""Attempts are numbered by when their processes began, whatever a process knows of those before it; and have bounds."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, token
from tests.server.databases import Copies
from tests.server.stored import engine_of, serving

from leakline.snapshot import ProcessIdentity
from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.store.maintenance.retention_policy import PerProject
from leakline_server.store.runs import runs
from leakline_server.store.runs.run_registration import Placed, place
from leakline_server.store.schema import attempts, intake

T = 1_760_000_000.0


@dataclass(frozen=True)
class Known:
    rank: int
    attempt: int
    started_at: float


def placed(
    started: float,
    *known: Known,
    rank: int = 0,
    told: int = 1,
    role: str = "main",
    live: bool = False,
) -> Placed:
    begun: dict[int, float] = {}
    for one in known:
        begun[one.attempt] = min(begun.get(one.attempt, one.started_at), one.started_at)
    process = ProcessIdentity("new", rank, role=role, attempt=told)
    return place(process, started, known, begun, live=live)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (placed(100), Placed(1)),
        # Its folder knows of two before it, the server of none.
        (placed(100, told=3), Placed(3)),
        # It knows of none before it: another machine.
        (placed(900, Known(0, 1, 100)), Placed(2)),
        (placed(900, Known(0, 1, 100), told=2), Placed(2)),
        # Another rank of the same launch, and one that comes late while the run goes on.
        (placed(103, Known(0, 1, 100), rank=1), Placed(1)),
        (placed(2_000, Known(0, 1, 100), rank=1, live=True), Placed(1)),
        # The same, where that rank was there in an earlier launch as well.
        (placed(905, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 900), rank=1), Placed(2)),
        # ... and where it missed one.
        (placed(1_905, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 900), Known(0, 3, 1_900), rank=1), Placed(3)),
        # A rank that no launch had before, first of its launch to be heard of, long after the silence of the others.
        (placed(9_000, Known(0, 1, 100), rank=5), Placed(2)),
        # Heard of late: before the only one there is, and between two.
        (placed(50, Known(0, 1, 100)), Placed(1, moves=True)),
        (placed(500, Known(0, 1, 100), Known(0, 2, 900), told=7), Placed(2, moves=True)),
        (placed(500, Known(0, 1, 100), Known(0, 3, 900)), Placed(2)),
        # Another rank of that earlier launch finds its attempt.
        (placed(51, Known(0, 1, 50), Known(0, 2, 100), Known(1, 2, 101), rank=1), Placed(1)),
        # A launcher that restarts says so itself.
        (placed(130, Known(0, 1, 100), told=2, rank=1), Placed(2)),
        # A launch that begins soon after another, another rank of it, and a spool of the first that comes late.
        (placed(130, Known(0, 1, 100), Known(1, 1, 101)), Placed(2)),
        (placed(131, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 130), rank=1), Placed(2)),
        (placed(102, Known(0, 1, 100), Known(1, 1, 101), Known(0, 2, 130), rank=2), Placed(1)),
        # What a process of the run has started belongs to the attempt of that process.
        (placed(950, Known(0, 1, 100), Known(0, 2, 900), role="child"), Placed(2)),
        (placed(950, Known(1, 1, 100), role="child", told=4), Placed(4)),
    ],
)  # fmt: skip
def test_a_process_finds_its_attempt(found: Placed, expected: Placed) -> None:
    assert found == expected


def test_whatever_the_order_in_which_they_are_heard_of_later_began_is_the_later_attempt() -> None:
    """Three launches of three ranks, the processes synced in any order: those of a launch together, in its order."""
    generator = random.Random(7)
    launches = [
        [Known(rank, 0, T + 1_000 * launch + generator.uniform(0, 20)) for rank in range(3)]
        for launch in range(3)
    ]
    everyone = [(launch, one) for launch, ranks in enumerate(launches) for one in ranks]
    for _ in range(300):
        generator.shuffle(everyone)
        known: list[tuple[int, Known]] = []
        # What a launch knows of those before it: from nothing to all.
        says = [generator.randint(1, launch + 1) for launch in range(3)]
        for launch, one in everyone:
            told = says[launch]
            where = placed(one.started_at, *(k for _, k in known), rank=one.rank, told=told)
            if where.moves:
                known = [
                    (n, Known(k.rank, k.attempt + (k.attempt >= where.number), k.started_at))
                    for n, k in known
                ]
            known.append((launch, Known(one.rank, where.number, one.started_at)))
        numbers = [sorted({k.attempt for n, k in known if n == launch}) for launch in range(3)]
        assert all(len(of_launch) == 1 for of_launch in numbers), numbers
        assert numbers == sorted(numbers), numbers


# -- through the API, on both databases ---------------------------------------------------------------
def hello(
    api: TestClient,
    run: Any,
    told: int = 1,
    role: str = "main",
    **environment: Any,
) -> int:
    who = {"instance": run.instance, "rank": run.rank, "attempt": told, "role": role}
    body = run.header | {"process": who, "environment": environment}
    answer = api.post("/api/v1/runs", json=body)
    assert answer.status_code in (200, 201), answer.text
    return int(answer.json()["attempt"])


def found(api: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = api.get("/api/v1/runs/r1").json()
    return answer


def end(api: TestClient, instance: str, state: str = "finished", **more: Any) -> dict[str, Any]:
    answer = api.patch("/api/v1/runs/r1", json={"state": state, "instance": instance, **more})
    assert answer.status_code == 200, answer.text
    ended: dict[str, Any] = answer.json()
    return ended


def numbers(api: TestClient) -> dict[str, int]:
    return {each["instance"]: each["attempt"] for each in found(api)["processes"]}


def test_a_run_resumed_on_another_machine_begins_its_next_attempt_and_ends_with_it(
    api: TestClient, make_run: Any
) -> None:
    first, second = make_run(), make_run(instance="p2", started=T + 900)
    assert hello(api, first, commit="aaa", dirty=True) == 1
    first.send(api, 0, 6)
    # It was killed and could not say so. The next one says attempt 1 as well, and so do its batches.
    started = {"commit": "bbb", "dirty": False}
    assert hello(api, second, **started) == 2
    assert second.send(api, 0, 3) == 3
    assert hello(api, second, **started) == 2
    assert numbers(api) == {"p1": 1, "p2": 2}
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
    # Rank 1 comes first this time, and rank 2 is new.
    for at, rank in enumerate((1, 0, 2)):
        one = make_run(instance=f"b{rank}", rank=rank, started=T + 900 + at)
        assert hello(api, one) == 2
    assert [a["number"] for a in found(api)["attempts"]] == [1, 2]
    for rank in range(2):
        assert end(api, f"b{rank}")["state"] == "running"
    # Those of the first attempt have no end, and hold nothing open.
    assert end(api, "b2")["state"] == "finished"


def test_an_attempt_that_is_heard_of_late_takes_its_place(api: TestClient, make_run: Any) -> None:
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
    assert numbers(api) == {"late": 1, "new": 2}
    # In this order their lines are joined.
    assert [each["instance"] for each in run["processes"]] == ["late", "new"]
    series = api.get("/api/v1/runs/r1/series?name=process.rss_bytes").json()["items"]
    assert [line["process"] for line in series] == ["late", "new"]
    described = [(a["number"], a["environment"]) for a in run["attempts"]]
    assert described == [(1, {"commit": "late"}), (2, {"commit": "new"})]
    # How the run ended, and what it used in the end, is what its newest attempt says.
    for name in ("state", "reason", "ended_at", "environment", "rss_bytes", "peak_bytes"):
        assert run[name] == before[name], name
    assert run["started_at"] < before["started_at"]
    # A batch of the newest attempt goes on counting as that.
    assert newest.send(api, 6, 3) == 3
    assert found(api)["rss_bytes"] == newest.snapshot(8).samples["process.rss_bytes"]


def test_three_machines_synced_in_any_order_are_the_same_three_attempts(
    api: TestClient, make_run: Any
) -> None:
    for n, order in enumerate(itertools.permutations(range(3))):
        for machine in order:
            one = make_run(id=f"run{n}", instance=f"m{machine}", started=T + 900 * machine)
            hello(api, one, commit=str(machine))
            one.send(api, 0, 3)
        run = api.get(f"/api/v1/runs/run{n}").json()
        told = {each["instance"]: each["attempt"] for each in run["processes"]}
        assert told == {"m0": 1, "m1": 2, "m2": 3}, order
        assert [a["environment"]["commit"] for a in run["attempts"]] == ["0", "1", "2"]
        assert run["environment"] == {"commit": "2"}
        assert run["attempt"] == 3


def test_two_ranks_that_join_in_the_same_moment_are_one_attempt(
    api: TestClient, make_run: Any
) -> None:
    for n in range(5):
        ranks = [
            make_run(id=f"run{n}", instance=f"p{rank}", rank=rank, started=T + rank)
            for rank in range(4)
        ]
        said = _all_at_once(api, ranks)
        assert said == [1] * 4
        run = api.get(f"/api/v1/runs/run{n}").json()
        assert len(run["processes"]) == 4
        assert [a["number"] for a in run["attempts"]] == [1]


def _all_at_once(api: TestClient, runs: Sequence[Any]) -> list[int]:
    ready = threading.Barrier(len(runs))

    def join(run: Any) -> int:
        ready.wait(20)
        return hello(api, run)

    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(join, runs))


def test_what_a_process_of_the_run_has_started_neither_ends_it_nor_describes_it(
    api: TestClient, make_run: Any
) -> None:
    main, child = make_run(), make_run(instance="c1", started=T + 60)
    # Its spool is heard of first.
    assert hello(api, child, role="child", command_line="eval.py") == 1
    assert hello(api, main, command_line="train.py") == 1
    run = found(api)
    assert run["environment"] == {"command_line": "train.py"}
    assert [a["environment"] for a in run["attempts"]] == [{"command_line": "train.py"}]
    assert end(api, "c1", "failed")["state"] == "running"
    assert end(api, "p1")["state"] == "finished"
    # One that comes after the end makes nothing run again.
    other = make_run(instance="c2", started=T + 70)
    assert hello(api, other, role="child", command_line="eval.py") == 1
    assert found(api)["state"] == "finished"
    assert {each["role"] for each in found(api)["processes"]} == {"main", "child"}


RUNS = "/api/v1/runs"
LONG = "x" * 50_000


def finish(api: TestClient, **more: Any) -> Any:
    return api.patch(f"{RUNS}/r1", json={"state": "finished", **more})


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    return error


def counted(api: TestClient, project: str = "default") -> int:
    """Bytes of today."""
    with engine_of(api).connect() as connection:
        query = select(intake.c.bytes).where(intake.c.project == project)
        return int(connection.execute(query).scalar_one())


def test_a_run_has_so_many_attempts_and_goes_on_with_the_last(api: TestClient, patch: Any) -> None:
    patch("store.runs.run_registration.MAX_RUN_ATTEMPTS", 3)
    for _ in range(3):
        api.post(RUNS, json={"id": "r1"})
        assert finish(api).status_code == 200
    new = {"id": "r1", "process": {"instance": "p9", "attempt": 4}}
    for header in ({"id": "r1"}, new):
        error = refused(api.post(RUNS, json=header), 409, "too_many_attempts")
        assert "begin another run" in error["message"]
    found = api.get(f"{RUNS}/r1").json()
    # What was refused has left nothing behind.
    assert (found["attempt"], found["state"], found["processes"]) == (3, "finished", [])


LAST = 2**31 - 1


def a_process(instance: str, started_at: float, role: str = "main", attempt: int = LAST) -> Any:
    """A header with a process that says which attempt it is."""
    process = {"instance": instance, "attempt": attempt, "role": role}
    return {"id": "r1", "started_at": started_at, "process": process}


def test_no_attempt_follows_the_last_number_that_one_may_have(api: TestClient) -> None:
    assert api.post(RUNS, json=a_process("p1", 1e9)).json()["attempt"] == LAST
    assert finish(api).status_code == 200
    for header in ({"id": "r1"}, a_process("p2", 1.7e9)):
        refused(api.post(RUNS, json=header), 409, "too_many_attempts")
    found = api.get(f"{RUNS}/r1").json()
    assert (found["attempt"], found["state"]) == (LAST, "finished")
    assert [process["instance"] for process in found["processes"]] == ["p1"]


def test_a_child_that_says_the_last_number_holds_up_no_attempt_that_is_put_in_before_others(
    api: TestClient, make_run: Any
) -> None:
    assert api.post(RUNS, json=a_process("p1", 1e9, attempt=1)).status_code == 201
    # It has never joined, and sends batches alone.
    wire = make_run(instance="child", attempt=LAST).wire(0, 1)
    wire["process"]["role"] = "child"
    assert api.post(f"{RUNS}/r1/batches", json=wire).status_code == 200
    earlier = api.post(RUNS, json=a_process("earlier", 1e8, attempt=1))
    assert earlier.json().get("attempt") == 1, earlier.text
    found = {p["instance"]: p["attempt"] for p in api.get(f"{RUNS}/r1").json()["processes"]}
    assert found == {"earlier": 1, "p1": 2, "child": LAST}


def test_another_process_of_the_last_attempt_is_welcome(api: TestClient, patch: Any) -> None:
    patch("store.runs.run_registration.MAX_RUN_ATTEMPTS", 1)
    for rank in range(3):
        header = {"id": "r1", "process": {"instance": f"p{rank}", "rank": rank}}
        assert api.post(RUNS, json=header).json()["attempt"] == 1


@pytest.mark.parametrize(
    ("field", "limit"),
    [("config", limits.MAX_CONFIG_BYTES), ("environment", limits.MAX_ENVIRONMENT_BYTES)],
)
def test_what_a_run_tells_of_itself_is_bounded_as_json(
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


def test_headers_count_as_what_is_stored_and_fill_a_day(bounded: TestClient) -> None:
    header = {"id": "r1", "environment": {"a": LONG}}
    statuses = []
    for _ in range(9):
        answer = bounded.post(RUNS, json=header)
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            refused(answer, 429, "too_many_bytes")
            assert 1 <= int(answer.headers["retry-after"]) <= 3_600
        # A run may always tell its end.
        assert finish(bounded).status_code == 200
    # The run keeps the newest, and each attempt its own.
    assert statuses == [201, 200, 200, *[429] * 6]
    assert 300_000 <= counted(bounded) < 302_000
    with bounded.app.state.services.engine.connect() as connection:  # type: ignore[attr-defined]
        stored = connection.scalars(select(attempts.c.environment)).all()
    assert [len(text) for text in stored] == [len(LONG) + len('{"a":""}')] * 3


def test_a_process_that_says_hello_again_counts_nothing(api: TestClient) -> None:
    header = {"id": "r1", "environment": {"a": LONG}, "process": {"instance": "p1"}}
    api.post(RUNS, json=header)
    before = counted(api)
    assert before > 2 * len(LONG)
    for _ in range(3):
        api.post(RUNS, json=header)
    # Another rank: itself, and not again what its attempt was started from.
    api.post(RUNS, json=header | {"process": {"instance": "p2", "rank": 1}})
    assert 0 < counted(api) - before < 1_000


def test_notes_and_names_of_series_count(bounded: TestClient, make_run: Any) -> None:
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


def test_whoever_is_told_three_fields_has_no_more_read_for_them(
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
