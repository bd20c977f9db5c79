"""The schema, brought to this version by code when the server starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from .engine import writing


class NewerDatabase(Exception):
    """The database was written by a newer Leakline; its text is the sentence for people."""


def upgrade(engine: Engine, scripts: Path, to: str = "head") -> None:
    """Bring an empty or older database to this version. Raises NewerDatabase."""
    _refuse_newer(engine, scripts)
    _run(engine, scripts, lambda config: command.upgrade(config, to))


def downgrade(engine: Engine, scripts: Path, to: str) -> None:
    _run(engine, scripts, lambda config: command.downgrade(config, to))


def current(engine: Engine) -> str | None:
    """The revision the database is at, None when it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(engine: Engine, scripts: Path) -> None:
    found = current(engine)
    known = {
        script.revision for script in ScriptDirectory.from_config(_config(scripts)).walk_revisions()
    }
    if found is not None and found not in known:
        raise NewerDatabase(
            f"the database is at schema {found}, which this version of leakline does not know; "
            "install the newer leakline that wrote it"
        )


def _run(engine: Engine, scripts: Path, step: Callable[[Config], None]) -> None:
    config = _config(scripts)
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            # Two servers that start together must not migrate together.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239114)")
        config.attributes["connection"] = connection
        step(config)


def _config(scripts: Path) -> Config:
    config = Config()
    # A percent sign in a path would be read as an interpolation.
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return config
