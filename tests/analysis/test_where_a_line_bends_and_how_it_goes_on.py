"""Where memory begins to rise, and when it meets its limit, on curves whose truth is known to a generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from builder import BASELINE, TRAIN, Leak, Training, curve, history_of

from leakline.analysis import examine
from leakline.analysis.forecast import generations_left
from leakline.analysis.history import RunHistory, history_from_batches
from leakline.analysis.onset import bend_of, pieces_of
from leakline.analysis.outlook import generations_to, outlook_of
from leakline.analysis.series import Lane, lanes_of
from leakline.analysis.study import LaneStudy

MIB = 2**20


def study_of(history: RunHistory) -> LaneStudy:
    (lane,) = lanes_of(history)
    return LaneStudy(history, lane)


@pytest.mark.parametrize(
    ("shape", "start"),
    [
        (lambda i: 6.0 * max(0, i - 24), 25),
        (lambda i: 0.05 * max(0, i - 12) * (max(0, i - 12) + 20), 13),
        (lambda i: 300 * (1 - math.exp(-i / 4)) + 6.0 * i, 0),
    ],
    ids=["a line", "faster and faster", "warm-up and a line"],
)
def test_a_rise_begins_where_it_is_first_seen(shape: Callable[[int], float], start: int) -> None:
    values = curve(shape, 90)
    bend = bend_of(study_of(history_of(values)).lane, values, len(values))
    assert bend is not None
    assert abs(bend[0] - start) <= 5
    assert bend[1] <= bend[0] <= bend[2]


def _attempts(*lengths: int) -> tuple[list[float], Lane]:
    """Flat but for 300 MiB of warm-up in three generations of each process that resumes, and the lane of them."""
    trainings = [
        Training(generations=n, buffer_bytes=0, noise=0.0, warm_up=(0.0, 200.0 * MIB, 100.0 * MIB) if i else (),
                 instance=f"p{i}", attempt=i + 1, first_generation=sum(lengths[:i]))
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    batches = [batch for training in trainings for batch in training.batches()]
    (lane,) = lanes_of(history_from_batches(trainings[0].header(), batches))
    return lane.private, lane


def test_the_warm_up_of_a_resumed_process_is_no_beginning_of_a_leak() -> None:
    values, lane = _attempts(20, 20)
    assert values[22] > values[19] + 250 * MIB
    leak = [value + 5 * MIB * max(0, i - 29) for i, value in enumerate(values)]
    assert bend_of(lane, leak, 40) == (30, 30, 30)


def test_what_begins_in_the_gap_of_a_resume_may_have_begun_in_any_of_its_generations() -> None:
    values, lane = _attempts(20, 20)
    for start in (20, 22, 24):
        leak = [value + 5 * MIB * max(0, i - start + 1) for i, value in enumerate(values)]
        bend = bend_of(lane, leak, 40)
        assert bend is not None
        assert (bend[1], bend[2]) == (20, 25)
        assert bend[1] <= bend[0] <= bend[2]


def test_attempts_of_a_few_generations_each_are_one_line() -> None:
    values, lane = _attempts(*[5] * 8)
    assert [len(stretch) for stretch in pieces_of(lane, list(map(float, range(40))), values)] == [
        40
    ]
    values, lane = _attempts(*[10] * 30)
    lengths = [len(stretch) for stretch in pieces_of(lane, list(map(float, range(300))), values)]
    assert lengths == [220, *[6] * 8]


def test_growth_that_speeds_up_is_expected_to_go_on_speeding_up() -> None:
    study = study_of(history_of(curve(lambda i: 0.1 * i * i, 60)))
    outlook = outlook_of(study, 60)
    assert outlook.gains == pytest.approx(0.2 * MIB, rel=0.25)
    assert outlook.rate.estimate == pytest.approx(12 * MIB, rel=0.15)
    assert outlook_of(study_of(history_of(curve(lambda i: 6.0 * i, 60))), 60).gains == 0


def test_amounts_are_reached_by_the_sum_of_rate_and_gain() -> None:
    assert generations_to(100, 10, 0) == 10
    assert generations_to(100, 0, 2) == pytest.approx(10)
    assert generations_to(100, -1, 0) is None
    assert generations_to(0, -1, 0) == 0
    assert generations_to(1e10, 1e6, 1e-15) == pytest.approx(10_000)
    # Full after 5 with 20 per generation, and 10 more for ever.
    assert generations_left(200, 10, [(100, 20)]) == pytest.approx(5 + 5)
    # 30 t + t² = 130
    assert generations_left(130, 10, [(100, 20)], 2.0) == pytest.approx(355**0.5 - 15)


@pytest.mark.parametrize(
    ("shape", "out"),
    [
        (lambda i: 6.0 * i, 99),
        (lambda i: 0.06 * i * i, 99),
        (lambda i: 6.0 * i + 60 * (i % 8) / 8, 95),
    ],
    ids=["a line", "faster and faster", "teeth on a line"],
)
def test_the_end_is_named_half_way_before_it(shape: Callable[[int], float], out: int) -> None:
    """The limit is what the clean curve reaches at generation 99; teeth reach it a little before."""
    limit = BASELINE + MIB * shape(99)
    oom = examine(history_of(curve(shape, 50), limit)).oom
    assert oom.generation is not None
    assert oom.generation.estimate == pytest.approx(out, abs=10)
    assert oom.generation.low <= out <= oom.generation.high


def test_children_that_grow_bring_the_end_too() -> None:
    flat, children = curve(lambda i: 0.0, 50), curve(lambda i: 6.0 * i, 50)
    oom = examine(history_of(flat, 2 * BASELINE + 600 * MIB, children__uss_bytes=children)).oom
    assert oom.generation is not None
    assert oom.generation.estimate == pytest.approx(100, abs=8)


def test_a_run_that_does_not_grow_has_no_end() -> None:
    assert examine(history_of(curve(lambda i: 0.0, 50), 1.5 * BASELINE)).oom.risk == "none"
    leak = Training(
        generations=30, leaks=(Leak(TRAIN, 6 * MIB),), limit_bytes=8_000 * MIB, total=40
    )
    assert examine(leak.history()).oom.risk == "none"


def test_what_ranks_share_fills_memory_once() -> None:
    """Each process counts the same segment: nobody knows how often it is there."""
    shared = [100 * BASELINE] * 20
    one = history_of(curve(lambda i: 0.0, 20), 150 * BASELINE, process__shared_bytes=shared)
    ranks = [
        replace(process, instance=f"p{rank}", rank=rank)
        for rank, process in enumerate(one.processes * 8)
    ]
    assert examine(replace(one, processes=tuple(ranks))).oom.risk == "none"


@pytest.mark.parametrize("flat", [4, 5, 8])
def test_half_a_short_run_flat_and_then_growth_is_worth_watching(flat: int) -> None:
    """It was told as "No leak: memory changes by +20 MiB per generation", flat from generation 0 on."""
    rising = curve(lambda i: max(0, i - flat + 1) * 20.0, 2 * flat)
    verdict = examine(history_of(rising))
    assert verdict.status == "watch"
    assert verdict.settled_at_generation is None
    assert f"since generation {flat}" in verdict.summary
    once = curve(lambda i: 20.0 if i >= flat else 0.0, 2 * flat)
    assert examine(history_of(once)).status == "ok"
