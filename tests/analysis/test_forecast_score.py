"""Accuracy of forecasts: each is compared with the value at the generation it was made for."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import pytest
from builder import GIB, MIB, Leak, Training, history_of, kept_environments
from builder import TRAIN as IN_TRAINING
from pieces import sure

from leakline.analysis import RunHistory, examine
from leakline.analysis.forecast.forecast_score import (
    MAX_FORECASTS,
    _ahead,
    _by_lead,
    _right,
    _score_sentence,
    came_within,
    grid,
)
from leakline.analysis.forecast.memory_outlook import Outlook
from leakline.analysis.forecast.oom_forecast import widened
from leakline.analysis.results import ForecastScore, Interval, PastForecast
from leakline.analysis.statistics.trend import Z_90


def score(history: RunHistory) -> ForecastScore:
    found = examine(history).forecast_score
    assert found is not None
    return found


def test_a_steady_leak_is_forecast_to_the_hundredth() -> None:
    found = score(Training(60, leaks=(kept_environments(),)).history())
    assert len(found.past) == MAX_FORECASTS
    assert found.forecasts == sum(lead.forecasts for lead in found.by_lead) > len(found.past)
    assert found.within == sum(lead.within for lead in found.by_lead)
    assert found.median_error < 0.01
    assert found.within >= 0.75 * found.forecasts
    assert found.sentence.startswith(
        f"{found.forecasts} forecasts could be checked: typically off by less than 1 %; "
    )


def test_growth_that_stopped_gives_forecasts_that_were_too_high() -> None:
    """24 generations of growth, then none: the forecast of generation 23 for 35 was too high by 12 generations."""
    levels = [GIB + min(g, 24) * 50 * MIB for g in range(60)]
    found = score(history_of(levels))
    made = {each.made_at: each for each in found.past}
    last = made[23]
    assert last.generation == 35
    assert last.actual == levels[35]
    assert last.forecast.estimate == pytest.approx(levels[23] + 12 * 50 * MIB, rel=0.001)
    assert made[15].forecast.estimate == pytest.approx(levels[23], rel=0.001)
    assert not last.forecast.low <= last.actual <= last.forecast.high
    assert found.within < found.forecasts
    # Once memory is flat, no forecasts are made.
    assert max(made) < 40


def test_the_error_is_given_by_lead() -> None:
    """With accelerating growth the error increases with the lead."""
    levels = [float(GIB + MIB * max(0, g - 6) ** 3 // 4) for g in range(64)]
    leads = score(history_of(levels)).by_lead
    ahead = [(each.lead_from, each.lead_to) for each in leads[:4]]
    assert ahead == [(2, 3), (4, 7), (8, 15), (16, 31)]
    for each in leads:
        assert each.forecasts == len(each.past) > 0
        assert all(each.lead_from <= p.generation - p.made_at <= each.lead_to for p in each.past)
        errors = [abs(p.forecast.estimate - p.actual) / p.actual for p in each.past]
        assert each.median_error == pytest.approx(median(errors), abs=1e-4)
        assert all(p.actual == levels[p.generation] for p in each.past)
    of_one: dict[int, list[float]] = {}
    for p in sorted((p for each in leads for p in each.past), key=lambda p: p.generation):
        of_one.setdefault(p.made_at, []).append(abs(p.forecast.estimate - p.actual) / p.actual)
    assert all(errors == sorted(errors) for errors in of_one.values())


def test_the_error_is_small_at_every_lead_over_finished_runs() -> None:
    """Generated leaks with noise and their own start, scored after their end."""
    errors: dict[int, list[float]] = {}
    within = forecasts = 0
    for seed in range(8):
        chance = random.Random(seed)
        leak = Leak(IN_TRAINING, chance.uniform(5, 40) * MIB, start=chance.randint(0, 6))
        run = replace(Training(48, leaks=(leak,), seed=seed).history(), ended=True)
        for lead in score(run).by_lead:
            errors.setdefault(lead.lead_from, []).append(lead.median_error)
            within, forecasts = within + lead.within, forecasts + lead.forecasts
    by_lead = {ahead: median(found) for ahead, found in errors.items()}
    assert sorted(by_lead) == [2, 4, 8, 16]
    assert max(by_lead.values()) < 0.05
    assert within >= 0.75 * forecasts


def test_a_filling_buffer_with_room_never_gives_an_oom_forecast() -> None:
    """Extrapolated as a line it would exceed the limit, but its capacity ends before that."""
    filling = Training(
        40, buffer_full_after=30, buffer_bytes=3 * GIB, noise=0.2 * MIB, warm_up=(0,),
        limit_bytes=round(3.6 * GIB),
    )  # fmt: skip
    for generations in range(1, 41, 3):
        verdict = examine(replace(filling, generations=generations).history())
        assert verdict.oom.generation is None, generations
        assert verdict.oom.risk in ("none", "low"), generations
    undeclared = replace(filling, declare_buffer=False, generations=20)
    assert examine(undeclared.history()).oom.generation is not None


def test_a_forecast_for_the_future_is_not_scored() -> None:
    leaking = Training(40, leaks=(Leak(IN_TRAINING, 20 * MIB),))
    assert examine(replace(leaking, generations=11).history()).forecast_score is None
    one = score(replace(leaking, generations=12).history())
    assert (len(one.past), one.past[0].made_at, one.past[0].generation) == (1, 7, 11)
    # For a quarter and for half of the elapsed time ahead.
    assert one.sentence.startswith("2 forecasts could be checked: typically off by ")


def test_later_readings_do_not_change_a_forecast() -> None:
    levels = [GIB + 20 * MIB * g + (g % 3) * MIB for g in range(60)]
    other = [*levels[:24], *(2 * v for v in levels[24:])]
    one, two = ({p.made_at: p for p in score(history_of(v)).past} for v in (levels, other))
    shared = [at for at in one if at in two and at < 24]
    assert shared
    assert all(one[at].forecast == two[at].forecast for at in shared)
    assert any(one[at].actual != two[at].actual for at in shared)


def test_a_filling_buffer_is_forecast_up_to_its_capacity() -> None:
    training = Training(
        40, buffer_full_after=20, buffer_bytes=2 * GIB, noise=0.2 * MIB, warm_up=(0,)
    )
    found = score(training.history())
    assert found.median_error < 0.05
    # At 15 the buffer is at four fifths; extrapolated over eight generations it would be a fifth too full.
    made = next(p for p in found.past if p.made_at == 15)
    assert made.forecast.estimate == pytest.approx(made.actual, rel=0.05)


@pytest.mark.parametrize("generations", [3, 40])
def test_without_a_forecast_there_is_no_score(generations: int) -> None:
    levels = [GIB + (g % 3) * MIB for g in range(generations)]
    assert examine(history_of(levels)).forecast_score is None


def test_processes_of_a_run_are_forecast_together() -> None:
    levels = [GIB + 50 * MIB * g for g in range(30)]
    one = history_of(levels)
    (first,) = one.processes
    both = score(replace(one, processes=(first, replace(first, instance="p1", rank=1))))
    assert all(p.actual == 2 * levels[p.generation] for p in both.past)
    assert both.median_error < 0.01


def _made(
    made_at: int, generation: int, estimate: float = 100.0, came: float = 100.0, reach: float = 10.0
) -> PastForecast:
    return PastForecast(
        made_at, generation, Interval(estimate, estimate - reach, estimate + reach), came
    )


def test_forecasts_are_made_four_times_per_doubling() -> None:
    assert list(grid(11)) == []
    assert list(grid(12)) == [(8, 12)]
    assert list(grid(48)) == [
        (8, 12), (10, 15), (12, 18), (14, 21), (16, 24), (20, 30), (24, 36), (28, 42), (32, 48),
    ]  # fmt: skip
    # The forecasts of a longer run include those of a shorter one, and remain few.
    assert list(grid(300)) == [pair for pair in grid(3_000) if pair[1] <= 300]
    assert len(list(grid(3_000))) <= 4 * 9


@pytest.mark.parametrize(
    ("came", "within"), [(90.0, True), (89.0, False), (110.0, True), (111.0, False)]
)
def test_both_ends_of_a_forecast_are_inclusive(came: float, within: bool) -> None:
    assert came_within(_made(8, 12, came=came)) == within


def test_the_error_of_several_forecasts_is_their_median() -> None:
    past = [_made(8, 12, came=100.0), _made(10, 15, came=80.0), _made(12, 18, came=125.0)]
    assert _right(past) == (0.2, 1)


def test_forecasts_are_grouped_by_doublings_of_their_lead() -> None:
    one, two, three, four = _made(8, 9), _made(8, 10), _made(8, 11), _made(8, 12, came=80.0)
    found = list(_by_lead([four, three, one, two]))
    assert [(e.lead_from, e.lead_to, e.forecasts) for e in found] == [
        (1, 1, 1), (2, 3, 2), (4, 7, 1),
    ]  # fmt: skip
    assert [(e.median_error, e.within) for e in found] == [(0.0, 1), (0.0, 2), (0.25, 0)]
    assert found[1].past == (two, three)


@pytest.mark.parametrize(
    ("error", "size"), [(0.009, "less than 1 %"), (0.01, "1 %"), (0.256, "26 %")]
)
def test_the_sentence_gives_the_error_in_whole_percent(error: float, size: str) -> None:
    one = _score_sentence([_made(8, 12)], error, 1, "step")
    assert one == (
        "The only forecast that could be checked, made at step 8 for step 12, "
        f"was off by {size}, inside its interval."
    )
    assert _score_sentence([_made(8, 12)], error, 0, "step").endswith("outside its interval.")
    said = _score_sentence([_made(8, 12)] * 2, error, 1, "step")
    assert said == (
        f"2 forecasts could be checked: typically off by {size}; "
        "1 interval contained the actual memory"
    )
    assert _score_sentence([_made(8, 12)] * 2, error, 2, "step").endswith(
        "; all 2 intervals contained the actual memory"
    )


def test_without_a_rate_a_forecast_varies_as_much_as_memory() -> None:
    assert _ahead(Outlook(spread=10.0), 4.0) == (-10 * Z_90, 0.0, 10 * Z_90)


def test_an_accelerating_rate_adds_a_quadratic_term() -> None:
    steady = _ahead(Outlook(sure(100.0)), 4.0)
    faster = _ahead(Outlook(sure(100.0), gains=3.0), 4.0)
    assert steady[1] == 400.0
    # Only the expected and the highest values accelerate; the lowest does not.
    assert (faster[0], faster[1], faster[2] - steady[2]) == (steady[0], 424.0, 24.0)
    assert steady[0] == 4 * widened(sure(100.0))[0]
    assert steady[2] == 4 * widened(sure(100.0))[1]
