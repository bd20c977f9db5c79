"""The waterfall: from the memory at the beginning of a generation to that at its end, with nothing left over."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.analysis.results import BookLine, Books
from leakline_server.chart_parts import Palette
from leakline_server.web.waterfall_view import (
    MAX_STEPS,
    chosen,
    mean_steps,
    reach,
    steps_of,
    waterfall,
    waterfall_chart,
)

MIB = 2**20
GIB = 2**30


def line(name: str, *amounts: float) -> BookLine:
    return BookLine(name, amounts, (None,) * len(amounts), (1,) * len(amounts))


def books(*lines: BookLine) -> Books:
    generations = tuple(range(3, 3 + len(lines[0].bytes)))
    columns = zip(*(each.bytes for each in lines), strict=True)
    return Books(generations, lines, tuple(map(sum, columns)))


BOOKS = books(line("train", 7 * MIB, 5 * MIB), line("evolve", -2 * MIB, 0), line("between", MIB, MIB))  # fmt: skip


def test_nothing_is_shown_before_a_generation_has_books() -> None:
    assert waterfall(Books((), (), ()), Palette(), "epoch", "", None, {}) is None


def test_an_unknown_level_is_no_zero() -> None:
    section = waterfall(BOOKS, Palette(), "epoch", "4", None, {})
    assert section is not None and section.figure is not None
    assert "begin" not in section.figure.chart.steps
    assert "was not read" in section.note


def test_the_steps_add_up_to_the_memory_at_the_end() -> None:
    steps = steps_of(BOOKS, 3, 2 * GIB)
    assert steps.begin == 2 * GIB - 6 * MIB
    assert steps.levels[-1] == 2 * GIB
    assert [name for name, _ in steps.changes] == ["train", "evolve", "between"]


def test_a_phase_that_changed_nothing_has_no_step() -> None:
    assert [name for name, _ in steps_of(BOOKS, 4, None).changes] == ["train", "between"]


def test_the_mean_begins_at_zero_and_ends_at_the_growth_of_the_run() -> None:
    steps = mean_steps(BOOKS)
    assert steps.begin is None
    assert steps.levels[-1] == sum(BOOKS.total) / 2


def test_many_phases_keep_the_largest_and_the_sum() -> None:
    many = books(*(line(f"phase{i}", float(i + 1)) for i in range(30)), line("between", 1000.0))
    steps = steps_of(many, 3, 5000.0)
    assert len(steps.changes) == MAX_STEPS
    assert steps.changes[-2][0] == "22 smaller ones" and steps.changes[-1][0] == "between"
    assert steps.levels[-1] == 5000.0


@pytest.mark.parametrize(
    "wanted, generation", [("", 4), ("mean", None), ("nonsense", 4), ("-9", 3), ("99", 4), ("3", 3)]
)
def test_the_newest_is_shown_unless_another_is_asked_for(
    wanted: str, generation: int | None
) -> None:
    assert chosen(BOOKS, wanted) == generation


def test_bars_begin_where_the_one_before_ended_and_wear_the_colour_of_their_phase() -> None:
    steps = steps_of(BOOKS, 3, 2 * GIB)
    chart = waterfall_chart(steps, Palette.of(["train", "evolve"]), "epoch", "w")
    ends, train, evolve, between = chart.lines
    assert ends.y == [steps.begin, 2 * GIB] and ends.base is None
    assert [each.base for each in (train, evolve, between)] == [
        [level] for level in steps.levels[:-1]
    ]
    assert (train.colour, evolve.colour, between.colour) == (1, 2, 0)


def test_two_sums_have_one_scale_with_room_on_both_sides() -> None:
    low, high = reach([mean_steps(BOOKS), mean_steps(books(line("train", -20 * MIB)))])
    assert low < -20 * MIB and high > 6 * MIB


def test_generations_that_are_told_together_are_one_step_and_count_as_what_they_are() -> None:
    together = Books((3, 4, 9), (line("train", 2.0, 2.0, 8.0),), (2.0, 2.0, 8.0), (1, 1, 4))
    assert mean_steps(together).levels[-1] == 12.0 / 6
    assert chosen(together, "6") == 9
    section = waterfall(together, Palette(), "epoch", "9", 100.0, {})
    assert section is not None and section.note == "4 epochs up to 9: 92 B +8 B = 100 B."
    mean = waterfall(together, Palette(), "epoch", "mean", None, {})
    assert mean is not None and mean.note.startswith("The mean of 6 epochs")


def chart_in(page: str, chart_id: str) -> dict[str, Any]:
    charts = [json.loads(text) for text in re.findall(r"data-chart>(.*?)</script>", page)]
    (found,) = [chart for chart in charts if chart["id"] == chart_id]
    return found  # type: ignore[no-any-return]


def at_ends(value: Any) -> Any:
    return lambda n: value(n // 3) if n % 3 == 2 else None


@pytest.fixture
def booked(api: TestClient, make_run: Any) -> TestClient:
    """Ten generations of which each keeps 9 MiB in train and gives 1 MiB back in evaluate; two ranks."""
    for rank, instance in enumerate(("p1", "p2")):
        run = make_run(
            instance=instance, rank=rank,
            extra={
                "process.anon_bytes": lambda n: GIB + (n // 3) * 8 * MIB + (n % 3 == 1) * MIB,
                "process.swap_bytes": lambda _: 0,
                "phase.train.bytes": at_ends(lambda _: 9 * MIB), "phase.evaluate.bytes": at_ends(lambda _: -MIB),
            },
        )  # fmt: skip
        run.create(api)
        run.send(api, 0, 30)
    return api


def test_the_page_shows_the_generation_of_its_address(booked: TestClient) -> None:
    chart = chart_in(booked.get("/runs/r1?g=4").text, "waterfall")
    ends, *phases = chart["lines"]
    # Both ranks: 2 GiB and four times 16 MiB.
    assert ends["y"] == [2 * GIB + 3 * 16 * MIB, 2 * GIB + 4 * 16 * MIB]
    assert {each["name"]: each["y"] for each in phases} == {"train": [18 * MIB], "evaluate": [-2 * MIB]}  # fmt: skip
    newest = booked.get("/runs/r1?process=rank+1+main").text
    assert "Generation 9: 2.12 GiB +16.00 MiB = 2.14 GiB." in newest
    assert 'href="?process=rank+1+main&amp;g=8#waterfall"' in newest
    assert 'name="process" value="rank 1 main"' in newest


def test_two_runs_have_their_means_beside_each_other(booked: TestClient, make_run: Any) -> None:
    other = make_run(id="r2", instance="p3", extra={"phase.train.bytes": at_ends(lambda _: MIB)})
    other.create(booked)
    other.send(booked, 0, 30)
    page = booked.get("/compare?before=r1&after=r2").text
    before, after = (chart_in(page, f"sum-{side}") for side in ("before", "after"))
    assert before["y_range"] == after["y_range"]
    assert before["lines"][0]["y"] == [16 * MIB]
