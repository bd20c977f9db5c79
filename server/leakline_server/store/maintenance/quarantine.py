"""Values of an SQLite database that cannot be what was written are moved to the table ``damaged``.

SQLite stores anything in any column, and one such value fails every query that has its row in it. So each is copied as
it is, named in the log, and replaced by what a new row has there; nothing that reads has to expect one. This is done
when a server starts, and when reading has failed. Packed snapshots have checksums and are checked when they are read.
Postgres checks types and encoding itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, get_args
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Boolean, Column, Double, LargeBinary, Table, Text, insert

from leakline.analysis.results import SEVERITY, Finding, Interval, Kind, Verdict, to_json
from leakline.snapshot import LARGEST_INTEGER

from ...limits import MAX_DAMAGED
from .. import access, incident_groups, leases, schema
from ..alerts import assertions, webhooks
from ..alerts.deliveries import STATES as DELIVERY_STATES
from ..columns import CorruptChunk
from ..engine import (
    DATABASE_ERRORS,
    Connection,
    Engine,
    is_damaged,
    is_out_of_space,
    is_undecodable,
    keep_newest,
    without_content,
    writing,
)
from ..findings import RESOLVED
from ..runs.runs import STATES, Sparkline
from ..schema import alerts, attempts, deliveries, incidents, metadata, processes, runs, settings
from . import disk_space
from .corruption import found_in_row, run_named

THE_DATABASE: Final = "the database"
# At most one check in so many seconds, unless it finds something.
PAUSE_SECONDS: Final = 10.0
# So long after a find, whatever fails may have read what was there before.
RECENT_SECONDS: Final = 2.0
ROWS_AT_ONCE: Final = 500

# Damage is found out when they are read, and they are too long to be gone through.
PACKED: Final = frozenset({schema.batches, schema.chunks, schema.details, schema.segments})
# Rows without meaning in part: what people said, what lets somebody in, and what is counted again.
_WHOLE: Final = frozenset({
    schema.acknowledgements, schema.assertions, schema.assertion_states, schema.requests, settings,
    schema.tokens, schema.sessions, schema.intake, schema.sizes, schema.damaged,
})  # fmt: skip
# What fits into a column depends on another one: the key of a setting, the origin of an assertion.
_IN_CONTEXT: Final = frozenset({settings, schema.assertions})
# What is in it is gone through and not made.
_OBJECT: Final[Any] = dict[str, msgspec.Raw]
_SHAPES: Final[Mapping[Column[Any], Any]] = {
    runs.c.tags: list[str], runs.c.phases: list[str], runs.c.phases_seen: list[str], runs.c.config: _OBJECT,
    runs.c.environment: _OBJECT, runs.c.notes: list[dict[str, msgspec.Raw]], runs.c.sparkline: Sparkline,
    runs.c.verdict: Verdict, attempts.c.environment: _OBJECT, processes.c.lost: dict[str, int],
    incidents.c.finding: Finding,
}  # fmt: skip
_KNOWN: Final[Mapping[Column[Any], Sequence[str]]] = {
    runs.c.state: STATES, runs.c.status: SEVERITY, incidents.c.status: (*SEVERITY, RESOLVED),
    incidents.c.kind: get_args(Kind), deliveries.c.state: DELIVERY_STATES,
    processes.c.end_state: STATES[1:], schema.assertions.c.origin: get_args(assertions.Origin),
    schema.assertions.c.measure: get_args(assertions.Measure),
    schema.acknowledgements.c.kind: get_args(incident_groups.Kind),
}  # fmt: skip
_TIMES: Final = ("_at", "_until", "_since")
# Of years 1 to 9999.
_FIRST_SECOND: Final = -62_135_596_800.0
_LAST_SECOND: Final = 253_402_300_799.0

ALERT_DAMAGED: Final = "Stored data of this alert is damaged"
_PAYLOAD: Final = {"title": ALERT_DAMAGED, "summary": f"{ALERT_DAMAGED}.", "when": {}}
# In place of what a new row has there, where that is nothing that can be shown.
_INSTEAD: Final[Mapping[Column[Any], Any]] = {
    # Nobody hears of it, and people may delete it.
    runs.c.state: "silent",
    runs.c.project: "damaged",
    runs.c.name: "damaged",
    runs.c.unit: "generation",
    incidents.c.status: RESOLVED,
    incidents.c.kind: "external",
    alerts.c.payload: msgspec.json.encode(_PAYLOAD).decode(),
    deliveries.c.state: "failed",
    schema.webhooks.c.url: "http://damaged.invalid/",
    schema.webhooks.c.format: "standard",
    schema.webhooks.c.source: "api",
}
# Unique within the run.
_NUMBERED: Final = frozenset({schema.series.c.name, processes.c.instance, incidents.c.fingerprint})
# In place of the password: it keeps sign-in closed until people make another.
_NO_PASSWORD: Final = '{"hash":"","source":"command"}'
# What settings are, by how their keys begin, and how they go on.
_LEASE: Final = msgspec.json.Decoder(leases.Lease)
_TRIAL: Final = msgspec.json.Decoder(webhooks.Trial)
_PASSWORD: Final = msgspec.json.Decoder(access.StoredPassword)
_TRIALS: Final = webhooks.TRIAL_KEY.format("")

# What reading raises for a value that is not what was written, besides CorruptChunk.
SIGNS: Final = (
    msgspec.MsgspecError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError,
)  # fmt: skip


log = logging.getLogger("leakline")


class _NotText(bytes):
    """Stored as text, and not UTF-8."""


@dataclass(frozen=True, slots=True)
class _Check:
    """The types of a column's values, and where more is known of them, what says that one can have been written."""

    types: frozenset[type]
    closer: Callable[[Any], bool] | None

    def fits(self, values: Sequence[Any]) -> bool:
        """Return True if all of these can have been written. Of many at once it takes a tenth of the time."""
        return self.types.issuperset(map(type, values)) and (
            self.closer is None or all(map(self.closer, values))
        )


