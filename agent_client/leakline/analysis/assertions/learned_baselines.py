"""Counts that a run keeps to: what may be expected of it from now on, once a person agrees."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..results import SteadyCount
from ..run_history import Expectation, RunHistory, Value
from ..timeline import Lane, lanes_of
from .declared_counts import applies, expected_text, stands_for, types_of

# As many as the verdict wants before it says more than "learning".
GENERATIONS: Final = 8

# Phase (None: at every reading) -> the count that it ends with.
_Counts = Mapping[str | None, int]


def with_accepted(
    declared: Sequence[Expectation], accepted: Iterable[Expectation]
) -> tuple[Expectation, ...]:
    """Both; of a type that the program speaks of itself, what it says alone, wherever it says it."""
    return (*declared, *(a for a in accepted if not is_declared(a.type, declared)))


def is_declared(name: str, expectations: Iterable[Expectation]) -> bool:
    return any(not e.accepted and stands_for(e.type, name) for e in expectations)


def steady_counts(history: RunHistory) -> tuple[SteadyCount, ...]:
    """Counts that were the same in each of the last GENERATIONS generations and that nobody expects yet.

    First what was accepted otherwise, then the smallest, as those that people mean. At every reading where that holds,
    else at the end of each phase for which it does. Not of builtins and the standard library, of which everything makes
    some, nor of types that the program declares itself.
    """
    views = _views(history)
    if not any(len(view.generations) >= GENERATIONS for view in views):
        return ()
    expected = history.expectations
    found: list[SteadyCount] = []
    for name in sorted(
        {name for view in views for name in types_of(view.lane) if _is_of_a_program(name)}
    ):
        accepted = [e for e in expected if e.accepted and e.type == name]
        if is_declared(name, expected):
            continue
        for after, count in _agreed(views, name):
            if not _is_expected(accepted, after, count):
                replaced = [expected_text(e) for e in accepted if replaces(after, e.after)]
                found.append(
                    SteadyCount(name, count, after, GENERATIONS, "; ".join(replaced) or None)
                )
    return tuple(sorted(found, key=_order))


def _is_of_a_program(name: str) -> bool:
    module, _, rest = name.partition(".")
    return bool(rest) and module not in sys.stdlib_module_names


def _order(each: SteadyCount) -> tuple[bool, bool, int, str, str]:
    return each.instead_of is None, each.count == 0, each.count, each.type, each.after or ""


def replaces(new: str | None, old: str | None) -> bool:
    """Whether a count that is accepted for one place ends the one accepted for another: the same, or all of them."""
    return new == old or new is None or old is None


def _is_expected(accepted: Sequence[Expectation], after: str | None, count: int) -> bool:
    meant = [e for e in accepted if after is None or e.after == after]
    return bool(meant) and all(e.low <= count <= e.high for e in meant)


@dataclass(frozen=True, slots=True)
class _View:
    """The last generations of a process: rows by where a count may be expected."""

    lane: Lane
    generations: frozenset[int]
    rows: Mapping[str | None, Sequence[int]]


def _views(history: RunHistory) -> list[_View]:
    """Of the processes that are there in the last generations."""
    lanes = [lane for lane in lanes_of(history) if lane.generations]
    newest = max((lane.generations[-1] for lane in lanes), default=0)
    return [_view(lane) for lane in lanes if lane.generations[-1] > newest - GENERATIONS]


def _view(lane: Lane) -> _View:
    generations = lane.generations[-GENERATIONS:]
    whole = len(lane.generations) > len(generations)
    first = lane.end_rows[-len(generations) - 1] + 1 if whole else 0
    # What was there before the first generation is no generation's.
    among = [row for row in range(first, len(lane.kind)) if lane.kind[row] != "baseline"]
    phases = {lane.phase[row] for row in among if lane.kind[row] == "phase_end"}
    places = [None, *sorted(phase for phase in phases if phase is not None)]
    rows = {place: [row for row in among if applies(lane, row, place)] for place in places}
    return _View(lane, frozenset(generations), rows)


def _agreed(views: Sequence[_View], name: str) -> Iterator[tuple[str | None, int]]:
    """Where, and how many: the same in every process that counts the type."""
    of_each = [counts for view in views if (counts := _steady(view, name)) is not None]
    if not of_each:
        return
    same = {
        place: count
        for place, count in of_each[0].items()
        if all(counts.get(place) == count for counts in of_each)
    }
    yield from [(None, same[None])] if None in same else same.items()


def _steady(view: _View, name: str) -> _Counts | None:
    """None: the process has not counted the type in these generations."""
    column = view.lane.series.get(f"type.{name}.count")
    if column is None or all(column[row] is None for row in view.rows[None]):
        return None
    found = {
        place: count
        for place, rows in view.rows.items()
        if (count := _only(view, column, rows)) is not None
    }
    return {None: found[None]} if None in found else found


def _only(view: _View, column: Sequence[Value], rows: Sequence[int]) -> int | None:
    """The one count that was read, in each of the generations; unknown in one of them is unknown."""
    counts = {column[row] for row in rows} - {None}
    if len(counts) != 1:
        return None
    read_in = {view.lane.generation[row] for row in rows if column[row] is not None}
    count = counts.pop()
    whole = count is not None and count == int(count) and view.generations <= read_in
    return int(count) if whole and count is not None else None
