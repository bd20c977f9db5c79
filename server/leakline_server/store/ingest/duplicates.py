"""Comparison of resent snapshots with the stored snapshots of the same sequence numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from ..columns import COLUMN_NAMES, SEQUENCE
from ..schema import Key
from ..series import read_between, series_ids
from . import clock_skew
from .incoming_batch import BatchColumns, Contradiction, Incoming
from .ingest_cache import ProcessState, RunState

# Batches that the current transaction has not written yet: (first sequence number, columns).
Unwritten = Collection[tuple[int, BatchColumns]]


def contradiction(
    connection: Connection,
    run: RunState,
    process: ProcessState,
    batch: Incoming,
    gaps: Sequence[tuple[int, int]],
    unwritten: Unwritten,
) -> Contradiction | None:
    """Return the first difference between stored and resent snapshots, or None if there is no difference.

    ``gaps``: the ranges of new sequence numbers, which are not compared.

    The client always sends the same values for a snapshot, so a difference means that two processes share an instance
    name, or that a spool was edited: neither version may silently win.
    """
    sent = _rows(batch.first_sequence, batch.columns)
    for low, high in gaps:
        for sequence in range(low, high + 1):
            sent.pop(sequence, None)
    stored = _stored_rows(connection, run, process, unwritten, min(sent), max(sent))
    for sequence, fields in sent.items():
        if sequence not in stored:
            # The stored snapshot was thinned out or is damaged, so there is nothing to compare with.
            continue
        there = stored[sequence]
        for name in fields.keys() | there.keys():
            # Series over the limit were never stored.
            over = name not in run.names and name not in _FIELDS.values() and run.room == 0
            lost = there.get(name) is _DAMAGED
            if fields.get(name) != there.get(name) and not over and not lost:
                if name == "time" and _was_righted(process, there.get(name), fields.get(name)):
                    continue
                return Contradiction(sequence, name, there.get(name), fields.get(name))
    return None


def _was_righted(process: ProcessState, stored: Any, sent: Any) -> bool:
    """Return True if the times differ because the stored time was corrected for a clock that is ahead or behind."""
    if stored is None or sent is None:
        return False
    reason = clock_skew.AHEAD if stored < sent else clock_skew.BEHIND
    return reason in process.lost


# Placeholder for a stored value that can no longer be read and is therefore not compared.
_DAMAGED: Final = object()
_FIELDS: Final = {n: name for n, name in COLUMN_NAMES.items() if n != SEQUENCE}


def _rows(first: int, columns: BatchColumns) -> dict[int, dict[str, Any]]:
    """Return {sequence number: {name: value}} without null values."""
    named: dict[str, Sequence[Any]] = {
        "time": columns.time.tolist(),
        "monotonic": columns.monotonic.tolist(),
        "generation": columns.generation,
        "phase": columns.phase,
        "label": columns.label,
        "kind": columns.kind,
    }
    named |= {name: column.to_list() for name, column in columns.series()}
    rows: dict[int, dict[str, Any]] = {first + i: {} for i in range(len(columns))}
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
        if first <= high and first + len(columns) > low:
            found.update(_rows(first, columns))
    found.update(_read_rows(connection, Key(run.id, process.id), low, high))
    return found


def _read_rows(connection: Connection, key: Key, low: int, high: int) -> dict[int, dict[str, Any]]:
    names = {number: name for name, number in series_ids(connection, key.run_id).items()}
    labels = {**names, **_FIELDS}
    block = read_between(connection, key, tuple(labels), names, low, high)
    sequence = block.numbers(SEQUENCE).values.tolist()
    rows: dict[int, dict[str, Any]] = {s: {} for s in sequence}
    for number, name in labels.items():
        for at, value in zip(sequence, block.columns[number].to_list(), strict=True):
            if value is not None:
                rows[at][name] = value
    for lost in block.damaged:
        for at in sequence:
            if lost.first_sequence <= at <= lost.last_sequence:
                rows[at][lost.name] = _DAMAGED
    return rows
