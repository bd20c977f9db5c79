"""A server that dies, and one that never was: the training goes on and nothing accepted is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.flows.conftest import accused, leakline

from leakline.transport.spool_format import read_batches

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


def recorded_sequences(spool: Path) -> list[int]:
    (path,) = spool.glob("*.spool")
    return [s.sequence for batch in read_batches(path) for s in batch.snapshots]


def stored_sequences(server: Any, run: str) -> list[int]:
    """Of all snapshots the server has of this run, oldest first."""
    found: list[int] = []
    cursor = ""
    while True:
        page = server.get(f"/runs/{run}/snapshots?limit=200{cursor}")
        found += [row["sequence"] for row in page["items"]]
        if not page["next"]:
            return sorted(found)
        cursor = f"&cursor={page['next']}"


@pytest.mark.long
def test_a_killed_server_loses_nothing_it_accepted_and_the_run_continues(
    start_server: Any, start_training: Any, eventually: Any, tmp_path: Path
) -> None:
    server = start_server(tmp_path)
    training = start_training(server.address, "r1", tmp_path, generations=10, population=8)
    training.read_until("generation 3")
    accepted = eventually(lambda: stored_sequences(server, "r1"))
    server.kill()
    training.read_until("generation 5")
    again = start_server(tmp_path, server.port)
    assert set(stored_sequences(again, "r1")) >= set(accepted)
    ended = training.wait()
    assert ended.status == 0, ended.errors
    recorded = recorded_sequences(ended.spool)
    assert recorded == list(range(1, len(recorded) + 1))
    eventually(lambda: stored_sequences(again, "r1") == recorded)
    assert again.verdict("r1", 10)["generations"] == 10
    assert eventually(lambda: again.get("/runs/r1")["state"] == "finished")


def sync(server: Any, spool: Path) -> str:
    return leakline(server, "sync", str(spool)).stdout


@pytest.mark.long
def test_without_a_server_the_training_is_the_same(trained: Any, without_a_server: Any) -> None:
    assert without_a_server.status == 0, without_a_server.errors
    assert without_a_server.output == trained()[0].output
    assert "leakline sync" in without_a_server.errors
    assert "Traceback" not in without_a_server.errors


@pytest.mark.long
def test_sync_uploads_all_and_twice_is_once(server: Any, without_a_server: Any) -> None:
    recorded = recorded_sequences(without_a_server.spool)
    assert str(len(recorded)) in sync(server, without_a_server.spool)
    assert stored_sequences(server, "never-online") == recorded
    assert "nothing new" in sync(server, without_a_server.spool)
    assert stored_sequences(server, "never-online") == recorded
    verdict = server.verdict("never-online", 16)
    # Of 16 generations, the first ten of which fill caches, memory may look unsteady; nothing is accused.
    assert verdict["status"] in ("ok", "filling", "watch"), verdict["summary"]
    assert not accused(verdict), verdict["summary"]
