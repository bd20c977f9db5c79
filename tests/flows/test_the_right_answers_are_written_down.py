"""The docstrings of the leak switches say what the table says, which was measured."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

LEAKS = Path(__file__).resolve().parents[2] / "examples" / "erl_trading" / "leaks.py"
MIB = 2**20


def _docstrings() -> dict[str, str]:
    """Of the attributes of `Leaks`: the text behind each."""
    tree = ast.parse(LEAKS.read_text())
    (leaks,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Leaks"]
    found = {}
    for field, text in zip(leaks.body, leaks.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _right_answers() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("written_leaks", LEAKS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return dict(module.RIGHT_ANSWERS)


DOCSTRINGS, RIGHT_ANSWERS = _docstrings(), _right_answers()


def test_every_switch_has_both() -> None:
    assert set(DOCSTRINGS) == set(RIGHT_ANSWERS)


@pytest.mark.parametrize("leak", RIGHT_ANSWERS)
def test_the_docstring_says_the_right_answer(leak: str) -> None:
    text, right = DOCSTRINGS[leak], RIGHT_ANSWERS[leak]
    if right.kind is None:
        assert "Right: nothing." in text
        return
    assert f"kind {right.kind}" in text
    assert f"phase {right.phase}" in text
    assert any(name in text for name in right.names)
    assert f"{right.count_per_generation:g} " in text
    assert f"{round(right.bytes_per_generation / MIB, 2):g} MiB per generation" in text
    assert f"from generation {right.started_at_generation}" in text
