"""The DQN example (report 000): each leak is found, cleanups are recorded, and the fixed run is healthy.

The expected findings are in `tests/leaks/catalogue.py`; they were measured without Leakline.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from examples.dqn_fuel_breaks.fixes import FIXES
from tests.flows.conftest import (
    TRAINING_SECONDS,
    Server,
    accused,
    by_cost,
    clean_environment,
    compare,
    severity,
)
from tests.leaks.catalogue import EXAMPLES
from tests.leaks.scoring import describe, score

from leakline.cli.commands.drill import RATE_TOLERANCE, START_TOLERANCE

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "dqn-fuel-breaks"
# As many as the verdict needs; the example trains twenty by default.
EPISODES: Final = 16
STEPS, TRAINING_STEPS = 40, 25
# The others are trained only by `make test-leaks`.
IN_TEST_ALL: Final = ("attached_tensors",)
CASES: Final = EXAMPLES["dqn_fuel_breaks"]

# (its output, its verdict)
Train = Callable[..., tuple[str, dict[str, Any]]]

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="session")
def dqn(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train with these leaks, or with all fixes, once per session."""
    done: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {}

    def train(*leaks: str) -> tuple[str, dict[str, Any]]:
        if leaks not in done:
            run = name_of(*leaks)
            planted = [part for leak in leaks for part in ("--leak", leak)]
            fixed = [] if leaks else [part for fix in FIXES for part in ("--fix", fix)]
            ended = subprocess.run(
                [sys.executable, "-m", "examples.dqn_fuel_breaks", "--server", server.address,
                 "--episodes", str(EPISODES), "--run-id", run, "--name", run, *planted, *fixed],
                cwd=tmp_path_factory.mktemp("dqn"),
                env=clean_environment(PYTHONPATH=str(ROOT), LEAKLINE_MAX_OVERHEAD="0.02"),
                capture_output=True, text=True, timeout=TRAINING_SECONDS, check=False,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stderr
            done[leaks] = ended.stdout, server.verdict(run, EPISODES)
        return done[leaks]

    return train


def name_of(*leaks: str) -> str:
    return "dqn-" + ("-".join(leaks).replace("_", "-") or "fixed")


def test_the_fixed_training_is_healthy(dqn: Train, server: Server) -> None:
    _, verdict = dqn()
    assert verdict["status"] in ("ok", "filling"), describe(verdict)
    assert not accused(verdict), describe(verdict)
    assert server.get(f"/runs/{name_of()}")["unit"] == "episode"


def test_the_promises_of_the_fixes_hold(dqn: Train) -> None:
    _, verdict = dqn()
    promises = [each for each in verdict["assertions"] if each["origin"] == "fix"]
    assert {each["name"] for each in promises} == {fix.replace("_", " ") for fix in FIXES}
    # For a phase of a short run the interval may be too wide to decide; for the entire run it is not.
    assert not [each["sentence"] for each in promises if each["state"] == "broken"]
    whole = [each for each in promises if not each["metric"].startswith("phase_")]
    assert {each["state"] for each in whole} == {"holds"}


def test_cleanups_are_recorded_with_generation_and_freed_memory(dqn: Train, server: Server) -> None:
    dqn()
    ran: dict[str, list[int]] = {}
    for event in server.get(f"/runs/{name_of()}/events?limit=500")["items"]:
        if event["kind"] == "cleanup":
            ran.setdefault(event["name"], []).append(event["generation"])
            data = event["data"]
            assert data["freed_bytes"] == data["before_bytes"] - data["after_bytes"]
            assert data["before_bytes"] > 0
    assert {name: sorted(episodes) for name, episodes in ran.items()} == {
        "collector": [(step - 1) // STEPS for step in range(50, EPISODES * STEPS + 1, 50)],
        "agent": [
            (step - 1) // TRAINING_STEPS for step in range(100, EPISODES * TRAINING_STEPS + 1, 100)
        ],
        "everything": [9],
        "final": [EPISODES - 1],
    }


def test_bounded_stores_are_exactly_full(dqn: Train, server: Server) -> None:
    dqn()
    full = {
        "experience": 300, "rewards": 1_000, "values": 200, "step_times": 100,
        "losses": EPISODES * TRAINING_STEPS, "collection_times": EPISODES,
        "replay": EPISODES * STEPS * 8,
    }  # fmt: skip
    for name, most in full.items():
        series = server.get(f"/runs/{name_of()}/series?name=tracked.{name}.length")["items"]
        assert max(y for line in series for y in line["last"] if y is not None) == most, name


@pytest.mark.parametrize("leak", by_cost(CASES, IN_TEST_ALL))
def test_a_leak_is_suspected_with_its_phase_and_its_type_or_holder(dqn: Train, leak: str) -> None:
    _, verdict = dqn(leak)
    assert severity(verdict["status"]) >= severity("suspected"), describe(verdict)
    assert score(CASES[leak], verdict["findings"][0]).is_right, describe(verdict)


@pytest.mark.parametrize("leak", by_cost(CASES, IN_TEST_ALL))
def test_rate_and_start_of_a_leak_are_right(dqn: Train, leak: str) -> None:
    _, verdict = dqn(leak)
    found = score(CASES[leak], verdict["findings"][0])
    assert found.rate_off <= RATE_TOLERANCE, describe(verdict)
    assert found.start_off <= START_TOLERANCE, describe(verdict)


@pytest.mark.parametrize("leak", by_cost(CASES, IN_TEST_ALL))
def test_a_leak_does_not_change_what_is_learnt(dqn: Train, leak: str) -> None:
    assert dqn(leak)[0] == dqn()[0]


@pytest.mark.parametrize("leak", by_cost(CASES, IN_TEST_ALL))
def test_the_comparison_says_fixed(dqn: Train, server: Server, leak: str) -> None:
    dqn(leak), dqn()
    done = compare(server, f"{PROJECT}/{name_of(leak)}", f"{PROJECT}/{name_of()}", "--json")
    found = json.loads(done.stdout)
    assert found["outcome"] == "fixed", found["summary"]
    gone = [finding["phase"] for finding in found["findings"]["gone"]]
    assert gone[:1] == [*CASES[leak].planted[0].phases]
