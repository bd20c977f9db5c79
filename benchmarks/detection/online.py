"""The analysis at every generation of a run, as a run watched live would have shown it.

As in the server, each look leaves to the next what it has worked out of older moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from leakline.analysis.forecast.oom_forecast import forecast
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.run_history import RunHistory
from leakline.analysis.status import walk
from leakline.analysis.timeline import timelines_of
from leakline.analysis.timeline_analysis import TimelineAnalysis

from .cases import Case
from .histories import Recording

Level = Literal["", "suspected", "confirmed"]
LEVELS: Final[tuple[Level, ...]] = ("confirmed", "suspected", "")


@dataclass(frozen=True, slots=True)
class Look:
    """After one generation: how sure the analysis is of a leak, and whether it expects memory to run out."""

    level: Level
    warned: bool


class _Watch:
    """One run of one process, looked at again and again as it grows."""

    def __init__(self) -> None:
        self._kept = Kept()

    def look(self, history: RunHistory) -> Look:
        (timeline,) = timelines_of(history)
        study = TimelineAnalysis(history, timeline)
        self._kept.give(study)
        moment, standings = walk(study)
        assert moment is not None
        shown = {standing.status for standing in standings}
        level: Level = next((name for name in LEVELS if name in shown), "")
        oom = forecast([(study, moment, standings)])
        self._kept.take([study])
        return Look(level, oom.risk != "none")


def looks(
    case: Case, *, witness: bool = False, declared: bool = True, end: int | None = None
) -> list[Look]:
    """One look after each reading, of the first ``end`` or of all."""
    watch, recording = _Watch(), Recording(case, witness=witness, declared=declared)
    last = len(case) if end is None else min(end, len(case))
    return [watch.look(recording.until(i + 1)) for i in range(last)]
