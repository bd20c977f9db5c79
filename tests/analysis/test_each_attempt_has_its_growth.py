"""Of a resumed run each attempt has a growth of its own, and the generations that were done twice are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakline.analysis import examine, to_json
from leakline.analysis.history import RunHistory, history_from_batches
from leakline.analysis.results import AttemptGrowth, GenerationSpan

from .builder import MIB, Training, kept_environments


def attempt(number: int, first: int, generations: int, mib: float, **changes: int) -> Training:
    leaks = (kept_environments(int(mib * MIB)),) if mib else ()
    return Training(
        leaks=leaks, generations=generations, instance=f"p{number}", attempt=number, first_generation=first,
        seed=number, **changes,
    )  # fmt: skip


def together(*trainings: Training) -> RunHistory:
    batches = [batch for training in reversed(trainings) for batch in training.batches()]
    return history_from_batches(trainings[0].header(), batches)


def told(*trainings: Training) -> tuple[AttemptGrowth, ...]:
    return examine(together(*trainings)).attempts


def test_a_run_that_was_not_resumed_has_no_attempts_to_tell_apart() -> None:
    assert told(attempt(1, 0, 12, 6)) == ()


def test_each_attempt_grows_by_its_own_rate() -> None:
    first, second = told(attempt(1, 0, 16, 6), attempt(2, 14, 16, 24))
    for each, mib in ((first, 6), (second, 24)):
        growth = each.growth_bytes_per_generation
        assert growth is not None
        assert growth.estimate == pytest.approx(mib * MIB, rel=0.15)
        assert growth.low < growth.estimate < growth.high
    assert (first.attempt, second.attempt) == (1, 2)


def test_what_was_done_twice_is_told_of_who_did_it_again() -> None:
    first, second, third = told(attempt(1, 0, 8, 6), attempt(2, 6, 4, 6), attempt(3, 5, 12, 6))
    assert (first.generations, first.again) == (GenerationSpan(0, 7), None)
    assert (second.generations, second.again) == (GenerationSpan(6, 9), GenerationSpan(6, 7))
    assert (third.generations, third.again) == (GenerationSpan(5, 16), GenerationSpan(5, 9))


def test_a_resume_right_behind_the_last_generation_does_none_again() -> None:
    assert [each.again for each in told(attempt(1, 0, 8, 6), attempt(2, 8, 8, 6))] == [None, None]


def test_an_attempt_too_short_for_a_rate_has_none_which_is_not_zero() -> None:
    _, second = told(attempt(1, 0, 12, 6), attempt(2, 12, 1, 6))
    assert second.growth_bytes_per_generation is None
    assert second.generations == GenerationSpan(12, 12)


def test_the_growth_of_an_attempt_is_that_of_its_ranks_together_and_unknown_where_one_is() -> None:
    ranks = [attempt(1, 0, 12, 6), replace(attempt(1, 0, 12, 6), instance="q1", rank=1)]
    again = [attempt(2, 12, 12, 6), replace(attempt(2, 12, 1, 6), instance="q2", rank=1)]
    first, second = told(*ranks, *again)
    assert first.growth_bytes_per_generation is not None
    assert first.growth_bytes_per_generation.estimate == pytest.approx(12 * MIB, rel=0.15)
    assert second.growth_bytes_per_generation is None


def test_minutes_are_not_done_again() -> None:
    history = together(attempt(1, 0, 8, 6), attempt(2, 0, 8, 6))
    assert examine(replace(history, unit="minute")).attempts == ()


def test_the_api_tells_it_as_plain_numbers() -> None:
    _, second = to_json(told(attempt(1, 0, 8, 0), attempt(2, 6, 8, 0)))
    assert second["generations"] == {"first": 6, "last": 13}
    assert second["again"] == {"first": 6, "last": 7}
    assert second.keys() == {"attempt", "generations", "growth_bytes_per_generation", "again"}
