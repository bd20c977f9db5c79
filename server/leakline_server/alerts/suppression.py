"""What is still told of a leak after people have spoken of it. Pure.

    what holds      what is still told
    ignored         nothing
    closed          nothing of runs that began before; in later ones everything, with the note it was closed with
    acknowledged    nothing, until the leak is worse by a class than it was then: confirmed where it was suspected,
                    or of a higher priority. From there on that run's incident is told as ever

What was taken back is as if it had never been said. So is an acknowledgement that has expired, but for this: a leak
that still stands is told once more, whatever was told of it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nextafter
from typing import Final

from ..store.alerts.alert_rows import Told
from ..store.incidents.acknowledgements import Acknowledgement
from ..store.incidents.findings import IncidentChange
from .event_names import OPEN

_STATUSES: Final = {"suspected": 1, "confirmed": 2}
_PRIORITIES: Final = {"minor": 1, "major": 2, "critical": 3}


@dataclass(frozen=True, slots=True)
class Hearing:
    """``told``: what counts as told before. ``note``: what the leak was closed with, if it is back.

    ``expired``: what it was acknowledged with, if it was told before that, stands, and has to be told again.
    """

    told: Told
    note: str | None = None
    expired: str | None = None


def hearing(
    said: Sequence[Acknowledgement], change: IncidentChange, told: Told, began_at: float, now: float
) -> Hearing | None:
    """Whether people want to hear of this incident; None: no. ``began_at``: of the run's newest attempt."""
    holding = {one.kind: one for one in said if one.holds(now)}
    note = None
    if "ignored" in holding:
        return None
    closed = holding.get("closed")
    if closed is not None:
        if not is_back(closed, began_at):
            return None
        told, note = _since(told, closed.created_at, now), closed.reason
    acknowledged = holding.get("acknowledged")
    if acknowledged is not None:
        since = _since(told, acknowledged.created_at, now)
        if since.event is None and not _is_worse(change, acknowledged):
            return None
        return Hearing(since, note)
    expired = _expired(said, now)
    if expired is None or expired.expires_at is None or change.after not in _STATUSES:
        return Hearing(told, note)
    # It held no more at that moment, so what was told right then was told after it.
    since = told.since(nextafter(expired.expires_at, -inf))
    is_again = told.event in OPEN and since.event is None
    return Hearing(since, note, expired.reason if is_again else None)


def is_back(closed: Acknowledgement, began_at: float) -> bool:
    """Whether a run that began then runs what was changed when the leak was closed."""
    return began_at > closed.created_at


def _expired(said: Sequence[Acknowledgement], now: float) -> Acknowledgement | None:
    """The newest acknowledgement, if it ran out and was not taken back."""
    newest = next((one for one in reversed(said) if one.kind == "acknowledged"), None)
    if newest is None or newest.ended_at is not None or newest.holds(now):
        return None
    return newest


def _since(told: Told, at: float, now: float) -> Told:
    """What was told after ``at``. A clock that is behind it cannot say: then all counts, or each look would tell."""
    return told.since(at) if now > at else told


def _is_worse(change: IncidentChange, then: Acknowledgement) -> bool:
    if change.after not in _STATUSES:
        return False
    status, priority = _STATUSES[change.after], _PRIORITIES[change.finding.priority]
    # One that had stopped and grows again is as bad as suspected.
    return status > _STATUSES.get(then.status, 1) or priority > _PRIORITIES.get(then.priority, 1)
