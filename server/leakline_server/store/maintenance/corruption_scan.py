"""A scan of an SQLite database for missing data at server start. Each loss is counted and logged.

Damaged values are moved to quarantine before the scan (`quarantine.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DatabaseError

from ..columns import GENERATION
from .corruption import found_in_row, run_named
from .disk_space import space
from .quarantine import THE_DATABASE

# Larger files are not checked completely, because that takes longer than a second.
MAX_CHECKED_BYTES: Final = 64 * 2**20
# The maximum number of errors that SQLite's integrity check lists.
MAX_NAMED: Final = 100

# Queries for runs that lack rows they must have, by a description of the missing rows.
_MISSING: Final[dict[str, str]] = {
    "its processes": "SELECT id FROM runs r WHERE stored > 0 AND NOT EXISTS "
    "(SELECT 1 FROM processes WHERE run_id = r.id)",
    "its series names": "SELECT id FROM runs r WHERE stored > 0 AND NOT EXISTS "
    "(SELECT 1 FROM series WHERE run_id = r.id)",
    "its attempts": "SELECT id FROM runs r WHERE NOT EXISTS (SELECT 1 FROM attempts WHERE run_id = r.id)",
    "its incidents": "SELECT id FROM runs r WHERE status IN ('suspected', 'confirmed') AND NOT EXISTS "
    "(SELECT 1 FROM incidents WHERE run_id = r.id)",
    "snapshots of a process": "SELECT DISTINCT run_id FROM processes p WHERE stored > 0 AND NOT EXISTS "
    "(SELECT 1 FROM batches WHERE run_id = p.run_id AND process_id = p.id) AND NOT EXISTS "
    "(SELECT 1 FROM segments WHERE run_id = p.run_id AND process_id = p.id)",
    "its newest snapshots": "SELECT id FROM runs r WHERE NOT EXISTS (SELECT 1 FROM batches WHERE run_id = r.id) "
    "AND NOT EXISTS (SELECT 1 FROM segments WHERE run_id = r.id AND thinned) AND last_generation > "
    "(SELECT max(c.max) FROM processes p JOIN chunks c ON c.run_id = p.run_id AND c.process_id = p.id "
    f"AND c.series_id = {GENERATION} WHERE p.run_id = r.id)",
    "all sealed snapshots": "SELECT DISTINCT run_id FROM segments WHERE NOT EXISTS (SELECT 1 FROM chunks)",
    "the segments of its sealed snapshots": "SELECT DISTINCT run_id FROM chunks WHERE NOT EXISTS "
    "(SELECT 1 FROM segments)",
}


def inspect(engine: Engine) -> None:
    """Log missing data, without changing anything."""
    if engine.dialect.name != "sqlite":
        return
    with engine.connect() as connection:
        for whose, what in _found(connection):
            found_in_row(engine, whose, what)


def _found(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield (whose, what) for each loss."""
    # The two checks below read the entire file.
    if space(connection.engine).bytes <= MAX_CHECKED_BYTES:
        yield from _of_file(connection)
        yield from _without_parent(connection)
    for what, query in _MISSING.items():
        for (run_id,) in _rows(connection, query):
            yield run_named(run_id), what


def _of_file(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield the errors of SQLite's integrity check, which covers pages, rows and indexes but not their content."""
    for (said,) in _rows(connection, f"PRAGMA integrity_check({MAX_NAMED})"):
        if said != "ok":
            yield THE_DATABASE, f"a part of the file ({' '.join(str(said).split())})"


def _without_parent(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield the losses that are visible from rows without a parent row."""
    runs: set[str] = set()
    rows: dict[tuple[str, str], int] = {}
    for table, row_id, parent, _ in _rows(connection, "PRAGMA foreign_key_check"):
        if parent == "runs":
            found = _rows(connection, f"SELECT run_id FROM {table} WHERE rowid = {int(row_id)}")
            runs.update(run_named(run_id) for (run_id,) in found)
        rows[table, parent] = rows.get((table, parent), 0) + 1
    for whose in sorted(runs):
        yield whose, "its entry in the list of runs"
    for (table, parent), count in rows.items():
        if parent != "runs":
            yield THE_DATABASE, f"the rows of {parent} that {count} rows of {table} refer to"


def _rows(connection: Connection, query: str) -> list[Any]:
    """Return the rows of a query. If a page cannot be read, record the damage and return an empty list."""
    try:
        return list(connection.execute(text(query)))
    except DatabaseError:
        table = query.partition(" FROM ")[2].split(" ")[0] or "the file"
        found_in_row(connection.engine, THE_DATABASE, f"a page of {table}")
        return []
