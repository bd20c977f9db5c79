"""Stored bytes that are not what was written: reported once each, counted, and left out of what is read.

A damaged chunk costs its own entries: of a series, they read as absent; where it is what every snapshot has, such as
its time, the snapshots of its stretch are left out of every read that needs it. Nothing packed is repaired or deleted.
Damaged values of other rows are moved to the table ``damaged`` (`quarantine.py`); their runs say so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, select

from ...limits import MAX_DAMAGED
from ..schema import damaged as damaged_values

# In place of a name, where all of a batch is damaged.
BATCH: Final = "batch"
# In place of a process, where it is not of single snapshots.
_NO_PROCESS: Final = 0
# Past so many, the next are neither reported nor counted.
MAX_KNOWN: Final = MAX_DAMAGED

log = logging.getLogger("leakline")


class Damaged(NamedTuple):
    """What cannot be read of a process: ``name`` of a series or column, or BATCH."""

    run_id: str
    process_id: int
    name: str
    first_sequence: int
    last_sequence: int


_lock = threading.Lock()
_known: WeakKeyDictionary[Engine, set[Damaged]] = WeakKeyDictionary()


def found(engine: Engine, damaged: Damaged) -> None:
    with _lock:
        before = _known.setdefault(engine, set())
        if damaged in before or len(before) >= MAX_KNOWN:
            return
        before.add(damaged)
    if damaged.process_id == _NO_PROCESS:
        log.error(
            "stored data of %s is damaged: %s cannot be read; a backup has it, if there is one",
            damaged.run_id, damaged.name,
        )  # fmt: skip
        return
    log.error(
        "stored data of run %s is damaged: %s of snapshots %d to %d of its process %d cannot be read; a backup has it, "
        "if there is one",
        damaged.run_id, damaged.name, damaged.first_sequence, damaged.last_sequence, damaged.process_id,
    )  # fmt: skip


def found_in_row(engine: Engine, whose: str, what: str) -> None:
    """Count and log damage of what is not of single snapshots. ``whose``: "run …", "project …" or "the database";
    ``what`` says of which row, and never what is in it.
    """
    found(engine, Damaged(whose, _NO_PROCESS, what, 0, 0))


def run_named(run_id: Any) -> str:
    """Return a run as the log names it; text that a damaged id may have become is not quoted."""
    is_readable = isinstance(run_id, str) and run_id.isprintable()
    return f"run {run_id}" if is_readable else "a run without a readable id"


def parts_of(connection: Connection, run_ids: Collection[str]) -> dict[str, list[str]]:
    """Return what was set aside of each run that has any: columns of its row, and names of other tables."""
    if connection.exec_driver_sql("SELECT 1 FROM damaged LIMIT 1").first() is None:
        # As nearly always, and in a tenth of the time.
        return {}
    d = damaged_values.c
    query = select(d.run_id, d.table_name, d.column_name).where(d.run_id.in_(run_ids)).distinct()
    parts: dict[str, list[str]] = {}
    for run_id, table, column in connection.execute(query.order_by(d.table_name, d.column_name)):
        name = column if table == "runs" else table
        if name not in parts.setdefault(run_id, []):
            parts[run_id].append(name)
    return parts


def sentence(parts: Collection[str], verdict: str | None, said: str) -> str:
    """Return what is said of a run: ``said``, and before it what of the run is damaged. ``verdict``: as it is stored;
    a run with a new one has lost none.
    """
    lost = [part for part in parts if part != "verdict" or verdict is None]
    if not lost:
        return said
    damage = (
        f"Stored data of this run is damaged ({', '.join(lost)}): delete it, or restore a backup."
    )
    return damage if verdict is None else f"{damage} {said}"


def known(engine: Engine) -> frozenset[Damaged]:
    """All that this process has come upon."""
    with _lock:
        return frozenset(_known.get(engine, ()))


def batches_of(engine: Engine, run_id: str, process_id: int) -> set[int]:
    """First sequence numbers of those batches of a process that were found to be damaged."""
    with _lock:
        return {
            each.first_sequence for each in _known.get(engine, ())
            if each.name == BATCH and (each.run_id, each.process_id) == (run_id, process_id)
        }  # fmt: skip


def count(engine: Engine) -> int:
    """How many damaged chunks, batches and other values this process has come upon."""
    with _lock:
        return len(_known.get(engine, ()))
