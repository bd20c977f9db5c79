"""What is told of a run besides its leaks: that memory will run out, that it fell silent, was killed or finished.

Pure. Memory that runs out is a question of its own: a filling buffer can bring it about, a leak need not.

    last told of this attempt       risk now high    risk now critical
    nothing, or a day ago           told             told
    high, within a day              -                told
    critical, within a day          -                -

Each end is told once in an attempt; silence each time the run has spoken before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from leakline.analysis.wording import count_of

from ..store.alerts import Alert
from .events import FINISHED, KILLED, OOM_RISK, SILENT
from .payload import ExaminedRun, forecast_text, run_facts
from .rules import alert_id

OOM: Final = "oom"
RUN: Final = "run"
DAY_SECONDS: Final = 86_400.0
# A forecast is worth telling for so long at least, be its moment ever so near.
MIN_LIFE_SECONDS: Final = 60.0

_RISKS: Final = {"high": 1, "critical": 2}
_ENDS: Final = {"killed": KILLED, "finished": FINISHED, "failed": FINISHED}
_SAVE: Final = "Save a checkpoint before memory runs out."
_LOOK: Final = (
    "See whether the process still runs: it may hang, have been killed, or not reach the server."
)
_AFTER: Final = "Start again from the last checkpoint; the run's page shows its last readings."


@dataclass(frozen=True, slots=True)
class OomTold:
    """What was last told of memory running out: its risk, the attempt, when, and how many times anything was."""

    risk: str
    attempt: int
    at: float
    count: int


def oom_told(payload: Mapping[str, Any], at: float, count: int) -> OomTold:
    """From the facts that `oom_alert` made."""
    return OomTold(payload["forecast"]["risk"], payload["run"]["attempt"], at, count)


def oom_alert(run: ExaminedRun, told: OomTold | None) -> Alert | None:
    """That memory will run out, if it has to be told now."""
    risk = run.verdict.oom.risk
    if risk not in _RISKS or run.state != "running":
        return None
    if told is not None and _is_fresh(told, run) and _RISKS[risk] <= _RISKS.get(told.risk, 0):
        return None
    summary = f"Risk {risk}: {forecast_text(run.verdict.oom, run.verdict.unit)}"
    facts = run_facts(OOM_RISK, run, summary, [_SAVE])
    count = 0 if told is None else told.count
    return _alert(OOM_RISK, run, OOM, f"{run.attempt} {risk} {count}", facts, expiry(run))


def _is_fresh(told: OomTold, run: ExaminedRun) -> bool:
    return told.attempt == run.attempt and run.at - told.at < DAY_SECONDS


def end_alert(run: ExaminedRun) -> Alert | None:
    """That the run was killed or finished; None while it goes on, and for what ended more than a day ago."""
    event = _ENDS.get(run.state)
    if event is None or run.at - (run.ended_at or run.at) > DAY_SECONDS:
        return None
    why = f" ({run.reason})" if run.reason else ""
    summary = f"{run.state.capitalize()}{why} after {_generations(run)}. {run.verdict.summary}"
    title = f"Run {run.state}: {run.project}/{run.name}"
    facts = run_facts(event, run, summary, [_AFTER] if run.state != "finished" else [], title)
    return _alert(event, run, RUN, str(run.attempt), facts)


def silent_alert(run: ExaminedRun) -> Alert:
    """That nothing was heard of the run since ``last_seen_at``."""
    seconds = max(0, round(run.at - run.last_seen_at))
    near = "Its memory was about to run out. " if run.verdict.oom.risk == "critical" else ""
    heard = f"Nothing heard for {_for_seconds(seconds)}, after {_generations(run)}."
    summary = f"{heard} {near}{run.verdict.summary}"
    facts = run_facts(SILENT, run, summary, [_LOOK], f"Run silent: {run.project}/{run.name}")
    return _alert(SILENT, run, RUN, f"{run.attempt} {run.last_seen_at!r}", facts)


def _alert(
    event: str,
    run: ExaminedRun,
    subject: str,
    ordinal: str,
    facts: Mapping[str, Any],
    expires_at: float | None = None,
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
    )


def expiry(run: ExaminedRun) -> float | None:
    at = run.verdict.oom.at
    if at is None:
        return None
    return max(datetime.fromisoformat(at.estimate).timestamp(), run.at + MIN_LIFE_SECONDS)


def _generations(run: ExaminedRun) -> str:
    return count_of(run.verdict.generations, run.verdict.unit)


def _for_seconds(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"
