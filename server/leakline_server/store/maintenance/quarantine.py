"""Moving damaged values of an SQLite database to the table ``damaged``.

SQLite can store any value in any column, and a single invalid value breaks every query that returns its row. So each
invalid value is copied unchanged, named in the log, and replaced by a default, so that readers need not expect invalid
values. This is done when a server starts and after a read has failed. Packed snapshots have checksums, which are
verified when they are read. Postgres checks types and encoding itself.
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
# The minimum time between a check that found nothing and the next check.
PAUSE_SECONDS: Final = 10.0
# An operation that fails within this time after damage was found may have read the values before they were replaced.
RECENT_SECONDS: Final = 2.0
ROWS_AT_ONCE: Final = 500

# Tables that are not checked here: they are too large, and damage in them is detected when they are read.
PACKED: Final = frozenset({schema.batches, schema.chunks, schema.details, schema.segments})
# Tables whose rows are moved entirely, because the rest of a damaged row would be meaningless: acknowledgements and
# rules, credentials and sessions, and counts that are computed again.
_WHOLE: Final = frozenset({
    schema.acknowledgements, schema.assertions, schema.assertion_states, schema.requests, settings,
    schema.tokens, schema.sessions, schema.intake, schema.sizes, schema.damaged,
})  # fmt: skip
# Tables in which the valid values of a column depend on another column: a setting's key, an assertion's origin.
_IN_CONTEXT: Final = frozenset({settings, schema.assertions})
# Validates the members of an object without decoding them.
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
# The range of years 1 to 9999, which `datetime` supports.
_FIRST_SECOND: Final = -62_135_596_800.0
_LAST_SECOND: Final = 253_402_300_799.0

ALERT_DAMAGED: Final = "Some of the data stored for this alert is damaged"
_PAYLOAD: Final = {"title": ALERT_DAMAGED, "summary": f"{ALERT_DAMAGED}.", "when": {}}
# Replacement values for columns whose default could not be displayed.
_INSTEAD: Final[Mapping[Column[Any], Any]] = {
    # This state triggers no alerts, and the run can be deleted.
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
# Columns whose values must be unique within the run.
_NUMBERED: Final = frozenset({schema.series.c.name, processes.c.instance, incidents.c.fingerprint})
# Replaces a damaged password: nobody can sign in with a password until a new password is set.
_NO_PASSWORD: Final = '{"hash":"","source":"command"}'
# Decoders for the settings, which are identified by their keys or key prefixes.
_LEASE: Final = msgspec.json.Decoder(leases.Lease)
_TRIAL: Final = msgspec.json.Decoder(webhooks.Trial)
_PASSWORD: Final = msgspec.json.Decoder(access.StoredPassword)
_TRIALS: Final = webhooks.TRIAL_KEY.format("")

# The exceptions, besides CorruptChunk, that reading a damaged value may raise.
SIGNS: Final = (
    msgspec.MsgspecError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError,
)  # fmt: skip


log = logging.getLogger("leakline")


class _NotText(bytes):
    """A value that is stored as text but is not UTF-8."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A check of a column: the valid types, and an additional check of each value (``closer``) or None."""

    types: frozenset[type]
    closer: Callable[[Any], bool] | None

    def fits(self, values: Sequence[Any]) -> bool:
        """Return True if all of these values are valid. Checking many values in one call takes a tenth of the time."""
        return self.types.issuperset(map(type, values)) and (
            self.closer is None or all(map(self.closer, values))
        )


@dataclass(slots=True)
class _Checks:
    """The state of one database's checks.

    ``found_at``: when a check last found damage. ``not_before``: when the next check may run. Both times are monotonic.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    found_at: float = -math.inf
    not_before: float = 0.0


_lock = threading.Lock()
_checks_of: WeakKeyDictionary[Engine, _Checks] = WeakKeyDictionary()


def after(engine: Engine, error: BaseException, began: float | None = None) -> bool | None:
    """Check for damaged values after an error. Return True if values were moved, so that a retry may succeed.

    Return False if the error has another cause, and None if the cause is unknown, because the last check was too recent
    or this check failed. ``began`` is the monotonic time at which the failed operation began; by default two seconds
    ago.
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
        # Another thread may have moved the same values after this thread had read them.
        if began < checks.found_at:
            return True
        return None if rows is None else False


def is_logged(engine: Engine, error: BaseException) -> bool:
    """Return True if the cause of an error was logged: the disk is full, or damaged values were moved."""
    return disk_space.is_logged(engine, error) or bool(after(engine, error))


def set_aside(engine: Engine) -> int | None:
    """Move, log and count all damaged values; return the number of affected rows, or None if moving them failed."""
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
        log.error("damaged values could not be moved to quarantine: %s", without_content(error))
        return None
    for whose, what in names:
        found_in_row(engine, whose, what)
    return rows


