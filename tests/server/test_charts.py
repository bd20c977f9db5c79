"""Charts of a run: lines, bands, forecasts, phase accounts, zoomed ranges, and their marks."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.analysis.results import PhaseAccount, PhaseAccounts
from leakline.core.training_loop import CacheFall
from leakline_server.charts import chart_builder
from leakline_server.charts.chart_parts import (
    Axis,
    Chart,
    Line,
    Mark,
    Palette,
    Points,
    add_up,
    add_up_processes,
    budget_levels,
    join_attempts,
    to_script,
    until_others,
)
from leakline_server.errors import InvalidField
from leakline_server.web.axis_zoom import Stretch, read_stretch, wanted
from leakline_server.web.rendering import evidence_sections
from leakline_server.web.run_page.annotations import (
    MAX_CACHES,
    MAX_CLEANUPS,
    MAX_COLLECTIONS,
    MAX_MARKS,
    Clock,
    Note,
    fix_effects,
    marks,
    timeline,
)
from leakline_server.web.run_page.counted_objects import accounted
from leakline_server.web.run_page.view import progress

GIB = 2**30
AXIS = Axis("generation")


def line(name: str, x: list[float], y: list[float | None], phase: str | None = None) -> Points:
    return Points(name, "p1", phase, x, y)


PRIVATE = [line("process.anon_bytes", [0, 1, 2, 3], [GIB] * 4)]
RSS = [line("process.rss_bytes", [0, 1, 2, 3], [2 * GIB] * 4)]


def verdict(**changes: Any) -> dict[str, Any]:
    growth = {"estimate": GIB, "low": 0.9 * GIB, "high": 1.1 * GIB}
    finding = {"status": "confirmed", "started_at_generation": {"estimate": 3, "low": 2, "high": 4}}
    oom = {"risk": "low", "limit_bytes": 64 * GIB, "limit_source": "cgroup", "generation": None}
    return {
        "status": "confirmed",
        "findings": [finding],
        "growth_bytes_per_generation": growth,
        "oom": oom,
    } | changes


def trend(told: dict[str, Any] | None, ends: list[float | None]) -> Chart:
    points = [line("process.anon_bytes", [float(i) for i in range(len(ends))], ends)]
    return chart_builder.trend_chart(AXIS, Palette(), points, [], told)


def test_a_series_that_was_never_measured_has_no_chart() -> None:
    never = [line("process.rss_bytes", [0, 1], [None, None])]
    assert chart_builder.memory_chart(AXIS, never) is None
    assert chart_builder.gpu_chart(AXIS, []) is None
    assert chart_builder.phases_chart(AXIS, Palette(), PhaseAccounts((), (), ())) is None


def test_a_device_chart_shows_the_readings_of_torch_and_of_the_driver() -> None:
    names = [
        *(f"cuda.1.{n}" for n in ("allocated_bytes", "active_bytes", "reserved_bytes", "retries", "ooms")),
        *(f"gpu.1.{n}" for n in ("used_bytes", "total_bytes", "process_bytes", "outside_bytes")),
        "gpu.0.used_bytes",
        "mps.allocated_bytes", "mps.driver_bytes", "mps.limit_bytes", "gpu.mine", "gpu.x.used_bytes",
    ]  # fmt: skip
    chart = chart_builder.gpu_chart(AXIS, [line(name, [0, 1], [GIB, GIB]) for name in names])
    assert chart is not None
    # Device 0 has readings from before the program began to use device 1.
    assert [each.name for each in chart.lines] == [
        "GPU 1 allocated", "GPU 1 active", "GPU 1 reserved",
        "GPU 1 in use, driver", "GPU 1 this process, driver", "GPU 1 outside torch",
        "Metal allocated", "Metal in use, driver",
    ]  # fmt: skip
    assert {each.name for each in chart.lines if each.hidden} == {
        "GPU 1 active", "GPU 1 this process, driver",
    }  # fmt: skip
    without_torch = [line("gpu.3.used_bytes", [0, 1], [GIB, GIB])]
    chart = chart_builder.gpu_chart(AXIS, without_torch)
    assert chart is not None
    assert [each.name for each in chart.lines] == ["GPU 3 in use, driver"]


def test_failed_allocations_are_reported_next_to_the_chart() -> None:
    points = [line("cuda.0.allocated_bytes", [0, 1], [GIB, GIB])]
    chart = chart_builder.gpu_chart(AXIS, points)
    last = {"cuda.0.retries": 7.0, "cuda.1.retries": None, "cuda.1.ooms": 1.0}
    section = evidence_sections.gpu(chart, "generation", last)
    said = "torch emptied its cache and tried again 7 times and ran out of memory once."
    assert section is not None and section.note == said
    quiet = evidence_sections.gpu(chart, "generation", {"cuda.0.retries": 0.0, "cuda.0.ooms": 0.0})
    assert quiet is not None and quiet.note == ""
    assert evidence_sections.gpu(None, "generation", {}) is None


def test_names_from_a_training_cannot_end_the_script_tag() -> None:
    text = to_script(Chart("c", "bytes", "y", "x", (Line("</script><b>&", [0], [1]),)))
    assert "<" not in text and "&" not in text
    assert json.loads(text)["lines"][0]["name"] == "</script><b>&"


def test_the_start_of_a_leak_is_an_interval_not_a_line() -> None:
    (band,) = trend(verdict(), [GIB] * 8).bands
    assert (band.first, band.last) == (1.5, 4.5)
    without = trend(verdict(status="ok", findings=[]), [GIB] * 8)
    assert without.bands == () and without.cone is None


def test_a_limit_is_always_shown_and_marked_as_a_limit() -> None:
    for found in (verdict(), verdict(status="ok", findings=[])):
        (level,) = trend(found, [GIB, 2 * GIB]).levels
        assert (level.value, level.label, level.limit) == (64 * GIB, "limit (container)", True)
    # It does not depend on the unit of the verdict either.
    private = [line("process.anon_bytes", [0, 1], [40 * GIB, 41 * GIB])]
    hours = Axis("hours since the start", "time", 3600)
    by_time = chart_builder.trend_chart(hours, Palette(), private, [], verdict())
    assert by_time.cone is None and by_time.levels == (level,)


def test_the_forecast_starts_at_the_last_reading() -> None:
    cone = trend(verdict(), [GIB, None, 2 * GIB, None]).cone
    assert cone is not None
    assert cone.x[0] == 2 and cone.estimate[0] == 2 * GIB
    assert cone.low[1] < cone.estimate[1] < cone.high[1]


def test_each_phase_keeps_its_colour_and_memory_outside_has_none() -> None:
    palette = Palette.of(["train", "evaluate", "train"])
    phase_accounts = PhaseAccounts(
        (0, 1), tuple(book(n) for n in ("evaluate", "between")), (2.0, 2.0)
    )
    chart = chart_builder.phases_chart(AXIS, palette, phase_accounts)
    assert chart is not None
    colours = {each.name: each.colour for each in chart.lines}
    assert colours == {"evaluate": 2, "between": 0, "sum": 0}


def book(name: str, values: tuple[float, ...] = (1.0, 1.0)) -> PhaseAccount:
    return PhaseAccount(name, values, (None,) * len(values), (1,) * len(values))


def test_thousands_of_generations_are_joined_without_changing_their_mean() -> None:
    values = tuple(float(i % 7) for i in range(1000))
    phase_accounts = PhaseAccounts(tuple(range(1000)), (book("a", values),), values)
    chart = chart_builder.phases_chart(AXIS, Palette(), phase_accounts)
    assert chart is not None
    bars = chart.lines[0]
    assert len(bars.x) <= chart_builder.MAX_BARS
    step = 1000 // len(bars.x) + 1
    assert bars.y[0] == sum(values[:step]) / step


def test_two_phase_account_charts_share_a_scale() -> None:
    low, high = chart_builder.same_scale(
        [
            PhaseAccounts((0,), (book("a", (5.0,)), book("b", (-2.0,))), (3.0,)),
            PhaseAccounts((), (), ()),
        ]
    )
    assert low < -2 and high > 5


def test_a_container_is_drawn_as_a_share_of_its_capacity() -> None:
    chart = chart_builder.fill_chart(
        AXIS, [line("tracked.replay.length", [0, 1], [10, 20])], {"tracked.replay.length": 40}
    )
    assert chart is not None and list(chart.lines[0].y) == [0.25, 0.5]


def test_each_phase_end_is_one_line_and_nested_phases_are_hidden() -> None:
    private = [line("process.anon_bytes", [0], [1], phase) for phase in ("a", "a/b", None)]
    chart = chart_builder.trend_chart(AXIS, Palette.of(["a", "a/b"]), private, [], None)
    assert [(each.name, each.hidden) for each in chart.lines] == [
        ("generation end", False), ("after a", False), ("after a/b", True),
    ]  # fmt: skip


def planned(first: int, last: int | None, high: float | None, **changes: Any) -> dict[str, Any]:
    band = {
        "origin": "band", "metric": "process.rss_bytes", "first": first, "last": last,
        "low": GIB, "high": high, "state": "holds",
    }  # fmt: skip
    return band | changes


def test_planned_bands_are_drawn_behind_the_lines_they_describe() -> None:
    bands = [
        planned(1, 2, 4 * GIB), planned(2, None, 5 * GIB, state="broken"), planned(3, 4, None),
        planned(1, 2, 3 * GIB, metric="gauge.pending"), planned(1, 2, 4 * GIB, process="rank 1 main"),
    ]  # fmt: skip
    said = verdict(findings=[], assertions=bands)

    def drawn(private: Any = PRIVATE, rss: Any = RSS, axis: Axis = AXIS, said: Any = said) -> Any:
        return chart_builder.trend_chart(axis, Palette(), private, rss, said).bands

    assert [(b.first, b.last, b.low, b.high, b.tone, b.group) for b in drawn()] == [
        (0.5, 2.5, GIB, 4 * GIB, "ok", "rss"), (1.5, 3.5, GIB, 5 * GIB, "watch", "rss"),
    ]  # fmt: skip
    assert {b.group for b in drawn(private=[])} == {None}
    assert drawn(rss=[]) == drawn(axis=Axis("minute", "time")) == ()
    assert drawn(said=verdict(findings=[])) == ()


def test_the_planned_memory_is_shown_first() -> None:
    def first(*bands: dict[str, Any]) -> str:
        told = verdict(findings=[], assertions=bands)
        return chart_builder.trend_chart(AXIS, Palette(), PRIVATE, RSS, told).groups[0].id

    assert first() == "private"
    of_rss = planned(1, 2, 4 * GIB)
    assert first(of_rss) == "rss"
    assert first(of_rss, planned(1, 2, GIB, metric="process.anon_bytes")) == "private"


def test_the_memory_that_the_leading_finding_grows_in_is_shown_first() -> None:
    private = PRIVATE
    grown = [line("children.uss_bytes", [0, 1, 2, 3], [GIB, 2 * GIB, 3 * GIB, 4 * GIB])]
    children = (chart_builder.Group("children", "Child processes"), grown)
    chart = chart_builder.trend_chart(AXIS, Palette(), private, RSS, verdict(), named=children)
    assert [group.id for group in chart.groups] == ["children", "private", "rss"]
    (drawn,) = [each for each in chart.lines if each.group == "children"]
    assert (drawn.name, list(drawn.y)) == ("Child processes", grown[0].y)
    # The start is marked on the rising line, and the other line has no forecast.
    assert [(band.label, band.group) for band in chart.bands] == [("leak starts", "children")]
    assert chart.cone is None and chart.cones == {}
    alone = chart_builder.trend_chart(AXIS, Palette(), private, [], verdict(), named=children)
    assert {each.group for each in alone.lines} == {"children", "private"}


def full_at(generation: float) -> dict[str, Any]:
    when = {"estimate": generation, "low": generation, "high": generation}
    return {"risk": "high", "limit_bytes": 32 * GIB, "limit_source": "cgroup", "generation": when}


def test_a_forecast_reaches_the_limit_if_that_is_a_risk_or_near() -> None:
    ends: list[float | None] = [each * GIB for each in range(17)]
    safe = {"risk": "none"}
    near, far = (trend(verdict(oom=full_at(at) | safe), ends) for at in (30, 40))
    risky, later = (trend(verdict(oom=full_at(at)), ends) for at in (40, 400))
    assert near.cone is not None and far.cone is not None and risky.cone is not None
    assert near.cone.x[-1] > 30 and near.cone.high[-1] >= 32 * GIB
    assert [level.value for level in near.levels] == [32 * GIB]
    assert far.cone.x[-1] == 20
    assert risky.cone.x[-1] > 40 and risky.levels
    # The readings take up most of the chart while the limit is far away, unless the plan goes further.
    assert later.cone is not None and later.cone.x[-1] == 20
    planned = trend(verdict(oom={**full_at(400), "planned": 1_000}), ends)
    assert planned.cone is not None and planned.cone.x[-1] > 400


def test_the_forecast_of_rss_continues_from_rss() -> None:
    x = [0.0, 1.0, 2.0]
    private = [line("process.anon_bytes", x, [GIB, 2 * GIB, 3 * GIB])]
    rss = [line("process.rss_bytes", x, [5 * GIB, 6 * GIB, 7 * GIB])]
    chart = chart_builder.trend_chart(AXIS, Palette(), private, rss, verdict())
    assert chart.cone is not None
    assert (chart.cone.estimate[0], chart.cones["rss"].estimate[0]) == (3 * GIB, 7 * GIB)
    assert chart_builder.trend_chart(AXIS, Palette(), [], rss, verdict()).cones == {}


def total_of(**layers: tuple[list[float], list[float | None]]) -> Chart:
    total = {name: line(name, x, y) for name, (x, y) in layers.items()}
    return chart_builder.trend_chart(
        AXIS, Palette(), PRIVATE, [], None, total=total, whole=verdict()
    )


def test_the_total_ends_where_all_processes_have_readings() -> None:
    behind = total_of(a=([0, 1, 2], [10.0, 10.0, 11.0]), b=([0, 1], [30.0, 30.0]))
    assert behind.cone is not None
    assert (behind.cone.x[0], behind.cone.estimate[0]) == (1, 40)
    # The forecast of one process continues from its own end; without data there is none.
    assert behind.cones == {"private": None}
    # Readings at different moments are interpolated linearly.
    apart = total_of(a=([0, 2, 4], [10.0, 12.0, 14.0]), b=([0, 1, 3], [30.0, 30.0, 34.0]))
    assert apart.cone is not None and (apart.cone.x[0], apart.cone.estimate[0]) == (3, 13 + 34)
    gap = total_of(a=([0, 1, 2], [10.0, None, 12.0]), b=([0, 1, 2], [30.0, 30.0, None]))
    assert gap.cone is not None and (gap.cone.x[0], gap.cone.estimate[0]) == (1, 11 + 30)
    # If one process has been silent for very long, there is no sum that a forecast could continue.
    x = [float(each) for each in range(20)]
    assert total_of(a=(x, [10.0] * 20), b=([0, 1], [30.0, 30.0])).cone is None


def test_memory_of_an_ended_process_is_free() -> None:
    lives = line("a", [0, 1, 2, 3, 4, 5], [10.0] * 6)
    ended = line("b", [0, 1], [30.0, 30.0])
    (first, gone) = until_others([(lives, False), (ended, True)])
    assert first is lives
    assert (list(gone.x), list(gone.y)) == ([0, 1, 2, 5], [30, 30, 0, 0])
    assert add_up_processes([first, gone]).y == [40, 40, 10, 10, 10, 10]
    # The memory of a live process is unknown from there on; one that ended with the others was not free before them.
    assert until_others([(lives, False), (ended, False)])[1] is ended
    nearly = line("b", [0, 1, 2, 3], [30.0] * 4)
    assert until_others([(lives, True), (nearly, True)])[1] is nearly
    assert add_up_processes([lives, nearly]).y == [40.0] * 4


def test_lines_named_by_the_verdict_are_drawn_on_top() -> None:
    private = [*PRIVATE, line("process.anon_bytes", [0, 1], [GIB, GIB], "train")]
    private.append(line("process.anon_bytes", [0, 1], [GIB, GIB], "evaluate"))
    palette = Palette.of(["train", "evaluate"])
    chart = chart_builder.trend_chart(AXIS, palette, private, [], None, blamed=["after train"])
    assert [(each.name, each.named) for each in chart.lines] == [
        ("generation end", False), ("after evaluate", False), ("after train", True),
    ]  # fmt: skip
    # A line has the same colour on every chart.
    assert [each.colour for each in chart.lines] == [0, 2, 1]


def test_a_very_uncertain_forecast_does_not_flatten_the_chart() -> None:
    wide = {"estimate": GIB, "low": 0.0, "high": 100 * GIB}
    ends: list[float | None] = [each * GIB for each in range(17)]
    cone = trend(verdict(growth_bytes_per_generation=wide, oom=full_at(30)), ends).cone
    assert cone is not None
    assert max(cone.high) == 40 * GIB and len(cone.x) == 3
    # The forecast is a straight line until there.
    slope = (cone.high[1] - cone.high[0]) / (cone.x[1] - cone.x[0])
    assert slope == pytest.approx(100 * GIB)


def test_values_counted_by_the_minute_are_drawn_at_their_minute() -> None:
    hours = Axis("hours since the start", "time", 3600)
    private = [line("process.anon_bytes", [each / 60 for each in range(241)], [GIB] * 241)]

    def chart(**changes: Any) -> Chart:
        told = verdict(**{"unit": "minute", "oom": full_at(270), **changes})
        return chart_builder.trend_chart(hours, Palette(), private, [], told)

    found = chart()
    assert [(b.first, b.last) for b in found.bands] == [(1.5 / 60, 4.5 / 60)]
    assert found.cone is not None
    # One GiB per minute is 60 GiB per hour.
    (x0, x1), (y0, y1) = found.cone.x, found.cone.estimate
    assert (y1 - y0) / (x1 - x0) == pytest.approx(60 * GIB)
    assert [each.name for each in found.lines] == ["memory"]
    # A verdict in generations gives no position in time.
    other = chart(unit="generation")
    assert (other.bands, other.cone) == ((), None)


def test_a_budget_per_generation_is_drawn_where_it_is_near() -> None:
    phase_accounts = PhaseAccounts(
        (1, 2), (PhaseAccount("a", (GIB, GIB), (1, 1), (1, 1)),), (GIB, GIB)
    )

    def levels(**bounds: float | None) -> list[tuple[float, str]]:
        none = {"high": None, "leak": None}
        check = {"origin": "budget", "metric": "generation.kept_bytes", **none, **bounds}
        other = {"origin": "budget", "metric": "phase.kept_bytes", "high": GIB, "leak": GIB}
        found = budget_levels(verdict(assertions=[check, other]), phase_accounts)
        return [(level.value, level.label) for level in found]

    assert levels() == levels(high=50 * GIB) == []
    assert levels(high=GIB / 2, leak=2 * GIB) == [
        (GIB / 2, "budget"), (2 * GIB, "leak threshold"),
    ]  # fmt: skip
    assert budget_levels(None, phase_accounts) == ()


def test_with_one_kind_of_memory_there_is_no_choice_of_lines() -> None:
    for private, rss in ((PRIVATE, []), ([], RSS)):
        chart = chart_builder.trend_chart(AXIS, Palette(), private, rss, None)
        assert chart.groups == ()
        assert [each.group for each in chart.lines] == [None]
        section = evidence_sections.trend(chart, "generation", "")
        assert section.figure is not None and section.table is not None
        assert len(section.table.columns) == 2


GENERATIONS = 3_000
SPIKE_AT, SPIKE = 1_234, 9 * 2**30


@pytest.mark.parametrize(
    "text",
    [
        "", "3", "3..", "..", "a..b", "4..2", "2..2", "1..2..3", "nan..1", "0..inf", "-1e18..3",
        "1s..2", "s..2s",
    ],
)  # fmt: skip
def test_an_invalid_range_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(InvalidField, match="smaller first"):
        read_stretch(text)


def test_a_range_is_read_as_generations_or_as_seconds() -> None:
    stretch = read_stretch("-0.6..12.4")
    assert wanted(stretch, Axis("epoch"), 1_000.0) == (-1, 13)
    minutes, hours = Axis("minutes", "time", 60), Axis("hours", "time", 3600)
    assert wanted(Stretch(2, 3.5), minutes, 1_000.0) == (1_120.0, 1_210.0)
    # A link in seconds does not depend on how old the run is.
    linked = read_stretch("120s..210s")
    assert wanted(linked, minutes, 1_000.0) == wanted(linked, hours, 1_000.0) == (1_120.0, 1_210.0)
    with pytest.raises(InvalidField, match="must have no s suffix"):
        wanted(linked, Axis("epoch"), 1_000.0)


def test_the_extremes_of_a_sum_are_kept() -> None:
    private = Points("a", "p", None, [0, 1], [5, 6], [1, 6], [9, 6])
    swap = Points("b", "p", None, [0, 1], [2, 2], None, None)
    found = add_up([private, swap])
    assert (found.y, found.low, found.high) == ([7, 8], [3, 8], [11, 8])
    unknown = add_up([Points("a", "p", None, [0, 1], [None, 6], [None, 6], [None, 7]), swap])
    assert (unknown.y, unknown.low, unknown.high) == ([None, 8], [None, 8], [None, 9])
    added = add_up([line("anon", [0, 1, 2], [5, None, 7]), line("swap", [0, 2], [1, 2])])
    assert added.y == [6, None, 9]


def test_a_later_attempt_replaces_repeated_generations() -> None:
    joined = join_attempts([line("a", [0, 1, 2], [1, 2, 3]), line("a", [2, 3], [30, 40])])
    assert (list(joined.x), list(joined.y)) == ([0, 1, 2, 3], [1, 2, 30, 40])
    # A point for each snapshot and a point for each bucket keep their extremes when joined.
    of_buckets = Points("a", "1", None, [0, 1], [5, 6], [1, 6], [9, 6])
    joined = join_attempts([of_buckets, Points("a", "2", None, [2], [4])])
    assert (joined.low, joined.high) == ([1, 6, 4], [9, 6, 4])


@pytest.fixture(scope="module")
def long_run(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send more generation ends than a chart has points, one with a spike of a single snapshot."""

    def anon(sequence: int) -> int:
        return SPIKE if sequence == 3 * SPIKE_AT + 2 else 2**30 + sequence

    extra = {"process.anon_bytes": anon, "process.swap_bytes": lambda _: 0}
    make_run(extra=extra).begin(shared_api, 3 * GENERATIONS)
    return shared_api


