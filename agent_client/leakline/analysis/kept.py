"""What one examination of a run leaves for the next: that of every generation whose rows and facts are the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .books import book_names
from .budgets import declared_budgets
from .channels import bridged_for_good
from .garbage import garbage_types
from .known import Known
from .ladder import CONFIRMATIONS, moments_of
from .score import grid
from .series import END, Lane
from .study import LaneStudy


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
        counted = frozenset(study.facts.count_series)
        new = {series for series, _, _ in counted - self.counted}
        if not self.counted <= counted or any(_is_read(lane, s, self.rows) for s in new):
            return False
        assert lane.private is not None  # which says where private memory is read
        return all(_place(lane, name) == place for name, place in self.places.items())


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
        self._lanes: dict[str, _OfLane] = {}

    def give(self, study: LaneStudy) -> None:
        """Tell a new study what is known already."""
        kept = self._lanes.get(study.lane.name)
        if kept is None or not kept.beginning.is_of(study):
            return
        study.lane.known.learn(kept.of_lane)
        if kept.facts == _facts(study):
            study.known.learn(kept.of_study)

    def take(self, studies: Iterable[LaneStudy]) -> None:
        """Keep what later snapshots will find as it is."""
        self._lanes = {
            study.lane.name: kept for study in studies if (kept := _kept(study)) is not None
        }


def _kept(study: LaneStudy) -> _OfLane | None:
    lane = study.lane
    upto = _settled_generations(lane)
    if not upto:
        return None
    rows = lane.end_rows[upto - 1] + 1
    beginning = _Beginning(
        upto, rows, _stamp(lane, upto, rows), dict(lane.places), frozenset(study.facts.count_series)
    )
    moments = {m for m in moments_of(len(lane)) if m <= upto}
    asked = {m - back for m in moments for back in range(CONFIRMATIONS)}
    asked |= {m for m, _ in grid(len(lane)) if m <= upto}
    bridged = bridged_for_good(lane)
    of_study = study.known.at({m for m in asked if m <= bridged})
    return _OfLane(beginning, _facts(study), lane.known.at(moments), of_study)


def _settled_generations(lane: Lane) -> int:
    """Without the newest one where its end is only the newest reading so far."""
    if not len(lane) or lane.kind[lane.end_rows[-1]] == END:
        return len(lane)
    return len(lane) - 1


def _stamp(lane: Lane, upto: int, rows: int) -> int:
    return hash(
        (
            tuple(lane.time[:rows]), tuple(lane.segment[:rows]), tuple(lane.end_rows[:upto]),
            tuple(lane.generations[:upto]), lane.baseline_row, bool(book_names(lane)),
        )
    )  # fmt: skip


def _goes_back(lane: Lane, beginning: _Beginning) -> bool:
    """Whether a later row says it belongs to a generation that had ended."""
    newest = lane.generations[beginning.upto - 1]
    return any(g is not None and g <= newest for g in lane.generation[beginning.rows :])


def _is_read(lane: Lane, series: str, rows: int) -> bool:
    return any(value is not None for value in lane.series[series][:rows])


def _place(lane: Lane, name: str) -> str | None:
    if name not in lane.places and lane.has(name):
        lane.values(name)
    return lane.places.get(name)


def _facts(study: LaneStudy) -> tuple[Any, ...]:
    """All that is said of a moment beside what its rows and those before it hold."""
    history, lane, facts = study.history, study.lane, study.facts
    readings = tuple((r.expectation, r.type) for r in facts.readings)
    bounded = tuple((b.name, b.capacity, b.each, b.length[:1], b.bytes[:1]) for b in facts.bounded)
    channels = tuple(
        (c.name, c.kind, c.limit_bytes, c.values[:3], c.beside[:3]) for c in study.channels
    )
    return (
        history.unit, history.total, declared_budgets(history), garbage_types(history.holders),
        facts.holders, facts.bytes_each, facts.watched, history.expectations, readings, bounded, channels,
        study.limit, study.waiting, tuple(lane.private[:3]),
    )  # fmt: skip
