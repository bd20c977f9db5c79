"""Measurements over a window of a run's generations: growth, phases, maxima, jumps and counts of all its processes.

`Since` is the window that begins at a given moment, and `Stretch` is any selection of generations. The values of
processes are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median
from typing import Final

from .assertions.expected_counts import Readings, find_violation, matching_types, without_bounded
from .findings.verdict_summary import MIN_GENERATIONS as MIN_GENERATIONS
from .forecast.memory_outlook import outside_private
from .forecast.oom_forecast import Ends, memory_lasts
from .generation_axis import passed
from .memory.memory_by_phase import LEAKLINE_LINE, without_give_and_take
from .results import Interval
from .run_history import NO_SPANS, Expectation, RunHistory, Spans, union
from .statistics.memory_evidence import WARM_UP, Scale
from .statistics.trend import Z_90, Slope, floor_slope, robust_spread, theil_sen
from .timeline import SPACED, Timeline, lies_within, spacing_of, top_level
from .timeline_analysis import Moment, TimelineAnalysis

# Minimum number of readings for measuring growth, and of generations in which a phase must have run.
_MIN_READINGS: Final = 4
_MIN_TIMES: Final = 3
_WINDOW: Final = 256
# Missing generations up to this share count as lost; if more are missing, generation numbers are not used as a count.
_LOST: Final = 0.10

# The analysis of a process place with its newest moment.
TimelineMoment = tuple[TimelineAnalysis, Moment | None]
# (bytes, generation in which they were read)
Highest = tuple[float, int | None]


class Since:
    """The part of a run after Unix time ``since``; generations that ended earlier do not count."""

    def __init__(
        self, history: RunHistory, timelines: Sequence[TimelineMoment], since: float
    ) -> None:
        self.unit, self.ended = history.unit, history.ended
        self._since = since
        # (study, its newest moment, position of the first generation that counts)
        self._timelines = [(s, m, _first_position(s.timeline, since)) for s, m in timelines]
        ended = union(_ended(s.timeline, first) for s, _, first in self._timelines)
        self.generations, self.passed = len(ended), passed(self.unit, ended)
        self.complete = _complete(union(_ended(s.timeline) for s, _, _ in self._timelines))

    @property
    def long_enough(self) -> bool:
        return self.ended or self.generations >= MIN_GENERATIONS

    def growth(self) -> Interval | None:
        """Return the growth per generation since ``since``, or the verdict's growth if the run began later."""
        slopes = [s for timeline in self._timelines if (s := _growth(*timeline)) is not None]
        return added(slopes) if self.generations >= MIN_GENERATIONS else None

    def growth_under_limit(self) -> Interval | None:
        """Return the growth per generation of private memory and of child processes."""
        private = self.growth()
        if private is None:
            return None
        return added(
            [private, *(s for timeline in self._timelines for s in _growth_outside(*timeline))]
        )

    def memory_lasts(self, growth: Interval) -> Ends | None:
        """Return the generations left until memory reaches the limit at this growth, or None if no limit is known."""
        known = [(s, m) for s, m, _ in self._timelines if m is not None and s.timeline.private]
        ends = memory_lasts(known, growth)
        if ends is None:
            return None
        # Rates refer to generation numbers, but if every thousandth step is reported, a generation spans a thousand
        # numbers.
        numbers = known[0][0].timeline.generations
        each = median([b - a for a, b in pairwise(numbers)]) if len(numbers) > 1 else 1
        expected, soonest, latest = (None if end is None else end / each for end in ends)
        return expected, soonest, latest

    def growth_that_matters(self) -> float:
        """Return the bytes per generation below which the verdict ignores growth."""
        known = [
            study.scale(1).baseline_bytes for study, _, _ in self._timelines if len(study.timeline)
        ]
        spacing = max(
            (study.timeline.spacing(len(study.timeline)) for study, _, _ in self._timelines),
            default=1,
        )
        return Scale(sum(known), spacing=spacing).material_rate(self.generations * spacing)

    def times_run(self, phase: str) -> int:
        """Return the number of generations in which a phase ran, in the process that ran it most often."""
        return max(
            (len(_ran(s.timeline, phase, first)) for s, _, first in self._timelines), default=0
        )

    def phase_growth(self, phase: str) -> Interval | None:
        """Return the bytes per generation that a phase keeps, or None if it ran too rarely for a rate."""
        each = [
            _phase_growth(s, phase, _ran(s.timeline, phase, first))
            for s, _, first in self._timelines
        ]
        slopes = [slope for slope in each if slope is not None]
        return added(slopes)

    def highest(self, names: Sequence[str]) -> list[Highest]:
        """Return the highest reading of these series in each process, in any kind of snapshot.

        Processes without a reading are left out.
        """
        found = (self._highest(study.timeline, names) for study, _, _ in self._timelines)
        return [top for top in found if top is not None]

    def names(self) -> set[str]:
        return {name for study, _, _ in self._timelines for name in study.timeline.series}

    def _highest(self, timeline: Timeline, names: Sequence[str]) -> Highest | None:
        known = [
            (float(value), -row)
            for name in names
            if timeline.has(name)
            for row, value in enumerate(timeline.series[name])
            if value is not None and timeline.time[row] >= self._since
        ]
        if not known:
            return None
        top, row = max(known)
        return top, timeline.generation[-row]

    def largest_jump(self) -> tuple[float, int, int] | None:
        """Return (bytes, generation before, generation after) of the largest rise between generation ends, or None."""
        jumps: dict[tuple[int, int], float] = {}
        for study, _, first in self._timelines:
            ends = list(zip(study.timeline.generations, study.timeline.private, strict=False))[
                first:
            ]
            steps = [after - before for (before, _), (after, _) in pairwise(ends)]
            usual = median(steps) if steps else 0
            for (before, low), (after, high) in pairwise(ends):
                # A rise across a lost generation covers two generations, so it is skipped.
                if after - before <= usual:
                    jumps[before, after] = jumps.get((before, after), 0.0) + high - low
        if not jumps:
            return None
        before, after = max(jumps, key=lambda ends: (jumps[ends], -ends[0]))
        return max(0.0, jumps[before, after]), before, after

    def most_alive(self, declared: str, high: int) -> tuple[float, int | None, bool] | None:
        """Return (most instances alive at a generation end, that generation, whether more than ``high`` persist).

        The values are those of the process with the most instances. Return None if no process counted the class.
        """
        found = [
            counted
            for study, _, first in self._timelines
            for name in matching_types(study.timeline, declared)
            if (counted := _most_alive(study.timeline, name, high, first)) is not None
        ]
        return max(found, key=lambda each: (each[2], each[0]), default=None)


