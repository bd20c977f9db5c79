"""Evidence from memory alone: how much growth matters, over how long, and separate from what declared stores take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from pieces import sure

from leakline.analysis.statistics.memory_evidence import (
    Rise,
    Scale,
    _exceeds,
    baseline_of,
    lasting_rise,
)

PLAIN = Scale(1000.0)
NEAR = Scale(1000.0, limit_bytes=1000.0, level_bytes=500.0, remaining_generations=10.0)


@pytest.mark.parametrize(
    ("window", "horizon"), [(0.2, 2.0), (1.0, 2.0), (10.0, 20.0), (50.0, 100.0), (51.0, 100.0)]
)
def test_growth_is_extrapolated_by_twice_its_age_up_to_100(window: float, horizon: float) -> None:
    assert PLAIN.horizon(window) == horizon
    assert PLAIN.share(3.0, window) == 3.0 * horizon / 1000
    assert PLAIN.material_rate(window) == 50.0 / horizon
    # Without a baseline growth is compared with one byte.
    assert Scale(0.0).share(3.0, window) == 3.0 * horizon


@pytest.mark.parametrize(
    ("rate", "window", "material", "trivial"),
    [
        (0.5, 50.0, True, False), (0.49, 50.0, False, False), (0.05, 50.0, False, False),
        (0.049, 50.0, False, True), (2.5, 10.0, True, False), (2.4, 10.0, False, False), (0.0, 50.0, False, True),
        (-9.0, 50.0, False, True),
    ],
)  # fmt: skip
def test_a_twentieth_of_the_baseline_matters_and_a_two_hundredth_is_trivial(
    rate: float, window: float, material: bool, trivial: bool
) -> None:
    assert PLAIN.is_material(rate, window) == material
    assert PLAIN.is_trivial(rate, window) == trivial


@pytest.mark.parametrize(
    ("scale", "rate", "near"),
    [
        (NEAR, 40.0, False), (NEAR, 40.1, True), (NEAR, 0.0, False),
        (Scale(1.0, 1000.0, 950.0, 10.0), 0.0, False), (Scale(1.0, 1000.0, 950.0, 10.0), 0.1, True),
        (Scale(1.0, None, 950.0, 10.0), 9.0, False), (Scale(1.0, 1000.0, 950.0, None), 9.0, False),
        (Scale(1.0, 1000.0, 950.0, 0.0), 9.0, True),
    ],
    ids=["nine tenths", "more", "flat", "flat close by", "close by", "no limit", "no end", "at its end"],
)  # fmt: skip
def test_growth_beyond_nine_tenths_of_the_limit_is_near_it(
    scale: Scale, rate: float, near: bool
) -> None:
    assert scale.ends_near_limit(rate) == near


@pytest.mark.parametrize(
    ("values", "level"), [([], 0.0), ([7.0], 7.0), ([9.0, 5.0, 7.0, 1.0], 7.0), ([4.0, 6.0], 5.0)]
)
def test_the_baseline_is_the_median_of_the_first_three(values: list[float], level: float) -> None:
    assert baseline_of(values) == level


def _line(n: int, rate: float, flat: int = 0) -> tuple[list[float], list[float]]:
    """Return readings that are flat for a while and then rise linearly."""
    return [float(i) for i in range(n)], [1000.0 + rate * max(0, i - flat + 1) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "window", "visible"),
    [
        (4, 0, False), (5, 0, True), (8, 8, True),
    ],
)  # fmt: skip
def test_a_straight_rise_is_visible_from_five_and_lasting_from_eight(
    n: int, window: int, visible: bool
) -> None:
    rise = lasting_rise(*_line(n, 50.0), PLAIN)
    assert (rise.window, rise.strict, rise.generations) == (window, window, window)
    assert rise.visible == visible
    assert rise.slope == (None if not window else sure(50.0, min(n, 16)))
    x, y = _line(n, 50.0)
    assert lasting_rise([3 * g for g in x], y, PLAIN).generations == (22 if window else 0)


@pytest.mark.parametrize(
    ("rising", "window"),
    [(4, 0), (8, 12), (12, 16), (16, 24), (54, 81), (412, 618), (618, 927), (927, 927)],
)
def test_a_rise_lasts_if_it_covers_two_thirds_of_the_window(rising: int, window: int) -> None:
    rise = lasting_rise(*_line(3 * rising, 50.0, flat=2 * rising), PLAIN)
    assert (rise.window, rise.generations) == (window, window)


@pytest.mark.parametrize(
    ("power", "n", "window", "strict"),
    [(0.5, 20, 16, 0), (0.5, 30, 24, 0), (0.7, 40, 40, 0), (0.7, 30, 24, 24), (1.0, 30, 30, 30)],
)
def test_a_slowing_rise_passes_only_the_looser_test(
    power: float, n: int, window: int, strict: int
) -> None:
    x = [float(i) for i in range(n)]
    rise = lasting_rise(x, [1000.0 + 200 * g**power for g in x], PLAIN)
    assert (rise.window, rise.strict) == (window, strict)


@pytest.mark.parametrize(
    ("pace", "strict"),
    [(20.0, 0), (28.0, 0), (60.0, 15)],
    ids=["full in a hundred", "full a little later", "hardly slower"],
)
def test_slow_filling_is_recognized_over_an_entire_short_run(pace: float, strict: int) -> None:
    """At a pace of 28 only the last twelve of the 15 readings look straight."""
    readings = [1000.0 + 900.0 * (1 - math.exp(-i / pace)) for i in range(15)]
    assert lasting_rise(range(15), readings, PLAIN).strict == strict


def test_earlier_readings_do_not_slow_the_rise_in_a_short_run() -> None:
    flat = [1000.0] * 4 + [1000.0 + 20.0 * i for i in range(1, 12)]
    assert lasting_rise(range(15), flat, PLAIN).strict == 15
    loads = [1000.0 + 200.0 * (1 - math.exp(-i)) + 15.0 * i for i in range(15)]
    assert lasting_rise(range(15), loads, PLAIN).strict == 12


@pytest.mark.parametrize(("rate", "window"), [(0.5, 50), (0.49, 0)], ids=["a twentieth", "less"])
def test_growth_of_a_twentieth_within_the_horizon_matters(rate: float, window: int) -> None:
    assert lasting_rise(*_line(50, rate), PLAIN).window == window


def test_memory_back_at_its_minimum_has_not_risen() -> None:
    x, y = _line(30, 50.0)
    assert lasting_rise(x, [*y[:-1], y[0]], PLAIN) == Rise()
    assert lasting_rise(x, [1000.0] * 30, PLAIN) == Rise()


@pytest.mark.parametrize(
    ("n", "rate", "visible"),
    [(6, 6.25, True), (6, 6.2, False), (7, 6.25, True)],
    ids=["a twentieth in eight", "less", "of seven"],
)
def test_a_short_rise_is_visible_if_its_newest_four_readings_matter(
    n: int, rate: float, visible: bool
) -> None:
    """Four readings are extrapolated by eight generations."""
    assert lasting_rise(*_line(n, rate), PLAIN).visible == visible


@pytest.mark.parametrize(
    ("values", "visible"),
    [
        ([1000.0] * 6 + [1050.0, 1100.0, 1150.0, 1200.0, 1250.0, 1300.0], True),
        ([1000.0 + 50 * i for i in range(6)] + [1300.0] * 6, False),
        ([1300.0] + [1000.0] * 5 + [1050.0, 1100.0, 1150.0, 1200.0, 1250.0, 1300.0], False),
    ],
    ids=["flat before", "flat now", "as high before"],
)  # fmt: skip
def test_a_rise_is_visible_only_while_it_continues(values: list[float], visible: bool) -> None:
    x = [float(i) for i in range(len(values))]
    assert lasting_rise(x, values, PLAIN).visible == visible


@pytest.mark.parametrize(
    ("n", "jump", "rate", "visible"),
    [(12, 20.0, 1.0, False), (12, 20.0, 9.0, True), (12, 0.0, 9.0, True), (16, 20.0, 1.0, True)],
    ids=["loads, then one jump", "and goes on", "without a jump", "of more readings"],
)
def test_one_jump_after_loading_is_not_a_rise(
    n: int, jump: float, rate: float, visible: bool
) -> None:
    """Like our own server in its first seconds: 80, 96, 113, 121, 124 MiB, one table, then flat."""
    loads = [800.0, 960.0, 1130.0, 1210.0]
    flat = [1230.0 + rate * i for i in range(n - len(loads))]
    at = len(flat) - (n // 2) // 2
    y = [*loads, *(value + jump * (i >= at) for i, value in enumerate(flat))]
    assert lasting_rise([float(i) for i in range(n)], y, PLAIN).visible == visible


@pytest.mark.parametrize(
    ("bounded", "rate", "length", "exceeds"),
    [
        ([0.0, 50.0, 100.0], 2.1, 3, True), ([0.0, 50.0, 100.0], 2.0, 3, False),
        ([0.0, 0.0, 100.0], 20.0, 2, False), ([100.0, 100.0, 50.0], 0.0, 2, True),
    ],
    ids=["more than a fifth", "a fifth", "newest only", "emptied"],
)  # fmt: skip
def test_remaining_growth_must_exceed_a_fifth_of_store_growth(
    bounded: Sequence[float], rate: float, length: int, exceeds: bool
) -> None:
    """The sizes of stores are known to about a tenth."""
    x = [0.0, 5.0, 10.0] if length == 3 else [0.0, 9.0, 10.0]
    assert _exceeds(sure(rate), x, bounded, length) == exceeds
    # A span of less than one generation counts as one.
    spans = [_exceeds(sure(each), [0.0, 0.5], [0.0, 100.0], 2) for each in (20.0, 20.5)]
    assert spans == [False, True]


def test_stores_that_explain_all_growth_leave_no_rise() -> None:
    x, y = _line(20, 50.0)
    filling = [300.0 * g for g in x]
    assert lasting_rise(x, y, PLAIN, filling) == Rise()
    assert lasting_rise(x, y, PLAIN, [200.0 * g for g in x]).window == 20
