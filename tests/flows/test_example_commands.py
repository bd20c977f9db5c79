"""The READMEs of the examples are true: their commands run against a real server and come out as they say.

That of `tfjs_ppo` needs TensorFlow.js: its commands are run in `tests/integrations/test_tensorflow_js.py`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.flows.conftest import Server
from tests.flows.readmes import EXAMPLES, Readme, readme, without_numbers

ROOT = Path(__file__).resolve().parents[2]
IN_PYTHON = ("dqn_fuel_breaks", "erl_trading")
WITH_A_COMPARISON = (*IN_PYTHON, "tfjs_ppo")

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


def test_every_example_has_a_readme() -> None:
    folders = {
        path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "._"
    }
    assert {*WITH_A_COMPARISON, "webhook_receiver"} == folders
    assert all((EXAMPLES / name / "README.md").is_file() for name in folders)


@pytest.mark.parametrize("example", WITH_A_COMPARISON)
def test_a_readme_shows_before_after_and_the_comparison(example: str) -> None:
    shown = readme(example)
    assert len(shown.commands) == 3
    before, after, comparison = shown.commands
    assert "before-fix" in before and "--leak" in before
    assert "after-fix" in after and "--leak" not in after
    project = example.replace("_", "-")
    assert comparison == f"leakline compare {project}/before-fix {project}/after-fix"
    assert without_numbers(shown.promised).startswith("fixed: SIZE per ")


@pytest.mark.parametrize("example", IN_PYTHON)
def test_a_readme_tells_of_every_switch_and_of_no_other(example: str) -> None:
    switches = importlib.import_module(f"examples.{example}.leaks").SWITCHES
    assert sorted(readme(example).switches()) == sorted(switches)


@pytest.mark.parametrize("example", IN_PYTHON)
def test_a_program_takes_what_its_readme_says(example: str) -> None:
    parser: Callable[[], argparse.ArgumentParser] = importlib.import_module(
        f"examples.{example}.__main__"
    )._parser
    shown = readme(example)
    for command in shown.commands[:2]:
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", f"examples.{example}"]
        assert parser().parse_args(words[3:]).project == example.replace("_", "-")
    options = {option for action in parser()._actions for option in action.option_strings}
    named = set(re.findall(r"(?<![-\w])--(?!story\b)[a-z]+(?:-[a-z]+)*", shown.text))
    assert named <= options


@pytest.mark.leaks
@pytest.mark.parametrize("example", IN_PYTHON)
def test_the_commands_come_out_as_the_readme_says(
    server: Server, tmp_path: Path, example: str
) -> None:
    shown: Readme = readme(example)
    said = shown.run(server.address, ROOT, LEAKLINE_DIR=str(tmp_path))
    assert without_numbers(said.splitlines()[0]) == without_numbers(shown.promised)
    assert re.search(r"^gone: ", said, re.M), said
