"""The kill loop of the tests as a figure: a server killed repeatedly under load, on SQLite and Postgres."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from .feeding import full_or_short
from .rows import Figure, Line, Part

ROOT: Final = Path(__file__).resolve().parents[2]
TEST: Final = "tests/soak/test_server_kills.py"
KILLS: Final = os.environ.get("KILLS") or str(full_or_short(20, 6))
# The server on SQLite, the server on Postgres, and one of three servers on Postgres.
TESTS: Final = 3
_COUNT: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed)")


def measure() -> list[Part]:
    if not (ROOT / TEST).exists():
        raise SystemExit(f"bench-server: {TEST} is missing; ROWS=kills needs the entire repository")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:cacheprovider", TEST],
        cwd=ROOT, env={**os.environ, "LEAKLINE_SOAK_SERVER_KILLS": KILLS},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = (ended.stdout.strip().splitlines() or [ended.stderr.strip()])[-1]
    name = f"{KILLS} kills under load, SQLite and Postgres: tests that found a snapshot lost or duplicated"
    failed = failures(ended.returncode, last)
    figure = Figure(name, 0.0, failed, note=last)
    if failed is None:
        figure = Figure(name, 0.0, missing=last)
    return [
        Part(f"{KILLS} kills", [Line(TEST, missing=figure.missing, note=figure.note)], [figure])
    ]


def failures(status: int, last: str) -> int | None:
    """Return the number of failed tests from pytest's last line; None unless all of them ran to the end."""
    counts = {kind: int(number) for number, kind in _COUNT.findall(last)}
    failed = counts.get("failed", 0)
    whole = counts.keys() <= {"passed", "failed"} and sum(counts.values()) == TESTS
    return failed if whole and status == (1 if failed else 0) else None
