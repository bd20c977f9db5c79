"""The programs of the live suite in their own processes, against a real server, and the figures at the end.

``CHECK=1`` makes the session fail when a target is missed or was not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.flows.conftest import Server, clean_environment
from tests.leaks import figures
from tests.leaks.catalogue import CASES, GENERATIONS, Case
from tests.leaks.scoring import Pair, Seen, pair
from tests.leaks.watching import Watch

# Ignored by git: everything recorded of each run, and figures.json. Browser tests do not empty this folder.
RESULTS: Final = Path(__file__).resolve().parents[2] / "leak-results"
PROGRAM_SECONDS: Final = 240.0


@dataclass
class Suite:
    """The scores of this session so far."""

    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    pairs: list[Pair] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def spent(self) -> figures.Spent:
        if self.ended is None:
            return figures.Spent()
        return figures.Spent((self.ended - self.began) / 60, self.peak_bytes)

    def figures(self) -> tuple[dict[str, list[figures.Figure]], list[figures.Figure]]:
        """Return the figures by group, and those of the entire suite."""
        groups = {}
        for name in figures.GROUPS:
            held_back = name != "open"
            expected = sum(case.held_back is held_back for case in CASES)
            mine = [pair for pair in self.pairs if pair.held_back is held_back]
            groups[name] = figures.figures(mine, expected)
        return groups, figures.of_the_suite(self.spent)


SUITE: Final = pytest.StashKey[Suite]()


def run_program(program: Path, variant: str, server: Server, folder: Path) -> tuple[Seen, int]:
    """Run a program; return what was seen of it and the peak memory of all processes."""
    run = f"{program.stem}-{variant}".replace("_", "-")
    with Watch(server, run) as watch:
        ended = subprocess.run(
            [sys.executable, program, "--variant", variant, "--generations", str(GENERATIONS)],
            cwd=folder,
            env=clean_environment(
                LEAKLINE_SERVER=server.address, LEAKLINE_RUN_ID=run, OMP_NUM_THREADS="1",
                OPENBLAS_NUM_THREADS="1",
            ),
            capture_output=True, text=True, timeout=PROGRAM_SECONDS,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    seen = watch.last_verdict(GENERATIONS)
    (RESULTS / f"{run}.json").write_text(json.dumps(asdict(seen), indent=1))
    return seen, watch.peak_bytes


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one server for all programs of the session."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def suite(request: pytest.FixtureRequest) -> Suite:
    RESULTS.mkdir(parents=True, exist_ok=True)
    return request.config.stash.setdefault(SUITE, Suite())


@pytest.fixture
def judged(suite: Suite, server: Server, tmp_path: Path) -> Callable[[Case], Pair]:
    """Return a function that runs both variants of a program over all generations and scores the pair."""

    def judge(case: Case) -> Pair:
        seen = {}
        for variant in ("leak", "healthy"):
            seen[variant], peak_bytes = run_program(case.program, variant, server, tmp_path)
            suite.peak_bytes = max(suite.peak_bytes, peak_bytes)
        suite.pairs.append(pair(case, seen["leak"], seen["healthy"]))
        suite.ended = time.monotonic()
        return suite.pairs[-1]

    return judge


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the figures, and fail the session for a missed target if ``CHECK`` is set."""
    suite = session.config.stash.get(SUITE, None)
    if suite is None:
        return
    groups, whole = suite.figures()
    found = figures.for_programs(suite.pairs, groups, whole)
    (RESULTS / "figures.json").write_text(json.dumps(found, indent=1, allow_nan=False))
    if os.environ.get("CHECK") and figures.failures(groups, whole):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    suite = terminalreporter.config.stash.get(SUITE, None)
    if suite is None:
        return
    groups, whole = suite.figures()
    texts = [figures.by_program(suite.pairs), figures.summary(groups, whole)]
    if misnamed := figures.what_is_misnamed(suite.pairs):
        texts.append(f"live suite: leaks that were found but named wrongly\n{misnamed}\n")
    if wrong := figures.what_is_wrong(suite.pairs):
        texts.append(f"live suite: pairs that were not distinguished\n{wrong}\n")
    for text in texts:
        terminalreporter.write_line("\n" + text)
    if os.environ.get("CHECK"):
        for line in figures.failures(groups, whole):
            terminalreporter.write_line(f"test-leaks: {line}")
