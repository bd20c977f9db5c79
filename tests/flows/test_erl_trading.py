"""Real trainings end to end: where, what, how much and since when, and the comparison with the fixed run.

The expected findings are in `tests/leaks/catalogue.py`; they were measured without Leakline.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.flows.conftest import (
    CRITIC_STEPS,
    Server,
    Training,
    accused,
    by_cost,
    compare,
    severity,
)
from tests.leaks.catalogue import EXAMPLES, MIB
from tests.leaks.scoring import describe, score

from leakline.analysis.status import ACTIVE
from leakline.cli.commands.drill import RATE_TOLERANCE, START_TOLERANCE

CASES: Final = EXAMPLES["erl_trading"]
# One per cent of the resident memory without a leak; above it, rate and start must be right, too.
LARGE_BYTES = 0.01 * 440 * MIB
# The others are trained only by `make test-leaks`.
IN_TEST_ALL: Final = ("old_population",)

# Each fix that the example declares, with its leak.
FIXED: Final = {
    "break_cycles": "cyclic_environments",
    "drop_batches": "kept_batches",
    "drain_uploads": "pending_uploads",
}
WARMED_UP: Final = 28

Train = Callable[..., Any]

# The longest wait is for a training on a busy machine.
pytestmark = [pytest.mark.flow, pytest.mark.timeout(600), pytest.mark.long]

MATERIAL = [name for name, case in CASES.items() if case.matters]
LARGE = [name for name in MATERIAL if CASES[name].bytes_per_generation > LARGE_BYTES]
HARMLESS = [name for name, case in CASES.items() if not case.matters]


def test_a_training_without_a_leak_is_not_accused(trained: Train) -> None:
    _, verdict = trained()
    # The first ten generations, or more on a busy machine, fill caches and arenas: a run of 16 may look unsteady.
    assert verdict["status"] in ("ok", "filling", "watch"), describe(verdict)
    assert not accused(verdict), describe(verdict)


@pytest.mark.leaks
def test_a_warmed_up_training_without_a_leak_is_healthy(server: Server, tmp_path: Path) -> None:
    warm = Training(server.address, "warm", tmp_path, generations=28, critic_steps=CRITIC_STEPS)
    assert warm.wait().status == 0
    verdict = server.verdict("warm", 28)
    assert verdict["status"] in ("ok", "filling"), describe(verdict)


@pytest.mark.parametrize("leak", by_cost(HARMLESS, IN_TEST_ALL))
def test_harmless_growth_is_not_called_a_leak(trained: Train, leak: str) -> None:
    _, verdict = trained(leak)
    worst = CASES[leak].worst
    assert severity(verdict["status"]) <= severity(worst), describe(verdict)


@pytest.mark.parametrize(
    "leak", by_cost([name for name in HARMLESS if CASES[name].planted], IN_TEST_ALL)
)
def test_harmless_growth_is_named(trained: Train, leak: str) -> None:
    _, verdict = trained(leak)
    found = [score(CASES[leak], finding) for finding in verdict["findings"]]
    assert any(each.is_right for each in found), describe(verdict)


@pytest.mark.parametrize("leak", by_cost(MATERIAL, IN_TEST_ALL))
def test_a_leak_is_suspected_with_its_phase_and_its_type_or_holder(
    trained: Train, leak: str
) -> None:
    _, verdict = trained(leak)
    assert severity(verdict["status"]) >= severity("suspected"), describe(verdict)
    assert score(CASES[leak], verdict["findings"][0]).is_right, describe(verdict)


@pytest.mark.parametrize("leak", by_cost(LARGE, IN_TEST_ALL))
def test_a_large_leak_has_the_right_rate_and_start(trained: Train, leak: str) -> None:
    _, verdict = trained(leak)
    found = score(CASES[leak], verdict["findings"][0])
    assert found.rate_off <= RATE_TOLERANCE, describe(verdict)
    assert found.start_off <= START_TOLERANCE, describe(verdict)


@pytest.mark.leaks
def test_a_long_kept_loss_is_reported_with_its_graph(server: Server, tmp_path: Path) -> None:
    leaks = ("loss_graph",)
    kept = Training(
        server.address, "kept", tmp_path, leaks, generations=28, critic_steps=CRITIC_STEPS
    )
    assert kept.wait().status == 0
    verdict = server.verdict("kept", 28)
    finding = verdict["findings"][0]
    assert finding["kind"] == "graph", describe(verdict)
    assert score(CASES["loss_graph"], finding).start_off <= START_TOLERANCE, describe(verdict)


@pytest.mark.leaks
def test_more_than_50_pending_uploads_are_reported_once(server: Server, trained: Train) -> None:
    trained("pending_uploads"), trained()
    warned = _warnings(server, "pending-uploads")
    assert [(each["name"], each["generation"]) for each in warned] == [("pending_uploads", 12)]
    assert warned[0]["data"] == {"value": 52, "warn_above": 50}
    assert not _warnings(server, "no-leak")


def _warnings(server: Server, run: str) -> list[dict[str, Any]]:
    events = server.get(f"/runs/{run}/events?limit=500")["items"]
    return [event for event in events if event["kind"] == "warning"]


@pytest.mark.leaks
def test_two_leaks_at_once_are_both_found(trained: Train) -> None:
    _, verdict = trained("old_population", "loss_graph")
    leaking = [f for f in verdict["findings"] if f["status"] in ACTIVE]
    agents, losses = (
        {finding["kind"] for finding in leaking if score(CASES[leak], finding).is_right}
        for leak in ("old_population", "loss_graph")
    )
    assert agents and "graph" in losses, describe(verdict)


@pytest.mark.parametrize("leak", by_cost(MATERIAL, IN_TEST_ALL))
def test_a_leak_does_not_change_what_is_learnt(trained: Train, leak: str) -> None:
    assert trained(leak)[0].output == trained()[0].output


@pytest.fixture(scope="session")
def fixed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the verdict of one training without a leak that declares all of ``FIXED``.

    With 16 generations, half of which fill the replay buffer and the allocator, a promise about growth may stay
    undecided.
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


@pytest.mark.leaks
def test_a_fix_of_the_wrong_thing_has_no_effect(server: Any, trained: Train) -> None:
    """The list of losses was bounded, but the environments are still kept."""
    trained("kept_environments", "loss_history")
    trained("kept_environments")
    done = compare(server, "kept-environments-loss-history", "kept-environments", "--json")
    found = json.loads(done.stdout)
    assert found["outcome"] == "no_effect", found["summary"]
    assert [finding["phase"] for finding in found["findings"]["still"]] == ["evaluate_population"]


@pytest.mark.leaks
@pytest.mark.parametrize(("fix", "leak"), FIXED.items())
def test_a_declared_fix_works_and_keeps_its_promise(
    server: Server, trained: Train, fixed: dict[str, Any], fix: str, leak: str
) -> None:
    trained(leak)
    done = compare(server, leak.replace("_", "-"), "fixed", "--json")
    found = json.loads(done.stdout)
    assert found["outcome"] == "fixed", found["summary"]
    gone = [finding["phase"] for finding in found["findings"]["gone"]]
    assert gone[:1] == [*CASES[leak].planted[0].phases], found["summary"]
    claims = [claim for claim in fixed["assertions"] if claim["name"] == fix.replace("_", " ")]
    assert {claim["state"] for claim in claims} == {"holds"}, claims
