"""Each program of the suite, leaking and healthy, with a real server, which must distinguish the two.

Every pair that it does not distinguish is a failing test, whatever the targets tolerate; the figures follow at the
end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.flows.conftest import Server
from tests.leaks.catalogue import CASES, FIRST_ANSWERS, Case
from tests.leaks.conftest import Suite, run_program
from tests.leaks.scoring import Pair, pair

# The longest wait is for two trainings on a busy machine.
pytestmark = [pytest.mark.leaks, pytest.mark.timeout(600)]

OPEN = [case for case in CASES if not case.held_back]
HELD_BACK = [case for case in CASES if case.held_back]

Judge = Callable[[Case], Pair]


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.name)
def test_a_leak_is_distinguished_from_its_healthy_twin(case: Case, judged: Judge) -> None:
    found = judged(case)
    assert found.is_right, found.what_is_wrong()


@pytest.mark.parametrize("case", HELD_BACK, ids=lambda case: case.name)
def test_a_held_back_leak_is_distinguished_from_its_healthy_twin(case: Case, judged: Judge) -> None:
    """Can be left out with ``-k 'not held_back'`` until the end."""
    found = judged(case)
    assert found.is_right, found.what_is_wrong()


@pytest.mark.parametrize("case", FIRST_ANSWERS, ids=lambda case: case.name)
def test_a_leak_is_named_and_its_healthy_twin_has_no_finding(
    case: Case, suite: Suite, server: Server, tmp_path: Path
) -> None:
    """Programs that once got a wrong first answer; they do not count in the figures."""
    leak, healthy = (
        run_program(case.program, variant, server, tmp_path)[0] for variant in ("leak", "healthy")
    )
    found = pair(case, leak, healthy)
    assert found.is_right, found.what_is_wrong()
    wrong = [word for each in found.leak.named for word in each.wrong()]
    # Rate and start have their own figures in the suite.
    assert not {"phase", "type", "holder"} & set(wrong), (wrong, found.leak.told)
    acquitted = {each["phase"] for each in leak.verdict["ruled_out"]}
    assert not acquitted & {planted.phases[0] for planted in case.planted}
