"""The programs of the suite in processes of their own, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.flows.conftest import Server, clean_environment

# Ignored by git; whoever scores the suite reads it there.
VERDICTS: Final = Path(__file__).resolve().parents[2] / "test-results" / "leaks"
PROGRAM_SECONDS: Final = 240.0


def run_program(program: Path, variant: str, generations: int, server: str, folder: Path) -> str:
    """Gives the id of its run."""
    run = f"{program.stem}-{variant}".replace("_", "-")
    ended = subprocess.run(
        [sys.executable, program, "--variant", variant, "--generations", str(generations)],
        cwd=folder,
        env=clean_environment(
            LEAKLINE_SERVER=server, LEAKLINE_RUN_ID=run, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"
        ),
        capture_output=True, text=True, timeout=PROGRAM_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return run


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all programs of the session."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture
def judged(server: Server, tmp_path: Path) -> Callable[[Path, str, int], dict[str, Any]]:
    """Run a program; gives the verdict over all its generations, and leaves it in a file."""

    def judge(program: Path, variant: str, generations: int) -> dict[str, Any]:
        run = run_program(program, variant, generations, server.address, tmp_path)
        verdict = server.verdict(run, generations)
        VERDICTS.mkdir(parents=True, exist_ok=True)
        (VERDICTS / f"{run}.json").write_text(json.dumps(verdict, indent=1))
        return verdict

    return judge
