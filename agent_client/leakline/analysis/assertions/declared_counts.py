"""Declared and accepted counts: exact witnesses that need no statistics and fire where they are broken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...snapshot import LARGEST_INTEGER
from ...text_format import short_name
from ..run_history import Expectation
from ..timeline import Lane

COLLECTIONS: Final = "python.collections_full"
_READ_AFTER: Final = ("baseline", "phase_end", "generation_end", "manual")


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings an expectation applies to: row numbers and counts of one type in one lane."""

    expectation: Expectation
    type: str
    rows: tuple[int, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """An expectation that does not hold at its newest reading.

    ``proven``: the surplus outlived a full collection, or was there again at the next reading, or nothing is
    known of collections. ``count_before`` is the last reading that held, None when none did.
    """

    expectation: Expectation
    type: str
    count: float
    first_count: float
    count_before: float | None
    first_row: int
    row_before: int | None
    proven: bool
    above: bool


def expected_text(expectation: Expectation) -> str:
    """``2`` or ``16 to 17``, with ``after evolve_population`` where it is limited."""
    text = range_text(expectation)
    return text if expectation.after is None else f"{text} after {expectation.after}"


def range_text(expectation: Expectation) -> str:
    """``2``, ``16 to 17``, or ``up to 567 (baseline)``; of a baseline that is not read yet ``as at the baseline``."""
    low, high = expectation.low, expectation.high
    if expectation.baseline:
        return f"up to {high} (baseline)" if high < LARGEST_INTEGER else "as at the baseline"
    return str(low) if low == high else f"{low} to {high}"


def matching_types(lane: Lane, declared: str) -> tuple[str, ...]:
    """Types of the lane a declared name stands for: the full name, or the class name alone."""
    types = types_of(lane)
    if declared in types:
        return (declared,)
    return tuple(sorted(t for t in types if stands_for(declared, t)))


def stands_for(declared: str, name: str) -> bool:
    """Whether a declared name may mean this type."""
    return name == declared or name.endswith("." + declared) or name == short_name(declared)


def types_of(lane: Lane) -> set[str]:
    return {name for series in lane.series if (name := counted_type(series)) is not None}


def counted_type(series: str) -> str | None:
    """The type whose instances a series counts. None of ours: what a census finds of them follows what it watches, and
    our cost has a line of its own."""
    if not (series.startswith("type.") and series.endswith(".count")):
        return None
    name = series[len("type.") : -len(".count")]
    return None if name.startswith("leakline.") else name


def applicable_readings(lane: Lane, expectations: Iterable[Expectation]) -> tuple[Readings, ...]:
    found = []
    for expectation in expectations:
        for name in matching_types(lane, expectation.type):
            column = lane.series[f"type.{name}.count"]
            known = [
                (row, float(value))
                for row, value in enumerate(column)
                if value is not None and applies(lane, row, expectation.after)
            ]
            bound = expectation
            if expectation.baseline:
                bound, known = _since_baseline(lane, expectation, known)
            rows, counts = tuple(r for r, _ in known), tuple(c for _, c in known)
            found.append(Readings(bound, name, rows, counts))
    return tuple(found)


def _since_baseline(
    lane: Lane, expectation: Expectation, known: list[tuple[int, float]]
) -> tuple[Expectation, list[tuple[int, float]]]:
    """The bound that the newest attempt has set itself, and its readings.

    What the first generation builds up stays, as gradients and the state of an optimizer do: the most there was by its
    end is the baseline. A resumed program builds up anew.
    """
    if not known:
        return expectation, known
    newest = lane.segment[known[-1][0]]
    known = [(row, count) for row, count in known if lane.segment[row] == newest]
    numbered = (g for row, _ in known if (g := lane.generation[row]) is not None)
    first = next(numbered, None)
    by_then = [c for row, c in known if (g := lane.generation[row]) is None or g == first]
    return replace(expectation, high=int(max(by_then))), known


def applies(lane: Lane, row: int, after: str | None) -> bool:
    """Whether a count that is expected there is held against this reading."""
    if after is None:
        return lane.kind[row] in _READ_AFTER
    phase = lane.phase[row]
    if lane.kind[row] != "phase_end" or phase is None:
        return False
    return phase == after or phase.endswith("/" + after)


def find_violation(lane: Lane, readings: Readings, last_row: int) -> Violation | None:
    """The violation that stands at the newest reading up to ``last_row``."""
    upto = bisect_right(readings.rows, last_row)
    low, high = readings.expectation.low, readings.expectation.high
    if not upto or low <= readings.counts[upto - 1] <= high:
        return None
    above = readings.counts[upto - 1] > high
    first = upto - 1
    while first > 0 and _breaks(readings.counts[first - 1], low, high, above):
        first -= 1
    row = readings.rows[first]
    repeated = upto - first >= 2
    proven = repeated or _outlived_collection(lane, readings.type, row, last_row, high)
    return Violation(
        readings.expectation, readings.type, readings.counts[upto - 1], readings.counts[first],
        readings.counts[first - 1] if first else None, row,
        readings.rows[first - 1] if first else None, proven, above,
    )  # fmt: skip


def _breaks(count: float, low: int, high: int, above: bool) -> bool:
    return count > high if above else count < low


def _outlived_collection(lane: Lane, name: str, row: int, last_row: int, high: int) -> bool:
    collections: Sequence[int | float | None] | None = lane.series.get(COLLECTIONS)
    if collections is None or all(v is None for v in collections[: last_row + 1]):
        return True
    at_first = collections[row]
    counts = lane.series[f"type.{name}.count"]
    for later in range(row + 1, last_row + 1):
        count, passed = counts[later], collections[later]
        if count is None or passed is None or at_first is None:
            continue
        if count > high and passed > at_first:
            return True
    return False
