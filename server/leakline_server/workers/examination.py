"""A look at a run: reads its history, asks the analysis, and holds the rules that people set against it.

Writes nothing and locks nothing, so it may happen in another process (`analysis_process.py`) as well as in this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from leakline import analysis
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.results import Verdict, to_json

from ..alerts.rules.rule_alerts import Looks, looks_at
from ..store.engine import Engine
from ..store.runs import runs
from ..store.runs.run_history import NoSuchRun, load_for_examination

# Of so many runs, the newest looked at, what the last look worked out is kept for the next.
KEPT_RUNS: Final = 64


@dataclass(frozen=True, slots=True)
class Looked:
    """``seen`` is the revision of the run that the verdict rests on, ``as_json`` the verdict for storing, ``at`` is in
    Unix seconds. ``cpu_seconds`` were used by another process than this one.
    """

    verdict: Verdict
    as_json: Any
    looks: Looks
    seen: int
    at: float
    cpu_seconds: float = 0.0


class Look(Protocol):
    def __call__(self, run_id: str) -> Looked:
        """Raises NoSuchRun, one of DATABASE_ERRORS, CorruptChunk, and CannotLook."""

    def forget(self, run_id: str) -> None:
        """It has ended: what is kept of it is of no more use."""


class CannotLook(Exception):
    """The process that looks could not, or has ended; what it was asked is to be asked again."""


class NoRoom(CannotLook):
    """Because the disk of the database is full: reading may need room, too."""


class Closed(CannotLook):
    """The server ends: the next one asks again."""


class Looking:
    """Used by one thread. What it keeps from one look to the next may be lost: no answer rests on it."""

    def __init__(
        self,
        engine: Engine,
        now: Callable[[], float] = time.time,
        priorities: Priorities = DEFAULTS,
    ) -> None:
        self._engine, self._now, self._priorities = engine, now, priorities
        # By run, the one looked at last at the end.
        self._kept: dict[str, Kept] = {}

    def __call__(self, run_id: str) -> Looked:
        history, seen = load_for_examination(self._engine, run_id)
        verdict = analysis.examine(history, self._kept_of(run_id), self._priorities)
        run = runs.get_summary(self._engine, run_id)
        if run is None:
            raise NoSuchRun(run_id)
        at = self._now()
        looks = looks_at(self._engine, history, verdict.oom, run["project"], run["name"], at)
        return Looked(verdict, to_json(verdict), looks, seen, at)

    def forget(self, run_id: str) -> None:
        self._kept.pop(run_id, None)

    def _kept_of(self, run_id: str) -> Kept:
        kept = self._kept.pop(run_id) if run_id in self._kept else Kept()
        self._kept[run_id] = kept
        while len(self._kept) > KEPT_RUNS:
            del self._kept[next(iter(self._kept))]
        return kept
