"""Samples into a server, and what that costs it: its CPU from the first request until it is quiet again."""

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
# Bodies of so many different runs are made; more runs get the same numbers under other names.
DIFFERENT: Final = 10
AnySubject = TypeVar("AnySubject", bound=Subject)


def tell(what: str) -> None:
    """Where it is, for who waits; the tables go to stdout."""
    print(f"  {time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def full_or_short(full: int, short: int) -> int:
    return short if SHORT else full


@dataclass(frozen=True, slots=True)
class Cost:
    """``cpu`` without the analysis, which is ``beside``; ``wall`` from the first request to the last answer.

    ``compaction`` is the part of ``cpu`` that came when the runs were over; 0 where that was not measured.
    """

    cpu: float
    beside: float
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
        return figures | ({"analysis_cpu_seconds": self.beside} if self.beside else {})

    @property
    def per_million(self) -> float:
        return self.cpu / (self.snapshots * SAMPLES) * 1e6


@contextmanager
def running(subject: type[AnySubject]) -> Iterator[AnySubject]:
    """A server of this kind in a folder that is gone afterwards. Raises Absent."""
    with tempfile.TemporaryDirectory(
        prefix="leakline-bench-", ignore_cleanup_errors=True
    ) as folder:
        tell(f"starting {subject.name}")
        made = subject(Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.stop()


def started_now(seconds: float = 1_800.0) -> float:
    """A while ago, because time-series databases refuse what is old or yet to come."""
    return time.time() - seconds


def requests_of(
    subject: Subject,
    runs: Mapping[str, str],
    snapshots: int,
    size: int,
    started: float,
    first: int = 0,
) -> list[list[bytes]]:
    """The requests of every run in order, made before anything is timed. ``runs``: our name -> the server's.

    ``first``: how many snapshots each run has sent before, as many at a time.
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
    """The numbers are written once for each of the different runs; the process is named anew for each."""
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
    """``snapshots`` in all. Every queue has a connection of its own. Ours has sealed so many of them when it ends."""
    subject.settle()
    had = sealed(subject) if isinstance(subject, Leakline) else 0.0
    beside, before = subject.beside(), subject.cpu()
    load = closed(subject.address, queues)
    if isinstance(subject, Leakline):
        until_sealed(subject, had + are_sealed)
    subject.settle()
    cpu, analysed = subject.cpu() - before, subject.beside() - beside
    cost = Cost(cpu - analysed, analysed, load.wall, snapshots, load.requests)
    tell(
        f"{subject.name}: {snapshots:,} snapshots, {cost.per_million:.4f} CPU s per million samples"
    )
    return cost


def streamed(
    subject: Subject, run: str, pieces: Iterable[Samples], size: int = 200
) -> Iterator[bytes]:
    """Requests made as they are sent, for runs whose bodies would not fit into memory."""
    for piece in pieces:
        for part in piece.parts(size):
            yield subject.request(run, part)


def present(kinds: Sequence[type[Subject]], folder: Path) -> tuple[list[Subject], dict[str, str]]:
    """Those that can be started, started; and why the others cannot."""
    found, missing = [], {}
    for kind in kinds:
        try:
            tell(f"starting {kind.name}")
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
    """The cost in the middle."""
    return sorted(costs, key=key)[len(costs) // 2]
