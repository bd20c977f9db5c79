"""A real training has stable counts, a person accepts them, and the next training breaks them and is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakline.transport.http_delivery import request_json

from .conftest import train

pytestmark = [pytest.mark.flow, pytest.mark.long]

# One additional agent after each evolution, which evaluation drops; with "keep" the old population stays.
TRAINING = """
import sys, time
import leakline


class Environment:
    pass


class Agent:
    pass


environments = [Environment(), Environment()]
generations, keep = int(sys.argv[1]), "keep" in sys.argv
run = leakline.init(project="learned", quiet=True, watch=[Environment, Agent])
population, old = [Agent() for _ in range(16)], []
for generation in range(generations):
    with run.generation(generation):
        with run.phase("evaluate"):
            best = None
            time.sleep(0.02)
        with run.phase("evolve"):
            if keep and generation:
                old.append(population)
            population, best = [Agent() for _ in range(16)], Agent()
            time.sleep(0.02)
run.finish()
"""


def test_the_next_training_breaks_the_accepted_counts(server: Any, tmp_path: Path) -> None:
    assert train(server, tmp_path, "keeps", TRAINING, "10") == 0
    server.verdict("keeps", 10)
    steady = server.get("/runs/keeps/expectations")["stable"]
    ours = [each for each in steady if each["type"].startswith("__main__.")]
    assert [(each["type"], each["count"], each["after"]) for each in ours] == [
        ("__main__.Environment", 2, None),
        ("__main__.Agent", 16, "evaluate"),
        ("__main__.Agent", 17, "evolve"),
    ]
    # Types that every program has are left out.
    assert not [
        each for each in steady if each["type"].startswith(("threading.", "re.", "socket."))
    ]
    for each in ours:
        wanted = {"type": each["type"], "after": each["after"]}
        wanted |= {"low": each["count"], "high": each["count"]}
        request_json(server.address, "POST", "/runs/keeps/expectations", wanted)

    assert train(server, tmp_path, "breaks", TRAINING, "3", "keep") == 0
    (finding, *_) = server.verdict("breaks", 3)["findings"]
    assert finding["status"] in ("suspected", "confirmed")
    told = " ".join(finding["evidence"])
    assert "Agent count is " in told and "accepted as 1" in told
    rows = server.get("/runs/breaks/expectations")["items"]
    states = {(row["name"], row["phase"]): (row["state"], row["origin"]) for row in rows}
    assert states["__main__.Environment", None] == ("holds", "accepted")
    assert states["__main__.Agent", "evolve"] == ("broken", "accepted")
