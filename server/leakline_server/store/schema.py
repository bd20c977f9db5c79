"""All tables. Times are Unix seconds (REAL); JSON is text that we write and read ourselves.

    runs ─┬─ attempts
          ├─ processes ─┬─ batches    one durable row per accepted batch, until it is sealed
          │             ├─ segments   one row per sealed stretch of snapshots of a process
          │             └─ chunks     one row per segment and series (see chunk_codec.py)
          ├─ series                   the names, numbered
          ├─ details                  events, large objects, censuses and holders, packed per batch
          ├─ requests                 what its processes are asked for
          ├─ incidents ── alerts ── deliveries ── delivery_attempts
          ├─ assertion_states         the last result of a rule for the run
          ├─ sizes                    how large it is
          └─ deletions                since when people want it gone
    acknowledgements, assertions, webhooks, settings
    tokens ── sessions                what programs show to be let in; people who are signed in
    removals                          runs that are gone, until their last row is
    intake                            what a project has taken in on a day
    damaged                           values that could not be read, as they were found (quarantine.py)

Samples never have rows of their own: a row per sample costs ten to a hundred times a packed batch. The chunk
table is an ordinary table with a unique index, not one ordered by its key: chunks of many series arrive
interleaved and would leave such a table's pages half empty.

Everything that grows with a run begins its key with the run, and what is numbered in it (processes, series) is
numbered within the run: so a database may keep the rows of one run together, on a partition or on a machine. Every
question about them names the run. Batches, segments, chunks and details name their process without a foreign
key, which would be looked up for each row; a run is deleted by `run_deletion.py`, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    text,
)

# Batch mode of Alembic needs every constraint to have a name.
NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=NAMING)
# The sequence numbers of a process are cut at multiples of it. No batch, no full segment and no packed row of details
# reaches across, so that charts of any width find whole segments, and a full block becomes a compacted segment in one
# step. Databases of older versions hold batches that do; what they are sealed into is cut by compaction.
BLOCK: Final = 4_096


def edge(sequence: int) -> int:
    """Return the first sequence number of the next block."""
    return (sequence // BLOCK + 1) * BLOCK


def divided(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each block that has some from ``low`` to ``high``."""
    while low <= high:
        yield low, min(high, edge(low) - 1)
        low = edge(low)


# Of a run; a silent one may come back.
ENDED: Final = ("finished", "failed", "interrupted", "killed")
STATES: Final = ("running", "silent", *ENDED)


class NoSuchRun(LookupError):
    """Its text is the id."""


class Key(NamedTuple):
    """A process: the run it belongs to, and its number in it."""

    run_id: str
    process_id: int


def of(table: Table, key: Key) -> ColumnElement[bool]:
    """Return the condition for the rows of this process."""
    return and_(table.c.run_id == key.run_id, table.c.process_id == key.process_id)


def mine(table: Table) -> ColumnElement[bool]:
    """Return the same for a statement that is made once, and given a key as its ``run_id`` and ``process_id``."""
    return and_(
        table.c.run_id == bindparam("run_id"), table.c.process_id == bindparam("process_id")
    )


# SQLite numbers rows by itself only when the column is exactly INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _json(name: str, empty: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=empty)


def _of_run() -> Column[str]:
    return Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)


def _of_process() -> tuple[Column[str], Column[int]]:
    return (
        Column("run_id", Text, primary_key=True),
        Column("process_id", BigInteger, primary_key=True, autoincrement=False),
    )


