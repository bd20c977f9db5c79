"""`leakline drill --all`, for real: every kind through the whole chain, and what was called what comes out right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flows.conftest import clean_environment

from leakline.drill.kinds import HEALTHY, KINDS, LEAKING
from leakline.drill.matrix import NOTHING

pytestmark = [pytest.mark.flow, pytest.mark.leaks, pytest.mark.timeout(1800)]


def test_what_is_planted_is_what_it_is_called_and_nothing_is_called_nothing(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "drill", "--all", "--json", "--results", str(page)],
        cwd=tmp_path, env=clean_environment(TMPDIR=str(tmp_path)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert [each["kind"] for each in found["skipped"]] == []
    assert set(found["matrix"]) == set(KINDS)
    wrong = {
        planted: called
        for planted, called in found["matrix"].items()
        for told in called
        if told not in (LEAKING[planted].answers if planted in LEAKING else (NOTHING,))
    }
    assert wrong == {}
    assert len(LEAKING) >= 12 and len(HEALTHY) >= 6
    assert f"{len(KINDS)} drills, 0 called wrongly" in page.read_text()
    assert done.returncode == 0, done.stderr
