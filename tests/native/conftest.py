"""Each interpreter's module, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.native.interpreters import Interpreter, found

Compiled = Callable[[str], tuple[Interpreter, Path]]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Of the name of an interpreter, itself and the folder of its module; skips where either is missing."""
    made: dict[str, Path] = {}

    def of(name: str) -> tuple[Interpreter, Path]:
        if name not in found():
            pytest.skip(f"{name} is not on the path nor in LEAKLINE_TEST_PYTHONS")
        one = found()[name]
        if reason := one.cannot_build():
            pytest.skip(f"{one.label}: {reason}")
        if name not in made:
            made[name] = one.build(tmp_path_factory.mktemp(name))
        return one, made[name]

    return of
