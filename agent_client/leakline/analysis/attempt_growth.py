"""How fast each attempt of a resumed run grows by itself, and what it did again. One curve hides both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .history import RunHistory
from .processes import measured
from .results import AttemptGrowth, GenerationSpan, Interval
from .series import Lane, lanes_of, with_its_generations
from .since import added
from .spans import union
from .study import LaneStudy, memory_since
from .units import UNITS_OF_TIME

# The newest that are told.
MAX_ATTEMPTS: Final = 50


def attempt_growth(history: RunHistory) -> tuple[AttemptGrowth, ...]:
    """One for each attempt that ended a generation, in order; none where there is but one, or where time is counted."""
    numbers = sorted({process.attempt for process in history.processes if len(process)})
    if len(numbers) < 2 or history.unit in UNITS_OF_TIME:
        return ()
    found: list[AttemptGrowth] = []
    before: GenerationSpan | None = None
    for number in numbers:
        mine = tuple(p for p in history.processes if p.attempt == number)
        own = replace(history, processes=mine)
        lanes = [lane for lane in with_its_generations(lanes_of(own)) if len(lane)]
        if not lanes:
            continue
        did = _generations(lanes)
        growth = _growth(own, lanes) if number in numbers[-MAX_ATTEMPTS:] else None
        found.append(AttemptGrowth(number, did, growth, _both(before, did)))
        before = did if before is None else _together(before, did)
    return tuple(found[-MAX_ATTEMPTS:])


def _generations(lanes: Sequence[Lane]) -> GenerationSpan:
    """Of lanes that have ended some each."""
    # What is left out of a very long one it has ended as well.
    ended = union(lane.lived for lane in lanes).spans
    return GenerationSpan(ended[0][0], ended[-1][1])


def _growth(history: RunHistory, lanes: Sequence[Lane]) -> Interval | None:
    """Of all processes together; a part of the sum would be taken for it."""
    each = [_growth_of(LaneStudy(history, lane)) for lane in lanes]
    known = [growth for growth in each if growth is not None]
    return added(known) if len(known) == len(each) else None


def _growth_of(study: LaneStudy) -> Interval | None:
    upto = len(study.lane)
    return measured(memory_since(study, study.residual(upto), None, upto).total)


def _together(a: GenerationSpan, b: GenerationSpan) -> GenerationSpan:
    return GenerationSpan(min(a.first, b.first), max(a.last, b.last))


def _both(a: GenerationSpan | None, b: GenerationSpan) -> GenerationSpan | None:
    """The generations that are in both."""
    if a is None or a.last < b.first or b.last < a.first:
        return None
    return GenerationSpan(max(a.first, b.first), min(a.last, b.last))