def lines_of(api: TestClient, x: str) -> dict[str, Any]:
    answer = api.get(f"/runs/r1/lines?x={x}&tab=phases")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["lines"]
    return found


def ends(lines: dict[str, Any]) -> dict[str, Any]:
    named: list[Any] = [each for each in lines["trend"] if each["name"] == "generation end"]
    (found,) = [each for each in named if each["group"] == "total"]
    return dict(found)


def test_a_zoomed_range_has_every_reading_instead_of_buckets(long_run: TestClient) -> None:
    whole = ends(lines_of(long_run, f"-1..{GENERATIONS}"))
    assert len(whole["x"]) == 2_000
    assert SPIKE not in whole["y"] and max(whole["high"]) == SPIKE
    near = ends(lines_of(long_run, f"{SPIKE_AT - 10.4}..{SPIKE_AT + 10.4}"))
    assert near["x"] == list(range(SPIKE_AT - 11, SPIKE_AT + 12))
    assert near["y"][near["x"].index(SPIKE_AT)] == SPIKE
    # Phase accounts have a finer resolution as well.
    lines = lines_of(long_run, f"{GENERATIONS - 200}..{GENERATIONS - 120}")
    assert {len(line["x"]) for line in lines["phases"]} == {81}
    # An invalid range gets an error of one line.
    assert long_run.get("/runs/nobody/lines?x=1..2").status_code == 404
    answer = long_run.get("/runs/nobody/lines?x=2..1")
    assert answer.status_code == 422 and "such as 12..40" in answer.text


