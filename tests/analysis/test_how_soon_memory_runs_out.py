"""When memory runs out, step by step: what is left, how it is used up, and from when on that is a risk."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from leakline.analysis.attempts import Told
from leakline.analysis.channels import Channel
from leakline.analysis.forecast import (
    _Distance,
    _ends,
    _Growth,
    _growth_of,
    _headroom,
    _moments,
    _oom,
    _peak_over_floor,
    _risk,
    _seconds_each,
    _used_by_the_end,
    forecast,
    generations_left,
    memory_lasts,
    widened,
)
from leakline.analysis.history import RunHistory
from leakline.analysis.ladder import Standing
from leakline.analysis.limits import Limit, limit_of, newest
from leakline.analysis.outlook import (
    Outlook,
    _last,
    _of_growth,
    _outlook_of,
    _speeding_up,
    beside_private,
    generations_to,
    level_of,
)
from leakline.analysis.results import Interval, OomForecast
from leakline.analysis.results import Moment as When
from leakline.analysis.series import Lane
from leakline.analysis.study import LaneStudy, Moment
from leakline.analysis.trend import Slope

QUIET = OomForecast("none", 1_000, "user")


class _Lane(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.generations)


def study(
    rows: Sequence[float | None] = (), *, ends: Sequence[int] | None = None, generations: Sequence[int] | None = None,
    limit: float | None = 1_000, source: Literal["cgroup", "system", "user"] = "user", outlook: Outlook | None = None,
    bounded: Sequence[Any] = (), planned: float | None = None, seconds: float = 60.0,
    series: dict[str, Any] | None = None, channels: Sequence[Any] = (), behind: float = 0.0,
) -> LaneStudy:  # fmt: skip
    """Private memory of each snapshot; ``ends``: those that end a generation, all where none are named."""
    end_rows = list(range(len(rows)) if ends is None else ends)
    lane = _Lane(
        private_rows=list(rows), end_rows=end_rows, generations=list(generations or range(len(end_rows))),
        private=[float(v) for row in end_rows if (v := rows[row]) is not None],
        time=[1_000.0 + seconds * row for row in range(len(rows))], series=series or {},
        left_behind=lambda upto: behind,
    )  # fmt: skip
    told = SimpleNamespace(
        lane=lane, limit=None if limit is None else Limit(limit, source), channels=channels,
        facts=SimpleNamespace(bounded=bounded), remaining=lambda upto: planned,
        history=RunHistory("r", total=None if planned is None else round(end_rows[-1] + 1 + planned)),
        known=SimpleNamespace(once=lambda upto, name, work: outlook or Outlook()),
        residual=lambda upto: lane.private[:upto], bend=lambda upto: None,
    )  # fmt: skip
    return cast(LaneStudy, told)


def moment(upto: int, *, window: int = 0, visible: bool = False) -> Moment:
    return cast(
        Moment, SimpleNamespace(upto=upto, rise=SimpleNamespace(window=window, visible=visible))
    )


def rate(estimate: float, reach: float = 0.0) -> Slope:
    return Slope(estimate, estimate - reach, estimate + reach, 9)


@pytest.mark.parametrize(
    ("left", "lived", "risk"),
    [
        # A quarter of the life that it has in all.
        (10, 30, "critical"),
        (10.1, 30, "high"),
        # Half of it.
        (30, 30, "high"),
        (30.1, 30, "low"),
        # Three generations are near, however young the run is.
        (3, 3, "critical"),
        (3.1, 3.1, "high"),
        (3, 1, "critical"),
        (3.1, 1.6, "low"),
        # Twice as far as it has lived.
        (60, 30, "low"),
        (60.1, 30, "none"),
    ],
)
def test_the_risk_rises_with_the_share_of_its_life_that_is_left(
    left: float, lived: float, risk: str
) -> None:
    assert _risk(_Distance(left, left, left, lived), confirmed=True) == risk


@pytest.mark.parametrize(
    ("left", "soonest", "latest", "confirmed", "risk"),
    [
        (400, 300, 600, True, "high"),
        # Only suspected, or not sure to come before the planned end.
        (400, 300, 600, False, "low"),
        (400, 300, 1_001, True, "low"),
        (1_001, 1_000, 1_200, True, "low"),
        (1_001, 1_001, 1_200, True, "none"),
        (30, 20, 40, False, "high"),
        (2, 1, 3, False, "critical"),
    ],
)
def test_with_a_plan_only_an_end_before_the_planned_end_is_a_risk(
    left: float, soonest: float, latest: float, confirmed: bool, risk: str
) -> None:
    assert _risk(_Distance(left, soonest, latest, 30, planned=1_000), confirmed) == risk


@pytest.mark.parametrize(
    ("left", "days", "risk"),
    [
        (20, 1, "high"),
        (20, 1.1, "low"),
        (61, 1.1, "none"),
        (61, 1, "low"),
        # Three generations of a day each.
        (3, 3, "critical"),
    ],
)
def test_without_a_plan_only_an_end_within_a_day_is_a_high_risk(
    left: float, days: float, risk: str
) -> None:
    end = _Distance(left, left, left, 30, seconds=days * 86_400)
    assert _risk(end, confirmed=True) == risk


@pytest.mark.parametrize(
    ("amount", "rate", "gains", "generations"),
    [
        (0, 5, 0, 0),
        (-1, -5, 0, 0),
        (0.5, 1, 0, 0.5),
        (10, 0.5, 0, 20),
        (10, 0, 0, None),
        (10, -1, 0, None),
        # What slows down is taken to go on as it does now.
        (10, 2, -1, 5),
        # 2 t + t² / 2 = 16
        (16, 2, 1, 4),
        # -2 t + t² / 2 = 16: it falls at first.
        (16, -2, 1, 8),
        (16, 0, 2, 4),
    ],
)
def test_an_amount_is_reached_by_rate_and_gain(
    amount: float, rate: float, gains: float, generations: float | None
) -> None:
    assert generations_to(amount, rate, gains) == generations


@pytest.mark.parametrize(
    ("headroom", "rate", "filling", "gains", "left"),
    [
        (100, 10, [], 0, 10),
        (100, 0, [], 0, None),
        (0, 0, [], 0, 0),
        # Full after 5 with 20 per generation; until then 30 are gone in each.
        (149, 10, [(100, 20)], 0, 149 / 30),
        (150, 10, [(100, 20)], 0, 5),
        (160, 10, [(100, 20)], 0, 6),
        # It fills and then nothing grows any more.
        (100, 0, [(100, 20)], 0, 5),
        (101, 0, [(100, 20)], 0, None),
        # The first is full after 2, the second after 5: 30 a generation, then 20.
        (60, 0, [(100, 20), (20, 10)], 0, 2),
        (80, 0, [(100, 20), (20, 10)], 0, 3),
        (121, 0, [(100, 20), (20, 10)], 0, None),
        # What has no room or does not fill takes nothing.
        (100, 10, [(0, 20), (50, 0)], 0, 10),
        (100, 10, [(0.5, 0.5)], 0, 9.95),
        # 4 t + 2 t² / 2: 12 after 2 generations beside the 20 of the container; then 8 t + t².
        (32, 4, [(20, 10)], 2, 2),
        (41, 4, [(20, 10)], 2, 3),
        # The second container, too, sees what the rate has gained: 20 + 4 + 20 after 2, then 10 + 4 t + t².
        (44 + 15, 0, [(20, 10), (100, 10)], 2, 3),
    ],
)  # fmt: skip
def test_room_is_used_up_by_growth_and_by_what_still_fills(
    headroom: float, rate: float, filling: list[tuple[float, float]], gains: float, left: float | None
) -> None:  # fmt: skip
    found = generations_left(headroom, rate, filling, gains)
    assert found == (None if left is None else pytest.approx(left))


def test_a_rate_is_believed_a_fifth_less_exactly_than_its_interval_says() -> None:
    assert widened(Interval(100, 90, 120)) == (88, 124)


def standing(estimate: float, channel: str = "private", status: str = "suspected") -> Standing:
    cause = SimpleNamespace(rate=Slope(estimate, estimate, estimate, 9))
    return cast(
        Standing,
        SimpleNamespace(status=status, assessed=SimpleNamespace(cause=cause, channel=channel)),
    )


def test_growth_of_processes_under_one_limit_is_added_up() -> None:
    one, two = Outlook(Slope(5, 4, 7, 9)), Outlook(Slope(2, 1, 4, 6), 2)
    at = moment(2, visible=True)
    found = _growth_of([(study([0, 0], outlook=each), at, []) for each in (one, two)])
    assert (found.rate, found.gains, found.sure) == (Slope(7, 5, 11, 6), 2, False)


def test_the_rate_is_that_of_the_findings_within_what_its_windows_say() -> None:
    run = study([0, 0], outlook=Outlook(Slope(5, 4, 7, 9)))
    active = [
        standing(6),
        standing(3, "children.uss_bytes"),
        standing(50, "cuda.0.allocated_bytes"),
    ]
    found = _growth_of([(run, moment(2), [*active, standing(100, status="watch")])])
    assert (found.rate, found.sure, found.confirmed) == (Slope(9, 4, 9, 9), True, False)
    # Growth that speeds up is faster by now than over the window of the finding.
    faster = study([0, 0], outlook=Outlook(Slope(12, 4, 14, 9), 2))
    assert _growth_of([(faster, moment(2), active)]).rate == Slope(12, 4, 14, 9)
    assert _growth_of([(run, moment(2), [standing(6, status="confirmed")])]).confirmed


def test_of_a_process_without_a_finding_only_a_rise_that_matters_counts() -> None:
    leaking = study([0, 0], outlook=Outlook(Slope(5, 5, 5, 9)))
    flat = study([0, 0], outlook=Outlook(Slope(1, -8, 9, 9)))
    told = [(leaking, moment(2), [standing(5)]), (flat, moment(2), [])]
    assert _growth_of(told).rate == Slope(5, 5, 5, 9)


def test_shared_memory_that_grows_counts_once_for_all_processes() -> None:
    shared = [_channel("shared_memory", [20, 30], "process.shared_bytes")]
    run = study([0, 0], channels=shared, limit=100)
    told = [(run, moment(2), [standing(10, "process.shared_bytes")])] * 2
    found = _growth_of(told)
    assert (found.rate.estimate, found.shared_bytes) == (10, 30)
    oom = forecast(told)
    assert oom.generation is not None
    assert oom.generation.estimate == 1 + 7


@pytest.mark.parametrize(
    ("rows", "ends", "upto", "over"),
    [
        # A peak of 9 inside the generation that ends with 5.
        ([4, 9, 5], [0, 2], 2, 4),
        # In the last three generations the highest counts, those before do not.
        ([0, 99, 0, 7, 0, 5, 0, 6, 0], [0, 2, 4, 6, 8], 5, 7),
        ([0, 7, 0, 5, 0, 6, 0], [0, 2, 4, 6], 4, 7),
        ([0, 7, 0, 5, 0, 6, 0], [0, 2, 4, 6], 3, 7),
        # The first has nothing before it to begin at.
        ([9, 5], [1], 1, 0),
        ([4, 3, 5], [0, 2], 2, 0),
        # An end that was not read stands at the last reading inside.
        ([4, 9, 7, 6, None], [0, 4], 2, 3),
        ([4, None, None], [0, 2], 2, 0),
        ([], [], 0, 0),
    ],
)
def test_the_peak_inside_a_generation_is_above_its_end(
    rows: list[float | None], ends: list[int], upto: int, over: float
) -> None:
    assert _peak_over_floor(study(rows, ends=ends), moment(upto)) == over


def test_room_is_what_the_limit_leaves_above_the_peaks() -> None:
    one = study([100, 130, 110], ends=[0, 2])
    two = study([200, 290, 250], ends=[0, 2])
    known = [(one, moment(2)), (two, moment(2))]
    assert _headroom(known, Limit(1_000, "user")) == 1_000 - (110 + 250) - (20 + 40)
    assert _headroom(known[:1], Limit(1_000, "cgroup")) == 870
    # Of the machine others take their part too: what is available counts, where that is read.
    told = study([100, 130, 110], ends=[0, 2], series={"system.available_bytes": [500, 400, None]})
    assert _headroom([(told, moment(2))], Limit(1_000, "system")) == 400 - 20
    assert _headroom([(told, moment(2))], Limit(1_000, "user")) == 870
    assert _headroom(known[:1], Limit(1_000, "system")) == 870


def test_the_level_under_the_limit_is_private_memory_now_and_children() -> None:
    channels = [_channel("children", [1, 2, 3]), _channel("shared_memory", [50, 50, 50])]
    told = study([100, 110, 130], channels=channels, behind=30)
    assert [c.kind for c in beside_private(told)] == ["children"]
    assert level_of(told, 3) == 130 - 30 + 3
    assert level_of(told, 2) == 110 - 30 + 2


def _channel(kind: str, values: list[float], name: str = "") -> Channel:
    return cast(Channel, SimpleNamespace(kind=kind, values=values, name=name))


def test_memory_ends_sooner_and_later_by_scatter_and_by_the_interval_of_the_rate() -> None:
    outlook = Outlook(over=10, spread=2)
    known = [(study([0, 0], outlook=outlook), moment(2))]
    expected, soonest, latest = _ends(known, Limit(100, "user"), rate(5, 2.5), 0.0)
    assert expected == (100 - 10) / 5
    # 1.645 spreads are nine out of ten readings; the interval is widened by a fifth.
    scatter = 2 * 1.6448536269514722
    assert soonest == pytest.approx((90 - scatter) / 8)
    assert latest == pytest.approx((90 + scatter) / 2)


def test_what_a_container_still_takes_is_room_less() -> None:
    store = SimpleNamespace(remaining_bytes=lambda upto: 40, fill_rate=lambda upto: 10)
    known = [(study([0, 0], bounded=[store]), moment(2))]
    assert _ends(known, Limit(100, "user"), rate(5), 0.0) == (12, 12, 12)


def test_memory_lasts_without_a_limit_as_long_as_nobody_knows() -> None:
    assert memory_lasts([], Interval(5, 5, 5)) is None
    assert memory_lasts([(study([0, 0], limit=None), moment(2))], Interval(5, 5, 5)) is None
    assert memory_lasts([(study([0, 0]), moment(2))], Interval(5, 5, 5)) == (200, 200, 200)
    # Growth that speeds up brings what is expected nearer, and not the latest: 5 t + 10 t² / 2 = 1000.
    gains = Outlook(gains=10)
    ends = memory_lasts([(study([0, 0], outlook=gains), moment(2))], Interval(5, 5, 5))
    soon = (-5 + 20_025**0.5) / 10
    assert ends is not None
    assert list(ends) == pytest.approx([soon, soon, 200])


def told(
    left: float,
    soonest: float,
    latest: float | None,
    planned: float | None = None,
    sure: bool = True,
) -> OomForecast:
    """Of a run that is at generation 19, the tenth it has lived."""
    run = study([0.0] * 10, generations=range(10, 20), planned=planned)
    growth = _Growth(rate(5), sure=sure)
    known = (run, moment(10))
    used = _used_by_the_end([known], Limit(1_000, "user"), growth)
    return _oom(known, QUIET, growth, left, (left, soonest, latest), used)


@pytest.mark.parametrize(
    ("left", "sure", "tells"), [(20, False, True), (20.1, False, False), (2_000, True, True)]
)
def test_a_rise_without_a_finding_is_followed_no_further_than_twice_its_life(
    left: float, sure: bool, tells: bool
) -> None:
    found = told(left, left, left, sure=sure)
    assert (found.generation is not None) is tells
    assert tells or found.sentence == "not known yet"


def test_an_end_beyond_the_plan_is_computed_and_named_as_such() -> None:
    found = told(15, 14.5, 16, planned=14)
    assert (found.generation, found.risk) == (Interval(34, 33.5, 35), "none")
    # 5 bytes in each of 14 generations.
    assert found.sentence == "not before the planned end (70 B of 1,000 B by then)"


@pytest.mark.parametrize(
    ("latest", "at"), [(18, 37), (99, 118), (150, 169), (999, 169), (None, 169)]
)
def test_the_latest_end_is_at_most_ten_times_as_far_as_the_expected_one(
    latest: float | None, at: float
) -> None:
    assert told(15, 12, latest).generation == Interval(34, 31, at)


def test_a_forecast_keeps_the_limit_and_says_when() -> None:
    found = told(5, 4, 6)
    assert (found.risk, found.limit_bytes, found.limit_source) == ("high", 1_000, "user")
    # The newest ended at 1,540 s, and each takes a minute.
    assert found.at == When("1970-01-01T00:30:40Z", "1970-01-01T00:29:40Z", "1970-01-01T00:31:40Z")
    assert (
        found.sentence
        == "OOM near generation 24 at this rate (23 to 25), about 1970-01-01 00:30 UTC"
    )


def test_a_moment_needs_two_ends_and_time_between_them() -> None:
    assert _seconds_each(study([0.0])) is None
    assert _seconds_each(study([0.0, 0.0], seconds=0)) is None
    run = study([0.0, 0.0], seconds=1)
    assert _seconds_each(run) == 1
    assert _moments(run, 1, 1, 2, 3) == When(
        "1970-01-01T00:16:42Z", "1970-01-01T00:16:43Z", "1970-01-01T00:16:44Z"
    )


def test_a_moment_more_than_a_year_away_has_no_date() -> None:
    run, year = study([0.0, 0.0], seconds=1), 365 * 86_400
    assert _moments(run, 1, year + 1, 5, 10 * year) is None
    last = _moments(run, 1, year, 5, 1e12)
    assert last is not None
    assert last.high.startswith("1979")


def test_how_long_a_generation_takes_is_that_of_the_last_eight() -> None:
    # Nine of a minute each, and eight between the last nine ends that take ten seconds.
    slow = study([0.0] * 18)
    slow.lane.time[9:] = [slow.lane.time[9] + 10.0 * i for i in range(9)]  # type: ignore[index]
    assert _seconds_each(slow) == 10
    # Where only each fifth generation was read, or steps are counted by the thousand.
    assert _seconds_each(study([0.0] * 4, generations=[0, 5, 10, 15])) == 12


def forecast_of(run: LaneStudy, at: Moment, growing: bool = False) -> OomForecast:
    one: Told = (run, at, [standing(100)] if growing else [])
    return forecast([one])


GROWS = Outlook(rate(100))


@pytest.mark.parametrize(
    ("at", "growing", "tells"),
    [
        (moment(4, window=8), False, True),
        (moment(4, visible=True), False, True),
        (moment(4), False, False),
        (moment(4), True, True),
        (moment(3, window=8), False, False),
        (moment(3), True, True),
    ],
)
def test_only_a_rise_that_matters_is_followed_on_from_four_generations(
    at: Moment, growing: bool, tells: bool
) -> None:
    found = forecast_of(study([700.0] * 4, outlook=GROWS), at, growing)
    assert (found.generation is not None) is tells
    assert (found.limit_bytes, found.limit_source) == (1_000, "user")


def test_the_soonest_end_is_before_the_expected_one_and_that_before_the_latest() -> None:
    run = study([700.0] * 4, outlook=Outlook(rate(100, 50)))
    found = forecast_of(run, moment(4), True)
    assert found.generation is not None
    # 300 are left at generation 3: at 100 a generation, at 160 and at 40.
    assert found.generation == Interval(6, 3 + 300 / 160, 3 + 300 / 40)


def test_without_a_limit_or_a_reading_nothing_is_foretold() -> None:
    unlimited = forecast_of(study([700.0] * 4, limit=None, outlook=GROWS), moment(4), True)
    assert unlimited == OomForecast(sentence="no limit known")
    assert forecast_of(study([], outlook=GROWS), moment(0), True) == OomForecast()


@pytest.mark.parametrize(
    ("readings", "newest_one"),
    [([1, 2, 3], 3), ([1, 2, None], 2), ([0, None], 0), ([None], None), ([], None)],
)
def test_the_newest_reading_is_the_last_that_was_taken(
    readings: list[float | None], newest_one: float | None
) -> None:
    assert newest(cast(Lane, SimpleNamespace(series={"x": readings})), "x") == newest_one


@pytest.mark.parametrize(
    ("user", "group", "system", "limit"),
    [
        (5, 3, 4, Limit(5, "user")),
        (None, 3, 4, Limit(3, "cgroup")),
        # What is not below the machine's own memory limits nothing.
        (None, 4, 4, Limit(4, "system")),
        (None, 5, 4, Limit(4, "system")),
        (None, 5, None, Limit(5, "cgroup")),
        (None, None, 4, Limit(4, "system")),
        (None, 0, 4, Limit(4, "system")),
        (0, None, None, None),
        (None, None, 0, None),
    ],
)
def test_the_smallest_limit_holds_and_what_people_say_goes_first(
    user: int | None, group: float | None, system: float | None, limit: Limit | None
) -> None:
    series = {"cgroup.limit_bytes": [group], "system.total_bytes": [system]}
    lane = cast(Lane, SimpleNamespace(series=series))
    assert limit_of(RunHistory("r", limit_bytes=user), lane) == limit


@pytest.mark.parametrize(
    ("points", "share", "kept"),
    [
        (20, 0.6, 12), (20, 0.3, 6), (21, 0.3, 6), (10, 0.3, 6), (10, 0.6, 6), (5, 0.3, 5), (6, 0.3, 6), (100, 0.3, 30),
    ],
)  # fmt: skip
def test_the_newest_share_has_six_readings_at_least(points: int, share: float, kept: int) -> None:
    x = list(map(float, range(points)))
    assert _last(x, x, share) == (x[-kept:], x[-kept:])


def halves(first: float, second: float, n: int = 16) -> tuple[list[float], list[float]]:
    """A straight line that goes on with another slope from its middle on."""
    half, y = n // 2, [0.0]
    for i in range(1, n):
        y.append(y[-1] + (first if i < half else second))
    return [10.0 + i for i in range(n)], y


def test_growth_speeds_up_where_the_second_half_rises_faster() -> None:
    # The middles of the halves are eight apart: from 1 to 3 in eight generations, and on to the end in 3.5.
    assert _speeding_up(*halves(1, 3)) == (3 + 0.25 * 7 / 2, 0.25)


@pytest.mark.parametrize(
    ("first", "second", "n"),
    [(1, 1, 16), (3, 1, 16), (0, 3, 16), (-1, 3, 16), (1, 3, 15), (1, 3, 14)],
)
def test_growth_does_not_speed_up_where_it_was_none_or_is_too_short(
    first: float, second: float, n: int
) -> None:
    assert _speeding_up(*halves(first, second, n)) is None


def test_the_rate_now_is_that_of_the_newest_part_and_its_ends_are_those_of_all() -> None:
    # Eight flat readings, twelve that rise by 1: of all together less.
    x = list(map(float, range(20)))
    y = [*[100.0] * 8, *[100.0 + i for i in range(1, 13)]]
    found = _of_growth(x, y)
    assert (found.rate.estimate, found.rate.points, found.gains) == (1, 20, 0)
    assert found.rate.low < 1 == found.rate.high
    assert (found.over, found.spread) == (0, 0)


def test_high_readings_are_told_above_the_newest() -> None:
    # On the line of 2 a generation lie all but the newest ones: that is 8 below three quarters of them.
    x = list(map(float, range(20)))
    y = [2 * a + (8.0 if i % 2 else 0.0) for i, a in enumerate(x)]
    low = _of_growth(x[:19], y[:19])
    assert (low.rate.estimate, low.over) == (2, 8)
    assert _of_growth(x, y).over == 0


def rising_from_10() -> LaneStudy:
    """A hundred up to generation 10, then one more with each."""
    return study([100.0 + max(0, g - 10) for g in range(30)])


@pytest.mark.parametrize(
    ("bend", "upto", "points"),
    [
        # From the generation before the bend on.
        ((10, 9, 11), 30, 21),
        # Six readings at least.
        ((10, 9, 11), 12, 6),
        ((10, 9, 11), 15, 6),
        ((10, 9, 11), 16, 7),
        ((0, 0, 0), 30, 30),
        ((99, 99, 99), 30, 30),
        (None, 30, 30),
        (None, 4, 4),
    ],
)
def test_how_it_goes_on_is_told_from_where_it_bends(
    bend: tuple[float, float, float] | None, upto: int, points: int
) -> None:
    told = rising_from_10()
    told.bend = lambda upto: bend  # type: ignore[method-assign]
    assert _outlook_of(told, upto).rate.points == points


def test_children_count_as_private_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakline.analysis.outlook.bend_of", lambda lane, y, upto: (20, 20, 20))
    told = study([100.0] * 30, channels=[_channel("children", [5.0 * g for g in range(30)])])
    found = _outlook_of(told, 30)
    assert (found.rate.estimate, found.rate.points) == (5, 11)
