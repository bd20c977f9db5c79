"""Requests on the server to a training in another process: a scan or a cleanup, and the answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leakline.transport.http_delivery import request_json

pytestmark = [pytest.mark.flow, pytest.mark.timeout(180)]

# Trains until its input is closed. Its class does not grow, so nothing searches its holders unasked.
TRAINING = """
import os, threading, leakline

class Agent:
    pass

class Trainer:
    def __init__(self):
        self.population = [Agent() for _ in range(40)]

trainer = Trainer()
run = leakline.init(project="asked", watch=[Agent])
if "REGISTERED" in os.environ:
    run.register_cleanup("population", trainer.population.clear)
done, generation = threading.Event(), 0
threading.Thread(target=lambda: (os.read(0, 1), done.set()), daemon=True).start()
while not done.wait(0.02):
    with run.generation(generation), run.phase("train"):
        generation += 1
run.finish()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(server: Any, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def train(run: str, **environment: str) -> subprocess.Popen[str]:
        script = tmp_path / "train.py"
        script.write_text(TRAINING)
        outside = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
        ours = {"LEAKLINE_SERVER": server.address, "LEAKLINE_RUN_ID": run}
        started.append(
            subprocess.Popen(
                [sys.executable, str(script)], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**outside, **ours, **environment},
            )
        )  # fmt: skip
        return started[-1]

    yield train
    for process in started:
        process.kill()
        process.communicate()


def asked(server: Any, run: str, **body: Any) -> str:
    return str(request_json(server.address, "POST", f"/runs/{run}/requests", body)["id"])


def outcomes(server: Any, run: str) -> dict[str, str]:
    """Return request id -> outcome."""
    events = server.get(f"/runs/{run}/events")["items"]
    return {
        event["data"]["request"]: event["data"]["outcome"]
        for event in events
        if event["kind"] == "mark" and "request" in event["data"]
    }


def has_begun(server: Any, run: str) -> Callable[[], bool]:
    def ask() -> bool:
        found = [each["id"] for each in server.get("/runs?limit=200")["items"]]
        return run in found

    return ask


def test_holders_and_census_are_returned_and_refusals_explained(
    server: Any, eventually: Any, start: Start
) -> None:
    process = start("asked-holders")
    eventually(has_begun(server, "asked-holders"), 60.0)
    search = asked(server, "asked-holders", kind="find_holders", type="__main__.Agent")
    census = asked(server, "asked-holders", kind="census")
    unknown = asked(server, "asked-holders", kind="find_holders", type="no.such.Class")
    cleanup = asked(server, "asked-holders", kind="cleanup")
    refusal = "refused: no registered cleanup allows requests"
    wanted = {search: "done", census: "done", unknown: "nothing found", cleanup: refusal}
    eventually(lambda: outcomes(server, "asked-holders") == wanted, 60.0)
    holders = server.get("/runs/asked-holders/holders")["items"]
    found = [(h["type"], h["path"], h["count"]) for h in holders if h["type"] == "__main__.Agent"]
    assert found == [("__main__.Agent", "__main__.Trainer.population[*]", 40)]
    process.communicate("x", timeout=60)
    assert process.returncode == 0
    # Each is reported once, although the server repeats a request until it is answered.
    events = server.get("/runs/asked-holders/events")["items"]
    assert sum(event["kind"] == "mark" for event in events) == len(wanted)


def test_a_training_that_refuses_reports_it(server: Any, eventually: Any, start: Start) -> None:
    process = start("asked-refused", LEAKLINE_REQUESTS="0")
    eventually(has_begun(server, "asked-refused"), 60.0)
    number = asked(server, "asked-refused", kind="find_holders", type="__main__.Agent")
    eventually(lambda: outcomes(server, "asked-refused") == {number: "refused"}, 60.0)
    assert server.get("/runs/asked-refused/holders")["items"] == []
    process.communicate("x", timeout=60)
    assert process.returncode == 0


def test_a_cleanup_runs_and_reports_what_it_freed(
    server: Any, eventually: Any, start: Start
) -> None:
    process = start("asked-cleanup", REGISTERED="1")

    def events_of_kind(kind: str) -> list[dict[str, Any]]:
        found = server.get("/runs/asked-cleanup/events")["items"]
        return [event for event in found if event["kind"] == kind]

    eventually(has_begun(server, "asked-cleanup"), 60.0)
    eventually(lambda: events_of_kind("register_cleanup"), 60.0)
    number = asked(server, "asked-cleanup", kind="cleanup")
    eventually(lambda: outcomes(server, "asked-cleanup") == {number: "done"}, 60.0)
    (cleaned,) = events_of_kind("cleanup")
    assert (cleaned["name"], cleaned["data"]["because"]) == ("population", "it was requested")
    assert cleaned["data"]["counts"]["__main__.Agent"] == [40, 0]
    process.communicate("x", timeout=60)
    assert process.returncode == 0
