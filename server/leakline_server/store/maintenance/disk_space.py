"""The database's disk space: measuring it, returning free space to the file system, and detecting a full disk.

SQLite reuses the pages of deleted rows, but its file does not shrink automatically. Files created by this program use
``auto_vacuum=incremental``, so that they can be shrunk by a few pages at a time during ingest. On Postgres,
autovacuum makes space reusable, and returns only the space at the end of a table.

Every writer runs into a full disk again and again, and the log may be on the same disk, so the condition is logged
once. The condition ends only when a batch or a new run is written, because storing training data is what matters: a
smaller write may succeed while batches still do not fit.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..engine import Engine, is_out_of_space, writing

# The number of pages moved in one step, from the end of the file to free pages.
PAGES_PER_STEP: Final = 64
# Some free pages are kept, because sealing and compaction need them all the time.
SLACK_SHARE: Final = 0.1
SLACK_BYTES: Final = 16 * 2**20
_INCREMENTAL: Final = 2


@dataclass(frozen=True, slots=True)
class Space:
    """The database's size on disk and its free space, in bytes; ``returns`` is True if the file can be shrunk."""

    bytes: int
    free: int
    returns: bool

    @property
    def too_much_free(self) -> bool:
        return self.returns and self.free > max(SLACK_BYTES, self.bytes * SLACK_SHARE)


def called(engine: Engine) -> tuple[str, str]:
    """Return (kind, short name) of the database. The name is a file name, or host and database without credentials."""
    if engine.dialect.name == "sqlite":
        return "SQLite", Path(engine.url.database or "").name
    return "Postgres", place_of(engine.url)


def place_of(url: URL | str) -> str:
    """Return the path of an SQLite file, or host and database of Postgres, without credentials."""
    found = make_url(url)
    if found.get_backend_name() == "sqlite":
        return str(Path(found.database or "").absolute())
    port = "" if found.port is None else f":{found.port}"
    return f"{found.host or 'local socket'}{port}/{found.database or ''}"


def missing_file(url: str) -> str | None:
    """Return the path of the URL's SQLite file if the file does not exist, otherwise None."""
    path = file_of(url)
    return None if path is None or path.is_file() else str(path)


def file_of(url: str) -> Path | None:
    """Return the path of an SQLite database's file, or None for any other URL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return Path(parsed.database or "") if is_file else None


def space(engine: Engine) -> Space:
    """Return the database's current size and free space. Postgres reports only the total size."""
    with engine.connect() as connection:
        if engine.dialect.name != "sqlite":
            size = connection.exec_driver_sql("SELECT pg_database_size(current_database())")
            return Space(int(size.scalar_one()), 0, returns=False)
        page, pages, free, mode = (
            _pragma(connection, name)
            for name in ("page_size", "page_count", "freelist_count", "auto_vacuum")
        )
    return Space(pages * page, free * page, returns=mode == _INCREMENTAL)


def give_back(engine: Engine, pages: int = PAGES_PER_STEP) -> bool:
    """Shrink an SQLite file by a few pages if much of it is free. Return False if there was nothing to do."""
    if not space(engine).too_much_free:
        return False
    with writing(engine, durable=False) as connection:
        driver: Any = connection.connection.driver_connection
        # Bypass SQLAlchemy, which does not fetch the rows of a result without columns: SQLite frees one page per
        # fetched row.
        driver.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    return True


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


# A full disk is not logged again within this time, even if there was space in the meantime. On a nearly full disk,
# small batches may fit while sealing does not, so the condition would change every few seconds.
AGAIN_SECONDS: Final = 3_600.0
# The same interval for refused batches. It is shorter, because clients cannot deliver their data while batches are
# refused.
SENT_AGAIN_SECONDS: Final = 60.0

log = logging.getLogger("leakline")


@dataclass(slots=True)
class _Disk:
    is_full: bool = False
    # True if the current condition was logged.
    is_logged: bool = False
    # When the condition was last logged, on the monotonic clock.
    logged_at: float | None = None


_lock = threading.Lock()
_disks: WeakKeyDictionary[Engine, _Disk] = WeakKeyDictionary()


def is_logged(engine: Engine, error: BaseException, again_seconds: float = AGAIN_SECONDS) -> bool:
    """Return True if an error was caused by a full disk, and log that condition unless it is already logged."""
    if not is_out_of_space(error):
        return False
    mark_full(engine, again_seconds)
    return True


def mark_full(engine: Engine, again_seconds: float = SENT_AGAIN_SECONDS) -> None:
    """Record that the disk is full, and log this unless it is already logged or was logged within ``again_seconds``."""
    now = time.monotonic()
    with _lock:
        disk = _disks.setdefault(engine, _Disk())
        disk.is_full = True
        if disk.is_logged or (disk.logged_at is not None and now < disk.logged_at + again_seconds):
            return
        disk.is_logged, disk.logged_at = True, now
    log.error(
        "the database disk is full: batches are refused until there is space; training runs keep their batches and "
        "send them later; stored data can still be read"
    )


def is_full(engine: Engine) -> bool:
    disk = _disks.get(engine)
    return disk is not None and disk.is_full


def mark_recovered(engine: Engine) -> None:
    """Record that the disk is no longer full, because a batch or a new run was written."""
    # This is called after every commit, so avoid the lock in the usual case.
    if not is_full(engine):
        return
    with _lock:
        disk = _disks[engine]
        was_logged, disk.is_full, disk.is_logged = disk.is_logged, False, False
    if was_logged:
        log.warning("the database disk has space again: batches are accepted again")
