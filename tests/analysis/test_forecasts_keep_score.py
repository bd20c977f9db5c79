"""How right the forecasts of a run were: made then, for a later generation, against what came."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import corpus
import pytest
from builder import GIB, MIB, Leak, Training, kept_environments
from builder import TRAIN as IN_TRAINING

from leakline.analysis import RunHistory, examine
from leakline.analysis.history import ProcessHistory
from leakline.analysis.results import ForecastScore
from leakline.analysis.score import MAX_FORECASTS, grid


def of_levels(levels: list[float], rank: int = 0) -> RunHistory:
    n = len(levels)
    process = ProcessHistory(
        f"p{rank}", rank, "main", 1, range(n), [60.0 * i for i in range(n)], [60.0 * i for i in range(n)],
        range(n), [None] * n, [""] * n, ["generation_end"] * n,
        {"process.anon_bytes": [round(v) for v in levels]},
    )  # fmt: skip
    return RunHistory("r", processes=(process,))


def score(history: RunHistory) -> ForecastScore:
    found = examine(history).forecast_score
    assert found is not None
    return found


def test_a_steady_leak_is_forecast_to_the_hundredth() -> None:
    found = score(Training(60, leaks=(kept_environments(),)).history())
    assert len(found.past) == MAX_FORECASTS
    assert found.median_error < 0.01
    assert found.within >= 0.75 * found.forecasts
    assert found.sentence.startswith(
        f"{found.forecasts} forecasts could be checked: typically off by less than 1 % of the memory that came; "
    )


def test_the_score_is_the_sum_of_its_table() -> None:
    found = score(Training(60, leaks=(kept_environments(),)).history())
    assert found.forecasts == sum(lead.forecasts for lead in found.by_lead) > len(found.past)
    assert found.within == sum(lead.within for lead in found.by_lead)


def test_a_growth_that_stopped_shows_as_forecasts_that_were_too_high() -> None:
    """24 generations of growth, then none: what generation 23 foretold for 35 was 12 generations of it too much."""
    levels = [GIB + min(g, 24) * 50 * MIB for g in range(60)]
    found = score(of_levels(levels))
    made = {each.made_at: each for each in found.past}
    last = made[23]
    assert last.generation == 35
    assert last.came == levels[35]
    assert last.forecast.estimate == pytest.approx(levels[23] + 12 * 50 * MIB, rel=0.001)
    assert made[15].forecast.estimate == pytest.approx(levels[23], rel=0.001)
    assert not last.forecast.low <= last.came <= last.forecast.high
    assert found.within < found.forecasts
    # Once it is flat, nothing is forecast any more.
    assert max(made) < 40


def test_the_error_is_the_median_over_the_forecasts_as_a_share_of_what_came() -> None:
    levels = [GIB + 2 * MIB * max(0, g - 6) ** 2 for g in range(40)]
    found = score(of_levels(levels))
    every = [p for lead in found.by_lead for p in lead.past]
    errors = [abs(p.forecast.estimate - p.came) / p.came for p in every]
    assert found.median_error == pytest.approx(median(errors), abs=1e-4)
    assert found.median_error > 0.02
    assert all(p.came == levels[p.generation] for p in found.past)
    assert f"off by {found.median_error:.0%}".replace("%", " %") in found.sentence


def test_the_error_is_told_by_how_far_ahead_it_was() -> None:
    """Growth that speeds up: the further ahead, the more is missing."""
    levels = [float(GIB + MIB * max(0, g - 6) ** 3 // 4) for g in range(64)]
    leads = score(of_levels(levels)).by_lead
    ahead = [(each.ahead_from, each.ahead_to) for each in leads[:4]]
    assert ahead == [(2, 3), (4, 7), (8, 15), (16, 31)]
    for each in leads:
        assert each.forecasts == len(each.past) > 0
        assert all(each.ahead_from <= p.generation - p.made_at <= each.ahead_to for p in each.past)
        errors = [abs(p.forecast.estimate - p.came) / p.came for p in each.past]
        assert each.median_error == pytest.approx(median(errors), abs=1e-4)
        assert all(p.came == levels[p.generation] for p in each.past)
    of_one: dict[int, list[float]] = {}
    for p in sorted((p for each in leads for p in each.past), key=lambda p: p.generation):
        of_one.setdefault(p.made_at, []).append(abs(p.forecast.estimate - p.came) / p.came)
    assert all(errors == sorted(errors) for errors in of_one.values())


def test_over_finished_runs_the_error_is_small_at_every_lead() -> None:
    """The back-test: 40 made-up leaks with noise and a start of their own, each once it has ended."""
    errors: dict[int, list[float]] = {}
    within = forecasts = 0
    for seed in range(40):
        chance = random.Random(seed)
        leak = Leak(IN_TRAINING, chance.uniform(5, 40) * MIB, start=chance.randint(0, 6))
        run = replace(Training(48, leaks=(leak,), seed=seed).history(), ended=True)
        for lead in score(run).by_lead:
            errors.setdefault(lead.ahead_from, []).append(lead.median_error)
            within, forecasts = within + lead.within, forecasts + lead.forecasts
    told = {ahead: median(found) for ahead, found in errors.items()}
    assert sorted(told) == [2, 4, 8, 16]
    assert max(told.values()) < 0.05
    assert within >= 0.75 * forecasts


def test_of_a_buffer_that_fills_and_has_room_it_is_never_foretold_that_memory_runs_out() -> None:
    """Carried on as a line it would pass the limit; its capacity ends before that."""
    filling = Training(
        40, buffer_full_after=30, buffer_bytes=3 * GIB, noise=0.2 * MIB, warm_up=(0,),
        limit_bytes=round(3.6 * GIB),
    )  # fmt: skip
    for generations in range(1, 41):
        verdict = examine(replace(filling, generations=generations).history())
        assert verdict.oom.generation is None, generations
        assert verdict.oom.risk in ("none", "low"), generations
    undeclared = replace(filling, declare_buffer=False, generations=20)
    assert examine(undeclared.history()).oom.generation is not None


@pytest.mark.parametrize("generations", [3, 11, 40, 200])
def test_where_nothing_was_forecast_there_is_no_score(generations: int) -> None:
    levels = [GIB + (g % 3) * MIB for g in range(generations)]
    assert examine(of_levels([float(v) for v in levels])).forecast_score is None
    assert examine(RunHistory("empty")).forecast_score is None


def test_a_forecast_whose_time_has_not_come_is_not_scored() -> None:
    leaking = Training(40, leaks=(Leak(IN_TRAINING, 20 * MIB),))
    assert examine(replace(leaking, generations=11).history()).forecast_score is None
    one = score(replace(leaking, generations=12).history())
    assert (len(one.past), one.past[0].made_at, one.past[0].generation) == (1, 7, 11)
    # For a quarter and for half as far ahead.
    assert one.sentence.startswith("2 forecasts could be checked: typically off by ")


def test_a_forecast_once_scored_stays_as_it_is_while_the_run_goes_on() -> None:
    case = corpus.linear(random.Random(3), 200)
    early = score(corpus.history_of(case, 40)).past
    later = score(corpus.history_of(case, 48)).past
    known = {each.made_at: each for each in later}
    shared = [each for each in early if each.made_at in known]
    assert len(shared) >= 5
    assert all(known[each.made_at] == each for each in shared)


def test_what_came_later_does_not_change_what_was_foretold() -> None:
    levels = [GIB + 20 * MIB * g + (g % 3) * MIB for g in range(60)]
    other = [*levels[:24], *(2 * v for v in levels[24:])]
    one, two = ({p.made_at: p for p in score(of_levels(v)).past} for v in (levels, other))
    shared = [at for at in one if at in two and at < 24]
    assert shared
    assert all(one[at].forecast == two[at].forecast for at in shared)
    assert any(one[at].came != two[at].came for at in shared)


def test_a_filling_buffer_is_forecast_up_to_its_capacity() -> None:
    training = Training(
        40, buffer_full_after=20, buffer_bytes=2 * GIB, noise=0.2 * MIB, warm_up=(0,)
    )
    found = score(training.history())
    assert found.median_error < 0.05
    # At 15 the buffer holds four fifths; carried on for eight generations it would be a fifth too full.
    made = next(p for p in found.past if p.made_at == 15)
    assert made.forecast.estimate == pytest.approx(made.came, rel=0.05)


def test_the_processes_of_a_run_are_forecast_together() -> None:
    levels = [GIB + 50 * MIB * g for g in range(30)]
    one, two = of_levels([float(v) for v in levels]), of_levels([float(v) for v in levels], rank=1)
    both = score(replace(one, processes=(*one.processes, *two.processes)))
    assert all(p.came == 2 * levels[p.generation] for p in both.past)
    assert both.median_error < 0.01


def test_the_moments_are_few_fixed_and_have_come() -> None:
    assert list(grid(11)) == []
    assert list(grid(24)) == [(8, 12), (10, 15), (12, 18), (14, 21), (16, 24)]
    for n in (24, 100, 3000):
        assert list(grid(n)) == [pair for pair in grid(10 * n) if pair[1] <= n]
        assert len(list(grid(n))) <= 4 * 9


def test_a_long_run_is_scored_by_a_handful_of_forecasts() -> None:
    levels = [GIB + MIB * g + (g % 5) * MIB / 4 for g in range(2000)]
    assert len(score(of_levels(levels)).past) == MAX_FORECASTS
