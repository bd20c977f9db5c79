"""Examinations of runs: one consistent read of all that a verdict rests on, and one transaction for all that follows.

Nobody else writes to an SQLite database during a transaction, so that what takes long comes between the two. If others
have changed meanwhile what a run was examined by, `save` finds out, and the run is examined again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from leakline.analysis import RunHistory
from leakline.analysis.results import Verdict

from . import findings, incident_groups, leases
from .alerts import alert_rows, assertions
from .alerts.alert_rows import Alert, AlertHistory
from .alerts.assertions import Rule, State
from .engine import Engine, reading, writing
from .findings import Incident, Incidents
from .incident_groups import Acknowledgement
from .maintenance import run_deletion
from .runs import runs
from .runs.run_history import load_for_examination

# The subject of alerts that memory runs out.
OOM: Final = "oom"


@dataclass(frozen=True, slots=True)
class Basis:
    """The part of a run's input that others may change while it is examined.

    ``rules``: those that concern it, each with its last state there. ``acknowledgements``: of its leaks, by
    fingerprint, in order of time; a leak that nobody spoke of has none.
    """

    revisions: leases.Revisions
    rules: Sequence[tuple[Rule, State | None]]
    acknowledgements: Mapping[str, Sequence[Acknowledgement]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run as it is to be examined.

    ``run`` is its RunSummary. ``rules``: as in `Basis`. ``acknowledgements``: of all leaks of its project, because a
    leak that is found in it may be known from other runs. ``began_at``: when its newest attempt began, in Unix seconds.
    ``alerts_sent``: by id of the incident, or by subject. ``oom_alert``: the facts of the last one that memory runs
    out.
    """

    history: RunHistory
    revisions: leases.Revisions
    rules: Sequence[tuple[Rule, State | None]]
    acknowledgements: Mapping[str, Sequence[Acknowledgement]]
    run: Mapping[str, Any]
    began_at: float
    incidents: Sequence[Incident]
    alerts_sent: Mapping[str, AlertHistory]
    oom_alert: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of an examination. ``as_json``: the verdict for storing. ``states``: of rules, by id.

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
    """Others have examined the run meanwhile, or changed a rule or an acknowledgement that it was examined by."""


def load(engine: Engine, run_id: str) -> Loaded:
    """Read a run as it is at this moment. Raises NoSuchRun, one of DATABASE_ERRORS, CorruptChunk."""
    with reading(engine) as connection:
        history, revision = load_for_examination(connection, run_id)
        row = runs.row_of(connection, run_id)
        assert row is not None
        run = runs.summary(row)
        sent = alert_rows.alert_histories(connection, run_id)
        return Loaded(
            history,
            leases.Revisions(revision, row.examined),
            assertions.rules_of(connection, run_id, run["project"], run["name"]),
            incident_groups.of_project(connection, run["project"]),
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
        leaks = [(project, fingerprint) for fingerprint in basis.acknowledgements]
        of_leaks = incident_groups.acknowledgements_of(connection, leaks)
        said = {leak[1]: of_leaks.get(leak, []) for leak in leaks}
        if Basis(replace(basis.revisions, examined=before.examined), rules, said) != basis:
            raise ChangedMeanwhile(run_id)
        findings.save(connection, examined.verdict, examined.as_json, examined.incidents)
        deliveries = 0
        if not run_deletion.is_deleted(connection, run_id):
            assertions.save_states(connection, run_id, examined.states)
            deliveries = alert_rows.add(connection, examined.alerts)
        return leases.saved(connection, run_id, basis.revisions.revision, before), deliveries
