"""Suppresses flapping: an incident that opens and closes repeatedly is reported once, as a digest. Pure.

A turn is an alert that opens a closed incident or closes an open one. A change is sent according to this table:

    turns sent in an hour, including this one    sent last    status unchanged         this change is sent
    up to 4                                      a change     -                        as it is
    more than 4                                  a change     -                        as a digest
    -                                            a digest     for less than an hour    not at all
    -                                            a digest     for an hour or more      as it is

One exception: the first confirmation of an incident is always reported, as another digest if necessary.

Before these rules apply, the end of an incident must have lasted for thirty generations (at least ten minutes, at most
a day), or the run must have ended: a leak can disappear in noise and be detected again later although it never stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from leakline.text_format import count_of, format_times

from ..store.alerts.alert_rows import AlertHistory, SentAlert
from ..store.runs.runs import ENDED
from .alert_payload import CERTAIN, OPEN, ExaminedRun

HOUR_SECONDS: Final = 3600.0
MAX_TURNS: Final = 4
# After a digest, changes are reported only if the status has been unchanged for this long.
STILL_SECONDS: Final = 3600.0

# How long the end of an incident must last before it is reported.
END_GENERATIONS: Final = 30
MIN_END_SECONDS: Final = 600.0
MAX_END_SECONDS: Final = 86_400.0

Way = Literal["change", "digest"]


def way_to_tell(event: str, history: AlertHistory, at: float, still_seconds: float) -> Way | None:
    """Return how to report ``event`` at ``at``, or None if it must not be reported.

    ``still_seconds`` is the time for which the status has not changed.
    """
    if is_quiet(history) and still_seconds < STILL_SECONDS:
        first = event in CERTAIN and not any(t.event in CERTAIN for t in history.alerts_sent)
        return "digest" if first else None
    opened, closed = _turns(_within_the_hour(event, history.alerts_sent, at))
    return "digest" if opened + closed > MAX_TURNS else "change"


def is_believed(event: str, stood_seconds: float, run: ExaminedRun) -> bool:
    """Return True if the event may be reported. The end of an incident must have lasted long enough."""
    if event in OPEN or run.state in ENDED or not run.began_at:
        return True
    each_seconds = (run.at - run.began_at) / max(1, run.verdict.generations)
    patience = min(max(MIN_END_SECONDS, END_GENERATIONS * each_seconds), MAX_END_SECONDS)
    return stood_seconds >= patience


def is_quiet(history: AlertHistory) -> bool:
    """Return True if the last alert was a digest."""
    return bool(history.alerts_sent) and history.alerts_sent[-1].digest


def digest_sentence(event: str, history: AlertHistory, at: float) -> str:
    """Return a sentence like ``flapping: opened 3 times and closed twice in 20 minutes; ...``."""
    recent = _within_the_hour(event, history.alerts_sent, at)
    opened, closed = _turns(recent)
    minutes = max(1, round((at - recent[0].at) / 60))
    return (
        f"flapping: opened {format_times(opened)} and closed {format_times(closed)} in "
        f"{count_of(minutes, 'minute')}; the next alert follows when the status has not changed for an hour"
    )


def _within_the_hour(
    event: str, alerts_sent: Iterable[SentAlert], at: float
) -> Sequence[SentAlert]:
    recent = [alert for alert in alerts_sent if alert.at > at - HOUR_SECONDS]
    return [*recent, SentAlert(event, at)]


def _turns(alerts_sent: Sequence[SentAlert]) -> tuple[int, int]:
    """Return how often the incident opened and closed. Alerts that repeat the previous state do not count."""
    opened = closed = 0
    was_open: bool | None = None
    for alert in alerts_sent:
        is_open = alert.event in OPEN
        if is_open is not was_open:
            opened, closed = opened + is_open, closed + (not is_open)
        was_open = is_open
    return opened, closed
