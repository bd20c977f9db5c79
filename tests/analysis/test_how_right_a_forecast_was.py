"""How right a forecast was: when its time has come, how far off it was, and by how far ahead it looked."""

from __future__ import annotations

import pytest
from pieces import sure

from leakline.analysis.forecast import widened
from leakline.analysis.outlook import Outlook
from leakline.analysis.results import Interval, PastForecast
from leakline.analysis.score import _ahead, _by_lead, _right, _told, came_within, error_of, grid
from leakline.analysis.trend import Z_90


def _made(
    made_at: int, generation: int, estimate: float = 100.0, came: float = 100.0, reach: float = 10.0
) -> PastForecast:
    return PastForecast(
        made_at, generation, Interval(estimate, estimate - reach, estimate + reach), came
    )


def test_forecasts_are_made_four_times_in_each_doubling_for_half_as_far_ahead() -> None:
    assert list(grid(11)) == []
    assert list(grid(12)) == [(8, 12)]
    assert list(grid(15)) == [(8, 12), (10, 15)]
    assert list(grid(48)) == [
        (8, 12), (10, 15), (12, 18), (14, 21), (16, 24), (20, 30), (24, 36), (28, 42), (32, 48),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("estimate", "came", "error"), [(110.0, 100.0, 0.1), (90.0, 100.0, 0.1), (50.0, 200.0, 0.75)]
)
def test_an_error_is_a_share_of_what_came(estimate: float, came: float, error: float) -> None:
    assert error_of(_made(8, 12, estimate, came)) == error


@pytest.mark.parametrize(
    ("came", "within"), [(90.0, True), (89.0, False), (110.0, True), (111.0, False)]
)
def test_memory_comes_within_a_forecast_at_either_end_of_it(came: float, within: bool) -> None:
    assert came_within(_made(8, 12, came=came)) == within


def test_how_right_several_were_is_the_middle_of_their_errors() -> None:
    past = [_made(8, 12, came=100.0), _made(10, 15, came=80.0), _made(12, 18, came=125.0)]
    assert _right(past) == (0.2, 1)


def test_forecasts_are_told_apart_by_doublings_of_how_far_ahead_they_looked() -> None:
    one, two, three, four = _made(8, 9), _made(8, 10), _made(8, 11), _made(8, 12, came=80.0)
    found = list(_by_lead([four, three, one, two]))
    assert [(e.ahead_from, e.ahead_to, e.forecasts) for e in found] == [
        (1, 1, 1), (2, 3, 2), (4, 7, 1),
    ]  # fmt: skip
    assert [(e.median_error, e.within) for e in found] == [(0.0, 1), (0.0, 2), (0.25, 0)]
    assert found[1].past == (two, three)


@pytest.mark.parametrize(
    ("error", "size"), [(0.009, "less than 1 %"), (0.01, "1 %"), (0.256, "26 %")]
)
def test_an_error_is_told_in_whole_percent(error: float, size: str) -> None:
    one = _told([_made(8, 12)], error, 1, "step")
    assert one == (
        "The one forecast of this run whose time has come, made at step 8 for 12, "
        f"was off by {size}, inside its interval."
    )
    assert _told([_made(8, 12)], error, 0, "step").endswith("outside its interval.")
    said = _told([_made(8, 12)] * 2, error, 1, "step")
    assert said == (
        f"2 forecasts could be checked: typically off by {size} of the memory that came; "
        "1 within their interval"
    )
    assert _told([_made(8, 12)] * 2, error, 2, "step").endswith("; all 2 within their interval")


def test_without_a_rate_a_forecast_scatters_as_memory_does() -> None:
    assert _ahead(Outlook(spread=10.0), 4.0) == (-10 * Z_90, 0.0, 10 * Z_90)


def test_a_rate_that_itself_grows_gains_half_of_that_by_the_square_of_the_time() -> None:
    steady = _ahead(Outlook(sure(100.0)), 4.0)
    faster = _ahead(Outlook(sure(100.0), gains=3.0), 4.0)
    assert steady[1] == 400.0
    # Only what is expected and what is feared: at the least it does not go on to grow.
    assert (faster[0], faster[1], faster[2] - steady[2]) == (steady[0], 424.0, 24.0)
    assert steady[0] == 4 * widened(sure(100.0))[0]
    assert steady[2] == 4 * widened(sure(100.0))[1]
