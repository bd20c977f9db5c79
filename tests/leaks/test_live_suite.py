"""Each program of the suite, leaking and healthy, through the real chain: the server must tell the two apart.

A pair that it does not tell apart is a failing test, however many the targets forgive; the figures come at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.leaks.catalogue import CASES, Case
from tests.leaks.scoring import Pair

# The longest wait is two trainings on a busy machine.
pytestmark = [pytest.mark.leaks, pytest.mark.timeout(600)]

OPEN = [case for case in CASES if not case.held_back]
HELD_BACK = [case for case in CASES if case.held_back]

Judge = Callable[[Case], Pair]


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.name)
def test_a_leak_is_told_from_its_healthy_twin(case: Case, judged: Judge) -> None:
    found = judged(case)
    assert found.is_right, found.what_is_wrong()


@pytest.mark.parametrize("case", HELD_BACK, ids=lambda case: case.name)
def test_a_held_back_leak_is_told_from_its_healthy_twin(case: Case, judged: Judge) -> None:
    """Left out with ``-k 'not held_back'`` until the end."""
    found = judged(case)
    assert found.is_right, found.what_is_wrong()
