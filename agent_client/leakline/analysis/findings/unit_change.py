"""Leaks found by the second, carried over to minutes.

A run that is counted by seconds goes on by the minute after ten of them. Ten minutes are too few to judge by, so what
was suspected or confirmed by seconds stands until minutes show that it has stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..attribution.candidates import Candidate
from ..generation_unit import COUNTED_BY_SECONDS_UP_TO
from ..run_history import MINUTE_SECONDS, ProcessHistory, RunHistory
from ..status import ACTIVE, Standing, walk
from ..timeline import lanes_of
from ..timeline_analysis import Assessed, LaneStudy

# From so many minutes on they say all that there is to say.
_ENOUGH_MINUTES: Final = 48


def studies_by_seconds(history: RunHistory, studies: Sequence[LaneStudy]) -> list[LaneStudy]:
    """Return the first minutes of a run that was counted by seconds when they were read.

    Empty for other runs, and once there are minutes enough.
    """
    if (
        not history.began_by_seconds
        or max((len(s.lane) for s in studies), default=0) > _ENOUGH_MINUTES
    ):
        return []
    first = tuple(_first_minutes(process) for process in history.processes if len(process))
    early = replace(history, unit="second", total=None, processes=first)
    return [LaneStudy(early, lane) for lane in lanes_of(early)]


def active_by_seconds(early: Sequence[LaneStudy]) -> dict[str, list[Standing]]:
    """Return process place -> the leaks that were active when seconds became minutes, in bytes per minute."""
    found = {}
    for study in early:
        _, standings = walk(study)
        active = [
            replace(s, assessed=_by_minute(s.assessed)) for s in standings if s.status in ACTIVE
        ]
        if active:
            found[study.lane.name] = active
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
