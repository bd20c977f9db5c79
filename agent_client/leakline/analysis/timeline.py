"""One process of the run on the generation axis: the input of every later step.

A timeline is one place in the run (rank and role) over all its attempts. A resume that repeats generations
replaces the previous attempt's measurements of these generations. Where one attempt ends and the next begins, the
jump is removed, so that memory freed by a crash is not mistaken for a release.

An ``end`` is a number of generations, counted from the first; as in a slice, it is exclusive. `Known` caches
results computed from the first generations of a timeline, which remain valid while the run continues.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import itemgetter, le
from statistics import median, median_low
from typing import Any, Final, TypeVar

from .generation_axis import generations_of
from .run_history import (
    NOTHING_LEFT_OUT,
    TENSOR_BYTES,
    LeftOut,
    ProcessHistory,
    RunHistory,
    Spans,
    Value,
    is_javascript,
    union,
)


class Known:
    """A cache of results by (number of generations, key)."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, object], Any] = {}

    def once(self, end: int, what: object, work: Callable[[], T]) -> T:
        """Return the result of ``work``, computed once. ``what`` must name everything that ``work`` depends on."""
        key = (end, what)
        if key not in self._found:
            self._found[key] = work()
        found: T = self._found[key]
        return found

    def only(self, wanted: Callable[[int, object], bool]) -> Known:
        """Return a copy with only the results for which ``wanted(number of generations, key)`` is true."""
        kept = Known()
        kept._found = {key: value for key, value in self._found.items() if wanted(*key)}
        return kept

    def learn(self, other: Known) -> None:
        """Copy the results of another cache for the same generations."""
        self._found.update(other._found)


T = TypeVar("T")

END: Final = "generation_end"
# The role of the processes whose generations count as the generations of the run.
MAIN: Final = "main"
# Kinds of snapshots taken at transitions between phases; other kinds are taken at any time.
STEPS: Final = ("baseline", "phase_end", END)
# A series is read at generation ends unless some phase has more readings of it and the number at generation ends is
# below this fraction of that phase's number.
_ENOUGH_AT_ENDS: Final = 0.5
# Number of generations before a resume that determine the usual gain per generation.
_BEFORE_RESUME: Final = 6
UNKNOWN_PHASE: Final = "?"
# Number of newest generations whose distances determine the spacing of a process's readings.
SPACED: Final = 64
# A longer gap is bridged only if an earlier gap was at least half as long: otherwise, the process may be gone.
_LONGEST_GAP: Final = 32
_LONGER: Final = 2
# The key of private memory in `Timeline.places`.
_PRIVATE: Final = "private"
BETWEEN: Final = ""

