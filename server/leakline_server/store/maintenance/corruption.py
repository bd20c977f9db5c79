"""A registry of damaged stored data: each loss is logged once, counted, and left out of query results.

A damaged chunk loses only its own entries. In a series, these entries are read as absent. If a column that every
snapshot has is damaged, for example the time, all results that need the column leave out the damaged segment's
snapshots. Packed data is never repaired or deleted. Damaged values in other tables are moved to the table ``damaged``
(`quarantine.py`), and the summaries of their runs mention the damage.
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

# The name in `Damaged` if an entire batch is damaged.
BATCH: Final = "batch"
# The process id in `Damaged` for damage outside snapshots.
_NO_PROCESS: Final = 0
# Beyond this number, further damage is neither logged nor counted.
MAX_KNOWN: Final = MAX_DAMAGED

log = logging.getLogger("leakline")


class Damaged(NamedTuple):
    """Unreadable data of a process. ``name`` is a series or column, or BATCH."""

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
            "stored data of %s is damaged: %s cannot be read; restore a backup if you have one",
            damaged.run_id, damaged.name,
        )  # fmt: skip
        return
    log.error(
        "stored data of run %s is damaged: %s of snapshots %d to %d of process %d cannot be read; restore a backup "
        "if you have one",
        damaged.run_id, damaged.name, damaged.first_sequence, damaged.last_sequence, damaged.process_id,
    )  # fmt: skip


def found_in_row(engine: Engine, whose: str, what: str) -> None:
    """Count and log damage outside snapshots.

    ``whose`` is "run …", "project …" or "the database"; ``what`` identifies the row without quoting its content.
    """
    found(engine, Damaged(whose, _NO_PROCESS, what, 0, 0))


def run_named(run_id: Any) -> str:
    """Return a run's name for the log, without quoting a damaged id."""
    is_readable = isinstance(run_id, str) and run_id.isprintable()
    return f"run {run_id}" if is_readable else "a run without a readable id"


def parts_of(connection: Connection, run_ids: Collection[str]) -> dict[str, list[str]]:
    """Return the quarantined parts of runs, by run id: columns of the run's row, and names of other tables."""
    if connection.exec_driver_sql("SELECT 1 FROM damaged LIMIT 1").first() is None:
        # This is the usual case, and the check takes a tenth of the time of the query below.
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
    """Return the summary ``said`` of a run, preceded by a sentence that names its damaged parts.

    ``verdict`` is the stored verdict. If it is None, only the sentence about damage is returned; otherwise, a damaged
    verdict has since been replaced and is not mentioned.
    """
    lost = [part for part in parts if part != "verdict" or verdict is None]
    if not lost:
        return said
    names = ", ".join(lost)
    damage = f"Some of the data stored for this run is damaged ({names}): delete the run, or restore a backup."
    return damage if verdict is None else f"{damage} {said}"


def known(engine: Engine) -> frozenset[Damaged]:
    """Return all damage that this server process has detected."""
    with _lock:
        return frozenset(_known.get(engine, ()))


def batches_of(engine: Engine, run_id: str, process_id: int) -> set[int]:
    """Return the first sequence numbers of a process's batches that are known to be damaged."""
    with _lock:
        return {
            each.first_sequence for each in _known.get(engine, ())
            if each.name == BATCH and (each.run_id, each.process_id) == (run_id, process_id)
        }  # fmt: skip


def count(engine: Engine) -> int:
    """Return the number of damaged chunks, batches and other values that this server process has detected."""
    with _lock:
        return len(_known.get(engine, ()))
