"""Access to the database for commands that work with or without a running server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from leakline.errors import LeaklineError

from ..config import DEFAULT_DATABASE_URL, Config, from_environment
from ..paths import MIGRATIONS
from ..store.engine import DATABASE_ERRORS, BadDatabaseUrl, Engine, open_engine, without_content
from ..store.maintenance import disk_space
from ..store.migrate import NewerDatabase, current, revisions, upgrade


class OlderDatabase(Exception):
    """The database is that of an older server; its text is the sentence for people."""


def opened_at(url: str | None, *, new: bool) -> contextlib.AbstractContextManager[Engine]:
    """The database of the address or of the settings; see `opened`."""
    return opened(at(url), new=new)


def at(url: str | None) -> Config:
    """The settings, with another database where an option of the command names one. Raises WrongSettings."""
    if url is None:
        return from_environment()
    # Named, so that nobody looks for the default one.
    return replace(
        from_environment({**os.environ, "LEAKLINE_DATABASE_URL": DEFAULT_DATABASE_URL}),
        database_url=url,
    )


@contextlib.contextmanager
def opened(config: Config, *, new: bool = False) -> Iterator[Engine]:
    """The database of the settings, at this version; made where there is none, if it may be ``new``.

    Raises LeaklineError, also for what goes wrong inside.
    """
    missing = disk_space.missing_file(config.database_url)
    if missing is not None and not new:
        # Opening it would make one, and it would be empty.
        raise LeaklineError(
            f"there is no database at {missing}; name it with --database-url or LEAKLINE_DATABASE_URL"
        )
    try:
        engine = open_engine(config.database_url, config.synchronous)
        try:
            _bring_to_this_version(engine)
            yield engine
        finally:
            engine.dispose()
    except (BadDatabaseUrl, NewerDatabase, OlderDatabase) as error:
        raise LeaklineError(str(error)) from error
    except DATABASE_ERRORS as error:
        raise LeaklineError(f"the database does not do it: {without_content(error)}") from error
    except OSError as error:
        raise LeaklineError(f"the database does not do it: {error}") from error


def _bring_to_this_version(engine: Engine) -> None:
    """Only an empty one: an older server that runs on it could not write any more. Raises OlderDatabase."""
    found = current(engine)
    if found is not None and found in revisions(MIGRATIONS)[:-1]:
        raise OlderDatabase(
            f"the database is at schema {found} of an older leakline; start the server of this version on it once "
            "(`leakline serve`), which brings it up to date"
        )
    upgrade(engine, MIGRATIONS)
