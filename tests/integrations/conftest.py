"""Real trainings with real frameworks in their own processes, against a real server.

Every test in this folder is marked `integrations`: `make test-integrations` runs them in a separate environment
(`requirements/ml.txt`), and `make test` does not. A program in `programs/` takes "leak", "healthy" or "raise".
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
    """A finished program: its output, and its run on the server."""

    server: Server
    run: str
    status: int
    output: str
    errors: str
    folder: Path

    def final_state(self) -> dict[str, Any]:
        """Return the run from the server once its end is known."""

        def ask() -> dict[str, Any] | None:
            run = self.server.get(f"/runs/{self.run}")
            return run if run["state"] != "running" else None

        return dict(eventually(ask))

    def final_verdict(self) -> dict[str, Any]:
        """Return the verdict on all data of a program that has finished."""

        def ask() -> dict[str, Any] | None:
            run = self.server.get(f"/runs/{self.run}")
            return run if run["state"] != "running" and run["verdict_is_current"] else None

        assert self.status == 0, self.errors
        assert eventually(ask)["state"] == "finished"
        return self.server.get(f"/runs/{self.run}/verdict")

    def verdict(self, generations: int) -> dict[str, Any]:
        self.final_state()
        return self.server.verdict(self.run, generations)

    def phase_accounts(self) -> dict[str, Any]:
        return self.server.get(f"/runs/{self.run}/phases")

    def events(self) -> list[dict[str, Any]]:
        return list(self.server.get(f"/runs/{self.run}/events")["items"])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one server on SQLite for all trainings of the session."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture
def run_program(server: Server, tmp_path: Path) -> Callable[..., Ended]:
    """Return a function that runs a program of this folder, or arguments of ``python``, with the given run id."""

    def run(name: str | Sequence[str], run: str, *arguments: str, **environ: str) -> Ended:
        command = [str(PROGRAMS / f"{name}.py")] if isinstance(name, str) else list(name)
        if "LEAKLINE_RUN_ID" not in environ and run:
            environ["LEAKLINE_RUN_ID"] = run
        done = subprocess.run(
            [sys.executable, *command, *arguments],
            cwd=tmp_path,
            env=clean_environment(
                LEAKLINE_SERVER=server.address, OMP_NUM_THREADS="1", PYTHONPATH=str(PROGRAMS),
                # Trainings of seconds need the scans that by default are spread over hours.
                LEAKLINE_MAX_OVERHEAD="0.25", **environ,
            ),
            capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False,
        )  # fmt: skip
        return Ended(server, run, done.returncode, done.stdout, done.stderr, tmp_path)

    return run
