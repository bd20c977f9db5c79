"""One line in a script of a framework shows its loop; a leak of a callback is named, its twin is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from .conftest import Ended

ACTIVE = ("suspected", "confirmed")


@dataclass(frozen=True)
class Case:
    """``phase``: where the callback keeps; ``ends``: how a run ends in which something raises."""

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


def lines(books: dict[str, Any]) -> set[str]:
    return {line["name"] for line in books["lines"]} - {"between", "leakline", "other_threads"}


@each
def test_a_healthy_training_accuses_nobody_and_shows_its_loop(
    run_program: Callable[..., Ended], case: Case
) -> None:
    ended = run_program(case.program, f"{case.name}-healthy", "healthy")
    assert ended.status == 0, ended.errors
    told = ended.told()
    assert (told["state"], told["unit"], told["total"]) == ("finished", case.unit, 24)
    verdict = ended.verdict(case.generations)
    assert verdict["generations"] == case.generations
    assert verdict["status"] not in ACTIVE, verdict["summary"]
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert lines(ended.books()) == set(case.phases)


@each
def test_a_leak_of_a_callback_is_in_its_phase_and_named(
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
    told = ended.told()
    assert told["state"] == "failed"
    assert told["processes"][0]["end_reason"] == "ZeroDivisionError"
    assert [e["name"] for e in ended.events() if e["kind"] == "exception"] == ["ZeroDivisionError"]
    # The generation in which it raised is told as well.
    assert len(ended.books()["generations"]) == case.raised_after