@dataclass(slots=True)
class _Checks:
    """``found_at``: when one found something last; on the monotonic clock, as ``not_before``."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    found_at: float = -math.inf
    not_before: float = 0.0


_lock = threading.Lock()
_checks_of: WeakKeyDictionary[Engine, _Checks] = WeakKeyDictionary()


def after(engine: Engine, error: BaseException, began: float | None = None) -> bool | None:
    """Return True if an error may have come of damaged values and some were set aside: the same may work now.

    False if it came of something else; None if that is not known, because the last check is not long ago. ``began`` is
    when the failed work began, on the monotonic clock; by default two seconds ago.
    """
    if engine.dialect.name != "sqlite" or not (
        is_undecodable(error) or isinstance(error, (CorruptChunk, *SIGNS))
    ):
        return False
    with _lock:
        checks = _checks_of.setdefault(engine, _Checks())
    asked = time.monotonic()
    began = asked - RECENT_SECONDS if began is None else began
    with checks.lock:
        rows: int | None = None
        if checks.found_at < asked and time.monotonic() >= checks.not_before:
            rows = set_aside(engine)
            if rows:
                checks.found_at = time.monotonic()
            else:
                checks.not_before = time.monotonic() + PAUSE_SECONDS
        # Another thread may have come upon the same, and have set it aside since this one read it.
        if began < checks.found_at:
            return True
        return None if rows is None else False


def is_logged(engine: Engine, error: BaseException) -> bool:
    """Return True if the log has the cause of an error: the disk is full, or damaged values were set aside."""
    return disk_space.is_logged(engine, error) or bool(after(engine, error))


def set_aside(engine: Engine) -> int | None:
    """Set aside every damaged value; return how many rows had any, None if that failed. Each is logged and counted."""
    if engine.dialect.name != "sqlite":
        return 0
    names: list[tuple[str, str]] = []
    rows = 0
    try:
        found = {table: _damaged_rows(engine, table) for table in _CHECKS}
        if any(found.values()):
            with writing(engine) as connection:
                for table, row_ids in found.items():
                    rows += _set_aside_rows(connection, table, row_ids, names)
                d = schema.damaged.c
                keep_newest(connection, d.id, d.id, MAX_DAMAGED)
    except (*DATABASE_ERRORS, sqlite3.Error) as error:
        log.error("damaged values could not be set aside: %s", without_content(error))
        return None
    for whose, what in names:
        found_in_row(engine, whose, what)
    return rows


def _damaged_rows(engine: Engine, table: Table) -> list[int]:
    """Return the numbers of the rows that have damaged values. Nobody who writes waits for this."""
    found: list[int] = []
    # The driver's own decoding is fast, and ends at the first text that is not UTF-8.
    for as_text in (str, _text):
        found.clear()
        try:
            with engine.connect() as connection:
                rows = _read(connection, table, as_text)
                while block := list(islice(rows, ROWS_AT_ONCE)):
                    _, *columns = zip(*block, strict=True)
                    fit = (
                        check.fits(values)
                        for check, values in zip(_CHECKS[table], columns, strict=True)
                    )
                    if table in _IN_CONTEXT or not all(fit):
                        found += (row[0] for row in block if _damaged_in(table, row))
            break
        except (*DATABASE_ERRORS, sqlite3.Error) as error:
            if is_damaged(error):
                found_in_row(engine, THE_DATABASE, f"a page of {table.name}")
                break
            if not is_undecodable(error):
                raise
    return found


def _read(
    connection: Connection,
    table: Table,
    as_text: Callable[[bytes], Any],
    row_id: int | None = None,
) -> Iterator[Sequence[Any]]:
    """Yield each row, or one, with its number before its values."""
    driver: Any = connection.connection.driver_connection
    columns = ", ".join(f'"{column.name}"' for column in table.c)
    query = f"SELECT rowid, {columns} FROM {table.name}"
    if row_id is not None:
        query += f" WHERE rowid = {int(row_id)}"
    driver.text_factory = as_text
    try:
        # Past SQLAlchemy, whose rows take as long as all else.
        yield from driver.execute(query)
    finally:
        driver.text_factory = str


def _text(stored: bytes) -> str | _NotText:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return _NotText(stored)


def _damaged_in(table: Table, row: Sequence[Any]) -> list[Column[Any]]:
    """Return the columns whose values cannot be what was written. ``row``: of `_read`."""
    found = [
        column
        for column, check, value in zip(table.c, _CHECKS[table], row[1:], strict=True)
        if not check.fits((value,))
    ]
    if table is settings and not found:
        _, key, value = row
        return _damaged_in_setting(key, value)
    if table is schema.assertions and not found:
        return _damaged_in_assertion(dict(zip(table.c.keys(), row[1:], strict=True)))
    return found


def _damaged_in_assertion(values: Mapping[str, Any]) -> list[Column[Any]]:
    """Return the columns that say what none of its origin does: one table is for several."""
    of = schema.assertions.c
    bounds = [(column, values[column.name]) for column in (of.low, of.high)]
    if values["origin"] != "accepted":
        return [
            column for column, value in bounds if value is not None and not math.isfinite(value)
        ]
    found = [column for column in (of.project, of.run) if values[column.name] is None]
    found += [
        column
        for column, value in bounds
        if value is None or not 0 <= value <= LARGEST_INTEGER or value != int(value)
    ]
    is_count = re.fullmatch(r"type\..+\.count", values["metric"], re.DOTALL)
    return found if is_count else [*found, of.metric]


def _damaged_in_setting(key: str, value: str) -> list[Column[Any]]:
    if key == webhooks.SECRET_KEY:
        return []
    if key == access.PASSWORD_KEY:
        decoder: msgspec.json.Decoder[Any] = _PASSWORD
    elif key.startswith(leases.PREFIX):
        decoder = _LEASE
    elif key.startswith(_TRIALS) and key.removeprefix(_TRIALS).isdecimal():
        decoder = _TRIAL
    else:
        # Of a newer version, unless it is the password under another name.
        return [settings.c.key] if _is_json(_PASSWORD, value) else []
    return [] if _is_json(decoder, value) else [settings.c.value]


def _check_of(column: Column[Any]) -> _Check:
    types: set[type] = {type(None)} if column.nullable else set()
    if isinstance(column.type, Text):
        types.add(str)
    elif isinstance(column.type, Double):
        types.add(float)
    else:
        types.add(bytes if isinstance(column.type, LargeBinary) else int)
    return _Check(frozenset(types), _closer_check(column))


def _closer_check(column: Column[Any]) -> Callable[[Any], bool] | None:
    if column in _SHAPES:
        decoder = msgspec.json.Decoder(_SHAPES[column])
        return lambda value: value is None or _is_json(decoder, value)
    if column is alerts.c.payload:
        return _is_payload
    if column in _KNOWN:
        return frozenset((*_KNOWN[column], None)).__contains__
    if isinstance(column.type, Boolean):
        return frozenset((0, 1, None)).__contains__
    if isinstance(column.type, Double) and column.name.endswith(_TIMES):
        return lambda value: value is None or _FIRST_SECOND <= value <= _LAST_SECOND
    return None


def _is_payload(value: str) -> bool:
    # As it is written and read: not with msgspec.
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def _is_json(decoder: msgspec.json.Decoder[Any], value: str) -> bool:
    try:
        decoder.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _set_aside_rows(
    connection: Connection, table: Table, row_ids: Sequence[int], names: list[tuple[str, str]]
) -> int:
    """Set aside what is damaged in these rows; add what that is to ``names``. The caller commits."""
    done: list[tuple[str, str]] = []
    rows = 0
    try:
        with connection.begin_nested() if row_ids else contextlib.nullcontext():
            if row_ids:
                # An index has what was written, and a row that it does not know cannot be changed.
                connection.exec_driver_sql(f"REINDEX {table.name}")
            for row_id in row_ids:
                for row in list(_read(connection, table, _text, row_id)):
                    columns = _damaged_in(table, row)
                    if columns:
                        done += _set_aside_row(connection, table, row, columns)
                        rows += 1
    except (*DATABASE_ERRORS, sqlite3.Error) as error:
        if is_out_of_space(error):
            raise
        names.append((THE_DATABASE, f"rows of {table.name} that cannot be changed"))
        return 0
    names += done
    return rows


def _set_aside_row(
    connection: Connection,
    table: Table,
    row: Sequence[Any],
    columns: Sequence[Column[Any]],
) -> list[tuple[str, str]]:
    """Return (whose, what) of each damaged value."""
    now = time.time()
    row_id, values = row[0], dict(zip(table.c.keys(), row[1:], strict=True))
    run_id, whose = _owner(connection, table, values)
    is_whole = table in _WHOLE or any(map(_is_key, columns))
    copies = [
        {
            "found_at": now, "run_id": run_id, "table_name": table.name, "row_number": row_id,
            "column_name": column.name, "value": _raw(values[column.name]),
        }
        for column in (table.c if is_whole else columns)
    ]  # fmt: skip
    if is_whole:
        connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE rowid = ?", (row_id,))
        if table is settings and _may_be_password(values["key"], values["value"]):
            query = "INSERT OR IGNORE INTO settings (key, value) VALUES (?, ?)"
            connection.exec_driver_sql(query, (access.PASSWORD_KEY, _NO_PASSWORD))
    else:
        changed = {column.name: _instead(connection, column, values, now) for column in columns}
        changed |= _with_it(table, set(changed), values | changed)
        names = ", ".join(f'"{name}" = ?' for name in changed)
        connection.exec_driver_sql(
            f"UPDATE {table.name} SET {names} WHERE rowid = ?", (*changed.values(), row_id)
        )
    if table is alerts:
        _fail_deliveries(connection, values["id"])
    # After the run, where it is the run that is gone.
    connection.execute(insert(schema.damaged), copies)
    if is_whole:
        return [(whose, f"row {row_id} of {table.name}")]
    if table is runs:
        return [(whose, f"its {column.name}") for column in columns]
    return [(whose, f"{column.name} of row {row_id} of {table.name}") for column in columns]


def _may_be_password(key: Any, value: Any) -> bool:
    """Return True if this damaged setting may have been the password, without which everybody is let in."""
    if isinstance(key, str):
        return key == access.PASSWORD_KEY or _is_json(_PASSWORD, value)
    return not any(isinstance(value, str) and _is_json(each, value) for each in (_LEASE, _TRIAL))


def _owner(
    connection: Connection, table: Table, values: Mapping[str, Any]
) -> tuple[str | None, str]:
    """Return the id of the run that a row belongs to, if that is there, and whose row the log says that it is."""
    found: Any = values.get("run_id")
    if table is runs:
        found = values["id"] if type(values["id"]) is str else None
    elif table is deliveries:
        query = "SELECT run_id FROM alerts WHERE id = ?"
        found = connection.exec_driver_sql(query, (values["alert_id"],)).scalar()
    elif table is schema.delivery_attempts:
        query = (
            "SELECT run_id FROM alerts WHERE id = (SELECT alert_id FROM deliveries WHERE id = ?)"
        )
        found = connection.exec_driver_sql(query, (values["delivery_id"],)).scalar()
    if isinstance(found, str):
        is_there = connection.exec_driver_sql("SELECT 1 FROM runs WHERE id = ?", (found,)).first()
        return (found if is_there else None), run_named(found)
    project = values.get("project")
    if isinstance(project, str) and project.isprintable():
        return None, f"project {project}"
    return None, THE_DATABASE


def _is_key(column: Column[Any]) -> bool:
    return column.primary_key or (bool(column.foreign_keys) and not column.nullable)


def _raw(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _instead(
    connection: Connection, column: Column[Any], values: Mapping[str, Any], now: float
) -> Any:
    """Return what takes the place of a damaged value."""
    if column in _INSTEAD:
        return _INSTEAD[column]
    if column in _NUMBERED:
        return f"damaged-{values['id']}"
    if column is runs.c.revision:
        return _next_revision(connection, values["id"])
    if column is incidents.c.finding:
        return _finding(values)
    if column.nullable:
        return None
    if column.server_default is not None:
        default = str(column.server_default.arg)  # type: ignore[attr-defined]
        if isinstance(column.type, Text):
            return default
        return default == "true" if isinstance(column.type, Boolean) else int(default)
    if isinstance(column.type, Double) and column.name.endswith(_TIMES):
        # Not long ago, after which the run would be removed for its age.
        return now
    return "" if isinstance(column.type, Text) else 0


def _with_it(table: Table, damaged: set[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else of a row changes, because it means nothing without what is ``damaged``."""
    if table is incidents:
        return {
            "summary": f"Stored data of this incident is damaged ({', '.join(sorted(damaged))})."
        }
    if table is runs:
        # The verdict is worked out again: what it rests on is there.
        again = {"examined": 0} if damaged & {"verdict", "status"} else {}
        of_generations = ("first_generation", "last_generation")
        return again | (dict.fromkeys(of_generations) if damaged & {*of_generations} else {})
    if table is processes and damaged & {"end_state", "ended_at"}:
        return {"end_state": None, "ended_at": None}
    if table is deliveries and values["state"] in ("pending", "claimed", "failed"):
        said = "Stored data of this delivery is damaged"
        return {"state": "failed", "claimed_until": None, "last_error": said}
    if table is schema.webhooks and damaged & {"url", "format", "secret", "source", "enabled"}:
        said = "damaged in the database: delete it, and add it again"
        return {"enabled": False, "disabled_reason": said, "source": "api"}
    return {}


