"""When memory runs out: what is left, how it is used up, where a rise begins, and from when on that is a risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from builder import BASELINE, GIB, MIB, TRAIN, Leak, Training, curve, history_of

from leakline.analysis import RunHistory, examine
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities
from leakline.analysis.forecast.memory_outlook import (
    Outlook,
    _of_growth,
    _speeding_up,
    beside_private,
    generations_to,
    level_of,
    outlook_of,
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
from leakline.analysis.statistics.memory_evidence import bend_of, pieces_of
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.status import Standing, Told
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
    told = replace(history, limit_bytes=limit and round(limit), ended=ended)
    return examine(told, priorities=priorities)


def steady(generation: int) -> float:
    return 300 * MIB + RATE * generation + (generation * generation % 7) * 5 * MIB


def test_a_leak_that_fills_memory_far_ahead_of_the_planned_end_has_a_generation() -> None:
    verdict = verdict_of(steady, total=1_000)
    oom = verdict.oom
    true = (23.54 * GIB - 300 * MIB) / RATE
    assert oom.generation is not None
    assert oom.generation.estimate == pytest.approx(true, rel=0.01)
    assert oom.generation.low <= true <= oom.generation.high
    assert oom.risk == "high"
    assert oom.sentence.startswith(
        f"OOM near generation {round(oom.generation.estimate)} of 1,000 at this rate ("
    )
    assert oom.at is not None
    assert verdict.findings[0].priority == "critical"


def test_the_interval_widens_with_the_distance() -> None:
    def width(limit: float) -> float:
        found = verdict_of(steady, limit=limit).oom.generation
        assert found is not None
        return found.high - found.low

    assert width(4 * GIB) < width(23.54 * GIB) < width(200 * GIB)


def test_a_leak_that_fits_is_computed_to_last_until_the_planned_end() -> None:
    verdict = verdict_of(lambda g: GIB + 10 * MIB * g, total=160)
    assert verdict.oom.sentence == "not before the planned end (2.55 GiB of 23.54 GiB by then)"
    assert (verdict.oom.risk, verdict.findings[0].priority) == ("none", "minor")
    assert verdict.oom.generation is not None
    assert verdict.oom.generation.low > 160


def test_a_leak_without_a_plan_that_fills_in_weeks_says_when_and_is_no_risk() -> None:
    verdict = verdict_of(lambda g: GIB + 10 * MIB * g, seconds=1_500)
    assert verdict.oom.sentence.startswith("OOM near generation 2,30")
    assert "about 2026-12-28 " in verdict.oom.sentence
    assert (verdict.oom.risk, verdict.findings[0].priority) == ("none", "minor")
    slower = verdict_of(lambda g: GIB + 10 * MIB * g, seconds=86_400)
    assert slower.oom.sentence == "not within a year at this rate"


def test_a_leak_without_a_plan_that_fills_within_a_day_is_critical() -> None:
    verdict = verdict_of(steady)
    assert (verdict.oom.risk, verdict.findings[0].priority) == ("low", "critical")
    # In 24 generations more it takes a tenth of the limit, and does not fill it.
    assert verdict_of(steady, seconds=3_600).findings[0].priority == "major"


def test_growth_that_speeds_up_fills_memory_sooner() -> None:
    faster = verdict_of(lambda g: GIB + MIB * g * g, 60, total=1_000).oom.generation
    assert faster is not None
    assert faster.estimate == pytest.approx((22.54 * 1024) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    "levels", [lambda g: GIB + (g % 3) * MIB, lambda g: GIB + min(g, 6) * 50 * MIB]
)
def test_a_run_that_does_not_grow_has_no_end_in_sight(levels: Callable[[int], float]) -> None:
    verdict = verdict_of(levels, 60, total=1_000)
    assert (verdict.oom.generation, verdict.oom.risk) == (None, "none")
    assert verdict.oom.sentence == "not in sight"


def test_what_cannot_be_known_says_so() -> None:
    assert verdict_of(steady, limit=None).oom.sentence == "no limit known"
    assert verdict_of(steady, 3).oom.sentence == "not known yet"
    assert verdict_of(steady, 3, ended=True).oom.sentence == "not known: too few generations"


def test_the_forecast_of_a_run_that_ended_is_past() -> None:
    sentence = verdict_of(steady, ended=True).oom.sentence
    assert sentence.startswith("OOM was forecast near generation 4")
    assert "about" not in sentence


def test_an_interval_that_rounds_to_one_number_is_not_shown() -> None:
    sentence = verdict_of(lambda g: GIB + 100 * MIB * g, 40, limit=5.2 * GIB, total=99).oom.sentence
    assert " at this rate, about " in sentence


def test_what_is_major_moves_with_the_settings() -> None:
    def priority(limits: Priorities) -> str | None:
        verdict = verdict_of(lambda g: GIB + 10 * MIB * g, total=160, priorities=limits)
        return verdict.findings[0].priority

    assert priority(Priorities()) == "minor"
    assert priority(Priorities(share=0.05)) == "major"
    assert priority(Priorities(major_bytes=1e6)) == "major"


def test_the_headline_and_its_detail_are_the_sentence() -> None:
    oom = {"sentence": "OOM near generation 415 of 1,000 at this rate (380 to 460)"}
    assert forecast_headline(oom, "generation") == (
        "OOM near generation 415 of 1,000",
        "at this rate (380 to 460)",
    )
    assert forecast_headline({"sentence": "no limit known"}, "epoch") == ("no limit known", "")


def test_an_ended_run_without_readings_of_memory_says_so() -> None:
    n = 12
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), range(n), range(n), range(n), [None] * n, [""] * n, ["generation_end"] * n,
        {"type.app.Env.count": [3] * n},
    )  # fmt: skip
    run = RunHistory("r", processes=(process,))
    assert examine(run).oom.sentence == "not known yet"
    assert examine(replace(run, ended=True)).oom.sentence == "not known: memory was not read"


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
    """Flat but for 300 MiB of warm-up in three generations of each process that resumes, and the timeline of them."""
    trainings = [
        Training(generations=n, buffer_bytes=0, noise=0.0, warm_up=(0.0, 200.0 * MIB, 100.0 * MIB) if i else (),
                 instance=f"p{i}", attempt=i + 1, first_generation=sum(lengths[:i]))
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    batches = [batch for training in trainings for batch in training.batches()]
    (timeline,) = timelines_of(history_from_batches(trainings[0].header(), batches))
    return timeline.private, timeline


def test_the_warm_up_of_a_resumed_process_is_no_beginning_of_a_leak() -> None:
    values, timeline = _attempts(20, 20)
    assert values[22] > values[19] + 250 * MIB
    leak = [value + 5 * MIB * max(0, i - 29) for i, value in enumerate(values)]
    assert bend_of(timeline, leak, 40) == (30, 30, 30)


def test_what_begins_in_the_gap_of_a_resume_may_have_begun_in_any_of_its_generations() -> None:
    values, timeline = _attempts(20, 20)
    for start in (20, 22, 24):
        leak = [value + 5 * MIB * max(0, i - start + 1) for i, value in enumerate(values)]
        bend = bend_of(timeline, leak, 40)
        assert bend is not None
        assert (bend[1], bend[2]) == (20, 25)
        assert bend[1] <= bend[0] <= bend[2]


def test_attempts_of_a_few_generations_each_are_one_line() -> None:
    values, timeline = _attempts(*[5] * 8)
    assert [
        len(stretch) for stretch in pieces_of(timeline, list(map(float, range(40))), values)
    ] == [40]
    values, timeline = _attempts(*[10] * 30)
    lengths = [
        len(stretch) for stretch in pieces_of(timeline, list(map(float, range(300))), values)
    ]
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
    """Private memory of each snapshot; ``ends``: those that end a generation, all where none are named."""
    end_rows = list(range(len(rows)) if ends is None else ends)
    timeline = _Timeline(
        private_rows=list(rows), end_rows=end_rows, generations=list(generations or range(len(end_rows))),
        private=[float(v) for row in end_rows if (v := rows[row]) is not None],
        time=[1_000.0 + seconds * row for row in range(len(rows))], series=series or {},
        left_behind=lambda end: behind,
    )  # fmt: skip
    told = SimpleNamespace(
        timeline=timeline, limit=None if limit is None else Limit(limit, source), channels=channels,
        facts=SimpleNamespace(bounded=bounded), remaining=lambda end: planned,
        history=RunHistory("r", total=None if planned is None else round(end_rows[-1] + 1 + planned)),
        known=SimpleNamespace(once=lambda end, name, work: outlook or Outlook()),
        residual=lambda end: timeline.private[:end], bend=lambda end: None,
    )  # fmt: skip
    return cast(TimelineAnalysis, told)


def moment(end: int, *, window: int = 0, visible: bool = False) -> Moment:
    return cast(
        Moment, SimpleNamespace(end=end, rise=SimpleNamespace(window=window, visible=visible))
    )


def rate(estimate: float, reach: float = 0.0) -> Slope:
    return Slope(estimate, estimate - reach, estimate + reach, 9)


@pytest.mark.parametrize(
    ("left", "lived", "risk"),
    [
        # A quarter of the life that it has in all, half of it, and twice as far as it has lived.
        (10, 30, "critical"), (10.1, 30, "high"), (30.1, 30, "low"), (60.1, 30, "none"),
    ],
)  # fmt: skip
def test_the_risk_rises_with_the_share_of_its_life_that_is_left(
    left: float, lived: float, risk: str
) -> None:
    assert _risk(_Distance(left, left, left, lived), confirmed=True) == risk


@pytest.mark.parametrize(
    ("left", "soonest", "latest", "confirmed", "risk"),
    [
        (400, 300, 600, True, "high"),
        # Only suspected, or not sure to come before the planned end.
        (400, 300, 600, False, "low"), (400, 300, 1_001, True, "low"), (1_001, 1_000, 1_200, True, "low"),
        (1_001, 1_001, 1_200, True, "none"), (30, 20, 40, False, "high"), (2, 1, 3, False, "critical"),
    ],
)  # fmt: skip
def test_with_a_plan_only_an_end_before_the_planned_end_is_a_risk(
    left: float, soonest: float, latest: float, confirmed: bool, risk: str
) -> None:
    assert _risk(_Distance(left, soonest, latest, 30, planned=1_000), confirmed) == risk


@pytest.mark.parametrize(
    ("left", "days", "risk"),
    [
        (20, 1, "high"), (20, 1.1, "low"), (61, 1.1, "none"), (61, 1, "low"),
        # Three generations of a day each.
        (3, 3, "critical"),
    ],
)  # fmt: skip
def test_without_a_plan_only_an_end_within_a_day_is_a_high_risk(
    left: float, days: float, risk: str
) -> None:
    end = _Distance(left, left, left, 30, seconds=days * 86_400)
    assert _risk(end, confirmed=True) == risk


@pytest.mark.parametrize(
    ("headroom", "rate", "filling", "gains", "left"),
    [
        (0, 0, [], 0, 0),
        # Full after 5 with 20 per generation; until then 30 are gone in each.
        (160, 10, [(100, 20)], 0, 6),
        # It fills and then nothing grows any more.
        (101, 0, [(100, 20)], 0, None),
        # The first is full after 2, the second after 5: 30 a generation, then 20.
        (80, 0, [(100, 20), (20, 10)], 0, 3), (121, 0, [(100, 20), (20, 10)], 0, None),
        # What has no room or does not fill takes nothing.
        (100, 10, [(0, 20), (50, 0)], 0, 10),
        # 4 t + 2 t² / 2: 12 after 2 generations beside the 20 of the container; then 8 t + t².
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
    ("rows", "ends", "end", "over"),
    [
        # A peak of 9 inside the generation that ends with 5.
        ([4, 9, 5], [0, 2], 2, 4),
        # In the last three generations the highest counts, those before do not.
        ([0, 99, 0, 7, 0, 5, 0, 6, 0], [0, 2, 4, 6, 8], 5, 7),
        # The first has nothing before it to begin at.
        ([4, 3, 5], [0, 2], 2, 0),
        # An end that was not read stands at the last reading inside.
        ([4, 9, 7, 6, None], [0, 4], 2, 3), ([4, None, None], [0, 2], 2, 0),
    ],
)  # fmt: skip
def test_the_peak_inside_a_generation_is_above_its_end(
    rows: list[float | None], ends: list[int], end: int, over: float
) -> None:
    assert _peak_over_floor(study(rows, ends=ends), moment(end)) == over


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
    slow.timeline.time[9:] = [slow.timeline.time[9] + 10.0 * i for i in range(9)]  # type: ignore[index]
    assert _seconds_each(slow) == 10
    # Where only each fifth generation was read, or steps are counted by the thousand.
    assert _seconds_each(study([0.0] * 4, generations=[0, 5, 10, 15])) == 12


def forecast_of(run: TimelineAnalysis, at: Moment, growing: bool = False) -> OomForecast:
    one: Told = (run, at, [standing(100)] if growing else [])
    return forecast([one])


GROWS = Outlook(rate(100))


@pytest.mark.parametrize(
    ("at", "growing", "tells"),
    [
        (moment(4), False, False), (moment(3, window=8), False, False), (moment(3), True, True),
    ],
)  # fmt: skip
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
    ("user", "group", "system", "limit"),
    [
        (5, 3, 4, Limit(5, "user")), (None, 3, 4, Limit(3, "cgroup")),
        # What is not below the machine's own memory limits nothing.
        (None, 5, None, Limit(5, "cgroup")), (None, None, 4, Limit(4, "system")), (None, None, 0, None),
    ],
)  # fmt: skip
def test_the_smallest_limit_holds_and_what_people_say_goes_first(
    user: int | None, group: float | None, system: float | None, limit: Limit | None
) -> None:
    series = {"cgroup.limit_bytes": [group], "system.total_bytes": [system]}
    timeline = cast(Timeline, SimpleNamespace(series=series))
    assert limit_of(RunHistory("r", limit_bytes=user), timeline) == limit


def halves(first: float, second: float, n: int = 16) -> tuple[list[float], list[float]]:
    """A straight line that goes on with another slope from its middle on."""
    half, y = n // 2, [0.0]
    for i in range(1, n):
        y.append(y[-1] + (first if i < half else second))
    return [10.0 + i for i in range(n)], y


def test_growth_speeds_up_where_the_second_half_rises_faster() -> None:
    # The middles of the halves are eight apart: from 1 to 3 in eight generations, and on to the end in 3.5.
    assert _speeding_up(*halves(1, 3)) == (3 + 0.25 * 7 / 2, 0.25)


def test_high_readings_are_told_above_the_newest() -> None:
    # On the line of 2 a generation lie all but the newest ones: that is 8 below three quarters of them.
    x = list(map(float, range(20)))
    y = [2 * a + (8.0 if i % 2 else 0.0) for i, a in enumerate(x)]
    low = _of_growth(x[:19], y[:19])
    assert (low.rate.estimate, low.over) == (2, 8)
    assert _of_growth(x, y).over == 0


@pytest.mark.parametrize("read", [range(60), [*range(7), 45], [0, 2, 40, 59]], ids=str)
def test_children_count_as_private_memory_does_however_far_apart_they_are_read(
    read: Sequence[int],
) -> None:
    children = [9 * MIB * i if i in read else None for i in range(60)]
    history = history_of(curve(lambda i: 0.0, 60), children__uss_bytes=children)
    end = max(read) + 1
    rate = outlook_of(study_of(history), end).rate
    assert rate.estimate == pytest.approx(9 * MIB, rel=0.1)
