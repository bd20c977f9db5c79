"""The analysis after every generation of a run, as a run watched live would have shown it.

As in the server, each examination reuses results of the previous one.
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
    """The result after one generation: the strongest leak status, and whether memory is expected to run out."""

    level: Level
    warned: bool


class _Watch:
    """One run of one process, examined repeatedly as it grows."""

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
    """Return one result after each of the first ``end`` readings, or of all."""
    watch, recording = _Watch(), Recording(case, witness=witness, declared=declared)
    last = len(case) if end is None else min(end, len(case))
    return [watch.look(recording.until(i + 1)) for i in range(last)]
