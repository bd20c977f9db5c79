from __future__ import annotations

import json
import re
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest
from tests.cli.conftest import GENERATIONS, MIB, STARTED, by_the_minute, by_the_second, post_run

from leakline.snapshot import RunHeader

GATE = "--fail-on=leaking,worse"


def test_a_leak_after_closes_the_gate(leakline: Any, server: str) -> None:
    said = leakline("compare", "app/fixed", "app/leaking", "--server", server, GATE)
    assert said.status == 3
    assert "failed on: leaking" in said.output


def test_a_leak_that_stays_closes_the_gate(leakline: Any, server: str) -> None:
    assert leakline("compare", "run1", "run1", "--server", server, GATE).status == 3


def test_without_a_condition_the_gate_is_open(leakline: Any, server: str) -> None:
    assert leakline("compare", "app/fixed", "app/leaking", "--server", server).status == 0


def test_a_fix_passes_and_is_told_in_percent(leakline: Any, server: str) -> None:
    said = leakline("compare", "app/leaking", "app/fixed", "--server", server, GATE)
    assert said.status == 0
    assert said.output.startswith("fixed: ")
    # The word stands before the sentence, which need not repeat it.
    assert "Fixed" not in said.output.splitlines()[0]
    assert "-100.0 %" in said.output


def test_the_json_alone_is_printed(leakline: Any, server: str) -> None:
    said = leakline("compare", "run2", "run1", "--json", "--server", server, GATE)
    assert json.loads(said.output)["after"] == "run1"
    assert said.status == 3


def test_a_promise_that_the_run_after_breaks_closes_the_gate(leakline: Any, server: str) -> None:
    said = leakline("compare", "run2", "run1", "--server", server, "--fail-on=refuted")
    assert said.status == 3
    assert "failed on: refuted" in said.output
    kept = leakline("compare", "run1", "run2", "--server", server, "--fail-on=refuted")
    assert kept.status == 0


def test_the_promises_of_the_run_after_are_told(leakline: Any, server: str) -> None:
    output = leakline("compare", "run1", "run2", "--server", server).output
    assert "what the fix promised:\n   let them go (train, app.py:7)\n      held: " in output
    assert "refuted" not in output


def test_the_difference_of_growth_is_printed(leakline: Any, server: str) -> None:
    output = leakline("compare", "run1", "run2", "--server", server).output
    assert "difference: -20.00 MiB per generation" in output


def test_runs_by_the_minute_are_compared_by_the_minute(leakline: Any, server: str) -> None:
    for name, leak in (("before", 20 * MIB), ("after", 0)):
        header = RunHeader(f"minutes-{name}", "by-time", name, "minute", None, STARTED)
        post_run(server, header, leak, by_the_minute)
    output = leakline("compare", "by-time/before", "by-time/after", "--server", server).output
    assert "growth per minute" in output
    assert "difference: -20.00 MiB per minute" in output
    assert "per generation" not in output


def test_runs_by_the_second_are_on_one_axis_of_minutes_and_nothing_stretches_it(
    leakline: Any, server: str
) -> None:
    for name, leak in (("before", 20 * MIB), ("after", 0)):
        header = RunHeader(f"seconds-{name}", "by-second", name, "second", None, STARTED)
        post_run(server, header, leak, by_the_second)
    pair = "before=seconds-before&after=seconds-after"
    page = _page(f"{server}/compare?{pair}")
    charts = [json.loads(each) for each in re.findall(r"data-chart>(.*?)</script>", page)]
    assert [chart["x_title"] for chart in charts] == ["minutes since the start"]
    last = max(x for chart in charts for line in chart["lines"] for x in line["x"])
    assert last == pytest.approx((GENERATIONS - 1) / 60)
    assert 'id="books-' not in page and 'id="sum-' not in page
    answer = json.loads(_page(f"{server}/compare/lines?{pair}&x=0s..5s"))
    assert set(answer["lines"]) == {"overlay"}


def test_what_is_read_every_ten_seconds_is_told_as_readings_and_not_as_seconds(
    leakline: Any, server: str
) -> None:
    for name, leak in (("before", 20 * MIB), ("after", 0)):
        header = RunHeader(f"tens-{name}", "by-tens", name, "second", None, STARTED)
        post_run(server, header, leak, partial(by_the_second, apart=10.0))
    seen = f"{GENERATIONS} readings in {10 * GENERATIONS - 9} seconds"
    before, after = (
        leakline("verdict", f"by-tens/{name}", "--server", server).output
        for name in ("before", "after")
    )
    assert f"after {seen}: +" in before
    assert f"over {seen}" in after
    assert f"Based on {seen}." in _page(f"{server}/runs/tens-before")
    pair = ("compare", "by-tens/before", "by-tens/after", "--server", server)
    output = leakline(*pair).output
    assert f"memory at second {10 * GENERATIONS - 10} " in output
    assert f"Compared over {seen} that both runs have" in leakline(*pair, "--markdown").output
    page = _page(f"{server}/compare?before=tens-before&after=tens-after")
    assert f"Compared over {seen} that both runs have" in page
    assert f"AT SECOND {10 * GENERATIONS - 10}" in page


def test_minutes_are_not_held_against_generations(leakline: Any, server: str) -> None:
    """A run by the minute grows by less per minute than by generation, and none of that is a fix."""
    header = RunHeader("minutes-alone", "by-time", "alone", "minute", None, STARTED)
    post_run(server, header, 0, by_the_minute)
    pair = ("app/leaking", "by-time/alone", "--server", server)
    said = leakline("compare", *pair, "--fail-on=undecided,worse")
    assert said.status == 3
    assert "failed on: undecided" in said.output
    assert (
        "undecided: one run counts generations, the other minutes; record both alike" in said.output
    )
    assert "difference:" not in said.output
    assert "\ngone:" not in said.output
    page = _page(f"{server}/compare?before=run1&after=minutes-alone")
    assert "one axis would lay a second over a generation" in page
    assert "Nothing was compared per unit" in page
    assert "0 generations that both runs have" not in page
    assert 'id="books-before"' not in page
    lines = _page(f"{server}/compare/lines?before=run1&after=minutes-alone&x=0..5")
    assert json.loads(lines)["lines"] == {}


def test_a_package_that_one_side_lacks_is_called_not_installed(leakline: Any, server: str) -> None:
    for name, environment in (
        ("without", {"packages": {}}),
        ("with", {"packages": {"iniconfig": "2.3.1"}, "commit": "abc"}),
    ):
        header = RunHeader(
            f"packages-{name}",
            "packages",
            name,
            "generation",
            None,
            STARTED,
            environment=environment,
        )
        post_run(server, header, 0)
    output = leakline("compare", "packages/without", "packages/with", "--server", server).output
    assert "environment: iniconfig not installed -> 2.3.1" in output
    assert "environment: commit not recorded -> abc" in output


def _page(address: str) -> str:
    with urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())
