"""The logic of the commands `db`, `token`, `password` and `webhook`, which work with or without a running server.

This module opens, upgrades, backs up and restores a database, and sends a signed test message to the configured
webhook. It imports `store`, `config` and `alerts`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from leakline.errors import BadArgument, LeaklineError

from .config import DEFAULT_DATABASE_URL, Config, from_environment
from .paths import MIGRATIONS
from .store import sqlite_file
from .store.alerts import webhooks
from .store.engine import DATABASE_ERRORS, BadDatabaseUrl, Engine, open_engine, without_content
from .store.maintenance import disk_space
from .store.migrate import FORMER_VIEWS, NewerDatabase, current, refuse_newer, revisions, upgrade
from .store.sqlite_file import AlreadyServed, CannotBackUp, Checked, alone_on

if TYPE_CHECKING:
    from .alerts.sending.http_post import Outcome


class _OlderDatabase(Exception):
    """Raised when the database still has the schema of an older server."""


def opened_at(url: str | None, *, new: bool) -> contextlib.AbstractContextManager[Engine]:
    """Open the database at ``url``, or the configured database if ``url`` is None; see `opened`."""
    return opened(at(url), new=new)


def at(url: str | None) -> Config:
    """Return the settings, with ``url`` as the database URL if it is not None. Raises WrongSettings."""
    if url is None:
        return from_environment()
    # With an explicit URL, the settings do not look for an existing default database.
    return replace(
        from_environment({**os.environ, "LEAKLINE_DATABASE_URL": DEFAULT_DATABASE_URL}),
        database_url=url,
    )


@contextlib.contextmanager
def opened(config: Config, *, new: bool = False) -> Iterator[Engine]:
    """Open the configured database at the current schema; create a missing database only if ``new`` is True.

    Raises LeaklineError, also for database errors in the body of the ``with`` statement.
    """
    missing = disk_space.missing_file(config.database_url)
    if missing is not None and not new:
        # Opening the URL would create an empty database.
        raise LeaklineError(
            f"database {missing} not found; choose another database with --database-url or LEAKLINE_DATABASE_URL"
        )
    try:
        engine = open_engine(config.database_url, config.synchronous)
        try:
            _bring_to_this_version(engine)
            yield engine
        finally:
            engine.dispose()
    except (BadDatabaseUrl, NewerDatabase, _OlderDatabase) as error:
        raise LeaklineError(str(error)) from error
    except DATABASE_ERRORS as error:
        raise LeaklineError(f"the database reported an error: {without_content(error)}") from error
    except OSError as error:
        raise LeaklineError(f"the database reported an error: {error}") from error


def _bring_to_this_version(engine: Engine) -> None:
    """Upgrade the database if it is empty. Raises _OlderDatabase if it has an older schema.

    An upgrade could lock out an older server that is still using the database.
    """
    found = current(engine)
    if found is not None and found in revisions(MIGRATIONS)[:-1]:
        raise _OlderDatabase(
            f"the database has schema {found} from an older version of Leakline; to upgrade it, start this version of "
            "the server on it once (`leakline serve`)"
        )
    upgrade(engine, MIGRATIONS)


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The schema revisions before and after an upgrade; ``before`` is None if the database was empty."""

    before: str | None
    after: str


def bring_up_to_date(config: Config) -> Upgraded:
    """Upgrade the database to the current schema, as the server does when it starts. Raises LeaklineError."""
    with _errors_reported(), alone_on(config.database_url):
        engine = open_engine(config.database_url)
        try:
            before = current(engine)
            upgrade(engine, MIGRATIONS)
        finally:
            engine.dispose()
    return Upgraded(before, revisions(MIGRATIONS)[-1])


def back_up(config: Config, target: Path) -> Checked:
    """Copy an SQLite database of any schema version, even while a server writes to it. Raises LeaklineError."""
    database = _file_of(config, f"pg_dump --format=custom --file={target}")
    if not database.is_file():
        raise LeaklineError(
            f"database {database} not found; choose another database with --database-url or LEAKLINE_DATABASE_URL"
        )
    with _errors_reported():
        return sqlite_file.back_up(database, target)


def put_back(config: Config, source: Path) -> tuple[Checked, Path | None]:
    """Replace the database with a backup.

    Return the backup's check, and the path of the replaced database, or None if there was no database. Raises
    LeaklineError, for example if a server uses the database.
    """
    # Postgres backups go into an empty database: --clean drops only objects that the backup contains and would leave
    # objects that a newer version added.
    database = _file_of(config, f"dropdb and createdb, then pg_restore --dbname=… {source}")
    with _errors_reported():
        if source.exists() and database.exists() and source.samefile(database):
            raise CannotBackUp(f"{source} is the database itself; specify a backup")
        checked = sqlite_file.check(source)
        if checked.schema is None:
            raise CannotBackUp(
                f"{source} is not a Leakline database; specify a file written by leakline db backup"
            )
        refuse_newer(checked.schema, MIGRATIONS, str(source))
        _refuse_what_is_not_ours(source, checked.schema)
        with alone_on(config.database_url):
            return checked, sqlite_file.restore(source, database)


