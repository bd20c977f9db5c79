"""The file of an SQLite database: the lock that allows one server at a time, online backup, and restore.

A server caches what it has written, and its live pages show only its own writes: with a second server on the same file,
duplicates would be stored and pages would miss updates. Other programs may still read and write the file. On
Postgres there may be any number of servers.

A backup is a point-in-time copy: a read transaction keeps the view while writers continue in the write-ahead log. The
backup is a single file and is checked before it gets its final name. The server must be stopped for a restore. On
Postgres use `pg_dump` instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sqlite3
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sqlalchemy.engine import make_url

from .engine import make_folder

# The lock is on a separate file: on some network file systems, a lock on the database would conflict with SQLite's
# locks.
SUFFIX: Final = "-served"


class AlreadyServed(Exception):
    """Raised when another server uses this file.

    The text is the message shown when a second server is started; ``stop_it`` is the message shown by commands that
    change the file.
    """

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(
            f"another server (process {process}) already uses {path}; use that server, choose another file with "
            "--database-url, or run several servers on Postgres"
        )
        self.stop_it = f"a server (process {process}) is using {path}; stop it first"


@contextlib.contextmanager
def alone_on(url: str) -> Iterator[None]:
    """Lock the database for this server. Raises AlreadyServed, and OSError if the lock file cannot be created."""
    path = _file_of(url)
    if path is None:
        yield
        return
    import fcntl

    make_folder(path.parent)
    with _opened_by_others(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise AlreadyServed(path, file.read(20).strip() or "unknown") from error
        _sign(file.fileno())
        # The lock is released when the process exits, even if it is killed.
        yield


def _opened_by_others(path: Path) -> IO[str]:
    # The lock file is never deleted: if a server had just opened it, the next server would create and lock a new file.
    try:
        return path.with_name(path.name + SUFFIX).open("a+")
    except OSError as error:
        # Name the database in the error, because the lock file next to it is internal.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sign(descriptor: int) -> None:
    """Write this process's id for the error message of another server. On a full disk the file stays empty."""
    os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{os.getpid()}\n".encode())


def _file_of(url: str) -> Path | None:
    """Return the resolved path of the database file, or None if the database cannot or need not be locked."""
    parsed = make_url(url)
    if os.name == "nt" or parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    # Resolve links, so that all paths to a file lead to the same lock.
    return Path(parsed.database).resolve()


# The number of pages copied in one step (4 MiB with pages of 4 KiB); the pause after each step leaves the disk free
# for writers.
PAGES_PER_STEP: Final = 1_024
REST_SECONDS: Final = 0.005
# The suffixes of the files that SQLite keeps next to a database.
COMPANIONS: Final = ("-wal", "-shm", "-journal")
# A partial file is stale after this long if its process cannot be checked, because the process ran on another machine
# or its process id is in use again.
LONG_SECONDS: Final = 86_400.0
_PARTIAL: Final = re.compile(
    r".+\.(?P<host>[\w-]+)\.(?P<pid>\d+)\.\w{8}\.(?:part|restoring)", re.ASCII
)
_BUSY_SECONDS: Final = 30.0
_RIGHTS: Final = 0o777


class CannotBackUp(Exception):
    """Raised when a backup or restore is not possible; the text is the message for users."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking an intact database: its schema revision (None before the first migration) and its size."""

    schema: str | None
    bytes: int


def back_up(database: Path, target: Path) -> Checked:
    """Copy the database into a new file, which appears only when it is complete. Raises CannotBackUp, OSError."""
    if target.exists():
        raise _there_already(target)
    copy = _begin(target, "part")
    try:
        with _failing(f"cannot copy {database}"):
            _copy(database, copy)
        checked = check(copy)
        _settle(copy)
        # The backup contains webhook secrets, so only those who can read the database may read it.
        copy.chmod(database.stat().st_mode & _RIGHTS)
        _name(copy, target)
        _settle_folder(target.parent)
    finally:
        _remove(copy)
    return checked


def restore(source: Path, database: Path) -> Path | None:
    """Replace the database with a copy of ``source``. The database must not be open.

    Return the path of the previous database, which is kept in the same folder, or None if there was no database. The
    replacement is a single rename, so there is a complete database at all times. The new file gets the owner and mode
    of the previous database. Raises CannotBackUp, OSError.
    """
    check(source)
    # If the path is a symbolic link, replace its target and keep the link.
    database = database.resolve()
    database.parent.mkdir(parents=True, exist_ok=True)
    new = _begin(database, "restoring")
    try:
        with _failing(f"cannot copy {source}"):
            _copy(source, new)
        _settle(new)
        _give_rights(new, source, database)
        kept = _keep(database) if database.exists() else None
        # SQLite would apply pages in the log of the previous database to the new one.
        for name in COMPANIONS:
            _companion(database, name).unlink(missing_ok=True)
        new.replace(database)
        _settle_folder(database.parent)
    finally:
        _remove(new)
    return kept


def check(database: Path) -> Checked:
    """Check the integrity of a database file. Raises CannotBackUp."""
    if not database.is_file():
        raise CannotBackUp(f"{database} does not exist or is not a file")
    with _failing(f"{database} is not an intact database"), _opened(database) as connection:
        said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
        if said != ["ok"]:
            raise CannotBackUp(f"{database} is damaged: {'; '.join(said)}")
        named = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")
        found = None
        if named.fetchone() is not None:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return Checked(None if found is None else str(found[0]), database.stat().st_size)