def _finding(values: Mapping[str, Any]) -> str:
    """Return a finding that says no more than its incident does."""
    checks = zip(incidents.c, _CHECKS[incidents], strict=True)
    fits = {column.name: check.fits((values[column.name],)) for column, check in checks}
    status: Any = values["status"] if fits["status"] else RESOLVED
    finding = Finding(
        values["fingerprint"] if fits["fingerprint"] else f"damaged-{values['id']}",
        "recovered" if status == RESOLVED else status,
        values["kind"] if fits["kind"] else _INSTEAD[incidents.c.kind],
        values["phase"] if fits["phase"] else None,
        None,
        (),
        Interval(0.0, 0.0, 0.0),
        None,
        0.0,
        ("Stored data of this incident is damaged.",),
    )
    return msgspec.json.encode(to_json(finding)).decode()


def _next_revision(connection: Connection, run_id: str) -> int:
    """Return a revision above that of everything stored of the run: pages read what is newer than theirs."""
    queries = (
        f"SELECT max(revision) FROM {name} WHERE run_id = ?" for name in ("batches", "segments", "details")
    )  # fmt: skip
    found = [connection.exec_driver_sql(query, (run_id,)).scalar() for query in queries]
    return 1 + max((each for each in found if isinstance(each, int)), default=0)


def _fail_deliveries(connection: Connection, alert_id: Any) -> None:
    connection.exec_driver_sql(
        "UPDATE deliveries SET state = 'failed', claimed_until = NULL, last_error = ? "
        "WHERE alert_id = ? AND state IN ('pending', 'claimed')",
        (ALERT_DAMAGED, alert_id),
    )


# The tables that are gone through, with the checks of their columns.
_CHECKS: Final[Mapping[Table, Sequence[_Check]]] = {
    table: [_check_of(column) for column in table.c]
    for table in metadata.sorted_tables
    if table not in PACKED
}
