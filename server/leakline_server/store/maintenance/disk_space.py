"""The space a database takes, giving back what it keeps free, and a full disk.

SQLite reuses the pages of deleted rows, and its file never becomes smaller by itself. A file that is made here keeps
the map that lets it shrink from its end (``auto_vacuum=incremental``), a few pages at a time during ingest. Postgres
has a process of its own for this (autovacuum): it makes the space usable again and gives back only what lies at the
end of a table.

Every writer meets a full disk again and again, and the log may be on it, too: it is logged once for all. Trainings
are what matters, so it is over when a batch is written, or a new run. What is small may find room where that does
not.
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
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..engine import Engine, is_out_of_space, writing

# Pages of one step: each is moved from the end of the file into a hole.
PAGES_PER_STEP: Final = 64
# Sealing and compaction need free pages all the time, so some are left.
SLACK_SHARE: Final = 0.1
SLACK_BYTES: Final = 16 * 2**20
_INCREMENTAL: Final = 2


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of the database on disk, and how much of them is free; ``returns``: free space can be given back."""

    bytes: int
    free: int
    returns: bool

    @property
    def too_much_free(self) -> bool:
        return self.returns and self.free > max(SLACK_BYTES, self.bytes * SLACK_SHARE)


def called(engine: Engine) -> tuple[str, str]:
    """What it is and what people call it: a file without its folder, or host and name; never user or password."""
    url = engine.url
    if engine.dialect.name == "sqlite":
        return "SQLite", Path(url.database or "").name
    port = "" if url.port is None else f":{url.port}"
    return "Postgres", f"{url.host or 'local socket'}{port}/{url.database or ''}"


def missing_file(url: str) -> str | None:
    """The path of an SQLite file that is not there; None where it is, or where there is none."""
    path = file_of(url)
    return None if path is None or path.is_file() else str(path)


def file_of(url: str) -> Path | None:
    """Of an SQLite database; None where it is none."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return Path(parsed.database or "") if is_file else None


def space(engine: Engine) -> Space:
    """What there is now. Postgres reports the whole size alone."""
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
    """Make an SQLite file smaller by a few pages, if much of it is free. True: there may be more to give back."""
    if not space(engine).too_much_free:
        return False
    with writing(engine, durable=False) as connection:
        driver: Any = connection.connection.driver_connection
        # Past SQLAlchemy, which would not read the rows of what has no columns: it moves one page for each.
        driver.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    return True


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


# Since it was logged last, where it was over meanwhile. Small batches may find room where sealing does not: then it
# would be full and over every few seconds, as long as the disk is nearly full.
AGAIN_SECONDS: Final = 3_600.0
# For what is sent: the same of large batches and small ones, but those who send have lost their place.
SENT_AGAIN_SECONDS: Final = 60.0

log = logging.getLogger("leakline")


@dataclass(slots=True)
class _Disk:
    is_full: bool = False
    # Whether the log says so, of this time.
    is_logged: bool = False
    # By the monotonic clock.
    logged_at: float | None = None


_lock = threading.Lock()
_disks: WeakKeyDictionary[Engine, _Disk] = WeakKeyDictionary()


def is_logged(engine: Engine, error: BaseException, again_seconds: float = AGAIN_SECONDS) -> bool:
    """Whether an error is the full disk, which is in the log then: from before, or from now on."""
    if not is_out_of_space(error):
        return False
    mark_full(engine, again_seconds)
    return True


def mark_full(engine: Engine, again_seconds: float = SENT_AGAIN_SECONDS) -> None:
    """Something found no room. Reported unless it is, or was within so many seconds."""
    now = time.monotonic()
    with _lock:
        disk = _disks.setdefault(engine, _Disk())
        disk.is_full = True
        if disk.is_logged or (disk.logged_at is not None and now < disk.logged_at + again_seconds):
            return
        disk.is_logged, disk.logged_at = True, now
    log.error(
        "the disk of the database is full: batches are refused until there is room, trainings keep theirs and "
        "send them then; what is stored can be read"
    )


def is_full(engine: Engine) -> bool:
    disk = _disks.get(engine)
    return disk is not None and disk.is_full


def mark_recovered(engine: Engine) -> None:
    """A batch was written, or a new run."""
    # After every commit: without the lock where there is nothing to say.
    if not is_full(engine):
        return
    with _lock:
        disk = _disks[engine]
        was_logged, disk.is_full, disk.is_logged = disk.is_logged, False, False
    if was_logged:
        log.warning("there is room on the disk again: batches are written")
