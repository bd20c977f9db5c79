"""A server that dies, or is never reachable: the training continues, and no accepted data is lost."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.flows.conftest import Trained, Training, leakline

from leakline.transport.spool_format import read_batches

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600), pytest.mark.long]

# The second generation is the first that also trains.
SHORT: dict[str, Any] = {"generations": 3, "critic_steps": 1}


def recorded_sequences(spool: Path) -> list[int]:
    (path,) = spool.glob("*.spool")
    return [s.sequence for batch in read_batches(path) for s in batch.snapshots]


def stored_sequences(server: Any, run: str) -> list[int]:
    """Return the sequence numbers of all snapshots that the server has of this run, in order."""
    found: list[int] = []
    cursor = ""
    while True:
        page = server.get(f"/runs/{run}/snapshots?limit=200{cursor}")
        found += [row["sequence"] for row in page["items"]]
        if not page["next"]:
            return sorted(found)
        cursor = f"&cursor={page['next']}"


def test_a_killed_server_loses_nothing_it_accepted_and_the_run_continues(
    start_server: Any, start_training: Any, eventually: Any, tmp_path: Path
) -> None:
    server = start_server(tmp_path)
    training = start_training(
        server.address, "r1", tmp_path, generations=12, population=8, critic_steps=8
    )
    training.read_until("generation 3")
    accepted = eventually(lambda: stored_sequences(server, "r1"))
    server.kill()
    training.read_until("generation 5")
    # Paused, so that it does not end before the server is back.
    training.process.send_signal(signal.SIGSTOP)
    again = start_server(tmp_path, server.port)
    training.process.send_signal(signal.SIGCONT)
    assert set(stored_sequences(again, "r1")) >= set(accepted)
    ended = training.wait()
    assert ended.status == 0, ended.errors
    recorded = recorded_sequences(ended.spool)
    assert recorded == list(range(1, len(recorded) + 1))
    eventually(lambda: stored_sequences(again, "r1") == recorded)
    assert again.verdict("r1", 12)["generations"] == 12
    assert eventually(lambda: again.get("/runs/r1")["state"] == "finished")


@pytest.fixture(scope="module")
def without_a_server(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Run a training without any reachable server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    return Training(address, "never-online", tmp_path_factory.mktemp("training"), **SHORT).wait()


def test_without_a_server_the_training_is_the_same(
    server: Any, without_a_server: Trained, tmp_path: Path
) -> None:
    with_one = Training(server.address, "online", tmp_path, **SHORT).wait()
    assert (without_a_server.status, with_one.status) == (0, 0), without_a_server.errors
    assert without_a_server.output == with_one.output
    assert "buffer not ready" not in with_one.output.splitlines()[-1]
    assert "leakline sync" in without_a_server.errors
    assert "Traceback" not in without_a_server.errors


def test_sync_uploads_everything_and_is_idempotent(server: Any, without_a_server: Trained) -> None:
    def sync() -> str:
        return leakline(server, "sync", str(without_a_server.spool)).stdout

    recorded = recorded_sequences(without_a_server.spool)
    assert str(len(recorded)) in sync()
    assert stored_sequences(server, "never-online") == recorded
    assert "nothing new" in sync()
    assert stored_sequences(server, "never-online") == recorded
    assert server.verdict("never-online", 3)["generations"] == 3
