"""The comparison of real runs, through the command that people and CI use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from examples.erl_trading.leaks import RIGHT_ANSWERS
from tests.flows.conftest import CRITIC_STEPS, Server, Training, compare

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]

Train = Callable[..., Any]

# Each fix that the example declares, with the leak that it is of.
FIXED: Final = {
    "break_cycles": "cyclic_environments",
    "drop_batches": "kept_batches",
    "drain_uploads": "pending_uploads",
}
WARMED_UP: Final = 28


@pytest.fixture(scope="session")
def fixed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The verdict of one training without a leak that declares all of ``FIXED``.

    Of 16 generations, half of which fill the replay buffer and the allocator, a bound on growth may stay undecided.
    """
    training = Training(
        server.address, "fixed", tmp_path_factory.mktemp("training"),
        generations=WARMED_UP, critic_steps=CRITIC_STEPS, fixes=[*FIXED],
    )  # fmt: skip
    ended = training.wait()
    assert ended.status == 0, ended.errors
    return server.verdict("fixed", WARMED_UP)


def test_a_leaking_run_is_not_a_fix_of_itself(server: Any, trained: Train) -> None:
    trained("old_population")
    done = compare(server, "old-population", "erl-trading/old-population", "--json")
    assert json.loads(done.stdout)["outcome"] == "no_effect"


def test_the_leaking_and_the_fixed_run_compare_as_fixed(server: Any, trained: Train) -> None:
    trained("old_population")
    trained()
    done = compare(server, "old-population", "no-leak", "--json")
    found = json.loads(done.stdout)
    assert found["outcome"] == "fixed", found["summary"]
    assert found["growth_bytes_per_generation"]["change_percent"] < -80
    assert "%" in found["summary"]
    assert [finding["phase"] for finding in found["findings"]["gone"]][:1] == ["evolve_population"]


def test_the_gate_closes_when_the_run_after_leaks(server: Any, trained: Train) -> None:
    trained("old_population")
    trained()
    gate = "--fail-on=leaking,worse"
    assert compare(server, "old-population", "no-leak", gate).returncode == 0
    assert compare(server, "no-leak", "old-population", gate).returncode == 3


@pytest.mark.leaks
def test_a_fix_of_the_wrong_thing_has_no_effect(server: Any, trained: Train) -> None:
    """The list of losses was bounded; the environments that were kept are still kept."""
    trained("kept_environments", "loss_history")
    trained("kept_environments")
    done = compare(server, "kept-environments-loss-history", "kept-environments", "--json")
    found = json.loads(done.stdout)
    assert found["outcome"] == "no_effect", found["summary"]
    assert [finding["phase"] for finding in found["findings"]["still"]] == ["evaluate_population"]


@pytest.mark.leaks
@pytest.mark.parametrize(("fix", "leak"), FIXED.items())
def test_a_declared_fix_is_proved_and_keeps_its_promise(
    server: Server, trained: Train, fixed: dict[str, Any], fix: str, leak: str
) -> None:
    trained(leak)
    done = compare(server, leak.replace("_", "-"), "fixed", "--json")
    found = json.loads(done.stdout)
    assert found["outcome"] == "fixed", found["summary"]
    gone = [finding["phase"] for finding in found["findings"]["gone"]]
    assert gone[:1] == [RIGHT_ANSWERS[leak].phase], found["summary"]
    claims = [claim for claim in fixed["assertions"] if claim["name"] == fix.replace("_", " ")]
    assert {claim["state"] for claim in claims} == {"holds"}, claims
