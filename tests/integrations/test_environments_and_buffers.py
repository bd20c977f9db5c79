"""Environments that are kept are counted and named; a replay buffer that fills is declared by itself, and no leak."""

from __future__ import annotations

from collections.abc import Callable

from .conftest import Ended

ACTIVE = ("suspected", "confirmed")
MARKET_BYTES = 2**21


def test_environments_that_are_closed_and_dropped_accuse_nobody(
    run_program: Callable[..., Ended],
) -> None:
    ended = run_program("with_gymnasium", "gymnasium-healthy", "healthy")
    assert ended.status == 0, ended.errors
    told = ended.told()
    assert (told["state"], told["unit"]) == ("finished", "episode")
    verdict = ended.verdict(24)
    assert verdict["status"] not in ACTIVE, verdict["summary"]
    assert "episode" in {line["name"] for line in ended.books()["lines"]}


def test_environments_that_are_kept_are_named(run_program: Callable[..., Ended]) -> None:
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


def test_environments_of_a_vector_start_no_runs(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_gymnasium_vector", "")
    assert ended.status == 0, ended.errors
    assert "leakline: " not in ended.errors
    assert not (ended.folder / ".leakline").exists()


def test_a_replay_buffer_that_fills_is_no_leak(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_sb3_replay", "sb3-replay")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(100)
    assert verdict["generations"] == 100
    assert verdict["status"] == "filling", verdict["summary"]
    assert "replay_buffer" in verdict["summary"]
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE]
    (note,) = [e["data"]["text"] for e in ended.events() if e["kind"] == "note"]
    assert note == "a generation is 40 timesteps, or the rollouts that need as many"
    (declared,) = [e for e in ended.events() if e["kind"] == "track"]
    assert (declared["name"], declared["data"]["capacity"]) == ("replay_buffer", 6_000)


def test_a_run_of_the_program_is_used_and_goes_on(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_keras_twice", "keras-twice")
    assert ended.status == 0, ended.errors
    told = ended.told()
    assert (told["state"], told["project"], len(told["processes"])) == ("finished", "keras", 1)
    assert ended.verdict(8)["generations"] == 8
    books = ended.books()
    assert books["generations"] == list(range(8))
    assert {"train", "epoch_end"} <= {line["name"] for line in books["lines"]}
