"""What is done hundreds of times; how often comes from the environment, so that a test can be tried out."""

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
    """How often, by the environment."""
    return lambda name, default: int(os.environ.get(name, default))


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[object], None]:
    """Say a figure at once, whatever pytest keeps to itself."""

    def say(line: object) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}")
            sys.stdout.flush()

    return say


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """Well until a test sets its mode. Nothing that this machine says of Leakline reaches the programs."""
    for name in list(os.environ):
        if name.startswith("LEAKLINE_"):
            monkeypatch.delenv(name)
    server = FaultServer()
    server.start()
    yield server
    server.set("absent")
