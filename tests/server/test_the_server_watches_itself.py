"""The short form of the ten minutes of `make test-weekly`: the server under its own client and under load."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.server.under_load import PER_BATCH, SELF, load, watched

SECONDS = 12.0
PER_SECOND = 300.0
# The bound of C11.
P99_SECONDS = 0.1


@pytest.mark.flow
@pytest.mark.alone
def test_under_load_it_answers_in_time_and_finds_no_leak_in_itself(tmp_path: Path) -> None:
    with watched(tmp_path, per="second") as server:
        figures = load(server, PER_SECOND, SECONDS)
        assert figures.refused == []
        assert len(figures.answers) * PER_BATCH >= PER_SECOND * (SECONDS - 1)
        assert figures.p99() <= P99_SECONDS, f"{figures.p99() * 1e3:.0f} ms"
        run = server.get(f"/api/v1/runs/{SELF}")
        (process,) = run["processes"]
        # Its own readings came to itself, beside the load.
        deadline = time.monotonic() + 20
        while (verdict := server.verdict())["generations"] < SECONDS / 2:
            assert time.monotonic() < deadline, verdict
        assert verdict["status"] in ("learning", "ok"), verdict["summary"]
        assert process["pid"] != server.process.pid
        assert server.stop() in (0, -15, 143), server.log
