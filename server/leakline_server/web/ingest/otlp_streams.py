"""What is remembered of the runs that come as OTLP: which of their points are stored already.

Points have times and no numbers. What was stored is known by its moment, its generation, its phase and its series:
one collection may come in several requests, each with other series, and any request may come twice. An SDK reports the
end of a phase in each export until the next: that is one end.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from leakline.snapshot import Snapshot

from ...ingest.otlp_metrics import TOGETHER_SECONDS

# Resources remembered; of others the newest snapshots are asked for again.
MAX_STREAMS: Final = 2_000
MAX_PHASES: Final = 64
# Snapshots of one of them, newest last.
REMEMBERED: Final = 64
FEW_POINTS: Final = 64
# So far ahead of ours a clock is wrong, and not in another zone.
FAR_AHEAD_SECONDS: Final = 86_400.0

_Samples = Mapping[str, int | float]
_Point = tuple[int | None, str | None, str]


@dataclass(slots=True)
class Stream:
    """Of one resource: the newest number and its time, and what is stored. One request at a time adds to it."""

    sequence: int = 0
    time: float = -1.0
    joined: bool = False
    # Times of what was stored last, in order.
    times: list[float] = field(default_factory=list)
    # Of the newest moment: point -> when. Some of before may be among them, up to so many.
    points: dict[_Point, float] = field(default_factory=dict)
    most_points: int = FEW_POINTS
    # Phase -> what its newest end reported.
    phases: dict[str, tuple[int | None, dict[str, int | float]]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def forget(self) -> None:
        self.sequence, self.time = 0, -1.0
        self.times, self.points = [], {}

    def follow_clock(self, sent: float, now: float) -> None:
        """Where a clock was far ahead and has been set right, nothing is late: else it would be so for as long."""
        if self.time > now + FAR_AHEAD_SECONDS >= sent:
            self.time, self.times, self.points = -1.0, [], {}

    def remember(
        self,
        sequence: int,
        time: float,
        generation: int | None,
        phase: str | None,
        samples: _Samples,
    ) -> None:
        self.sequence, self.time = sequence, max(self.time, time)
        self.times = [*self.times[-REMEMBERED + 1 :], time]
        self.points.update({(generation, phase, series): time for series in samples})
        if len(self.points) > self.most_points:
            self._forget_points()
        if phase is not None and (phase in self.phases or len(self.phases) < MAX_PHASES):
            before = self.phases.get(phase)
            if before is not None and before[0] == generation:
                before[1].update(samples)
            else:
                self.phases[phase] = (generation, dict(samples))

    def _forget_points(self) -> None:
        """Those of moments before the newest. None does harm: so it is done each time when they have doubled, since to
        look at all of them for each snapshot costs the square of what a request may tell."""
        begins = self.time - TOGETHER_SECONDS
        self.points = {point: at for point, at in self.points.items() if at >= begins}
        self.most_points = max(FEW_POINTS, 2 * len(self.points))

    def news(self, sent: Iterable[Snapshot]) -> tuple[list[Snapshot], int]:
        """What is not stored yet, and how many points cannot be, because newer ones are."""
        phases: dict[str, tuple[int | None, _Samples]] = dict(self.phases)
        newer, late = [], 0
        for snapshot in sent:
            new = self._new_of(snapshot)
            if new is None:
                late += len(snapshot.samples) if self._is_unknown(snapshot.time) else 0
            elif snapshot.phase is None:
                newer.append(new)
            elif not _has_been_sent(phases.get(snapshot.phase), new):
                phases[snapshot.phase] = (new.generation, new.samples)
                newer.append(new)
        return newer, late

    def _new_of(self, snapshot: Snapshot) -> Snapshot | None:
        if snapshot.time > self.time:
            return snapshot
        if snapshot.time < self.time - TOGETHER_SECONDS:
            return None
        where = (snapshot.generation, snapshot.phase)
        samples = {
            series: value
            for series, value in snapshot.samples.items()
            if self.points.get((*where, series), -1.0) < snapshot.time
        }
        return (
            replace(snapshot, samples=samples, time=self.time, monotonic=self.time)
            if samples
            else None
        )

    def _is_unknown(self, time: float) -> bool:
        """A moment that nothing is stored of; one before all that is remembered may have been, where there was more."""
        is_remembered = bool(self.times) and (
            time > self.times[0] or self.sequence <= len(self.times)
        )
        return is_remembered and all(abs(stored - time) > TOGETHER_SECONDS for stored in self.times)


def _has_been_sent(before: tuple[int | None, _Samples] | None, now: Snapshot) -> bool:
    return (
        before is not None
        and before[0] == now.generation
        and now.samples.items() <= before[1].items()
    )


class Streams:
    """Of one application."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], Stream] = OrderedDict()

    def of(self, project: str, run_id: str) -> Stream:
        """What was joined in one project is not joined in another, which may name the same run."""
        stream = self._streams.setdefault((project, run_id), Stream())
        self._streams.move_to_end((project, run_id))
        while len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return stream
