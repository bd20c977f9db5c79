"""State of the runs that send OTLP: the points that are already stored.

Points have times but no sequence numbers. A stored point is identified by its time, generation,
phase and series: one collection may be split into requests with different series, and any request
may be repeated. An SDK repeats the end of a phase in each export until the next end; the
repetitions count as one end.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from leakline.snapshot import Snapshot

from ...ingest.otlp_metrics import TOGETHER_SECONDS

# The number of resources remembered; for other resources, the newest snapshots are read again.
MAX_STREAMS: Final = 2_000
MAX_PHASES: Final = 64
# Snapshots remembered per resource, newest last.
REMEMBERED: Final = 64
FEW_POINTS: Final = 64
# A clock this far ahead is wrong; the difference is too large for a time zone.
FAR_AHEAD_SECONDS: Final = 86_400.0

_Samples = Mapping[str, int | float]
_Point = tuple[int | None, str | None, str]


@dataclass(slots=True)
class Stream:
    """State of one resource: its newest sequence number and time, and its stored points.

    Only one request at a time may change a stream.
    """

    sequence: int = 0
    time: float = -1.0
    joined: bool = False
    # Times of the newest stored snapshots, ascending.
    times: list[float] = field(default_factory=list)
    # Point -> its newest stored time. Old points are removed once there are too many.
    points: dict[_Point, float] = field(default_factory=dict)
    most_points: int = FEW_POINTS
    # Phase -> generation and samples of its newest end.
    phases: dict[str, tuple[int | None, dict[str, int | float]]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def forget(self) -> None:
        self.sequence, self.time = 0, -1.0
        self.times, self.points = [], {}

    def follow_clock(self, sent: float, now: float) -> None:
        """Reset the state if a clock was far ahead and is correct now; otherwise new points seem late."""
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
        """Remove points that are well before the newest time.

        Old points do no harm, so this runs only when their number has doubled: scanning all points
        for each snapshot would take time quadratic in the size of a request.
        """
        begins = self.time - TOGETHER_SECONDS
        self.points = {point: at for point, at in self.points.items() if at >= begins}
        self.most_points = max(FEW_POINTS, 2 * len(self.points))

    def news(self, sent: Iterable[Snapshot]) -> tuple[list[Snapshot], int]:
        """Return the snapshots that are not stored yet, and the number of late points."""
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
        """Return True if certainly no point with the time ``time`` is stored.

        Once older times have been forgotten, points older than the remembered times may be stored.
        """
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
    """The streams of one application."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], Stream] = OrderedDict()

    def of(self, project: str, run_id: str) -> Stream:
        """Return the stream of a run. The key includes the project: projects may use the same run ids."""
        stream = self._streams.setdefault((project, run_id), Stream())
        self._streams.move_to_end((project, run_id))
        while len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return stream