MIB, GIB = 2**20, 2**30
RUN: dict[str, Any] = {
    "unit": "generation", "started_at": "1970-01-01T00:00:00.000+00:00", "attempts": [], "attempts_left_out": 0,
    "notes": [], "environment": {}, "last_seen_at": "1970-01-01T00:20:00.000+00:00",
}  # fmt: skip
CLOCK = Clock([100.0, 200.0, 300.0], [0, 1, 2])


def event(
    kind: str, name: str = "x", time: float = 150.0, generation: int | None = None, **data: Any
) -> dict[str, Any]:
    return {"kind": kind, "name": name, "time": time, "generation": generation, "data": data}


MINUTES = Axis("minutes", "time", 60)


def marks_of(*events: dict[str, Any], **more: Any) -> tuple[Mark, ...]:
    run, axis = more.get("run", RUN), more.get("axis", Axis("generation"))
    effects = fix_effects(events, more.get("verdict"), more.get("effects", ()), run["unit"])
    others = (more.get(name, ()) for name in ("notes", "incidents", "alerts"))
    return marks(run, events, *others, effects, axis, more.get("clock", CLOCK))


def test_nothing_is_marked_before_the_first_generation_end() -> None:
    assert marks_of(event("mark"), clock=Clock((), ())) == ()
    assert marks_of(event("expect"), event("track"), event("watch"), event("note")) == ()


