"""The generation axis of a run: its unit, and which snapshots of a very long process are read.

A run without generations is counted by seconds while it is young and asks for them, else by minutes.

Of a long process every one of the newest generations is read and fewer of older ones, so that an examination of 100,000
generations costs what one of 700 costs. The choice depends on the snapshots alone, never on when somebody looked, and
changes only once in so many generations, so that examinations can reuse earlier ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from .run_history import MINUTE_SECONDS, LeftOut, ProcessHistory, RunHistory, Spans, Value

# Word -> seconds; a header with one of these is of a program that declares no generations.
UNITS_OF_TIME: Final = {"second": 1.0, "minute": MINUTE_SECONDS}
# A run that is counted by seconds goes on by the minute from here on: what loads and settles takes minutes.
COUNTED_BY_SECONDS_UP_TO: Final = 600.0
# Units of the axis for each reading from which on both are reported.
_MOSTLY_UNREPORTED: Final = 2


def in_its_unit(history: RunHistory) -> RunHistory:
    """The run with the unit that it is really counted by; the same object where that is what it says already.

    Minutes are never reported as generations, nor generations as minutes where the program declares them after all.
    What a process was before it declared any is then no part of the axis.
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
    """Return the units from the first of ``seen`` to the newest; None if each was seen.

    Generations are counted, and a few that were lost change nothing. Of an axis of which most are never reported, as
    steps by the hundred are, both numbers are reported.
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


# What a program loads and builds up at first; baselines are taken from it.
_FIRST: Final = 16
# The newest, at least: what is attributed and judged step by step lies in them.
_NEWEST: Final = 384
# They grow by so many before older ones are thinned again.
_BLOCK: Final = 128
# Of the older ones, every second, fourth, .. so that no more than these are left.
_OLDER: Final = 256
# Shorter processes are read whole; so are those of fewer snapshots, whatever they say of their generations.
WHOLE: Final = _NEWEST + _BLOCK + _OLDER
# Events that expect something of every generation of a run.
PLANS: Final = frozenset({"band", "gauge", "budget", "fix"})


@dataclass(frozen=True, slots=True)
class Thinned:
    """The rows to read, in order, and what is left out with the others."""

    rows: Sequence[int]
    left_out: LeftOut


def thinned(history: RunHistory) -> RunHistory:
    """The run with its long processes thinned; the same object where none is."""
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
    """None where all are read. One entry per snapshot of a process; ``monotonic`` in seconds."""
    if len(generation) <= WHOLE:
        return None
    of_rows = generations_of(generation, monotonic, unit_seconds)
    generations = sorted({g for g in of_rows if g is not None})
    kept = positions_to_read(len(generations))
    if kept is None:
        return None
    return _thinned_to(of_rows, phase, generations, {generations[i] for i in kept})


def positions_to_read(count: int) -> list[int] | None:
    """Of so many generations of a process, ascending. None where all are."""
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
    """Return those of `positions_to_read`, and enough of what another run has too, up to its generation ``last``.

    Of those the first and the newest, and of the others the same of every run: by their numbers, not by their places.
    ``generations``: all that a process has, ascending. ``also``: read in any case. None where all are read.
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
    """The generation of each snapshot; minutes (or what ``unit_seconds`` says) since the start for a program that
    declares none, and none at all for one that is not counted by time either (0).
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
    # A few thousand of each of many columns: without a Python step per value.
    pick = itemgetter(*found.rows)
    read = process.picked(lambda column: list(pick(column)))
    measured = {name: column for name, column in read.series.items() if _has_readings(column)}
    return replace(read, series=measured, left_out=found.left_out)


def _has_readings(column: Sequence[Value]) -> bool:
    return any(value is not None for value in column)
