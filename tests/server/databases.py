"""New databases for tests: migrated once, then copied."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy

from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import open_engine
from leakline_server.store.migrate import upgrade

# Tables, columns with their types and defaults, constraints, indexes, and the version.
SHAPE = """
SELECT md5(string_agg(found, ',' ORDER BY found)) FROM (
  SELECT concat_ws(' ', relname, relkind, relispartition, reloptions) AS found
    FROM pg_class WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(' ', relname, attname, attnum, format_type(atttypid, atttypmod), attnotnull, attidentity,
      pg_get_expr(adbin, adrelid))
    FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
      LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND attnum > 0
  UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
  UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
  UNION ALL SELECT version_num FROM alembic_version
) AS shape"""
# A connection that is still open may hold locks. Sequences also advance for rows that were never committed.
EMPTY = """
DO $$
DECLARE name text; filled boolean; used text[] := '{}';
BEGIN
  PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
  FOR name IN SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
  LOOP
    EXECUTE 'SELECT EXISTS (SELECT FROM ' || name || ')' INTO filled;
    IF filled THEN used := used || name; END IF;
  END LOOP;
  IF used <> '{}' THEN EXECUTE 'TRUNCATE ' || array_to_string(used, ',') || ' CASCADE'; END IF;
  FOR name IN SELECT sequencename FROM pg_sequences
    WHERE schemaname = 'public' AND last_value IS NOT NULL
  LOOP
    EXECUTE 'ALTER SEQUENCE ' || name || ' RESTART';
  END LOOP;
END $$"""


def migrated(url: str) -> None:
    engine = open_engine(url)
    upgrade(engine, MIGRATIONS)
    engine.dispose()


class Copies:
    """New databases of one kind at the current version: migrated once, then copied."""

    @contextlib.contextmanager
    def new(self, folder: Path, *, empty: bool = False) -> Iterator[str]:
        """Yield the URL of a database for as long as it is needed; SQLite keeps it in the folder."""
        raise NotImplementedError


class SqliteCopies(Copies):
    def __init__(self, folder: Path) -> None:
        self._template = folder / "leakline.db"
        migrated(f"sqlite:///{self._template}")

    @contextlib.contextmanager
    def new(self, folder: Path, *, empty: bool = False) -> Iterator[str]:
        if not empty:
            shutil.copy(self._template, folder)
        yield f"sqlite:///{folder / self._template.name}"


class PostgresCopies(Copies):
    """Databases that still have their original shape are emptied and reused, because copying takes longer."""

    def __init__(self, server: str) -> None:
        self._server = sqlalchemy.make_url(server)
        self._template = self._create("template1")
        migrated(self._url(self._template))
        self._shape = self._one(self._template, SHAPE)
        self._emptied: list[str] = []

    @contextlib.contextmanager
    def new(self, folder: Path, *, empty: bool = False) -> Iterator[str]:
        if self._emptied and not empty:
            name = self._emptied.pop()
        else:
            name = self._create("template1" if empty else self._template)
        yield self._url(name)
        if empty or not self._empty(name):
            self._drop(name)
        else:
            self._emptied.append(name)

    def close(self) -> None:
        for name in (*self._emptied, self._template):
            self._drop(name)

    def _create(self, template: str) -> str:
        name = "t" + uuid.uuid4().hex
        self._do(self._server.database, f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _drop(self, name: str) -> None:
        self._do(self._server.database, f"DROP DATABASE {name} WITH (FORCE)")

    def _empty(self, name: str) -> bool:
        """Empty a database; return False if its shape has changed."""
        try:
            if self._one(name, SHAPE) != self._shape:
                return False
            self._do(name, EMPTY)
        except sqlalchemy.exc.SQLAlchemyError:
            return False
        return True

    def _url(self, name: str | None) -> str:
        return self._server.set(database=name).render_as_string(hide_password=False)

    def _one(self, name: str | None, question: str) -> Any:
        with self._connected(name) as connection:
            return connection.exec_driver_sql(question).scalar()

    def _do(self, name: str | None, statement: str) -> None:
        with self._connected(name) as connection:
            connection.exec_driver_sql(statement)

    @contextlib.contextmanager
    def _connected(self, name: str | None) -> Iterator[sqlalchemy.Connection]:
        engine = sqlalchemy.create_engine(self._url(name), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection
        engine.dispose()
