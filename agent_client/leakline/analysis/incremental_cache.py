"""Results kept from one examination of a run to the next, while the rows and facts are unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from .assertions.declared_limits import declared_budgets
from .assessment import MOMENT
from .forecast.forecast_score import grid
from .memory.memory_by_phase import account_names
from .memory.memory_kinds import bridged_for_good
from .series_facts import GROWTHS
from .status import CONFIRMATIONS, LEVELS, moments_for
from .timeline import END, STEPS, Known, Timeline
from .timeline_analysis import TimelineAnalysis

# Number of newest generations that are checked for phases that run after the end of their generation.
_NEWEST: Final = 16


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The rows up to the end of generation number ``end``, identified by a hash (``stamp``)."""

    end: int
    rows: int
    stamp: int
    places: dict[str, str]
    counted: frozenset[tuple[str, str, str]]

    def is_of(self, study: TimelineAnalysis) -> bool:
        """Return True if the timeline begins with the same rows, read at the same places."""
        timeline = study.timeline
        if self.rows > len(timeline.kind) or self.end > len(timeline):
            return False
        if _stamp(timeline, self.end, self.rows) != self.stamp or _goes_back(timeline, self):
            return False
        return self._counts_alike(study) and all(
            timeline.place(name) == place for name, place in self.places.items()
        )

    def _counts_alike(self, study: TimelineAnalysis) -> bool:
        """Return True if these rows have the same count series as before.

        A new count series is accepted if it has a new name and no readings in these rows.
        """
        counted = frozenset(study.facts.count_series)
        names = {(name, role) for _, name, role in self.counted}
        return self.counted <= counted and not any(
            (name, role) in names or _has_readings(study.timeline, series, self.rows)
            for series, name, role in counted - self.counted
        )


@dataclass(frozen=True, slots=True)
class _OfTimeline:
    beginning: _Beginning
    facts: tuple[Any, ...]
    # Results that depend on the rows alone, and results that depend on rows and facts.
    of_timeline: Known
    of_study: Known


class Kept:
    """Results kept between examinations of one run, by process place; their size does not grow with the run."""

    def __init__(self) -> None:
        self._timelines: dict[tuple[str, str], _OfTimeline] = {}

    def give(self, study: TimelineAnalysis) -> None:
        """Copy the kept results that are still valid into a new study."""
        kept = self._timelines.get(_name(study))
        if kept is None or not kept.beginning.is_of(study):
            return
        study.timeline.known.learn(kept.of_timeline)
        if kept.facts == _facts(study):
            study.known.learn(kept.of_study)

    def take(self, studies: Iterable[TimelineAnalysis]) -> None:
        """Keep the results of these studies that later snapshots will not change."""
        self._timelines = {
            _name(study): kept for study in studies if (kept := _kept(study)) is not None
        }


def _name(study: TimelineAnalysis) -> tuple[str, str]:
    """Return the key of a timeline: its name and its unit.

    One run may be counted in two units of time.
    """
    return study.timeline.name, study.history.unit


def _kept(study: TimelineAnalysis) -> _OfTimeline | None:
    timeline = study.timeline
    end, rows = _settled(timeline)
    if not end:
        return None
    counted = frozenset(study.facts.count_series)
    beginning = _Beginning(end, rows, _stamp(timeline, end, rows), dict(timeline.places), counted)
    moments = {m for m in moments_for(study) if m <= end}
    bridged = bridged_for_good(timeline, end, study.history.ranks_until)
    asked = {m - back for m in moments for back in range(CONFIRMATIONS)}
    asked = {m for m in (*asked, *(m for m, _ in grid(len(timeline)))) if m <= bridged}

    def is_asked(moment: int, what: object) -> bool:
        return moment in asked and (what not in (MOMENT, LEVELS) or moment in moments)

    of_timeline = timeline.known.only(lambda moment, what: moment in moments and what == GROWTHS)
    return _OfTimeline(beginning, _facts(study), of_timeline, study.known.only(is_asked))


def _settled(timeline: Timeline) -> tuple[int, int]:
    """Return (number of final generations, number of final rows).

    The newest generation is not final if it may still gain rows: its end is only the newest reading so far, or
    phases run after the ends of generations.
    """
    end = len(timeline)
    if end and (timeline.kind[timeline.end_rows[-1]] != END or _goes_on_after_ends(timeline)):
        end -= 1
    if not end:
        return 0, 0
    newest = timeline.generations[end - 1]
    mine = (row for row in range(len(timeline.kind) - 1, -1, -1) if _belongs(timeline, row, newest))
    return end, next(mine) + 1


def _goes_on_after_ends(timeline: Timeline) -> bool:
    """Return True if a phase of one of the newest generations ran after the end of its generation.

    The first such phase is detected by `_goes_back`.
    """
    ends = zip(timeline.end_rows[-_NEWEST:], timeline.generations[-_NEWEST:], strict=True)
    return any(
        row + 1 < len(timeline.kind) and _belongs(timeline, row + 1, generation)
        for row, generation in ends
    )


def _belongs(timeline: Timeline, row: int, newest: int) -> bool:
    """Return True if a row belongs to a generation up to ``newest``.

    If generation ends are recorded, only snapshots taken at a phase transition (`STEPS`) belong to a generation.
    """
    generation = timeline.generation[row]
    counts = timeline.kind[row] in STEPS or timeline.kind[timeline.end_rows[-1]] != END
    return counts and generation is not None and generation <= newest


def _stamp(timeline: Timeline, end: int, rows: int) -> int:
    """Return a hash that identifies the first ``end`` generations.

    In a single attempt, an additional or missing row moves the ends of later generations. With several attempts, a
    late row may replace a row of an earlier attempt without moving any end, so the hash then includes all rows.
    """
    ends = timeline.end_rows[:end]
    each = None if timeline.in_order else (timeline.time[:rows], timeline.segment[:rows])
    return hash(
        (
            timeline.instance, ends, timeline.generations[:end], tuple([timeline.time[row] for row in ends]),
            tuple([timeline.segment[row] for row in ends]), each and tuple(map(tuple, each)), timeline.baseline_row,
            timeline.splits_memory, bool(account_names(timeline)),
        )
    )  # fmt: skip


def _goes_back(timeline: Timeline, beginning: _Beginning) -> bool:
    """Return True if a later row belongs to one of the first ``end`` generations."""
    newest = timeline.generations[beginning.end - 1]
    return any(_belongs(timeline, row, newest) for row in range(beginning.rows, len(timeline.kind)))


def _has_readings(timeline: Timeline, series: str, rows: int) -> bool:
    return any(value is not None for value in timeline.series[series][:rows])


def _facts(study: TimelineAnalysis) -> tuple[Any, ...]:
    """Return all inputs of a moment other than its own rows and earlier rows."""
    history, timeline, facts = study.history, study.timeline, study.facts
    readings = tuple((r.expectation, r.type) for r in facts.readings)
    bounded = tuple((b.name, b.capacity, b.each, b.length[:1], b.bytes[:1]) for b in facts.bounded)
    stores = {path: store.name for path, store in facts.stores.items()}
    channels = tuple(
        (c.name, c.kind, c.limit_bytes, c.values[:3], c.other_values[:3]) for c in study.channels
    )
    return (
        history.unit, history.total, declared_budgets(history), history.holders_by_type.garbage_types,
        facts.holders, stores, facts.bytes_each, facts.watched, history.expectations, readings, bounded, channels,
        study.limit, study.waiting, study.resident_baseline, tuple(timeline.private[:3]),
    )  # fmt: skip
