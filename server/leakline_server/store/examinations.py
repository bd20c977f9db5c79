"""Examinations of runs: one consistent read of all that a verdict rests on, and one transaction for all that follows.

Nobody else writes to an SQLite database during a transaction, so that what takes long comes between the two. What has
changed meanwhile in what was read is found by `save`, and the run is examined again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leakline.analysis import RunHistory
from leakline.analysis.results import Verdict

from . import findings, incident_groups, leases
from .alerts import alert_rows, assertions
from .alerts.alert_rows import Alert, AlertHistory
from .alerts.assertions import Rule, State
from .engine import Engine, writing
from .findings import Incident, Incidents
from .incident_groups import Acknowledgement
from .maintenance import run_deletion
from .runs import runs
from .runs.run_history import NoSuchRun, load_for_examination
from .series.column_reader import reading

# The subject of alerts that memory runs out.
OOM: Final = "oom"


@dataclass(frozen=True, slots=True)
class Basis:
    """What others may change while a run is examined.

    ``rules``: those that concern it, each with its last state there. ``acknowledgements``: of its project, by
    fingerprint, in order of time.
    """

    revisions: leases.Revisions
    rules: Sequence[tuple[Rule, State | None]]
    acknowledgements: Mapping[str, Sequence[Acknowledgement]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run as it is to be examined.

    ``run`` is its RunSummary. ``began_at``: when its newest attempt began, in Unix seconds. ``alerts_sent``: by id of
    the incident, or by subject. ``oom_alert``: the facts of the last one that memory runs out.
    """

    history: RunHistory
    basis: Basis
    run: Mapping[str, Any]
    began_at: float
    incidents: Sequence[Incident]
    alerts_sent: Mapping[str, AlertHistory]
    oom_alert: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Examined:
    """What an examination found. ``as_json``: the verdict for storing. ``states``: of rules, by id.

    ``at`` is in Unix seconds. ``cpu_seconds`` were used by another process than the server's.
    """

    run: Mapping[str, Any]
    basis: Basis
    verdict: Verdict
    as_json: Any
    incidents: Incidents
    alerts: Sequence[Alert]
    states: Mapping[int, State]
    at: float
    cpu_seconds: float = 0.0


class ChangedMeanwhile(Exception):
    """What a run was examined by is no longer so."""


def load(engine: Engine, run_id: str) -> Loaded:
    """Raises NoSuchRun, one of DATABASE_ERRORS, CorruptChunk."""
    with reading(engine) as connection:
        history, revision = load_for_examination(connection, run_id)
        row = runs.row_of(connection, run_id)
        if row is None:
            raise NoSuchRun(run_id)
        run = runs.summary(row)
        sent = alert_rows.alert_histories(connection, run_id)
        return Loaded(
            history,
            Basis(
                leases.Revisions(revision, row.examined),
                assertions.rules_of(connection, run_id, run["project"], run["name"]),
                incident_groups.of_project(connection, run["project"]),
            ),
            run,
            incident_groups.began_at(connection, run_id),
            findings.incidents_of(connection, run_id),
            sent,
            alert_rows.last_payload(connection, run_id, OOM) if OOM in sent else None,
        )


def save(engine: Engine, examined: Examined) -> tuple[int, int] | None:
    """Write the verdict, its incidents, the states of rules, the alerts and their deliveries: all of it or nothing.

    Returns the revision that counts as examined and the number of deliveries; None where another server has seen more,
    or the run was removed. Raises ChangedMeanwhile. Of a deleted run nothing is sent, now or later.
    """
    run_id, project = examined.run["id"], examined.run["project"]
    basis = examined.basis
    with writing(engine) as connection:
        before = leases.begin_saving(connection, run_id, basis.revisions.revision)
        if before is None:
            return None
        rules = assertions.rules_of(connection, run_id, project, examined.run["name"], lock=True)
        said = incident_groups.of_project(connection, project)
        if (before.examined, rules, said) != (
            basis.revisions.examined,
            basis.rules,
            basis.acknowledgements,
        ):
            raise ChangedMeanwhile(run_id)
        assertions.save_states(connection, run_id, examined.states)
        findings.save(connection, examined.verdict, examined.as_json, examined.incidents)
        deleted = run_deletion.is_deleted(connection, run_id)
        deliveries = 0 if deleted else alert_rows.add(connection, examined.alerts)
        return leases.saved(connection, run_id, basis.revisions.revision, before), deliveries
