"""One timeline with the results shared by all its moments, and the assessment of a cause at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from .assertions.expected_counts import without_bounded
from .attribution.candidates import counted_in
from .attribution.causes import Cause, Memory
from .memory.memory_by_phase import (
    LEAKLINE_LINE,
    OTHER_THREADS_LINE,
    PHASES_KEPT,
    booked_bytes,
    booked_columns,
    live_bytes_by_phase,
    phase_slopes,
    without_give_and_take,
)
from .memory.memory_kinds import Channel, channels_of, last_read
from .memory.uncollected_memory import Waiting, waiting_of
from .run_history import RunHistory, Value
from .series_facts import Facts
from .statistics.count_evidence import Ceiling
from .statistics.memory_evidence import Rise, Scale, Start, baseline_of, bend_of, lasting_rise
from .statistics.trend import NO_GROWTH, Slope, floor_slope
from .timeline import Known, Timeline

# Maximum number of generations that a rate and its attribution are based on.
RATE_WINDOW: Final = 256
# The channel of private memory.
PRIVATE: Final = "private"
# Live bytes by phase locate the growth of memory if they explain at least this share of it.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Assessed:
    """One cause at one moment, with its evidence."""

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
    passing: bool = False  # a collection may still free most of the growth
    ceiling: Ceiling | None = None  # the owner's count slows down and is expected to stop there


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that the status machine needs from one moment of a timeline."""

    end: int
    causes: tuple[Assessed, ...]
    rise: Rise
    growth: Slope
    scale: Scale
    filling: tuple[str, ...]


class TimelineAnalysis:
    """One timeline with the results that all of its moments share."""

    def __init__(self, history: RunHistory, timeline: Timeline) -> None:
        self.history = history
        self.timeline = timeline
        self.limit = limit_of(history, timeline)
        self.facts = Facts(history, timeline, self.limit.bytes if self.limit else None)
        # Results that depend only on the rows up to the end of a generation and on the facts.
        self.known = Known()
        self._bends = Known()
        self._phase_slopes: dict[tuple[int, int], Mapping[str, Slope]] = {}

    @cached_property
    def booked(self) -> tuple[Mapping[str, float], ...]:
        return booked_bytes(self.timeline)

    def booked_columns(self, first: int, end: int) -> dict[str, Sequence[Value]]:
        """Return `memory_by_phase.booked_columns` for the generations at positions ``first`` to ``end`` (exclusive)."""
        return booked_columns(self.timeline, lambda: self.booked, first, end)

    def phase_slopes(self, first: int, end: int) -> Mapping[str, Slope]:
        """Return how many bytes each top-level phase retains per generation.

        The rate covers at most the newest `PHASES_KEPT` generations.
        """
        window = max(first, end - PHASES_KEPT), end
        if window not in self._phase_slopes:
            generations = self.timeline.generations[slice(*window)]
            self._phase_slopes[window] = phase_slopes(self.booked_columns(*window), generations)
        return self._phase_slopes[window]

    @cached_property
    def waiting(self) -> Waiting:
        return waiting_of(self.timeline)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        return channels_of(self.timeline, ranks_until=self.history.ranks_until)

    def residual(self, end: int) -> list[float]:
        """Return private bytes per generation, without the growth of bounded containers."""
        private = self.timeline.private
        return without_bounded(private, self.facts.bounded, end) if private else []

    def read_until(self, end: int) -> int:
        """Return the number of generations up to the last reading of private memory before ``end``.

        Nothing is known about memory after that reading, so the assessment at that reading remains valid.
        """
        return last_read(self.timeline.private_read, end)

    def readings(self, channel: str) -> Sequence[int]:
        """Return the positions of the generations in which a channel, or private memory, was read."""
        if channel == PRIVATE:
            return self.timeline.private_read
        found = next((c.read for c in self.channels if c.name == channel), None)
        return range(len(self.timeline)) if found is None else found

    def counted_in(self, cause: Cause) -> str | None:
        """Return the series in which a cause's owner is counted, or None."""
        owner = cause.owner
        return None if owner is None else counted_in(self.facts, owner)

    def counts_between(self, cause: Cause, first: int, end: int) -> list[float]:
        """Return the counts of a cause's owner that were read between two positions."""
        series = self.counted_in(cause)
        values = [] if series is None else self.timeline.values(series)[first:end]
        return [value for value in values if value is not None]

    def bend(self, end: int) -> Start | None:
        """Return (estimate, low, high) of the generation in which private memory begins to rise, or None.

        The result is cached.
        """
        return self._bends.once(
            end, "private", lambda: bend_of(self.timeline, self.residual(end), end)
        )

    def remaining(self, end: int) -> float | None:
        if self.history.total is None or not end:
            return None
        return max(0.0, self.history.total - 1 - self.timeline.generations[end - 1])

    def scale(self, end: int) -> Scale:
        private = self.timeline.private
        baseline = max(baseline_of(private), self.resident_baseline)
        level = private[end - 1] - self.timeline.left_behind(end) if private else 0.0
        return Scale(
            baseline, self.limit.bytes if self.limit else None, level, self.remaining(end),
            self.timeline.spacing(end),
        )  # fmt: skip

    @cached_property
    def resident_baseline(self) -> float:
        if not self.timeline.has("process.rss_bytes"):
            return 0.0
        return baseline_of(
            [v for v in self.timeline.values("process.rss_bytes")[:3] if v is not None]
        )

    def rise(self, end: int) -> Rise:
        """Return the rise of private memory at the last reading up to this moment; the result is cached."""
        at = self.read_until(end)
        return self.known.once(at, PRIVATE, lambda: self._rise(at))

    def _rise(self, end: int) -> Rise:
        x = [float(g) for g in self.timeline.generations[:end]]
        y = self.residual(end)
        return lasting_rise(x, y, self.scale(end), self.facts.bounded_bytes[:end]) if y else Rise()

    def channel_stands(self, channel: Channel, end: int) -> int:
        """Return the moment whose rise counts at ``end``: an earlier moment if nothing has become known since."""
        known_end = channel.stands(end)
        if channel.read is not None:
            return known_end
        # Nothing has become known about V8 since the earlier moment, and V8 need not have kept more memory since
        # then, so the earlier moment counts if its rise is clearer.
        now, then = self._rise_of_channel(channel, end), self._rise_of_channel(channel, known_end)
        return known_end if (then.strict, then.window) > (now.strict, now.window) else end

    def channel_rise(self, channel: Channel, end: int) -> Rise:
        return self._rise_of_channel(channel, self.channel_stands(channel, end))

    def _rise_of_channel(self, channel: Channel, end: int) -> Rise:
        return self.known.once(end, channel.name, lambda: self._channel_rise(channel, end))

    def _channel_rise(self, channel: Channel, end: int) -> Rise:
        timeline = self.timeline
        scale = channel.scale(timeline.private, end, self.remaining(end), timeline.spacing(end))
        known = channel.positions(end)
        x = [float(timeline.generations[i]) for i in known]
        rise = lasting_rise(x, [channel.values[i] for i in known], scale)
        if rise.slope and rise.slope.estimate * rise.generations < channel.noise_bytes:
            return Rise(visible=True)
        return rise


