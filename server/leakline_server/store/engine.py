"""The connection to the database: SQLite (one writer, write-ahead log) or Postgres.

Every write goes through `writing`; on SQLite it also takes a lock of this process, because waiting for a lock
of ours is prompt and fair, while SQLite's own waiting sleeps and may starve.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Insert,
    Table,
    Text,
    Update,
    create_engine,
    delete,
    event,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import Compiled, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

Synchronous = Literal["full", "normal"]

# What a caller outside this room may catch: the database did not do it, and nothing was written.
DATABASE_ERRORS: Final = (SQLAlchemyError,)
BUSY_TIMEOUT_MILLISECONDS: Final = 30_000
WAL_LIMIT_BYTES: Final = 16 * 2**20
# With a Postgres that says nothing, where its address does not say otherwise: by themselves 130 s for a connection, and
# two hours until one is given up whose other end has gone. What a statement may take is not bounded: an export of a
# long run and a new version take their time.
PATIENCE: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

# The file of each SQLite database that is open.
_files: WeakKeyDictionary[Engine, _File] = WeakKeyDictionary()
# In what the pool notes of a connection: its write-ahead log.
_LOG: Final = "log"
_pings: WeakKeyDictionary[Engine, Future[None]] = WeakKeyDictionary()
_pings_lock = threading.Lock()
# That of whoever writes, and that of whoever waits for it and is not the writer of batches.
_write_locks: WeakKeyDictionary[Engine, tuple[threading.RLock, threading.RLock]] = (
    WeakKeyDictionary()
)

# SQLITE_FULL, and what a file says that must not grow: IOERR_WRITE (over a quota), IOERR_FSYNC, IOERR_SHMSIZE.
_SQLITE_FULL: Final = frozenset({13, 778, 1034, 4874})
# SQLITE_CORRUPT and SQLITE_NOTADB.
_SQLITE_DAMAGED: Final = (11, 26)
_POSTGRES_FULL: Final = "53100"

__all__ = [
    "DATABASE_ERRORS",
    "Connection",
    "DatabaseMoved",
    "Engine",
    "Many",
    "check_that_it_writes",
    "check_url",
    "is_damaged",
    "is_out_of_space",
    "is_undecodable",
    "lowered",
    "make_folder",
    "may_answer_soon",
    "open_engine",
    "ping",
    "pinging",
    "reading",
    "without_content",
    "writing",
]


class BadDatabaseUrl(ValueError):
    """The address of the database is of no use; the text says why."""


class DatabaseMoved(OperationalError):
    """What is written would not be found again: its file was deleted, or another one has its name by now."""

    def __init__(self, path: Path) -> None:
        super().__init__("COMMIT", None, FileNotFoundError(str(path)))
        self._path = path

    def __str__(self) -> str:
        return (
            f"{self._path} was deleted or replaced while it was open; put it back, or restart the server to begin with "
            "what is there now"
        )


class _File:
    """Of an SQLite database, as it was when it was first opened. Raises DatabaseMoved."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._log = Path(f"{self._path}-wal")
        self._first: os.stat_result | None = None
        # Entries of the pool whose connections may be open.
        self._entries: WeakSet[ConnectionPoolEntry] = WeakSet()
        self._lock = threading.Lock()

    def make(self) -> None:
        """For us alone, whatever the umask, as what SQLite puts next to it. One that is there stays."""
        if self._first is not None:
            # SQLite would make a new one, and everybody who connects later would write into that.
            self.check()
            return
        with contextlib.suppress(OSError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def opened(self, connection: Any, record: ConnectionPoolEntry) -> None:
        """Note the file, and in ``record`` the write-ahead log, which stays while this connection is open."""
        if self._first is None:
            self._first = self._path.stat()
        # Reading opens the log, or makes one: if others are open, theirs was deleted.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self.check()
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        with contextlib.suppress(FileNotFoundError):
            record.info[_LOG] = self._log.stat() if mode == "wal" else None
        with self._lock:
            self._entries.add(record)

    def check(self) -> None:
        """Raise DatabaseMoved if the file, or the write-ahead log of an open connection, was deleted or replaced."""
        with self._lock:
            noted = [each.info.get(_LOG) for each in self._entries if each.dbapi_connection]
        logs = [log for log in noted if log is not None]
        try:
            pairs = [(self._first, self._path.stat())]
            if logs:
                now = self._log.stat()
                pairs += [(log, now) for log in logs]
        except FileNotFoundError as error:
            raise DatabaseMoved(self._path) from error
        if not all(was is None or os.path.samestat(was, now) for was, now in pairs):
            raise DatabaseMoved(self._path)


def open_engine(url: str, synchronous: Synchronous = "full") -> Engine:
    """An engine for ``sqlite:///path`` or ``postgresql+psycopg://…``. Makes the folder of an SQLite file.

    Raises BadDatabaseUrl.
    """
    parsed = check_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(url, str(parsed.database), synchronous)
    engine = create_engine(
        # What is stored is not for logs, where errors go.
        url, pool_size=10, max_overflow=10, pool_pre_ping=True, hide_parameters=True,
        connect_args={name: value for name, value in PATIENCE.items() if name not in parsed.query},
    )  # fmt: skip
    if synchronous == "normal":
        _on_connect(engine, ["SET synchronous_commit = off"])
    return engine


def check_url(url: str) -> URL:
    """The parts of an address that can be of a database. Raises BadDatabaseUrl."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise BadDatabaseUrl(
            "not an address of a database; use sqlite:///path or postgresql+psycopg://host/db"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise BadDatabaseUrl("SQLite needs a file: sqlite:///path/to/leakline.db")
    elif parsed.drivername != "postgresql+psycopg":
        raise BadDatabaseUrl(
            f"{parsed.drivername}: use sqlite:///path or postgresql+psycopg://host/db"
        )
    elif any("@" in (part or "") for part in (parsed.host, parsed.database)):
        # What it took for a host is the rest of the password: not repeated, and nobody is asked for it.
        raise BadDatabaseUrl(
            "has an @ too many; in a user or a password write %40 for it (and %2F for /, %3A for :, %25 for %)"
        )
    elif find_spec("psycopg") is None:
        raise BadDatabaseUrl("Postgres needs a driver: pip install 'leakline[postgres]'")
    return parsed


def is_out_of_space(error: BaseException) -> bool:
    """Whether the database did not do it because its disk is full: reading goes on, and writing once there is room."""
    reason = getattr(error, "orig", None)
    return (
        getattr(reason, "sqlite_errorcode", None) in _SQLITE_FULL
        or getattr(reason, "sqlstate", None) == _POSTGRES_FULL
    )


def is_damaged(error: BaseException) -> bool:
    """Return True if SQLite cannot read a part of its file."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None) or 0
    return code & 0xFF in _SQLITE_DAMAGED


def is_undecodable(error: BaseException) -> bool:
    """Return True if the driver came upon a text that is not UTF-8, which it quotes."""
    return str(getattr(error, "orig", error)).startswith("Could not decode to UTF-8")


def without_content(error: BaseException) -> str:
    """An error for logs; of one of the database never what is stored, which drivers quote."""
    if not isinstance(error, SQLAlchemyError) or isinstance(error, DatabaseMoved):
        return str(error)
    reason = getattr(error, "orig", None) or error
    state = getattr(reason, "sqlstate", None)
    name = type(reason).__name__ if state is None else f"{type(reason).__name__} ({state})"
    # SQLite itself names tables and columns at most. A Postgres that lets nobody in has nothing to quote.
    is_safe = hasattr(reason, "sqlite_errorcode") or (state is None and _is_connecting(error))
    said = str(reason).strip().partition("\n")[0]
    return f"{name}: {said}" if is_safe else name


def ping(engine: Engine) -> None:
    """Raises one of DATABASE_ERRORS when the database does not answer, or is not where it was."""
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    if engine in _files:
        _files[engine].check()


def pinging(engine: Engine) -> Future[None]:
    """A `ping` that is under way, on a thread of its own that nobody waits for at the end. One at a time, however many
    ask: a database that says nothing would hold a thread for each.
    """
    with _pings_lock:
        found = _pings.get(engine)
        if found is None or found.done():
            found = _pings[engine] = Future()
            found.set_running_or_notify_cancel()
            threading.Thread(
                target=_ping_into, args=(engine, found), name="leakline-ping", daemon=True
            ).start()
        return found


def _ping_into(engine: Engine, answer: Future[None]) -> None:
    try:
        ping(engine)
        answer.set_result(None)
    except (*DATABASE_ERRORS, OSError) as error:
        answer.set_exception(error)
    finally:
        # Another error ends the thread, which prints it; whoever waits must not wait for ever.
        if not answer.done():
            answer.set_exception(RuntimeError("the database could not be asked, see the log"))


def may_answer_soon(error: BaseException) -> bool:
    """Whether a Postgres that could not be reached is perhaps only beginning: nobody listens, nothing is said, or it
    says that it starts. One that refuses us refuses us again.
    """
    text = str(getattr(error, "orig", None))
    return _is_connecting(error) and ("FATAL" not in text or "the database system is" in text)


def _is_connecting(error: BaseException) -> bool:
    of_postgres = type(getattr(error, "orig", None)).__module__.startswith("psycopg")
    return of_postgres and isinstance(error, OperationalError)


def check_that_it_writes(engine: Engine) -> None:
    """Raises one of DATABASE_ERRORS when nothing can be written: a database that may only be read answers `ping`."""
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give one consistent view: sealing moves rows between tables, and a read must not see them twice or not at all."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextlib.contextmanager
def writing(engine: Engine, *, durable: bool = True, first: bool = False) -> Iterator[Connection]:
    """One transaction that writes: committed at the end, rolled back on an exception.

    ``durable=False`` is for work that can be done again from what is in the database: on SQLite it does not wait for
    the disk. The write-ahead log keeps the order, so losing it never loses what was committed before.
    ``first=True`` is for the writer of batches: however many others wait to write, at most one goes before it.
    """
    nothing = contextlib.nullcontext()
    lock, others = _write_locks.get(engine, (nothing, nothing))
    with nothing if first else others, lock, engine.connect() as connection:
        connection = connection.execution_options(writes=True)
        pace = contextlib.nullcontext() if durable else _not_waiting_for_the_disk(connection)
        with pace, connection.begin():
            yield connection
            if engine in _files:
                _files[engine].check()


class Many:
    """A statement for many rows at once, past what SQLAlchemy does for each: that costs as much as the database does.

    Values go to the driver as they are: numbers, text, bytes and truth, each of the type of its column.
    ``as_arrays`` is for an insert of thousands of small rows: Postgres is sent each column as one array, which takes it
    a fifth of the time.
    """

    def __init__(self, statement: Insert | Update | Delete, *, as_arrays: bool = False) -> None:
        self._statement, self._as_arrays = statement, as_arrays
        self._made: dict[tuple[str, tuple[str, ...]], Compiled] = {}

    def __call__(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """All rows have the same keys, and there is at least one."""
        names = tuple(rows[0])
        if self._as_arrays and connection.dialect.name == "postgresql":
            self._insert_arrays(connection, names, rows)
            return
        made = self._made.get((connection.dialect.name, names))
        if made is None:
            # What an update sets and compares with is bound by names of its own.
            keys = names if isinstance(self._statement, Insert) else None
            made = self._statement.compile(dialect=connection.dialect, column_keys=keys)
            self._made[connection.dialect.name, names] = made
        assert isinstance(made, SQLCompiler)
        fixed = {name: value for name, value in made.params.items() if name not in rows[0]}
        given = [{**fixed, **row} for row in rows] if fixed else rows
        if made.positiontup is None:
            connection.exec_driver_sql(str(made), list(given))
        else:
            in_order = itemgetter(*made.positiontup)
            connection.exec_driver_sql(str(made), [in_order(row) for row in given])

    def _insert_arrays(
        self, connection: Connection, names: Sequence[str], rows: Sequence[dict[str, Any]]
    ) -> None:
        table = self._statement.table
        assert isinstance(table, Table)
        arrays = (f"%s::{table.c[n].type.compile(connection.dialect)}[]" for n in names)
        connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM unnest({', '.join(arrays)})",
            tuple([row[name] for row in rows] for name in names),
        )


@contextlib.contextmanager
def _not_waiting_for_the_disk(connection: Connection) -> Iterator[None]:
    driver = connection.connection.driver_connection
    if connection.dialect.name != "sqlite" or driver is None:
        yield
        return
    # Past SQLAlchemy, because the setting cannot change inside a transaction, and it would begin one.
    (before,) = driver.execute("PRAGMA synchronous").fetchone()
    driver.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA synchronous={before}")


def _open_sqlite(url: str, database: str, synchronous: Synchronous) -> Engine:
    make_folder(Path(database).parent)
    engine = create_engine(
        url,
        # Our own BEGIN, below, decides when a transaction starts.
        connect_args={"isolation_level": None},
        pool_size=10,
        max_overflow=30,
        # The one used last: each has a cache of pages and of statements, 3 MB when it has seen everything, and in turn
        # all ten would fill theirs.
        pool_use_lifo=True,
        hide_parameters=True,
    )
    if not database.startswith("file:"):
        file = _files[engine] = _File(Path(database))
        event.listen(engine, "do_connect", lambda *_: file.make())
    event.listen(engine, "connect", _able_to_shrink)
    event.listen(engine, "connect", _able_to_lower)
    _on_connect(
        engine,
        [
            f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}",
            "PRAGMA journal_mode=WAL",
            f"PRAGMA synchronous={synchronous.upper()}",
            "PRAGMA foreign_keys=ON",
            f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}",
        ],
    )
    if engine in _files:
        event.listen(engine, "connect", file.opened)
    event.listen(engine, "begin", _begin_sqlite)
    _write_locks[engine] = threading.RLock(), threading.RLock()
    return engine


