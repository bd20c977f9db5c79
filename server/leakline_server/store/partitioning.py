"""What grows with runs, spread over hash partitions by run: a step that people take on Postgres when one table of each
kind has become unwieldy, and that nothing else depends on.

Every key begins with the run and every question names it, so each of them touches one partition, and the servers go on
as they are. The tables are made anew with what is in them, in one transaction: until it ends, writing waits and is
refused with 429, and after a failure everything is as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import AddConstraint, CreateIndex

from .engine import writing
from .tables import metadata

# In the order in which they are locked: readers hold the first of them from their beginning (columns.reading).
TABLES: Final = ("segments", "batches", "chunks", "rollups", "details")
MAX_PARTS: Final = 1_024
# Longer than any transaction of a server takes; waiting longer would keep all of them waiting behind us.
LOCK_TIMEOUT: Final = "2s"
MAX_TRIES: Final = 30
# Two transactions wait for each other, or one waits for too long: SQLSTATE of what is to be tried again.
_TRY_AGAIN: Final = frozenset({"40P01", "55P03"})
# The lock of migrations, which must not happen meanwhile.
_LOCK: Final = text("SELECT pg_advisory_xact_lock(7239114)")
_PARTS: Final = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = to_regclass(:table) ORDER BY c.relname"
)
_NAMES: Final = text(
    "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(:table) AND contype IN ('p', 'u')"
)
_OPTIONS: Final = text(
    "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass(:table)"
)


class CannotPartition(Exception):
    """Its text is the sentence for people."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A table as it is now: in how many parts, 0 for one plain table, and with how many rows."""

    table: str
    parts: int
    rows: int


def partition(engine: Engine, parts: int) -> list[Partitioned]:
    """Spread the tables over so many partitions; 0 makes plain tables of them again. Raises CannotPartition."""
    if engine.dialect.name != "postgresql":
        raise CannotPartition(
            "only Postgres has partitions; an SQLite file is one table of each kind, and needs none"
        )
    if parts != 0 and not 2 <= parts <= MAX_PARTS:
        raise CannotPartition(f"{parts} parts: use 2 to {MAX_PARTS}, or 0 for plain tables")
    for _ in range(MAX_TRIES - 1):
        try:
            return _partition(engine, parts)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) not in _TRY_AGAIN:
                raise
    return _partition(engine, parts)


def parts_of(engine: Engine) -> int:
    """How many partitions each of the tables has; 0 while they are plain."""
    if engine.dialect.name != "postgresql":
        return 0
    with engine.connect() as connection:
        return len(_parts(connection, TABLES[0]))


def _partition(engine: Engine, parts: int) -> list[Partitioned]:
    with writing(engine) as connection:
        connection.execute(_LOCK)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        connection.exec_driver_sql(f"LOCK TABLE {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE")
        return [_make_anew(connection, table, parts) for table in TABLES]


def _make_anew(connection: Connection, table: str, parts: int) -> Partitioned:
    """One table, with everything that is in it."""
    before = _parts(connection, table)
    options = connection.scalar(_OPTIONS, {"table": before[0] if before else table})
    _set_aside(connection, table, before)
    spread = " PARTITION BY HASH (run_id)" if parts else ""
    connection.exec_driver_sql(
        f"CREATE TABLE {table} (LIKE old_{table} INCLUDING DEFAULTS INCLUDING STORAGE){spread}"
    )
    leaves = [f"{table}_p{number}" for number in range(parts)]
    for number, leaf in enumerate(leaves):
        connection.exec_driver_sql(
            f"CREATE TABLE {leaf} PARTITION OF {table} FOR VALUES WITH (MODULUS {parts}, REMAINDER {number})"
        )
    for leaf in leaves or [table]:
        if options:
            connection.exec_driver_sql(f"ALTER TABLE {leaf} SET ({options})")
    moved = connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM old_{table}")
    described = metadata.tables[table]
    connection.execute(AddConstraint(described.primary_key, isolate_from_table=False))
    for index in sorted(described.indexes, key=lambda index: str(index.name)):
        connection.execute(CreateIndex(index))
    connection.exec_driver_sql(f"DROP TABLE old_{table}")
    connection.exec_driver_sql(f"ANALYZE {table}")
    return Partitioned(table, parts, moved.rowcount)


def _set_aside(connection: Connection, table: str, parts: Sequence[str]) -> None:
    """Under another name, and without the names that the new one needs."""
    for part in parts:
        connection.exec_driver_sql(f"ALTER TABLE {part} RENAME TO old_{part}")
    connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO old_{table}")
    for name in connection.scalars(_NAMES, {"table": f"old_{table}"}).all():
        connection.exec_driver_sql(f"ALTER TABLE old_{table} DROP CONSTRAINT {name}")
    for index in metadata.tables[table].indexes:
        connection.exec_driver_sql(f"DROP INDEX {index.name}")


def _parts(connection: Connection, table: str) -> list[str]:
    return list(connection.scalars(_PARTS, {"table": table}))
