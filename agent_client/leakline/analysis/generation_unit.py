"""What a run without generations is counted by: seconds while it is young and asks for them, else minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .generation_ranges import Spans
from .run_history import MINUTE_SECONDS, ProcessHistory, RunHistory

# Word -> seconds; a header with one of these is of a program that declares no generations.
UNITS_OF_TIME: Final = {"second": 1.0, "minute": MINUTE_SECONDS}
# A run that is counted by seconds goes on by the minute from here on: what loads and settles takes minutes.
COUNTED_BY_SECONDS_UP_TO: Final = 600.0
# Units of the axis for each reading from which on both are told.
_MOSTLY_UNREPORTED: Final = 2


def in_its_unit(history: RunHistory) -> RunHistory:
    """The run with the unit that it is really counted by; the same object where that is what it says already.

    Minutes are never told as generations, nor generations as minutes where the program declares them after all. What a
    process was before it declared any is then no part of the axis.
    """
    declaring = {_place(process) for process in history.processes if _declares(process)}
    if declaring:
        unit = "generation" if history.unit in UNITS_OF_TIME else history.unit
        of_none = {
            p.instance for p in history.processes if _place(p) in declaring and not _declares(p)
        }
        return _told(history, unit, dict.fromkeys(of_none, 0.0))
    young = history.unit == "second" and _is_young(history)
    if history.unit == "second" and not young:
        history = replace(history, began_by_seconds=True)
    unit = "second" if young else "minute"
    seconds = UNITS_OF_TIME[unit]
    return _told(history, unit, dict.fromkeys((p.instance for p in history.processes), seconds))


def passed(unit: str, seen: Spans) -> int | None:
    """Return the units from the first of ``seen`` to the newest; None if each was seen.

    Generations are counted, and a few that were lost change nothing. Of an axis of which most are never reported, as
    steps by the hundred are, both numbers are told.
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


def _told(history: RunHistory, unit: str, seconds: dict[str, float]) -> RunHistory:
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
