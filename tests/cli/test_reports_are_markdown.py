"""`leakline report --markdown` and `leakline compare --markdown`: what goes with an issue or a change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import GENERATIONS, STARTED, by_the_minute, post_run

import leakline as client
from leakline.snapshot import RunHeader


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    run = client.init(
        project="erl", name="off|line", mode="offline", quiet=True, directory=tmp_path
    )
    for generation in range(3):
        run.generation(generation)
        with run.phase("train"):
            pass
    run.finish()
    return tmp_path


def test_where_there_is_no_recording_it_says_so(leakline: Any, tmp_path: Path) -> None:
    said = leakline("report", str(tmp_path / "nowhere"), "--markdown")
    assert said.status != 0
    assert "does not exist" in said.errors


def test_a_report_in_markdown_has_no_label_to_begin_at(leakline: Any, recorded: Path) -> None:
    said = leakline("report", str(recorded), "--markdown", "--since", "baseline")
    assert said.status == 2
    assert "not allowed with" in said.errors


def test_a_recording_becomes_markdown_without_a_server(leakline: Any, recorded: Path) -> None:
    said = leakline("report", str(recorded), "--markdown")
    assert said.status == 0
    assert said.output.startswith(
        "# erl / off\\|line\n\n**Learning.** Not judged: the run ended after 3 generations"
    )
    assert "## The books" in said.output
    assert "| `train` |" in said.output
    assert "by Leakline 0." in said.output.splitlines()[-1]
    # No address: types may be named after what speaks it.
    assert "://" not in said.output


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_comparison_becomes_markdown(leakline: Any, server: str) -> None:
    said = leakline("compare", "app/leaking", "app/fixed", "--markdown", "--server", server)
    assert said.status == 0
    lines = said.output.splitlines()
    assert lines[0] == "# leaking → fixed"
    assert lines[2].startswith("**Fixed**: ")
    growth = next(line for line in lines if line.startswith("| growth per generation |"))
    assert growth.count("|") == 5 and "+20.00 MiB" in growth and "-100.0 %" in growth
    (peak,) = [cells(line) for line in lines if line.startswith("| peak memory |")]
    assert peak[1].endswith("iB") and peak[2].endswith("iB") and peak[3].startswith("-")
    (after,) = [cells(line) for line in lines if line.startswith("| memory after ")]
    assert re.fullmatch(r"memory after \d+ generations", after[0])
    assert after[1].endswith("iB") and after[2].endswith("iB") and after[3].startswith("-")
    (seconds,) = [cells(line) for line in lines if line.startswith("| seconds per generation |")]
    assert seconds[1:] == ["2.00 s", "2.00 s", "+0.0 %"]
    gone = [line for line in lines if line.startswith("- Gone: ")]
    assert any(" in `evaluate`: `app.Environment`" in line for line in gone)
    assert "- New: nothing" in lines
    assert f"{server}/compare?before=run1&after=run2" in lines[-1]


def test_a_run_without_generations_is_told_by_its_time(leakline: Any, server: str) -> None:
    header = RunHeader("minutes-told", "by-time", "told", "minute", None, STARTED)
    post_run(server, header, 0, by_the_minute)
    said = leakline("compare", "app/fixed", "by-time/told", "--markdown", "--server", server)
    (progress,) = [
        cells(line) for line in said.output.splitlines() if line.startswith("| progress |")
    ]
    count, unit = progress[2].split()
    assert unit == "minutes" and int(count.replace(",", "")) >= GENERATIONS - 1
    assert "The two runs have no generations in common." in said.output
    assert "Compared over" not in said.output


def test_the_gate_stays_closed_and_says_nothing_between_the_lines(
    leakline: Any, server: str
) -> None:
    gate = ("--fail-on", "leaking", "--server", server)
    said = leakline("compare", "app/fixed", "app/leaking", "--markdown", *gate)
    assert said.status == 3
    assert "failed on" not in said.output


def test_one_answer_has_one_form(leakline: Any, server: str) -> None:
    said = leakline("compare", "run1", "run2", "--markdown", "--json", "--server", server)
    assert said.status == 2
