"""What a zoomed page reads: the lines of a stretch with points of their own, extremes kept, tables left alone."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.analysis.results import BookLine, Books
from leakline_server.chart_parts import Axis, Points, add_up, join_attempts
from leakline_server.charts import books_within
from leakline_server.errors import InvalidField
from leakline_server.web.zoom import Stretch, read_stretch, wanted

GENERATIONS = 3_000
SPIKE_AT, SPIKE = 1_234, 9 * 2**30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3..",
        "..",
        "a..b",
        "4..2",
        "2..2",
        "1..2..3",
        "nan..1",
        "0..inf",
        "-1e18..3",
        "1s..2",
        "s..2s",
    ],
)
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

    run = make_run(extra={"process.anon_bytes": anon, "process.swap_bytes": lambda _: 0})
    run.create(api)
    run.send(api, 0, 3 * GENERATIONS)
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
    other = make_run(id="r2", instance="p2")
    other.create(long_run)
    other.send(long_run, 0, 60)
    answer = long_run.get("/compare/lines?before=r1&after=r2&x=5..10")
    assert answer.status_code == 200, answer.text
    lines = answer.json()["lines"]
    assert [line["x"] for line in lines["overlay"]] == [[5, 6, 7, 8, 9, 10]] * 2
    assert set(lines) == {"overlay", "books-before", "books-after"}
