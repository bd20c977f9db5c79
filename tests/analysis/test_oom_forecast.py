"""OOM forecasts: the remaining room, how it is used up, where a rise begins, and when it becomes a risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from builder import BASELINE, GIB, MIB, Training, curve, history_of
from pieces import ends_history

from leakline.analysis import RunHistory, examine
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities
from leakline.analysis.forecast.memory_outlook import (
    Outlook,
    _of_growth,
    _speeding_up,
    generations_to,
    level_of,
    outlook_of,
    outside_private,
)
from leakline.analysis.forecast.oom_forecast import (
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
)
from leakline.analysis.memory.memory_kinds import Channel
from leakline.analysis.results import Interval, OomForecast, Verdict
from leakline.analysis.results import Moment as When
from leakline.analysis.run_history import ProcessHistory, history_from_batches
from leakline.analysis.statistics.memory_evidence import bend_of
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.status import Standing, TimelineStatus
from leakline.analysis.timeline import Timeline, timelines_of
from leakline.analysis.timeline_analysis import Limit, Moment, TimelineAnalysis, limit_of
from leakline.report.verdict_facts import forecast_headline

RATE = 57.27 * MIB


def verdict_of(
    levels: Callable[[int], float], generations: int = 40, *, limit: float | None = 23.54 * GIB,
    total: int | None = None, seconds: float = 1.0, ended: bool = False, priorities: Priorities = DEFAULTS,
) -> Verdict:  # fmt: skip
    n = generations
    at = [1_795_000_000.0 + seconds * i for i in range(n)]
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), at, at, range(n), [None] * n, [""] * n, ["generation_end"] * n,
        {"process.anon_bytes": [round(levels(g)) for g in range(n)]},
    )  # fmt: skip
    history = RunHistory("r", total=total, processes=(process,))
    limited = replace(history, limit_bytes=limit and round(limit), ended=ended)
    return examine(limited, priorities=priorities)


def steady(generation: int) -> float:
    return 300 * MIB + RATE * generation + (generation * generation % 7) * 5 * MIB


def slow(generation: int) -> float:
    return GIB + 10 * MIB * generation


@pytest.mark.parametrize(
    ("levels", "seconds", "risk", "priority"),
    [
        # Full within a day; a tenth of the limit within 24 generations; and full after 40 days.
        (steady, 1.0, "low", "critical"), (steady, 3_600.0, "none", "major"), (slow, 1_500.0, "none", "minor"),
    ],
)  # fmt: skip
def test_without_a_plan_a_leak_is_rated_by_how_soon_it_fills_memory(
    levels: Callable[[int], float], seconds: float, risk: str, priority: str
) -> None:
    verdict = verdict_of(levels, seconds=seconds)
    assert (verdict.oom.risk, verdict.findings[0].priority) == (risk, priority)
    if levels is slow:
        assert verdict.oom.sentence.startswith("OOM near generation 2,30")
        assert "about 2026-12-28 " in verdict.oom.sentence


@pytest.mark.parametrize(
    ("levels", "more", "sentence"),
    [
        (steady, {"limit": None}, "no limit known"), (steady, {"generations": 3}, "not known yet"),
        (steady, {"generations": 3, "ended": True}, "not known: too few generations"),
        (lambda g: GIB + min(g, 6) * 50 * MIB, {"generations": 60, "total": 1_000}, "not in sight"),
        (slow, {"seconds": 86_400}, "not within a year at this rate"),
        (slow, {"total": 160}, "not before the planned end (projected use: 2.55 GiB of 23.54 GiB)"),
    ],
)  # fmt: skip
def test_without_an_expected_oom_the_sentence_says_why(
    levels: Callable[[int], float], more: dict[str, Any], sentence: str
) -> None:
    oom = verdict_of(levels, **more).oom
    assert (oom.sentence, oom.risk) == (sentence, "none")


def test_a_forecast_is_past_once_the_run_ended() -> None:
    past = verdict_of(steady, ended=True).oom.sentence
    assert past.startswith("OOM was forecast near generation 4")
    assert "about" not in past
    one = verdict_of(lambda g: GIB + 100 * MIB * g, 40, limit=5.2 * GIB, total=99).oom.sentence
    assert " at this rate, about " in one


def test_without_readings_of_memory_no_oom_is_forecast() -> None:
    run = ends_history({"type.app.Env.count": [3] * 12})
    assert examine(run).oom.sentence == "not known yet"
    assert examine(replace(run, ended=True)).oom.sentence == "not known: memory was not read"


def test_priorities_follow_the_settings() -> None:
    def priority(limits: Priorities) -> str | None:
        verdict = verdict_of(slow, total=160, priorities=limits)
        return verdict.findings[0].priority

    assert priority(Priorities()) == "minor"
    assert priority(Priorities(share=0.05)) == "major"
    assert priority(Priorities(major_bytes=1e6)) == "major"


def test_headline_and_detail_make_up_the_sentence() -> None:
    oom = {"sentence": "OOM near generation 415 of 1,000 at this rate (380 to 460)"}
    assert forecast_headline(oom, "generation") == (
        "OOM near generation 415 of 1,000",
        "at this rate (380 to 460)",
    )
    assert forecast_headline({"sentence": "no limit known"}, "epoch") == ("no limit known", "")


def study_of(history: RunHistory) -> TimelineAnalysis:
    (timeline,) = timelines_of(history)
    return TimelineAnalysis(history, timeline)


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
    bend = bend_of(study_of(history_of(values)).timeline, values, len(values))
    assert bend is not None
    assert abs(bend[0] - start) <= 5
    assert bend[1] <= bend[0] <= bend[2]


def _attempts(*lengths: int) -> tuple[list[float], Timeline]:
    """Return flat levels with 300 MiB of warm-up in three generations after each resume, and their timeline."""
    trainings = [
        Training(generations=n, buffer_bytes=0, noise=0.0, warm_up=(0.0, 200.0 * MIB, 100.0 * MIB) if i else (),
                 instance=f"p{i}", attempt=i + 1, first_generation=sum(lengths[:i]))
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    batches = [batch for training in trainings for batch in training.batches()]
    (timeline,) = timelines_of(history_from_batches(trainings[0].header(), batches))
    return timeline.private, timeline


def test_the_warm_up_of_a_resumed_process_is_not_the_start_of_a_leak() -> None:
    values, timeline = _attempts(20, 20)
    assert values[22] > values[19] + 250 * MIB
    leak = [value + 5 * MIB * max(0, i - 29) for i, value in enumerate(values)]
    assert bend_of(timeline, leak, 40) == (30, 30, 30)


def test_a_start_in_the_gap_of_a_resume_covers_the_entire_gap() -> None:
    values, timeline = _attempts(20, 20)
    for start in (20, 22, 24):
        leak = [value + 5 * MIB * max(0, i - start + 1) for i, value in enumerate(values)]
        bend = bend_of(timeline, leak, 40)
        assert bend is not None
        assert (bend[1], bend[2]) == (20, 25)
        assert bend[1] <= bend[0] <= bend[2]


@pytest.mark.parametrize(
    ("shape", "out"),
    [
        (lambda i: 6.0 * i, 99),
        (lambda i: 0.06 * i * i, 99),
        (lambda i: 6.0 * i + 60 * (i % 8) / 8, 95),
    ],
    ids=["a line", "faster and faster", "teeth on a line"],
)
def test_oom_is_forecast_half_way_before_it(shape: Callable[[int], float], out: int) -> None:
    """The limit is the value of the clean curve at generation 99; sawtooth peaks reach it slightly earlier."""
    limit = BASELINE + MIB * shape(99)
    oom = examine(history_of(curve(shape, 50), limit)).oom
    assert oom.generation is not None
    assert oom.generation.estimate == pytest.approx(out, abs=10)
    assert oom.generation.low <= out <= oom.generation.high


@pytest.mark.parametrize("flat", [4, 8])
def test_late_growth_in_a_short_run_is_watched(flat: int) -> None:
    rising = curve(lambda i: max(0, i - flat + 1) * 20.0, 2 * flat)
    verdict = examine(history_of(rising))
    assert verdict.status == "watch"
    assert verdict.settled_at_generation is None
    assert f"since generation {flat}" in verdict.summary
    once = curve(lambda i: 20.0 if i >= flat else 0.0, 2 * flat)
    assert examine(history_of(once)).status == "ok"


QUIET = OomForecast("none", 1_000, "user")


class _Timeline(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.generations)


def study(
    rows: Sequence[float | None] = (), *, ends: Sequence[int] | None = None, generations: Sequence[int] | None = None,
    limit: float | None = 1_000, source: Literal["cgroup", "system", "user"] = "user", outlook: Outlook | None = None,
    bounded: Sequence[Any] = (), planned: float | None = None, seconds: float = 60.0,
    series: dict[str, Any] | None = None, channels: Sequence[Any] = (), behind: float = 0.0,
) -> TimelineAnalysis:  # fmt: skip
    """Return an analysis of private memory by snapshot; ``ends``: those that end a generation, by default all."""
    end_rows = list(range(len(rows)) if ends is None else ends)
    timeline = _Timeline(
        private_rows=list(rows), end_rows=end_rows, generations=list(generations or range(len(end_rows))),
        private=[float(v) for row in end_rows if (v := rows[row]) is not None],
        time=[1_000.0 + seconds * row for row in range(len(rows))], series=series or {},
        left_behind=lambda end: behind,
    )  # fmt: skip
    fake = SimpleNamespace(
        timeline=timeline, limit=None if limit is None else Limit(limit, source), channels=channels,
        facts=SimpleNamespace(bounded=bounded), remaining=lambda end: planned,
        history=RunHistory("r", total=None if planned is None else round(end_rows[-1] + 1 + planned)),
        known=SimpleNamespace(once=lambda end, name, work: outlook or Outlook()),
        residual=lambda end: timeline.private[:end], bend=lambda end: None,
    )  # fmt: skip
    return cast(TimelineAnalysis, fake)


def moment(end: int, *, window: int = 0, visible: bool = False) -> Moment:
    return cast(
        Moment, SimpleNamespace(end=end, rise=SimpleNamespace(window=window, visible=visible))
    )


def rate(estimate: float, reach: float = 0.0) -> Slope:
    return Slope(estimate, estimate - reach, estimate + reach, 9)


@pytest.mark.parametrize(
    ("end", "confirmed", "risk"),
    [
        # A quarter of its total life, half of it, and twice as far as it has lived.
        (_Distance(10, 10, 10, 30), True, "critical"), (_Distance(10.1, 10.1, 10.1, 30), True, "high"),
        (_Distance(30.1, 30.1, 30.1, 30), True, "low"), (_Distance(60.1, 60.1, 60.1, 30), True, "none"),
        # With a plan only an end certain to come before the planned one is a risk: confirmed leaks only.
        (_Distance(400, 300, 600, 30, planned=1_000), True, "high"),
        (_Distance(400, 300, 600, 30, planned=1_000), False, "low"),
        (_Distance(400, 300, 1_001, 30, planned=1_000), True, "low"),
        (_Distance(1_001, 1_000, 1_200, 30, planned=1_000), True, "low"),
        (_Distance(1_001, 1_001, 1_200, 30, planned=1_000), True, "none"),
        (_Distance(30, 20, 40, 30, planned=1_000), False, "high"),
        (_Distance(2, 1, 3, 30, planned=1_000), False, "critical"),
        # Without a plan only an end within a day is a high risk; three generations of a day each are critical.
        (_Distance(20, 20, 20, 30, seconds=86_400), True, "high"),
        (_Distance(20, 20, 20, 30, seconds=95_040), True, "low"),
        (_Distance(61, 61, 61, 30, seconds=95_040), True, "none"),
        (_Distance(61, 61, 61, 30, seconds=86_400), True, "low"),
        (_Distance(3, 3, 3, 30, seconds=3 * 86_400), True, "critical"),
    ],
)  # fmt: skip
def test_the_risk_depends_on_the_distance_to_oom(
    end: _Distance, confirmed: bool, risk: str
) -> None:
    assert _risk(end, confirmed) == risk


@pytest.mark.parametrize(
    ("headroom", "rate", "filling", "gains", "left"),
    [
        (0, 0, [], 0, 0), (100, -1, [], 0, None),
        # The store is full after 5 generations at 20 each; until then 30 are used per generation.
        (160, 10, [(100, 20)], 0, 6),
        # The store fills, and then nothing grows.
        (101, 0, [(100, 20)], 0, None),
        # The first store is full after 2, the second after 5: first 30 per generation, then 20.
        (80, 0, [(100, 20), (20, 10)], 0, 3), (121, 0, [(100, 20), (20, 10)], 0, None),
        # Stores without room or growth use nothing.
        (100, 10, [(0, 20), (50, 0)], 0, 10),
        # 4 t + 2 t² / 2: 12 after 2 generations plus 20 for the container; then 8 t + t².
        (41, 4, [(20, 10)], 2, 3),
        # The second container also sees the increased rate: 20 + 4 + 20 after 2, then 10 + 4 t + t².
        (44 + 15, 0, [(20, 10), (100, 10)], 2, 3),
    ],
)  # fmt: skip
def test_room_is_used_by_growth_and_filling_stores(
    headroom: float, rate: float, filling: list[tuple[float, float]], gains: float, left: float | None
) -> None:  # fmt: skip
    found = generations_left(headroom, rate, filling, gains)
    assert found == (None if left is None else pytest.approx(left))
    assert generations_to(1e10, 1e6, 1e-15) == pytest.approx(10_000)


def standing(estimate: float, channel: str = "private", status: str = "suspected") -> Standing:
    cause = SimpleNamespace(rate=Slope(estimate, estimate, estimate, 9))
    return cast(
        Standing,
        SimpleNamespace(status=status, assessed=SimpleNamespace(cause=cause, channel=channel)),
    )


def test_growth_under_a_common_limit_is_added_up() -> None:
    one, two = Outlook(Slope(5, 4, 7, 9)), Outlook(Slope(2, 1, 4, 6), 2)
    at = moment(2, visible=True)
    found = _growth_of([(study([0, 0], outlook=each), at, []) for each in (one, two)])
    assert (found.rate, found.gains, found.sure) == (Slope(7, 5, 11, 6), 2, False)


def test_the_rate_of_the_findings_is_limited_by_its_windows() -> None:
    run = study([0, 0], outlook=Outlook(Slope(5, 4, 7, 9)))
    active = [
        standing(6),
        standing(3, "children.uss_bytes"),
        standing(50, "cuda.0.allocated_bytes"),
    ]
    found = _growth_of([(run, moment(2), [*active, standing(100, status="watch")])])
    assert (found.rate, found.sure, found.confirmed) == (Slope(9, 4, 9, 9), True, False)
    # Accelerating growth is now faster than over the window of the finding.
    faster = study([0, 0], outlook=Outlook(Slope(12, 4, 14, 9), 2))
    assert _growth_of([(faster, moment(2), active)]).rate == Slope(12, 4, 14, 9)
    assert _growth_of([(run, moment(2), [standing(6, status="confirmed")])]).confirmed


def test_growing_shared_memory_counts_once_for_all_processes() -> None:
    shared = [_channel("shared_memory", [20, 30], "process.shared_bytes")]
    run = study([0, 0], channels=shared, limit=100)
    both = [(run, moment(2), [standing(10, "process.shared_bytes")])] * 2
    found = _growth_of(both)
    assert (found.rate.estimate, found.shared_bytes) == (10, 30)
    oom = forecast(both)
    assert oom.generation is not None
    assert oom.generation.estimate == 1 + 7


@pytest.mark.parametrize(
    ("rows", "ends", "end", "over"),
    [
        # A peak of 9 inside the generation that ends with 5.
        ([4, 9, 5], [0, 2], 2, 4),
        # The maximum of the last three generations counts; earlier ones do not.
        ([0, 99, 0, 7, 0, 5, 0, 6, 0], [0, 2, 4, 6, 8], 5, 7),
        # The first generation has no start before it.
        ([4, 3, 5], [0, 2], 2, 0),
        # An unread end takes the value of the last reading before it.
        ([4, 9, 7, 6, None], [0, 4], 2, 3), ([4, None, None], [0, 2], 2, 0),
    ],
)  # fmt: skip
def test_the_peak_inside_a_generation_is_above_its_end(
    rows: list[float | None], ends: list[int], end: int, over: float
) -> None:
    assert _peak_over_floor(study(rows, ends=ends), moment(end)) == over


def test_room_is_the_limit_less_the_peaks() -> None:
    one = study([100, 130, 110], ends=[0, 2])
    two = study([200, 290, 250], ends=[0, 2])
    known = [(one, moment(2)), (two, moment(2))]
    assert _headroom(known, Limit(1_000, "user")) == 1_000 - (110 + 250) - (20 + 40)
    assert _headroom(known[:1], Limit(1_000, "cgroup")) == 870
    # Others use the machine too, so available memory counts where it was read.
    run = study([100, 130, 110], ends=[0, 2], series={"system.available_bytes": [500, 400, None]})
    assert _headroom([(run, moment(2))], Limit(1_000, "system")) == 400 - 20
    assert _headroom([(run, moment(2))], Limit(1_000, "user")) == 870
    assert _headroom(known[:1], Limit(1_000, "system")) == 870


def test_the_level_is_current_private_memory_and_children() -> None:
    channels = [_channel("children", [1, 2, 3]), _channel("shared_memory", [50, 50, 50])]
    run = study([100, 110, 130], channels=channels, behind=30)
    assert [c.kind for c in outside_private(run)] == ["children"]
    assert level_of(run, 3) == 130 - 30 + 3
    assert level_of(run, 2) == 110 - 30 + 2


def _channel(kind: str, values: list[float], name: str = "") -> Channel:
    return cast(Channel, SimpleNamespace(kind=kind, values=values, name=name))


def test_the_interval_of_the_end_includes_noise_and_rate() -> None:
    outlook = Outlook(over=10, spread=2)
    known = [(study([0, 0], outlook=outlook), moment(2))]
    expected, soonest, latest = _ends(known, Limit(100, "user"), rate(5, 2.5), 0.0)
    assert expected == (100 - 10) / 5
    # 1.645 spreads cover nine of ten readings; the interval is widened by a fifth.
    scatter = 2 * 1.6448536269514722
    assert soonest == pytest.approx((90 - scatter) / 8)
    assert latest == pytest.approx((90 + scatter) / 2)


def test_without_a_limit_the_end_of_memory_is_unknown() -> None:
    assert memory_lasts([], Interval(5, 5, 5)) is None
    assert memory_lasts([(study([0, 0], limit=None), moment(2))], Interval(5, 5, 5)) is None
    assert memory_lasts([(study([0, 0]), moment(2))], Interval(5, 5, 5)) == (200, 200, 200)
    # Acceleration brings the expected end nearer, but not the latest: 5 t + 10 t² / 2 = 1000.
    gains = Outlook(gains=10)
    ends = memory_lasts([(study([0, 0], outlook=gains), moment(2))], Interval(5, 5, 5))
    soon = (-5 + 20_025**0.5) / 10
    assert ends is not None
    assert list(ends) == pytest.approx([soon, soon, 200])


def oom_of(
    left: float,
    soonest: float,
    latest: float | None,
    planned: float | None = None,
    sure: bool = True,
) -> OomForecast:
    """Return the forecast of a run at generation 19, its tenth."""
    run = study([0.0] * 10, generations=range(10, 20), planned=planned)
    growth = _Growth(rate(5), sure=sure)
    known = (run, moment(10))
    used = _used_by_the_end([known], Limit(1_000, "user"), growth)
    return _oom(known, QUIET, growth, left, (left, soonest, latest), used)


@pytest.mark.parametrize(
    ("left", "sure", "is_known"), [(20, False, True), (20.1, False, False), (2_000, True, True)]
)
def test_a_rise_without_a_finding_is_extrapolated_to_twice_its_age(
    left: float, sure: bool, is_known: bool
) -> None:
    found = oom_of(left, left, left, sure=sure)
    assert (found.generation is not None) is is_known
    assert is_known or found.sentence == "not known yet"


def test_a_forecast_has_the_limit_and_the_date() -> None:
    found = oom_of(5, 4, 6)
    assert (found.risk, found.limit_bytes, found.limit_source) == ("high", 1_000, "user")
    # The newest generation ended at 1,540 s, and each takes a minute.
    assert found.at == When("1970-01-01T00:30:40Z", "1970-01-01T00:29:40Z", "1970-01-01T00:31:40Z")
    assert (
        found.sentence
        == "OOM near generation 24 at this rate (23 to 25), about 1970-01-01 00:30 UTC"
    )


def test_a_date_needs_two_ends_with_time_between_them() -> None:
    assert _seconds_each(study([0.0])) is None
    assert _seconds_each(study([0.0, 0.0], seconds=0)) is None
    run = study([0.0, 0.0], seconds=1)
    assert _seconds_each(run) == 1
    assert _moments(run, 1, 1, 2, 3) == When(
        "1970-01-01T00:16:42Z", "1970-01-01T00:16:43Z", "1970-01-01T00:16:44Z"
    )
    # Beyond a year no date is given.
    year = 365 * 86_400
    assert _moments(run, 1, year + 1, 5, 10 * year) is None
    last = _moments(run, 1, year, 5, 1e12)
    assert last is not None
    assert last.high.startswith("1979")


def test_the_duration_of_a_generation_uses_the_last_eight() -> None:
    # Nine generations of a minute each, and eight of ten seconds between the last nine ends.
    slow = study([0.0] * 18)
    slow.timeline.time[9:] = [slow.timeline.time[9] + 10.0 * i for i in range(9)]  # type: ignore[index]
    assert _seconds_each(slow) == 10
    # Only every fifth generation was read, or steps are counted by the thousand.
    assert _seconds_each(study([0.0] * 4, generations=[0, 5, 10, 15])) == 12


def forecast_of(run: TimelineAnalysis, at: Moment, growing: bool = False) -> OomForecast:
    one: TimelineStatus = (run, at, [standing(100)] if growing else [])
    return forecast([one])


GROWS = Outlook(rate(100))


@pytest.mark.parametrize(
    ("at", "growing", "is_known"),
    [
        (moment(4), False, False), (moment(3, window=8), False, False), (moment(3), True, True),
    ],
)  # fmt: skip
def test_only_a_material_rise_of_four_generations_is_extrapolated(
    at: Moment, growing: bool, is_known: bool
) -> None:
    found = forecast_of(study([700.0] * 4, outlook=GROWS), at, growing)
    assert (found.generation is not None) is is_known
    assert (found.limit_bytes, found.limit_source) == (1_000, "user")


@pytest.mark.parametrize(
    ("user", "group", "system", "limit"),
    [
        (5, 3, 4, Limit(5, "user")), (None, 3, 4, Limit(3, "cgroup")),
        # A limit that is not below the machine's own memory has no effect.
        (None, 5, None, Limit(5, "cgroup")), (None, None, 4, Limit(4, "system")), (None, None, 0, None),
    ],
)  # fmt: skip
def test_a_configured_limit_takes_precedence_over_the_smallest(
    user: int | None, group: float | None, system: float | None, limit: Limit | None
) -> None:
    series = {"cgroup.limit_bytes": [group], "system.total_bytes": [system]}
    timeline = cast(Timeline, SimpleNamespace(series=series))
    assert limit_of(RunHistory("r", limit_bytes=user), timeline) == limit


def halves(first: float, second: float, n: int = 16) -> tuple[list[float], list[float]]:
    """Return a straight line whose slope changes in the middle."""
    half, y = n // 2, [0.0]
    for i in range(1, n):
        y.append(y[-1] + (first if i < half else second))
    return [10.0 + i for i in range(n)], y


def test_growth_accelerates_if_the_second_half_rises_faster() -> None:
    # The centres of the halves are eight apart: the slope rises from 1 to 3 in eight generations, with 3.5 more to the
    # end.
    assert _speeding_up(*halves(1, 3)) == (3 + 0.25 * 7 / 2, 0.25)


def test_high_readings_are_counted_above_the_newest() -> None:
    # All but the newest readings are on a line of 2 per generation: 8 below three quarters of them.
    x = list(map(float, range(20)))
    y = [2 * a + (8.0 if i % 2 else 0.0) for i, a in enumerate(x)]
    low = _of_growth(x[:19], y[:19])
    assert (low.rate.estimate, low.over) == (2, 8)
    assert _of_growth(x, y).over == 0


@pytest.mark.parametrize("read", [range(60), [*range(7), 45], [0, 2, 40, 59]], ids=str)
def test_rarely_read_children_count_like_private_memory(
    read: Sequence[int],
) -> None:
    children = [9 * MIB * i if i in read else None for i in range(60)]
    history = history_of(curve(lambda i: 0.0, 60), children__uss_bytes=children)
    end = max(read) + 1
    rate = outlook_of(study_of(history), end).rate
    assert rate.estimate == pytest.approx(9 * MIB, rel=0.1)
