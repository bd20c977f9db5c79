"""Recorded snapshots, posted again in the name of thousands of processes.

They come from a spool that a client has written, or from a small training recorded here: half a minute of phases and
generations that create and drop objects, with the real client and without a server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leakline.snapshot import CONTENT_TYPE, Batch, ProcessIdentity, Snapshot, batch_to_bytes
from leakline.transport.http_delivery import pack
from leakline.transport.spool_format import read_batches

TRAINING_SECONDS: Final = 20.0
_TRAINING: Final = """
import random, sys, time
import leakline

class Environment: pass
class Transition: pass
class Agent: pass

run = leakline.init(project="recording", watch=[Environment, Transition, Agent], mode="offline", quiet=True)
kept, buffer, until, generation = [], [], time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < until:
    with run.generation(generation):
        for phase in ("evaluate", "train", "evolve"):
            with run.phase(phase):
                kept += [Environment() for _ in range(3)]
                buffer = [Transition() for _ in range(random.randrange(2_000, 4_000))]
                agents = [[Agent(), bytearray(random.randrange(10**6))] for _ in range(8)]
                time.sleep(0.05)
    generation += 1
run.finish()
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """The snapshots of one process in order."""

    snapshots: tuple[Snapshot, ...]

    @property
    def series_each(self) -> float:
        """Average number of values per snapshot."""
        return sum(len(s.samples) for s in self.snapshots) / len(self.snapshots)


def of_spool(path: Path) -> Recording:
    """Read one spool, or the first of a folder."""
    spools = sorted(path.rglob("*.spool")) if path.is_dir() else [path]
    if not spools:
        raise SystemExit(f"benchmarks.scale: {path} holds no spool; give one that a client wrote")
    found = tuple(s for batch in read_batches(spools[0]) for s in batch.snapshots)
    if not found:
        raise SystemExit(f"benchmarks.scale: {spools[0]} holds no snapshots")
    return Recording(found)


def recorded_now() -> Recording:
    with tempfile.TemporaryDirectory(prefix="leakline-recording-") as folder:
        subprocess.run(
            [sys.executable, "-c", _TRAINING, str(TRAINING_SECONDS)],
            env={**os.environ, "LEAKLINE_DIR": folder}, check=True,
        )  # fmt: skip
        return of_spool(Path(folder))


class Process:
    """One simulated process: repeats the recording with its own name and the current time."""

    def __init__(self, recording: Recording, instance: str, rank: int, start_at: int) -> None:
        self._recording, self._at, self._sequence = recording, start_at, 0
        self.identity: dict[str, Any] = {
            "instance": instance, "rank": rank, "pid": 1000 + rank, "host": f"host-{rank}",
            "role": "main", "attempt": 1,
        }  # fmt: skip
        self._generations = self._span()

    def _span(self) -> int:
        found = [s.generation for s in self._recording.snapshots if s.generation is not None]
        return max(found) - min(found) + 1 if found else 0

    def body(self, count: int, seconds_apart: float) -> tuple[bytes, bool]:
        """Return the next ``count`` snapshots as the client sends them, and whether they are compressed."""
        now = time.time()
        taken = [self._next(now - (count - 1 - i) * seconds_apart) for i in range(count)]
        batch = Batch(ProcessIdentity(**self.identity), tuple(taken))
        body = pack(batch_to_bytes(batch), CONTENT_TYPE)
        return body.data, body.compressed

    def _next(self, moment: float) -> Snapshot:
        snapshots = self._recording.snapshots
        round_, at = divmod(self._at, len(snapshots))
        recorded = snapshots[at]
        generation = recorded.generation
        if generation is not None:
            generation += round_ * self._generations
        made = Snapshot(
            self._sequence, moment, moment - 1e9, generation, recorded.phase,
            recorded.label, recorded.kind, recorded.samples,
            events=tuple(
                type(e)(self._sequence, moment, e.kind, e.name, generation, e.phase, e.data)
                for e in recorded.events
            ),
        )  # fmt: skip
        self._at += 1
        self._sequence += 1
        return made
