"""Output of `leakline runs`, `leakline verdict` and `leakline report` in each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import (
    GENERATIONS,
    MIB,
    by_the_minute,
    by_the_second,
    post_run,
    wait_for_verdict,
)

import leakline as client
from leakline.cli.server_queries import Asker

# -- runs --------------------------------------------------------------------------------------------------


def test_the_newest_run_comes_first_with_aligned_columns(ask: Any, server: str) -> None:
    said = ask("runs", "--project", "nobody")
    assert (said.status, said.output) == (0, f"no runs on {server}\n")
    lines = ask("runs", "--project", "app").output.splitlines()
    heads = zip(lines, ("ID", "run2", "run1", "run0"), strict=True)
    assert len({line.index(word) for line, word in heads}) == 1
    assert "app/fixed" in lines[1] and "14/25" in lines[1]
    assert lines[2].startswith(("suspected", "confirmed")) and "+20.00 MiB" in lines[2]
    one = ask("runs", "--project", "app", "--status", lines[2].split()[0]).output
    assert "run1" in one and "run2" not in one


def test_growth_shows_its_unit(ask: Any, server: str) -> None:
    for unit, counted in (("second", by_the_second), ("minute", by_the_minute), ("epoch", tuple)):
        post_run(server, f"per-{unit}", f"per-what/{unit}", 20 * MIB, unit=unit, counted=counted)
    head, *lines = ask("runs", "--project", "per-what").output.splitlines()
    for line in lines:
        unit = line.split("per-what/")[1].split()[0]
        assert f"+20.00 MiB per {unit}  " in line
        assert line.index("+20.00") == head.index("GROWTH")


# -- verdict -----------------------------------------------------------------------------------------------


def test_a_verdict_says_where_what_how_much_and_since_when(ask: Any, server: str) -> None:
    said = ask("verdict", "app/fixed")
    assert said.status == 0
    assert said.output.startswith("ok: ") and "1. " not in said.output
    output = ask("verdict", "app/leaking").output
    for words in ("where     evaluate", "app.Environment", "+20.00 MiB", "since generation"):
        assert words in output
    verdict = json.loads(ask("verdict", "run1", "--json").output)
    assert (verdict["run"], verdict["findings"][0]["phase"]) == ("run1", "evaluate")
    output = ask("verdict", "app/leaking", "--markdown").output
    assert output.startswith("# app / leaking\n\n**Suspected.** evaluate keeps 16 ")
    assert "## Memory by phase" in output
    assert f"{server}/runs/run1" in output.splitlines()[-1]


def lines_below(output: str, heading: str) -> list[str]:
    return output[output.index(heading) :].splitlines()[1:]


def test_each_promise_of_a_fix_is_printed(ask: Any) -> None:
    shown = lines_below(ask("verdict", "app/leaking").output, "expectations:")
    at = shown.index("   let them go (app.py:7): growth per generation")
    assert shown[at + 1].startswith("      broken: Memory grows by 20.00 MiB per generation")
    assert shown[at + 1].endswith("20 times the 1.00 MiB promised.")
    assert shown[at + 2 : at + 6] == [
        "   let them go (app.py:7): growth in train",
        "      undecided: train never ran, so the promise was not tested.",
        "   let them go (app.py:7): generations to complete",
        "      holds: Completed 14 generations; the fix promised 14.",
    ]


def test_a_verdict_of_a_server_that_checks_no_promises_has_no_expectations(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = Asker.get
    later = {
        "checklist", "assertions", "settled_at_generation", "forecast_score", "processes", "duration",
    }  # fmt: skip

    def older(self: Asker, path: str, query: Any = None) -> Any:
        return {k: v for k, v in get(self, path, query).items() if k not in later}

    monkeypatch.setattr(Asker, "get", older)
    said = ask("verdict", "run1")
    assert said.status == 0
    assert "expectations:" not in said.output


def test_the_checklist_prints_a_mark_for_each_question(ask: Any) -> None:
    shown = lines_below(ask("verdict", "app/leaking").output, "checklist:")
    assert shown[0] == "   [-] GPU memory does not keep growing: not measured"
    assert shown[2] == "   [!] Memory does not keep growing: failed"
    assert "Environment" in shown[3]
    assert shown[4] == "   [x] The run passes the point where it died before: done"
    assert (
        shown[5].strip() == "Completed 14 generations, compared with the 14 that the fix promised."
    )


def test_each_band_and_budget_is_printed(ask: Any) -> None:
    shown = lines_below(ask("verdict", "app/leaking").output, "expectations:")
    assert shown[0] == "   process.rss_bytes, generations 0 to 4: up to 460.00 MiB"
    assert shown[1] == (
        "      broken: Above in generations 3 to 4 by up to 40.00 MiB (generation 4); 3 of 5 within bounds."
    )
    assert shown[2] == "   budget of the whole run"
    assert shown[3].startswith("      more than normal: Memory has grown by 260.00 MiB since")


def test_settling_and_forecast_accuracy_are_printed(ask: Any) -> None:
    fixed = ask("verdict", "app/fixed").output
    assert "Memory has been flat since generation 0." in fixed and "orecast" not in fixed
    leaking = ask("verdict", "app/leaking").output
    assert "2 forecasts could be checked" in leaking and "flat" not in leaking


def test_the_rank_that_leaks_is_named_in_every_form(ask: Any, server: str) -> None:
    post_run(server, "two-ranks", "ranks/two", 0, 20 * MIB, total=GENERATIONS)
    wait_for_verdict(server, "two-ranks", lambda found: bool(found["findings"]))
    lines = ask("verdict", "ranks/two").output.splitlines()
    assert lines[0].endswith("(rank 1 main)")
    assert "   where     evaluate, rank 1 main" in lines
    markdown = ask("verdict", "ranks/two", "--markdown").output
    assert "| where | `evaluate`, 100 % of the growth, `rank 1 main` |" in markdown
    assert "- where: `evaluate`, `rank 1 main`" in markdown


def test_a_verdict_names_its_run_and_how_it_ended(ask: Any, server: str) -> None:
    output = ask("verdict", "run1").output
    assert f"\napp/leaking, finished\n{server}/runs/run1\n" in output
    post_run(server, "died", "short/died", unit="minute", state="failed", reason="ValueError")
    output = ask("verdict", "short/died").output
    assert output.startswith("Failed (ValueError) before the first minute ended\n")
    assert "\nshort/died, failed: ValueError\n" in output


# -- report ------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    run = client.init("erl", name="off|line", mode="offline", quiet=True, directory=tmp_path)
    for generation in range(3):
        with run.generation(generation), run.phase("train"):
            pass
    run.finish()
    return str(tmp_path)


def test_a_recording_is_printed_as_markdown_without_a_server(leakline: Any, recorded: str) -> None:
    said = leakline("report", recorded, "--markdown")
    assert said.status == 0
    assert said.output.startswith(
        "# erl / off\\|line\n\n**Learning.** Not judged: the run ended after 3 generations"
    )
    assert "## Memory by phase" in said.output and "| `train` |" in said.output
    assert "by Leakline 0." in said.output.splitlines()[-1]
    # There is no web address to search for: types may be named after a protocol.
    assert "://" not in said.output


def test_a_report_is_available_as_json(leakline: Any, recorded: str) -> None:
    (item,) = json.loads(leakline("report", recorded, "--json").output)["items"]
    assert (item["name"], item["verdict"]["generations"]) == ("off|line", 3)
    assert item["phases"]["lines"][0]["name"] == "train"
    said = leakline("report", "/nowhere", "--markdown")
    assert (said.status, "does not exist" in said.error) == (1, True)