def last_row_of(study: TimelineAnalysis, end: int) -> int:
    """Return the row of the newest snapshot as of the moment that ends at ``end``.

    The row may belong to a generation that is still open.
    """
    timeline = study.timeline
    return len(timeline.kind) - 1 if end >= len(timeline) else timeline.end_rows[end - 1]


def first_generation(timeline: Timeline) -> int:
    return timeline.generations[0] if timeline.generations else 0


def window_since(study: TimelineAnalysis, start: Start | None, end: int) -> float:
    newest = study.timeline.generations[end - 1] if end else 0
    begin = start[0] if start else float(first_generation(study.timeline))
    spacing = study.timeline.spacing(end)
    return max(float(spacing), newest - begin + spacing)


def memory_since(
    study: TimelineAnalysis, residual: Sequence[float], start: float | None, end: int
) -> Memory:
    """Return the growth since ``start`` (if None, since early in the run), in total and by phase.

    The growth of a phase is the memory that was allocated there and is still in use, if this is known and is most
    of the growth; otherwise it is the memory that the phase accounts charge to the phase.
    """
    timeline = study.timeline
    if len(residual) < 2:
        return Memory(NO_GROWTH)
    first = position_of(timeline, None if start is None else start - timeline.spacing(end), end)
    x = [float(g) for g in timeline.generations[first:end]]
    total = floor_slope(x, residual[first:end])
    slopes = study.phase_slopes(first, end)
    phases = {name: slope.estimate for name, slope in slopes.items() if name != LEAKLINE_LINE}
    charged = without_give_and_take(phases)
    live = live_bytes_by_phase(timeline, first, end)
    if live is None or charged.get(OTHER_THREADS_LINE, 0.0) > 0:
        return Memory(total, charged)
    known = sum(live.values()) >= _MOSTLY * total.estimate > 0
    return Memory(total, live if known else charged, living=known)


def position_of(timeline: Timeline, generation: float | None, end: int) -> int:
    """Return the position where the window for a rate begins; the window always contains two readings."""
    if generation is None:
        # Without a leak, growth in the first generations is warm-up.
        first = min(end // 4, 4)
    else:
        first = next((i for i, g in enumerate(timeline.generations) if g >= generation), 0)
    return max(0, min(first, end - 2), end - RATE_WINDOW)


@dataclass(frozen=True, slots=True)
class Limit:
    bytes: float
    source: Literal["cgroup", "system", "user"]


def limit_of(history: RunHistory, timeline: Timeline) -> Limit | None:
    """Return the memory limit, or None if no limit is known.

    A limit set by the user comes first, then the smaller of cgroup limit and machine memory.
    """
    if history.limit_bytes:
        return Limit(float(history.limit_bytes), "user")
    system = read_newest(timeline, "system.total_bytes")
    group = read_newest(timeline, "cgroup.limit_bytes")
    if group and (system is None or group < system):
        return Limit(group, "cgroup")
    return Limit(system, "system") if system else None


def read_newest(timeline: Timeline, series: str) -> float | None:
    """Return the last reading of a series in any kind of snapshot, or None if it was never read."""
    for value in reversed(timeline.series.get(series, ())):
        if value is not None:
            return float(value)
    return None
