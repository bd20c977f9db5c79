"""The file of an SQLite database: one server at a time, a copy while it writes, and putting one back.

A server keeps in memory what it has written, and its live pages hear only of that: a second one on the same file would
store what is sent twice, and say so to nobody. Other programs may read and write the file meanwhile. On Postgres there
may be any number of servers.

A copy is what the database was at one moment: a transaction that reads holds the moment, and writers go on in the
write-ahead log. The copy is checked before it gets its name, and is one file. It is put back while no server runs. On
Postgres `pg_dump` does all of this.
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

# Next to the file rather than the file: on some network file systems these locks are the very ones SQLite takes.
SUFFIX: Final = "-served"


class AlreadyServed(Exception):
    """Another server is on this file; its text is the sentence for who would start one more, ``stop_it`` for who would
    change the file.
    """

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(
            f"another server (process {process}) already serves {path}; use that one, name another file with "
            "--database-url, or run several servers on Postgres"
        )
        self.stop_it = f"a server (process {process}) is running on {path}; stop it first"


@contextlib.contextmanager
def alone_on(url: str) -> Iterator[None]:
    """Hold the database for this server. Raises AlreadyServed, and OSError where the file cannot be made."""
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
        # The lock ends with the process, however that ends.
        yield


def _opened_by_others(path: Path) -> IO[str]:
    # Never deleted: who deletes one that another has just opened leaves two of them.
    try:
        return path.with_name(path.name + SUFFIX).open("a+")
    except OSError as error:
        # People know their file, and not what lies next to it.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sign(descriptor: int) -> None:
    """Who it is, for the sentence of another. On a full disk nobody is named: the lock holds all the same."""
    os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{os.getpid()}\n".encode())


def _file_of(url: str) -> Path | None:
    """None where several servers may be on one database, or where nothing can be locked."""
    parsed = make_url(url)
    if os.name == "nt" or parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    # One file by whatever name.
    return Path(parsed.database).resolve()


# Of one step of a copy, 4 MiB where a page is 4 KiB; a rest after each leaves the disk to who writes.
PAGES_PER_STEP: Final = 1_024
REST_SECONDS: Final = 0.005
# What SQLite keeps next to a file.
COMPANIONS: Final = ("-wal", "-shm", "-journal")
# Of one whose process cannot be asked after: of another machine, or where a process of now has its number.
LONG_SECONDS: Final = 86_400.0
_PARTIAL: Final = re.compile(
    r".+\.(?P<host>[\w-]+)\.(?P<pid>\d+)\.\w{8}\.(?:part|restoring)", re.ASCII
)
_BUSY_SECONDS: Final = 30.0
_RIGHTS: Final = 0o777


class CannotBackUp(Exception):
    """Its text is the sentence for people."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A database that is whole: its schema (None: of no Leakline yet) and its bytes."""

    schema: str | None
    bytes: int


def back_up(database: Path, target: Path) -> Checked:
    """Copy the database into a new file, which is there only when it is whole. Raises CannotBackUp, OSError."""
    if target.exists():
        raise _there_already(target)
    copy = _begin(target, "part")
    try:
        with _failing(f"cannot copy {database}"):
            _copy(database, copy)
        checked = check(copy)
        _settle(copy)
        # Readable by whom the database is: it holds the secrets of webhooks.
        copy.chmod(database.stat().st_mode & _RIGHTS)
        _name(copy, target)
        _settle_folder(target.parent)
    finally:
        _remove(copy)
    return checked


def restore(source: Path, database: Path) -> Path | None:
    """Put a copy of ``source`` where the database is, which nobody may have open. What was there is kept next to
    it: its path. The change is one renaming, so that there is a whole database at any moment. Owner and rights stay
    those of the database, whatever those of the backup are. Raises CannotBackUp, OSError.
    """
    check(source)
    # Where a link to it stands, the link stays.
    database = database.resolve()
    database.parent.mkdir(parents=True, exist_ok=True)
    new = _begin(database, "restoring")
    try:
        with _failing(f"cannot copy {source}"):
            _copy(source, new)
        _settle(new)
        _give_rights(new, source, database)
        kept = _keep(database) if database.exists() else None
        # Pages of the database of before would be read into the new one.
        for name in COMPANIONS:
            _companion(database, name).unlink(missing_ok=True)
        new.replace(database)
        _settle_folder(database.parent)
    finally:
        _remove(new)
    return kept


def check(database: Path) -> Checked:
    """That a file is a whole database of Leakline. Raises CannotBackUp."""
    if not database.is_file():
        raise CannotBackUp(f"there is no file {database}")
    with _failing(f"{database} is no whole database"), _opened(database) as connection:
        said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
        if said != ["ok"]:
            raise CannotBackUp(f"{database} is damaged: {'; '.join(said)}")
        named = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")
        found = None
        if named.fetchone() is not None:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return Checked(None if found is None else str(found[0]), database.stat().st_size)


