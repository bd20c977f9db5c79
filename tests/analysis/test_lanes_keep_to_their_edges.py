"""How rows become one axis, where a line on it bends, settles or is read in part, on both sides of what decides it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from builder import MIB, history_of

from leakline.analysis.evidence import Scale
from leakline.analysis.onset import (
    Piece,
    _fit,
    _from_its_middle,
    _hinge,
    _joined,
    _rise_before,
    _scatter,
    _thinned,
    _until,
    pieces_of,
)
from leakline.analysis.results import Interval
from leakline.analysis.series import (
    Lane,
    _ends,
    _first_generations,
    _one_phase,
    _usual_gain,
    fill_gaps,
    lanes_of,
    lies_within,
    top_level,
)
from leakline.analysis.settling import _behind, _bend, _is_flat, _leaves, _off, settling_of
from leakline.analysis.since import (
    _complete,
    _ended,
    _first_position,
    _warm_up,
    _within,
    added,
    kept_per_generation,
)
from leakline.analysis.spans import NO_SPANS, Spans
from leakline.analysis.stretch import _by_top_level
from leakline.analysis.stretch import _within as _booked_within
from leakline.analysis.thinning import generations_of, positions_to_read, rows_to_read
from leakline.analysis.trend import Hinge, Slope


def _x(n: int, first: int = 0) -> list[float]:
    return [float(first + i) for i in range(n)]


def _lane(n: int) -> Lane:
    (lane,) = lanes_of(history_of([500.0 * MIB] * n))
    return lane


@pytest.mark.parametrize(
    ("values", "filled"),
    [
        ([None, 2, None, 0, None], [2.0, 2.0, 2.0, 0.0, 0.0]),
        ([None, None], []),
        ([], []),
    ],
)
def test_a_gap_repeats_what_stood_before_it(
    values: list[float | None], filled: list[float]
) -> None:
    assert fill_gaps(values) == filled


@pytest.mark.parametrize(
    ("values", "gain"),
    [([], 0.0), ([5.0], 0.0), ([5.0, 7], 2.0), ([0.0, 90, 90, 92, 93, 96, 100, 105], 3.0)],
)
def test_what_a_generation_gains_is_told_by_six_before_a_resume(
    values: list[float], gain: float
) -> None:
    assert _usual_gain(values) == gain


@pytest.mark.parametrize(
    ("path", "phase", "within"),
    [
        ("evaluate", "evaluate", True), ("evaluate/run_episode", "evaluate", True),
        ("evaluate/run_episode", "run_episode", True),
        ("evaluate_all", "evaluate", False), ("evaluate", "evaluate/run_episode", False),
    ],
)  # fmt: skip
def test_a_path_lies_within_the_phases_it_names(path: str, phase: str, within: bool) -> None:
    assert lies_within(path, phase) is within
    assert top_level(path) == path.partition("/")[0]


@pytest.mark.parametrize(
    ("passed", "phase"),
    [({"a/x"}, "a/x"), ({"a/x", "a/y"}, "a"), ({"a", "a/y"}, "a"), ({"a", "b"}, "?"), ({""}, "")],
)
def test_a_change_seen_after_several_phases_is_of_the_one_around_them(
    passed: set[str], phase: str
) -> None:
    assert _one_phase(passed) == phase


def test_the_first_generation_of_a_stretch_is_its_least() -> None:
    kept = [(0, 0, None, 0), (0, 1, 4, 0), (0, 2, 3, 0), (0, 3, 5, 0), (1, 0, 2, 1)]
    assert _first_generations(kept) == {0: 3, 1: 2}


@pytest.mark.parametrize(
    ("kind", "phase", "generation", "ends"),
    [
        (["generation_end", "phase_end", "generation_end"], [None, "a", None], [0, 1, 1], {0: 0, 1: 2}),
        # Without ends of generations, the phase of most of them; of two such the later.
        (["phase_end"] * 3, ["a", "b", "a"], [0, 0, 1], {0: 0, 1: 2}),
        (["phase_end"] * 4, ["a", "b"] * 2, [0, 0, 1, 1], {0: 1, 1: 3}),
        (["sample", "manual", "sample", "baseline"], [None] * 4, [0, 0, 1, 2], {0: 1, 1: 2}),
        (["sample", "phase_end", "phase_end"], [None, "a", None], [0, 1, 2], {1: 1}),
        (["generation_end"], [None], [None], {}),
    ],
)  # fmt: skip
def test_a_row_stands_for_the_end_of_each_generation(
    kind: list[str],
    phase: list[str | None],
    generation: list[int | None],
    ends: dict[int, int],
) -> None:
    assert _ends(kind, phase, generation) == ends


def test_an_attempt_is_looked_at_up_to_the_first_reading_at_or_behind_a_bend() -> None:
    piece = Piece(_x(5, 10), _x(5))
    assert _until(piece, 12.0) == Piece(_x(3, 10), _x(3))
    assert _until(piece, 11.5) == Piece(_x(3, 10), _x(3))
    assert _until(piece, 10.0) == Piece([10.0], [0.0])
    assert _until(piece, 15.0) == piece


def test_attempts_are_joined_where_five_readings_of_each_meet() -> None:
    one = Piece(_x(6), [99.0, 1, 1, 2, 3, 3])
    two = Piece(_x(6, 10), [50.0, 50, 51, 52, 52, 99])
    # 2 and 51 are the middles.
    x, y = _joined([one, two])
    assert x == _x(6) + _x(6, 10)
    assert y == [99.0, 1, 1, 2, 3, 3, 1, 1, 2, 3, 3, 50]
    short = Piece(_x(2, 20), [7.0, 9])
    assert _joined([one, short])[1][-2:] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("y", "later", "found"),
    [
        # Fewer than five readings: half of what rises later is no flat piece.
        ([0.0, 1], 2.0, (0.0, 0.0)), ([0.0, 1], 2.1, None), ([0.0], -1.0, None), ([0.0, 1, 2, 3], 2.0, (0.0, 0.0)),
        ([0.0, 1, 2, 3], 2.1, None),
        # From five on what matters is whether it rises, and where it begins to.
        ([0.0, 1, 2, 3, 4], 99.0, (0.0, 0.0)), ([3.0, 3, 3, 3, 3], 0.0, None),
        ([0.0, 0, 0, 0, 2, 4, 6, 8, 10, 12], 9.0, (3.0, 3.0)),
        ([0.0, 5, 1, 6, 0, 5, 1, 6, 2], 1.0, None),
    ],
)  # fmt: skip
def test_what_rises_before_a_bend_has_a_start_of_its_own(
    y: list[float], later: float, found: tuple[float, float] | None
) -> None:
    assert _rise_before([Piece(_x(len(y)), y)], later) == found


def test_a_bend_is_looked_for_in_each_attempt_and_between_them() -> None:
    flat, rising = Piece(_x(4), [5.0] * 4), Piece(_x(4, 10), [90.0, 92, 94, 96])
    # Within the gap: the second has a level of its own, so nothing tells where.
    assert _hinge([flat, rising]) == Hinge(6.5, 3.0, 10.0, 2.0)
    bent = Piece(_x(5, 10), [90.0, 90, 90, 92, 94])
    assert _hinge([flat, bent]) == Hinge(12.0, 12.0, 12.0, 2.0)
    assert _hinge([flat, Piece(_x(4, 10), [90.0] * 4)]) is None
    early = Piece(_x(4), [5.0, 5, 7, 9])
    assert _hinge([early, rising]) == Hinge(1.0, 1.0, 1.0, 2.0)


def test_long_attempts_are_thinned_by_their_shares_and_keep_two_each() -> None:
    long, short = Piece(_x(94), _x(94)), Piece(_x(2, 200), _x(2))
    thin = _thinned([long, short])
    assert [len(piece) for piece in thin] == [47, 2]
    assert thin[0] == Piece(
        [float(i) for i in range(0, 94, 2)], [float(i) for i in range(0, 94, 2)]
    )
    whole = [Piece(_x(24), _x(24)), Piece(_x(24, 30), _x(24))]
    assert _thinned(whole) == whole
    assert [len(piece) for piece in _thinned([*whole, short])] == [23, 23, 2]


def test_the_error_of_attempts_is_what_levels_and_one_slope_leave_over() -> None:
    before, own = Piece(_x(3), [1.0, 2, 4]), Piece(_x(4, 4), [7.0, 7, 9, 11])
    after = Piece(_x(3, 20), [50.0, 52, 54])
    # 3 of the first; nothing of the others, which rise by 2 from 7 at the second reading on.
    assert _fit([before], own, 1, [after]) == (3.0, 2.0)
    assert _fit([], Piece(_x(4, 4), [7.0, 8, 9, 11]), 1, []) == (1.0 + 0.0 + 0.25, 1.75)


def test_readings_of_a_later_attempt_count_from_its_middle() -> None:
    piece = Piece([1.0, 2, 4], [10.0, 20, 60])
    assert _from_its_middle(piece) == [(10.0, 1.0), (20.0, 2.0)]
    assert _scatter([1.0, 2, 9]) == 8


def test_a_run_without_resumes_is_one_piece() -> None:
    assert pieces_of(_lane(6), _x(6), _x(6)) == [Piece(_x(6), _x(6))]


@pytest.mark.parametrize(
    ("count", "last_thinned", "step", "kept"),
    [
        # The newest 384 and up to 127 more are read whole, of those before no more than 256.
        (769, 384, 2, 16 + 183 + 386), (896, 512, 2, 16 + 247 + 385), (1023, 512, 2, 16 + 247 + 512),
        (1024, 640, 4, 16 + 155 + 385),
    ],
)  # fmt: skip
def test_of_a_long_run_the_first_and_the_newest_are_read_whole(
    count: int, last_thinned: int, step: int, kept: int
) -> None:
    positions = positions_to_read(count)
    assert positions is not None
    assert positions[:16] == list(range(16))
    newest = positions.index(last_thinned - 1)
    assert positions[newest:] == list(range(last_thinned - 1, count))
    assert {b - a for a, b in pairwise(positions[16:newest])} == {step}
    assert len(positions) == kept


def test_up_to_768_generations_all_are_read() -> None:
    assert positions_to_read(768) is None
    assert rows_to_read([0] * 769, _x(769), [None] * 769) is None
    thin = rows_to_read([None, *range(769)], _x(770), ["x"] * 770)
    assert thin is not None
    # The row of no generation is read in any case.
    assert (thin.rows[0], thin.rows[-1]) == (0, 769)
    assert thin.left_out.phases == {"x"}
    assert len(thin.left_out.generations) == 770 - len(thin.rows)


def test_a_program_without_generations_is_counted_by_time() -> None:
    moments = [5.0, 64.9, 65.0, 125.0]
    assert generations_of([None] * 4, moments) == [0, 0, 1, 2]
    assert generations_of([None] * 4, moments, 30.0) == [0, 1, 2, 4]
    assert generations_of([None] * 4, moments, 0) == [None] * 4
    assert generations_of([None, 7], moments[:2]) == [None, 7]


def test_spans_are_cut_at_a_generation() -> None:
    spans = Spans(((0, 3), (6, 9)))
    assert spans.upto(6) == Spans(((0, 3), (6, 6)))
    assert spans.upto(5.5) == Spans(((0, 3),))
    assert spans.above(3) == Spans(((6, 9),))
    assert spans.above(2) == Spans(((3, 3), (6, 9)))
    assert (3 in spans, 4 in spans, 6 in spans, -1 in spans) == (True, False, True, False)
    assert (len(spans), list(spans)) == (8, [0, 1, 2, 3, 6, 7, 8, 9])
    assert (spans.first, spans.last, NO_SPANS.first, NO_SPANS.last) == (0, 9, None, None)
    assert Spans.of([1, 2, 4]) == Spans(((1, 2), (4, 4)))


@pytest.mark.parametrize(
    ("y", "leaves"),
    [
        ([100.0, 100, 100, 103, 106], True), ([100.0, 100, 100, 97, 94], True),
        ([100.0, 100, 100, 106, 103], False),
        ([100.0, 100, 103, 103, 106], False), ([100.0, 100, 97, 97, 94], False), ([100.0, 100, 100, 103, 103], False),
        # By what does not matter.
        ([100.0, 100, 100, 100.01, 100.02], False),
    ],
)  # fmt: skip
def test_two_readings_that_move_on_leave_the_level(y: list[float], leaves: bool) -> None:
    assert _leaves(y, Scale(100.0)) is leaves


def test_nine_readings_that_end_with_a_move_are_not_flat_and_ten_show_a_slope() -> None:
    assert not _is_flat(_x(9), [100.0] * 7 + [110, 120], Scale(100.0))
    assert _is_flat(_x(10), [100.0] * 8 + [110, 120], Scale(100.0))
    assert not _is_flat(_x(10), [100.0 - 2 * i for i in range(10)], Scale(100.0))
    assert not _is_flat(_x(10), [100.0] * 5 + [110, 120, 130, 140, 150], Scale(100.0))
    assert _is_flat(_x(4), [100.0] * 4, Scale(100.0))


def test_a_spike_lies_no_way_off() -> None:
    assert _off([5.0, 1, 9, 1, 1], 1.0) == [4.0, 4.0, 0.0, 0.0, 0.0]
    assert _behind([9.0, 2, -3, 2, 2], 2.0) == 3
    assert _behind([9.0, 2, 2], 9.0) == 0
    assert _behind([9.0, 2, 2], 8.9) == 1


def test_a_level_begins_behind_the_way_to_it() -> None:
    assert _bend(_x(12), [100.0] * 12) == (0, 0, 0)
    assert _bend(_x(12), [50.0] * 4 + [100.0] * 8) == (4, 4, 4)
    assert _bend(_x(12), [60.0, 70, 80, 90] + [100.0] * 8) == (4, 4, 4)


@pytest.mark.parametrize(
    ("y", "settled"),
    [
        ([100.0] * 5, Interval(10, 10, 10)), ([100.0] * 4, None),
        ([50.0] * 4 + [100.0] * 5, Interval(14, 14, 14)),
        ([50.0] * 5 + [100.0] * 4, None), ([10.0 * i for i in range(10, 22)], None),
    ],
)  # fmt: skip
def test_memory_is_flat_once_five_readings_lie_on_a_level(
    y: list[float], settled: Interval | None
) -> None:
    assert settling_of(_x(len(y), 10), y, Scale(100.0)) == settled


@pytest.mark.parametrize(
    ("spans", "done"),
    [
        (((0, 9),), 10), ((), 0),
        # One of eleven was lost on the way, or two of twelve; and it began with the first, or late.
        (((0, 4), (6, 10)), 11), (((0, 4), (7, 11)), 10), (((90, 99),), 100),
    ],
)  # fmt: skip
def test_a_training_has_behind_it_what_ended_and_the_few_that_were_lost(
    spans: tuple[tuple[int, int], ...], done: int
) -> None:
    assert _complete(Spans(spans)) == done


def test_generations_count_that_ended_since_a_moment() -> None:
    lane = _lane(8)
    assert [_first_position(lane, since) for since in (-1.0, 0.0, 60.0, 60.5, 999.0)] == [
        0,
        0,
        1,
        2,
        8,
    ]
    assert (_ended(lane), _ended(lane, 3), _ended(lane, 8)) == (
        Spans(((0, 7),)), Spans(((3, 7),)), NO_SPANS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("generations", "first", "warm_up"),
    [(16, 0, 4), (15, 0, 3), (16, 4, 3), (40, 0, 4), (40, 37, 0), (40, 36, 1)],
)
def test_a_quarter_of_a_resumed_process_is_warm_up_and_no_more_than_four(
    generations: int, first: int, warm_up: int
) -> None:
    assert _warm_up(_lane(generations), first) == warm_up


def test_processes_add_up_with_their_intervals() -> None:
    assert added([Slope(1, 0, 3, 4), Interval(10, 5, 20)]) == Interval(11, 5, 23)
    assert added([]) is None


def test_a_line_of_the_books_is_summed_by_phase() -> None:
    line = {"a": 1.0, "a/x": 2.0, "b/x": 4.0}
    assert (_within(line, "a"), _within(line, "x"), _within(line, "c")) == (3, 6, 0)
    assert (_booked_within(line, "x"), _booked_within(line, "c")) == (6, None)
    assert _by_top_level(line) == {"a": 3.0, "b": 4.0}


def test_the_noise_of_what_is_booked_widens_what_is_kept() -> None:
    assert kept_per_generation(_x(6), [2.0] * 6) == Slope(2, 2, 2, 6)
    noisy = kept_per_generation(_x(8), [1.0, 3, 1, 3, 1, 3, 1, 3])
    # A spread of 1.4826 over six degrees of freedom.
    reach = 1.6448536 * 1.4826 * (1.2 / 6) ** 0.5
    assert noisy.estimate == 2
    assert (noisy.low, noisy.high) == pytest.approx((2 - reach, 2 + reach))
