"""One line in a script shows the loop of its framework; leaks of callbacks, environments and ranks are named.

Their healthy twins have no findings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from .conftest import PROGRAMS, Ended

ACTIVE = ("suspected", "confirmed")


@dataclass(frozen=True)
class Case:
    """A program and the phase in which its callback leaks. ``raised_after`` is for the variant with an exception."""

    program: str
    unit: str
    phases: tuple[str, ...]
    phase: str
    generations: int = 24
    raised_after: int = 5

    @property
    def name(self) -> str:
        return self.program.replace("_", "-")


CASES = [
    Case(
        "with_lightning", "epoch", ("train", "validation", "save", "epoch_end"), "validation",
        raised_after=6,
    ),
    Case(
        "with_transformers", "generation", ("train", "validation", "save", "epoch_end"), "save",
        raised_after=6,
    ),
    Case("with_sb3", "generation", ("rollout", "train"), "rollout", raised_after=4),
    Case("with_keras", "epoch", ("train", "validation", "epoch_end"), "validation", raised_after=6),
]  # fmt: skip
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)


def lines(phase_accounts: dict[str, Any]) -> set[str]:
    return {line["name"] for line in phase_accounts["lines"]} - {
        "between",
        "leakline",
        "other_threads",
    }


@each
def test_a_healthy_training_has_no_findings_and_shows_its_loop(
    run_program: Callable[..., Ended], case: Case
) -> None:
    ended = run_program(case.program, f"{case.name}-healthy", "healthy")
    assert ended.status == 0, ended.errors
    told = ended.final_state()
    assert (told["state"], told["unit"], told["total"]) == ("finished", case.unit, 24)
    verdict = ended.verdict(case.generations)
    assert verdict["generations"] == case.generations
    assert verdict["status"] not in ACTIVE, verdict["summary"]
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert lines(ended.phase_accounts()) == set(case.phases)


@each
def test_a_leak_in_a_callback_is_named_with_its_phase(
    run_program: Callable[..., Ended], case: Case
) -> None:
    ended = run_program(case.program, f"{case.name}-leak", "leak")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(case.generations)
    assert verdict["status"] == "confirmed", verdict["summary"]
    (finding,) = [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert finding["phase"] == case.phase
    assert finding["phase_share"] > 0.9
    assert any("Keeper.kept" in suspect["name"] for suspect in finding["suspects"]), finding
    kept = 4 * 2**20
    assert 0.9 * kept < finding["growth_bytes_per_generation"]["estimate"] < 1.1 * kept


@each
def test_a_training_that_raises_ends_as_failed(
    run_program: Callable[..., Ended], case: Case
) -> None:
    ended = run_program(case.program, f"{case.name}-raise", "raise")
    assert ended.status == 1
    assert "ZeroDivisionError: planted" in ended.errors
    told = ended.final_state()
    assert told["state"] == "failed"
    assert told["processes"][0]["end_reason"] == "ZeroDivisionError"
    assert [e["name"] for e in ended.events() if e["kind"] == "exception"] == ["ZeroDivisionError"]
    # The generation with the exception is included.
    assert len(ended.phase_accounts()["generations"]) == case.raised_after


# -- short phases


@pytest.mark.parametrize("variant", ["leak", "healthy"])
def test_rollouts_of_milliseconds_are_one_phase(
    run_program: Callable[..., Ended], variant: str
) -> None:
    ended = run_program("with_sb3_short", f"sb3-short-{variant}", variant)
    assert ended.status == 0, ended.errors
    assert lines(ended.phase_accounts()) == {"learn"}
    (note,) = [e["data"]["text"] for e in ended.events() if e["kind"] == "note"]
    assert note == "a generation is 200 timesteps, rounded up to full rollouts"
    verdict = ended.verdict(100)
    found = [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert {f["phase"] for f in found} == ({"learn"} if variant == "leak" else set()), verdict


# -- other callbacks in the same list


@pytest.mark.parametrize("bar", ["bar", "no bar"])
def test_other_callbacks_see_loop_variables_and_an_active_run(
    run_program: Callable[..., Ended], bar: str
) -> None:
    ended = run_program("with_sb3_shared", "", bar)
    assert ended.status == 0, ended.errors
    told = json.loads(ended.output.splitlines()[-1])
    assert told["seen"] == [128]
    # Ours, theirs, the one added later, and our last.
    assert told["callbacks"] == 4
    assert told["runs"] == [3, 2]


@pytest.mark.parametrize("name", ["lightning", "transformers", "sb3", "keras", "gymnasium"])
def test_a_callback_can_be_copied_and_pickled(run_program: Callable[..., Ended], name: str) -> None:
    ended = run_program("copies", "", name, KERAS_BACKEND="torch")
    assert ended.status == 0, ended.errors
    assert ended.output.splitlines()[-1] == "copied 4"


# -- environments and replay buffers


MARKET_BYTES = 2**21


def test_closed_and_dropped_environments_are_not_a_finding(
    run_program: Callable[..., Ended],
) -> None:
    ended = run_program("with_gymnasium", "gymnasium-healthy", "healthy")
    assert ended.status == 0, ended.errors
    told = ended.final_state()
    assert (told["state"], told["unit"]) == ("finished", "episode")
    verdict = ended.verdict(24)
    assert verdict["status"] not in ACTIVE, verdict["summary"]
    assert "episode" in {line["name"] for line in ended.phase_accounts()["lines"]}


def test_kept_environments_are_named(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_gymnasium", "gymnasium-leak", "leak")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(24)
    assert verdict["status"] == "confirmed", verdict["summary"]
    names = [s["name"] for f in verdict["findings"] for s in f["suspects"]]
    assert "__main__.Market" in names
    assert any("Evaluator.used" in name for name in names), names
    grown = verdict["growth_bytes_per_generation"]["estimate"]
    assert 0.9 * MARKET_BYTES < grown < 1.1 * MARKET_BYTES
    # Two are declared; each kept one is one too many.
    assert any("declared 1 to 2" in line for f in verdict["findings"] for line in f["evidence"])
    gauge = ended.server.get(f"/runs/{ended.run}/series?name=gauge.environments.open&points=2000")
    assert [y for item in gauge["items"] for y in item["last"]][-1] > 20


def test_environments_of_a_vector_do_not_start_runs(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_gymnasium_vector", "")
    assert ended.status == 0, ended.errors
    assert "leakline: " not in ended.errors
    assert not (ended.folder / ".leakline").exists()


def test_a_filling_replay_buffer_is_not_a_leak(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_sb3_replay", "sb3-replay")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(100)
    assert verdict["generations"] == 100
    assert verdict["status"] == "filling", verdict["summary"]
    assert "replay_buffer" in verdict["summary"]
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE]
    (note,) = [e["data"]["text"] for e in ended.events() if e["kind"] == "note"]
    assert note == "a generation is 40 timesteps, rounded up to full rollouts"
    (declared,) = [e for e in ended.events() if e["kind"] == "track"]
    assert (declared["name"], declared["data"]["capacity"]) == ("replay_buffer", 6_000)


def test_a_run_of_the_program_is_used_and_continues(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_keras_twice", "keras-twice")
    assert ended.status == 0, ended.errors
    told = ended.final_state()
    assert (told["state"], told["project"], len(told["processes"])) == ("finished", "keras", 1)
    assert ended.verdict(8)["generations"] == 8
    phase_accounts = ended.phase_accounts()
    assert phase_accounts["generations"] == list(range(8))
    assert {"train", "epoch_end"} <= {line["name"] for line in phase_accounts["lines"]}


# -- workers of a DataLoader


GENERATIONS_OF_READERS = 36
DATASET_BYTES = 48_000 * 1_033


def column(ended: Ended, name: str) -> list[float]:
    """Return the known values of a series in order."""
    answer: dict[str, Any] = ended.server.get(f"/runs/{ended.run}/series?name={name}&points=2000")
    return [y for item in answer["items"] for y in item["last"]]


def test_growth_of_workers_is_attributed_to_them_and_bounded(
    run_program: Callable[..., Ended],
) -> None:
    ended = run_program("with_loader_workers", "loader-workers", "")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(GENERATIONS_OF_READERS)
    assert {f["kind"] for f in verdict["findings"]} <= {"children"}, verdict["findings"]
    # Both have read everything for the second half of the run, so the growth is over.
    assert verdict["status"] not in ("suspected", "confirmed"), verdict["summary"]
    phase_accounts = ended.phase_accounts()["total"]
    assert abs(sum(phase_accounts[2:])) < 0.2 * DATASET_BYTES
    workers = column(ended, "children.loader_workers.uss_bytes")
    assert max(column(ended, "children.loader_workers.count")) == 2
    assert max(workers) - workers[0] > DATASET_BYTES
    assert max(workers) < workers[0] + 2.5 * DATASET_BYTES
    for i in range(2):
        assert max(column(ended, f"children.process.loader_worker-{i}.uss_bytes")) > DATASET_BYTES


# -- ranks of one run


TORCHRUN = [
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    str(PROGRAMS / "with_torchrun.py"),
]
GENERATIONS_OF_RANKS = 24


@pytest.fixture(scope="module", params=["with_torchrun", "with_lightning_ddp"])
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained(run_program: Callable[..., Ended], program: str, variant: str) -> Ended:
    """Run without a run id: the ranks find out that they belong together."""
    command: Any = TORCHRUN if program == "with_torchrun" else program
    ended = run_program(command, "", variant)
    assert ended.status == 0, ended.errors
    (run,) = {path.parent.name for path in (ended.folder / ".leakline").rglob("*.spool")}
    return Ended(ended.server, run, 0, ended.output, ended.errors, ended.folder)


def test_the_leaking_rank_is_named(run_program: Callable[..., Ended], program: str) -> None:
    ended = trained(run_program, program, "leak")
    told = ended.final_state()
    assert sorted(p["rank"] for p in told["processes"]) == [0, 1]
    assert {p["end_state"] for p in told["processes"]} == {"finished"}
    # Only one of the ranks prints.
    assert ended.errors.count("leakline: run ") == 1
    verdict = ended.verdict(GENERATIONS_OF_RANKS)
    assert verdict["status"] == "confirmed", verdict["summary"]
    found = [f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed")]
    assert {f["process"] for f in found} == {"rank 1 main"}
    named = {suspect["name"] for suspect in found[0]["suspects"]}
    assert any("Prediction" in name or "Keeper.kept" in name for name in named), named


def test_healthy_ranks_have_no_findings(run_program: Callable[..., Ended], program: str) -> None:
    verdict = trained(run_program, program, "healthy").verdict(GENERATIONS_OF_RANKS)
    assert verdict["status"] not in ("suspected", "confirmed"), verdict["summary"]