def test_an_event_without_a_generation_gets_that_of_its_time() -> None:
    moments = (event("mark", time=time) for time in (1.0, 150.0, 999.0))
    before, within, after = marks_of(*moments)
    assert (before.x, within.x, after.x) == (0, 1, 2)
    assert marks_of(event("mark", time=150.0, generation=7))[0].x == 7
    # In a chart without generations, it is drawn at its minute.
    assert marks_of(event("mark", time=150.0), axis=MINUTES)[0].x == 2.5


def test_attempts_incidents_notes_and_cleanups_are_marked() -> None:
    attempts = [{"number": n, "started_at": f"1970-01-01T00:0{n}:00.000+00:00"} for n in (1, 2)]
    opened = "1970-01-01T00:02:00.000+00:00"
    incident = {"first_seen_at": opened, "status": "confirmed", "summary": "train keeps 1 GiB"}
    found = marks_of(
        event("cleanup", "agent", freed_bytes=2 * MIB),
        run={**RUN, "attempts": attempts}, incidents=[incident], notes=[Note(250.0, None, "a person", "see", None)],
    )  # fmt: skip
    assert {mark.kind: (mark.x, mark.text) for mark in found} == {
        "attempt": (1, "attempt 2 begins"), "incident": (1, "confirmed: train keeps 1 GiB"), "note": (2, "see"),
        "cleanup": (1, "agent: freed 2.00 MiB"),
    }  # fmt: skip
    again = {**incident, "status": "recovered", "summary": "Recovered: the growth has stopped"}
    assert marks_of(incidents=[again])[0].text == "recovered: the growth has stopped"
    (long,) = marks_of(event("mark", "y" * 5_000, generation=1))
    assert len(long.text) <= 160 and long.text.endswith("…")