# A leak is urgent while its run lives. As text, so that the index of this expression is used.
URGENCY: Final = "CASE WHEN state IN ('running', 'silent') THEN severity ELSE 0 END"

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("total", BigInteger),
    _json("tags", "[]"),
    _json("phases", "[]"),
    _json("phases_seen", "[]"),
    _json("config", "{}"),
    _json("environment", "{}"),
    _json("notes", "[]"),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("started_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("ended_at", Double),
    # The end is concluded from silence, not said by anybody.
    Column("end_inferred", Boolean, nullable=False, server_default=text("false")),
    # Counts every change of the run; the id of live messages.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    # Counts the transactions that brought batches.
    Column("stored", BigInteger, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("first_generation", BigInteger),
    Column("last_generation", BigInteger),
    Column("rss_bytes", BigInteger),
    Column("peak_bytes", BigInteger),
    _json("sparkline", "{}"),
    Column("verdict", Text),
    Column("verdict_revision", BigInteger, nullable=False, server_default="0"),
    # The revision that the last examination saw, its own verdict included.
    Column("examined", BigInteger, nullable=False, server_default="0"),
    Column("status", Text, nullable=False, server_default="learning"),
    # Of the verdict, written with it: bytes a generation, and when memory runs out.
    Column("growth_bytes", Double),
    Column("oom_at", Double),
    # 3 critical, 2 major, 1 minor, 0 no leak and no risk.
    Column("severity", Integer, nullable=False, server_default="0"),
    # The list of runs: newest first, in one project or in all.
    Index("ix_runs_started_at", "started_at", "id"),
    Index("ix_runs_project", "project", "started_at", "id"),
    # The same in its other orders (run_order.py).
    Index("ix_runs_last_seen_at", "last_seen_at", "id"),
    Index("ix_runs_name", "name", "id"),
    Index("ix_runs_growth_bytes", "growth_bytes", "id"),
    Index("ix_runs_rss_bytes", "rss_bytes", "id"),
    Index("ix_runs_oom_at", "oom_at", "id"),
    # How many have each verdict status, without their long rows.
    Index("ix_runs_status", "status", "id"),
    Index("ix_runs_urgency", text(f"({URGENCY})"), "started_at", "id"),
    # The examiner's watch for runs that fell silent.
    Index("ix_runs_state", "state", "last_seen_at"),
)

attempts = Table(
    "attempts",
    metadata,
    _of_run(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("started_at", Double, nullable=False),
    _json("environment", "{}"),
)

processes = Table(
    "processes",
    metadata,
    _of_run(),
    # Within the run, from 1.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("instance", Text, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("end_state", Text),
    Column("end_reason", Text, nullable=False, server_default=""),
    Column("end_inferred", Boolean, nullable=False, server_default=text("false")),
    # Server clock minus client clock at the first batch; more than a few seconds is worth a look.
    Column("clock_skew_seconds", Double),
    Column("rss_bytes", BigInteger),
    Column("peak_bytes", BigInteger),
    _json("lost", "{}"),
    # The number of its run when batches of it came last: who remembers a smaller one has not seen them all.
    Column("stored", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("run_id", "instance"),
)

series = Table(
    "series",
    metadata,
    _of_run(),
    # Within the run, from 1.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("run_id", "name"),
)

batches = Table(
    "batches",
    metadata,
    *_of_process(),
    # The same number twice is the same batch, whatever the process in front of the database believes.
    Column("first_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("received_at", Double, nullable=False),
    # As incoming_batch.py describes.
    Column("body", LargeBinary, nullable=False),
    # Live pages: what came after revision N.
    Index("ix_batches_run_id", "run_id", "revision"),
)

segments = Table(
    "segments",
    metadata,
    *_of_process(),
    Column("first_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # 0 to be compacted, 1 compacted (or sealed so).
    Column("level", SmallInteger, nullable=False, server_default="0"),
    # Some of what was sealed has been left out since: what is missing was here.
    Column("thinned", Boolean, nullable=False, server_default=text("false")),
    # Of its chunks, packed.
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_segments_run_id", "run_id", "revision"),
    # What is to be compacted.
    Index(
        "ix_segments_level",
        "run_id",
        "process_id",
        "count",
        sqlite_where=text("level = 0"),
        postgresql_where=text("level = 0"),
    ),
)

chunks = Table(
    "chunks",
    metadata,
    *_of_process(),
    # The numbers below zero are the columns every snapshot has (columns.py).
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("first_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    # How many of the entries are there, and the numbers of those.
    Column("present", Integer, nullable=False),
    Column("first", Double),
    Column("last", Double),
    Column("min", Double),
    Column("max", Double),
    Column("width", SmallInteger, nullable=False),
    Column("blob", LargeBinary, nullable=False),
    # Of a compacted chunk of numbers, the same of each of its pieces (summaries.py).
    Column("pieces", LargeBinary),
)

details = Table(
    "details",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),  # events, large_objects, census, holders, log
    Column("process_id", BigInteger, primary_key=True, autoincrement=False),
    # Of the first that is packed in the row.
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("generation", BigInteger),
    Column("revision", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # The newest of a kind at or before a generation.
    Index("ix_details_run_id", "run_id", "kind", "generation"),
)

requests = Table(
    "requests",
    metadata,
    # The same thing asked twice is one request.
    _of_run(),
    Column("kind", Text, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("by_person", Boolean, nullable=False),
    Column("asked_at", Double, nullable=False),
    # Of the run, when the examiner last asked for it.
    Column("generation", BigInteger),
    Column("answered", Boolean, nullable=False, server_default=text("false")),
    # What still waits.
    Index("ix_requests_answered", "answered", "asked_at"),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("phase", Text),
    Column("summary", Text, nullable=False),
    Column("first_seen_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("finding", Text, nullable=False),
    UniqueConstraint("run_id", "fingerprint"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("incident_id", ForeignKey("incidents.id", ondelete="CASCADE")),
    # What it is about where that is no incident: "oom", "run", "rule 5".
    Column("subject", Text, nullable=False, server_default=""),
    Column("event", Text, nullable=False),
    # The order within a run: clocks are set back, and those of two servers differ.
    Column("number", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Double, nullable=False),
    Column("payload", Text, nullable=False),
    Column("urgent", Boolean, nullable=False, server_default=text("true")),
    # After this it is of no use to anybody, such as a forecast whose time has come.
    Column("expires_at", Double),
    # Of a digest: nothing more of its kind is sent until then.
    Column("quiet_until", Double),
    # Alerts of a run, and the newest.
    Index("ix_alerts_run_id", "run_id", "created_at"),
    # Those of an incident, which go with it.
    Index("ix_alerts_incident_id", "incident_id"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False, server_default=""),
    Column("url", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("secret", Text, nullable=False),
    # After a rotation both secrets sign, until then.
    Column("previous_secret", Text),
    Column("previous_until", Double),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("source", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("disabled_reason", Text),
    # Attempts since the last one that arrived, and when the first of them failed.
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("failing_since", Double),
)

acknowledgements = Table(
    "acknowledgements",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    # Of a leak in a project, over all its runs.
    Column("project", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("kind", Text, nullable=False),  # acknowledged, ignored, closed
    Column("reason", Text, nullable=False),
    # How bad it was then: what is worse is sent all the same.
    Column("status", Text, nullable=False),
    Column("priority", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    # Taken back before it expired.
    Column("ended_at", Double),
    Index("ix_acknowledgements_project", "project", "fingerprint"),
)

assertions = Table(
    "assertions",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("origin", Text, nullable=False),  # rule, accepted
    Column("name", Text, nullable=False, server_default=""),
    # The runs it applies to: a rule without a project applies to all, one with a run (id or name) to that one. Of an
    # accepted count, the run on whose page it was accepted. No foreign key: it outlives that run.
    Column("project", Text),
    Column("run", Text),
    # A series, such as type.app.Env.count; empty for forecasts.
    Column("metric", Text, nullable=False),
    Column("measure", Text, nullable=False, server_default="value"),  # value, rate, forecast
    # The phase at whose end a count is checked; null at every reading.
    Column("scope", Text),
    # The bounds, included.
    Column("low", Double),
    Column("high", Double),
    # Generations in a row before a rule fires, and before it is over.
    Column("hold", Integer, nullable=False, server_default="1"),
    Column("grace", Integer, nullable=False, server_default="1"),
    # What to do when it fires.
    Column("advice", Text, nullable=False, server_default=""),
    Column("source", Text, nullable=False),  # api, page, file
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("created_at", Double, nullable=False),
    # When an accepted count was taken back, or replaced.
    Column("ended_at", Double),
    Index("ix_assertions_project", "project", "metric"),
)

assertion_states = Table(
    "assertion_states",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("assertion_id", ForeignKey("assertions.id", ondelete="CASCADE"), nullable=False),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("firing", Boolean, nullable=False),
    # Where that changed last, and the reading there.
    Column("generation", BigInteger),
    Column("value", Double),
    # Of a forecast, which no history gives again: since when it says the opposite.
    Column("since", BigInteger),
    Column("changed_at", Double, nullable=False),
    UniqueConstraint("assertion_id", "run_id"),
    Index("ix_assertion_states_run_id", "run_id"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("alert_id", ForeignKey("alerts.id", ondelete="CASCADE"), nullable=False),
    Column("webhook_id", ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("claimed_until", Double),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("last_status", Integer),
    Column("last_error", Text),
    Column("delivered_at", Double),
    # The next one due.
    Index("ix_deliveries_state", "state", "due_at"),
    UniqueConstraint("alert_id", "webhook_id"),
)

delivery_attempts = Table(
    "delivery_attempts",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("delivery_id", ForeignKey("deliveries.id", ondelete="CASCADE"), nullable=False),
    Column("started_at", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("status", Integer),
    Column("error", Text),
    Index("ix_delivery_attempts_delivery_id", "delivery_id"),
)

sizes = Table(
    "sizes",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    # Of everything that is packed in rows of the run.
    Column("bytes", BigInteger, nullable=False),
    # When that was counted, and the revision the run had.
    Column("measured_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # The revision at which nothing was left to thin.
    Column("thinned", BigInteger),
)

deletions = Table(
    "deletions",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    # The same for all that were deleted in one go.
    Column("deleted_at", Double, nullable=False),
)

removals = Table(
    "removals",
    metadata,
    # No foreign key: the run is gone, and one with its id may have begun again.
    Column("run_id", Text, primary_key=True),
    # Its processes had numbers up to this one. Those of a run with its id have higher ones.
    Column("processes", BigInteger, nullable=False),
    Column("requested_at", Double, nullable=False),
    # When nothing of it was found any more; what was on its way then is looked for once again.
    Column("swept_at", Double),
)

intake = Table(
    "intake",
    metadata,
    Column("project", Text, primary_key=True),
    # Of UTC, since 1970.
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("runs", BigInteger, nullable=False),
    # As they are packed in rows.
    Column("bytes", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),
    Column("scope", Text, nullable=False),  # ingest, read, admin, share
    # The only one an ingest token adds to.
    Column("project", Text),
    # Of pages of other origins, which accept no other.
    Column("browser", Boolean, nullable=False),
    # The first characters, by which people recognise it.
    Column("prefix", Text, nullable=False),
    # SHA-256 of the token, which is nowhere else.
    Column("digest", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    # The only one that a share token opens.
    Column("run_id", Text),
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    # Signed in with this token; with the password where there is none.
    Column("token_id", ForeignKey("tokens.id", ondelete="CASCADE")),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_sessions_token_id", "token_id"),
    Index("ix_sessions_expires_at", "expires_at"),
)

settings = Table(
    "settings",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

damaged = Table(
    "damaged",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("found_at", Double, nullable=False),
    # Null where the value is of no run, or of one that is gone.
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE")),
    Column("table_name", Text, nullable=False),
    # SQLite's own number of the row.
    Column("row_number", BigInteger, nullable=False),
    Column("column_name", Text, nullable=False),
    # As it was found; numbers as text.
    Column("value", LargeBinary),
    Index("ix_damaged_run_id", "run_id"),
)
