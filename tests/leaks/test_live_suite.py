"""Each program of the suite, leaking and healthy, through the real chain: its verdict is collected, not yet scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.leaks.catalogue import CASES, GENERATIONS, Case

# The longest wait is a training on a busy machine.
pytestmark = [pytest.mark.leaks, pytest.mark.timeout(600)]

VARIANTS = ("leak", "healthy")
OPEN = [case for case in CASES if not case.held_back]
HELD_BACK = [case for case in CASES if case.held_back]

Judge = Callable[[Path, str, int], dict[str, Any]]


def _collect(judged: Judge, case: Case, variant: str) -> None:
    verdict = judged(case.program, variant, GENERATIONS)
    assert verdict["generations"] == GENERATIONS


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.name)
def test_a_program_gets_its_verdict(case: Case, variant: str, judged: Judge) -> None:
    _collect(judged, case, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", HELD_BACK, ids=lambda case: case.name)
def test_a_held_back_program_gets_its_verdict(case: Case, variant: str, judged: Judge) -> None:
    """Left out with ``-k 'not held_back'`` until the end."""
    _collect(judged, case, variant)
