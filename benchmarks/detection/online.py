"""The analysis at every generation of a run, as a run watched live would have shown it.

What ``examine`` works out for an older moment stays the same while a run goes on, so here it is kept from one
generation to the next. A test holds that each look equals what ``examine`` says of the same prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from leakline.analysis.assess import assess
from leakline.analysis.channels import Channel
from leakline.analysis.evidence import Rise
from leakline.analysis.forecast import forecast
from leakline.analysis.history import RunHistory
from leakline.analysis.ladder import moments_of, step
from leakline.analysis.series import Lane, lanes_of
from leakline.analysis.study import LaneStudy, Moment

from .cases import Case
from .histories import Recording

Level = Literal["", "suspected", "confirmed"]
LEVELS: Final[tuple[Level, ...]] = ("confirmed", "suspected", "")


@dataclass(frozen=True, slots=True)
class Look:
    """After one generation: how sure the analysis is of a leak, and whether it expects memory to run out."""

    level: Level
    warned: bool


class _Study(LaneStudy):
    """A study that keeps what its predecessors measured of the same readings."""

    def __init__(self, history: RunHistory, lane: Lane, kept: dict[tuple[str, int], Rise]) -> None:
        super().__init__(history, lane)
        self._kept = kept

    def rise(self, upto: int) -> Rise:
        if ("", upto) not in self._kept:
            self._kept["", upto] = super().rise(upto)
        return self._kept["", upto]

    def channel_rise(self, channel: Channel, upto: int) -> Rise:
        if (channel.name, upto) not in self._kept:
            self._kept[channel.name, upto] = super().channel_rise(channel, upto)
        return self._kept[channel.name, upto]


class _Watch:
    """One run of one process, looked at again and again as it grows."""

    def __init__(self) -> None:
        self._moments: dict[int, Moment] = {}
        self._rises: dict[tuple[str, int], Rise] = {}
        self._past: list[tuple[int, float]] = []

    def look(self, history: RunHistory) -> Look:
        (lane,) = lanes_of(history)
        self._forget_unless_it_goes_on(lane)
        study = _Study(history, lane, self._rises)
        remembered: dict[str, object] = {}
        for upto in moments_of(len(lane)):
            if upto not in self._moments:
                self._moments[upto] = assess(study, upto)
            step(study, self._moments[upto], remembered)  # type: ignore[arg-type]
        shown = {memory.status for memory in remembered.values()}  # type: ignore[attr-defined]
        level: Level = next((name for name in LEVELS if name in shown), "")
        oom = forecast([study], [self._moments[len(lane)]], growing=bool(level))
        return Look(level, oom.risk != "none")

    def _forget_unless_it_goes_on(self, lane: Lane) -> None:
        """A resume repeats generations and moves all that follow: then nothing of before can be kept."""
        now = list(zip(lane.generations, lane.private, strict=True))
        if now[: len(self._past)] != self._past:
            self._moments.clear()
            self._rises.clear()
        self._past = now


def looks(
    case: Case, *, witness: bool = False, declared: bool = True, upto: int | None = None
) -> list[Look]:
    """One look after each reading, of the first ``upto`` or of all."""
    watch, recording = _Watch(), Recording(case, witness=witness, declared=declared)
    last = len(case) if upto is None else min(upto, len(case))
    return [watch.look(recording.upto(i + 1)) for i in range(last)]