def make_folder(folder: Path) -> None:
    """Of the database, for us alone; one that is there stays as it is."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _able_to_shrink(connection: Any, _record: Any) -> None:
    """A file in which there is nothing yet keeps the map that lets it shrink. Later that has no effect (`disk.py`), and
    is a write all the same: on a full disk no connection could be opened, not even to read.
    """
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if pages == 0:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")


def _able_to_lower(connection: Any, _record: Any) -> None:
    """SQLite's own lower() knows the letters of ASCII alone."""
    connection.create_function("lower_utf8", 1, _lower, deterministic=True)


def _lower(text: bytes | None) -> str | None:
    # A text that is damaged is no reason to find nothing.
    return None if text is None else text.decode(errors="replace").lower()


class lowered(FunctionElement[str]):  # noqa: N801 - it is called like a function of SQL
    """The text in small letters of every alphabet, as `str.lower` makes them of what it is compared with."""

    type = Text()
    inherit_cache = True


@compiles(lowered)
def _lowered(element: lowered, compiler: SQLCompiler, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"


@compiles(lowered, "sqlite")
def _lowered_on_sqlite(element: lowered, compiler: SQLCompiler, **options: Any) -> str:
    # Bytes, because a function is not given a text that is not UTF-8.
    return f"lower_utf8(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later can fail half-way with "database is locked"; taking the write
    # lock at the start cannot.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _on_connect(engine: Engine, statements: list[str]) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        if engine.dialect.name == "postgresql":
            connection.commit()


def keep_newest(
    connection: Connection,
    key: ColumnElement[Any],
    newest: ColumnElement[Any],
    most: int,
    *which: ColumnElement[bool],
) -> None:
    """Delete all but ``most`` of the rows ``which``, by ``newest``; the caller commits. ``key`` is unique in them."""
    kept = select(key).where(*which).order_by(newest.desc(), key.desc()).limit(most)
    connection.execute(delete(key.table).where(*which, key.not_in(kept)))
