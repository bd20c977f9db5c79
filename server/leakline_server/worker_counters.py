"""Running totals of the workers, for /metrics. Written by one thread each, read by any."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WriterFigures:
    commits: int = 0
    commit_seconds: float = 0.0
    batches: int = 0
    snapshots: int = 0
    repeated_batches: int = 0
    failures: int = 0
    # The database did not take it, for another reason than its disk or what is in a batch.
    refused: bool = False


@dataclass(slots=True)
class SealerFigures:
    snapshots: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class ExaminerFigures:
    """``cpu_seconds`` is the time of its thread alone, and of the process of the looks."""

    examinations: int = 0
    cpu_seconds: float = 0.0


@dataclass(slots=True)
class CompactorFigures:
    snapshots: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RetainerFigures:
    removed_runs: int = 0
    thinned_snapshots: int = 0
