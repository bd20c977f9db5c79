"""Two runs side by side: which difference of growth is one, at the edges of each rule of the comparison."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from leakline.analysis import RunHistory
from leakline.analysis.compared import FindingChanges, MemoryAfter, Outcome, PhaseChange, TypeChange
from leakline.analysis.comparison import (
    CLEAN,
    _both_have,
    _by_phase,
    _by_type,
    _finding_changes,
    _largest,
    _memory_after,
    _outcome,
    _overlap,
    _rank,
    _rate,
    _shared_generations,
    _shows,
    _Side,
    _summary,
    _type_change,
    _upto,
    environment_changes,
    warm_up,
)
from leakline.analysis.differences import change_of, percent_of
from leakline.analysis.evidence import Scale
from leakline.analysis.growth import type_growth
from leakline.analysis.history import LeftOut, ProcessHistory
from leakline.analysis.priority import DEFAULTS
from leakline.analysis.results import Finding, Interval, Status, TypeGrowth
from leakline.analysis.spans import Spans

# Over ten generations a growth of 2.5 a generation matters, and two runs are apart from 10 a generation on.
BASELINE = 1_000.0
GENERATIONS = 10
NO_CHANGES = FindingChanges()


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


def finding(fingerprint: str, status: Status) -> Finding:
    return Finding(fingerprint, status, "objects", None, None, (), around(5), None, 0.9)


def outcome(
    old: Interval | None, new: Interval | None, *, leaked: bool = True, leaks: bool = True,
    generations: int = GENERATIONS, changes: FindingChanges = NO_CHANGES,
) -> Outcome:  # fmt: skip
    return _outcome(side(old, leaks=leaked), side(new, leaks=leaks), changes, generations)


@pytest.mark.parametrize(
    ("generations", "left_out"), [(0, 0), (1, 0), (4, 0), (5, 1), (6, 2), (7, 2), (100, 2)]
)
def test_the_first_two_generations_are_warm_up_where_four_remain(
    generations: int, left_out: int
) -> None:
    assert warm_up(generations) == left_out


@pytest.mark.parametrize(("generations", "told"), [(3, "undecided"), (4, "improved")])
def test_an_outcome_is_told_from_four_generations_on(generations: int, told: str) -> None:
    assert outcome(around(1_000), around(500), generations=generations) == told


@pytest.mark.parametrize(("old", "new"), [(None, around(5)), (around(5), None), (None, None)])
def test_growth_that_one_run_does_not_tell_decides_nothing(
    old: Interval | None, new: Interval | None
) -> None:
    assert outcome(old, new) == "undecided"


@pytest.mark.parametrize(
    ("new", "told"),
    [
        # A fifth is what two runs of one program differ by.
        (around(80), "no_effect"),
        (around(79.9), "improved"),
        (around(120), "no_effect"),
        (around(120.1), "worse"),
        # Half as much, but intervals that touch are not apart.
        (Interval(50, 40, 99), "no_effect"),
        (Interval(50, 40, 98.9), "improved"),
        (Interval(150, 101, 160), "no_effect"),
        (Interval(150, 101.1, 160), "worse"),
    ],
)
def test_growth_differs_by_more_than_a_fifth_where_the_intervals_are_apart(
    new: Interval, told: str
) -> None:
    assert outcome(around(100), new) == told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (around(100), around(19), "fixed"),
        (around(100), around(21), "improved"),
        # What is left does not matter any more, although four fifths are not gone.
        (around(3.5, 0.1), around(2.4, 0.1), "fixed"),
        (around(3.5, 0.1), around(2.5, 0.1), "improved"),
        # It did not matter before either: the finding is gone.
        (around(2.4), around(2.4), "fixed"),
        # It grows as before, although nothing is found any more.
        (around(100), around(100), "undecided"),
    ],
)
def test_a_leak_that_is_no_longer_found_is_fixed_where_four_fifths_of_the_growth_are_gone(
    old: Interval, new: Interval, told: str
) -> None:
    assert outcome(old, new, leaks=False) == told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (around(0), around(9.9), "no_effect"),
        (around(0), around(10), "worse"),
        (around(9.9), around(0), "no_effect"),
        (around(10), around(0), "fixed"),
        (around(100), around(2.4), "fixed"),
        (around(100), around(2.5), "improved"),
        # A quarter more, but hardly any memory.
        (around(20), around(25), "no_effect"),
        # From falling fast to falling slowly nothing has become worse.
        (around(-100), around(-50), "no_effect"),
    ],
)
def test_runs_without_a_leak_differ_where_they_end_up_apart_by_a_tenth_of_memory(
    old: Interval, new: Interval, told: str
) -> None:
    assert outcome(old, new, leaked=False, leaks=False) == told


@pytest.mark.parametrize(
    ("leaks", "told"), [(True, "improved"), (False, "fixed")], ids=["leaks", "clean"]
)
def test_what_still_leaks_is_not_fixed_however_little_it_grows(leaks: bool, told: str) -> None:
    assert outcome(around(100), around(1), leaked=leaks, leaks=leaks) == told


@pytest.mark.parametrize(
    ("status", "told", "why"),
    [
        ("ok", "fixed", "Fixed: 100 B per generation before, 1 B after: 99 % less growth over 10 generations"),
        ("filling", "fixed", "Fixed: 100 B per generation before, 1 B after: 99 % less growth over 10 generations"),
        ("watch", "improved", "but the second run still has growth to watch"),
        ("recovered", "improved", "but the second run leaked too, before that stopped"),
        ("learning", "improved", "but the second run was too short for a verdict"),
    ],
)  # fmt: skip
def test_a_leak_is_fixed_only_if_the_verdict_of_the_second_run_is_clear(
    status: Status, told: str, why: str
) -> None:
    a, b = side(around(100), leaks=True), side(around(1), status=status)
    assert _outcome(a, b, NO_CHANGES, 10) == told
    assert _summary(told, a, b, 10).endswith(why)  # type: ignore[arg-type]
    # What did not grow measurably before has no percentage.
    improved = _summary(
        "improved", side(around(0), leaks=True), side(around(-1), status=status), 10
    )
    assert "%" not in improved


@pytest.mark.parametrize(
    ("status", "told"),
    [("confirmed", "worse"), ("suspected", "worse"), ("watch", "undecided"), ("ok", "undecided")],
)
def test_a_new_leak_without_more_growth_is_worse_only_where_it_is_suspected(
    status: Status, told: str
) -> None:
    changes = FindingChanges(new=(finding("a", status),))
    assert outcome(around(5), around(5), leaked=False, changes=changes) == told


def test_any_growth_is_larger_than_none_where_it_matters() -> None:
    small = (side(around(0, 0.1), baseline=100), side(around(1, 0.1), baseline=100))
    assert _outcome(*small, NO_CHANGES, GENERATIONS) == "worse"


@pytest.mark.parametrize(
    ("baselines", "difference", "apart"),
    [
        ((1_000, 500), 9.9, False),
        ((1_000, 500), 10.0, True),
        ((500, 1_000), 9.9, False),
        ((500, 1_000), -10.0, True),
        # A tenth of one byte at least.
        ((0, 0), 0.0, False),
        ((0, 0), 0.01, True),
        ((0, 0), 0.009, False),
    ],
)
def test_two_runs_are_apart_by_a_tenth_of_the_larger_memory(
    baselines: tuple[float, float], difference: float, apart: bool
) -> None:
    a, b = (side(baseline=baseline) for baseline in baselines)
    assert _shows(a, b, difference, GENERATIONS) is apart


@pytest.mark.parametrize(
    ("low", "high", "overlaps"),
    [(2, 3, True), (2.1, 3, False), (-1, 1, True), (-1, 0.9, False), (1.2, 1.8, True), (0, 5, True)],
)  # fmt: skip
def test_intervals_that_touch_overlap(low: float, high: float, overlaps: bool) -> None:
    assert _overlap(Interval(1.5, 1, 2), Interval((low + high) / 2, low, high)) is overlaps


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [
        (100, 150, 50.0),
        (100, 50, -50.0),
        (3, 4, 33.3),
        # The share of a fall that has turned into a rise is of the size of the fall.
        (-100, 50, 150.0),
        (-100, -150, -50.0),
        (0, 5, None),
        (0.9e-9, 5, None),
        (1e-9, 2e-9, 100.0),
        (None, 5, None),
        (5, None, None),
    ],
)
def test_a_change_in_percent_is_of_the_size_before_and_none_of_nothing(
    before: float | None, after: float | None, percent: float | None
) -> None:
    assert percent_of(before, after) == percent


def test_the_errors_of_a_difference_add_up_as_squares() -> None:
    before, after = Interval(100, 96, 105), Interval(50, 38, 53)
    # Down: after may be lower by 12 and before higher by 5. Up: after higher by 3 and before lower by 4.
    assert change_of(before, after) == (-50.0, Interval(-50, -63, -45))
    assert change_of(None, after) == change_of(before, None) == (None, None)


@pytest.mark.parametrize(
    ("told", "was", "now", "sentence"),
    [
        ("fixed", 100, 10, "Fixed: 100 B per generation before, 10 B after: 90 % less growth over 10 generations"),
        ("improved", 100, 50, "Improved: 100 B per generation before, 50 B after (-50 %), but memory still grows"),
        ("worse", 100, 150, "Worse: 100 B per generation before, 150 B after (+50 %)"),
        # No percent of what did not grow.
        ("worse", 1, 150, "Worse: 1 B per generation before, 150 B after (+14900 %)"),
        ("worse", 0, 150, "Worse: 0 B per generation before, 150 B after"),
        ("worse", -50, 150, "Worse: -50 B per generation before, 150 B after"),
        ("undecided", 100, 110, "Undecided: +10 B per generation is not clear of the noise over 10 generations"),
    ],
)  # fmt: skip
def test_the_sentence_has_both_growths_and_the_change(
    told: Outcome, was: float, now: float, sentence: str
) -> None:
    assert _summary(told, side(around(was)), side(around(now)), GENERATIONS) == sentence


@pytest.mark.parametrize(
    ("leaked", "leaks", "reason"),
    [
        (False, False, "neither run leaks (5 B per generation before, 6 B after)"),
        (True, True, "5 B per generation before, 6 B after, within what two runs differ by"),
        (True, False, "5 B per generation before, 6 B after, within what two runs differ by"),
        (False, True, "5 B per generation before, 6 B after, within what two runs differ by"),
    ],
)
def test_neither_run_leaks_is_said_only_where_neither_does(
    leaked: bool, leaks: bool, reason: str
) -> None:
    a, b = side(around(5), leaks=leaked), side(around(6), leaks=leaks)
    assert _summary("no_effect", a, b, GENERATIONS) == f"No effect: {reason}"


@pytest.mark.parametrize(
    ("generations", "counted"), [(0, "0 generations"), (1, "1 generation"), (3, "3 generations")]
)
def test_too_few_generations_are_counted_in_the_sentence(generations: int, counted: str) -> None:
    a, b = side(around(5)), side(around(6))
    assert _summary("undecided", a, b, generations) == f"Undecided: only {counted} to compare"
    assert "only" not in _summary("undecided", a, b, 4)


@pytest.mark.parametrize(("old", "new"), [(None, around(5)), (around(5), None)])
def test_growth_that_one_run_does_not_tell_is_too_little_to_compare(
    old: Interval | None, new: Interval | None
) -> None:
    assert (
        _summary("undecided", side(old), side(new), 9) == "Undecided: only 9 generations to compare"
    )


def test_minutes_are_not_compared_with_generations() -> None:
    said = _summary("undecided", side(around(5), unit="minute"), side(around(6)), GENERATIONS)
    assert said.startswith("Undecided: one run counts minutes, the other generations;")


def test_phases_are_told_by_the_larger_of_their_two_growths() -> None:
    a = side(phases={"train": around(-50), "evaluate": around(10), "between": around(3)})
    b = side(phases={"evaluate": around(40), "evolve": around(50), "between": around(3), "add": around(3)})  # fmt: skip
    rows = _by_phase(a, b)
    # Of equal growth by name, and what is of no phase at the end.
    assert [row.phase for row in rows] == ["evolve", "train", "evaluate", "add", "between"]
    assert rows[2] == PhaseChange("evaluate", around(10), around(40), 300.0, rows[2].difference)


@pytest.mark.parametrize(
    ("before", "after", "largest"),
    [(around(-7), around(5), -7), (around(5), around(-7), -7), (None, around(3), -3), (around(2), None, -2)],
)  # fmt: skip
def test_a_phase_ranks_by_its_size_in_either_run(
    before: Interval | None, after: Interval | None, largest: float
) -> None:
    assert _largest(PhaseChange("train", before, after, None)) == largest


def of_type(name: str, before: float | None, after: float | None) -> TypeChange:
    return TypeChange(name, before, after, None, None)


@pytest.mark.parametrize(
    ("before", "after", "rate"), [(-3, 2, 3), (2, -3, 3), (None, 4, 4), (4, None, 4), (None, None, 0)]
)  # fmt: skip
def test_a_type_ranks_by_its_rate_in_either_run(
    before: float | None, after: float | None, rate: float
) -> None:
    assert _rate(of_type("dict", before, after)) == rate


@pytest.mark.parametrize(
    ("name", "rate", "rank"),
    [
        ("dict", 5.0, 2),
        ("torch.nn.Linear", 5.0, 2),
        ("trading.TradingEnvironment", 5.0, 1),
        ("trainer.Suspect", 5.0, 0),
        # Even what a finding names, where it does not move.
        ("trainer.Suspect", 0.0, 3),
        ("trading.TradingEnvironment", None, 3),
    ],
)
def test_suspects_go_before_classes_of_the_program_and_those_before_plain_objects(
    name: str, rate: float | None, rank: int
) -> None:
    assert _rank(of_type(name, rate, None), {"trainer.Suspect"}) == rank


def test_a_type_that_only_one_run_has_has_no_change() -> None:
    old = TypeGrowth("Env", 1, 9, around(4), None, None, None, None, None, "grows")
    new = replace(old, last_count=3, count_per_generation=around(2))
    assert _type_change("Env", old, new) == TypeChange(
        "Env", 4, 2, 9, 3, -50.0, change_of(around(4), around(2))[1]
    )
    assert _type_change("Env", None, new) == TypeChange("Env", None, 2, None, 3)
    assert _type_change("Env", old, None) == TypeChange("Env", 4, None, 9, None)
    unknown = replace(old, count_per_generation=None)
    assert _type_change("Env", unknown, new) == TypeChange("Env", None, 2, 9, 3)


def test_findings_that_do_not_grow_are_neither_gone_nor_new() -> None:
    before = [finding("both", "suspected"), finding("gone", "watch"), finding("calm", "ok")]
    after = [finding("both", "confirmed"), finding("new", "confirmed"), finding("calm", "ok")]
    changes = _finding_changes(before, after)
    assert changes == FindingChanges(gone=(before[1],), still=(after[0],), new=(after[1],))


def test_packages_are_compared_one_by_one() -> None:
    before = {"python": "3.11", "packages": {"torch": "2.0", "numpy": "1.26"}, "commit": "a"}
    after = {"python": "3.11", "packages": {"torch": "2.1", "numpy": "1.26"}, "host": "b"}
    assert environment_changes(before, after) == {
        "commit": ("a", None), "host": (None, "b"), "torch": ("2.0", "2.1"),
    }  # fmt: skip
    # What is no list of packages is compared as it is.
    assert environment_changes({"packages": "x"}, {}) == {"packages": ("x", None)}


def process(
    generations: range, *, rank: int = 0, step: int = 0, seconds: float | None = None,
    left_out: Spans | None = None, gap: int | None = None,
) -> ProcessHistory:  # fmt: skip
    """Resident memory of a hundred, and ``step`` more with each generation; a peak a tenth above."""
    n = len(generations)
    resident = [None if g == gap else 100 + step * g for g in generations]
    series = {
        "process.rss_bytes": resident,
        "process.peak_bytes": [None if v is None else v + 10 for v in resident],
    }
    more = (
        {} if seconds is None else {"generation.seconds": [seconds * (g + 1) for g in generations]}
    )
    times = [60.0 * i for i in range(n)]
    found = ProcessHistory(
        f"p{rank}", rank, "main", 1, range(n), times, times, list(generations), [None] * n, [""] * n,
        ["generation_end"] * n, {**series, **more},
    )  # fmt: skip
    return found if left_out is None else replace(found, left_out=LeftOut(left_out))


def run_of(*processes: ProcessHistory) -> RunHistory:
    return RunHistory("r", processes=processes)


def side_of(history: RunHistory, shared: range) -> _Side:
    return _Side(history, shared, DEFAULTS)


def test_generations_that_only_one_run_has_are_not_shared() -> None:
    before, after = (
        run_of(process(range(2, 8))),
        run_of(process(range(5)), process(range(3, 6), rank=1)),
    )
    assert _shared_generations(before, after) == [2, 3, 4, 5]


def test_generations_that_were_not_read_count_where_both_runs_went_through_them() -> None:
    whole, short = run_of(process(range(20))), run_of(process(range(10)))
    assert _both_have(whole, short, range(10)) == 10
    thinned = run_of(process(range(10, 20), left_out=Spans.of(range(10))))
    assert _both_have(thinned, run_of(process(range(15))), range(10, 15)) == 15
    assert _both_have(run_of(process(range(15))), thinned, range(10, 15)) == 15


def test_a_run_is_cut_after_the_newest_generation_that_both_have() -> None:
    history = run_of(process(range(6)), process(range(3), rank=1))
    cut = _upto(history, [0, 1, 2])
    assert [list(p.generation) for p in cut.processes] == [[0, 1, 2], [0, 1, 2]]
    assert cut.processes[0].series["process.rss_bytes"] == [100, 100, 100]
    assert cut.processes[1] is history.processes[1]
    assert _upto(history, []) is history


def test_the_peak_is_that_of_the_shared_generations_with_the_processes_added_up() -> None:
    history = run_of(process(range(8), step=1), process(range(8), rank=1, step=2))
    assert side_of(history, range(5)).peak == (104 + 10) + (108 + 10)
    assert side_of(history, range(0)).peak == (107 + 10) + (114 + 10)
    assert side_of(RunHistory("r"), range(5)).peak is None


def test_memory_at_a_generation_is_that_of_all_processes_that_ended_it() -> None:
    two = side_of(run_of(process(range(8), step=1), process(range(4), rank=1, step=2)), range(4))
    assert two.memory_at(3) == 103 + 106
    assert two.memory_at(7) == 107
    assert two.memory_at(8) is None
    unread = side_of(run_of(process(range(8)), process(range(8), rank=1, gap=5)), range(8))
    assert unread.memory_at(4) == 200
    assert unread.memory_at(5) is None


def test_seconds_are_the_middle_of_the_shared_generations_behind_the_warm_up() -> None:
    # Of six generations the first two are left out: 30, 40, 50 and 60 seconds remain.
    assert side_of(run_of(process(range(9), seconds=10)), range(6)).seconds == 45
    assert side_of(run_of(process(range(9))), range(6)).seconds is None


def test_what_growth_is_held_against_is_the_memory_of_all_processes() -> None:
    two = side_of(run_of(process(range(8)), process(range(8), rank=1)), range(8))
    assert two.baseline == 200
    # Twenty generations ahead, a twentieth of 200.
    assert two.matters(0.5, 10)
    assert not two.matters(0.49, 10)
    assert not two.leaks


def test_memory_is_compared_after_the_newest_of_the_shared_generations() -> None:
    history = run_of(process(range(8), step=1))
    a, b = side_of(history, range(3, 6)), side_of(run_of(process(range(8))), range(3, 6))
    assert _memory_after(a, b, [3, 4, 5], 3) == MemoryAfter(5, 3, 105, 100, -4.8)
    assert _memory_after(a, b, [], 0) is None


def with_types(counts: dict[str, int]) -> RunHistory:
    """Of each type so many more with each generation."""
    steady = process(range(8))
    series = {f"type.{name}.count": [each * g for g in range(8)] for name, each in counts.items()}
    return run_of(replace(steady, series={**steady.series, **series}))


def test_the_twenty_types_that_grow_most_in_either_run_are_told() -> None:
    before = {f"app.T{i:02}": i for i in range(1, 25)}
    both = (with_types(before), with_types({**before, "app.T01": 90}))
    old, new = ({row.name: row for row in type_growth(each)} for each in both)
    rows = _by_type(old, new, NO_CHANGES)
    assert [row.type for row in rows] == ["app.T01", *(f"app.T{i:02}" for i in range(24, 5, -1))]