Increments = tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Timeline:
    """Snapshots of one process place in order, with the row that represents the end of each generation."""

    name: str
    instance: str
    kind: Sequence[str]
    phase: Sequence[str | None]
    time: Sequence[float]
    generation: Sequence[int | None]
    series: Mapping[str, Sequence[Value]]
    segment: Sequence[int]
    generations: tuple[int, ...]
    end_rows: tuple[int, ...]
    baseline_row: int | None
    # generation -> position on the axis
    position: Mapping[int, int]
    left_out: LeftOut = NOTHING_LEFT_OUT
    role: str = MAIN
    # True for a single process whose steps never go back to an earlier generation.
    in_order: bool = False
    # Results that depend only on the rows up to the end of a generation.
    known: Known = field(default_factory=Known, compare=False)
    # series -> where in a generation it is read
    places: dict[str, str] = field(default_factory=dict, compare=False)
    _values: dict[str, list[Value]] = field(default_factory=dict, compare=False)
    _increments: dict[str, Increments] = field(default_factory=dict, compare=False)
    _spacings: dict[int, int] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.generations)

    @cached_property
    def lived(self) -> Spans:
        """All completed generations, including any that are left out."""
        return union((Spans.of(self.generations), self.left_out.generations))

    def spacing(self, end: int) -> int:
        """Return the usual distance between neighbouring generations: 100 if every hundredth step was recorded."""
        if end not in self._spacings:
            self._spacings[end] = spacing_of(self.generations[max(0, end - SPACED) : end])
        return self._spacings[end]

    @cached_property
    def whole_from(self) -> int:
        """The position after which no generation is left out."""
        newest = self.left_out.generations.last
        return 0 if newest is None else bisect_left(self.generations, newest)

    def has(self, name: str) -> bool:
        return name in self.series

    def values(self, name: str) -> list[Value]:
        """Return one reading per generation: at its end, or after the phase with the most readings of this series."""
        if name not in self._values:
            self._values[name] = self._read(name, self.series[name])
        return self._values[name]

    def readings(self, name: str) -> list[Value]:
        """Return readings like `values`, but not stitched across resumes."""
        column = self.series[name]
        rows = self._rows_for(name, column, self.end_readings(column))
        return [None if row is None else column[row] for row in rows]

    @cached_property
    def end_readings(self) -> Callable[[Sequence[Value]], Sequence[Value]]:
        """A function that extracts the readings at generation ends from a column, not stitched across resumes."""
        rows = self.end_rows
        return itemgetter(*rows) if len(rows) > 1 else lambda column: [column[row] for row in rows]

    def at_ends(self, column: Sequence[Value]) -> list[Value]:
        """Return the readings of a computed column at generation ends, stitched like `values`.

        ``column`` has one entry per snapshot.
        """
        return self._joined(column, self.end_rows)

    def points(
        self,
        name: str,
        end: int | None = None,
        *,
        baseline: bool = False,
        newest: int | None = None,
    ) -> tuple[list[float], list[float]]:
        """Return (generations, readings) without gaps, for the last ``newest`` of the first ``end`` generations.

        With ``baseline`` the reading before the first generation is included, placed one spacing before the first
        generation.
        """
        first = 0 if newest is None else max(0, (len(self) if end is None else end) - newest)
        xs: list[float] = []
        ys: list[float] = []
        if baseline and first == 0 and self.baseline_row is not None and self.generations:
            before = self.series[name][self.baseline_row]
            if before is not None:
                last = len(self) if end is None else end
                spacing = self._spacings.get(last) or self.spacing(last)
                xs.append(float(self.generations[0] - spacing))
                ys.append(float(before))
        axis, values = self._axis[first:end], self.values(name)[first:end]
        if None in values:
            axis = [x for x, y in zip(axis, values, strict=True) if y is not None]
            values = [y for y in values if y is not None]
        return [*xs, *axis], [*ys, *map(float, values)]  # type: ignore[arg-type]

    def newest_reading(self, name: str, end: int) -> int | None:
        """Return the position of the newest reading of a series in the first ``end`` generations, or None."""
        values = self.values(name)
        return next((i for i in range(end - 1, -1, -1) if values[i] is not None), None)

    @cached_property
    def _axis(self) -> list[float]:
        return [float(generation) for generation in self.generations]

    def place(self, name: str) -> str | None:
        """Return where in a generation this series, or private memory, is read."""
        if name not in self.places:
            _ = self.values(name) if self.has(name) else self.private
        return self.places.get(name)

    @cached_property
    def splits_memory(self) -> bool:
        """True if most snapshots with a memory reading distinguish anonymous from other resident memory."""
        anonymous = self.series.get("process.anon_bytes")
        if anonymous is None or 2 * anonymous.count(None) <= len(anonymous):
            return anonymous is not None
        # Snapshots without any memory reading do not count.
        resident = self.series.get("process.rss_bytes", [None] * len(anonymous))
        pairs = zip(anonymous, resident, strict=True)
        read = sum(a is not None or r is not None for a, r in pairs)
        return 0 < read <= 2 * (len(anonymous) - anonymous.count(None))

    @cached_property
    def private_rows(self) -> Sequence[Value]:
        """Memory of this process alone, per snapshot: anonymous plus swapped, or RSS if the split is unknown.

        With TensorFlow.js, these are the bytes of the tensors.
        """
        if not self.splits_memory:
            known = TENSOR_BYTES if is_javascript(self.series) else "process.rss_bytes"
            return self.series.get(known, [None] * len(self.kind))
        anonymous, swapped = (
            self.series["process.anon_bytes"],
            self.series.get("process.swap_bytes"),
        )
        if swapped is None:
            return anonymous
        return [
            None if a is None else a + (s or 0) for a, s in zip(anonymous, swapped, strict=True)
        ]

    @cached_property
    def private(self) -> list[float]:
        """Private bytes per generation; gaps are bridged by straight lines, and the last reading repeats."""
        return bridge_gaps(self._read(_PRIVATE, self.private_rows))

    @cached_property
    def private_read(self) -> list[int]:
        """Positions of the generations in which private memory was read."""
        read = self._read(_PRIVATE, self.private_rows)
        return [i for i, value in enumerate(read) if value is not None]

    def left_behind(self, end: int) -> float:
        """Return the bytes by which `private` exceeds the actual reading, because of memory in earlier attempts."""
        if not self.segment or self.segment[0] == self.segment[-1]:
            return 0.0
        rows = self._rows_for(_PRIVATE, self.private_rows, self.end_readings(self.private_rows))
        read = fill_gaps([None if row is None else self.private_rows[row] for row in rows[:end]])
        return self.private[end - 1] - read[-1] if read else 0.0

    def increments(self, name: str, first: int = 0, end: int | None = None) -> Increments:
        """Return how much the series changed in each phase path (``""`` between phases), by generation.

        The result covers the generations at positions ``first`` to ``end`` (exclusive).
        """
        end = len(self) if end is None else end
        if self.in_order:
            return self._walk(self.series[name], first, end)
        # If steps go back, any row may belong to the range: process all of them once and cache the result.
        if name not in self._increments:
            self._increments[name] = self._walk(self.series[name], 0, len(self))
        return self._increments[name][first:end]

    @cached_property
    def private_increments(self) -> Increments:
        return self._walk(self.private_rows, 0, len(self))

    @cached_property
    def phase_rows(self) -> dict[str, dict[int, int]]:
        """The last row after each phase, by phase path and position of the generation."""
        found: dict[str, dict[int, int]] = {}
        rows = zip(self.kind, self.phase, self.generation, strict=True)
        for row, (kind, phase, generation) in enumerate(rows):
            if kind != "phase_end" or not phase or generation is None:
                continue
            position = self.position.get(generation)
            if position is not None:
                found.setdefault(phase, {})[position] = row
        return found

    def _read(self, name: str, column: Sequence[Value]) -> list[Value]:
        """Return one reading per generation, of a series or of private memory."""
        ends = self.end_readings(column)
        rows = self._rows_for(name, column, ends)
        is_one_piece = not self.segment or self.segment[0] == self.segment[-1]
        return list(ends) if is_one_piece and rows is self.end_rows else self._joined(column, rows)

    def _rows_for(
        self, name: str, column: Sequence[Value], ends: Sequence[Value]
    ) -> Sequence[int | None]:
        """Return the rows at which to read a series: the same place in each generation, for comparable readings.

        ``ends``: the readings of the series at generation ends.
        """
        at_ends = len(self.end_rows) - ends.count(None)
        best, chosen = at_ends, None
        if at_ends < len(self.end_rows):
            for phase, rows in self.phase_rows.items():
                found = sum(column[row] is not None for row in rows.values())
                if found * _ENOUGH_AT_ENDS > at_ends and found > best:
                    best, chosen = found, phase
        self.places[name] = END if chosen is None else f"phase {chosen}"
        if chosen is None:
            return self.end_rows
        rows = self.phase_rows[chosen]
        return [rows.get(p) for p in range(len(self.generations))]

    def _joined(self, column: Sequence[Value], rows: Sequence[int | None]) -> list[Value]:
        """Replace the jump at each resume by the usual gain per generation before the resume."""
        if not self.segment or self.segment[0] == self.segment[-1]:
            return [None if row is None else column[row] for row in rows]
        out: list[Value] = []
        known: list[float] = []
        shift: float = 0
        segment = self.segment[rows[0]] if rows and rows[0] is not None else 0
        for row in rows:
            value = None if row is None else column[row]
            if row is not None and value is not None:
                if self.segment[row] != segment:
                    shift = known[-1] + _usual_gain(known) - value if known else 0
                    segment = self.segment[row]
                value += shift
                known.append(value)
            out.append(value)
        return out

    def _walk(self, column: Sequence[Value], first: int, end: int) -> Increments:
        found: list[dict[str, float]] = [{} for _ in range(first, end)]
        before: float | None = None
        segment = -1
        passed: set[str] = set()
        for row in self._rows_around(column, first, end):
            if self.kind[row] not in STEPS:
                continue
            path = (self.phase[row] or BETWEEN) if self.kind[row] == "phase_end" else BETWEEN
            value = column[row]
            if value is None:
                passed.add(path)
                continue
            if before is not None and self.segment[row] == segment:
                generation = self.generation[row]
                position = -1 if generation is None else self.position.get(generation, -1)
                if first <= position < end:
                    where = _one_phase({*passed, path}) if passed else path
                    line = found[position - first]
                    line[where] = line.get(where, 0.0) + value - before
            before, segment = value, self.segment[row]
            if passed:
                passed = set()
        return tuple(found)

    def _rows_around(self, column: Sequence[Value], first: int, end: int) -> range:
        """Return the rows with the changes of a series at positions ``first`` to ``end`` (exclusive).

        The rows begin with the last reading of the series before these generations.
        """
        if first >= end:
            return range(0)
        if not self.in_order or self.kind[self.end_rows[first]] != END:
            return range(len(self.kind))
        begin = self.end_rows[first - 1] if first else 0
        while begin > 0 and (column[begin] is None or self.kind[begin] not in STEPS):
            begin -= 1
        return range(begin, self.end_rows[end] if end < len(self) else len(self.kind))


