from __future__ import annotations

from typing import Any

import pytest

from leakline.cli import COMMANDS as ALL

COMMANDS = (("runs",), ("verdict", "app/leaking"), ("compare", "run1", "run2"), ("top", "run1"))


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_server_it_says_how_to_start_one(
    leakline: Any, nowhere: str, command: tuple[str, ...]
) -> None:
    said = leakline(*command, "--server", nowhere)
    assert said.status == 1
    assert said.output == ""
    (line,) = said.errors.splitlines()
    assert nowhere in line
    assert "leakline serve" in line


@pytest.mark.parametrize("run", ["app/nobody", "nobody/leaking", "unknown"])
def test_an_unknown_run_is_named(leakline: Any, server: str, run: str) -> None:
    said = leakline("verdict", run, "--server", server)
    assert said.status == 1
    (line,) = said.errors.splitlines()
    assert run.rpartition("/")[2] in line


def test_a_part_of_a_name_is_not_the_run(leakline: Any, server: str) -> None:
    assert leakline("verdict", "app/leak", "--server", server).status == 1


@pytest.mark.parametrize("wrong", ["leaky", "leaking,bad", ""])
def test_an_unknown_condition_is_wrong_use(leakline: Any, server: str, wrong: str) -> None:
    said = leakline("compare", "run1", "run2", "--server", server, f"--fail-on={wrong}")
    assert said.status == 2
    assert "leaking, fixed, improved" in said.errors


def test_a_wrong_address_is_wrong_use(leakline: Any) -> None:
    said = leakline("runs", "--server", "nonsense")
    assert said.status == 2
    assert "'nonsense'" in said.errors


@pytest.mark.parametrize("command", ALL)
def test_help_shows_an_example(leakline: Any, command: str) -> None:
    said = leakline(command, "--help")
    assert said.status == 0
    assert f"leakline {command}" in said.output.partition("example: ")[2].partition("\n\n")[0]