def test_events_of_one_kind_leave_room_for_others() -> None:
    name, data = CacheFall("cuda.0", 10 * GIB, 7 * GIB).event
    found = marks_of(
        event("fix", "bound", generation=5),
        event("mark", "drop", generation=3),
        *(event("cleanup", "agent", time=float(i), generation=i) for i in range(1_000)),
        *(event("collection", "full", freed=1) for _ in range(1_000)),
        *(event("mark", name, generation=i, **data) for i in range(10, 500)),
    )
    counts = Counter(mark.label for mark in found)
    assert counts == {
        "bound": 1, "drop": 1, "agent": MAX_CLEANUPS, "full collection": MAX_COLLECTIONS, name: MAX_CACHES,
    }  # fmt: skip
    assert len(marks_of(*(event("mark", generation=i) for i in range(500)))) == MAX_MARKS


def test_a_cleanup_shows_what_it_freed_on_a_device_and_warns_if_nothing() -> None:
    for before, said, rating in (
        (8, "agent: freed 7.00 GiB of GPU memory", None),
        (1, "agent: freed nothing", "watch"),
    ):
        devices = {"cuda.0.reserved_bytes": [before * GIB, GIB]}
        told = event("cleanup", "agent", freed_bytes=-4096, devices=devices)
        assert marks_of(told)[0].text == said
        section = timeline(RUN, [told], [], {})
        assert section is not None and section.table is not None
        cell = section.table.rows[0].cells[-1]
        assert cell.text == said.removeprefix("agent: ")
        assert cell.status == rating


