"""One lane with what is worked out once for all its moments, and what is said of a cause at one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from .assertions.expected_counts import without_bounded
from .attribution.causes import Cause, Memory
from .memory.memory_by_phase import (
    LEAKLINE_LINE,
    OTHER_THREADS_LINE,
    booked_bytes,
    live_bytes_by_phase,
    phase_slopes,
    without_give_and_take,
)
from .memory.memory_kinds import Channel, channels_of, last_read
from .memory.uncollected_memory import Waiting, waiting_of
from .run_history import RunHistory
from .series_facts import Facts
from .statistics.memory_evidence import Rise, Scale, Start, baseline_of, bend_of, lasting_rise
from .statistics.trend import NO_GROWTH, Slope, floor_slope
from .timeline import Known, Lane

# Generations that a rate rests on at most, and what is attributed with it.
RATE_WINDOW: Final = 256
# The channel of private memory.
PRIVATE: Final = "private"
# Live bytes by phase say where memory grows from this share of its growth on.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Assessed:
    """One cause at one moment with what speaks for it."""

    cause: Cause
    start: Start | None
    window: float  # generations since the start
    rise: Rise
    witnesses: frozenset[str]
    scale: Scale
    process: str
    channel: str = PRIVATE
    garbage: float | None = None
    note: str | None = None
    waiting: Waiting | None = None
    passing: bool = False  # what waits for the collector, which runs, is as much


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything the ladder needs from one moment of a lane."""

    upto: int
    causes: tuple[Assessed, ...]
    rise: Rise
    growth: Slope
    scale: Scale
    filling: tuple[str, ...]


class LaneStudy:
    """One lane with what is worked out once for all its moments."""

    def __init__(self, history: RunHistory, lane: Lane) -> None:
        self.history = history
        self.lane = lane
        self.facts = Facts(history, lane)
        self.limit = limit_of(history, lane)
        # Of the rows up to the end of a generation and of the facts.
        self.known = Known()
        self._bends = Known()

    @cached_property
    def booked(self) -> tuple[Mapping[str, float], ...]:
        return booked_bytes(self.lane)

    @cached_property
    def waiting(self) -> Waiting:
        return waiting_of(self.lane)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        return channels_of(self.lane, ranks_until=self.history.ranks_until)

    def residual(self, upto: int) -> list[float]:
        """Private bytes per generation without what bounded containers gained."""
        private = self.lane.private
        return without_bounded(private, self.facts.bounded, upto) if private else []

    def read_upto(self, upto: int) -> int:
        """Return how many of the first ``upto`` generations there are up to the last reading of private memory.

        Behind it nothing is known of memory: whatever was true there stays true.
        """
        return last_read(self.lane.private_read, upto)

    def readings(self, channel: str) -> Sequence[int]:
        """Positions of the generations in which a channel, or private memory, was read."""
        if channel == PRIVATE:
            return self.lane.private_read
        found = next((c.read for c in self.channels if c.name == channel), None)
        return range(len(self.lane)) if found is None else found

    def counted_in(self, cause: Cause) -> str | None:
        """Return the series in which the owner of a cause is counted."""
        owner = cause.owner
        return None if owner is None else self.facts.series_of(owner.name, owner.role)

    def counts_between(self, cause: Cause, first: int, upto: int) -> list[float]:
        """Return the counts of the owner of a cause that were read between two positions."""
        series = self.counted_in(cause)
        values = [] if series is None else self.lane.values(series)[first:upto]
        return [value for value in values if value is not None]

    def bend(self, upto: int) -> Start | None:
        """Where private memory begins to rise; asked for by several."""
        return self._bends.once(
            upto, "private", lambda: bend_of(self.lane, self.residual(upto), upto)
        )

    def remaining(self, upto: int) -> float | None:
        if self.history.total is None or not upto:
            return None
        return max(0.0, self.history.total - 1 - self.lane.generations[upto - 1])

    def scale(self, upto: int) -> Scale:
        private = self.lane.private
        baseline = max(baseline_of(private), self.resident_baseline)
        level = private[upto - 1] - self.lane.left_behind(upto) if private else 0.0
        return Scale(
            baseline, self.limit.bytes if self.limit else None, level, self.remaining(upto),
            self.lane.spacing(upto),
        )  # fmt: skip

    @cached_property
    def resident_baseline(self) -> float:
        if not self.lane.has("process.rss_bytes"):
            return 0.0
        return baseline_of([v for v in self.lane.values("process.rss_bytes")[:3] if v is not None])

    def rise(self, upto: int) -> Rise:
        """What private memory shows at its last reading until this moment; confirmations ask for it again."""
        at = self.read_upto(upto)
        return self.known.once(at, PRIVATE, lambda: self._rise(at))

    def _rise(self, upto: int) -> Rise:
        x = [float(g) for g in self.lane.generations[:upto]]
        y = self.residual(upto)
        return (
            lasting_rise(x, y, self.scale(upto), self.facts.bounded_bytes[:upto]) if y else Rise()
        )

    def channel_stands(self, channel: Channel, upto: int) -> int:
        """The moment whose rise counts at this one: an earlier one where nothing is known since."""
        told = channel.stands(upto)
        if channel.read is not None:
            return told
        # Nothing was read of V8, and it may well have kept no more: the earlier moment counts where it said more.
        now, then = self._rise_of_channel(channel, upto), self._rise_of_channel(channel, told)
        return told if (then.strict, then.window) > (now.strict, now.window) else upto

    def channel_rise(self, channel: Channel, upto: int) -> Rise:
        return self._rise_of_channel(channel, self.channel_stands(channel, upto))

    def _rise_of_channel(self, channel: Channel, upto: int) -> Rise:
        return self.known.once(upto, channel.name, lambda: self._channel_rise(channel, upto))

    def _channel_rise(self, channel: Channel, upto: int) -> Rise:
        lane = self.lane
        scale = channel.scale(lane.private, upto, self.remaining(upto), lane.spacing(upto))
        known = channel.positions(upto)
        x = [float(lane.generations[i]) for i in known]
        rise = lasting_rise(x, [channel.values[i] for i in known], scale)
        if rise.slope and rise.slope.estimate * rise.generations < channel.noise_bytes:
            return Rise(visible=True)
        return rise


