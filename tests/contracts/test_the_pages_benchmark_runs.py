"""`make bench-pages` on next to nothing, in a real browser: it measures what it says, and its check can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pages import opening
from benchmarks.server.samples import stream

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("length", [1_000, 20_000, 30_000])
def test_a_run_is_fed_to_its_length_and_then_generation_by_generation(length: int) -> None:
    more = 3 * opening.NEWS
    parts = opening._parts(stream(1, length + more, time.time()), length)
    fed = list(opening._until(parts, length))
    assert sum(part.count for part in fed) == length
    news = list(parts)
    assert [part.count for part in news] == [opening.NEWS] * 3
    assert news[0].first == length


@pytest.mark.soak
def test_every_row_is_measured_and_the_check_fails_when_a_target_cannot_be_reached(
    tmp_path: Path,
) -> None:
    written = tmp_path / "rows.json"
    kept = {key: value for key, value in os.environ.items() if key != "ROWS"}
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.pages", "--json", str(written)],
        cwd=ROOT, env={**kept, "SHORT": "1", "CHECK": "1", "LEAKLINE_BENCH_SCALE": "0.0001"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "bench-pages: SHORT=1 measures less than what is held" in ended.stderr
    figures = {each["name"]: each for part in json.loads(written.read_text())["parts"]
               for each in part["figures"]}  # fmt: skip
    for name in ("first chart after the navigation", "main thread per update and chart in view",
                 "300 runs listed with a search", "page weight, compressed, in all"):  # fmt: skip
        assert _measured(figures[name]) > 0
        assert figures[name]["verdict"] == "SHORT"
    assert _measured(figures["charts out of view that an update draws"]) == 0


def _measured(figure: dict[str, Any]) -> float:
    assert figure["value"] is not None, figure["missing"]
    return float(figure["value"])
