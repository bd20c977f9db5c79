"""100,000 snapshots recorded without a server are on one within a minute, once."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.client.killing import real_server

from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.transport.http_delivery import request_json
from leakline.transport.spool_file import SpoolFile

SECONDS: Final = 60.0
# As many as a training of medium size tells at a phase end, and as many types.
SERIES: Final = 45


def record(folder: Path, count: int) -> Path:
    """A spool as a training of so many snapshots leaves it: two phases and an end in each generation."""
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
def server(tmp_path: Path) -> Iterator[str]:
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


def test_long_sync(
    tmp_path: Path, server: str, size: Callable[[str, int], int], tell: Callable[[object], None]
) -> None:
    count = size("LEAKLINE_SOAK_SNAPSHOTS", 100_000)
    path = record(tmp_path / "spool", count)
    told, seconds = sync(path, server)
    assert f"{count} snapshots sent" in told
    assert stored(server) == count
    each = path.stat().st_size / count
    tell(f"{count} snapshots of {SERIES} series, {each:.0f} bytes each in the spool")
    tell(f"synced in {seconds:.1f} s: {count / seconds:.0f} a second")
    assert seconds <= max(5.0, SECONDS * count / 100_000)
    told, seconds = sync(path, server)
    assert "nothing new to send" in told
    tell(f"once more in {seconds:.1f} s")
    subprocess.run(
        [sys.executable, "-m", "leakline", "sync", str(path), "--server", server, "--again"], check=True
    )  # fmt: skip
    assert stored(server) == count