def _usual_gain(values: Sequence[float]) -> float:
    recent = values[-_BEFORE_RESUME:]
    return median([b - a for a, b in pairwise(recent)]) if len(recent) > 1 else 0.0


def spacing_of(generations: Sequence[int]) -> int:
    """Return the usual distance between neighbouring generations, or 1 if there are fewer than two generations."""
    gaps = [b - a for a, b in pairwise(generations)]
    return max(1, median_low(gaps)) if gaps else 1


def top_level(path: str) -> str:
    return path.split("/", 1)[0]


def lies_within(path: str, phase: str) -> bool:
    """Return True if a path is the phase or within it; ``run_episode`` also matches ``evaluate/run_episode``."""
    return f"/{phase}/" in f"/{path}/"


def _one_phase(passed: set[str]) -> str:
    """Return the phase to charge for a change that spans several phases."""
    if len(passed) == 1:
        return next(iter(passed))
    tops = {top_level(path) for path in passed}
    return tops.pop() if len(tops) == 1 else UNKNOWN_PHASE


def fill_gaps(values: Iterable[Value]) -> list[float]:
    """Return the values with gaps filled by the previous reading.

    A leading gap is filled by the first reading. The result is empty if there are no readings.
    """
    listed = list(values)
    if None not in listed:
        return list(map(float, listed))  # type: ignore[arg-type]
    last = next((float(v) for v in listed if v is not None), None)
    if last is None:
        return []
    filled = []
    for value in listed:
        last = last if value is None else float(value)
        filled.append(last)
    return filled


