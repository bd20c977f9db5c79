"""`make bench-client` on its smallest heap: what it prints, and that its check can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SMOKE = {"HEAPS": "100000", "PARTS": "census", "REPEATS": "3"}


def _bench(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "CHECK"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.client", *arguments],
        cwd=ROOT, env={**kept, **SMOKE, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    written = tmp_path_factory.mktemp("bench") / "rows.json"
    ended = _bench("--json", str(written))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(written.read_text())["rows"]
    assert all(row["name"] in ended.stdout for row in found)
    return {row["name"]: row for row in found}


def test_every_tier_is_measured_against_the_reference(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["reference"]["figures"]["ratio"] == 1.0
    tiers = [name for name in rows if name.startswith("tier ")]
    assert {name[:6] for name in tiers} == {"tier 0", "tier 1", "tier 2", "tier 3"}
    for tier in tiers:
        assert rows[tier]["missing"] or rows[tier]["figures"]["cpu_ms"] > 0


def test_the_pure_census_counts_the_planted_arrays_and_every_class_as_brute_force_does(
    rows: dict[str, dict[str, Any]],
) -> None:
    figures = rows["full census, pure Python"]["figures"]
    assert (figures["arrays_found"], figures["classes_off"]) == (15_000, 0)


def test_the_check_fails_when_a_target_cannot_be_reached(tmp_path: Path) -> None:
    ended = _bench(CHECK="1", LEAKLINE_BENCH_SCALE="0.001")
    assert ended.returncode == 1
    assert "tier 0: a phase end: CPU ms" in ended.stderr


def test_an_unknown_part_is_named() -> None:
    ended = _bench(PARTS="sensus")
    assert ended.returncode != 0
    assert "bench-client: PARTS has 'sensus'" in ended.stderr
