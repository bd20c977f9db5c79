from __future__ import annotations

from typing import Any

import pytest

from leakline.cli import demo


def test_without_torch_it_says_in_one_line_how_to_install_it(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package that is nowhere stands for torch on a machine without it.
    monkeypatch.setattr(demo, "NEEDED", ("torch_that_is_not_here", "numpy"))
    said = leakline("demo", "--exit")
    assert said.status == 1
    (line,) = said.errors.splitlines()
    assert "torch" in line
    assert "pip install" in line


def test_the_example_is_found(leakline: Any) -> None:
    assert (demo.example_folder() / "erl_trading" / "trainer.py").is_file()
