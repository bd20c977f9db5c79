"""All tables. Times are Unix seconds (REAL); JSON is stored as text and is encoded and decoded by the callers.

    runs ─┬─ attempts
          ├─ processes ─┬─ batches    one durable row per accepted batch, until it is sealed
          │             ├─ segments   one row per sealed range of snapshots of a process
          │             └─ chunks     one row per segment and series (see chunk_codec.py)
          ├─ series                   series names and their ids
          ├─ details                  events, large objects, censuses and holders, packed per batch
          ├─ requests                 requests to the run's processes
          ├─ incidents ── alerts ── deliveries ── delivery_attempts
          ├─ assertion_states         the last result of a rule for the run
          ├─ sizes                    the stored size of the run
          └─ deletions                soft-deleted runs
    acknowledgements, assertions, webhooks, settings
    tokens ── sessions                API tokens; signed-in browsers
    removals                          runs being purged, until their last row is gone
    intake                            runs and bytes accepted for each project and day
    damaged                           original values that were invalid (quarantine.py)

Single values never have rows of their own: a row per value costs ten to a hundred times as much as a packed batch. The
chunk table is an ordinary table with a unique index, not a table clustered by its key: chunks of many series arrive
interleaved and would leave the pages of a clustered table half empty.

The keys of all tables that grow with a run begin with the run, and processes and series are numbered within the run,
so that a database may keep the rows of one run together, on a partition or on a machine. Every query on these tables
names the run. Batches, segments, chunks and details refer to their process without a foreign key, which would be
checked for each row; `run_deletion.py` deletes a run a few rows at a time.
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

# Alembic's batch mode needs every constraint to have a name.
NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=NAMING)
# The sequence numbers of a process are divided into blocks of this size. No batch, full segment or packed row of
# details crosses a block boundary, so that charts of any width find complete segments and a full block becomes a
# compacted segment in one step. Databases of older versions hold batches that cross a boundary; compaction splits the
# segments into which these batches are sealed.
BLOCK: Final = 4_096


def edge(sequence: int) -> int:
    """Return the first sequence number of the next block."""
    return (sequence // BLOCK + 1) * BLOCK


def divided(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Split the range ``low`` to ``high`` at block boundaries, and yield the first and last number of each part."""
    while low <= high:
        yield low, min(high, edge(low) - 1)
        low = edge(low)


# States of a run. A silent run may resume, so it has not ended.
ENDED: Final = ("finished", "failed", "interrupted", "killed")
STATES: Final = ("running", "silent", *ENDED)


class NoSuchRun(LookupError):
    """Raised for an unknown run; the text is the run's id."""


class Key(NamedTuple):
    """The key of a process: its run, and its number within the run."""

    run_id: str
    process_id: int


def of(table: Table, key: Key) -> ColumnElement[bool]:
    """Return the condition that selects the rows of this process."""
    return and_(table.c.run_id == key.run_id, table.c.process_id == key.process_id)


def mine(table: Table) -> ColumnElement[bool]:
    """Like `of`, but with bound parameters ``run_id`` and ``process_id``, so that the statement can be reused."""
    return and_(
        table.c.run_id == bindparam("run_id"), table.c.process_id == bindparam("process_id")
    )


# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
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


