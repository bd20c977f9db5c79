"""Phase accounting: every byte is charged to a phase, to the time between phases, to other threads or to Leakline.

Other threads are charged only while one of them has an open phase and the training thread has none.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from ..results import PhaseAccount, PhaseAccounts
from ..run_history import ProcessHistory, RunHistory, Spans, Value, union
from ..statistics.trend import Slope, floor_slope
from ..timeline import (
    BETWEEN,
    UNKNOWN_PHASE,
    Timeline,
    timelines_of,
    top_level,
    with_its_generations,
)

BETWEEN_LINE: Final = "between"
OTHER_THREADS_LINE: Final = "other_threads"
LEAKLINE_LINE: Final = "leakline"
# Lines that are not phases of the training thread, in the order in which they are shown after those phases.
NO_PHASE: Final = (OTHER_THREADS_LINE, BETWEEN_LINE, LEAKLINE_LINE)
_PREFIX: Final = "phase."
# Number of newest generations that the slopes of phases are based on.
PHASES_KEPT: Final = 256
IN_USE: Final = "allocator.in_use_bytes"
# Minimum number of generations with readings after each phase.
_MIN_KNOWN: Final = 4


def account_names(timeline: Timeline) -> list[str]:
    """Return the paths that have their own line in the recorded phase accounts."""
    return sorted(
        name[len(_PREFIX) : -len(".bytes")]
        for name in timeline.series
        if name.startswith(_PREFIX) and name.endswith(".bytes")
    )


def booked_bytes(timeline: Timeline) -> tuple[Mapping[str, float], ...]:
    """Return the bytes of each generation by phase path, ``between``, ``other_threads`` and ``leakline``.

    The bytes are taken from the recorded phase accounts or, if there are no accounts, from the readings after each
    phase.
    """
    names = account_names(timeline)
    if not names:
        return tuple(_by_line(line) for line in timeline.private_increments)
    columns = [timeline.end_readings(timeline.series[f"{_PREFIX}{name}.bytes"]) for name in names]
    return tuple(
        {name: float(v) for name, v in zip(names, line, strict=True) if v is not None}
        for line in zip(*columns, strict=True)
    )


def _by_line(increments: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path, change in increments.items():
        # Several paths may share a line.
        line = _line_name(path)
        found[line] = found.get(line, 0.0) + change
    return found


def _line_name(path: str) -> str:
    return BETWEEN_LINE if path in (BETWEEN, UNKNOWN_PHASE) else path


def booked_columns(
    timeline: Timeline, lines: Callable[[], Sequence[Mapping[str, float]]], first: int, end: int
) -> dict[str, Sequence[Value]]:
    """Return the bytes of each line at positions ``first`` to ``end`` (exclusive), with None where nothing was booked.

    ``lines``: a function that returns the result of `booked_bytes`.
    """
    names = account_names(timeline)
    if names:
        rows = timeline.end_rows[first:end]
        series = (timeline.series[f"{_PREFIX}{name}.bytes"] for name in names)
        columns = [[column[row] for row in rows] for column in series]
    else:
        window = lines()[first:end]
        names = sorted({path for line in window for path in line})
        columns = [[line.get(name) for line in window] for name in names]
    every = zip(names, columns, strict=True)
    return {name: column for name, column in every if column.count(None) < len(column)}


def phase_slopes(
    columns: Mapping[str, Sequence[Value]], generations: Sequence[int]
) -> dict[str, Slope]:
    """Return the bytes per generation that stay in each top-level phase, as the slope of a running total."""
    x = [float(g) for g in generations]
    slopes = {}
    for top, within in sorted(_by_top_level(columns).items()):
        # Most phases contain no other phases, so there is usually nothing to add up.
        changes = (
            within[0]
            if len(within) == 1
            else [sum(filter(None, each)) for each in zip(*within, strict=True)]
        )
        slopes[top] = floor_slope(x, list(accumulate([change or 0 for change in changes])))
    return slopes


def _by_top_level(columns: Mapping[str, Sequence[Value]]) -> dict[str, list[Sequence[Value]]]:
    found: dict[str, list[Sequence[Value]]] = {}
    for path, column in columns.items():
        found.setdefault(top_level(path), []).append(column)
    return found


def unread_phases(
    timeline: Timeline, columns: Mapping[str, Sequence[Value]], first: int, end: int
) -> set[str]:
    """Return the top-level phases whose memory was not read in the newest or in most of the generations.

    ``columns``: see `booked_columns`; phases without a column are not returned.
    """
    found = set()
    for phase, within in _by_top_level(columns).items():
        if not all(None in column for column in within):
            continue
        ran = _positions_run(timeline, phase).intersection(range(first, end))
        read = {i for column in within for i, size in enumerate(column, first) if size is not None}
        known = ran & read
        if ran and (2 * len(known) < len(ran) or max(ran) - max(known, default=-1) > _MIN_KNOWN):
            found.add(phase)
    return found


def live_bytes_by_phase(timeline: Timeline, first: int, end: int) -> dict[str, float] | None:
    """Return the bytes per generation that were allocated in each top-level phase and are still in use.

    Return None if the bytes in use were not read after each phase in enough generations.

    The phase accounts charge memory to the phase in which the process grew: a phase that reuses freed memory is
    charged nothing, even if it keeps that memory. The bytes in use in the C allocator rise in the phase that
    allocates them. Memory that one phase takes and another phase gives back cancels out.
    """
    if not timeline.has(IN_USE):
        return None
    lines = timeline.increments(IN_USE, max(first, end - PHASES_KEPT), end)
    known = [line for line in lines if line and UNKNOWN_PHASE not in line]
    if len(known) < _MIN_KNOWN:
        return None
    found: dict[str, float] = {}
    for line in known:
        for path, change in line.items():
            top = _line_name(top_level(path))
            found[top] = found.get(top, 0.0) + change / len(known)
    return without_give_and_take(found)


def without_give_and_take(amounts: Mapping[str, float]) -> dict[str, float]:
    """Offset the phases that give memory back against the phases that take the most.

    If one phase allocates and a later phase frees, neither phase leaks, so neither keeps a share.
    """
    left = dict(amounts)
    for _ in range(2 * len(left)):
        least, giver = min(zip(left.values(), left, strict=True))
        most, taker = max(zip(left.values(), left, strict=True))
        if least >= 0 or most <= 0:
            break
        moved = min(most, -least)
        left[taker] -= moved
        left[giver] += moved
    return left


def phase_executions(timeline: Timeline | ProcessHistory) -> dict[str, int]:
    """Return the number of executions by phase path, from recorded counts or from snapshots.

    A left-out phase counts as one additional execution.
    """
    found = dict.fromkeys(timeline.left_out.phases, 1)
    steps = zip(timeline.kind, timeline.phase, strict=True)
    for phase, times in Counter([p for kind, p in steps if kind == "phase_end" and p]).items():
        found[phase] = found.get(phase, 0) + times
    for name, column in timeline.series.items():
        if name.startswith(_PREFIX) and name.endswith(".executions"):
            path = name[len(_PREFIX) : -len(".executions")]
            found[path] = max(found.get(path, 0), int(sum(filter(None, column))))
    return found


def executions_each(timeline: Timeline, path: str, since: float, end: int) -> int | None:
    """Return how often a phase ran in each generation, starting at ``since``.

    Return None if the number varies or is unknown.
    """
    column = timeline.series.get(f"{_PREFIX}{path}.executions")
    if column is None:
        return None
    ended = zip(timeline.generations[:end], timeline.end_rows[:end], strict=True)
    times = {column[row] for generation, row in ended if generation >= since}
    (first, *others) = times or {None}
    return None if others or not first else int(first)


def phase_accounts(history: RunHistory) -> PhaseAccounts:
    """Return the phase accounts of a run, summed over its processes in each generation.

    The amounts of a left-out generation are included in the next generation that no process leaves out.
    """
    timelines = with_its_generations(timelines_of(history))
    left_out = union(timeline.left_out.generations for timeline in timelines)
    seen = {g for timeline in timelines for g in timeline.generations}
    generations = tuple(sorted(g for g in seen if g not in left_out))
    at = {g: bisect_left(generations, g) for g in seen}
    amounts: dict[str, list[float]] = {}
    seconds: dict[str, list[Value]] = {}
    executions: dict[str, list[int]] = {}
    for timeline in timelines:
        counts = _executions_by_generation(timeline)
        for i, (generation, line) in enumerate(
            zip(timeline.generations, booked_bytes(timeline), strict=True)
        ):
            position = at[generation]
            for name, change in line.items():
                amounts.setdefault(name, [0.0] * len(generations))[position] += change
                column = seconds.setdefault(name, [None] * len(generations))
                if generation not in left_out:
                    spent = _reading(timeline, f"{_PREFIX}{name}.seconds", timeline.end_rows[i])
                    column[position] = _longer(column[position], spent)
                ran = executions.setdefault(name, [0] * len(generations))
                ran[position] += counts.get((name, generation), 0)
    order = sorted(amounts, key=_place)
    lines = tuple(
        PhaseAccount(name, tuple(amounts[name]), tuple(seconds[name]), tuple(executions[name]))
        for name in order
    )
    total = tuple(sum(line.bytes[i] for line in lines) for i in range(len(generations)))
    return PhaseAccounts(generations, lines, total, _spans(generations, left_out))


def _spans(generations: Sequence[int], left_out: Spans) -> tuple[int, ...]:
    """Return how many generations each generation represents, including generations left out before it."""
    if not left_out:
        return ()
    starts = [first for first, _ in left_out.spans]
    gone = list(accumulate((last - first + 1 for first, last in left_out.spans), initial=0))
    end = [gone[bisect(starts, generation)] for generation in generations]
    return tuple(1 + now - before for before, now in pairwise((0, *end)))


def _place(name: str) -> tuple[int, str]:
    return (NO_PHASE.index(name) if name in NO_PHASE else -1, name)


def _executions_by_generation(timeline: Timeline) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for kind, phase, generation in zip(
        timeline.kind, timeline.phase, timeline.generation, strict=True
    ):
        if kind == "phase_end" and phase and generation is not None:
            found[phase, generation] = found.get((phase, generation), 0) + 1
    for name in account_names(timeline):
        column = timeline.series.get(f"{_PREFIX}{name}.executions")
        for generation, row in zip(timeline.generations, timeline.end_rows, strict=True):
            value = None if column is None else column[row]
            if value is not None:
                found[name, generation] = int(value)
    return found


def _positions_run(timeline: Timeline, phase: str) -> set[int]:
    found = {
        at for path, rows in timeline.phase_rows.items() if top_level(path) == phase for at in rows
    }
    for name in account_names(timeline):
        column = timeline.series.get(f"{_PREFIX}{name}.executions")
        if column is not None and top_level(name) == phase:
            counted = timeline.end_readings(column)
            found.update(at for at, times in enumerate(counted) if times is not None)
    return found


def _reading(timeline: Timeline, name: str, row: int) -> Value:
    column = timeline.series.get(name)
    return None if column is None else column[row]


def _longer(a: Value, b: Value) -> Value:
    """Return the longer time: processes run in parallel, so the slowest process determines the time."""
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)