def objects_of(database: Path) -> dict[tuple[str, str], object]:
    """What a whole database has, by kind and name: of a table its columns and what holds for them, of anything else its
    text. Of SQLite's own nothing.
    """
    found: dict[tuple[str, str], object] = {}
    with _failing(f"{database} is no whole database"), _opened(database) as connection:
        named = (
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
        for kind, name, sql in connection.execute(named).fetchall():
            text = " ".join(str(sql).split())
            found[kind, name] = _table(connection, name, text) if kind == "table" else text
    return found


def _table(connection: sqlite3.Connection, name: str, sql: str) -> object:
    """Not its text: what SQLite has written again for an older version is quoted otherwise."""
    columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
    keys = connection.execute("SELECT * FROM pragma_foreign_key_list(?)", (name,)).fetchall()
    rules = Counter(re.findall(r"\b(?:VIRTUAL|CHECK|GENERATED|STRICT)\b", sql.upper()))
    return sorted(columns), sorted(keys), rules


def _there_already(target: Path) -> CannotBackUp:
    return CannotBackUp(f"{target} is there already; name a new file")


def _begin(path: Path, suffix: str) -> Path:
    """Create an empty file next to ``path`` that only this process uses and reads; ``suffix``: part or restoring.

    The files of processes that were killed while they wrote are removed from the folder.
    """
    if not path.parent.exists():
        raise CannotBackUp(f"the folder {path.parent} does not exist; make it, or name another")
    try:
        _remove_left(path.parent)
        prefix = f"{path.name}.{_host()}.{os.getpid()}."
        number, name = tempfile.mkstemp(f".{suffix}", prefix, path.parent)
        os.close(number)
        return Path(name)
    except OSError as error:
        # It names a file of ours, of which nobody has heard.
        raise CannotBackUp(
            f"cannot write into the folder {path.parent}: {error.strerror}"
        ) from error


def _remove(path: Path) -> None:
    for name in ("", *COMPANIONS):
        path.with_name(path.name + name).unlink(missing_ok=True)


def _remove_left(folder: Path) -> None:
    for path in folder.glob("*.*.*.*.*"):
        found = _PARTIAL.fullmatch(path.name)
        # What may not be removed is in nobody's way.
        with contextlib.suppress(OSError):
            if found is not None and _is_left(path, found["host"], int(found["pid"])):
                _remove(path)


def _is_left(path: Path, host: str, pid: int) -> bool:
    if host == _host() and not _lives(pid):
        return True
    return path.stat().st_mtime < time.time() - LONG_SECONDS


def _lives(pid: int) -> bool:
    if os.name == "nt":
        # There this would end it.
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
    """Give a file its name, unless somebody has taken it meanwhile."""
    try:
        os.link(copy, target)
    except FileExistsError as error:
        raise _there_already(target) from error
    except OSError:
        # A file system without second names: the name is taken first, by a file that is empty for a moment.
        try:
            target.touch(0o600, exist_ok=False)
        except FileExistsError as error:
            raise _there_already(target) from error
        copy.replace(target)


def _give_rights(new: Path, source: Path, database: Path) -> None:
    """Those of the database that goes; where there is none, those of the backup, for a server that writes."""
    if not database.exists():
        new.chmod(source.stat().st_mode & _RIGHTS | stat.S_IRUSR | stat.S_IWUSR)
        return
    before = database.stat()
    if hasattr(os, "chown"):
        # Whose it is may be changed by root alone.
        with contextlib.suppress(PermissionError):
            os.chown(new, before.st_uid, before.st_gid)
    new.chmod(before.st_mode & _RIGHTS)


def _copy(source: Path, target: Path) -> None:
    with _opened(source) as reading, _opened(target) as writing:
        # The moment that is copied. Without it every batch of a server would begin the copy again.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reading.backup(writing, pages=PAGES_PER_STEP, progress=lambda *_: time.sleep(REST_SECONDS))
        reading.execute("ROLLBACK")
        # One file: what opens it next makes a log of its own.
        writing.execute("PRAGMA journal_mode=DELETE").fetchone()


def _keep(database: Path) -> Path:
    """What was there, under another name of the same folder; its log with it where that cannot be written into it."""
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
        # A file system without second names.
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
    """With our own BEGIN. Never makes a file; one that may not be written is read."""
    database = database.resolve()
    mode = "rw" if os.access(database, os.W_OK) else "ro"
    address = f"{database.as_uri()}?mode={mode}"
    if mode == "ro" and not _companion(database, "-wal").exists():
        # Nobody has it open. Where the folder may not be written either, as of a snapshot of a disk, SQLite could not
        # make what it shares with others.
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
    """On the disk, and not in memory alone."""
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
