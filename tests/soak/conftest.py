"""Fixtures for tests with hundreds of repetitions, whose number can be set in the environment to try a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.client.faults import FaultServer

# Real servers and databases of each kind.
from tests.server.conftest import (  # noqa: F401
    database_url,
    make_run,
    postgres_copies,
    postgres_url,
    serve,
    sqlite_copies,
)

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.soak)
            item.add_marker(pytest.mark.timeout(3 * 3600))


@pytest.fixture
def size() -> Callable[[str, int], int]:
    """Return a function that reads a number of repetitions from the environment."""
    return lambda name, default: int(os.environ.get(name, default))


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[object], None]:
    """Return a function that prints a figure immediately, despite pytest's capturing."""

    def say(line: object) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}")
            sys.stdout.flush()

    return say


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """Run a server that is healthy until a test sets its mode; programs get no Leakline settings of this machine."""
    for name in list(os.environ):
        if name.startswith("LEAKLINE_"):
            monkeypatch.delenv(name)
    server = FaultServer()
    server.start()
    yield server
    server.set("absent")
