"""`leakline compare`: growth, promises and gates of two runs as text, JSON and Markdown."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from tests.cli.conftest import GENERATIONS, MIB, by_the_minute, by_the_second, page_at, post_run


def post_pair(server: str, project: str, unit: str, counted: Any) -> tuple[str, str]:
    for name, leak in (("before", 20 * MIB), ("after", 0)):
        run = f"{project}-{name}"
        post_run(server, run, f"{project}/{name}", leak, unit=unit, counted=counted)
    return f"{project}/before", f"{project}/after"


@pytest.mark.parametrize(
    ("before", "after", "conditions", "failed"),
    [
        ("app/fixed", "app/leaking", "leaking,worse", "leaking, worse"),
        # The leak remains, and the later run has promises.
        ("run1", "run1", "leaking,worse", "leaking"),
        ("run2", "run1", "refuted", "refuted"), ("run1", "run2", "refuted", ""),
        ("app/fixed", "app/leaking", "", ""),
    ],
)  # fmt: skip
def test_a_gate_fails_only_on_its_conditions(
    ask: Any, before: str, after: str, conditions: str, failed: str
) -> None:
    gate = [f"--fail-on={conditions}"] if conditions else []
    said = ask("compare", before, after, *gate)
    assert said.status == (3 if failed else 0)
    assert (f"the gate failed on: {failed}" in said.output.splitlines()) == bool(failed)
    if failed:
        assert "failed on" not in ask("compare", before, after, *gate, "--markdown").output
        as_json = ask("compare", before, after, *gate, "--json")
        assert (as_json.status, json.loads(as_json.output)["after"]) == (3, "run1")


def test_a_fix_passes_and_shows_its_percentage(ask: Any) -> None:
    said = ask("compare", "app/leaking", "app/fixed", "--fail-on=leaking,worse")
    assert said.status == 0
    assert said.output.startswith("fixed: ")
    # The status precedes the sentence, which does not repeat it.
    assert "Fixed" not in said.output.splitlines()[0]
    assert "-100.0 %" in said.output


def test_promises_and_growth_of_the_run_after_are_printed(ask: Any) -> None:
    output = ask("compare", "run1", "run2").output
    assert "let them go (app.py:7): growth per generation\n      holds: " in output
    assert "broken" not in output
    assert "the difference is -20.00 MiB per generation" in output


def test_runs_by_the_second_share_an_axis_of_minutes(
    server: str,
) -> None:
    post_pair(server, "by-second", "second", by_the_second)
    pair = "before=by-second-before&after=by-second-after"
    page = page_at(f"{server}/compare?{pair}")
    charts = [json.loads(each) for each in re.findall(r"data-chart>(.*?)</script>", page)]
    assert [chart["x_title"] for chart in charts] == ["minutes since the start"]
    last = max(x for chart in charts for line in chart["lines"] for x in line["x"])
    assert last == pytest.approx((GENERATIONS - 1) / 60)
    assert 'id="phases-' not in page and 'id="sum-' not in page
    answer = json.loads(page_at(f"{server}/compare/lines?{pair}&x=0s..5s"))
    assert set(answer["lines"]) == {"overlay"}


def test_readings_every_ten_seconds_are_not_printed_as_seconds(ask: Any, server: str) -> None:
    pair = post_pair(server, "by-tens", "second", partial(by_the_second, apart=10.0))
    seen = f"{GENERATIONS} readings in {10 * GENERATIONS - 9} seconds"
    before, after = (ask("verdict", name).output for name in pair)
    assert f"after {seen}: +" in before
    assert f"over {seen}" in after
    assert f"Based on {seen}." in page_at(f"{server}/runs/by-tens-before")
    assert f"memory at second {10 * GENERATIONS - 10} " in ask("compare", *pair).output
    printed = ask("compare", *pair, "--markdown").output
    page = page_at(f"{server}/compare?before=by-tens-before&after=by-tens-after")
    assert all(f"Compared over {seen} that both runs have" in each for each in (printed, page))
    assert f"AT SECOND {10 * GENERATIONS - 10}" in page
    assert "seconds per second" not in printed


def test_runs_by_minute_and_by_generation_are_not_compared(ask: Any, server: str) -> None:
    # Growth per minute is smaller than growth per generation, and that is not a fix.
    post_run(server, "alone", "by-time/alone", 0, unit="minute", counted=by_the_minute)
    said = ask("compare", "app/leaking", "by-time/alone", "--fail-on=undecided,worse")
    assert said.status == 3
    assert "failed on: undecided" in said.output
    why = "undecided: one run is counted in generations, the other in minutes; record both runs the same way"
    assert why in said.output
    assert "the difference is" not in said.output and "Gone        nothing" in said.output
    page = page_at(f"{server}/compare?before=run1&after=alone")
    assert "they cannot share an axis" in page
    assert "Nothing was compared per unit" in page
    assert "0 generations that both runs have" not in page and 'id="phases-before"' not in page
    lines = page_at(f"{server}/compare/lines?before=run1&after=alone&x=0..5")
    assert json.loads(lines)["lines"] == {}


def test_a_package_missing_in_one_run_is_called_not_installed(ask: Any, server: str) -> None:
    recorded = {"packages": {"iniconfig": "2.3.1"}, "commit": "abc"}
    post_run(server, "packages-without", "packages/without", 0, environment={"packages": {}})
    post_run(server, "packages-with", "packages/with", 0, environment=recorded)
    pair = ("packages/without", "packages/with")
    output = ask("compare", *pair).output.splitlines()
    assert ["iniconfig", "not", "installed", "2.3.1"] in [line.split() for line in output]
    assert ["commit", "not", "recorded", "abc"] in [line.split() for line in output]
    output = ask("compare", *pair, "--markdown").output.splitlines()
    assert "| `iniconfig` | not installed | `2.3.1` |" in output
    assert "| `commit` | not recorded | `abc` |" in output


def cells(lines: list[str], head: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f"| {head} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_comparison_is_printed_as_markdown(ask: Any, server: str) -> None:
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


def test_a_run_without_generations_is_described_by_its_time(ask: Any, server: str) -> None:
    post_run(server, "by-time", "by-time/short", 0, unit="minute", counted=by_the_minute)
    output = ask("compare", "app/fixed", "by-time/short", "--markdown").output
    # It ended when the server received its end, long after its last snapshot.
    assert re.fullmatch(r"\d+ d \d+ h", cells(output.splitlines(), "progress")[2])
    assert "The two runs have no generations in common." in output
    assert "Compared over" not in output
