"""What is still told of a leak after people have spoken of it. Pure.

    what holds      what is still told
    ignored         nothing
    closed          nothing of runs that began before; in later ones everything, with the note it was closed with
    acknowledged    nothing, until the leak is worse by a class than it was then: confirmed where it was suspected,
                    or of a higher priority. From there on that run's incident is told as ever

What has expired or was taken back is as if it had never been said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..store.acknowledgements import Acknowledgement
from ..store.alerts import Told
from ..store.findings import IncidentChange

_STATUSES: Final = {"suspected": 1, "confirmed": 2}
_PRIORITIES: Final = {"minor": 1, "major": 2, "critical": 3}


@dataclass(frozen=True, slots=True)
class Hearing:
    """``told``: what counts as told before. ``note``: what the leak was closed with, if it is back."""

    told: Told
    note: str | None = None


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
        told, note = told.since(closed.created_at), closed.reason
    acknowledged = holding.get("acknowledged")
    if acknowledged is not None:
        since = told.since(acknowledged.created_at)
        if since.event is None and not _is_worse(change, acknowledged):
            return None
        told = since
    return Hearing(told, note)


def is_back(closed: Acknowledgement, began_at: float) -> bool:
    """Whether a run that began then runs what was changed when the leak was closed."""
    return began_at > closed.created_at


def _is_worse(change: IncidentChange, then: Acknowledgement) -> bool:
    if change.after not in _STATUSES:
        return False
    status, priority = _STATUSES[change.after], _PRIORITIES[change.finding.priority]
    # One that had stopped and grows again is as bad as suspected.
    return status > _STATUSES.get(then.status, 1) or priority > _PRIORITIES.get(then.priority, 1)
