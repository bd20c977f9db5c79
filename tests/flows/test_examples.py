"""Docstrings of leak switches state the measured findings, and the README commands of the examples work.

The commands of `tfjs_ppo` need TensorFlow.js: `tests/integrations/test_tensorflow_js.py` runs them.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.flows.conftest import Server
from tests.flows.readmes import EXAMPLES, Readme, readme, section_of, without_numbers
from tests.leaks.catalogue import EXAMPLES as CASES
from tests.leaks.catalogue import MIB

ROOT = EXAMPLES.parent
# The example, and its unit of a generation.
IN_PYTHON = {"dqn_fuel_breaks": "episode", "erl_trading": "generation"}
WITH_A_COMPARISON = (*IN_PYTHON, "tfjs_ppo")

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


def docstrings_of(example: str) -> dict[str, str]:
    """Return the text after each attribute of `Leaks`."""
    tree = ast.parse((EXAMPLES / example / "leaks.py").read_text())
    (leaks,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Leaks"]
    found = {}
    for field, text in zip(leaks.body, leaks.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


@pytest.mark.parametrize("example", IN_PYTHON)
def test_the_docstring_of_each_switch_states_the_measured_finding(example: str) -> None:
    texts, unit = docstrings_of(example), IN_PYTHON[example]
    assert texts.keys() == CASES[example].keys()
    for leak, case in CASES[example].items():
        wanted = [] if case.planted else ["Right: nothing."]
        for right in case.planted:
            assert any(name in texts[leak] for name in (*right.types, *(right.holders or ()))), leak
            wanted += [
                f"kind {right.kinds[0]}", f"phase {right.phases[0]}", f"{right.count:g} ",
                f"{round(case.bytes_of(right) / MIB, 2):g} MiB per {unit}", f"from {unit} {right.first[0]}",
            ]  # fmt: skip
        assert [words for words in wanted if words not in texts[leak]] == [], leak


def test_every_example_has_a_section_in_the_readme() -> None:
    folders = {
        path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "._"
    }
    assert {*WITH_A_COMPARISON, "webhook_receiver"} == folders
    assert all(section_of(name) for name in folders)


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
def test_a_readme_lists_exactly_the_switches(example: str) -> None:
    switches = importlib.import_module(f"examples.{example}.leaks").SWITCHES
    assert sorted(readme(example).switches()) == sorted(switches)


@pytest.mark.parametrize("example", IN_PYTHON)
def test_a_program_accepts_the_options_in_its_readme(example: str) -> None:
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
def test_the_commands_print_what_the_readme_shows(
    server: Server, tmp_path: Path, example: str
) -> None:
    shown: Readme = readme(example)
    said = shown.run(server.address, ROOT, LEAKLINE_DIR=str(tmp_path))
    assert without_numbers(said.splitlines()[0]) == without_numbers(shown.promised)
    assert re.search(r"^ *Gone +(?!nothing)", said, re.M), said
