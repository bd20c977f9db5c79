"""Conversion of a case to a recorded history: one row at each phase end and generation end, cut at any reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leakline.analysis.run_history import ProcessHistory, RunHistory, Value
from leakline.snapshot import Event

from .cases import PHASES, Case

_SECONDS: Final = 60.0  # per generation
_PRIVATE: Final = "process.anon_bytes"


@dataclass(frozen=True, slots=True)
class _Row:
    reading: int  # position in the case; -1 before the first generation
    attempt: int
    generation: int | None
    phase: str | None
    kind: str
    samples: Mapping[str, float]


class Recording:
    """All rows of a case; ``until`` returns the history of its first readings."""

    def __init__(self, case: Case, *, witness: bool = False, declared: bool = True) -> None:
        self._case = case
        self._series = {**case.others, **(case.witness if witness else {})}
        self._capacities = dict(case.capacities) if declared else {}
        self._rows = [row for i in range(len(case)) for row in self._rows_of(i)]

    def until(self, readings: int) -> RunHistory:
        case = self._case
        rows = [row for row in self._rows if row.reading < readings]
        processes = tuple(
            _process([row for row in rows if row.attempt == attempt])
            for attempt in sorted({row.attempt for row in rows})
        )
        return RunHistory(
            "r", total=case.total, processes=processes, phases=PHASES if case.inside else (),
            events=tuple(Event(0, 0.0, "watch", name) for name in case.watched),
            capacities=self._capacities, limit_bytes=round(case.limit_bytes),
        )  # fmt: skip

    def _rows_of(self, i: int) -> list[_Row]:
        case = self._case
        attempt, generation = case.attempt[i], case.generation[i]
        rows = []
        if not i or case.attempt[i - 1] != attempt:
            rows.append(_Row(i, attempt, None, None, "baseline", self._before()))
        for position, readings in enumerate(case.inside):
            samples = {_PRIVATE: readings[i], **self._at_phase_end(i, position)}
            rows.append(_Row(i, attempt, generation, PHASES[position], "phase_end", samples))
        samples = {_PRIVATE: case.private[i], **{n: v[i] for n, v in self._series.items()}}
        rows.append(_Row(i, attempt, generation, None, "generation_end", samples))
        return rows

    def _before(self) -> dict[str, float]:
        """Return the readings before the first generation."""
        counts = {n: v for n, v in self._case.initially.items() if n in self._series}
        return {_PRIVATE: self._case.baseline, **counts}

    def _at_phase_end(self, i: int, position: int) -> dict[str, float]:
        """Return the counts known at every snapshot: they change in the phase they belong to."""
        return {
            name: values[i] if position >= self._case.where[name] else values[i - 1]
            for name, values in self._series.items()
            if name in self._case.where and (i or position >= self._case.where[name])
        }


def _process(rows: list[_Row]) -> ProcessHistory:
    times = [_SECONDS * (row.reading + 0.1) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row.samples)
    series: dict[str, list[Value]] = {
        name: [_whole(row.samples.get(name)) for row in rows] for name in names
    }
    attempt = rows[0].attempt
    return ProcessHistory(
        f"p{attempt}", 0, "main", attempt, range(len(rows)), times, times,
        [row.generation for row in rows], [row.phase for row in rows], [""] * len(rows),
        [row.kind for row in rows], series,
    )  # fmt: skip


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
