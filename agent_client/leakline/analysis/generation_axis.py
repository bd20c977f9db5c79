"""The generation axis of a run: its unit, and which snapshots of a very long process are read.

A run without generations is counted in seconds while it is young and its header requests seconds, otherwise in
minutes.

For a long process, all of the newest generations are read but fewer of the older ones, so that examining 100,000
generations costs as much as examining 700. The choice depends only on the snapshots, never on the time of an
examination, and changes only once per block of generations, so that examinations can reuse earlier results.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from .run_history import MINUTE_SECONDS, LeftOut, ProcessHistory, RunHistory, Spans, Value

# Unit -> seconds. A header with one of these units belongs to a program that declares no generations.
UNITS_OF_TIME: Final = {"second": 1.0, "minute": MINUTE_SECONDS}
# After this many seconds, a run counted in seconds is counted in minutes, because loading and settling take minutes.
COUNTED_BY_SECONDS_UP_TO: Final = 600.0
# With at least this many units of the axis per reading, both the number of units and the number of readings are
# reported.
_MOSTLY_UNREPORTED: Final = 2


def in_its_unit(history: RunHistory) -> RunHistory:
    """Return the run in the unit that it is actually counted in.

    Return the same object if the unit is already right. Minutes are never reported as generations, and generations
    are never reported as minutes if the program declares generations later. Processes without generations are then
    left off the axis, if another process at the same place declares generations.
    """
    declaring = {_place(process) for process in history.processes if _declares(process)}
    if declaring:
        unit = "generation" if history.unit in UNITS_OF_TIME else history.unit
        of_none = {
            p.instance for p in history.processes if _place(p) in declaring and not _declares(p)
        }
        return _by_unit(history, unit, dict.fromkeys(of_none, 0.0))
    young = history.unit == "second" and _is_young(history)
    if history.unit == "second" and not young:
        history = replace(history, began_by_seconds=True)
    unit = "second" if young else "minute"
    seconds = UNITS_OF_TIME[unit]
    return _by_unit(history, unit, dict.fromkeys((p.instance for p in history.processes), seconds))


def passed(unit: str, seen: Spans) -> int | None:
    """Return the number of units from the first of ``seen`` to the last.

    Return None if every unit was seen or if only a few generations were lost. If most generations are never
    reported, for example when every hundredth step is logged, both numbers are worth reporting.
    """
    if seen.first is None or seen.last is None:
        return None
    found = seen.last - seen.first + 1
    if unit not in UNITS_OF_TIME and found < _MOSTLY_UNREPORTED * len(seen):
        return None
    return None if found == len(seen) else found


def _place(process: ProcessHistory) -> tuple[int, str]:
    return process.rank, process.role


def _declares(process: ProcessHistory) -> bool:
    return any(generation is not None for generation in process.generation)


def _is_young(history: RunHistory) -> bool:
    return all(
        process.monotonic[-1] - process.monotonic[0] <= COUNTED_BY_SECONDS_UP_TO
        for process in history.processes
        if len(process)
    )


def _by_unit(history: RunHistory, unit: str, seconds: dict[str, float]) -> RunHistory:
    processes = tuple(
        p
        if seconds.get(p.instance, p.unit_seconds) == p.unit_seconds
        else replace(p, unit_seconds=seconds[p.instance])
        for p in history.processes
    )
    same = all(a is b for a, b in zip(processes, history.processes, strict=True))
    if same and unit == history.unit:
        return history
    return replace(history, unit=unit, processes=history.processes if same else processes)


# The first generations, in which a program loads and builds up; baselines are taken from them.
_FIRST: Final = 16
# At least this many of the newest generations are read: attribution and the walk through moments use them.
_NEWEST: Final = 384
# The number of newest generations grows by this many before older ones are thinned again.
_BLOCK: Final = 128
# Every second, fourth, ... of the older generations is read, so that at most this many remain.
_OLDER: Final = 256
# Processes with at most this many generations or snapshots are read completely.
WHOLE: Final = _NEWEST + _BLOCK + _OLDER
# Kinds of events whose declarations are checked against every generation of a run.
PLANS: Final = frozenset({"band", "gauge", "budget", "fix"})


@dataclass(frozen=True, slots=True)
class Thinned:
    """The rows to read, in order, and the generations and phases that are left out with the other rows."""

    rows: Sequence[int]
    left_out: LeftOut


def thinned(history: RunHistory) -> RunHistory:
    """Return the run with its long processes thinned, or the same object if no process is long."""
    processes = tuple(_thinned(process) for process in history.processes)
    if all(a is b for a, b in zip(processes, history.processes, strict=True)):
        return history
    return replace(history, processes=processes)


def rows_to_read(
    generation: Sequence[int | None],
    monotonic: Sequence[float],
    phase: Sequence[str | None],
    unit_seconds: float = MINUTE_SECONDS,
) -> Thinned | None:
    """Return which rows of a process to read; None means all rows.

    The arguments have one entry per snapshot; ``monotonic`` is in seconds.
    """
    if len(generation) <= WHOLE:
        return None
    of_rows = generations_of(generation, monotonic, unit_seconds)
    generations = sorted({g for g in of_rows if g is not None})
    kept = positions_to_read(len(generations))
    if kept is None:
        return None
    return _thinned_to(of_rows, phase, generations, {generations[i] for i in kept})


def positions_to_read(count: int) -> list[int] | None:
    """Return the positions of the generations to read, ascending, among ``count`` generations; None means all."""
    if count <= WHOLE:
        return None
    newest = (count - _NEWEST) // _BLOCK * _BLOCK
    step = 1
    while newest // step > _OLDER:
        step *= 2
    older = range(-(-(_FIRST + 1) // step) * step - 1, newest - 1, step)
    return [*range(_FIRST), *older, *range(newest - 1, count)]


def generations_to_compare(
    generations: Sequence[int], last: int, also: Collection[int] = ()
) -> set[int] | None:
    """Return the generations to read for a comparison up to generation ``last``; None means all generations.

    The result contains the generations at `positions_to_read`. Of the generations up to ``last``, it also contains
    the first, the newest, and others chosen by their numbers, so that the same generations are read in every run.
    ``generations``: all generations of the process, ascending. ``also``: generations that are always included.
    """
    alone = positions_to_read(len(generations))
    if alone is None:
        return None
    shared = generations[: bisect_right(generations, last)]
    step = 1
    while len(shared) // step > _OLDER:
        step *= 2
    return {
        *(generations[i] for i in alone),
        *shared[:_FIRST],
        *shared[-_NEWEST:],
        *(g for g in shared if g % step == 0),
        *also,
    }


def generations_of(
    generation: Sequence[int | None],
    monotonic: Sequence[float],
    unit_seconds: float = MINUTE_SECONDS,
) -> Sequence[int | None]:
    """Return the generation of each snapshot.

    For a program that declares no generations, count units of ``unit_seconds`` since the start; if
    ``unit_seconds`` is 0, all generations are None.
    """
    if not unit_seconds or any(g is not None for g in generation):
        return generation
    start = monotonic[0]
    return [int((moment - start) // unit_seconds) for moment in monotonic]


def _thinned_to(
    of_rows: Sequence[int | None], phase: Sequence[str | None], generations: Sequence[int],
    kept: Collection[int],
) -> Thinned:  # fmt: skip
    rows = [row for row, g in enumerate(of_rows) if g is None or g in kept]
    phases = {
        p for p, g in zip(phase, of_rows, strict=True) if p and g is not None and g not in kept
    }
    out = Spans.of(g for g in generations if g not in kept)
    return Thinned(rows, LeftOut(out, frozenset(phases)))


def _thinned(process: ProcessHistory) -> ProcessHistory:
    if process.left_out.generations:
        return process
    found = rows_to_read(process.generation, process.monotonic, process.phase, process.unit_seconds)
    if found is None:
        return process
    # A few thousand values are picked from each of many columns: avoid a Python loop over them.
    pick = itemgetter(*found.rows)
    read = process.picked(lambda column: list(pick(column)))
    measured = {name: column for name, column in read.series.items() if _has_readings(column)}
    return replace(read, series=measured, left_out=found.left_out)


def _has_readings(column: Sequence[Value]) -> bool:
    return any(value is not None for value in column)
