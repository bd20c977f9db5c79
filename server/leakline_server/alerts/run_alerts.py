"""Alerts about events of a run other than leaks: memory will run out, or the run fell silent, was killed or finished.
Pure.

An out-of-memory forecast is independent of leaks: a buffer that fills up can cause a forecast, and a leak does not
always cause a forecast.

    last sent on this attempt    risk now high    risk now critical
    nothing, or a day ago        sent             sent
    high, within a day           -                sent
    critical, within a day       -                -

Each end is reported once per attempt, and so is each rank that was killed while other ranks continue. A silence is
reported only if the run has sent data since the last report. A run that falls silent repeatedly is reported three times
within an hour; the fourth message is a digest that covers all later silences until no silence has occurred for an hour,
or the run has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, Final

from leakline.analysis.results import to_json
from leakline.text_format import count_of, format_change, format_silence, seen_of
from leakline.transport.oom_inference import INTERRUPTED, UNWATCHED, said_at_end

from ..store.alerts.alert_rows import Alert, AlertHistory, SentAlert
from ..store.examinations import OOM
from .alert_payload import FINISHED, KILLED, OOM_RISK, SILENT, ExaminedRun, noted, run_facts
from .flapping import HOUR_SECONDS
from .incident_alerts import alert_id

RUN: Final = "run"
DAY_SECONDS: Final = 86_400.0
# The number of silences reported within an hour; the next message is a digest.
MAX_SILENCES: Final = 3
# An alert about a forecast expires no sooner than this, even if memory is forecast to run out earlier.
MIN_LIFE_SECONDS: Final = 60.0

_RISKS: Final = {"high": 1, "critical": 2}
_ENDS: Final = {
    "killed": KILLED, "finished": FINISHED, "failed": FINISHED, "interrupted": FINISHED,
}  # fmt: skip
_SAVE: Final = "Save a checkpoint before memory runs out."
_LOOK: Final = (
    "Check whether the process is still running: it may be hanging, may have been killed, or may be "
    "unable to reach the server."
)
_OTHERS: Final = "The other ranks may wait for this rank forever: check whether they make progress, or restart the run."
_AFTER: Final = "Restart from the last checkpoint; the run's page shows its last readings."


@dataclass(frozen=True, slots=True)
class LastOomAlert:
    """The last out-of-memory alert: its risk, attempt and time, and the number of such alerts sent so far."""

    risk: str
    attempt: int
    at: float
    count: int


def last_oom_alert(payload: Mapping[str, Any], at: float, count: int) -> LastOomAlert:
    """Return the last out-of-memory alert, read from the facts that `oom_alert` created."""
    return LastOomAlert(payload["forecast"]["risk"], payload["run"]["attempt"], at, count)


def oom_alert(run: ExaminedRun, last: LastOomAlert | None) -> Alert | None:
    """Return the alert that memory will run out, or None if no such alert is due."""
    risk = run.verdict.oom.risk
    if risk not in _RISKS or run.state != "running":
        return None
    if last is not None and _is_fresh(last, run) and _RISKS[risk] <= _RISKS.get(last.risk, 0):
        return None
    summary = f"Risk {risk}: {run.verdict.oom.sentence}"
    facts = run_facts(OOM_RISK, run, summary, [_SAVE])
    count = 0 if last is None else last.count
    return _alert(OOM_RISK, run, OOM, f"{_attempt(run)} {risk} {count}", facts, expiry(run))


def _is_fresh(last: LastOomAlert, run: ExaminedRun) -> bool:
    return last.attempt == run.attempt and run.at - last.at < DAY_SECONDS


def end_alert(run: ExaminedRun) -> Alert | None:
    """Return the alert that the run was killed or finished, or None if the run is running or ended over a day ago."""
    event = _ENDS.get(run.state)
    if event is None or run.at - (run.ended_at or run.at) > DAY_SECONDS:
        return None
    title, how = _end_words(run)
    said = said_at_end(to_json(run.verdict), run.state, run.reason)
    # The sentence already says how the run ended, unless it is just the verdict's summary.
    summary = said if said != run.verdict.summary else f"{how}. {said}"
    advice = [] if run.state == "finished" or _is_interrupted(run) else [_AFTER]
    facts = run_facts(event, run, summary, advice, title)
    return _alert(event, run, RUN, _attempt(run), facts)


def _end_words(run: ExaminedRun) -> tuple[str, str]:
    """Return a title and a sentence about the run's end.

    If only the recording ended, neither the title nor the sentence may claim that the program finished.
    """
    after, name = f"after {_generations(run)}", f"{run.project}/{run.name}"
    if run.state == "finished" and run.reason == UNWATCHED:
        return f"Run no longer watched: {name}", f"{after.capitalize()} {run.reason}"
    if _is_interrupted(run):
        return f"Run interrupted: {name}", f"Interrupted by Ctrl-C {after}"
    why = f" ({run.reason})" if run.reason else ""
    return f"Run {run.state}: {name}", f"{run.state.capitalize()}{why} {after}"


def _is_interrupted(run: ExaminedRun) -> bool:
    return run.state == "interrupted" or (run.state == "killed" and run.reason in INTERRUPTED)


def vanished_alert(run: ExaminedRun, rank: int, reason: str) -> Alert:
    """Return the alert that one process was killed while the run's other processes continue."""
    summary = f"Rank {rank} killed ({reason}) after {_generations(run)}; the other ranks continue."
    if run.verdict.status != "learning":
        summary += f" {run.verdict.summary}"
    title = f"Rank {rank} killed: {run.project}/{run.name}"
    facts = run_facts(KILLED, run, summary, [_OTHERS], title)
    return _alert(KILLED, run, RUN, f"{_attempt(run)} rank {rank}", facts)


