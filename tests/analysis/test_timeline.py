"""Readings of a process across attempts and phases as one timeline: which rows count, how they join, where it bends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import MIB, history_of
from hypothesis import given
from hypothesis import strategies as st

from leakline.analysis.results import Interval
from leakline.analysis.run_history import (
    NO_SPANS,
    LeftOut,
    ProcessHistory,
    RunHistory,
    Spans,
    Value,
)
from leakline.analysis.statistics.memory_evidence import (
    Piece,
    _hinge,
    _joined,
    _rise_before,
    _thinned,
    pieces_of,
)
from leakline.analysis.statistics.trend import Hinge, Slope
from leakline.analysis.timeline import (
    Timeline,
    _ends,
    _follows,
    _left_out,
    _rows_that_count,
    timelines_of,
)
from leakline.analysis.timeline_analysis import TimelineAnalysis
from leakline.analysis.window import (
    Since,
    _by_top_level,
    _first_position,
    _warm_up,
    _within,
    added,
    kept_per_generation,
)
from leakline.analysis.window import _ended as _spans_ended
from leakline.analysis.window import _sum_within as _booked_within

MEMORY = "process.anon_bytes"
# (generation, kind, phase)
Row = tuple[int | None, str, str | None]


def _process(
    rows: Sequence[Row], attempt: int = 1, begin: float = 0.0, **series: Sequence[Value]
) -> ProcessHistory:
    times = [begin + i for i in range(len(rows))]
    columns = {name.replace("__", "."): column for name, column in series.items()}
    return ProcessHistory(
        f"p{attempt}", 0, "main", attempt, range(len(rows)), times, times, [g for g, _, _ in rows],
        [phase for _, _, phase in rows], [""] * len(rows), [kind for _, kind, _ in rows], columns,
    )  # fmt: skip


def _ended(generations: Sequence[int]) -> list[Row]:
    return [(g, "generation_end", None) for g in generations]


def _resumed(second: Sequence[int], memory: Sequence[Value]) -> Timeline:
    """Return generations 0 to 3 with 10, 12, 14 and 16 bytes, and an attempt that continues or repeats some of them."""
    one = _process(_ended(range(4)), process__anon_bytes=[10, 12, 14, 16])
    two = _process(_ended(second), 2, 100.0, process__anon_bytes=memory)
    (timeline,) = timelines_of(RunHistory("r", processes=(one, two)))
    return timeline


def test_a_resume_continues_the_line_of_the_previous_attempt() -> None:
    timeline = _resumed([4, 5, 6], [5, 7, 20])
    assert timeline.values(MEMORY) == [10, 12, 14, 16, 18, 20, 33]
    assert timeline.readings(MEMORY) == [10, 12, 14, 16, 5, 7, 20]
    assert timeline.private == [10, 12, 14, 16, 18, 20, 33]
    assert (timeline.left_behind(4), timeline.left_behind(5), timeline.left_behind(7)) == (
        0,
        13,
        13,
    )


def test_repeated_generations_replace_earlier_measurements() -> None:
    timeline = _resumed([2, 3, 4], [5, 7, 20])
    assert timeline.generations == (0, 1, 2, 3, 4)
    assert timeline.values(MEMORY) == [10, 12, 14, 16, 29]
    assert _resumed([0, 1], [5, 7]).values(MEMORY) == [5, 7]


def test_a_resume_without_its_first_reading_continues_with_the_next() -> None:
    assert _resumed([4, 5], [None, 7]).values(MEMORY) == [10, 12, 14, 16, None, 18]


def test_a_resumed_process_warms_up_for_four_generations() -> None:
    timeline = _resumed(range(4, 14), [*range(10)])
    x, y = [float(i) for i in range(14)], [float(i) for i in range(14)]
    assert pieces_of(timeline, x, y) == [Piece(x[:4], y[:4]), Piece(x[8:], y[8:])]
    # Two later readings form a piece, one does not; with less than half left everything is one piece.
    pair = _resumed(range(4, 10), [*range(6)])
    assert pieces_of(pair, x[:10], y[:10]) == [Piece(x[:4], y[:4]), Piece(x[8:10], y[8:10])]
    none = _resumed(range(4, 8), [*range(4)])
    assert pieces_of(none, x[:8], y[:8]) == [Piece(x[:4], y[:4])]
    single = _resumed(range(4, 9), [*range(5)])
    assert pieces_of(single, x[:9], y[:9]) == [Piece(x[:9], y[:9])]


def test_a_process_that_goes_back_repeats_its_generations() -> None:
    steps: list[Row] = [(g, "phase_end", "a") for g in (0, 1, 2, 1, 2)]
    rows, segments = _rows_that_count([_process(steps)])
    assert (rows, segments) == ([(0, 0), (0, 3), (0, 4)], [0, 1, 1])
    onward, one = _rows_that_count([_process(steps[:3])])
    assert (onward, one) == ([(0, 0), (0, 1), (0, 2)], [0, 0, 0])
    # Other kinds of rows may arrive late: a sample of generation 0 does not start a repetition.
    late: list[Row] = [*steps[:3], (0, "sample", None)]
    assert _rows_that_count([_process(late)])[1] == [0] * 4


def test_rows_without_a_generation_stay_with_their_attempt() -> None:
    first: list[Row] = [(None, "baseline", None), *_ended([0, 1])]
    found = _rows_that_count([_process(first), _process(_ended([1, 2]), 2, 9.0)])
    assert found == ([(0, 0), (0, 1), (1, 0), (1, 1)], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("attempt", "begin", "follows"), [(1, 3.0, True), (1, 2.9, False), (2, 0.0, True)]
)
def test_a_process_follows_one_that_was_gone_or_of_an_earlier_attempt(
    attempt: int, begin: float, follows: bool
) -> None:
    before = _process(_ended(range(4)))
    assert _follows(_process(_ended([0]), attempt, begin), before) is follows


def test_repeated_generations_are_not_thinned() -> None:
    one = _process(_ended([0, 9]))
    one = replace(one, left_out=LeftOut(Spans(((1, 8),)), frozenset({"a"})))
    two = _process(_ended([5, 6, 7, 8, 9, 10]), 2, 9.0)
    assert _left_out([one, two]) == LeftOut(Spans(((1, 4),)), frozenset({"a"}))
    assert _left_out([two]).generations == NO_SPANS


@pytest.mark.parametrize(
    ("at_ends", "after_phase", "place"),
    [
        # Half as many readings at ends as after the phase suffice.
        (3, 6, "generation_end"), (2, 6, "phase a"), (6, 6, "generation_end"), (0, 1, "phase a"),
        (0, 0, "generation_end"),
    ],
)  # fmt: skip
def test_a_series_is_read_at_its_most_frequent_place(
    at_ends: int, after_phase: int, place: str
) -> None:
    rows: list[Row] = []
    for g in range(6):
        rows += [(g, "phase_end", "a"), (g, "generation_end", None)]
    column: list[Value] = [None] * 12
    for i in range(after_phase):
        column[2 * i] = 100 + i
    for i in range(at_ends):
        column[2 * i + 1] = 200 + i
    (timeline,) = timelines_of(RunHistory("r", processes=(_process(rows, x=column),)))
    read = timeline.values("x")
    known = column[::2] if place == "phase a" else column[1::2]
    assert (timeline.place("x"), read) == (place, known)


def test_points_include_the_baseline_before_them() -> None:
    rows: list[Row] = [(None, "baseline", None), *_ended(range(3, 8))]
    (timeline,) = timelines_of(
        RunHistory("r", processes=(_process(rows, x=[1, 2, None, 4, 5, 6]),))
    )
    assert timeline.points("x") == ([3.0, 5, 6, 7], [2.0, 4, 5, 6])
    assert timeline.points("x", 3, baseline=True) == ([2.0, 3, 5], [1.0, 2, 4])
    assert timeline.points("x", 4, newest=2) == ([5.0, 6], [4.0, 5])
    assert timeline.points("x", newest=2, baseline=True) == ([6.0, 7], [5.0, 6])
    assert timeline.points("x", newest=5, baseline=True)[0] == [2.0, 3, 5, 6, 7]


def test_a_missed_reading_is_shared_by_all_phases_until_the_next() -> None:
    rows: list[Row] = [
        (None, "baseline", None), (0, "phase_end", "a"), (0, "phase_end", "b"), (0, "generation_end", None),
        (1, "sample", None), (1, "phase_end", "a/x"), (1, "phase_end", "a"), (1, "generation_end", None),
    ]  # fmt: skip
    column = [10, 15, None, 18, 999, None, 20, 27]
    (timeline,) = timelines_of(RunHistory("r", processes=(_process(rows, x=column),)))
    assert timeline.increments("x") == ({"a": 5.0, "?": 3.0}, {"a": 2.0, "": 7.0})


def test_attempts_are_not_connected_by_a_step() -> None:
    assert _resumed([4, 5], [5, 7]).increments(MEMORY) == (
        {}, {"": 2.0}, {"": 2.0}, {"": 2.0}, {}, {"": 2.0},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("anonymous", "private"),
    [
        ([1, 2, None, None], [1, 2, None, None]),
        ([1, None, None, None], [9, 9, 9, 9]),
    ],
)
def test_memory_is_split_if_half_of_the_snapshots_have_the_parts(
    anonymous: list[Value], private: list[Value]
) -> None:
    process = _process(_ended(range(4)), process__anon_bytes=anonymous, process__rss_bytes=[9] * 4)
    (timeline,) = timelines_of(RunHistory("r", processes=(process,)))
    assert timeline.private_rows == private


def test_swapped_out_memory_is_private() -> None:
    process = _process(
        _ended(range(3)), process__anon_bytes=[1, 2, None], process__swap_bytes=[5, None, 7]
    )
    (timeline,) = timelines_of(RunHistory("r", processes=(process,)))
    assert timeline.private_rows == [6, 2, None]


def _since(memory: Sequence[float], since: float = 0.0) -> Since:
    history = history_of(memory)
    (timeline,) = timelines_of(history)
    return Since(history, [(TimelineAnalysis(history, timeline), None)], since)


def test_the_largest_jump_is_between_consecutive_ends() -> None:
    assert _since([5.0, 9, 20, 20, 31]).largest_jump() == (11, 1, 2)
    assert _since([9.0, 5, 1]).largest_jump() == (0, 0, 1)
    assert _since([9.0]).largest_jump() is None
    # From the third minute on.
    assert _since([5.0, 99, 100, 102, 103], 120.0).largest_jump() == (2, 2, 3)


def test_a_rise_across_lost_generations_is_not_a_jump() -> None:
    process = _process(_ended([0, 1, 2, 6, 7]), process__anon_bytes=[0, 3, 6, 90, 94])
    history = RunHistory("r", processes=(process,))
    (timeline,) = timelines_of(history)
    assert Since(history, [(TimelineAnalysis(history, timeline), None)], 0.0).largest_jump() == (
        4,
        6,
        7,
    )


@pytest.mark.parametrize(("generations", "enough"), [(4, False), (5, True)])
def test_five_generations_are_long_enough(generations: int, enough: bool) -> None:
    since = _since([500.0 * MIB] * generations)
    assert (since.long_enough, since.generations, since.complete) == (enough, generations, generations)  # fmt: skip


def test_the_peak_has_its_first_generation() -> None:
    assert _since([5.0, 9, 7, 9]).highest([MEMORY, "nothing"]) == [(9, 1)]
    assert _since([5.0, 9, 7, 9], 120.0).highest([MEMORY]) == [(9, 3)]
    assert _since([5.0, 9]).highest(["nothing"]) == []


def _x(n: int, first: int = 0) -> list[float]:
    return [float(first + i) for i in range(n)]


def _timeline(n: int) -> Timeline:
    (timeline,) = timelines_of(history_of([500.0 * MIB] * n))
    return timeline


@pytest.mark.parametrize(
    ("kind", "phase", "generation", "ends"),
    [
        (["generation_end", "phase_end", "generation_end"], [None, "a", None], [0, 1, 1], {0: 0, 1: 2}),
        # Without generation ends the most frequent phase is used; of equals the later one.
        (["phase_end"] * 3, ["a", "b", "a"], [0, 0, 1], {0: 0, 1: 2}),
        (["phase_end"] * 4, ["a", "b"] * 2, [0, 0, 1, 1], {0: 1, 1: 3}),
        (["sample", "manual", "sample", "baseline"], [None] * 4, [0, 0, 1, 2], {0: 1, 1: 2}),
        (["sample", "phase_end", "phase_end"], [None, "a", None], [0, 1, 2], {1: 1}),
        (["generation_end"], [None], [None], {}),
    ],
)  # fmt: skip
def test_one_row_is_read_for_the_end_of_each_generation(
    kind: list[str],
    phase: list[str | None],
    generation: list[int | None],
    ends: dict[int, int],
) -> None:
    assert _ends(kind, phase, generation) == ends


def test_attempts_are_joined_by_the_medians_of_five_readings() -> None:
    one = Piece(_x(6), [99.0, 1, 1, 2, 3, 3])
    two = Piece(_x(6, 10), [50.0, 50, 51, 52, 52, 99])
    # The medians are 2 and 51.
    x, y = _joined([one, two])
    assert x == _x(6) + _x(6, 10)
    assert y == [99.0, 1, 1, 2, 3, 3, 1, 1, 2, 3, 3, 50]
    short = Piece(_x(2, 20), [7.0, 9])
    assert _joined([one, short])[1][-2:] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("y", "later", "found"),
    [
        # With fewer than five readings half of the later rise must be exceeded.
        ([0.0, 1], 2.0, (0.0, 0.0)), ([0.0, 1, 2, 3], 2.1, None),
        # From five readings on what counts is whether and from where it rises.
        ([0.0, 1, 2, 3, 4], 99.0, (0.0, 0.0)), ([3.0, 3, 3, 3, 3], 0.0, None),
        ([0.0, 0, 0, 0, 2, 4, 6, 8, 10, 12], 9.0, (3.0, 3.0)),
    ],
)  # fmt: skip
def test_a_rise_before_a_bend_has_its_own_start(
    y: list[float], later: float, found: tuple[float, float] | None
) -> None:
    assert _rise_before([Piece(_x(len(y)), y)], later) == found


def test_a_bend_may_be_in_an_attempt_or_between_attempts() -> None:
    flat, rising = Piece(_x(4), [5.0] * 4), Piece(_x(4, 10), [90.0, 92, 94, 96])
    # The bend is in the gap: the second piece has another level, so its exact position is unknown.
    assert _hinge([flat, rising]) == Hinge(6.5, 3.0, 10.0, 2.0)
    bent = Piece(_x(5, 10), [90.0, 90, 90, 92, 94])
    assert _hinge([flat, bent]) == Hinge(12.0, 12.0, 12.0, 2.0)
    assert _hinge([flat, Piece(_x(4, 10), [90.0] * 4)]) is None
    early = Piece(_x(4), [5.0, 5, 7, 9])
    assert _hinge([early, rising]) == Hinge(1.0, 1.0, 1.0, 2.0)


def test_long_attempts_are_thinned_proportionally() -> None:
    long, short = Piece(_x(94), _x(94)), Piece(_x(2, 200), _x(2))
    thin = _thinned([long, short])
    assert [len(piece) for piece in thin] == [47, 2]
    assert thin[0] == Piece(
        [float(i) for i in range(0, 94, 2)], [float(i) for i in range(0, 94, 2)]
    )
    whole = [Piece(_x(24), _x(24)), Piece(_x(24, 30), _x(24))]
    assert _thinned(whole) == whole
    assert [len(piece) for piece in _thinned([*whole, short])] == [23, 23, 2]


def test_generations_that_ended_since_a_time_are_counted() -> None:
    timeline = _timeline(8)
    assert [_first_position(timeline, since) for since in (-1.0, 0.0, 60.0, 60.5, 999.0)] == [
        0,
        0,
        1,
        2,
        8,
    ]
    assert (_spans_ended(timeline), _spans_ended(timeline, 3), _spans_ended(timeline, 8)) == (
        Spans(((0, 7),)), Spans(((3, 7),)), NO_SPANS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("generations", "first", "warm_up"),
    [
        (15, 0, 3), (40, 0, 4), (40, 37, 0), (40, 36, 1),
    ],
)  # fmt: skip
def test_at_most_a_quarter_of_a_resumed_process_is_warm_up(
    generations: int, first: int, warm_up: int
) -> None:
    assert _warm_up(_timeline(generations), first) == warm_up


def test_processes_add_up_with_their_intervals() -> None:
    assert added([Slope(1, 0, 3, 4), Interval(10, 5, 20)]) == Interval(11, 5, 23)
    assert added([]) is None


def test_accounted_memory_is_summed_by_phase() -> None:
    line = {"a": 1.0, "a/x": 2.0, "b/x": 4.0}
    assert (_within(line, "a"), _within(line, "x"), _within(line, "c")) == (3, 6, 0)
    assert (_booked_within(line, "x"), _booked_within(line, "c")) == (6, None)
    assert _by_top_level(line) == {"a": 3.0, "b": 4.0}


def test_noise_widens_the_interval_of_kept_memory() -> None:
    assert kept_per_generation(_x(6), [2.0] * 6) == Slope(2, 2, 2, 6)
    noisy = kept_per_generation(_x(8), [1.0, 3, 1, 3, 1, 3, 1, 3])
    # A spread of 1.4826 over six degrees of freedom.
    reach = 1.6448536 * 1.4826 * (1.2 / 6) ** 0.5
    assert noisy.estimate == 2
    assert (noisy.low, noisy.high) == pytest.approx((2 - reach, 2 + reach))


NUMBERS = st.sets(st.integers(-20, 60))


@given(NUMBERS, st.integers(-30, 70))
def test_spans_equal_a_set_of_numbers(numbers: set[int], asked: int) -> None:
    found = Spans.of(sorted(numbers))
    assert (list(found), len(found)) == (sorted(numbers), len(numbers))
    assert (asked in found) == (asked in numbers)
    assert (found.first, found.last) == (min(numbers, default=None), max(numbers, default=None))
    assert set(found.until(asked)) == {n for n in numbers if n <= asked}
    assert set(found.above(asked)) == {n for n in numbers if n > asked}
    assert found.until(asked) == Spans.of(sorted(n for n in numbers if n <= asked))


def test_consecutive_numbers_are_stored_as_a_range() -> None:
    assert Spans.of(range(10_000)).spans == ((0, 9_999),)
    assert not NO_SPANS
    assert 3.0 not in Spans.of([3])
