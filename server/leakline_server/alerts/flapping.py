"""An incident that opens and ends again and again is reported once as a digest. Pure.

A turn is an alert after which the incident is open and was not, or the other way round. A change is sent so:

    turns sent within the hour, with this one    sent last    its status has lasted    it is sent
    up to 4                                      a change     -                        as it is
    more than 4                                  a change     -                        as a digest
    -                                            a digest     for less than an hour    not at all
    -                                            a digest     for an hour or more      as it is

The one exception: an incident that is confirmed for the first time is reported even then, as another digest.

Before all this, an end is believed only when it has stood for thirty generations (ten minutes at least, a day at most),
or when the run has ended: a leak that hides in noise is lost from sight and found again, and was there all the time.
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
# A digest was reported: what comes is reported when the status has stood for so long.
STILL_SECONDS: Final = 3600.0

# An end is reported when it has stood for so long.
END_GENERATIONS: Final = 30
MIN_END_SECONDS: Final = 600.0
MAX_END_SECONDS: Final = 86_400.0

Way = Literal["change", "digest"]


def way_to_tell(event: str, history: AlertHistory, at: float, still_seconds: float) -> Way | None:
    """How ``event`` is reported at ``at``, or None. ``still_seconds``: how long the status stood before."""
    if is_quiet(history) and still_seconds < STILL_SECONDS:
        first = event in CERTAIN and not any(t.event in CERTAIN for t in history.alerts_sent)
        return "digest" if first else None
    opened, closed = _turns(_within_the_hour(event, history.alerts_sent, at))
    return "digest" if opened + closed > MAX_TURNS else "change"


def is_believed(event: str, stood_seconds: float, run: ExaminedRun) -> bool:
    """Whether an end has stood for long enough to be reported; what is no end is always believed."""
    if event in OPEN or run.state in ENDED or not run.began_at:
        return True
    each_seconds = (run.at - run.began_at) / max(1, run.verdict.generations)
    patience = min(max(MIN_END_SECONDS, END_GENERATIONS * each_seconds), MAX_END_SECONDS)
    return stood_seconds >= patience


def is_quiet(history: AlertHistory) -> bool:
    """Whether a digest was reported last."""
    return bool(history.alerts_sent) and history.alerts_sent[-1].digest


def digest_sentence(event: str, history: AlertHistory, at: float) -> str:
    """``flapping: opened 3 times and closed twice in 20 minutes; ...``"""
    recent = _within_the_hour(event, history.alerts_sent, at)
    opened, closed = _turns(recent)
    minutes = max(1, round((at - recent[0].at) / 60))
    return (
        f"flapping: opened {format_times(opened)} and closed {format_times(closed)} in "
        f"{count_of(minutes, 'minute')}; sent again when it has lasted for an hour"
    )


def _within_the_hour(
    event: str, alerts_sent: Iterable[SentAlert], at: float
) -> Sequence[SentAlert]:
    recent = [alert for alert in alerts_sent if alert.at > at - HOUR_SECONDS]
    return [*recent, SentAlert(event, at)]


def _turns(alerts_sent: Sequence[SentAlert]) -> tuple[int, int]:
    """(how often it opened, how often it closed): what follows its own kind is no turn. The first is one."""
    opened = closed = 0
    was_open: bool | None = None
    for alert in alerts_sent:
        is_open = alert.event in OPEN
        if is_open is not was_open:
            opened, closed = opened + is_open, closed + (not is_open)
        was_open = is_open
    return opened, closed
