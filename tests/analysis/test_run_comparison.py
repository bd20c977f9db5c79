"""Comparison of two runs: whether the fix worked, by how much, where, and what remains."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from builder import (
    EVALUATE,
    MIB,
    TRAIN,
    Leak,
    Training,
    history_of,
    kept_environments,
    loss_graph,
    old_population,
)
from pieces import finding, steps_history, with_series

from leakline.analysis import (
    RunHistory,
    compare,
    environment_changes,
    history_from_batches,
    to_json,
)
from leakline.analysis.comparison.comparison_results import (
    FindingChanges,
    Outcome,
    PhaseChange,
    Survival,
    TypeChange,
    change_of,
    percent_of,
)
from leakline.analysis.comparison.run_comparison import (
    CLEAN,
    RESIDENT,
    _both_have,
    _by_phase,
    _by_type,
    _end,
    _finding_changes,
    _less,
    _outcome,
    _shared_generations,
    _shows,
    _Side,
    _summary,
    _type_change,
    survival_change,
    warm_up,
)
from leakline.analysis.findings.growth_tables import type_growth
from leakline.analysis.findings.verdict_summary import DEFAULTS
from leakline.analysis.results import Interval, Status, TypeGrowth
from leakline.analysis.run_history import LeftOut, ProcessHistory, Spans
from leakline.analysis.statistics.memory_evidence import Scale


def _run(*leaks: object, seed: int = 1, **options: object) -> RunHistory:
    return Training(leaks=leaks, seed=seed, **options).history()  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_two_fixed_runs_have_no_effect_on_each_other(seed: int) -> None:
    result = compare(_run(seed=seed), _run(seed=seed + 50))
    assert result.outcome == "no_effect", result.summary
    assert not result.findings.gone
    assert not result.findings.new


@pytest.mark.parametrize("make", [kept_environments, loss_graph, old_population])
def test_a_leak_that_is_gone_is_fixed_with_its_reduction(make: type) -> None:
    before, after = _run(make(), run="a"), _run(seed=50, run="b")
    result = compare(before, after)
    assert result.outcome == "fixed", result.summary
    growth = result.growth_bytes_per_generation
    assert growth.change_percent is not None and growth.change_percent < -85
    assert growth.difference is not None
    assert growth.difference.low <= growth.difference.estimate <= growth.difference.high < -4 * MIB
    assert "less growth" in result.summary
    assert len(result.findings.gone) == 1
    assert not result.findings.still
    assert (result.before, result.after, result.generations_compared) == ("a", "b", 16)


def test_phase_and_type_tables_start_with_the_largest_change() -> None:
    result = compare(_run(kept_environments()), _run(seed=2))
    assert result.by_phase[0].phase == EVALUATE
    types = {row.type: row for row in result.by_type}
    row = types["trading.TradingEnvironment"]
    assert (row.before_per_generation, row.after_per_generation) == (16, 0)
    assert (row.before_last, row.after_last) == (2 + 16 * 16, 2)


@pytest.mark.long
def test_noise_of_two_equal_runs_is_not_a_difference_of_phases() -> None:
    """Intervals cover 90 %: of sixty phases about six may be off."""
    off = compared = 0
    for seed in range(20):
        pair = (_run(seed=seed), _run(seed=seed + 50))
        for row in compare(*pair).by_phase:
            if row.difference is not None and row.phase != "between":
                compared += 1
                off += not row.difference.low <= 0 <= row.difference.high
    assert compared >= 60
    assert off <= 0.25 * compared


def test_a_resumed_run_is_compared_over_all_its_attempts() -> None:
    first = Training(leaks=(old_population(),), generations=9, instance="p1")
    again = replace(first, generations=10, instance="p2", attempt=2, first_generation=8, seed=5)
    before = history_from_batches(first.header(), [*first.batches(), *again.batches()])
    result = compare(before, _run(generations=18, seed=9))
    assert (result.outcome, result.generations_compared) == ("fixed", 18), result.summary
    # Memory freed by the crash is neither growth nor a release.
    was = result.growth_bytes_per_generation.before
    assert was is not None
    assert was.estimate == pytest.approx(8 * MIB, rel=0.25)


def test_peak_and_time_are_compared() -> None:
    result = compare(_run(kept_environments(), peak_in_evolve=50 * MIB), _run())
    assert result.peak_bytes.before > result.peak_bytes.after
    seconds = result.seconds_per_generation
    assert seconds.before == pytest.approx(4.0, abs=0.2)
    slow = with_series(_run(), {"generation.seconds": 8.0})
    twice = compare(_run(), slow).seconds_per_generation
    assert twice.after == pytest.approx(8.0, abs=0.4)
    assert twice.change_percent == pytest.approx(100, abs=5)


def test_program_classes_come_before_dicts_and_lists() -> None:
    plain = {"dict": 400.0, "list": 300.0, "cell": 200.0, "collections.OrderedDict": 90.0}
    noise = Leak(TRAIN, MIB, {**plain, "app.Agent": 2.0})
    found = compare(_run(kept_environments(), noise), _run(seed=51)).by_type
    names = [row.type for row in found]
    assert names[0] == "trading.TradingEnvironment"
    # They are sorted by their growth; constant types come after all of them.
    moving = [name for name in names if name in {"app.Agent", *plain}]
    assert moving == ["app.Agent", *plain]
    assert names.index("agents.Actor") > names.index("collections.OrderedDict")


def test_memory_is_compared_after_the_newest_common_generation() -> None:
    long, short = _run(kept_environments()), Training(generations=7).history()
    found = compare(long, short).memory_after
    assert found is not None
    assert (found.generations, found.generation) == (7, 6)
    for side, history in ((found.before, long), (found.after, short)):
        (process,) = history.processes
        ends = zip(process.generation, process.kind, process.series[RESIDENT[0]], strict=True)
        assert side == next(rss for g, kind, rss in ends if (g, kind) == (6, "generation_end"))
    assert found.before is not None and found.after is not None and found.before > found.after
    assert found.change_percent == pytest.approx(100 * (found.after / found.before - 1), abs=0.1)


def test_memory_not_read_by_one_side_is_unknown() -> None:
    history = _run()
    found = compare(history, with_series(history, {RESIDENT[0]: None})).memory_after
    assert found is not None and found.before is not None
    assert (found.after, found.change_percent) == (None, None)
    units = compare(history, replace(history, unit="epoch"))
    assert units.memory_after is None


def test_the_json_has_the_fields_of_the_contract() -> None:
    result = to_json(compare(_run(kept_environments()), _run()))
    assert set(result) == {
        "before", "after", "outcome", "summary", "generations_compared", "growth_bytes_per_generation",
        "peak_bytes", "seconds_per_generation", "by_phase", "by_type", "findings", "environment_changes", "assertions",
        "by_gauge", "survival", "effects", "memory_after", "generations_passed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(-100.0, "100"), (-150.0, "100"), (-99.6, "99.6"), (-99.97, "99.9"), (-98.6, "99"), (None, "0")],
)  # fmt: skip
def test_all_growth_is_gone_only_if_nothing_remains(percent: float | None, expected: str) -> None:
    assert _less(percent) == expected


# Over ten generations growth of 2.5 per generation matters, and runs differ from 10 per generation on.
BASELINE = 1_000.0
GENERATIONS = 10


def around(estimate: float, reach: float = 1.0) -> Interval:
    return Interval(estimate, estimate - reach, estimate + reach)


def side(
    growth: Interval | None = None, *, leaks: bool = False, baseline: float = BASELINE,
    phases: dict[str, Interval] | None = None, unit: str = "generation", status: Status | None = None,
) -> _Side:  # fmt: skip
    status = status or ("confirmed" if leaks else "ok")
    return cast(
        _Side,
        SimpleNamespace(
            growth=growth, leaks=leaks, baseline=baseline, phases=phases or {},
            history=SimpleNamespace(unit=unit), matters=Scale(baseline).is_material,
            stretch=SimpleNamespace(spacing=1), verdict=SimpleNamespace(status=status), is_clean=status in CLEAN,
        ),
    )  # fmt: skip


def outcome(
    old: Interval | None, new: Interval | None, *, leaked: bool = True, leaks: bool = True,
    generations: int = GENERATIONS, changes: FindingChanges | None = None,
) -> Outcome:  # fmt: skip
    return _outcome(
        side(old, leaks=leaked), side(new, leaks=leaks), changes or FindingChanges(), generations
    )


def test_the_first_two_generations_are_warm_up_if_four_remain() -> None:
    assert [warm_up(n) for n in (0, 4, 5, 6, 7, 100)] == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        # Two runs of one program may differ by a fifth.
        (around(80), "no_effect"), (around(79.9), "improved"), (around(120), "no_effect"),
        (around(120.1), "worse"),
        # Half as much, but touching intervals do not count as different.
        (Interval(50, 40, 99), "no_effect"), (Interval(50, 40, 98.9), "improved"),
        (Interval(150, 101, 160), "no_effect"), (Interval(150, 101.1, 160), "worse"),
    ],
)  # fmt: skip
def test_growth_differs_by_a_fifth_with_separate_intervals(new: Interval, expected: str) -> None:
    assert outcome(around(100), new) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (around(100), around(19), "fixed"), (around(100), around(21), "improved"),
        # The remaining growth no longer matters, although four fifths are not gone.
        (around(3.5, 0.1), around(2.4, 0.1), "fixed"), (around(3.5, 0.1), around(2.5, 0.1), "improved"),
        # It did not matter before either: the finding is gone.
        (around(2.4), around(2.4), "fixed"),
        # It grows as before, although no finding remains.
        (around(100), around(100), "undecided"),
    ],
)  # fmt: skip
def test_a_leak_is_fixed_if_four_fifths_of_its_growth_are_gone(
    old: Interval, new: Interval, expected: str
) -> None:
    assert outcome(old, new, leaks=False) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (around(0), around(9.9), "no_effect"),
        (around(0), around(10), "worse"),
        (around(10), around(0), "fixed"),
        # A quarter more, but hardly any memory.
        (around(20), around(25), "no_effect"),
        # Slower shrinking is not a regression.
        (around(-100), around(-50), "no_effect"),
    ],
)  # fmt: skip
def test_healthy_runs_differ_from_a_tenth_of_memory_on(
    old: Interval, new: Interval, expected: str
) -> None:
    assert outcome(old, new, leaked=False, leaks=False) == expected


def test_too_little_data_gives_no_outcome() -> None:
    few = [outcome(around(1_000), around(500), generations=n) for n in (3, 4)]
    assert few == ["undecided", "improved"]
    assert outcome(None, around(5)) == outcome(around(5), None) == "undecided"


def test_differences_are_relative_to_the_larger_memory() -> None:
    large, small, empty = side(baseline=1_000), side(baseline=500), side(baseline=0)
    assert [_shows(large, small, by, GENERATIONS) for by in (9.9, -10.0)] == [False, True]
    assert [_shows(empty, empty, by, GENERATIONS) for by in (0.009, 0.01)] == [False, True]


def test_a_remaining_leak_is_not_fixed_however_small() -> None:
    assert outcome(around(100), around(1)) == "improved"
    assert outcome(around(100), around(1), leaked=False, leaks=False) == "fixed"


@pytest.mark.parametrize(
    ("status", "expected", "why"),
    [
        ("ok", "fixed", "Fixed: 100 B per generation before, 1 B after: 99 % less growth over 10 generations"),
        ("filling", "fixed", "Fixed: 100 B per generation before, 1 B after: 99 % less growth over 10 generations"),
        ("watch", "improved", "but the second run still has growth to watch"),
        ("recovered", "improved", "but the second run also leaked until its leak stopped"),
        ("learning", "improved", "but the second run was too short for a verdict"),
    ],
)  # fmt: skip
def test_a_leak_is_fixed_only_if_the_second_run_is_healthy(
    status: Status, expected: str, why: str
) -> None:
    a, b = side(around(100), leaks=True), side(around(1), status=status)
    assert _outcome(a, b, FindingChanges(), 10) == expected
    assert _summary(expected, a, b, 10).endswith(why)  # type: ignore[arg-type]
    # There is no percentage without measurable growth before.
    improved = _summary(
        "improved", side(around(0), leaks=True), side(around(-1), status=status), 10
    )
    assert "%" not in improved


@pytest.mark.parametrize(
    ("status", "expected"),
    [("confirmed", "worse"), ("suspected", "worse"), ("watch", "undecided"), ("ok", "undecided")],
)
def test_a_new_leak_is_worse_only_if_it_is_suspected(status: Status, expected: str) -> None:
    changes = FindingChanges(new=(finding(status),))
    assert outcome(around(5), around(5), leaked=False, changes=changes) == expected


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [
        (100, 50, -50.0), (3, 4, 33.3), (None, 5, None), (5, None, None), (0.9e-9, 5, None), (1e-9, 2e-9, 100.0),
        # The change from falling to rising is relative to the size of the fall.
        (-100, 50, 150.0), (-100, -150, -50.0),
    ],
)  # fmt: skip
def test_a_percentage_is_relative_to_the_size_before(
    before: float | None, after: float | None, percent: float | None
) -> None:
    assert percent_of(before, after) == percent


def test_the_errors_of_a_difference_add_up_as_squares() -> None:
    before, after = Interval(100, 96, 105), Interval(50, 38, 53)
    # Low end: after is up to 12 lower and before up to 5 higher. High end: after is up to 3 higher, before up to 4
    # lower.
    assert change_of(before, after) == (-50.0, Interval(-50, -63, -45))
    assert change_of(None, after) == change_of(before, None) == (None, None)


@pytest.mark.parametrize(
    ("expected", "was", "now", "sentence"),
    [
        ("fixed", 100, 10, "Fixed: 100 B per generation before, 10 B after: 90 % less growth over 10 generations"),
        ("improved", 100, 50, "Improved: 100 B per generation before, 50 B after (-50 %), but memory still grows"),
        ("worse", 100, 150, "Worse: 100 B per generation before, 150 B after (+50 %)"),
        ("worse", 1, 500, "Worse: 1 B per generation before, 500 B after (+49,900 %)"),
        # There is no percentage of zero growth.
        ("worse", 0, 150, "Worse: 0 B per generation before, 150 B after"),
        ("undecided", 100, 110,
            "Undecided: a change of +10 B per generation does not stand out from the noise over 10 generations"),
    ],
)  # fmt: skip
def test_the_sentence_gives_both_growths_and_the_change(
    expected: Outcome, was: float, now: float, sentence: str
) -> None:
    assert _summary(expected, side(around(was)), side(around(now)), GENERATIONS) == sentence


def test_neither_run_leaks_is_stated_only_if_true() -> None:
    expected = "No effect: 5 B per generation before, 6 B after, within the normal difference between two runs"
    for leaked, leaks in ((True, True), (True, False), (False, True)):
        a, b = side(around(5), leaks=leaked), side(around(6), leaks=leaks)
        assert _summary("no_effect", a, b, GENERATIONS) == expected
    neither = _summary("no_effect", side(around(5)), side(around(6)), GENERATIONS)
    assert neither == "No effect: neither run leaks (5 B per generation before, 6 B after)"


def test_the_sentence_gives_the_number_if_generations_are_too_few() -> None:
    a, b = side(around(5)), side(around(6))
    assert _summary("undecided", a, b, 0) == "Undecided: only 0 generations to compare"
    assert _summary("undecided", a, b, 1) == "Undecided: only 1 generation to compare"
    assert "only" not in _summary("undecided", a, b, 4)
    # Unknown growth of one run is too little as well.
    for pair in ((side(), b), (a, side())):
        assert _summary("undecided", *pair, 9) == "Undecided: only 9 generations to compare"


def test_minutes_are_not_compared_with_generations() -> None:
    said = _summary("undecided", side(around(5), unit="minute"), side(around(6)), GENERATIONS)
    assert said.startswith("Undecided: one run is counted in minutes, the other in generations;")


def test_phases_are_sorted_by_the_larger_of_their_growths() -> None:
    a = side(phases={"train": around(-50), "evaluate": around(10), "between": around(3)})
    b = side(phases={"evaluate": around(40), "evolve": around(50), "between": around(3), "add": around(3)})  # fmt: skip
    rows = _by_phase(a, b)
    # Equal growth is sorted by name, with memory outside phases last.
    assert [row.phase for row in rows] == ["evolve", "train", "evaluate", "add", "between"]
    assert rows[2] == PhaseChange("evaluate", around(10), around(40), 300.0, rows[2].difference)


def test_a_type_in_only_one_run_has_no_change() -> None:
    old = TypeGrowth("Env", 1, 9, around(4), None, None, None, None, None, "grows")
    new = replace(old, last_count=3, count_per_generation=around(2))
    difference = change_of(around(4), around(2))[1]
    assert _type_change("Env", old, new) == TypeChange("Env", 4, 2, 9, 3, -50.0, difference)
    assert _type_change("Env", None, new) == TypeChange("Env", None, 2, None, 3)
    assert _type_change("Env", old, None) == TypeChange("Env", 4, None, 9, None)


def test_findings_without_growth_are_neither_gone_nor_new() -> None:
    both, gone, calm = (finding(s, fingerprint=s) for s in ("suspected", "watch", "ok"))
    still, new = replace(both, status="confirmed"), finding("confirmed", fingerprint="new")
    changes = _finding_changes([both, gone, calm], [still, new, calm])
    assert changes == FindingChanges(gone=(gone,), still=(still,), new=(new,))


def test_packages_are_compared_one_by_one() -> None:
    before = {"python": "3.11", "packages": {"torch": "2.0", "numpy": "1.26"}, "commit": "a"}
    after = {"python": "3.11", "packages": {"torch": "2.1", "numpy": "1.26"}, "host": "b"}
    assert environment_changes(before, after) == {
        "commit": ("a", None), "host": (None, "b"), "torch": ("2.0", "2.1"),
    }  # fmt: skip
    # Anything but a list of packages is compared as a value.
    assert environment_changes({"packages": "x"}, {}) == {"packages": ("x", None)}


def process(
    generations: range, *, rank: int = 0, step: int = 0, left_out: Spans | None = None
) -> ProcessHistory:
    """Return resident memory of 100 that grows by ``step`` per generation, with a peak 10 higher."""
    resident = [100 + step * g for g in generations]
    series = {"process.rss_bytes": resident, "process.peak_bytes": [v + 10 for v in resident]}
    (found,) = steps_history([("generation_end", g, None) for g in generations], series).processes
    found = replace(found, instance=f"p{rank}", rank=rank)
    return found if left_out is None else replace(found, left_out=LeftOut(left_out))


def run_of(*processes: ProcessHistory) -> RunHistory:
    return RunHistory("r", processes=processes)


def side_of(history: RunHistory, shared: range) -> _Side:
    return _Side(history, shared, DEFAULTS)


def test_generations_in_only_one_run_are_not_shared() -> None:
    after = run_of(process(range(5)), process(range(3, 6), rank=1))
    assert _shared_generations(run_of(process(range(2, 8))), after) == [2, 3, 4, 5]


def test_unread_generations_count_if_both_runs_passed_them() -> None:
    whole, short = run_of(process(range(20))), run_of(process(range(10)))
    assert _both_have(whole, short, range(10)) == 10
    thinned = run_of(process(range(10, 20), left_out=Spans.of(range(10))))
    assert _both_have(thinned, run_of(process(range(15))), range(10, 15)) == 15
    assert _both_have(run_of(process(range(15))), thinned, range(10, 15)) == 15


def test_a_run_is_cut_after_the_newest_common_generation() -> None:
    history = run_of(process(range(6)), process(range(3), rank=1))
    cut = _end(history, [0, 1, 2])
    assert [list(p.generation) for p in cut.processes] == [[0, 1, 2], [0, 1, 2]]
    assert cut.processes[0].series["process.rss_bytes"] == [100, 100, 100]
    assert cut.processes[1] is history.processes[1]
    assert _end(history, []) is history


def test_the_peak_covers_shared_generations_of_all_processes() -> None:
    history = run_of(process(range(8), step=1), process(range(8), rank=1, step=2))
    assert side_of(history, range(5)).peak == (104 + 10) + (108 + 10)
    assert side_of(history, range(0)).peak == (107 + 10) + (114 + 10)
    assert side_of(RunHistory("r"), range(5)).peak is None


def test_growth_is_relative_to_the_memory_of_all_processes() -> None:
    two = side_of(run_of(process(range(8)), process(range(8), rank=1)), range(8))
    assert two.baseline == 200
    # Extrapolated over twenty generations, a twentieth of 200.
    assert two.matters(0.5, 10)
    assert not two.matters(0.49, 10)
    assert not two.leaks


def with_types(counts: dict[str, int]) -> RunHistory:
    """Return a run in which each type gains this many instances per generation."""
    of = {f"type.{name}.count": lambda g, each=each: each * g for name, each in counts.items()}
    return with_series(run_of(process(range(8))), of)


def test_the_twenty_fastest_growing_types_are_listed() -> None:
    before = {f"app.T{i:02}": i for i in range(1, 25)}
    both = (with_types(before), with_types({**before, "app.T01": 90}))
    old, new = ({row.name: row for row in type_growth(each)} for each in both)
    rows = _by_type(old, new, FindingChanges())
    assert [row.type for row in rows] == ["app.T01", *(f"app.T{i:02}" for i in range(24, 5, -1))]


def test_a_crash_is_compared_with_a_run_without_an_oom_forecast() -> None:
    each = 3 * MIB
    before = history_of([800 * MIB + each * g for g in range(996)], limit=800 * MIB + each * 1000)
    before = replace(before, unit="episode", ended=True)
    after = history_of(
        [800 * MIB + (g % 5) * 4096 for g in range(1400)], limit=800 * MIB + each * 1000
    )
    found = compare(before, replace(after, unit="episode", run="after")).survival
    assert found is not None
    out = found.before.oom_at_generation
    assert out is not None
    assert out.estimate == pytest.approx(1000, abs=10)
    assert (found.before.last_generation, found.before.ended) == (995, True)
    assert (found.after.last_generation, found.after.ended) == (1399, False)
    assert found.after.oom_at_generation is None
    assert found.sentence.startswith("Before: memory runs out around episode ")


def test_the_sentence_says_how_far_each_run_gets() -> None:
    out = Interval(1004.4, 989.6, 1020.4)
    ended, goes_on = Survival(998, True, out), Survival(2000, False, None)
    assert survival_change(ended, goes_on, "episode", "epoch").sentence == (
        "Before: memory runs out around episode 1,004 (990 to 1,020); the run ended at episode 998. "
        "After: memory is not forecast to run out; the run has reached epoch 2,000."
    )
    nothing = Survival(None, False, None)
    assert survival_change(nothing, nothing, "episode", "epoch").sentence == (
        "Before: no episode was recorded. After: no epoch was recorded."
    )
