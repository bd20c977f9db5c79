"""The examination of a run, which derives the run's verdict, incidents and alerts from all of its data.

An examination does not write or lock anything, so it may run in another process (`analysis_process.py`) or in this one;
`store.examinations.save` writes the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from leakline import analysis
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.results import Verdict, to_json

from ..alerts.alert_payload import ExaminedRun
from ..alerts.incident_alerts import alerts_for, incidents_after, unmoved
from ..alerts.rules.rule_alerts import alerts_of_rules, looks_at
from ..alerts.run_alerts import end_alert, last_oom_alert, oom_alert
from ..store import examinations
from ..store.alerts.alert_rows import Alert
from ..store.engine import Engine
from ..store.examinations import OOM, Basis, Examined, Loaded
from ..store.findings import Incidents
from ..store.incident_groups import Acknowledgement
from ..store.runs import runs

# Incremental caches are kept for this many of the most recently examined runs.
KEPT_RUNS: Final = 64


def examine(
    loaded: Loaded, kept: Kept | None, priorities: Priorities, now: Callable[[], float]
) -> Examined:
    """Return the verdict on a run, the changes to its incidents, and the alerts. Pure except for the clock.

    ``kept`` is the incremental cache from the last examination.
    """
    verdict = analysis.examine(loaded.history, kept, priorities)
    at = now()
    run = examined_run(loaded.run, verdict, at, loaded.began_at)
    incidents = incidents_after(loaded.incidents, verdict, at)
    looks = looks_at(loaded.rules, loaded.history, verdict.oom, at)
    of_rules, states = alerts_of_rules(looks, loaded.alerts_sent, run)
    basis = Basis(loaded.revisions, loaded.rules, _acknowledgements(loaded, incidents))
    of_incidents = _of_incidents(loaded, incidents, basis.acknowledgements, run)
    alerts = [*of_incidents, *_of_run(loaded, run), *of_rules]
    return Examined(loaded.run, basis, verdict, to_json(verdict), incidents, alerts, states, at)


def examined_run(
    run: Mapping[str, Any], verdict: Verdict, now: float, began_at: float
) -> ExaminedRun:
    """Return the run with its verdict. ``run`` is its RunSummary; times are Unix seconds."""
    return ExaminedRun(
        run["id"], run["project"], run["name"], verdict, now, run["state"], run["attempt"], run["reason"],
        began_at=began_at,
        last_seen_at=runs.unix(run["last_seen_at"]),
        ended_at=None if run["ended_at"] is None else runs.unix(run["ended_at"]),
    )  # fmt: skip


def _acknowledgements(loaded: Loaded, found: Incidents) -> dict[str, Sequence[Acknowledgement]]:
    """Return the acknowledgements of the run's leaks, by old and new fingerprints."""
    names = {each.fingerprint for each in (*loaded.incidents, *found.written)}
    names |= {new for _, new in found.renamed}
    return {name: loaded.acknowledgements.get(name, []) for name in sorted(names)}


def _of_incidents(
    loaded: Loaded,
    found: Incidents,
    acknowledgements: Mapping[str, Sequence[Acknowledgement]],
    run: ExaminedRun,
) -> list[Alert]:
    """Return the alerts about changes to incidents, including earlier changes whose alerts were held back."""
    said = {name: each for name, each in acknowledgements.items() if each}
    for old, new in found.renamed:
        # These are the acknowledgements that `findings.save` copies.
        holding = [each for each in said.get(old, ()) if each.ended_at is None]
        if holding and new not in said:
            said[new] = holding
    changes = found.changes
    if said or loaded.alerts_sent:
        after = {each.id: each for each in (*loaded.incidents, *found.written)}
        changes = [*changes, *unmoved(list(after.values()), changes, run.at)]
    return alerts_for(changes, loaded.alerts_sent, run, said)


def _of_run(loaded: Loaded, run: ExaminedRun) -> list[Alert]:
    """Return the alerts about the run's end and about its out-of-memory forecast."""
    last = None
    if loaded.oom_alert is not None:
        sent = loaded.alerts_sent[OOM]
        last = last_oom_alert(loaded.oom_alert, sent.alerts_sent[-1].at, sent.count)
    found = end_alert(run), oom_alert(run, last)
    return [alert for alert in found if alert is not None]


class Look(Protocol):
    def __call__(self, run_id: str) -> Examined:
        """Examine a run. Raises NoSuchRun, one of DATABASE_ERRORS, CorruptChunk, and CannotLook."""

    def forget(self, run_id: str) -> None:
        """Drop the cache of a run that has ended."""


class CannotLook(Exception):
    """Raised when the analysis process failed or has ended; the examination must be repeated."""


class NoRoom(CannotLook):
    """Raised when the database's disk is so full that not even reading was possible."""


class Closed(CannotLook):
    """Raised when the server is stopping; the next server process repeats the examination."""


class Looking:
    """Examines runs on the calling thread, which must always be the same thread. Caches do not affect results."""

    def __init__(
        self,
        engine: Engine,
        now: Callable[[], float] = time.time,
        priorities: Priorities = DEFAULTS,
    ) -> None:
        self._engine, self._now, self._priorities = engine, now, priorities
        # Caches by run, least recently examined first.
        self._kept: dict[str, Kept] = {}

    def __call__(self, run_id: str) -> Examined:
        loaded = examinations.load(self._engine, run_id)
        return examine(loaded, self._kept_of(run_id), self._priorities, self._now)

    def forget(self, run_id: str) -> None:
        self._kept.pop(run_id, None)

    def _kept_of(self, run_id: str) -> Kept:
        kept = self._kept.pop(run_id) if run_id in self._kept else Kept()
        self._kept[run_id] = kept
        while len(self._kept) > KEPT_RUNS:
            del self._kept[next(iter(self._kept))]
        return kept