def test_a_full_collection_shows_how_much_memory_fell() -> None:
    collected = {"freed": 1_000, "seconds": 0.5}
    texts = [
        mark.text
        for resident in ([30 * MIB, 10 * MIB], [10 * MIB, 30 * MIB], [None, "x"], None)
        for mark in marks_of(event("collection", "full", **collected, resident_bytes=resident))
    ]
    assert texts[0] == "full collection: freed 1,000 objects, at least 20.00 MiB, in 0.50 s"
    # The allocator kept the memory, or it was not measured: unknown is not zero.
    assert texts[1:] == ["full collection: freed 1,000 objects of unknown size in 0.50 s"] * 3
    (nothing,) = marks_of(event("collection", "full", freed=0, seconds=0.5))
    assert (nothing.kind, nothing.text) == (
        "cleanup", "full collection: freed 0 objects in 0.50 s"
    )  # fmt: skip


def test_an_emptied_device_cache_shows_how_much_it_returned() -> None:
    name, data = CacheFall("cuda.0", 10 * GIB, 7 * GIB).event
    (found,) = marks_of(event("mark", name, **data))
    assert (found.kind, found.label) == ("mark", "cache of cuda.0")
    assert found.text == (
        "cache of cuda.0: returned at least 3.00 GiB to the device: 10.00 GiB held before, 7.00 GiB after"
    )