def _first_position(timeline: Timeline, since: float) -> int:
    rows = enumerate(timeline.end_rows)
    return next((at for at, row in rows if timeline.time[row] >= since), len(timeline))


def _ended(timeline: Timeline, first: int = 0) -> Spans:
    """Return the completed generations, starting at position ``first``, including any that are not read."""
    read = timeline.generations[first:]
    if not read:
        return NO_SPANS
    return timeline.lived.above(read[0] - 1) if first else timeline.lived


def _complete(generations: Spans) -> int:
    """Return the number of generations that the run has completed.

    If hardly any generations were lost, all generations up to the newest count as completed, even before the first
    recorded generation: a run that begins at a high generation continues another run.
    """
    done, first, last = len(generations), generations.first, generations.last
    if first is not None and last is not None and last - first + 1 - done <= _LOST * done:
        return last + 1
    return done


def added(slopes: Sequence[Slope | Interval]) -> Interval | None:
    """Return the sum over all processes, or None if there is nothing to add."""
    if not slopes:
        return None
    return Interval(
        sum(s.estimate for s in slopes), sum(s.low for s in slopes), sum(s.high for s in slopes)
    )


def _growth(study: TimelineAnalysis, moment: Moment | None, first: int) -> Slope | None:
    timeline = study.timeline
    if moment is None or len(timeline) - first < _MIN_READINGS:
        return None
    slope = moment.growth
    if first > 0:
        # The first generations of a resumed process are warm-up again.
        begin = first + _warm_up(timeline, first)
        x = [float(g) for g in timeline.generations[begin:]]
        slope = floor_slope(x, study.residual(len(timeline))[begin:])
    return slope if slope.points >= _MIN_READINGS else None


def _growth_outside(study: TimelineAnalysis, moment: Moment | None, first: int) -> list[Slope]:
    """Return the growth of each channel that shares the limit of private memory."""
    if moment is None:
        return []
    begin = first + _warm_up(study.timeline, first)
    x = [float(g) for g in study.timeline.generations[begin:]]
    return [floor_slope(x, list(c.values[begin:])) for c in outside_private(study)]


