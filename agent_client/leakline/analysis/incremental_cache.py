"""What one examination of a run leaves for the next: that of every generation whose rows and facts are the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .assertions.declared_limits import declared_budgets
from .assessment import MOMENT
from .forecast.forecast_score import grid
from .memory.memory_by_phase import book_names
from .memory.memory_kinds import bridged_for_good
from .series_facts import GROWTHS
from .status import CONFIRMATIONS, moments_for
from .timeline import END, STEPS, Known, Lane
from .timeline_analysis import LaneStudy


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The rows up to the end of generation number ``upto``, told apart by a stamp."""

    upto: int
    rows: int
    stamp: int
    places: dict[str, str]
    counted: frozenset[tuple[str, str, str]]

    def is_of(self, study: LaneStudy) -> bool:
        """Whether the lane begins with the same rows, read at the same places."""
        lane = study.lane
        if self.rows > len(lane.kind) or self.upto > len(lane):
            return False
        if _stamp(lane, self.upto, self.rows) != self.stamp or _goes_back(lane, self):
            return False
        return self._counts_alike(study) and all(
            lane.place(name) == place for name, place in self.places.items()
        )

    def _counts_alike(self, study: LaneStudy) -> bool:
        """Whether the same is counted, and what came since under names of its own was never read before."""
        counted = frozenset(study.facts.count_series)
        names = {(name, role) for _, name, role in self.counted}
        return self.counted <= counted and not any(
            (name, role) in names or _has_readings(study.lane, series, self.rows)
            for series, name, role in counted - self.counted
        )


@dataclass(frozen=True, slots=True)
class _OfLane:
    beginning: _Beginning
    facts: tuple[Any, ...]
    # Of the rows alone, and of rows and facts.
    of_lane: Known
    of_study: Known


class Kept:
    """Of one run, by process place. Small however long the run is."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], _OfLane] = {}

    def give(self, study: LaneStudy) -> None:
        """Tell a new study what is known already."""
        kept = self._lanes.get(_name(study))
        if kept is None or not kept.beginning.is_of(study):
            return
        study.lane.known.learn(kept.of_lane)
        if kept.facts == _facts(study):
            study.known.learn(kept.of_study)

    def take(self, studies: Iterable[LaneStudy]) -> None:
        """Keep what later snapshots will find as it is."""
        self._lanes = {
            _name(study): kept for study in studies if (kept := _kept(study)) is not None
        }


def _name(study: LaneStudy) -> tuple[str, str]:
    """Return what tells a lane from the others, and from the same one by another unit of time."""
    return study.lane.name, study.history.unit


def _kept(study: LaneStudy) -> _OfLane | None:
    lane = study.lane
    upto, rows = _settled(lane)
    if not upto:
        return None
    counted = frozenset(study.facts.count_series)
    beginning = _Beginning(upto, rows, _stamp(lane, upto, rows), dict(lane.places), counted)
    moments = {m for m in moments_for(study) if m <= upto}
    bridged = bridged_for_good(lane, upto, study.history.ranks_until)
    asked = {m - back for m in moments for back in range(CONFIRMATIONS)}
    asked = {m for m in (*asked, *(m for m, _ in grid(len(lane)))) if m <= bridged}

    def is_asked(moment: int, what: object) -> bool:
        return moment in asked and (what != MOMENT or moment in moments)

    of_lane = lane.known.only(lambda moment, what: moment in moments and what == GROWTHS)
    return _OfLane(beginning, _facts(study), of_lane, study.known.only(is_asked))


def _settled(lane: Lane) -> tuple[int, int]:
    """(generations, rows) that will not be added to: without the newest one where more of it may come.

    More comes where its end is only the newest reading so far, and where phases run after the ends of generations.
    """
    upto = len(lane)
    if upto and (lane.kind[lane.end_rows[-1]] != END or _goes_on_after_ends(lane)):
        upto -= 1
    if not upto:
        return 0, 0
    newest = lane.generations[upto - 1]
    mine = (row for row in range(len(lane.kind) - 1, -1, -1) if _belongs(lane, row, newest))
    return upto, next(mine) + 1


def _goes_on_after_ends(lane: Lane) -> bool:
    ends = zip(lane.end_rows, lane.generations, strict=True)
    return any(
        row + 1 < len(lane.kind) and _belongs(lane, row + 1, generation) for row, generation in ends
    )


def _belongs(lane: Lane, row: int, newest: int) -> bool:
    """Whether a row is one of this generation or an earlier one. Where ends are recorded, steps alone say so."""
    generation = lane.generation[row]
    counts = lane.kind[row] in STEPS or lane.kind[lane.end_rows[-1]] != END
    return counts and generation is not None and generation <= newest


def _stamp(lane: Lane, upto: int, rows: int) -> int:
    return hash(
        (
            lane.instance, tuple(lane.time[:rows]), tuple(lane.segment[:rows]), tuple(lane.end_rows[:upto]),
            tuple(lane.generations[:upto]), lane.baseline_row, lane.splits_memory,
            bool(book_names(lane)),
        )
    )  # fmt: skip


def _goes_back(lane: Lane, beginning: _Beginning) -> bool:
    """Whether a later row says it belongs to a generation that was over."""
    newest = lane.generations[beginning.upto - 1]
    return any(_belongs(lane, row, newest) for row in range(beginning.rows, len(lane.kind)))


def _has_readings(lane: Lane, series: str, rows: int) -> bool:
    return any(value is not None for value in lane.series[series][:rows])


def _facts(study: LaneStudy) -> tuple[Any, ...]:
    """All that is said of a moment beside what its rows and those before it hold."""
    history, lane, facts = study.history, study.lane, study.facts
    readings = tuple((r.expectation, r.type) for r in facts.readings)
    bounded = tuple((b.name, b.capacity, b.each, b.length[:1], b.bytes[:1]) for b in facts.bounded)
    stores = {path: store.name for path, store in facts.stores.items()}
    channels = tuple(
        (c.name, c.kind, c.limit_bytes, c.values[:3], c.beside[:3]) for c in study.channels
    )
    return (
        history.unit, history.total, declared_budgets(history), history.holders_by_type.garbage_types,
        facts.holders, stores, facts.bytes_each, facts.watched, history.expectations, readings, bounded, channels,
        study.limit, study.waiting, study.resident_baseline, tuple(lane.private[:3]),
    )  # fmt: skip
