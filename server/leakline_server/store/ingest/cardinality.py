"""Cardinality limits of a run: phases and types beyond the limits are summed under the name "other".

A program that creates a class in each step, or puts a number into phase names, would otherwise exhaust the memory of
everything that reads the run. Nothing is refused and no snapshot is lost: the first names keep their own series,
later names share one series, and the affected values are counted. The assignment never changes, so resent data is
renamed in the same way as the original data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...limits import MAX_INTEGER, MAX_RUN_PHASES, MAX_RUN_TYPES
from ..columns import Array
from .incoming_batch import NOT_THERE, BatchColumns, Rows
from .ingest_cache import RunState

OTHER: Final = "other"
# Keys of the counts in `ProcessState.lost`.
PHASES: Final = "phases_over_limit"
TYPES: Final = "types_over_limit"

_OF_TYPE: Final = re.compile(r"type\.(.+)\.(count|bytes)")
_OF_PHASE: Final = re.compile(r"phase\.(.+)\.(seconds|bytes)")


@dataclass(frozen=True, slots=True)
class Folded:
    """Columns within the limits. ``counted``: the number of renamed values and snapshots, by reason."""

    columns: BatchColumns
    counted: Mapping[str, int]


def fold(run: RunState, columns: BatchColumns) -> Folded:
    """Return the columns with names beyond the limits replaced by "other"; ``run`` is not modified."""
    counted: dict[str, int] = {}
    phases = _admitted(run, columns.phase)
    if phases is not None:
        named = [p if p is None or p in phases else OTHER for p in columns.phase]
        counted[PHASES] = sum(a != b for a, b in zip(named, columns.phase, strict=True))
        columns = replace(columns, phase=named)
    # All names are almost always known already, and this check for that case runs in C.
    if all(map(run.names.__contains__, columns.names())):
        return Folded(columns, counted)
    into = _others(run, phases, columns.names())
    for name in dict.fromkeys(into.values()):
        from_names = [old for old, new in into.items() if new == name]
        columns, numbers = _summed(columns, name, from_names)
        if name.startswith("type."):
            counted[TYPES] = counted.get(TYPES, 0) + numbers
    return Folded(columns, counted)


def _admitted(run: RunState, names: Sequence[str | None]) -> Mapping[str, None] | None:
    """Return the phases that keep their names, or None if all phases do."""
    seen = dict.fromkeys(filter(None, names))
    if len(run.phases) + len(seen) <= MAX_RUN_PHASES:
        return None
    known = {name: None for name in run.phases if name != OTHER}
    for name in seen:
        if len(known) < MAX_RUN_PHASES:
            known.setdefault(name)
    return None if seen.keys() <= known.keys() else known | {OTHER: None}


def _others(
    run: RunState, phases: Mapping[str, None] | None, names: Iterable[str]
) -> dict[str, str]:
    """Return the shared "other" names of new series that exceed the limits, by original name."""
    # Sort the names, so that the result does not depend on the layout of the batch.
    new = sorted([name for name in names if name not in run.names])
    into: dict[str, str] = {}
    types: set[str] | None = None
    for name in new:
        of_type, of_phase = _OF_TYPE.fullmatch(name), _OF_PHASE.fullmatch(name)
        if of_type is not None and of_type[1] != OTHER:
            types = _types(run) if types is None else types
            if of_type[1] in types or len(types) < MAX_RUN_TYPES:
                types.add(of_type[1])
            else:
                into[name] = f"type.{OTHER}.{of_type[2]}"
        elif of_phase is not None and phases is not None and of_phase[1] not in phases:
            into[name] = f"phase.{OTHER}.{of_phase[2]}"
    return into


def _types(run: RunState) -> set[str]:
    found = filter(None, map(_OF_TYPE.fullmatch, run.names))
    return {match[1] for match in found} - {OTHER}


def _summed(columns: BatchColumns, name: str, parts: Sequence[str]) -> tuple[BatchColumns, int]:
    """Return the columns with several series replaced by their sum, and the number of values summed."""
    total = np.zeros(len(columns))
    there = np.zeros(len(columns), bool)
    whole, numbers = True, 0
    wanted = dict.fromkeys((*parts, name))
    known = {each: column for each, column in columns.series() if each in wanted}
    for part in wanted:
        column = known.get(part)
        if column is None:
            continue
        present = np.ones(len(columns), bool) if column.present is None else column.present
        total += np.where(present, column.values, 0)
        there |= present
        whole &= column.values.dtype.kind == "i"
        numbers += int(present.sum()) if part != name else 0
    return _with(columns.without({*parts, name}), name, total, there, whole), numbers


def _with(
    columns: BatchColumns, name: str, total: Array, there: Array, whole: bool
) -> BatchColumns:
    total = np.clip(total, -float(MAX_INTEGER), float(MAX_INTEGER))
    if whole:
        values: Any = np.where(there, total.astype(np.int64), NOT_THERE)
        return replace(columns, integers=_and_row(columns.integers, name, values))
    values = np.where(there, total, np.nan)
    return replace(columns, floats=_and_row(columns.floats, name, values))


def _and_row(rows: Rows, name: str, values: Array) -> Rows:
    if not len(rows.names):
        return Rows([name], values.reshape(1, -1))
    return Rows([*rows.names, name], np.vstack([rows.values, values]))
