"""Five hundred forks under load, with every lock of ours held: no child hangs for longer than the watchdog allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..client.conftest import FakeServer
from ..client.test_forks import check, storm

SECONDS_EACH = 5.0


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer().start()
    yield fake
    fake.stop()


def test_no_fork_of_many_hangs_or_sends_what_is_its_parents(
    server: FakeServer,
    size: Callable[[str, int], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks = size("LEAKLINE_SOAK_FORKS", 500)
    monkeypatch.setenv("LEAKLINE_DIR", str(tmp_path / "spool"))
    told, said = storm(tmp_path, server.address, forks, forks * SECONDS_EACH + 60)
    check(server, tmp_path / "spool", told, said, forks)
