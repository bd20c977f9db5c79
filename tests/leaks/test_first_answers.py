"""Each kind of program whose first answer was wrong once: the first finding names what its author would name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.flows.conftest import Server
from tests.leaks.catalogue import Case
from tests.leaks.conftest import Suite, run_program
from tests.leaks.first_answers import CASES
from tests.leaks.scoring import pair

pytestmark = [pytest.mark.leaks, pytest.mark.timeout(600)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_leak_is_named_and_its_healthy_twin_is_not_accused(
    case: Case, suite: Suite, server: Server, tmp_path: Path
) -> None:
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
