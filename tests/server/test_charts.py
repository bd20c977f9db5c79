"""Charts: lines, bands, forecasts and books; and the lines of a zoomed range."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.analysis.results import BookLine, Books
from leakline_server.charts import chart_builder
from leakline_server.charts.chart_builder import books_within
from leakline_server.charts.chart_parts import (
    Axis,
    Chart,
    Line,
    Palette,
    Points,
    add_up,
    budget_levels,
    join_attempts,
    to_script,
)
from leakline_server.errors import InvalidField
from leakline_server.web.axis_zoom import Stretch, read_stretch, wanted
from leakline_server.web.rendering import evidence_sections

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


def test_a_series_that_was_never_measured_makes_no_chart() -> None:
    assert (
        chart_builder.memory_chart(AXIS, [line("process.rss_bytes", [0, 1], [None, None])], None)
        is None
    )
    assert chart_builder.gpu_chart(AXIS, [], None) is None
    assert chart_builder.books_chart(AXIS, Palette(), Books((), (), ())) is None


def test_a_device_shows_what_torch_and_the_driver_tell_of_it() -> None:
    names = [
        *(f"cuda.1.{n}" for n in ("allocated_bytes", "active_bytes", "reserved_bytes", "retries", "ooms")),
        *(f"gpu.1.{n}" for n in ("used_bytes", "total_bytes", "process_bytes", "outside_bytes")),
        "gpu.0.used_bytes",
        "mps.allocated_bytes", "mps.driver_bytes", "mps.limit_bytes", "gpu.mine", "gpu.x.used_bytes",
    ]  # fmt: skip
    chart = chart_builder.gpu_chart(AXIS, [line(name, [0, 1], [GIB, GIB]) for name in names], None)
    assert chart is not None
    # Device 0 was seen before the program took device 1 into use.
    assert [each.name for each in chart.lines] == [
        "GPU 1 allocated", "GPU 1 active", "GPU 1 reserved",
        "GPU 1 in use, driver", "GPU 1 this process, driver", "GPU 1 outside torch",
        "Metal allocated", "Metal in use, driver",
    ]  # fmt: skip
    assert {each.name for each in chart.lines if each.hidden} == {
        "GPU 1 active", "GPU 1 this process, driver",
    }  # fmt: skip


def test_a_device_that_no_torch_uses_shows_what_the_driver_tells() -> None:
    chart = chart_builder.gpu_chart(AXIS, [line("gpu.3.used_bytes", [0, 1], [GIB, GIB])], None)
    assert chart is not None
    assert [each.name for each in chart.lines] == ["GPU 3 in use, driver"]


def test_failed_allocations_are_told_beside_the_chart() -> None:
    chart = chart_builder.gpu_chart(
        AXIS, [line("cuda.0.allocated_bytes", [0, 1], [GIB, GIB])], None
    )
    last = {"cuda.0.retries": 7.0, "cuda.1.retries": None, "cuda.1.ooms": 1.0}
    section = evidence_sections.gpu(chart, "generation", last)
    assert section is not None
    assert (
        section.note
        == "torch emptied its cache and tried again 7 times and ran out of memory once."
    )
    quiet = evidence_sections.gpu(chart, "generation", {"cuda.0.retries": 0.0, "cuda.0.ooms": 0.0})
    assert quiet is not None and quiet.note == ""
    assert evidence_sections.gpu(None, "generation", {}) is None


def test_what_was_not_measured_stays_unknown_in_a_sum() -> None:
    added = add_up([line("anon", [0, 1, 2], [5, None, 7]), line("swap", [0, 2], [1, 2])])
    assert added.y == [6, None, 9]


def test_a_later_attempt_replaces_what_it_did_again() -> None:
    joined = join_attempts([line("a", [0, 1, 2], [1, 2, 3]), line("a", [2, 3], [30, 40])])
    assert (list(joined.x), list(joined.y)) == ([0, 1, 2, 3], [1, 2, 30, 40])


def test_names_from_a_training_cannot_end_the_script_tag() -> None:
    text = to_script(Chart("c", "bytes", "y", "x", (Line("</script><b>&", [0], [1]),)))
    assert "<" not in text and "&" not in text
    assert json.loads(text)["lines"][0]["name"] == "</script><b>&"


def test_the_start_of_a_leak_is_an_interval_not_a_line() -> None:
    (band,) = trend(verdict(), [GIB] * 8).bands
    assert (band.first, band.last) == (1.5, 4.5)


def test_a_run_without_a_leak_has_neither_start_nor_forecast() -> None:
    chart = trend(verdict(status="ok", findings=[]), [GIB] * 8)
    assert chart.bands == () and chart.cone is None and chart.levels == ()


def test_a_limit_far_above_the_run_does_not_flatten_it() -> None:
    assert trend(verdict(), [GIB, 2 * GIB]).levels == ()
    (level,) = trend(verdict(), [40 * GIB, 41 * GIB]).levels
    assert (level.value, level.label) == (64 * GIB, "limit (container)")


def test_the_forecast_opens_from_the_last_reading() -> None:
    cone = trend(verdict(), [GIB, None, 2 * GIB, None]).cone
    assert cone is not None
    assert cone.x[0] == 2 and cone.estimate[0] == 2 * GIB
    assert cone.low[1] < cone.estimate[1] < cone.high[1]


def test_each_phase_keeps_its_colour_and_what_is_outside_has_none() -> None:
    palette = Palette.of(["train", "evaluate", "train"])
    books = Books((0, 1), tuple(book(n) for n in ("evaluate", "between")), (2.0, 2.0))
    chart = chart_builder.books_chart(AXIS, palette, books)
    assert chart is not None
    assert {each.name: each.colour for each in chart.lines} == {
        "evaluate": 2,
        "between": 0,
        "sum": 0,
    }


def book(name: str, values: tuple[float, ...] = (1.0, 1.0)) -> BookLine:
    return BookLine(name, values, (None,) * len(values), (1,) * len(values))


def test_thousands_of_generations_are_joined_without_changing_their_mean() -> None:
    values = tuple(float(i % 7) for i in range(1000))
    chart = chart_builder.books_chart(
        AXIS, Palette(), Books(tuple(range(1000)), (book("a", values),), values)
    )
    assert chart is not None
    bars = chart.lines[0]
    assert len(bars.x) <= chart_builder.MAX_BARS
    step = 1000 // len(bars.x) + 1
    assert bars.y[0] == sum(values[:step]) / step


def test_two_books_side_by_side_share_a_scale() -> None:
    low, high = chart_builder.same_scale(
        [Books((0,), (book("a", (5.0,)), book("b", (-2.0,))), (3.0,)), Books((), (), ())]
    )
    assert low < -2 and high > 5


def test_a_container_is_drawn_as_a_share_of_its_capacity() -> None:
    chart = chart_builder.fill_chart(
        AXIS, [line("tracked.replay.length", [0, 1], [10, 20])], {"tracked.replay.length": 40}
    )
    assert chart is not None and list(chart.lines[0].y) == [0.25, 0.5]


def test_each_phase_end_is_one_line_and_nested_ones_wait_in_the_legend() -> None:
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


def test_planned_bands_lie_behind_the_lines_they_speak_of() -> None:
    bands = [
        planned(1, 2, 4 * GIB), planned(2, None, 5 * GIB, state="broken"), planned(3, 4, None),
        planned(1, 2, 3 * GIB, metric="gauge.pending"), planned(1, 2, 4 * GIB, process="rank 1 main"),
    ]  # fmt: skip
    told = verdict(findings=[], assertions=bands)
    private, rss = PRIVATE, RSS
    both = chart_builder.trend_chart(AXIS, Palette(), private, rss, told)
    assert [(b.first, b.last, b.low, b.high, b.tone, b.group) for b in both.bands] == [
        (0.5, 2.5, GIB, 4 * GIB, "ok", "rss"), (1.5, 3.5, GIB, 5 * GIB, "watch", "rss"),
    ]  # fmt: skip
    assert {b.group for b in chart_builder.trend_chart(AXIS, Palette(), [], rss, told).bands} == {
        None
    }
    assert chart_builder.trend_chart(AXIS, Palette(), private, [], told).bands == ()
    assert (
        chart_builder.trend_chart(Axis("minute", "time"), Palette(), private, rss, told).bands == ()
    )
    assert (
        chart_builder.trend_chart(AXIS, Palette(), private, rss, verdict(findings=[])).bands == ()
    )


def test_what_was_planned_is_what_is_shown_first() -> None:
    def first(*bands: dict[str, Any]) -> str:
        told = verdict(findings=[], assertions=bands)
        return chart_builder.trend_chart(AXIS, Palette(), PRIVATE, RSS, told).groups[0].id

    assert first() == "private"
    assert first(planned(1, 2, 4 * GIB)) == "rss"
    assert (
        first(planned(1, 2, 4 * GIB), planned(1, 2, GIB, metric="process.anon_bytes")) == "private"
    )


def test_the_memory_that_the_leading_finding_grows_in_is_shown_first() -> None:
    private = PRIVATE
    grown = [line("children.uss_bytes", [0, 1, 2, 3], [GIB, 2 * GIB, 3 * GIB, 4 * GIB])]
    children = (chart_builder.Group("children", "Child processes"), grown)
    chart = chart_builder.trend_chart(AXIS, Palette(), private, RSS, verdict(), named=children)
    assert [group.id for group in chart.groups] == ["children", "private", "rss"]
    (drawn,) = [each for each in chart.lines if each.group == "children"]
    assert (drawn.name, list(drawn.y)) == ("Child processes", grown[0].y)
    # The mark of the start stands on the line that rises, and nothing forecasts the one that does not.
    assert [(band.label, band.group) for band in chart.bands] == [("leak starts", "children")]
    assert chart.cone is None and chart.cones == {}
    alone = chart_builder.trend_chart(AXIS, Palette(), private, [], verdict(), named=children)
    assert {each.group for each in alone.lines} == {"children", "private"}


def full_at(generation: float) -> dict[str, Any]:
    when = {"estimate": generation, "low": generation, "high": generation}
    return {"risk": "high", "limit_bytes": 32 * GIB, "limit_source": "cgroup", "generation": when}


def test_a_forecast_reaches_the_limit_where_that_is_a_risk_or_near() -> None:
    ends: list[float | None] = [each * GIB for each in range(17)]
    safe = {"risk": "none"}
    near, far = (trend(verdict(oom=full_at(at) | safe), ends) for at in (30, 40))
    risky = trend(verdict(oom=full_at(40)), ends)
    assert near.cone is not None and far.cone is not None and risky.cone is not None
    assert near.cone.x[-1] > 30 and near.cone.high[-1] >= 32 * GIB
    assert [level.value for level in near.levels] == [32 * GIB]
    assert far.cone.x[-1] == 20
    assert risky.cone.x[-1] > 40 and risky.levels


def test_the_forecast_of_rss_goes_on_from_rss() -> None:
    x = [0.0, 1.0, 2.0]
    private = [line("process.anon_bytes", x, [GIB, 2 * GIB, 3 * GIB])]
    rss = [line("process.rss_bytes", x, [5 * GIB, 6 * GIB, 7 * GIB])]
    chart = chart_builder.trend_chart(AXIS, Palette(), private, rss, verdict())
    assert chart.cone is not None
    assert (chart.cone.estimate[0], chart.cones["rss"].estimate[0]) == (3 * GIB, 7 * GIB)
    assert chart_builder.trend_chart(AXIS, Palette(), [], rss, verdict()).cones == {}


def test_a_forecast_that_may_be_anything_does_not_press_the_run_flat() -> None:
    wide = {"estimate": GIB, "low": 0.0, "high": 100 * GIB}
    ends: list[float | None] = [each * GIB for each in range(17)]
    cone = trend(verdict(growth_bytes_per_generation=wide, oom=full_at(30)), ends).cone
    assert cone is not None
    assert max(cone.high) == 40 * GIB and len(cone.x) == 3
    # Straight until there.
    slope = (cone.high[1] - cone.high[0]) / (cone.x[1] - cone.x[0])
    assert slope == pytest.approx(100 * GIB)


def test_what_is_counted_by_the_minute_lies_where_its_minute_is() -> None:
    hours = Axis("hours since the start", "time", 3600)
    private = [line("process.anon_bytes", [each / 60 for each in range(241)], [GIB] * 241)]

    def chart(**changes: Any) -> Chart:
        told = verdict(**{"unit": "minute", "oom": full_at(270), **changes})
        return chart_builder.trend_chart(hours, Palette(), private, [], told)

    found = chart()
    assert [(b.first, b.last) for b in found.bands] == [(1.5 / 60, 4.5 / 60)]
    assert found.cone is not None
    # A GiB a minute is sixty an hour.
    (x0, x1), (y0, y1) = found.cone.x, found.cone.estimate
    assert (y1 - y0) / (x1 - x0) == pytest.approx(60 * GIB)
    assert [(each.name, each.source and each.source.kind) for each in found.lines] == [
        ("memory", None)
    ]
    # A verdict of generations says nothing of a place in time.
    other = chart(unit="generation")
    assert (other.bands, other.cone) == ((), None)


def test_a_budget_of_every_generation_stands_beside_the_bars_where_it_is_near() -> None:
    books = Books((1, 2), (BookLine("a", (GIB, GIB), (1, 1), (1, 1)),), (GIB, GIB))

    def levels(**bounds: float | None) -> list[tuple[float, str]]:
        check = {
            "origin": "budget",
            "metric": "generation.kept_bytes",
            "high": None,
            "leak": None,
            **bounds,
        }
        other = {"origin": "budget", "metric": "phase.kept_bytes", "high": GIB, "leak": GIB}
        found = budget_levels(verdict(assertions=[check, other]), books)
        return [(level.value, level.label) for level in found]

    assert levels() == levels(high=50 * GIB) == []
    assert levels(high=GIB / 2, leak=2 * GIB) == [
        (GIB / 2, "budget"), (2 * GIB, "a leak from here on"),
    ]  # fmt: skip
    assert budget_levels(None, books) == ()


def test_where_only_one_kind_of_memory_is_known_its_lines_wait_for_no_choice() -> None:
    for private, rss in ((True, False), (False, True)):
        points = [line("process.anon_bytes", [0, 1], [GIB, GIB])]
        chart = chart_builder.trend_chart(
            AXIS, Palette(), points if private else [], points if rss else [], None
        )
        assert chart.groups == ()
        assert [each.group for each in chart.lines] == [None]
        section = evidence_sections.trend(chart, "generation", "")
        assert section.figure is not None
        assert section.table is not None
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
def test_what_is_no_stretch_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(InvalidField, match="smaller first"):
        read_stretch(text)


def test_a_stretch_is_read_in_whole_generations_or_in_seconds_of_the_clock() -> None:
    stretch = read_stretch("-0.6..12.4")
    assert wanted(stretch, Axis("epoch"), 1_000.0) == (-1, 13)
    minutes, hours = Axis("minutes", "time", 60), Axis("hours", "time", 3600)
    assert wanted(Stretch(2, 3.5), minutes, 1_000.0) == (1_120.0, 1_210.0)
    # Of a link in seconds it does not matter how old the run is by now.
    linked = read_stretch("120s..210s")
    assert wanted(linked, minutes, 1_000.0) == wanted(linked, hours, 1_000.0) == (1_120.0, 1_210.0)
    with pytest.raises(InvalidField, match="without s"):
        wanted(linked, Axis("epoch"), 1_000.0)


def test_the_extremes_of_a_sum_are_kept() -> None:
    private = Points("a", "p", None, [0, 1], [5, 6], [1, 6], [9, 6])
    swap = Points("b", "p", None, [0, 1], [2, 2], None, None)
    found = add_up([private, swap])
    assert (found.y, found.low, found.high) == ([7, 8], [3, 8], [11, 8])
    unknown = add_up([Points("a", "p", None, [0, 1], [None, 6], [None, 6], [None, 7]), swap])
    assert (unknown.y, unknown.low, unknown.high) == ([None, 8], [None, 8], [None, 9])


def test_an_attempt_with_a_point_for_each_snapshot_keeps_the_extremes_of_one_without() -> None:
    joined = join_attempts(
        [Points("a", "1", None, [0, 1], [5, 6], [1, 6], [9, 6]), Points("a", "2", None, [2], [4])]
    )
    assert (joined.low, joined.high) == ([1, 6, 4], [9, 6, 4])


def test_books_of_a_stretch_are_those_of_its_generations() -> None:
    books = Books((1, 2, 4), (BookLine("train", (1, 2, 3), (None, 1, 2), (1, 1, 0)),), (1, 2, 3))
    assert books_within(books, 2, 3) == Books((2,), (BookLine("train", (2,), (1,), (1,)),), (2,))
    assert books_within(books, 5, 9).generations == ()


@pytest.fixture
def long_run(api: TestClient, make_run: Any) -> TestClient:
    """More generation ends than a chart has points, one of them far above the others for one snapshot."""

    def anon(sequence: int) -> int:
        return SPIKE if sequence == 3 * SPIKE_AT + 2 else 2**30 + sequence

    make_run(extra={"process.anon_bytes": anon, "process.swap_bytes": lambda _: 0}).begin(
        api, 3 * GENERATIONS
    )
    return api


def lines_of(api: TestClient, x: str) -> dict[str, Any]:
    answer = api.get(f"/runs/r1/lines?x={x}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["lines"]
    return found


def ends(lines: dict[str, Any]) -> dict[str, Any]:
    (found,) = [
        line
        for line in lines["trend"]
        if line["name"] == "generation end" and line["group"] != "rss"
    ]
    return found  # type: ignore[no-any-return]


def test_a_stretch_has_every_reading_where_the_whole_has_a_bucket(long_run: TestClient) -> None:
    whole = ends(lines_of(long_run, f"-1..{GENERATIONS}"))
    assert len(whole["x"]) == 2_000
    assert SPIKE not in whole["y"] and max(whole["high"]) == SPIKE
    near = ends(lines_of(long_run, f"{SPIKE_AT - 10.4}..{SPIKE_AT + 10.4}"))
    assert near["x"] == list(range(SPIKE_AT - 11, SPIKE_AT + 12))
    assert near["y"][near["x"].index(SPIKE_AT)] == SPIKE


def test_books_are_split_finer_and_tables_stay_as_they_are(
    long_run: TestClient, eventually: Any
) -> None:
    lines = lines_of(long_run, f"{GENERATIONS - 200}..{GENERATIONS - 120}")
    assert {len(line["x"]) for line in lines["books"]} == {81}

    def same() -> bool:
        """Between the two, the verdict may come."""
        whole = long_run.get("/runs/r1/fragments").text
        return bool(long_run.get("/runs/r1/fragments?x=100..180").text == whole)

    eventually(same)


def test_a_wrong_stretch_is_one_line_and_a_run_that_is_not_there_is_404(api: TestClient) -> None:
    assert api.get("/runs/nobody/lines?x=1..2").status_code == 404
    answer = api.get("/runs/nobody/lines?x=2..1")
    assert answer.status_code == 422 and "such as 12..40" in answer.text


def test_both_runs_of_a_comparison_are_read_alike(long_run: TestClient, make_run: Any) -> None:
    make_run(id="r2", instance="p2").begin(long_run, 60)
    answer = long_run.get("/compare/lines?before=r1&after=r2&x=5..10")
    assert answer.status_code == 200, answer.text
    lines = answer.json()["lines"]
    assert [line["x"] for line in lines["overlay"]] == [[5, 6, 7, 8, 9, 10]] * 2
    assert set(lines) == {"overlay", "books-before", "books-after"}
