"""`--fail-on`, `--junit`, `--markdown` and `--json` of the commands that read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import leakline as client
from leakline.report.junit import Case, junit


def suite(path: Path) -> Any:
    (found,) = ElementTree.parse(path).getroot()
    return found


def test_a_verdict_is_a_gate(leakline: Any, server: str) -> None:
    closed = leakline("verdict", "app/leaking", "--server", server, "--fail-on", "leaking")
    assert (closed.status, closed.output.splitlines()[-1]) == (3, "failed on: leaking")
    assert leakline("verdict", "app/fixed", "--server", server, "--fail-on", "leaking").status == 0
    assert leakline("verdict", "app/leaking", "--server", server).status == 0
    wrong = leakline("verdict", "app/leaking", "--server", server, "--fail-on", "worse")
    assert (wrong.status, "failed, refuted" in wrong.errors) == (2, True)


def test_a_leak_is_a_failed_test_case(leakline: Any, server: str, tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "leaks.xml"
    arguments = ("--server", server, "--fail-on", "leaking,worse", "--junit", str(file))
    assert leakline("compare", "run2", "run1", *arguments).status == 3
    found = suite(file)
    assert (found.get("tests"), found.get("failures")) == ("2", "2")
    case = found.findall("testcase")[0]
    assert (case.get("classname"), case.get("name")) == ("leakline.compare", "leaking")
    failure = case.find("failure")
    assert "app.Environment" in failure.text
    figures = {each.get("name"): each.get("value") for each in found.iter("property")}
    assert float(figures["growth_bytes_per_generation.after"]) == 20 * 2**20
    assert figures["outcome"] == "worse"


def test_a_fix_is_a_test_case_that_passed(leakline: Any, server: str, tmp_path: Path) -> None:
    file = tmp_path / "leaks.xml"
    said = leakline("compare", "run1", "run2", "--server", server, "--junit", str(file))
    assert said.status == 0
    assert (suite(file).get("tests"), suite(file).get("failures")) == ("1", "0")


def test_a_file_alone_closes_no_gate(leakline: Any, server: str, tmp_path: Path) -> None:
    file = tmp_path / "leaks.xml"
    said = leakline("verdict", "app/leaking", "--server", server, "--junit", str(file))
    assert said.status == 0
    assert "failed on" not in said.output
    assert suite(file).get("failures") == "1"


def test_a_file_that_cannot_be_written_is_named(leakline: Any, server: str, tmp_path: Path) -> None:
    said = leakline("verdict", "app/leaking", "--server", server, "--junit", str(tmp_path))
    assert said.status == 1
    assert str(tmp_path) in said.errors


def test_what_xml_has_no_place_for_is_left_out() -> None:
    text = junit("s", [Case("leaking", 'a <b> & "c" \x00\x1b', ["\ud800"])], {"x": None})
    (found,) = ElementTree.fromstring(text)
    (case,) = found
    assert case[0].text.startswith('a <b> & "c"')


def test_a_verdict_in_markdown(leakline: Any, server: str) -> None:
    said = leakline("verdict", "app/leaking", "--markdown", "--server", server)
    assert said.output.startswith("# app / leaking\n\n**Suspected.** evaluate keeps 16 ")
    assert "## The books" in said.output
    assert f"{server}/runs/run1" in said.output.splitlines()[-1]


@pytest.mark.parametrize("command", ["verdict", "compare"])
def test_json_and_markdown_are_two_forms(leakline: Any, command: str) -> None:
    assert leakline(command, "a", "b", "--json", "--markdown").status == 2


def test_a_report_is_there_for_programs(leakline: Any, tmp_path: Path) -> None:
    run = client.init(name="off", mode="offline", quiet=True, directory=tmp_path)
    for number in range(3):
        with run.generation(number), run.phase("train"):
            pass
    run.finish()
    (item,) = json.loads(leakline("report", str(tmp_path), "--json").output)["items"]
    assert (item["name"], item["verdict"]["generations"]) == ("off", 3)
    assert item["books"]["lines"][0]["name"] == "train"