def is_quiet(run: ExaminedRun, history: AlertHistory) -> bool:
    """Return True if a digest covers this silence. ``history`` contains the alerts about the run itself."""
    silences = _silences(history)
    until = silences[-1].quiet_until if silences else None
    return until is not None and run.at < until


def silent_alert(run: ExaminedRun, history: AlertHistory) -> Alert | None:
    """Return the alert that the run has sent nothing since ``last_seen_at``, or None if a digest covers it."""
    if is_quiet(run, history):
        return None
    seconds = max(0, round(run.at - run.last_seen_at))
    near = "The run was about to run out of memory. " if run.verdict.oom.risk == "critical" else ""
    heard = f"No data for {format_silence(seconds)}, after {_generations(run)}."
    summary = f"{heard} {near}{_said_until(run)}".rstrip()
    facts = run_facts(SILENT, run, summary, [_LOOK], f"Run silent: {run.project}/{run.name}")
    recent = [silence for silence in _silences(history) if silence.at > run.at - HOUR_SECONDS]
    quiet_until = None
    if len(recent) >= MAX_SILENCES:
        quiet_until = quiet_from(run.at)
        minutes = count_of(max(1, round((run.at - recent[0].at) / 60)), "minute")
        often = f"the run fell silent {len(recent) + 1} times in {minutes}"
        facts = noted(
            facts,
            f"{often}; the next alert follows when the run has sent data for an hour or has ended",
        )
    return _alert(SILENT, run, RUN, repr(run.last_seen_at), facts, quiet_until=quiet_until)


def _said_until(run: ExaminedRun) -> str:
    """Return a sentence about the run before it fell silent; an inconclusive verdict is left out."""
    verdict, growth = run.verdict, run.verdict.growth_bytes_per_generation
    is_named = any(finding.status == "watch" for finding in verdict.findings)
    if verdict.status != "learning" and (verdict.status != "watch" or is_named):
        return verdict.summary
    if growth is None:
        return ""
    return f"Before that, memory changed by {format_change(growth.estimate)} per {verdict.unit}."


def quiet_from(at: float) -> float:
    """Return the time until which a digest sent at ``at`` also covers later silences."""
    return at + HOUR_SECONDS


def _silences(history: AlertHistory) -> list[SentAlert]:
    """Return the silence alerts sent since the last alert of another kind."""
    return list(takewhile(lambda sent: sent.event == SILENT, reversed(history.alerts_sent)))[::-1]


def _attempt(run: ExaminedRun) -> str:
    """Return the key of an attempt: its start time, because its number increases if an earlier attempt reports late."""
    return repr(run.began_at)


def _alert(
    event: str,
    run: ExaminedRun,
    subject: str,
    ordinal: str,
    facts: Mapping[str, Any],
    expires_at: float | None = None,
    quiet_until: float | None = None,
) -> Alert:
    return Alert(
        id=alert_id(run.id, subject, event, ordinal),
        run_id=run.id,
        incident_id=None,
        event=event,
        created_at=run.at,
        payload=facts,
        subject=subject,
        urgent=event != FINISHED,
        expires_at=expires_at,
        quiet_until=quiet_until,
    )


def expiry(run: ExaminedRun) -> float | None:
    at = run.verdict.oom.at
    if at is None:
        return None
    return max(datetime.fromisoformat(at.estimate).timestamp(), run.at + MIN_LIFE_SECONDS)


def _generations(run: ExaminedRun) -> str:
    return seen_of(run.verdict.generations, run.verdict.generations_passed, run.verdict.unit)
