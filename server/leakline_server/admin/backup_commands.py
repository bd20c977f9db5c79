"""`leakline db upgrade`, `backup`, `restore`: what people do around a change of version or of a machine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leakline.errors import LeaklineError

from ..config import Config
from ..paths import MIGRATIONS
from ..store.coordination.sqlite_lock import AlreadyServed, alone_on
from ..store.engine import DATABASE_ERRORS, BadDatabaseUrl, open_engine, without_content
from ..store.maintenance import disk_space, sqlite_backup
from ..store.maintenance.sqlite_backup import CannotBackUp, Checked
from ..store.migrate import (
    FORMER_VIEWS,
    NewerDatabase,
    current,
    refuse_newer,
    revisions,
    upgrade,
)


@dataclass(frozen=True, slots=True)
class Upgraded:
    """Schemas; ``before`` is None of a database that was empty."""

    before: str | None
    after: str


def bring_up_to_date(config: Config) -> Upgraded:
    """Bring the database to this version, as a server does when it starts. Raises LeaklineError."""
    with _told(), alone_on(config.database_url):
        engine = open_engine(config.database_url)
        try:
            before = current(engine)
            upgrade(engine, MIGRATIONS)
        finally:
            engine.dispose()
    return Upgraded(before, revisions(MIGRATIONS)[-1])


def back_up(config: Config, target: Path) -> Checked:
    """Copy an SQLite database, of whatever version, while a server may write to it. Raises LeaklineError."""
    database = _file_of(config, f"pg_dump --format=custom --file={target}")
    if not database.is_file():
        raise LeaklineError(
            f"there is no database at {database}; name it with --database-url or LEAKLINE_DATABASE_URL"
        )
    with _told():
        return sqlite_backup.back_up(database, target)


def put_back(config: Config, source: Path) -> tuple[Checked, Path | None]:
    """Make a backup the database; what was there is kept: its path. Raises LeaklineError while a server is on it."""
    # An empty one: --clean drops what the backup has and leaves what a newer version added.
    database = _file_of(config, f"dropdb and createdb, then pg_restore --dbname=… {source}")
    with _told():
        if source.exists() and database.exists() and source.samefile(database):
            raise CannotBackUp(f"{source} is the database itself; name a backup")
        checked = sqlite_backup.check(source)
        if checked.schema is None:
            raise CannotBackUp(f"{source} is no database of Leakline; name a file of db backup")
        refuse_newer(checked.schema, MIGRATIONS, str(source))
        _refuse_what_is_not_ours(source, checked.schema)
        with alone_on(config.database_url):
            return checked, sqlite_backup.restore(source, database)


def _refuse_what_is_not_ours(source: Path, schema: str) -> None:
    """A trigger or a view of somebody else would run as the server. Raises CannotBackUp."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, "leakline.db")
        engine = open_engine(f"sqlite:///{fresh}")
        try:
            upgrade(engine, MIGRATIONS, schema)
        finally:
            engine.dispose()
        ours = sqlite_backup.objects_of(fresh)
    found = sqlite_backup.objects_of(source)
    # The upgrade drops them before it reads anything.
    is_old = schema != revisions(MIGRATIONS)[-1]
    dropped = {("view", name) for name in FORMER_VIEWS} if is_old else set()
    strange = [
        each for each, text in found.items() if each not in dropped and ours.get(each) != text
    ]
    if wrong := [*strange, *(each for each in ours if each not in found)]:
        kind, name = wrong[0]
        raise CannotBackUp(
            f"{source} is no database as Leakline makes it: look at its {kind} {name!r}"
        )


def _file_of(config: Config, instead: str) -> Path:
    with _told():
        # Says what is wrong with an address that is none.
        found = disk_space.file_of(config.database_url)
        if found is None:
            open_engine(config.database_url).dispose()
            raise CannotBackUp(f"this is for SQLite files; on Postgres use {instead}")
    return found


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Whatever goes wrong, as one line."""
    try:
        yield
    except AlreadyServed as error:
        raise LeaklineError(error.stop_it) from error
    except (BadDatabaseUrl, NewerDatabase, CannotBackUp) as error:
        raise LeaklineError(str(error)) from error
    except (*DATABASE_ERRORS, OSError) as error:
        raise LeaklineError(f"the database does not do it: {without_content(error)}") from error