def test_a_fired_rule_is_at_its_generation_and_a_forecast_at_its_time() -> None:
    rule = {
        "payload": {
            "rule": {"name": "many", "status": "firing"}, "when": {"generation": 2},
            "summary": "tensors.count is 612 at generation 2: above 500",
        },
        "created_at": 150.0, "event": "rule.fired",
    }  # fmt: skip
    risk = {
        "payload": {"when": {}, "summary": "Risk high: soon"},
        "created_at": 150.0,
        "event": "oom.risk",
    }
    # An incident is marked already.
    incident = {**risk, "event": "incident.suspected"}
    first, second = marks_of(alerts=(rule, risk, incident))
    assert (first.kind, first.x, first.text) == ("alert", 1, "Risk high: soon")
    assert second.x == 2
    assert second.text == "many fired: tensors.count is 612 at generation 2: above 500"
    over = {**rule["payload"], "rule": {"name": "many", "status": "resolved"}}
    assert marks_of(alerts=[{**rule, "payload": over}])[0].text.startswith("many resolved: ")
    # An alert from long after the run is drawn at its end.
    assert marks_of(alerts=[{**risk, "created_at": 1e9}], axis=MINUTES)[0].x == 20


def effect(
    fix: str = "detach", *, after: float = MIB, since: float = 100.0, **more: Any
) -> dict[str, Any]:
    """Return the effect of a fix as the analysis reports it, with growth of 10 MiB before."""
    ends = {
        name: {"estimate": v, "low": v, "high": v}
        for name, v in (("before", 10 * MIB), ("after", after), ("difference", after - 10 * MIB))
    }
    base = {
        "fix": fix, "phase": None, "location": None, "rejected": None, "since": since, "measure": "growth",
        "subject": None, "outcome": "helped", "sentence": "x", **ends,
    }  # fmt: skip
    return {**base, **more}


def test_a_fix_shows_the_growth_before_and_after_and_its_promise() -> None:
    check = {
        "origin": "fix", "name": "detach", "metric": "growth_bytes_per_generation", "high": 2 * MIB, "state": "holds",
        "measured": {"estimate": MIB, "low": MIB, "high": MIB},
    }  # fmt: skip
    (found,) = marks_of(
        event("fix", "detach", generation=10), effects=[effect()], verdict={"assertions": [check]}
    )
    assert found.text.split("\n") == [
        "detach",
        "growth per generation: before +10.00 MiB, after +1.00 MiB: helped, -9.00 MiB",
        "promised 2.00 MiB per generation, measured +1.00 MiB: holds",
    ]
    unknown = effect(outcome="undecided", before=None, sentence="Too few generations ran before.")
    (found,) = marks_of(event("fix", "detach", generation=2), effects=[unknown])
    assert found.text.split("\n")[1] == "undecided: Too few generations ran before."
    (alone,) = marks_of(event("fix", "detach", generation=2))
    assert alone.text == "detach"


def test_a_fix_without_effect_says_so_and_names_the_baseline() -> None:
    told = effect(
        after=10 * MIB, outcome="no_effect", measure="phase_growth", subject="evaluate",
        against={"id": "r0", "name": "before-fix", "after": "r1"},
    )  # fmt: skip
    (found,) = marks_of(event("fix", "detach", generation=0), effects=[told])
    assert (
        "against before-fix: evaluate per generation: before +10.00 MiB, after +10.00 MiB: no effect"
        in found.text
    )


