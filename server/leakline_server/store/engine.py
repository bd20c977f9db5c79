"""The connection to the database: SQLite (one writer, write-ahead log) or Postgres.

Every write goes through `writing`. On SQLite, `writing` also takes a lock within this process: waiting for that lock is
prompt and fair, while SQLite's own busy handler sleeps and may starve a writer.
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

# The errors that callers outside this package may catch: the operation failed and nothing was written.
DATABASE_ERRORS: Final = (SQLAlchemyError,)
BUSY_TIMEOUT_MILLISECONDS: Final = 30_000
WAL_LIMIT_BYTES: Final = 16 * 2**20
# Timeouts for a Postgres server that does not respond, unless the URL sets others. By default, connecting takes up to
# 130 s, and a dead connection is detected only after two hours. Statements have no timeout, because a
# migration or the export of a long run may take a long time.
PATIENCE: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

# The file of each open SQLite database.
_files: WeakKeyDictionary[Engine, _File] = WeakKeyDictionary()
# The key of the write-ahead log in `ConnectionPoolEntry.info`.
_LOG: Final = "log"
_pings: WeakKeyDictionary[Engine, Future[None]] = WeakKeyDictionary()
_pings_lock = threading.Lock()
# Two locks for each SQLite engine: one for the current writer, and one that all writers except the batch writer take
# before the first lock, so that at most one of them is ahead of the batch writer.
_write_locks: WeakKeyDictionary[Engine, tuple[threading.RLock, threading.RLock]] = (
    WeakKeyDictionary()
)

# SQLITE_FULL, and the errors of a file that cannot grow: IOERR_WRITE (over a quota), IOERR_FSYNC, IOERR_SHMSIZE.
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
    """Raised for an unusable database URL; the text gives the reason."""


class DatabaseMoved(OperationalError):
    """Raised when the SQLite file was deleted or replaced while it was open. Further writes would be lost."""

    def __init__(self, path: Path) -> None:
        super().__init__("COMMIT", None, FileNotFoundError(str(path)))
        self._path = path

    def __str__(self) -> str:
        return (
            f"{self._path} was deleted or replaced while it was open; put the original file back, or restart the "
            "server to use the current file"
        )


class _File:
    """An SQLite database file. Its identity at the first opening is kept, to detect a replacement."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._log = Path(f"{self._path}-wal")
        self._first: os.stat_result | None = None
        # Connection pool entries whose connections may be open.
        self._entries: WeakSet[ConnectionPoolEntry] = WeakSet()
        self._lock = threading.Lock()

    def make(self) -> None:
        """Create the file if it does not exist. Raises DatabaseMoved if it was deleted or replaced after it was opened.

        Only the owner can read the file, whatever the umask. SQLite's companion files inherit the mode.
        """
        if self._first is not None:
            # Without this check, SQLite would create a new file, and later connections would write to that file.
            self.check()
            return
        with contextlib.suppress(OSError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def opened(self, connection: Any, record: ConnectionPoolEntry) -> None:
        """Record the identities of the file and of its write-ahead log when a connection is opened.

        The identity of the log is stored in ``record``. Raises DatabaseMoved.
        """
        if self._first is None:
            self._first = self._path.stat()
        # Reading opens or creates the log. If other connections have a different log open, their log was deleted.
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
    """Return an engine for ``sqlite:///path`` or ``postgresql+psycopg://…``, and create the folder of an SQLite file.

    Raises BadDatabaseUrl.
    """
    parsed = check_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(url, str(parsed.database), synchronous)
    engine = create_engine(
        # Hide the parameters, because errors go to logs and parameters hold stored content.
        url, pool_size=10, max_overflow=10, pool_pre_ping=True, hide_parameters=True,
        connect_args={name: value for name, value in PATIENCE.items() if name not in parsed.query},
    )  # fmt: skip
    if synchronous == "normal":
        _on_connect(engine, ["SET synchronous_commit = off"])
    return engine


def check_url(url: str) -> URL:
    """Return the parsed database URL. Raises BadDatabaseUrl if it cannot be used."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise BadDatabaseUrl(
            "not a database URL; use sqlite:///path or postgresql+psycopg://host/db"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise BadDatabaseUrl("SQLite needs a file: sqlite:///path/to/leakline.db")
    elif parsed.drivername != "postgresql+psycopg":
        raise BadDatabaseUrl(
            f"unsupported database {parsed.drivername}; use sqlite:///path or postgresql+psycopg://host/db"
        )
    elif any("@" in (part or "") for part in (parsed.host, parsed.database)):
        # The parsed host or database contains the rest of the password: do not print it or connect to it.
        raise BadDatabaseUrl(
            "contains an extra @; in a user name or password write @ as %40, / as %2F, : as %3A and % as %25"
        )
    elif find_spec("psycopg") is None:
        raise BadDatabaseUrl(
            "the Postgres driver is not installed; run: pip install 'leakline[postgres]'"
        )
    return parsed


def is_out_of_space(error: BaseException) -> bool:
    """Return True if a write failed because the disk is full. Reads still work."""
    reason = getattr(error, "orig", None)
    return (
        getattr(reason, "sqlite_errorcode", None) in _SQLITE_FULL
        or getattr(reason, "sqlstate", None) == _POSTGRES_FULL
    )


def is_damaged(error: BaseException) -> bool:
    """Return True if the error means that SQLite cannot read part of its file."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None) or 0
    return code & 0xFF in _SQLITE_DAMAGED


def is_undecodable(error: BaseException) -> bool:
    """Return True if the driver failed on text that is not UTF-8; the error message quotes that text."""
    return str(getattr(error, "orig", error)).startswith("Could not decode to UTF-8")


def without_content(error: BaseException) -> str:
    """Return the text of an error for logs, without the stored content that database drivers quote."""
    if not isinstance(error, SQLAlchemyError) or isinstance(error, DatabaseMoved):
        return str(error)
    reason = getattr(error, "orig", None) or error
    state = getattr(reason, "sqlstate", None)
    name = type(reason).__name__ if state is None else f"{type(reason).__name__} ({state})"
    # SQLite's own messages name tables and columns at most, and Postgres connection errors quote no stored content.
    is_safe = hasattr(reason, "sqlite_errorcode") or (state is None and _is_connecting(error))
    said = str(reason).strip().partition("\n")[0]
    return f"{name}: {said}" if is_safe else name


def ping(engine: Engine) -> None:
    """Raise one of DATABASE_ERRORS if the database does not answer, or if its file was deleted or replaced."""
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    if engine in _files:
        _files[engine].check()


def pinging(engine: Engine) -> Future[None]:
    """Return the future of a `ping` that runs on a daemon thread; concurrent callers share one ping.

    If each caller ran a ping, an unresponsive database would block one thread per caller.
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
        # Any other error ends this thread, and Python prints it; waiting callers must not hang forever.
        if not answer.done():
            answer.set_exception(RuntimeError("the database check failed; see the log"))


def may_answer_soon(error: BaseException) -> bool:
    """Return True if Postgres is unreachable but may still be starting.

    Return False if the server rejected the connection, because it would also reject the next connection.
    """
    text = str(getattr(error, "orig", None))
    return _is_connecting(error) and ("FATAL" not in text or "the database system is" in text)


def _is_connecting(error: BaseException) -> bool:
    of_postgres = type(getattr(error, "orig", None)).__module__.startswith("psycopg")
    return of_postgres and isinstance(error, OperationalError)


def check_that_it_writes(engine: Engine) -> None:
    """Raise one of DATABASE_ERRORS if the database is not writable; `ping` succeeds on a read-only database."""
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection with one consistent view of the database.

    Sealing moves rows between tables; without a consistent view, a reader could see rows twice or not at all.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextlib.contextmanager
def writing(engine: Engine, *, durable: bool = True, first: bool = False) -> Iterator[Connection]:
    """Yield a connection in a write transaction, which is committed at the end or rolled back on an exception.

    ``durable=False`` is for work that can be redone from the database: on SQLite the commit does not wait for the disk.
    The write-ahead log keeps the order, so losing this commit never loses an earlier commit. ``first=True`` is for the
    batch writer: at most one other writer goes ahead of it, no matter how many are waiting.
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
    """A statement for many rows. It avoids SQLAlchemy's overhead per row, which is as large as the database's work.

    Values are passed to the driver unconverted, so they must be numbers, text, bytes or booleans that match the column
    types. ``as_arrays`` is for inserts of thousands of small rows: Postgres receives each column as one array, which
    takes a fifth of the time.
    """

    def __init__(self, statement: Insert | Update | Delete, *, as_arrays: bool = False) -> None:
        self._statement, self._as_arrays = statement, as_arrays
        self._made: dict[tuple[str, tuple[str, ...]], Compiled] = {}

    def __call__(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Execute the statement for one or more rows, which must all have the same keys."""
        names = tuple(rows[0])
        if self._as_arrays and connection.dialect.name == "postgresql":
            self._insert_arrays(connection, names, rows)
            return
        made = self._made.get((connection.dialect.name, names))
        if made is None:
            # Updates and deletes have explicitly named parameters.
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
    # Bypass SQLAlchemy, which would begin a transaction; the setting cannot be changed inside one.
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
        # `_begin_sqlite` decides when a transaction starts.
        connect_args={"isolation_level": None},
        pool_size=10,
        max_overflow=30,
        # Reuse the most recently used connection: each connection has page and statement caches of up to 3 MB, and
        # round-robin use would fill the caches of all ten connections.
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
    """Create the database's folder, accessible to its owner only; an existing folder is left unchanged."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _able_to_shrink(connection: Any, _record: Any) -> None:
    """Enable incremental vacuum in a new file, so that it can shrink.

    In an existing file, the setting would have no effect (`disk_space.py`) but would still write, so that on a full
    disk no connection could be opened, not even for reading.
    """
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if pages == 0:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")


def _able_to_lower(connection: Any, _record: Any) -> None:
    """Register `lower_utf8`, because SQLite's own lower() handles ASCII letters only."""
    connection.create_function("lower_utf8", 1, _lower, deterministic=True)


def _lower(text: bytes | None) -> str | None:
    # Damaged text in one row must not make the entire search fail.
    return None if text is None else text.decode(errors="replace").lower()


class lowered(FunctionElement[str]):  # noqa: N801 - it is called like a function of SQL
    """An SQL function that lowercases text in any alphabet, like `str.lower`."""

    type = Text()
    inherit_cache = True


@compiles(lowered)
def _lowered(element: lowered, compiler: SQLCompiler, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"


@compiles(lowered, "sqlite")
def _lowered_on_sqlite(element: lowered, compiler: SQLCompiler, **options: Any) -> str:
    # Pass bytes, because SQLite cannot pass text that is not UTF-8 to a Python function.
    return f"lower_utf8(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later can fail halfway with "database is locked"; a transaction that
    # takes the write lock at the start cannot.
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
    """Delete the rows that match ``which``, except the newest ``most`` rows. The caller commits.

    ``newest`` is the column to order by. The values of ``key`` are unique among these rows.
    """
    kept = select(key).where(*which).order_by(newest.desc(), key.desc()).limit(most)
    connection.execute(delete(key.table).where(*which, key.not_in(kept)))
