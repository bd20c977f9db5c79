"""Real trainings of real frameworks in processes of their own, against a real server.

Every test in this folder is marked `integrations`: `make test-integrations` runs them, in an environment of their own
(`requirements/ml.txt`), and `make test` does not. A program of `programs/` takes "leak", "healthy" or "raise".
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.flows.conftest import Server, clean_environment, eventually

HERE: Final = Path(__file__).parent
PROGRAMS: Final = HERE / "programs"
PROGRAM_SECONDS: Final = 200.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integrations)


@dataclass(frozen=True)
class Ended:
    """A program that ended: what it wrote, and what the server has of its run."""

    server: Server
    run: str
    status: int
    output: str
    errors: str
    folder: Path

    def told(self) -> dict[str, Any]:
        """The run as the server has it, once it has heard of its end."""

        def ask() -> dict[str, Any] | None:
            run = self.server.get(f"/runs/{self.run}")
            return run if run["state"] != "running" else None

        return dict(eventually(ask))

    def verdict(self, generations: int) -> dict[str, Any]:
        self.told()
        return self.server.verdict(self.run, generations)

    def phase_accounts(self) -> dict[str, Any]:
        return self.server.get(f"/runs/{self.run}/phases")

    def events(self) -> list[dict[str, Any]]:
        return list(self.server.get(f"/runs/{self.run}/events")["items"])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on SQLite for all trainings of the session."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture
def run_program(server: Server, tmp_path: Path) -> Callable[..., Ended]:
    """Run a program of this folder, or the arguments after ``python``: its run has the id given."""

    def run(name: str | Sequence[str], run: str, *arguments: str, **environ: str) -> Ended:
        command = [str(PROGRAMS / f"{name}.py")] if isinstance(name, str) else list(name)
        if "LEAKLINE_RUN_ID" not in environ and run:
            environ["LEAKLINE_RUN_ID"] = run
        done = subprocess.run(
            [sys.executable, *command, *arguments],
            cwd=tmp_path,
            env=clean_environment(
                LEAKLINE_SERVER=server.address, OMP_NUM_THREADS="1", PYTHONPATH=str(PROGRAMS),
                # Trainings of seconds: what is looked at in hours by default is looked at in them.
                LEAKLINE_MAX_OVERHEAD="0.25", **environ,
            ),
            capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False,
        )  # fmt: skip
        return Ended(server, run, done.returncode, done.stdout, done.stderr, tmp_path)

    return run