def _warm_up(timeline: Timeline, first: int) -> int:
    """Return the number of warm-up generations, starting at position ``first``."""
    return min(WARM_UP, (len(timeline) - first) // 4)


def _ran(timeline: Timeline, phase: str, first: int) -> list[int]:
    """Return the positions, starting at ``first``, of the generations in which a phase ran."""
    within = (rows for path, rows in timeline.phase_rows.items() if lies_within(path, phase))
    found = {at for rows in within for at in rows}
    for name, column in timeline.series.items():
        if name.startswith("phase.") and name.endswith(".executions"):
            path = name.removeprefix("phase.").removesuffix(".executions")
            if lies_within(path, phase):
                found.update(at for at, row in enumerate(timeline.end_rows) if column[row])
    return sorted(at for at in found if at >= first)


def _phase_growth(study: TimelineAnalysis, phase: str, ran: Sequence[int]) -> Slope | None:
    """Return the growth of a phase since it first ran.

    Memory that the phase built up when it first ran stays allocated and is not growth.
    """
    timeline = study.timeline
    if len(ran) < _MIN_TIMES or len(timeline) - ran[0] < MIN_GENERATIONS:
        return None
    begin = max(ran[0], len(timeline) - _WINDOW)
    filled = [timeline.increments(name, begin) for name in _filled_series(study)]
    booked = [
        _within(study.booked[at], phase) - sum(_within(each[at - begin], phase) for each in filled)
        for at in range(begin, len(timeline))
    ]
    slope = kept_per_generation([float(g) for g in timeline.generations[begin:]], booked)
    lent = min(_lent(study, phase, begin), max(0.0, slope.estimate))
    return Slope(slope.estimate - lent, slope.low - lent, slope.high - lent, slope.points)


def _within(line: Mapping[str, float], phase: str) -> float:
    return sum(change for path, change in line.items() if lies_within(path, phase))


def _filled_series(study: TimelineAnalysis) -> list[str]:
    """Return the byte series of the containers that the verdict excludes from growth."""
    private, end = study.timeline.private, len(study.timeline)
    return [
        each.series("bytes")
        for each in study.facts.bounded
        if each.bytes and not each.estimated and not each.is_over(end)
        and without_bounded(private, (each,), end)[-1:] != private[-1:]
    ]  # fmt: skip


def kept_per_generation(x: Sequence[float], booked: Sequence[float]) -> Slope:
    """Return the memory that stays per generation: the slope of the running total of ``booked``.

    The noise of every generation stays in a running total, and a line fitted to the total mistakes the noise for a
    trend. The interval is therefore at least as wide as for a line through a random walk, whose slope has 6/5 of
    the variance of the mean.
    """
    slope = floor_slope(x, list(accumulate(booked)))
    reach = Z_90 * robust_spread(booked) * math.sqrt(1.2 / max(1, len(booked) - 2))
    low, high = min(slope.low, slope.estimate - reach), max(slope.high, slope.estimate + reach)
    return Slope(slope.estimate, low, high, slope.points)


def _lent(study: TimelineAnalysis, phase: str, begin: int) -> float:
    """Return the bytes per generation that the phase takes and other phases give back."""
    booked, slopes = study.booked, study.phase_slopes(begin, len(study.timeline))
    kept = {name: s.estimate for name, s in slopes.items() if name != LEAKLINE_LINE}
    net = without_give_and_take(kept)
    tops = {top_level(path) for line in booked[begin:] for path in line if lies_within(path, phase)}
    return sum(max(0.0, kept[top] - net[top]) for top in tops if kept.get(top, 0.0) > 0)


def _most_alive(
    timeline: Timeline, name: str, high: int, first: int
) -> tuple[float, int | None, bool] | None:
    column = timeline.series[f"type.{name}.count"]
    read = [(row, value) for row in timeline.end_rows[first:] if (value := column[row]) is not None]
    if not read:
        return None
    rows, counts = tuple(row for row, _ in read), tuple(float(value) for _, value in read)
    most = max(range(len(rows)), key=lambda i: (counts[i], -i))
    readings = Readings(Expectation(name, 0, high), name, rows, counts)
    violation = find_violation(timeline, readings, len(timeline.kind) - 1)
    twice = any(a > high and b > high for a, b in pairwise(counts))
    stays = twice or (violation is not None and violation.proven)
    return counts[most], timeline.generation[rows[most]], stays


# Maximum number of generations over which phases are compared; more add no information.
_PHASES_KEPT: Final = 256


class Stretch:
    """A selection of generations. ``positions``: for each study, the positions that count, ascending."""

    def __init__(
        self, studies: Sequence[TimelineAnalysis], positions: Sequence[Sequence[int]]
    ) -> None:
        self._timelines = [
            (s, at) for s, at in zip(studies, positions, strict=True) if len(at) >= 2
        ]
        self.generations = len({s.timeline.generations[i] for s, at in self._timelines for i in at})

    def growth(self) -> Interval | None:
        """Return the growth of private memory, without the growth of declared containers."""
        slopes = []
        for study, at in self._timelines:
            if study.timeline.private:
                rest = study.residual(len(study.timeline))
                slopes.append(floor_slope(_generations(study, at), [rest[i] for i in at]))
        return added(slopes)

    def kept(self) -> dict[str, Interval]:
        """Return the bytes per generation that stay in each top-level phase and on the lines outside all phases."""
        found: dict[str, list[Slope]] = {}
        for study, at, booked in self._booked():
            x = _generations(study, at)
            tops = [_by_top_level(line) for line in booked]
            for name in sorted({name for line in tops for name in line} - {LEAKLINE_LINE}):
                amounts = [line.get(name, 0.0) for line in tops]
                found.setdefault(name, []).append(kept_per_generation(x, amounts))
        return {name: total for name, slopes in found.items() if (total := added(slopes))}

    def kept_by(self, phase: str) -> Interval | None:
        """Return the bytes per generation that stay in one phase, which may be nested; None if the phase never ran."""
        slopes = []
        for study, at, booked in self._booked():
            inside = [_sum_within(line, phase) for line in booked]
            if any(amount is not None for amount in inside):
                x = _generations(study, at)
                slopes.append(kept_per_generation(x, [amount or 0.0 for amount in inside]))
        return added(slopes)

    def counted(self, declared: str) -> Interval | None:
        """Return how many instances of a class are added per generation, or None if the class was never counted."""
        slopes = []
        for study, at in self._timelines:
            for name in matching_types(study.timeline, declared):
                column = study.timeline.values(f"type.{name}.count")
                known = [
                    (study.timeline.generations[i], v) for i in at if (v := column[i]) is not None
                ]
                if len(known) >= 2:
                    slopes.append(theil_sen([float(x) for x, _ in known], [float(y) for _, y in known]))  # fmt: skip
        return added(slopes)

    @cached_property
    def baseline(self) -> float:
        return sum(s.scale(1).baseline_bytes for s, _ in self._timelines if len(s.timeline))

    def growth_that_matters(self) -> float:
        """Return the bytes per generation below which the verdict ignores growth."""
        scale = Scale(self.baseline, spacing=self.spacing)
        return scale.material_rate(self.generations * self.spacing)

    @cached_property
    def spacing(self) -> int:
        """The usual distance between two of the selected generations."""
        return spacing_of(
            sorted({s.timeline.generations[i] for s, at in self._timelines for i in at})[-SPACED:]
        )

    def _booked(self) -> Iterator[tuple[TimelineAnalysis, range, Sequence[Mapping[str, float]]]]:
        """Yield (study, positions, phase accounts) for ranges without gaps, because kept memory is a running total."""
        for study, at in self._timelines:
            begin, end = max(at[0], at[-1] + 1 - _PHASES_KEPT), at[-1] + 1
            yield study, range(begin, end), study.booked[begin:end]


def _generations(study: TimelineAnalysis, at: Sequence[int]) -> list[float]:
    return [float(study.timeline.generations[i]) for i in at]


def _by_top_level(line: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path, amount in line.items():
        top = top_level(path)
        found[top] = found.get(top, 0.0) + amount
    return found


def _sum_within(line: Mapping[str, float], phase: str) -> float | None:
    """Return the bytes booked to a phase and to phases within it, or None if no bytes were booked."""
    found = [amount for path, amount in line.items() if lies_within(path, phase)]
    return sum(found) if found else None
