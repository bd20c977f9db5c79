"""Comparing what is sent again with what is stored under the same sequence numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from . import wire
from .columns import COLUMNS, SEQUENCE, Stretch, read, series_ids, stretches
from .incoming import Contradiction, Incoming
from .known import ProcessState, RunState

# Batches of a transaction that is not written yet: (first sequence number, columns).
Unwritten = Collection[tuple[int, wire.Columns]]


def contradiction(
    connection: Connection,
    run: RunState,
    process: ProcessState,
    batch: Incoming,
    gaps: Sequence[tuple[int, int]],
    unwritten: Unwritten,
) -> Contradiction | None:
    """The first difference between what is stored and what was sent again; ``gaps`` are the numbers that are new.

    The client always sends the same numbers for a snapshot, so a difference means that two processes share an
    instance name, or that the spool of one was edited: neither may silently win.
    """
    sent = _rows(batch.first_sequence, batch.columns)
    for low, high in gaps:
        for sequence in range(low, high + 1):
            sent.pop(sequence, None)
    stored = _stored_rows(connection, run, process, unwritten, min(sent), max(sent))
    for sequence, fields in sent.items():
        there = stored.get(sequence, {})
        for name in fields.keys() | there.keys():
            # What was over the limit of series was never stored.
            over = name not in run.names and name not in _FIELDS and run.room == 0
            if fields.get(name) != there.get(name) and not over:
                return Contradiction(sequence, name, there.get(name), fields.get(name))
    return None


_FIELDS: Final = ("time", "monotonic", "generation", "phase", "label", "kind")


def _rows(first: int, columns: wire.Columns) -> dict[int, dict[str, Any]]:
    """Sequence number -> what is not null, by name."""
    named: dict[str, Sequence[Any]] = {
        **columns.series,
        "time": columns.time,
        "monotonic": columns.monotonic,
        "generation": columns.generation,
        "phase": columns.phase,
        "label": columns.label,
        "kind": wire.kinds_of(columns),
    }
    rows: dict[int, dict[str, Any]] = {first + i: {} for i in range(len(columns.time))}
    for name, values in named.items():
        for i, value in enumerate(values):
            if value is not None:
                rows[first + i][name] = value
    return rows


def _stored_rows(
    connection: Connection,
    run: RunState,
    process: ProcessState,
    unwritten: Unwritten,
    low: int,
    high: int,
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for first, columns in unwritten:
        if first <= high and first + len(columns.time) > low:
            found.update(_rows(first, columns))
    among = [s for s in stretches(connection, process.id) if s.first <= high and s.last >= low]
    if among:
        found.update(_read_rows(connection, run.id, process.id, among))
    return found


def _read_rows(
    connection: Connection, run_id: str, process_id: int, among: Sequence[Stretch]
) -> dict[int, dict[str, Any]]:
    names = {number: name for name, number in series_ids(connection, run_id).items()}
    labels = {**names, **dict(zip(COLUMNS[1:], _FIELDS, strict=True))}
    block = read(connection, process_id, tuple(labels), names, among)
    sequence = block.numbers(SEQUENCE).values.tolist()
    rows: dict[int, dict[str, Any]] = {s: {} for s in sequence}
    for number, name in labels.items():
        for at, value in zip(sequence, block.columns[number].to_list(), strict=True):
            if value is not None:
                rows[at][name] = value
    return rows
