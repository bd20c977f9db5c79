"""Examinations of runs: one consistent read of the inputs of a verdict, and one transaction for its results.

A write transaction blocks all other writers of an SQLite database, so the slow analysis runs between the two steps. If
the inputs have changed in the meantime, `save` raises an exception and the run is examined again.
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

# The subject of out-of-memory forecast alerts.
OOM: Final = "oom"


@dataclass(frozen=True, slots=True)
class Basis:
    """The inputs of an examination that users and other servers may change while it runs.

    ``rules``: the rules that apply to the run, each with its last state for the run. ``acknowledgements``: the
    acknowledgements of the run's leaks, by fingerprint, oldest first; a leak without acknowledgements has an empty
    list.
    """

    revisions: leases.Revisions
    rules: Sequence[tuple[Rule, State | None]]
    acknowledgements: Mapping[str, Sequence[Acknowledgement]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The inputs of an examination.

    ``run``: the run's RunSummary. ``rules``: see `Basis`. ``acknowledgements``: the acknowledgements of all leaks in
    the project, because a leak found in this run may be known from other runs. ``began_at``: when the run's newest
    attempt began, in Unix seconds. ``alerts_sent``: the alert histories by incident id or subject. ``oom_alert``: the
    payload of the last out-of-memory forecast alert.
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
    """The result of an examination.

    ``as_json``: the verdict for storage. ``states``: the rule states, by rule id. ``at``: the time in Unix seconds.
    ``cpu_seconds``: the CPU time used outside the server's own process.
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
    """Raised when another server examined the run, or its rules or acknowledgements changed, in the meantime."""


def load(engine: Engine, run_id: str) -> Loaded:
    """Read the inputs for examining a run in one consistent view. Raises NoSuchRun, DATABASE_ERRORS, CorruptChunk."""
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
    """Write the verdict, its incidents, the rule states, the alerts and their deliveries in one transaction.

    Return (examined revision, number of deliveries). Return None if another server has examined a later revision, or if
    the run was removed. Raises ChangedMeanwhile. Deleted runs get no alerts.
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
