from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakline.cli import drill
from leakline.drill.kinds import HEALTHY, KINDS, LEAKING


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("leaky",), "leakline drill --list"),
        (("cycles", "--all"), "--all"),
        (("cycles", "--generations", "0"), "from 1 to"),
        (("cycles", "--generations", "100000"), "from 1 to"),
        (("cycles", "--generations", "many"), "many"),
        (("late_start", "--generations", "12"), "begins in generation 12: train 13 or more"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(
    leakline: Any, arguments: tuple[str, ...], said: str
) -> None:
    answer = leakline("drill", *arguments)
    assert answer.status == 2
    assert answer.output == ""
    assert said in answer.errors.splitlines()[-1]


def test_what_cannot_be_planted_here_says_in_one_line_how_it_could(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package that is nowhere stands for torch on a machine without it.
    graph = replace(KINDS["graph"], needs=("torch_that_is_not_here",))
    monkeypatch.setitem(drill.KINDS, "graph", graph)
    said = leakline("drill", "graph")
    assert said.status == 1
    (line,) = said.errors.splitlines()
    assert "pip install torch_that_is_not_here" in line


def test_without_the_server_it_says_in_one_line_how_to_install_it(
    leakline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What comes first on the path stands for a package of the server that is not there.
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here', name='uvicorn')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = leakline("drill", "flat")
    assert said.status == 1
    (line,) = said.errors.splitlines()
    assert "did not start" in line
    assert "pip install 'leakline[server]'" in line


def test_the_list_names_every_kind_and_what_it_needs(leakline: Any) -> None:
    said = leakline("drill", "--list")
    assert said.status == 0
    for kind in KINDS.values():
        (line,) = [one for one in said.output.splitlines() if one.split()[:1] == [kind.name]]
        assert kind.summary in line
        assert all(need in line for need in kind.needs)


def test_there_are_twelve_leaking_kinds_and_six_healthy_ones_at_least() -> None:
    assert len(LEAKING) >= 12
    assert len(HEALTHY) >= 6


def test_a_healthy_kind_has_no_answer_that_is_right() -> None:
    assert not [kind.name for kind in HEALTHY.values() if kind.leaks or kind.names]


def test_help_shows_an_example(leakline: Any) -> None:
    said = leakline("drill", "--help")
    assert said.status == 0
    assert "example: leakline drill" in said.output


def test_the_kinds_are_listed_for_programs_too(leakline: Any) -> None:
    said = leakline("drill", "--list", "--json")
    assert said.status == 0
    listed = {each["kind"]: each for each in json.loads(said.output)}
    assert listed.keys() == KINDS.keys()
    assert {name for name, each in listed.items() if each["leaks"]} == LEAKING.keys()