def bridge_gaps(values: Sequence[Value]) -> list[float]:
    """Return the values with straight lines across gaps; at the ends the nearest reading repeats."""
    filled = fill_gaps(values)
    if None not in values:
        return filled
    known = [i for i, value in enumerate(values) if value is not None]
    longest = 0
    for a, b in pairwise(known):
        if can_bridge(b - a, longest):
            for i in range(a + 1, b):
                filled[i] = filled[a] + (filled[b] - filled[a]) * (i - a) / (b - a)
        longest = max(longest, b - a)
    return filled


def can_bridge(gap: int, longest_before: int) -> bool:
    """Return True if a gap of this many generations is short enough for a straight line."""
    return gap <= max(_LONGEST_GAP, _LONGER * longest_before)


def timelines_of(history: RunHistory) -> tuple[Timeline, ...]:
    """Return the timelines of a run in a fixed order, regardless of the order in which its processes arrived.

    Processes that follow each other at the same place form one timeline: the attempts of a run, and processes that the
    run starts one after another. Processes that run at the same time have separate timelines.
    """
    ordered = sorted(
        (process for process in history.processes if len(process)),
        key=lambda p: (p.rank, p.role, p.time[0], p.attempt, p.instance),
    )
    places: dict[tuple[int, str], list[list[ProcessHistory]]] = {}
    for process in ordered:
        slots = places.setdefault((process.rank, process.role), [])
        free = next((slot for slot in slots if _follows(process, slot[-1])), None)
        if free is None:
            slots.append([process])
        else:
            free.append(process)
    timelines = []
    for (rank, role), slots in places.items():
        for slot, attempts in enumerate(slots):
            name = f"rank {rank} {role}" + (f" {slot + 1}" if slot else "")
            timeline = _timeline(name, attempts)
            if timeline is not None:
                timelines.append(timeline)
    return tuple(timelines)


def with_its_generations(timelines: Sequence[Timeline]) -> Sequence[Timeline]:
    """Return the timelines that count the run's generations; child processes count generations of their own."""
    return [timeline for timeline in timelines if timeline.role == MAIN] or timelines


def _follows(process: ProcessHistory, before: ProcessHistory) -> bool:
    """Return True if a process succeeds another: in another attempt, or after the end of the other process."""
    return process.attempt != before.attempt or process.time[0] >= before.time[-1]


