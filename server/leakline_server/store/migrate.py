"""Schema migrations, which run when the server starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, Text, column, inspect, select, table

from .engine import writing

if TYPE_CHECKING:
    from alembic.config import Config

# Views in databases at schema 0015 and older.
FORMER_VIEWS: Final = ("run_list", "segment_list", "series_list")
_VERSION: Final = table("alembic_version", column("version_num", Text))
_FOUND: Final = select(_VERSION.c.version_num)


class NewerDatabase(Exception):
    """Raised for a database written by a newer version of Leakline; the text is the message for users."""


def upgrade(engine: Engine, scripts: Path, to: str = "head") -> None:
    """Upgrade an empty or older database to this version. Raises NewerDatabase."""
    found, known = current(engine), revisions(scripts)
    refuse_newer(found, scripts)
    if to != "head" or found != known[-1]:
        from alembic import command

        _run(engine, scripts, lambda config: command.upgrade(config, to))


def refuse_newer(found: str | None, scripts: Path, what: str = "the database") -> None:
    """Raise NewerDatabase for an unknown schema revision, because this version cannot downgrade it."""
    if found is not None and found not in revisions(scripts):
        raise NewerDatabase(
            f"{what} has schema {found}, which is unknown to this version of leakline; "
            "install the newer version of leakline that wrote it"
        )


def downgrade(engine: Engine, scripts: Path, to: str) -> None:
    from alembic import command

    _run(engine, scripts, lambda config: command.downgrade(config, to))


def current(engine: Engine) -> str | None:
    """Return the schema revision of the database, or None if the database is empty."""
    with engine.connect() as connection:
        return _current(connection)


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(_FOUND).scalar()


def revisions(scripts: Path) -> list[str]:
    """Return all schema revisions of this version, oldest first.

    The revisions are read from file names, so that a server start without migrations does not import Alembic.
    """
    return sorted(path.stem for path in (scripts / "versions").glob("[0-9]*.py"))


def _run(engine: Engine, scripts: Path, step: Callable[[Config], None]) -> None:
    config = _config(scripts)
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            # Servers that start at the same time must not migrate concurrently.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239114)")
        config.attributes["connection"] = connection
        for view in FORMER_VIEWS:
            # A table cannot be recreated while a view depends on it.
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {view}")
        step(config)


def _config(scripts: Path) -> Config:
    from alembic.config import Config

    config = Config()
    # Escape percent signs, which the configuration parser would interpolate.
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return config
