"""What has to be told of a run that was examined, or that fell silent: reads what was told and said, asks the rules.

All within the transaction of the verdict; the caller writes the alerts and commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leakline.analysis.results import Verdict

from ..alerts.alert_payload import ExaminedRun
from ..alerts.incident_alerts import alerts_for
from ..alerts.rules.rule_alerts import Looks, alerts_of_rules
from ..alerts.run_alerts import (
    OOM,
    RUN,
    OomTold,
    end_alert,
    is_quiet,
    oom_alert,
    oom_told,
    quiet_from,
    silent_alert,
    vanished_alert,
)
from ..store import findings, incident_groups
from ..store.alerts import alert_rows
from ..store.alerts.alert_rows import Alert, Told
from ..store.engine import Connection
from ..store.findings import IncidentChange
from ..store.maintenance import run_deletion
from ..store.runs import runs
from ..store.runs.lifecycle import Concluded


def examined_run(
    connection: Connection, run: Mapping[str, Any], verdict: Verdict, now: float
) -> ExaminedRun:
    """Return the run with its verdict. ``run`` is its RunSummary, ``now`` in Unix seconds."""
    return ExaminedRun(
        run["id"], run["project"], run["name"], verdict, now, run["state"], run["attempt"], run["reason"],
        began_at=incident_groups.began_at(connection, run["id"]),
        last_seen_at=runs.unix(run["last_seen_at"]),
        ended_at=None if run["ended_at"] is None else runs.unix(run["ended_at"]),
    )  # fmt: skip


def alerts_of(
    connection: Connection,
    looks: Looks,
    changes: Sequence[IncidentChange],
    examined: ExaminedRun,
) -> list[Alert]:
    """Of the incidents that changed, of the run itself, and of what people set rules for (``looks`` at them).

    Of a deleted run nothing is told, nor later what it would have been.
    """
    if run_deletion.is_deleted(connection, examined.id):
        return []
    told = alert_rows.told(connection, examined.id)
    return [
        *_of_incidents(connection, changes, told, examined),
        *_of_run(connection, told, examined),
        *alerts_of_rules(connection, looks, examined),
    ]


def alerts_of_silence(connection: Connection, concluded: Concluded, now: float) -> list[Alert]:
    """Of runs that fell silent, or were killed, and of processes that were killed while others go on."""
    found = [
        _of_silent_run(connection, run_id, now)
        for run_id in concluded.runs
        if not run_deletion.is_deleted(connection, run_id)
    ]
    for vanished in concluded.processes:
        if run_deletion.is_deleted(connection, vanished.run_id):
            continue
        examined = _examined_last(connection, vanished.run_id, now)
        found.append(vanished_alert(examined, vanished.rank, vanished.reason))
    return [alert for alert in found if alert is not None]


def _of_silent_run(connection: Connection, run_id: str, now: float) -> Alert | None:
    examined = _examined_last(connection, run_id, now)
    if examined.state != "silent":
        return end_alert(examined)
    told = alert_rows.told(connection, examined.id).get(RUN, Told())
    if is_quiet(examined, told):
        alert_rows.keep_quiet(connection, examined.id, RUN, quiet_from(now))
    return silent_alert(examined, told)


def _examined_last(connection: Connection, run_id: str, now: float) -> ExaminedRun:
    """With the verdict of the last look at it."""
    row = runs.row_of(connection, run_id)
    assert row is not None
    run = runs.summary(row)
    return examined_run(connection, run, findings.verdict_of(connection, run_id, run["unit"]), now)


def _of_incidents(
    connection: Connection,
    changes: Sequence[IncidentChange],
    told: Mapping[str, Told],
    examined: ExaminedRun,
) -> list[Alert]:
    """What has to be told of changes now, and of earlier ones that were kept back then."""
    said = incident_groups.of_run(connection, examined.project, examined.id)
    if said or told:
        changes = [*changes, *findings.unmoved(connection, examined.id, changes, examined.at)]
    return alerts_for(changes, told, examined, said)


def _of_run(connection: Connection, told: Mapping[str, Told], examined: ExaminedRun) -> list[Alert]:
    """Its end, and that its memory runs out."""
    found = (end_alert(examined), oom_alert(examined, _oom_told(connection, told, examined)))
    return [alert for alert in found if alert is not None]


def _oom_told(
    connection: Connection, told: Mapping[str, Told], examined: ExaminedRun
) -> OomTold | None:
    facts = alert_rows.last_payload(connection, examined.id, OOM) if OOM in told else None
    if facts is None:
        return None
    return oom_told(facts, told[OOM].tellings[-1].at, told[OOM].count)
