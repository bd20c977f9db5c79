"""Clocks that are ahead or behind are corrected and reported; a late recording is not a wrong clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.conftest import StartServer

from leakline_server import limits
from leakline_server.store.runs.process_list import iso

BATCHES = "/api/v1/runs/r1/batches"
HOURS = 3 * 3_600.0
TRAINING = """
import sys, time
real = time.time
time.time = lambda: real() - float(sys.argv[1])
import leakline
run = leakline.init(project="p", name="n")
for generation in range(4):
    with run.generation(generation):
        pass
run.finish()
"""


def join(api: TestClient, run: Any, *, behind: float | None, **more: Any) -> dict[str, Any]:
    """As the process itself does, by a clock that is so far behind; None: as somebody else who brings its spool."""
    told = {"instance": run.instance, "rank": run.rank, "host": f"node-{run.rank}", **more}
    said = {} if behind is None else {"sent_at": time.time() - behind}
    answer = api.post("/api/v1/runs", json={**run.header, "process": told, **said})
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def processes(api: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/api/v1/runs/r1").json()["processes"]
    return found


def test_a_recording_that_comes_late_is_no_clock_that_lies(api: TestClient, make_run: Any) -> None:
    """The spool of a process that has told nothing of its clock, and that of one whose server was away for a day."""
    day = time.time() - 86_400
    synced, waited = make_run(started=day), make_run(instance="p2", rank=1, started=day)
    join(api, synced, behind=None)
    join(api, waited, behind=0)
    synced.send(api, 0, 6)
    waited.send(api, 0, 6)
    first, second = processes(api)
    assert first["clock_skew_seconds"] is None
    assert abs(second["clock_skew_seconds"]) < 30
    assert first["lost"] == second["lost"] == {}
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert {row["time"] for row in rows} == {day + i / 2 for i in range(6)}
    assert "Clocks that lied at first" not in api.get("/runs/r1").text


@pytest.mark.parametrize("seconds", [limits.MAX_SKEW_SECONDS - 60, limits.MAX_SKEW_SECONDS + 60])
@pytest.mark.parametrize("way", [1, -1], ids=["behind", "ahead"])
def test_the_same_bound_holds_either_way(
    api: TestClient, make_run: Any, seconds: float, way: int
) -> None:
    run = make_run(started=time.time() - way * seconds)
    join(api, run, behind=way * seconds)
    run.send(api, 0, 3)
    (process,) = processes(api)
    assert process["clock_skew_seconds"] == pytest.approx(way * seconds, abs=30)
    lies = seconds > limits.MAX_SKEW_SECONDS
    reason = "clock_behind" if way > 0 else "clock_ahead"
    assert process["lost"] == ({reason: 3} if lies else {})
    assert ("Clocks that lied at first" in api.get("/runs/r1").text) == lies


def test_a_clock_behind_is_put_right_and_told_and_never_refused(
    api: TestClient, make_run: Any
) -> None:
    run = make_run(started=time.time() - HOURS - 20)
    join(api, run, behind=HOURS)
    for accepted in (33, 0):
        wire = run.wire(0, 33)
        assert api.post(BATCHES, json=wire).json()["accepted"] == accepted
    # In parts, some of which is there: each event moves once.
    assert api.post(BATCHES, json=run.wire(30, 36)).json()["accepted"] == 33
    now = time.time()
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert len(rows) == 66
    assert all(now - 60 <= row["time"] <= now + 60 for row in rows)
    steps = sorted(row["time"] for row in rows)
    assert steps[-1] - steps[0] == pytest.approx(65 / 2, abs=0.01)
    events = api.get("/api/v1/runs/r1/events").json()["items"]
    assert len(events) > 2
    assert all(now - 60 <= event["time"] <= now + 60 for event in events)
    end = {"state": "finished", "instance": "p1", "ended_at": time.time() - HOURS}
    assert api.patch("/api/v1/runs/r1", json=end).status_code == 200
    (process,) = processes(api)
    assert process["lost"] == {"clock_behind": 66}
    started, ended = process["started_at"], process["ended_at"]
    assert started < ended and started[:13] >= time.strftime("%Y-%m-%dT%H", time.gmtime(now - 120))
    page = api.get("/runs/r1").text
    assert "that of node-0 was 3 h 0 min behind the server" in page.replace("\u00a0", " ")
    assert "clock of the process was minutes behind" in page
    # Nor is the rest of it another's.
    wire["columns"]["series"]["process.rss_bytes"][0] += 1
    assert api.post(BATCHES, json=wire).status_code == 409


def test_a_rank_whose_clock_is_behind_is_of_the_attempt_that_it_joins(
    api: TestClient, make_run: Any
) -> None:
    """By its word it began hours before the others, in an attempt of its own."""
    first = make_run(started=time.time() - 5)
    join(api, first, behind=0)
    second = make_run(instance="p2", rank=1, started=time.time() - HOURS)
    assert join(api, second, behind=HOURS)["attempt"] == 1
    second.send(api, 0, 3)
    first.send(api, 0, 3)
    third = make_run(instance="p3", rank=0, attempt=2, started=time.time() + HOURS)
    join(api, third, behind=-HOURS, attempt=2)
    found = {p["instance"]: p for p in processes(api)}
    assert {name: p["attempt"] for name, p in found.items()} == {"p1": 1, "p2": 1, "p3": 2}
    skews = [round(found[name]["clock_skew_seconds"] / HOURS) for name in ("p1", "p2", "p3")]
    assert skews == [0, 1, -1]


def test_what_was_measured_first_stands(api: TestClient, make_run: Any) -> None:
    """Times were put right by it: a clock that is set meanwhile does not put the old ones elsewhere. And from then on
    it is right: what it tells stays, and is neither moved nor of the future.
    """
    now = time.time()
    run = make_run(started=now - HOURS)
    join(api, run, behind=HOURS)
    run.send(api, 0, 3)
    join(api, run, behind=0)
    run.started = now
    run.send(api, 3, 3)
    (process,) = processes(api)
    assert process["clock_skew_seconds"] == pytest.approx(HOURS, abs=30)
    assert process["lost"] == {"clock_behind": 3}
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    times = {row["sequence"]: row["time"] - now for row in rows}
    assert times == pytest.approx({n: n / 2 for n in range(6)}, abs=5)
    assert [times[n] for n in (3, 4, 5)] == pytest.approx([1.5, 2, 2.5], abs=0.001)


def test_a_clock_that_is_set_right_within_a_batch_moves_only_what_it_told_before(
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
    end = {"state": "finished", "instance": "p1", "ended_at": now + 3}
    assert api.patch("/api/v1/runs/r1", json=end).status_code == 200
    (process,) = processes(api)
    assert process["lost"] == {"clock_behind": 3}
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    steps = [row["time"] - now for row in sorted(rows, key=lambda row: row["sequence"])]
    assert steps == pytest.approx([n / 2 for n in range(6)], abs=5)
    assert steps[3:] == pytest.approx([1.5, 2, 2.5], abs=0.001)
    events = api.get("/api/v1/runs/r1/events").json()["items"]
    marks = {each["name"]: each["time"] - now for each in events if each["kind"] == "mark"}
    assert marks == pytest.approx({"m0": 0, "m5": 2.5}, abs=5)
    assert process["ended_at"] == iso(now + 3)
    # The same once more is no contradiction.
    assert api.post(BATCHES, json=wire).json()["accepted"] == 0


def train(folder: Path, behind: float, run_id: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(behind)],
        cwd=folder, env={**os.environ, "LEAKLINE_RUN_ID": run_id, **environment},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_real_training_by_a_clock_that_is_behind_and_a_spool_that_is_synced(
    serve: StartServer, tmp_path: Path
) -> None:
    server = serve()
    train(tmp_path, HOURS, "live", LEAKLINE_SERVER=server.url)
    train(tmp_path, HOURS, "late", LEAKLINE_MODE="offline")
    sync = [sys.executable, "-m", "leakline", "sync", ".leakline", "--server", server.url]
    done = subprocess.run(sync, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    (live,) = server.request("GET", "/api/v1/runs/live")[1]["processes"]
    (late,) = server.request("GET", "/api/v1/runs/late")[1]["processes"]
    assert live["clock_skew_seconds"] == pytest.approx(HOURS, abs=30)
    assert live["lost"]["clock_behind"] == live["stored"] > 0
    assert late["clock_skew_seconds"] is None
    assert "clock_behind" not in late["lost"] and late["stored"] > 0