def objects_of(database: Path) -> dict[tuple[str, str], object]:
    """Return the schema objects of an intact database by (kind, name), without SQLite's own objects.

    A table is described by its columns and constraints, any other object by its SQL text.
    """
    found: dict[tuple[str, str], object] = {}
    with _failing(f"{database} is not an intact database"), _opened(database) as connection:
        named = (
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
        for kind, name, sql in connection.execute(named).fetchall():
            text = " ".join(str(sql).split())
            found[kind, name] = _table(connection, name, text) if kind == "table" else text
    return found


def _table(connection: sqlite3.Connection, name: str, sql: str) -> object:
    """Describe a table by its parts, because a migration may change the quoting in its SQL text."""
    columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
    keys = connection.execute("SELECT * FROM pragma_foreign_key_list(?)", (name,)).fetchall()
    rules = Counter(re.findall(r"\b(?:VIRTUAL|CHECK|GENERATED|STRICT)\b", sql.upper()))
    return sorted(columns), sorted(keys), rules


def _there_already(target: Path) -> CannotBackUp:
    return CannotBackUp(f"{target} already exists; choose a new file name")


def _begin(path: Path, suffix: str) -> Path:
    """Create an empty private file next to ``path``; ``suffix`` is "part" or "restoring".

    Partial files that killed processes left in the folder are removed.
    """
    if not path.parent.exists():
        raise CannotBackUp(
            f"the folder {path.parent} does not exist; create it or choose another folder"
        )
    try:
        _remove_left(path.parent)
        prefix = f"{path.name}.{_host()}.{os.getpid()}."
        number, name = tempfile.mkstemp(f".{suffix}", prefix, path.parent)
        os.close(number)
        return Path(name)
    except OSError as error:
        # Name the folder in the error, because the temporary file is internal.
        raise CannotBackUp(f"cannot write to the folder {path.parent}: {error.strerror}") from error


def _remove(path: Path) -> None:
    for name in ("", *COMPANIONS):
        path.with_name(path.name + name).unlink(missing_ok=True)


def _remove_left(folder: Path) -> None:
    for path in folder.glob("*.*.*.*.*"):
        found = _PARTIAL.fullmatch(path.name)
        # A file that cannot be removed does no harm.
        with contextlib.suppress(OSError):
            if found is not None and _is_left(path, found["host"], int(found["pid"])):
                _remove(path)


def _is_left(path: Path, host: str, pid: int) -> bool:
    if host == _host() and not _lives(pid):
        return True
    return path.stat().st_mtime < time.time() - LONG_SECONDS


def _lives(pid: int) -> bool:
    if os.name == "nt":
        # On Windows, os.kill would terminate the process.
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    return re.sub(r"[^\w-]", "-", socket.gethostname(), flags=re.ASCII) or "-"


def _name(copy: Path, target: Path) -> None:
    """Move the copy to its final name. Raises CannotBackUp if a file with that name has appeared."""
    try:
        os.link(copy, target)
    except FileExistsError as error:
        raise _there_already(target) from error
    except OSError:
        # The file system has no hard links: reserve the name with an empty file, then replace that file.
        try:
            target.touch(0o600, exist_ok=False)
        except FileExistsError as error:
            raise _there_already(target) from error
        copy.replace(target)


def _give_rights(new: Path, source: Path, database: Path) -> None:
    """Give the new file the owner and mode of the database it replaces.

    If there was no database, use the mode of the backup, and let the owner read and write.
    """
    if not database.exists():
        new.chmod(source.stat().st_mode & _RIGHTS | stat.S_IRUSR | stat.S_IWUSR)
        return
    before = database.stat()
    if hasattr(os, "chown"):
        # Only root may change the owner.
        with contextlib.suppress(PermissionError):
            os.chown(new, before.st_uid, before.st_gid)
    new.chmod(before.st_mode & _RIGHTS)


def _copy(source: Path, target: Path) -> None:
    with _opened(source) as reading, _opened(target) as writing:
        # Fix the point in time of the copy. Without this, every write by the server would restart the copy.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reading.backup(writing, pages=PAGES_PER_STEP, progress=lambda *_: time.sleep(REST_SECONDS))
        reading.execute("ROLLBACK")
        # Leave a single file without a log; the next connection creates a new log.
        writing.execute("PRAGMA journal_mode=DELETE").fetchone()


def _keep(database: Path) -> Path:
    """Keep the previous database under another name in the same folder, and return its path.

    The log is merged into the file first; if that fails, the log is kept too.
    """
    kept = _unused(database.with_name(f"{database.name}.before-restore-{int(time.time())}"))
    with contextlib.suppress(sqlite3.Error), _opened(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        connection.execute("PRAGMA journal_mode=DELETE").fetchone()
    for name in ("", *COMPANIONS):
        file = _companion(database, name)
        if file.exists():
            _keep_as(file, _companion(kept, name))
    return kept


def _keep_as(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:
        # The file system has no hard links, so copy the file.
        shutil.copy2(path, name)


def _unused(path: Path) -> Path:
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


@contextlib.contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing database in autocommit mode, read-only if it is not writable."""
    database = database.resolve()
    mode = "rw" if os.access(database, os.W_OK) else "ro"
    address = f"{database.as_uri()}?mode={mode}"
    if mode == "ro" and not _companion(database, "-wal").exists():
        # A database without a log is not open anywhere. If the folder is also read-only, for example in a disk
        # snapshot, SQLite cannot create its shared-memory file, so open the database as immutable.
        address += "" if os.access(database.parent, os.W_OK) else "&immutable=1"
    connection = sqlite3.connect(address, _BUSY_SECONDS, isolation_level=None, uri=True)
    with contextlib.closing(connection):
        yield connection


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CannotBackUp(f"{what}: {error}") from error


def _companion(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _settle(path: Path) -> None:
    """Flush a file to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _settle_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