def test_the_effect_of_a_fix_is_in_the_table_of_events() -> None:
    commit, place = "1f0c9a2b" * 5, "training/trainer.py:281"
    fix = {**event("fix", "detach", generation=10, location=place), "phase": None}
    # A name with the same beginning, and a fix from before effects had today's format, have effects of their own.
    twin = {**fix, "name": "detach" + "h" * 200, "generation": 2}
    again = {**fix, "time": 50.0, "generation": 4}
    told = [effect(), effect(twin["name"], after=2 * MIB)]
    effects = fix_effects([fix, twin, again], None, told, "generation")
    assert [len(each) for each in effects.values()] == [1, 1, 0]
    assert len(set(map(tuple, effects.values()))) == 3
    environment = {"repository": "git@github.com:erl/trading.git", "commit": commit}
    section = timeline({**RUN, "environment": environment}, [fix], [], effects)
    assert section is not None and section.table is not None
    cell = section.table.rows[0].cells[-1]
    assert cell.text.startswith(
        f"{place}; growth per generation: before +10.00 MiB, after +1.00 MiB"
    )
    assert (
        cell.outside and cell.href is not None and cell.href.endswith("/training/trainer.py#L281")
    )


def test_each_byte_is_accounted_for_once_and_unmeasured_kinds_are_named() -> None:
    assert accounted(None, {"arrays.bytes": 5.0}, None) == accounted(GIB, {}, None) == ""
    said = accounted(GIB, {"arrays.bytes": GIB / 4}, None)
    assert said.startswith("25 % of 1.00 GiB private memory is accounted for: arrays 256.00 MiB.")
    assert "Not measured: tensors, other objects, freed but kept by the C allocator." in said
    assert "The counted memory exceeds the 1.00 GiB" in accounted(
        GIB, {"arrays.bytes": 2.0 * GIB}, None
    )
    # If arrays and tensors were measured, their counts in a census are not added.
    types = [["numpy.ndarray", 9, GIB // 2], ["app.Env", 2, None]]
    said = accounted(GIB, {}, {"types": types})
    assert said.startswith("50 % of 1.00 GiB private memory is accounted for: arrays 512.00 MiB.")
    census = {"types": [*types, ["torch.Tensor", 9, GIB], ["dict", 9, 64 * MIB]]}
    last = {
        "arrays.bytes": 128.0 * MIB, "tensors.bytes": 300.0 * MIB, "tensors.device_bytes": 200.0 * MIB,
        "tensors.graph_bytes": 28.0 * MIB, "allocator.kept_bytes": 0.0,
    }  # fmt: skip
    said = accounted(GIB, last, census)
    assert said.startswith("31 % of 1.00 GiB private memory is accounted for: arrays 128.00 MiB, ")
    assert "tensors 128.00 MiB, other objects 64.00 MiB" in said and "Not measured" not in said


def test_an_abandoned_plan_is_not_progress() -> None:
    run = {"total": None, "generations": 12, "unit": "epoch"}
    band = {"origin": "band", "metric": "m", "last": 5}
    bands = {"assertions": [band, {**band, "last": None}]}
    assert progress(run, None) == "12 epochs"
    assert progress(run, bands) == "12 epochs"
    assert progress({**run, "generations": 3}, bands) == "3 of 5 epochs"
    fix = {"origin": "fix", "metric": "generations", "low": 25.0, "last": None}
    promised = {"assertions": [*bands["assertions"], fix]}
    assert progress(run, promised) == "12 of 25 epochs"
    assert progress({**run, "total": 20}, promised) == "12 of 20 epochs"


def test_alerts_say_whether_any_webhook_received_them() -> None:
    payload = {"summary": "Leaking: soon", "when": {"generation": 3}}
    row = {"event": "risk", "created_at": 1e9, "payload": payload}
    sent, unsent = (timeline(RUN, [], [row], {}, any_webhook=each) for each in (True, False))
    assert sent is not None and "webhook" not in sent.how
    assert unsent is not None and "No webhook is set up, so the alerts were not sent" in unsent.how
    assert sent.table is not None
    assert [cell.text for cell in sent.table.rows[0].cells][2:] == [
        "alert",
        "risk",
        "–",
        "Leaking: soon",
    ]


def test_all_events_are_in_one_list_newest_first() -> None:
    alert = {"event": "risk", "created_at": 30.0, "payload": {"summary": "soon", "when": {}}}
    said = [{"text": "by hand", "at": 20.0}, {"text": "before there were times"}]
    mark, note = event("mark", "drop", time=10.0), event("note", "note", time=40.0, text="see it")
    section = timeline({**RUN, "notes": said}, [mark, note], [alert], {})
    assert section is not None and section.table is not None
    kinds = [(row.cells[2].text, row.cells[-1].text) for row in section.table.rows]
    assert kinds == [
        ("note", "see it"), ("alert", "soon"), ("note", "by hand"), ("mark", "–"), ("note", "before there were times"),
    ]  # fmt: skip
