"""`make test-gpu` from its start to its last line: without a GPU, and on a simulated card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Python imports this module at its start: so do the trainings that the check starts.
SITE = """
import os, sys
if "benchmarks.client" in " ".join(sys.orig_argv):
    from pathlib import Path
    from tests.probes.simulated_cuda import install
    install(Path(os.environ["SIMULATED_CARD"]))
"""


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = environment.pop("site", ""), "agent_client", "."
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.client.gpu", *arguments], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}, check=False,
    )  # fmt: skip


def check_simulated(parts: str, folder: Path) -> dict[str, Any]:
    """Run these parts on a simulated card and return what was written as JSON."""
    site, card, results = folder / "site", folder / "card", folder / "results.json"
    site.mkdir()
    card.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    done = check("--parts", parts, "--json", str(results), site=str(site), SIMULATED_CARD=str(card))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    passed = sum(each["result"] == "ok" for each in found["checks"])
    assert done.stdout.splitlines()[-1] == f"{passed} passed, 0 failed"
    return found


def test_without_a_gpu_nothing_is_called_passed() -> None:
    done = check(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 77, done.stderr
    assert done.stdout == "no NVIDIA GPU found: nothing was checked\n"


@pytest.mark.flow
def test_known_allocations_are_read_on_a_simulated_card(tmp_path: Path) -> None:
    found = check_simulated("readings", tmp_path)
    assert found["card"] == "Simulated GPU" and found["driver"] == "570.86.10"
    assert found["figures"]["pinned_resident_bytes"]["RssAnon"] >= 250 * 2**20
    assert {"read_cuda", "read_nvml"} == set(found["figures"]["microseconds"])
    assert len(found["checks"]) >= 35


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_trainings_are_judged_on_a_simulated_card(tmp_path: Path) -> None:
    found = check_simulated("trainings", tmp_path)
    assert {name for name, findings in found["figures"]["findings"].items() if findings} >= {
        "leak",
        "fragmented",
        "pinned",
    }
