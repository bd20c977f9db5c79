"""What people do with the database from the command line, with or without a running server."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from leakline.errors import LeaklineError

from .config import DEFAULT_DATABASE_URL, Config, from_environment
from .export import ParquetMissing, export
from .paths import MIGRATIONS
from .store import disk, partitioning, removal, retention, sizes
from .store.engine import DATABASE_ERRORS, BadDatabaseUrl, Engine, open_engine, without_content
from .store.exporting import Gone
from .store.history import NoSuchRun
from .store.keeping import Keeping, rest_after
from .store.migrate import NewerDatabase, current, revisions, upgrade
from .store.partitioning import CannotPartition, Partitioned
from .store.removal import Removed
from .store.retention import Decision, Limits
from .store.serving import AlreadyServed, alone_on

T = TypeVar("T")


class OlderDatabase(Exception):
    """The database is that of an older server; its text is the sentence for people."""


@dataclass(frozen=True, slots=True)
class Retained:
    """What was done: runs removed, snapshots left out of how many runs."""

    removed: int
    thinned_runs: int
    left_out: int


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
    missing = disk.missing_file(config.database_url)
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


def measure(engine: Engine, now: float) -> None:
    """Count the sizes of all runs that may have changed."""
    for _ in _in_steps(lambda: sizes.measure(engine, now) or None):
        continue


def decide(engine: Engine, limits: Limits, now: float) -> tuple[Decision, list[tuple[str, int]]]:
    """Which runs are to go, and (id, revision) of those to be thinned; sizes are counted first."""
    measure(engine, now)
    decision = retention.decide(engine, limits, now)
    gone = {going.run_id for going in decision.going}
    return decision, [run for run in retention.to_thin(engine, limits, now) if run[0] not in gone]


def retain(
    engine: Engine, limits: Limits, decision: Decision, to_thin: list[tuple[str, int]]
) -> Retained:
    """Do it, to the last row; what is live or tagged by now stays. A server beside it goes first."""
    keeping = Keeping(engine, limits)
    keeping.decided(decision.going, to_thin)
    outcomes: list[Removed] = []
    for _, removed in _in_steps(lambda: keeping.remove_next(time.time())):
        outcomes.append(removed)
    for _ in _in_steps(lambda: removal.sweep(engine, time.time()) or None):
        continue
    left_out = sum(_in_steps(lambda: keeping.thin_next(time.time())))
    for _ in _in_steps(lambda: disk.give_back(engine) or None):
        continue
    return Retained(outcomes.count("removed"), len(to_thin), left_out)


def _in_steps(step: Callable[[], T | None]) -> Iterator[T]:
    """What the steps return, until one has nothing to do, with a rest after each."""
    while True:
        began = time.monotonic()
        done = step()
        if done is None:
            return
        yield done
        time.sleep(rest_after(time.monotonic() - began))


def rewrite(config: Config) -> tuple[int, int]:
    """Write an SQLite file anew; its bytes before and after. Raises LeaklineError."""
    with opened(config) as engine:
        if engine.dialect.name != "sqlite":
            raise LeaklineError(
                "only an SQLite file is written anew; on Postgres use VACUUM FULL or pg_repack"
            )
        before = disk.space(engine).bytes
        try:
            with alone_on(config.database_url):
                disk.rewrite(engine)
        except AlreadyServed as error:
            raise LeaklineError(error.stop_it) from error
        except disk.CannotRewrite as error:
            raise LeaklineError(f"{error}; stop the server first") from error
        return before, disk.space(engine).bytes


def exported(engine: Engine, run_id: str, form: str) -> Iterator[bytes]:
    """The pieces of the file. Raises LeaklineError."""
    try:
        yield from export(engine, run_id, form)
    except NoSuchRun as error:
        raise LeaklineError(f"there is no run {run_id}; `leakline runs` lists them") from error
    except Gone as error:
        raise LeaklineError(f"run {run_id} was removed while it was exported") from error
    except ParquetMissing as error:
        raise LeaklineError(str(error)) from error


def partition(engine: Engine, parts: int) -> list[Partitioned]:
    """Spread the tables over so many partitions of Postgres, or make plain tables of them. Raises LeaklineError."""
    try:
        return partitioning.partition(engine, parts)
    except CannotPartition as error:
        raise LeaklineError(str(error)) from error