def _timeline(name: str, attempts: Sequence[ProcessHistory]) -> Timeline | None:
    if not attempts:
        return None
    in_order = len(attempts) == 1 and _only_goes_on(attempts[0])
    rows, segments = ([], [0] * len(attempts[0])) if in_order else _rows_that_count(attempts)
    one = in_order or (len(attempts) == 1 and len(rows) == len(attempts[0]))

    def column(columns: Sequence[Sequence[T]]) -> Sequence[T]:
        return columns[0] if one else [columns[a][i] for a, i in rows]

    names = dict.fromkeys(n for a in attempts for n in sorted(a.series))
    empty: list[list[Value]] = [[None] * len(a) for a in attempts]
    generation = column([_generations(a) for a in attempts])
    kind = column([a.kind for a in attempts])
    phase = column([a.phase for a in attempts])
    ends = _ends(kind, phase, generation)
    baseline = next((i for i, k in enumerate(kind) if k == "baseline" and segments[i] == 0), None)
    generations = tuple(sorted(ends))
    return Timeline(
        name, attempts[-1].instance, kind, phase, column([a.time for a in attempts]), generation,
        {n: column([a.series.get(n, empty[j]) for j, a in enumerate(attempts)]) for n in names},
        segments, generations, tuple(ends[g] for g in generations), baseline,
        {g: i for i, g in enumerate(generations)}, _left_out(attempts), attempts[-1].role,
        in_order,
    )  # fmt: skip


def _left_out(attempts: Sequence[ProcessHistory]) -> LeftOut:
    """Combine the parts left out of all attempts, without generations that a later attempt repeats."""
    if len(attempts) == 1:
        return attempts[0].left_out
    parts, phases, repeated = list[Spans](), set[str](), math.inf
    for attempt in reversed(attempts):
        parts.append(attempt.left_out.generations.until(repeated - 1))
        phases |= attempt.left_out.phases
        repeated = min(
            repeated, min((g for g in _generations(attempt) if g is not None), default=repeated)
        )
    generations = union(parts)
    return LeftOut(generations, frozenset(phases)) if generations else NOTHING_LEFT_OUT


def _generations(process: ProcessHistory) -> Sequence[int | None]:
    return generations_of(process.generation, process.monotonic, process.unit_seconds)


def _rows_that_count(
    attempts: Sequence[ProcessHistory],
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return (attempt, row) for every snapshot that no later attempt repeats, and the segment of each such snapshot."""
    kept: list[tuple[int, int, int | None, int]] = []
    stretch = 0
    for a, process in enumerate(attempts):
        if a:
            stretch += 1
        newest: int | None = None
        for i, generation in enumerate(_generations(process)):
            if generation is not None and process.kind[i] in STEPS:
                if newest is not None and generation < newest and process.kind[i] == "phase_end":
                    stretch += 1
                    newest = generation
                newest = generation if newest is None else max(newest, generation)
            kept.append((a, i, generation, stretch))
    repeated = _first_generations(kept)
    rows, segments = [], []
    for a, i, generation, own in kept:
        later = [first for s, first in repeated.items() if s > own]
        if generation is None or not later or generation < min(later):
            rows.append((a, i))
            segments.append(own)
    return rows, segments


def _only_goes_on(process: ProcessHistory) -> bool:
    """Return True if no step belongs to an earlier generation than the step before it."""
    read = zip(_generations(process), process.kind, strict=True)
    steps = [generation for generation, kind in read if generation is not None and kind in STEPS]
    return all(map(le, steps, steps[1:]))


def _first_generations(kept: Iterable[tuple[int, int, int | None, int]]) -> dict[int, int]:
    first: dict[int, int] = {}
    for _, _, generation, stretch in kept:
        if generation is not None:
            first[stretch] = min(first.get(stretch, generation), generation)
    return first


def _ends(
    kind: Sequence[str], phase: Sequence[str | None], generation: Sequence[int | None]
) -> dict[int, int]:
    """Return the row that represents the end of each generation.

    If no generation ends are recorded (imported logs), use the phase that was read in most generations; without
    phases, use the last reading of each generation.
    """
    steps = enumerate(zip(kind, generation, strict=True))
    ends = {g: row for row, (k, g) in steps if k == END and g is not None}
    if ends:
        return ends
    places: dict[str | None, dict[int, int]] = {}
    for row, g in enumerate(generation):
        if g is None:
            continue
        if kind[row] == "phase_end" and phase[row]:
            places.setdefault("phase " + str(phase[row]), {})[g] = row
        elif kind[row] in ("manual", "sample"):
            places.setdefault(None, {})[g] = row
    named = {place: rows for place, rows in places.items() if place is not None}
    if named:
        return max(named.values(), key=lambda rows: (len(rows), max(rows.values())))
    return places.get(None, {})
