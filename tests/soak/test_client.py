"""Endurance of the client.

Five hundred forks under load with all our locks held; kills at random moments, `LEAKLINE_SOAK_KILLS` of them (200);
and 100,000 snapshots recorded without a server, which must be uploaded within a minute.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.client.killing import kill_and_sync, real_server

from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.transport.http_delivery import request_json
from leakline.transport.spool_file import SpoolFile

from ..client.conftest import FakeServer
from ..client.test_forks import check, storm

SECONDS_EACH = 5.0


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer().start()
    yield fake
    fake.stop()


def test_no_fork_hangs_or_sends_data_of_its_parent(
    server: FakeServer,
    size: Callable[[str, int], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks = size("LEAKLINE_SOAK_FORKS", 500)
    monkeypatch.setenv("LEAKLINE_DIR", str(tmp_path / "spool"))
    told, said = storm(tmp_path, server.address, forks, forks * SECONDS_EACH + 60)
    check(server, tmp_path / "spool", told, said, forks)


# -- trainings killed at random moments


def test_kills_at_random_moments_lose_at_most_a_second_and_corrupt_nothing(
    tmp_path: Path, size: Callable[[str, int], int], report: Callable[[object], None]
) -> None:
    figures = kill_and_sync(tmp_path, size("LEAKLINE_SOAK_KILLS", 200), seed=2)
    report(figures)
    assert figures.wrong == []
    assert figures.rewriting > 0, "none was killed in a rewrite"
    assert max(figures.lost_seconds) <= 1.0, figures


# -- uploading a long recording


SECONDS: Final = 60.0
# As many series and types as a training of medium size has at a phase end.
SERIES: Final = 45


def record(folder: Path, count: int) -> Path:
    """Write a spool like that of a training with this many snapshots: two phases and an end in each generation."""
    process = ProcessIdentity("long", pid=1, host=socket.gethostname())
    header = RunHeader("long", "soak", "long", "generation", None, 1_760_000_000.0)
    spool = SpoolFile(folder / "long" / "long.spool", header, process, limit_bytes=2**40)
    for sequence in range(1, count + 1):
        generation, step = divmod(sequence - 1, 3)
        resident = 2**30 + 4096 * (sequence * 2_654_435_761 % 65_536)
        samples: dict[str, Any] = {
            "process.rss_bytes": resident,
            "process.anon_bytes": resident - 2**20,
            "phase.train.bytes": 4096 * (sequence % 7),
            "generation.seconds": 1.5 + step / 7,
        }
        samples |= {f"type.app.T{i}.count": 100 * i + sequence % (i + 1) for i in range(SERIES - 4)}
        phase = ("train", "evolve", None)[step]
        spool.append(
            Batch(
                process,
                (
                    Snapshot(
                        sequence, 1_760_000_000.0 + sequence, float(sequence), generation, phase,
                        f"generation {generation}: {phase or 'end'}", "phase_end" if phase else "generation_end",
                        samples,
                    ),
                ),
            )
        )  # fmt: skip
    spool.append_end({"state": "finished", "ended_at": 1_760_200_000.0, "reason": ""})
    spool.close()
    return spool.path


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    with real_server(tmp_path) as address:
        yield address


def sync(path: Path, server: str) -> tuple[str, float]:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "sync", str(path), "--server", server],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout, time.monotonic() - started


def stored(server: str) -> int:
    (process,) = request_json(server, "GET", "/runs/long")["processes"]
    return int(process["stored"])


def test_an_offline_recording_is_uploaded_once_within_a_minute(
    tmp_path: Path, real: str, size: Callable[[str, int], int], report: Callable[[object], None]
) -> None:
    count = size("LEAKLINE_SOAK_SNAPSHOTS", 100_000)
    path = record(tmp_path / "spool", count)
    told, seconds = sync(path, real)
    assert f"{count} snapshots sent" in told
    assert stored(real) == count
    each = path.stat().st_size / count
    report(f"{count} snapshots of {SERIES} series, {each:.0f} bytes each in the spool")
    report(f"synced in {seconds:.1f} s: {count / seconds:.0f} a second")
    assert seconds <= max(5.0, SECONDS * count / 100_000)
    told, seconds = sync(path, real)
    assert "nothing new to send" in told
    report(f"once more in {seconds:.1f} s")
    subprocess.run(
        [sys.executable, "-m", "leakline", "sync", str(path), "--server", real, "--again"], check=True
    )  # fmt: skip
    assert stored(real) == count