def last_row_of(study: LaneStudy, upto: int) -> int:
    """The newest snapshot known at this moment; for the newest moment also those of an open generation."""
    lane = study.lane
    return len(lane.kind) - 1 if upto >= len(lane) else lane.end_rows[upto - 1]


def first_generation(lane: Lane) -> int:
    return lane.generations[0] if lane.generations else 0


def window_since(study: LaneStudy, start: Start | None, upto: int) -> float:
    newest = study.lane.generations[upto - 1] if upto else 0
    begin = start[0] if start else float(first_generation(study.lane))
    spacing = study.lane.spacing(upto)
    return max(float(spacing), newest - begin + spacing)


def memory_since(
    study: LaneStudy, residual: Sequence[float], start: float | None, upto: int
) -> Memory:
    """Growth since the start (since early in the run without one), in all and by phase.

    By phase it is what was allocated there and is still in use, where that is known and most of the growth; else what
    the books charge.
    """
    lane = study.lane
    if len(residual) < 2:
        return Memory(NO_GROWTH)
    first = position_of(lane, None if start is None else start - lane.spacing(upto), upto)
    x = [float(g) for g in lane.generations[first:upto]]
    total = floor_slope(x, residual[first:upto])
    slopes = phase_slopes(study.booked, lane.generations, first, upto)
    phases = {name: slope.estimate for name, slope in slopes.items() if name != LEAKLINE_LINE}
    charged = without_give_and_take(phases)
    live = live_bytes_by_phase(lane, first, upto)
    if live is None or charged.get(OTHER_THREADS_LINE, 0.0) > 0:
        return Memory(total, charged)
    known = sum(live.values()) >= _MOSTLY * total.estimate > 0
    return Memory(total, live if known else charged, living=known)


def position_of(lane: Lane, generation: float | None, upto: int) -> int:
    """Where the window of the rate begins; always leaves two readings."""
    if generation is None:
        # Without a leak the first generations are warm-up, not growth.
        first = min(upto // 4, 4)
    else:
        first = next((i for i, g in enumerate(lane.generations) if g >= generation), 0)
    return max(0, min(first, upto - 2), upto - RATE_WINDOW)


@dataclass(frozen=True, slots=True)
class Limit:
    bytes: float
    source: Literal["cgroup", "system", "user"]


def limit_of(history: RunHistory, lane: Lane) -> Limit | None:
    """The smallest limit that holds; the machine's own memory only when nothing smaller is set."""
    if history.limit_bytes:
        return Limit(float(history.limit_bytes), "user")
    system = read_newest(lane, "system.total_bytes")
    group = read_newest(lane, "cgroup.limit_bytes")
    if group and (system is None or group < system):
        return Limit(group, "cgroup")
    return Limit(system, "system") if system else None


def read_newest(lane: Lane, series: str) -> float | None:
    """The last reading of a series, in any kind of snapshot."""
    for value in reversed(lane.series.get(series, ())):
        if value is not None:
            return float(value)
    return None
