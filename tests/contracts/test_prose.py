"""Tests of `.ci/prose`: it finds avoided words in every kind of text, and ignores names and quoted output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROSE = Path(__file__).resolve().parents[2] / ".ci" / "prose"


def found_in(folder: Path, name: str, text: str) -> list[str]:
    path = folder / "docs" / name
    path.parent.mkdir()
    path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    ended = subprocess.run([sys.executable, PROSE], cwd=folder, capture_output=True, text=True)
    lines = ended.stdout.splitlines()
    assert ended.returncode == (1 if lines else 0), ended.stderr
    return lines


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", 'def f():\n    """Return what rows are told."""\n', 2),
        ("a.py", 'def f():\n    """Of each row, its size."""\n', 2),
        ("a.py", "x = 1\n# It is seldom larger.\n", 2),
        ("a.py", 'raise ValueError("the file tells nothing")\n', 1),
        ("a.js", 'const one = 1;\n// It stays beside the other.\nsay("draw anew");\n', 2),
        ("a.c", "/* mended\n * here */\n", 1),
        ("a.html", "<p>Shown</p>\n<p>till the end</p>\n", 2),
        ("a.md", "# Title\n\nA dear call.\n", 3),
        ("a.toml", '[[row]]\nwhat = "The growth is told"\n', 2),
    ],
)
def test_finds_a_word_or_an_opening_that_is_avoided(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    first = found_in(tmp_path, name, text)[0]
    assert first.startswith(f"docs/{name}:{line}: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'told = {"door": 1}\nprint(f"{told} rows")\n'),
        (
            "a.py",
            "class A:\n    @property\n    def exact(self):\n        'Whether all were seen.'\n",
        ),
        ("a.md", "Use `beside`.\n\n```sh\ntell me\n```\n"),
    ],
)
def test_leaves_names_and_quoted_output_alone(tmp_path: Path, name: str, text: str) -> None:
    assert found_in(tmp_path, name, text) == []
