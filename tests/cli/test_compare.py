"""`leakline compare`: growth, promises and gates of two runs, as text, JSON and Markdown."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from tests.cli.conftest import GENERATIONS, MIB, by_the_minute, by_the_second, page_at, post_run

GATE = "--fail-on=leaking,worse"


def post_pair(server: str, project: str, unit: str, counted: Any) -> tuple[str, str]:
    for name, leak in (("before", 20 * MIB), ("after", 0)):
        run = f"{project}-{name}"
        post_run(server, run, f"{project}/{name}", leak, unit=unit, counted=counted)
    return f"{project}/before", f"{project}/after"


def test_a_leak_after_closes_the_gate(ask: Any) -> None:
    said = ask("compare", "app/fixed", "app/leaking", GATE)
    assert said.status == 3
    assert "failed on: leaking" in said.output
    assert ask("compare", "app/fixed", "app/leaking").status == 0


def test_a_leak_that_stays_closes_the_gate(ask: Any) -> None:
    assert ask("compare", "run1", "run1", GATE).status == 3


def test_a_fix_passes_and_is_told_in_percent(ask: Any) -> None:
    said = ask("compare", "app/leaking", "app/fixed", GATE)
    assert said.status == 0
    assert said.output.startswith("fixed: ")
    # The word stands before the sentence, which need not repeat it.
    assert "Fixed" not in said.output.splitlines()[0]
    assert "-100.0 %" in said.output


def test_the_json_alone_is_printed(ask: Any) -> None:
    said = ask("compare", "run2", "run1", "--json", GATE)
    assert json.loads(said.output)["after"] == "run1"
    assert said.status == 3


def test_a_promise_that_the_run_after_breaks_closes_the_gate(ask: Any) -> None:
    said = ask("compare", "run2", "run1", "--fail-on=refuted")
    assert said.status == 3
    assert "failed on: refuted" in said.output
    assert ask("compare", "run1", "run2", "--fail-on=refuted").status == 0


def test_promises_and_growth_of_the_run_after_are_told(ask: Any) -> None:
    output = ask("compare", "run1", "run2").output
    assert "let them go (app.py:7): growth per generation\n      holds: " in output
    assert "broken" not in output
    assert "difference: -20.00 MiB per generation" in output


def test_runs_by_the_minute_are_compared_by_the_minute(ask: Any, server: str) -> None:
    output = ask("compare", *post_pair(server, "by-time", "minute", by_the_minute)).output
    assert "growth per minute" in output
    assert "difference: -20.00 MiB per minute" in output
    assert "per generation" not in output


def test_runs_by_the_second_are_on_one_axis_of_minutes_and_nothing_stretches_it(
    server: str,
) -> None:
    post_pair(server, "by-second", "second", by_the_second)
    pair = "before=by-second-before&after=by-second-after"
    page = page_at(f"{server}/compare?{pair}")
    charts = [json.loads(each) for each in re.findall(r"data-chart>(.*?)</script>", page)]
    assert [chart["x_title"] for chart in charts] == ["minutes since the start"]
    last = max(x for chart in charts for line in chart["lines"] for x in line["x"])
    assert last == pytest.approx((GENERATIONS - 1) / 60)
    assert 'id="books-' not in page and 'id="sum-' not in page
    answer = json.loads(page_at(f"{server}/compare/lines?{pair}&x=0s..5s"))
    assert set(answer["lines"]) == {"overlay"}


def test_what_is_read_every_ten_seconds_is_told_as_readings_and_not_as_seconds(
    ask: Any, server: str
) -> None:
    pair = post_pair(server, "by-tens", "second", partial(by_the_second, apart=10.0))
    seen = f"{GENERATIONS} readings in {10 * GENERATIONS - 9} seconds"
    before, after = (ask("verdict", name).output for name in pair)
    assert f"after {seen}: +" in before
    assert f"over {seen}" in after
    assert f"Based on {seen}." in page_at(f"{server}/runs/by-tens-before")
    assert f"memory at second {10 * GENERATIONS - 10} " in ask("compare", *pair).output
    told = ask("compare", *pair, "--markdown").output
    page = page_at(f"{server}/compare?before=by-tens-before&after=by-tens-after")
    assert all(f"Compared over {seen} that both runs have" in each for each in (told, page))
    assert f"AT SECOND {10 * GENERATIONS - 10}" in page


def test_minutes_are_not_held_against_generations(ask: Any, server: str) -> None:
    """A run by the minute grows by less per minute than by generation, and none of that is a fix."""
    post_run(server, "alone", "by-time/alone", 0, unit="minute", counted=by_the_minute)
    said = ask("compare", "app/leaking", "by-time/alone", "--fail-on=undecided,worse")
    assert said.status == 3
    assert "failed on: undecided" in said.output
    why = "undecided: one run counts generations, the other minutes; record both alike"
    assert why in said.output
    assert "difference:" not in said.output and "\ngone:" not in said.output
    page = page_at(f"{server}/compare?before=run1&after=alone")
    assert "one axis would lay a second over a generation" in page
    assert "Nothing was compared per unit" in page
    assert "0 generations that both runs have" not in page and 'id="books-before"' not in page
    lines = page_at(f"{server}/compare/lines?before=run1&after=alone&x=0..5")
    assert json.loads(lines)["lines"] == {}


def test_a_package_that_one_side_lacks_is_called_not_installed(ask: Any, server: str) -> None:
    recorded = {"packages": {"iniconfig": "2.3.1"}, "commit": "abc"}
    post_run(server, "packages-without", "packages/without", 0, environment={"packages": {}})
    post_run(server, "packages-with", "packages/with", 0, environment=recorded)
    output = ask("compare", "packages/without", "packages/with").output
    assert "environment: iniconfig not installed -> 2.3.1" in output
    assert "environment: commit not recorded -> abc" in output


def cells(lines: list[str], head: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f"| {head} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_comparison_becomes_markdown(ask: Any, server: str) -> None:
    said = ask("compare", "app/leaking", "app/fixed", "--markdown")
    assert said.status == 0
    lines = said.output.splitlines()
    assert lines[0] == "# leaking → fixed"
    assert lines[2].startswith("**Fixed**: ")
    _, before, _, change = cells(lines, "growth per generation")
    assert "+20.00 MiB" in before and "-100.0 %" in change
    for head in ("peak memory", "memory after"):
        name, before, after, change = cells(lines, head)
        assert before.endswith("iB") and after.endswith("iB") and change.startswith("-")
    assert re.fullmatch(r"memory after \d+ generations", name)
    assert cells(lines, "seconds per generation")[1:] == ["2.00 s", "2.00 s", "0.0 %"]
    gone = [line for line in lines if line.startswith("- Gone: ")]
    assert any(" in `evaluate`: `app.Environment`" in line for line in gone)
    assert "- New: nothing" in lines
    assert f"{server}/compare?before=run1&after=run2" in lines[-1]


def test_a_run_without_generations_is_told_by_its_time(ask: Any, server: str) -> None:
    post_run(server, "told", "by-time/told", 0, unit="minute", counted=by_the_minute)
    output = ask("compare", "app/fixed", "by-time/told", "--markdown").output
    count, unit = cells(output.splitlines(), "progress")[2].split()
    assert unit == "minutes" and int(count.replace(",", "")) >= GENERATIONS - 1
    assert "The two runs have no generations in common." in output
    assert "Compared over" not in output


def test_the_gate_stays_closed_and_says_nothing_between_the_lines(ask: Any) -> None:
    said = ask("compare", "app/fixed", "app/leaking", "--markdown", "--fail-on", "leaking")
    assert said.status == 3
    assert "failed on" not in said.output


@pytest.mark.parametrize("command", [("verdict", "a"), ("compare", "a", "b")], ids=lambda c: c[0])
def test_json_and_markdown_are_two_forms(leakline: Any, command: tuple[str, ...]) -> None:
    said = leakline(*command, "--json", "--markdown")
    assert (said.status, "not allowed with" in said.errors) == (2, True)