def _refuse_what_is_not_ours(source: Path, schema: str) -> None:
    """Raise CannotBackUp if the backup's tables, triggers or views differ from those that Leakline creates.

    A foreign trigger or view would run with the server's privileges.
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, "leakline.db")
        engine = open_engine(f"sqlite:///{fresh}")
        try:
            upgrade(engine, MIGRATIONS, schema)
        finally:
            engine.dispose()
        ours = sqlite_file.objects_of(fresh)
    found = sqlite_file.objects_of(source)
    # The upgrade drops these views before it reads anything.
    is_old = schema != revisions(MIGRATIONS)[-1]
    dropped = {("view", name) for name in FORMER_VIEWS} if is_old else set()
    strange = [
        each for each, text in found.items() if each not in dropped and ours.get(each) != text
    ]
    if wrong := [*strange, *(each for each in ours if each not in found)]:
        kind, name = wrong[0]
        raise CannotBackUp(
            f"{source} differs from a database created by Leakline: check its {kind} {name!r}"
        )


def _file_of(config: Config, instead: str) -> Path:
    with _errors_reported():
        # `file_of` returns None for a malformed URL as well; opening such a URL raises an error that names the problem.
        found = disk_space.file_of(config.database_url)
        if found is None:
            open_engine(config.database_url).dispose()
            raise CannotBackUp(f"this command is for SQLite files; for Postgres use {instead}")
    return found


@contextlib.contextmanager
def _errors_reported() -> Iterator[None]:
    """Turn expected errors into a one-line LeaklineError."""
    try:
        yield
    except AlreadyServed as error:
        raise LeaklineError(error.stop_it) from error
    except (BadDatabaseUrl, NewerDatabase, CannotBackUp) as error:
        raise LeaklineError(str(error)) from error
    except (*DATABASE_ERRORS, OSError) as error:
        raise LeaklineError(f"the database reported an error: {without_content(error)}") from error


@dataclass(frozen=True, slots=True)
class CheckedWebhook:
    """The result of a test message.

    ``where`` and ``database`` are safe to display. ``form``: the format of the message. ``made_secret`` is the new
    secret if one was generated, otherwise None. Show a new secret only once.
    """

    where: str
    form: str
    database: str
    outcome: Outcome
    made_secret: str | None = field(repr=False)


def check_webhook(config: Config) -> CheckedWebhook:
    """Send a test message to the configured webhook, and enable the webhook again if it accepts the message.

    Raises BadArgument if LEAKLINE_WEBHOOK_URL is not set, and LeaklineError if the database that stores the secret
    cannot be used.
    """
    if config.webhook_url is None:
        why = "set it to the URL that receives alerts"
        raise BadArgument("LEAKLINE_WEBHOOK_URL", "", why, "environment")
    try:
        engine = open_engine(config.database_url, config.synchronous)
        upgrade(engine, MIGRATIONS)
        return _check(config, config.webhook_url, engine)
    except (*DATABASE_ERRORS, BadDatabaseUrl, NewerDatabase, OSError) as error:
        raise LeaklineError(f"the database cannot be used: {without_content(error)}") from error


def _check(config: Config, url: str, engine: Engine) -> CheckedWebhook:
    # The other commands do not need these modules, and importing them takes longer than running such a command.
    from .alerts.sending.address_check import shown
    from .alerts.sending.http_post import Delivered
    from .alerts.sending.send_message import send, trial
    from .alerts.sending.signing import make_secret

    secret, made = config.webhook_secret, None
    if secret is None:
        secret, made = webhooks.stored_secret(engine, make_secret)
    now = time.time()
    said = (
        "Alerts from this server arrive here. This is only a test, sent by `leakline webhook test`."
    )
    if config.public_url is None:
        # This process does not know the port of the server.
        said += " Its link may be wrong: set LEAKLINE_PUBLIC_URL to the address of the server."
    outgoing = trial(url, config.webhook_format, secret, config.address, now, said, configured=True)
    outcome = send(outgoing, config.webhook_allow, now)
    if isinstance(outcome, Delivered):
        webhooks.enable_configured(engine, url)
    place = disk_space.place_of(engine.url)
    return CheckedWebhook(shown(url), outgoing.form, place, outcome, made)
