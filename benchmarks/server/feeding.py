"""Functions that send samples to a server and measure its CPU from the first request until it is idle again."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from . import bodies
from .compacting import sealed, until_sealed
from .load import closed
from .samples import SAMPLES, Samples, stream
from .subjects import Absent, Leakline, Subject

SHORT: Final = bool(os.environ.get("SHORT"))
# Bodies are made for this many different runs; more runs send the same numbers with other names.
DIFFERENT: Final = 10
AnySubject = TypeVar("AnySubject", bound=Subject)


def log_progress(what: str) -> None:
    """Print progress to stderr; the tables go to stdout."""
    print(f"  {time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def full_or_short(full: int, short: int) -> int:
    return short if SHORT else full


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of sending samples. ``cpu`` excludes the analysis, which is ``analysis_cpu``.

    ``wall`` is from the first request to the last answer. ``compaction`` is the part of ``cpu`` after the runs were
    over; 0 if it was not measured.
    """

    cpu: float
    analysis_cpu: float
    wall: float
    snapshots: int
    requests: int
    compaction: float = 0.0

    def figures(self) -> dict[str, float]:
        figures = {
            "cpu_per_million": self.per_million,
            "us_per_request": self.cpu / self.requests * 1e6,
            "snapshots_per_cpu_second": self.snapshots / self.cpu,
            "per_second": self.snapshots / self.wall,
        }
        if self.compaction:
            figures["compaction_cpu"] = self.compaction / (self.snapshots * SAMPLES) * 1e6
        return figures | ({"analysis_cpu_seconds": self.analysis_cpu} if self.analysis_cpu else {})

    @property
    def per_million(self) -> float:
        return self.cpu / (self.snapshots * SAMPLES) * 1e6


@contextmanager
def running(subject: type[AnySubject]) -> Iterator[AnySubject]:
    """Run a server of this kind in a temporary folder. Raises Absent."""
    with tempfile.TemporaryDirectory(
        prefix="leakline-bench-", ignore_cleanup_errors=True
    ) as folder:
        log_progress(f"starting {subject.name}")
        made = subject(Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.stop()


def started_now(seconds: float = 1_800.0) -> float:
    """Return a time in the recent past: time-series databases refuse old and future samples."""
    return time.time() - seconds


def requests_of(
    subject: Subject,
    runs: Mapping[str, str],
    snapshots: int,
    size: int,
    started: float,
    first: int = 0,
) -> list[list[bytes]]:
    """Return the requests of every run in order, made before the measurement.

    ``runs`` maps our names to the server's. ``first`` is the number of snapshots that each run has sent before, in
    requests of the same size.
    """
    made = [
        list(stream(seed, first + snapshots, started, snapshots))[-1]
        for seed in range(min(DIFFERENT, len(runs)))
    ]
    if isinstance(subject, Leakline):
        return leakline_requests(runs, made, size)
    return [
        [subject.request(name, part) for part in made[i % len(made)].parts(size)]
        for i, name in enumerate(runs.values())
    ]


def leakline_requests(
    runs: Mapping[str, str], made: Sequence[Samples], size: int
) -> list[list[bytes]]:
    """Encode the numbers once per different run; only the process name differs between the others."""
    texts = [
        [bodies.Written(bodies.leakline_batch(part)) for part in each.parts(size)] for each in made
    ]
    return [
        [bodies.leakline_request(name, text.body(name)) for text in texts[i % len(texts)]]
        for i, name in enumerate(runs.values())
    ]


def feed(
    subject: Subject, queues: Sequence[Iterable[bytes]], snapshots: int, are_sealed: int
) -> Cost:
    """Send ``snapshots`` in total, with one connection per queue. At the end Leakline has sealed ``are_sealed``."""
    subject.settle()
    had = sealed(subject) if isinstance(subject, Leakline) else 0.0
    analysis_cpu, before = subject.analysis_cpu(), subject.cpu()
    load = closed(subject.address, queues)
    if isinstance(subject, Leakline):
        until_sealed(subject, had + are_sealed)
    subject.settle()
    cpu, analysed = subject.cpu() - before, subject.analysis_cpu() - analysis_cpu
    cost = Cost(cpu - analysed, analysed, load.wall, snapshots, load.requests)
    log_progress(
        f"{subject.name}: {snapshots:,} snapshots, {cost.per_million:.4f} CPU s per million samples"
    )
    return cost


def streamed(
    subject: Subject, run: str, pieces: Iterable[Samples], size: int = 200
) -> Iterator[bytes]:
    """Yield requests made while they are sent, for runs whose bodies would not fit into memory."""
    for piece in pieces:
        for part in piece.parts(size):
            yield subject.request(run, part)


def present(kinds: Sequence[type[Subject]], folder: Path) -> tuple[list[Subject], dict[str, str]]:
    """Start the subjects that are installed; return them, and the reason for each of the others."""
    found, missing = [], {}
    for kind in kinds:
        try:
            log_progress(f"starting {kind.name}")
            subject = kind(folder / kind.__name__)
            subject.start()
            found.append(subject)
        except Absent as error:
            missing[kind.name] = str(error)
    return found, missing


@contextmanager
def all_running(kinds: Sequence[type[Subject]]) -> Iterator[tuple[list[Subject], dict[str, str]]]:
    with tempfile.TemporaryDirectory(
        prefix="leakline-bench-", ignore_cleanup_errors=True
    ) as folder:
        found, missing = present(kinds, Path(folder))
        try:
            yield found, missing
        finally:
            for subject in found:
                subject.stop()


def median_by(costs: Sequence[Cost], key: Callable[[Cost], float]) -> Cost:
    """Return the cost with the median key."""
    return sorted(costs, key=key)[len(costs) // 2]
