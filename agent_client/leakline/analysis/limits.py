"""Where memory ends: the user's word, the container's limit, or the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .history import RunHistory
from .series import Lane


@dataclass(frozen=True, slots=True)
class Limit:
    bytes: float
    source: Literal["cgroup", "system", "user"]


def limit_of(history: RunHistory, lane: Lane) -> Limit | None:
    """The smallest limit that holds; the machine's own memory only when nothing smaller is set."""
    if history.limit_bytes:
        return Limit(float(history.limit_bytes), "user")
    system = newest(lane, "system.total_bytes")
    group = newest(lane, "cgroup.limit_bytes")
    if group and (system is None or group < system):
        return Limit(group, "cgroup")
    return Limit(system, "system") if system else None


def newest(lane: Lane, series: str) -> float | None:
    """The last reading of a series, in any kind of snapshot."""
    for value in reversed(lane.series.get(series, ())):
        if value is not None:
            return float(value)
    return None