def _damaged_rows(engine: Engine, table: Table) -> list[int]:
    """Return the rowids of the rows with damaged values. Writers are not blocked."""
    found: list[int] = []
    # The driver's own decoding is fast but fails at the first text that is not UTF-8, so it is tried first.
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
    """Yield all rows, or only the row with ``row_id``, as (rowid, *values)."""
    driver: Any = connection.connection.driver_connection
    columns = ", ".join(f'"{column.name}"' for column in table.c)
    query = f"SELECT rowid, {columns} FROM {table.name}"
    if row_id is not None:
        query += f" WHERE rowid = {int(row_id)}"
    driver.text_factory = as_text
    try:
        # Bypass SQLAlchemy, whose row objects would double the time.
        yield from driver.execute(query)
    finally:
        driver.text_factory = str


def _text(stored: bytes) -> str | _NotText:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return _NotText(stored)


def _damaged_in(table: Table, row: Sequence[Any]) -> list[Column[Any]]:
    """Return the columns with damaged values; ``row`` is from `_read`."""
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
    """Return the columns with values that are invalid for an assertion of this origin."""
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
        # An unknown key may be from a newer version, unless the value shows that this is the password with a damaged
        # key.
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
    # Payloads are written and read with json, not with msgspec.
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
    """Move the damaged values of these rows, and add (whose, what) for each loss to ``names``. The caller commits."""
    done: list[tuple[str, str]] = []
    rows = 0
    try:
        with connection.begin_nested() if row_ids else contextlib.nullcontext():
            if row_ids:
                # An index may still have the original value, and SQLite cannot change a row that its index lacks.
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
        names.append(
            (THE_DATABASE, f"damaged rows of {table.name}, which could not be moved to quarantine,")
        )
        return 0
    names += done
    return rows


def _set_aside_row(
    connection: Connection,
    table: Table,
    row: Sequence[Any],
    columns: Sequence[Column[Any]],
) -> list[tuple[str, str]]:
    """Move the damaged values of one row, and return (whose, what) for each loss."""
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
    # Insert the copies after the deletion, so that deleting a run cannot cascade to them.
    connection.execute(insert(schema.damaged), copies)
    if is_whole:
        return [(whose, f"row {row_id} of {table.name}")]
    if table is runs:
        return [(whose, f"its {column.name}") for column in columns]
    return [(whose, f"{column.name} of row {row_id} of {table.name}") for column in columns]


def _may_be_password(key: Any, value: Any) -> bool:
    """Return True if this damaged setting may be the password. Without a password, everyone would have access."""
    if isinstance(key, str):
        return key == access.PASSWORD_KEY or _is_json(_PASSWORD, value)
    return not any(isinstance(value, str) and _is_json(each, value) for each in (_LEASE, _TRIAL))


def _owner(
    connection: Connection, table: Table, values: Mapping[str, Any]
) -> tuple[str | None, str]:
    """Return (run id, owner to name in the log) for a row. The run id is None if the row has no existing run."""
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
    """Return the replacement for a damaged value."""
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
        # An old time could make retention remove the run because of its age.
        return now
    return "" if isinstance(column.type, Text) else 0


def _with_it(table: Table, damaged: set[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values for columns that depend on the ``damaged`` columns."""
    if table is incidents:
        return {
            "summary": f"Some of the data stored for this incident is damaged ({', '.join(sorted(damaged))})."
        }
    if table is runs:
        # The verdict can be computed again from the stored snapshots.
        again = {"examined": 0} if damaged & {"verdict", "status"} else {}
        of_generations = ("first_generation", "last_generation")
        return again | (dict.fromkeys(of_generations) if damaged & {*of_generations} else {})
    if table is processes and damaged & {"end_state", "ended_at"}:
        return {"end_state": None, "ended_at": None}
    if table is deliveries and values["state"] in ("pending", "claimed", "failed"):
        said = "Some of the data stored for this delivery is damaged"
        return {"state": "failed", "claimed_until": None, "last_error": said}
    if table is schema.webhooks and damaged & {"url", "format", "secret", "source", "enabled"}:
        said = "its stored data is damaged: delete the webhook and add it again"
        return {"enabled": False, "disabled_reason": said, "source": "api"}
    return {}


def _finding(values: Mapping[str, Any]) -> str:
    """Build a finding only from its incident's row, and return it as JSON."""
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
        ("Some of the data stored for this incident is damaged.",),
    )
    return msgspec.json.encode(to_json(finding)).decode()


def _next_revision(connection: Connection, run_id: str) -> int:
    """Return a revision above the run's stored revisions, because a page reads only data newer than its revision."""
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


# The tables to check, with a check for each of their columns.
_CHECKS: Final[Mapping[Table, Sequence[_Check]]] = {
    table: [_check_of(column) for column in table.c]
    for table in metadata.sorted_tables
    if table not in PACKED
}
