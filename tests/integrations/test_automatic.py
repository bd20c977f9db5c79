"""Programs without a line of Leakline: `leakline run` and ``leakline.auto()`` add the frameworks' callbacks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PROGRAMS, Ended
from .test_framework_loops import ACTIVE, CASES, Case, lines

CALL = re.compile(r",? ?LeaklineCallback\([^)]*\)(, )?")


def without_leakline(program: str) -> str:
    """Return the text of a program without its lines of Leakline."""
    text = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    found = CALL.sub("", re.sub(r"from leakline.*\n", "", text))
    assert "eakline" not in found
    return found


each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
RunPlain = Callable[[Case, str, str], Ended]


@pytest.fixture
def run_plain(run_program: Callable[..., Ended], tmp_path: Path) -> RunPlain:
    """Return a function that runs a framework's program without lines of Leakline: (case, way, variant)."""

    def run(case: Case, way: str, variant: str) -> Ended:
        text, script = without_leakline(case.program), tmp_path / "train.py"
        if way == "auto":
            before, future, after = text.partition("from __future__ import annotations\n")
            text = f"{before}{future}import leakline\nleakline.auto()\n{after}"
        script.write_text(text, encoding="utf-8")
        launch = ["-m", "leakline", "run", "--", sys.executable] if way == "run" else []
        name = f"{case.name}-{way}-{variant}"
        return run_program([*launch, str(script)], name, variant)

    return run


@each
@pytest.mark.parametrize("way", ["run", "auto"])
def test_a_leak_of_an_unmodified_program_is_named_with_its_phase(
    run_plain: RunPlain, case: Case, way: str
) -> None:
    ended = run_plain(case, way, "leak")
    assert ended.status == 0, ended.errors
    assert ended.final_state()["state"] == "finished"
    assert lines(ended.phase_accounts()) == set(case.phases)
    verdict = ended.verdict(case.generations)
    assert verdict["status"] == "confirmed", verdict["summary"]
    (finding,) = [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert finding["phase"] == case.phase
    assert any("Keeper.kept" in suspect["name"] for suspect in finding["suspects"]), finding


@each
def test_a_healthy_unmodified_program_has_no_findings(run_plain: RunPlain, case: Case) -> None:
    ended = run_plain(case, "run", "healthy")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(case.generations)
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE], verdict["summary"]
    assert lines(ended.phase_accounts()) == set(case.phases)


@each
def test_an_exception_of_an_unmodified_program_is_its_own(run_plain: RunPlain, case: Case) -> None:
    ended = run_plain(case, "run", "raise")
    assert ended.status == 1
    assert "ZeroDivisionError: planted" in ended.errors
    assert ended.final_state()["state"] == "failed"
