"""Comparison: did the fix work, by how much, where, and what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import (
    EVALUATE,
    EVOLVE,
    MIB,
    TRAIN,
    Leak,
    Training,
    kept_environments,
    loss_graph,
    old_population,
)

from leakline.analysis import compare, environment_changes, history_from_batches, to_json
from leakline.analysis.comparison import RESIDENT, _less


def _run(*leaks: object, seed: int = 1, **options: object) -> Training:
    return Training(leaks=leaks, seed=seed, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_two_fixed_runs_have_no_effect_on_each_other(seed: int) -> None:
    result = compare(_run(seed=seed).history(), _run(seed=seed + 50).history())
    assert result.outcome == "no_effect", result.summary
    assert not result.findings.gone
    assert not result.findings.new


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", [kept_environments, loss_graph, old_population])
def test_a_leak_that_is_gone_is_fixed_with_its_reduction(make: type, seed: int) -> None:
    before, after = _run(make(), seed=seed, run="a"), _run(seed=seed + 50, run="b")
    result = compare(before.history(), after.history())
    assert result.outcome == "fixed", result.summary
    change = result.growth_bytes_per_generation.change_percent
    assert change is not None
    assert change < -85
    assert "less growth" in result.summary
    assert len(result.findings.gone) == 1
    assert not result.findings.still
    assert (result.before, result.after, result.generations_compared) == ("a", "b", 16)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_leak_in_both_runs_is_no_effect_and_still_there(seed: int) -> None:
    result = compare(
        _run(kept_environments(), seed=seed).history(), _run(kept_environments(), seed=seed + 50).history()
    )  # fmt: skip
    assert result.outcome == "no_effect", result.summary
    assert [f.phase for f in result.findings.still] == [EVALUATE]


def test_a_new_leak_is_worse() -> None:
    result = compare(_run().history(), _run(loss_graph(), seed=2).history())
    assert result.outcome == "worse"
    assert [f.phase for f in result.findings.new] == [TRAIN]


def test_one_of_two_leaks_fixed_is_improved() -> None:
    before = _run(old_population(), loss_graph()).history()
    result = compare(before, _run(loss_graph(), seed=2).history())
    assert result.outcome == "improved"
    assert {f.phase for f in result.findings.gone} == {EVOLVE}
    assert {f.phase for f in result.findings.still} == {TRAIN}


def test_too_few_generations_are_undecided() -> None:
    result = compare(
        _run(kept_environments(), generations=3).history(), _run(generations=3).history()
    )
    assert result.outcome == "undecided"
    assert "only 3 generations" in result.summary


def test_runs_of_different_length_are_compared_where_both_ran() -> None:
    result = compare(
        _run(kept_environments(), generations=10).history(), _run(generations=20).history()
    )
    assert (result.outcome, result.generations_compared) == ("fixed", 10)


def test_tables_by_phase_and_type_start_with_the_largest_change() -> None:
    result = compare(_run(kept_environments()).history(), _run(seed=2).history())
    assert result.by_phase[0].phase == EVALUATE
    types = {row.type: row for row in result.by_type}
    row = types["trading.TradingEnvironment"]
    assert (row.before_per_generation, row.after_per_generation) == (16, 0)
    assert (row.before_last, row.after_last) == (2 + 16 * 16, 2)


def test_counts_are_compared_at_the_same_generation() -> None:
    """The same leak in a longer run is no larger one."""
    before = _run(kept_environments(), generations=10)
    after = _run(kept_environments(), generations=20, seed=2)
    result = compare(before.history(), after.history())
    row = next(row for row in result.by_type if row.type == "trading.TradingEnvironment")
    assert row.before_last == row.after_last == 2 + 10 * 16


@pytest.mark.parametrize("seed", range(5))
def test_the_difference_has_an_interval_of_its_own(seed: int) -> None:
    before = _run(kept_environments(), seed=seed).history()
    gone = compare(before, _run(seed=seed + 50).history()).growth_bytes_per_generation.difference
    assert gone is not None
    assert gone.low <= gone.estimate <= gone.high < -4 * MIB
    same = compare(before, _run(kept_environments(), seed=seed + 50).history())
    for difference in (same.growth_bytes_per_generation.difference, same.by_phase[0].difference):
        assert difference is not None
        assert abs(difference.estimate) < 2 * MIB
        assert difference.high - difference.low > 0


def test_noise_of_two_equal_runs_is_no_difference_of_their_phases() -> None:
    """The interval is one of 90 %: of sixty phases compared some six may be off."""
    off = told = 0
    for seed in range(20):
        pair = (_run(seed=seed).history(), _run(seed=seed + 50).history())
        for row in compare(*pair).by_phase:
            if row.difference is not None and row.phase != "between":
                told += 1
                off += not row.difference.low <= 0 <= row.difference.high
    assert told >= 60
    assert off <= 0.25 * told


def test_a_resumed_run_is_compared_over_all_its_attempts() -> None:
    leak = old_population()
    attempts = [
        Training(leaks=(leak,), generations=9, instance="p1"),
        Training(
            leaks=(leak,), generations=10, instance="p2", attempt=2, first_generation=8, seed=5
        ),
    ]
    batches = [batch for attempt in attempts for batch in attempt.batches()]
    before = history_from_batches(attempts[0].header(), batches)
    result = compare(before, _run(generations=18, seed=9).history())
    assert (result.outcome, result.generations_compared) == ("fixed", 18), result.summary
    # What the crash freed is neither growth nor a release.
    was = result.growth_bytes_per_generation.before
    assert was is not None
    assert was.estimate == pytest.approx(8 * MIB, rel=0.25)


def test_peak_and_time_are_compared() -> None:
    result = compare(_run(kept_environments(), peak_in_evolve=50 * MIB).history(), _run().history())
    assert result.peak_bytes.before > result.peak_bytes.after
    seconds = result.seconds_per_generation
    assert seconds.before == pytest.approx(4.0, abs=0.2)
    slow = _run().history()
    (process,) = slow.processes
    doubled = [s and 2 * s for s in process.series["generation.seconds"]]
    process = replace(process, series={**process.series, "generation.seconds": doubled})
    twice = compare(_run().history(), replace(slow, processes=(process,))).seconds_per_generation
    assert twice.after == pytest.approx(8.0, abs=0.4)
    assert twice.change_percent == pytest.approx(100, abs=5)


def test_the_classes_of_the_program_stand_above_the_dicts_and_lists_that_grow_with_them() -> None:
    noise = {
        "dict": 400.0,
        "list": 300.0,
        "cell": 200.0,
        "app.Agent": 2.0,
        "collections.OrderedDict": 90.0,
    }
    found = compare(
        _run(kept_environments(), Leak(TRAIN, MIB, noise)).history(),
        _run(seed=51).history(),
    ).by_type
    names = [row.type for row in found]
    assert names[0] == "trading.TradingEnvironment"
    after = names.index("app.Agent")
    assert all(
        names.index(each) > after for each in ("dict", "list", "cell", "collections.OrderedDict")
    )
    # Among themselves by their growth.
    assert names.index("dict") < names.index("list") < names.index("cell")


def test_memory_is_compared_after_the_newest_generation_that_both_runs_have() -> None:
    long, short = _run(kept_environments()).history(), Training(generations=7).history()
    found = compare(long, short).memory_after
    assert found is not None
    assert (found.generations, found.generation) == (7, 6)
    for side, history in ((found.before, long), (found.after, short)):
        (process,) = history.processes
        ends = zip(process.generation, process.kind, process.series[RESIDENT[0]], strict=True)
        assert side == next(rss for g, kind, rss in ends if (g, kind) == (6, "generation_end"))
    assert found.before is not None and found.after is not None and found.before > found.after
    assert found.change_percent == pytest.approx(100 * (found.after / found.before - 1), abs=0.1)


def test_memory_that_one_side_did_not_read_there_is_not_known() -> None:
    history = _run().history()
    (process,) = history.processes
    unread = {**process.series, RESIDENT[0]: [None] * len(process)}
    blind = replace(history, processes=(replace(process, series=unread),))
    found = compare(history, blind).memory_after
    assert found is not None and found.before is not None
    assert (found.after, found.change_percent) == (None, None)
    units = compare(history, replace(history, unit="epoch"))
    assert units.memory_after is None


def test_what_differs_between_the_environments_is_listed() -> None:
    changes = environment_changes(
        {"commit": "a1", "packages": {"torch": "2.12", "numpy": "2.4"}},
        {"commit": "b2", "packages": {"torch": "2.13", "numpy": "2.4", "tqdm": "4"}},
    )
    assert changes == {"commit": ("a1", "b2"), "torch": ("2.12", "2.13"), "tqdm": (None, "4")}


def test_the_json_has_the_fields_of_the_contract() -> None:
    result = to_json(compare(_run(kept_environments()).history(), _run().history()))
    assert set(result) == {
        "before", "after", "outcome", "summary", "generations_compared", "growth_bytes_per_generation",
        "peak_bytes", "seconds_per_generation", "by_phase", "by_type", "findings", "environment_changes", "fixes",
        "by_gauge", "survival", "effects", "memory_after", "generations_passed",
    }  # fmt: skip
    growth = result["growth_bytes_per_generation"]
    assert set(growth) == {"before", "after", "change_percent", "difference"}
    assert set(growth["difference"]) == {"estimate", "low", "high"}
    assert set(result["findings"]) == {"gone", "still", "new"}


def test_two_runs_without_a_leak_whose_allocator_settled_differently_are_the_same() -> None:
    # Seen on two fixed trainings: -148 KiB and +708 KiB per generation of 300 MiB, each with a narrow interval.
    creep = Leak(EVOLVE, 0.85 * MIB, {})
    found = compare(Training(seed=1).history(), Training(leaks=(creep,), seed=1).history())
    assert found.outcome == "no_effect", found.summary


@pytest.mark.parametrize(
    ("percent", "told"),
    [(-100.0, "100"), (-150.0, "100"), (-99.6, "99.6"), (-99.97, "99.9"), (-98.6, "99"), (None, "0")],
)  # fmt: skip
def test_all_of_it_is_said_only_where_nothing_is_left(percent: float | None, told: str) -> None:
    assert _less(percent) == told
