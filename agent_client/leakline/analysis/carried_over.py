"""Leaks found by the second, carried over to minutes.

A run that is counted by seconds goes on by the minute after ten of them. Ten minutes are too few to judge by, so what
was suspected or confirmed by seconds stands until minutes show that it has stopped.

A program that loads in a straight line for all of the first minutes cannot be told from a leak by then: it is
recovered once minutes are flat, and ok once there are enough of them to judge without the seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .candidates import Candidate
from .history import MINUTE_SECONDS, ProcessHistory, RunHistory
from .kept import Kept
from .ladder import ACTIVE, Standing, walk
from .series import lanes_of
from .study import Assessed, LaneStudy
from .units import COUNTED_BY_SECONDS_UP_TO

# From so many minutes on they say all that there is to say.
_ENOUGH_MINUTES: Final = 48


def active_by_seconds(
    history: RunHistory, studies: Sequence[LaneStudy], kept: Kept | None = None
) -> dict[str, list[Standing]]:
    """Return process place -> the leaks that were active when seconds became minutes, in bytes per minute.

    Empty for other runs, and once there are minutes enough. ``kept``: what an earlier examination of the same seconds
    has left.
    """
    if (
        not history.began_by_seconds
        or max((len(s.lane) for s in studies), default=0) > _ENOUGH_MINUTES
    ):
        return {}
    first = tuple(_first_minutes(process) for process in history.processes if len(process))
    early = replace(history, unit="second", total=None, processes=first)
    by_second = [LaneStudy(early, lane) for lane in lanes_of(early)]
    if kept is not None:
        for study in by_second:
            kept.of_seconds.give(study)
    found = {}
    for study in by_second:
        _, standings = walk(study)
        active = [
            replace(s, assessed=_by_minute(s.assessed)) for s in standings if s.status in ACTIVE
        ]
        if active:
            found[study.lane.name] = active
    if kept is not None:
        kept.of_seconds.take(by_second)
    return found


def minutes_carried(study: LaneStudy) -> int:
    """Return how many minutes of a lane were judged by seconds."""
    return bisect_right(study.lane.generations, COUNTED_BY_SECONDS_UP_TO / MINUTE_SECONDS - 1)


def _first_minutes(process: ProcessHistory) -> ProcessHistory:
    rows = bisect_right(process.monotonic, process.monotonic[0] + COUNTED_BY_SECONDS_UP_TO)
    return replace(process.picked(lambda column: column[:rows]), unit_seconds=1.0)


def _by_minute(a: Assessed) -> Assessed:
    """Return the same growth per minute."""
    cause, n = a.cause, MINUTE_SECONDS
    cause = replace(
        cause, rate=cause.rate.scaled(n), members=tuple(_member_by_minute(c) for c in cause.members),
        measured=None if cause.measured is None else cause.measured * n,
    )  # fmt: skip
    start = None if a.start is None else (a.start[0] // n, a.start[1] // n, a.start[2] // n)
    return replace(a, cause=cause, start=start, window=max(1.0, a.window / n))


def _member_by_minute(c: Candidate) -> Candidate:
    g, n = c.growth, MINUTE_SECONDS
    growth = replace(
        g, slope=g.slope * n, low=g.low * n, high=g.high * n, start=g.start // n, start_low=g.start_low // n,
        start_high=g.start_high // n, generations=max(1.0, g.generations / n), period=None,
    )  # fmt: skip
    return replace(c, growth=growth, bytes_rate=None if c.bytes_rate is None else c.bytes_rate * n)
