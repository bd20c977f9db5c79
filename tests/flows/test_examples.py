"""The docstrings of the leak switches say what the table says, which was measured."""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
# The example, and what it calls its generation.
EXAMPLES = {"erl_trading": "generation", "dqn_fuel_breaks": "episode"}


@dataclass(frozen=True)
class Written:
    docstrings: dict[str, str]
    answers: dict[str, Any]
    unit: str


def _docstrings(path: Path) -> dict[str, str]:
    """Of the attributes of `Leaks`: the text behind each."""
    tree = ast.parse(path.read_text())
    (leaks,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Leaks"]
    found = {}
    for field, text in zip(leaks.body, leaks.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _written(example: str, unit: str) -> Written:
    answers = importlib.import_module(f"examples.{example}.leaks").RIGHT_ANSWERS
    return Written(_docstrings(ROOT / "examples" / example / "leaks.py"), answers, unit)


WRITTEN = {example: _written(example, unit) for example, unit in EXAMPLES.items()}


@pytest.mark.parametrize("example", WRITTEN)
def test_every_switch_has_both(example: str) -> None:
    assert set(WRITTEN[example].docstrings) == set(WRITTEN[example].answers)


@pytest.mark.parametrize(
    ("example", "leak"),
    [(example, leak) for example in WRITTEN for leak in WRITTEN[example].answers],
)
def test_the_docstring_says_the_right_answer(example: str, leak: str) -> None:
    written = WRITTEN[example]
    text, right = written.docstrings[leak], written.answers[leak]
    if right.kind is None:
        assert "Right: nothing." in text
        return
    assert f"kind {right.kind}" in text
    assert f"phase {right.phase}" in text
    assert any(name in text for name in right.names)
    assert f"{right.count_per_generation:g} " in text
    assert f"{round(right.bytes_per_generation / MIB, 2):g} MiB per {written.unit}" in text
    assert f"from {written.unit} {right.started_at_generation}" in text