# A leak is urgent only until its run ends. The expression is text, so that queries use exactly the index's expression.
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
    # True if the end was inferred rather than reported by the process.
    Column("end_inferred", Boolean, nullable=False, server_default=text("false")),
    # Incremented by every change to the run; also used as the id of live messages.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    # The number of transactions that stored batches of the run.
    Column("stored", BigInteger, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("first_generation", BigInteger),
    Column("last_generation", BigInteger),
    Column("rss_bytes", BigInteger),
    Column("peak_bytes", BigInteger),
    _json("sparkline", "{}"),
    Column("verdict", Text),
    Column("verdict_revision", BigInteger, nullable=False, server_default="0"),
    # The revision that was examined last; the revision made by writing the verdict counts as examined.
    Column("examined", BigInteger, nullable=False, server_default="0"),
    Column("status", Text, nullable=False, server_default="learning"),
    # Copied from the verdict: growth in bytes per generation, and when memory is predicted to run out.
    Column("growth_bytes", Double),
    Column("oom_at", Double),
    # 3 = critical, 2 = major, 1 = minor, 0 = neither a leak nor a risk.
    Column("severity", Integer, nullable=False, server_default="0"),
    # For the list of runs of one project or of all projects, newest first.
    Index("ix_runs_started_at", "started_at", "id"),
    Index("ix_runs_project", "project", "started_at", "id"),
    # For the other orders of the list of runs (run_order.py).
    Index("ix_runs_last_seen_at", "last_seen_at", "id"),
    Index("ix_runs_name", "name", "id"),
    Index("ix_runs_growth_bytes", "growth_bytes", "id"),
    Index("ix_runs_rss_bytes", "rss_bytes", "id"),
    Index("ix_runs_oom_at", "oom_at", "id"),
    # For counting runs by verdict status without reading the long rows of the table.
    Index("ix_runs_status", "status", "id"),
    Index("ix_runs_urgency", text(f"({URGENCY})"), "started_at", "id"),
    # For finding runs that fell silent.
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
    # Unique within the run, counted from 1.
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
    # Server time minus client time when first measured; a skew of more than a few seconds should be investigated.
    Column("clock_skew_seconds", Double),
    Column("rss_bytes", BigInteger),
    Column("peak_bytes", BigInteger),
    _json("lost", "{}"),
    # The run's `stored` when this process's batches were last stored. A cache with a smaller number is outdated.
    Column("stored", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("run_id", "instance"),
)

series = Table(
    "series",
    metadata,
    _of_run(),
    # Unique within the run, counted from 1.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("run_id", "name"),
)

batches = Table(
    "batches",
    metadata,
    *_of_process(),
    # Rejects duplicate batches in the database itself, even if the server's duplicate detection fails.
    Column("first_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("received_at", Double, nullable=False),
    # The format is described in incoming_batch.py.
    Column("body", LargeBinary, nullable=False),
    # For live pages, which read everything after a revision.
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
    # 0 = to be compacted, 1 = compacted or sealed in compacted form.
    Column("level", SmallInteger, nullable=False, server_default="0"),
    # True if snapshots of this segment were dropped on purpose: its missing sequence numbers count as stored.
    Column("thinned", Boolean, nullable=False, server_default=text("false")),
    # The packed size of its chunks.
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Index("ix_segments_run_id", "run_id", "revision"),
    # For finding segments to compact.
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
    # Negative ids are the columns that every snapshot has (columns.py).
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("first_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    # The number of non-null entries, and the first, last, smallest and largest non-null entry.
    Column("present", Integer, nullable=False),
    Column("first", Double),
    Column("last", Double),
    Column("min", Double),
    Column("max", Double),
    Column("width", SmallInteger, nullable=False),
    Column("blob", LargeBinary, nullable=False),
    # For a compacted chunk of numbers, the same statistics for each of its pieces (summaries.py).
    Column("pieces", LargeBinary),
)

details = Table(
    "details",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),  # events, large_objects, census, holders, log
    Column("process_id", BigInteger, primary_key=True, autoincrement=False),
    # The sequence number of the first entry in the row.
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("generation", BigInteger),
    Column("revision", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # For finding the newest entry of a kind at or before a generation.
    Index("ix_details_run_id", "run_id", "kind", "generation"),
)

requests = Table(
    "requests",
    metadata,
    # Identical requests share one row.
    _of_run(),
    Column("kind", Text, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("by_person", Boolean, nullable=False),
    Column("asked_at", Double, nullable=False),
    # The run's generation when the examiner last made this request.
    Column("generation", BigInteger),
    Column("answered", Boolean, nullable=False, server_default=text("false")),
    # For finding pending requests.
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
    # The subject of an alert without an incident, for example "oom", "run" or "rule 5".
    Column("subject", Text, nullable=False, server_default=""),
    Column("event", Text, nullable=False),
    # The order within a run. It cannot be derived from times, because clocks may be set back and may differ between
    # servers.
    Column("number", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Double, nullable=False),
    Column("payload", Text, nullable=False),
    Column("urgent", Boolean, nullable=False, server_default=text("true")),
    # After this time the alert is no longer useful, for example because it forecasts an event at that time.
    Column("expires_at", Double),
    # Set for a digest: no other alert of its kind is sent before this time.
    Column("quiet_until", Double),
    # For listing the alerts of a run and finding the newest alert.
    Index("ix_alerts_run_id", "run_id", "created_at"),
    # For deleting an incident's alerts together with the incident.
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
    # After a rotation, deliveries are also signed with the previous secret until `previous_until`.
    Column("previous_secret", Text),
    Column("previous_until", Double),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("source", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("disabled_reason", Text),
    # The number of failed attempts since the last success, and the time of the first failed attempt.
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("failing_since", Double),
)

acknowledgements = Table(
    "acknowledgements",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    # These two columns identify the leak in all runs of the project.
    Column("project", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("kind", Text, nullable=False),  # acknowledged, ignored, closed
    Column("reason", Text, nullable=False),
    # The leak's status and priority when it was acknowledged. If either becomes worse, an alert is still sent.
    Column("status", Text, nullable=False),
    Column("priority", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    # Set when the acknowledgement is withdrawn or replaced before it expires.
    Column("ended_at", Double),
    Index("ix_acknowledgements_project", "project", "fingerprint"),
)

assertions = Table(
    "assertions",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("origin", Text, nullable=False),  # rule, accepted
    Column("name", Text, nullable=False, server_default=""),
    # The scope of a rule: all projects if ``project`` is null, all runs if ``run`` (an id or a name) is null. For an
    # accepted count, ``run`` is the run on whose page it was accepted; it is not a foreign key, because the row
    # outlives that run.
    Column("project", Text),
    Column("run", Text),
    # The name of a series, for example type.app.Env.count; empty for forecasts.
    Column("metric", Text, nullable=False),
    Column("measure", Text, nullable=False, server_default="value"),  # value, rate, forecast
    # The phase at whose end a count is checked; null checks every reading.
    Column("scope", Text),
    # The inclusive bounds.
    Column("low", Double),
    Column("high", Double),
    # The numbers of consecutive generations after which a rule fires, and after which it resolves.
    Column("hold", Integer, nullable=False, server_default="1"),
    Column("grace", Integer, nullable=False, server_default="1"),
    # Advice to the person who is alerted when the rule fires.
    Column("advice", Text, nullable=False, server_default=""),
    Column("source", Text, nullable=False),  # api, page, file
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("created_at", Double, nullable=False),
    # The time at which an accepted count was withdrawn or replaced.
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
    # The generation at which `firing` last changed, and the value at that generation.
    Column("generation", BigInteger),
    Column("value", Double),
    # For forecasts, which cannot be recomputed from the history: the generation since which the forecast has
    # contradicted `firing`.
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
    # For finding the next delivery that is due.
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
    # The size of all packed data of the run.
    Column("bytes", BigInteger, nullable=False),
    # When the size was measured, and the revision of the run at that time.
    Column("measured_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # The revision at which no snapshots were left to thin out.
    Column("thinned", BigInteger),
)

deletions = Table(
    "deletions",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    # Equal for all runs that were deleted together.
    Column("deleted_at", Double, nullable=False),
)

removals = Table(
    "removals",
    metadata,
    # Not a foreign key: the run no longer exists, and a new run may have the same id.
    Column("run_id", Text, primary_key=True),
    # The highest process number of the removed run; a new run with the same id uses higher numbers.
    Column("processes", BigInteger, nullable=False),
    Column("requested_at", Double, nullable=False),
    # The time when no rows were left. One more pass follows, for rows that were being written when the run was removed.
    Column("swept_at", Double),
)

intake = Table(
    "intake",
    metadata,
    Column("project", Text, primary_key=True),
    # The UTC day, counted from 1970-01-01.
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("runs", BigInteger, nullable=False),
    # The size of the stored rows in their packed form.
    Column("bytes", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),
    Column("scope", Text, nullable=False),  # ingest, read, admin, share
    # The only project that the token may write to; null for all projects.
    Column("project", Text),
    # True for tokens for web pages from other origins; such pages may not use any other tokens.
    Column("browser", Boolean, nullable=False),
    # The first characters of the token, by which users recognise it.
    Column("prefix", Text, nullable=False),
    # The SHA-256 of the token; the token itself is not stored.
    Column("digest", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    # The only run that a share token opens.
    Column("run_id", Text),
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    # The token used to sign in; null for the password.
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
    # Null if the value does not belong to a run, or if its run no longer exists.
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE")),
    Column("table_name", Text, nullable=False),
    # SQLite's rowid.
    Column("row_number", BigInteger, nullable=False),
    Column("column_name", Text, nullable=False),
    # The original value; numbers are stored as text.
    Column("value", LargeBinary),
    Index("ix_damaged_run_id", "run_id"),
)
