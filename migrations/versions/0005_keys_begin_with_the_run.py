"""Make the run the first key column of all tables that grow with a run; add segment levels and rollups.

Processes and series keep their numbers, which are unique in the entire database and so also within each run; new
processes and series are numbered within their run.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005_keys_begin_with_the_run"
down_revision = "0004_ends_of_processes"
branch_labels = None
depends_on = None

# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FALSE = sa.text("false")

_RUN = ("run_id",)
_PROCESS = ("run_id", "process_id")


def upgrade() -> None:
    for table in ("runs", "processes"):
        op.add_column(
            table, sa.Column("stored", sa.BigInteger(), server_default="0", nullable=False)
        )
    # Child tables come before their parents, because the old tables are dropped in this order.
    _anew("batches", _batches(), (*_PROCESS, "first_sequence"), _COPIED["batches"])
    _anew("segments", _segments(), (*_PROCESS, "first_sequence"), _COPIED["segments"])
    _anew(
        "chunks", _chunks(), (*_PROCESS, "series_id", "first_sequence"), _COPIED["chunks"],
        chosen="p.run_id, c.process_id, c.series_id, c.first_sequence, c.count, -1, c.first, c.last, c.min, c.max, "
        "c.width, c.blob",
        source="old_chunks c JOIN processes p ON p.id = c.process_id",
    )  # fmt: skip
    # If several rows of one kind begin at the same snapshot, keep the row that was written last.
    _anew(
        "details", _details(), ("run_id", "kind", "process_id", "sequence"), _COPIED["details"],
        source="old_details WHERE id IN (SELECT max(id) FROM old_details GROUP BY run_id, kind, process_id, sequence)",
    )  # fmt: skip
    _anew("series", _series(), (*_RUN, "id"), _COPIED["series"], unique=(("run_id", "name"),))
    _anew(
        "processes", _processes(), (*_RUN, "id"), _COPIED["processes"], unique=(("run_id", "instance"),)
    )  # fmt: skip
    _anew("attempts", _attempts(), (*_RUN, "number"), _COPIED["attempts"])
    _create("rollups", _rollups(), (*_PROCESS, "series_id", "first_sequence"))


def _batches() -> list[sa.Column]:
    return [
        *_of_process(),
        _whole("first_sequence"),
        sa.Column("count", sa.Integer(), nullable=False),
        _whole("revision"),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    ]


def _segments() -> list[sa.Column]:
    return [
        *_of_process(),
        _whole("first_sequence"),
        _whole("last_sequence"),
        sa.Column("count", sa.Integer(), nullable=False),
        _whole("revision"),
        sa.Column("level", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("thinned", sa.Boolean(), server_default=_FALSE, nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False),
    ]


def _chunks() -> list[sa.Column]:
    return [
        *_of_process(),
        _whole("series_id"),
        _whole("first_sequence"),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("present", sa.Integer(), nullable=False),
        *_numbers(),
        sa.Column("width", sa.SmallInteger(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("pieces", sa.LargeBinary(), nullable=True),
    ]


def _rollups() -> list[sa.Column]:
    return [
        *_of_process(),
        _whole("series_id"),
        _whole("first_sequence"),
        _whole("last_sequence"),
        _whole("count"),
        _whole("present"),
        *_numbers(),
        sa.Column("pieces", sa.LargeBinary(), nullable=False),
    ]


def _details() -> list[sa.Column]:
    return [
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        _whole("process_id"),
        _whole("sequence"),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        _whole("revision"),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    ]


def _series() -> list[sa.Column]:
    return [
        sa.Column("run_id", sa.Text(), nullable=False),
        _whole("id"),
        sa.Column("name", sa.Text(), nullable=False),
    ]


def _attempts() -> list[sa.Column]:
    return [
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("environment", sa.Text(), server_default="{}", nullable=False),
    ]


def _processes() -> list[sa.Column]:
    return [
        sa.Column("run_id", sa.Text(), nullable=False),
        _whole("id"),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        _whole("pid"),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("end_state", sa.Text(), nullable=True),
        sa.Column("end_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("presumed", sa.Boolean(), server_default=_FALSE, nullable=False),
        sa.Column("clock_skew_seconds", sa.Double(), nullable=True),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("lost", sa.Text(), server_default="{}", nullable=False),
        sa.Column("stored", sa.BigInteger(), server_default="0", nullable=False),
    ]


def _of_process() -> tuple[sa.Column, sa.Column]:
    return sa.Column("run_id", sa.Text(), nullable=False), _whole("process_id")


def _numbers() -> list[sa.Column]:
    return [sa.Column(name, sa.Double(), nullable=True) for name in ("first", "last", "min", "max")]


def _whole(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


_COPIED = {
    "batches": "run_id, process_id, first_sequence, count, revision, received_at, body",
    "segments": "run_id, process_id, first_sequence, last_sequence, count, revision",
    "chunks": "run_id, process_id, series_id, first_sequence, count, present, first, last, min, max, width, blob",
    "details": "run_id, kind, process_id, sequence, generation, revision, body",
    "series": "run_id, id, name",
    "attempts": "run_id, number, started_at, environment",
    "processes": "run_id, id, instance, rank, role, pid, host, attempt, started_at, last_seen_at, ended_at, end_state, "
    "end_reason, presumed, clock_skew_seconds, rss_bytes, peak_bytes, lost, stored",
}
_INDEXES = {
    "batches": ["run_id", "revision"],
    "segments": ["run_id", "revision"],
    "details": ["run_id", "kind", "generation"],
}
# Tables with a foreign key to runs.
_OF_RUNS = ("series", "attempts", "processes")


def _anew(
    table: str,
    columns: list[sa.Column],
    key: tuple[str, ...],
    copied: str,
    *,
    chosen: str | None = None,
    source: str | None = None,
    unique: tuple[tuple[str, ...], ...] = (),
) -> None:
    """Recreate a table with a new definition and copy its rows."""
    _set_aside(table)
    _create(table, columns, key, unique)
    op.execute(
        f"INSERT INTO {table} ({copied}) SELECT {chosen or copied} FROM {source or f'old_{table}'}"
    )
    op.drop_table(f"old_{table}")


def _set_aside(table: str) -> None:
    """Rename a table, and drop its index and constraints, because the new table needs their names."""
    if table in _INDEXES:
        op.drop_index(f"ix_{table}_run_id", table)
    op.rename_table(table, f"old_{table}")
    if op.get_bind().dialect.name == "postgresql":
        inspector = sa.inspect(op.get_bind())
        old = f"old_{table}"
        names = [inspector.get_pk_constraint(old)["name"]]
        names += [found["name"] for found in inspector.get_unique_constraints(old)]
        names += [found["name"] for found in inspector.get_foreign_keys(old)]
        for name in names:
            op.execute(f"ALTER TABLE {old} DROP CONSTRAINT {name} CASCADE")


def _create(
    table: str, columns: list[sa.Column], key: tuple[str, ...], unique: tuple[tuple[str, ...], ...] = ()
) -> None:  # fmt: skip
    constraints = [sa.PrimaryKeyConstraint(*key, name=f"pk_{table}")]
    constraints += [
        sa.UniqueConstraint(*names, name=f"uq_{table}_{'_'.join(names)}") for names in unique
    ]
    if table in _OF_RUNS:
        constraints.append(
            sa.ForeignKeyConstraint(
                ["run_id"], ["runs.id"], name=f"fk_{table}_run_id", ondelete="CASCADE"
            )
        )
    op.create_table(table, *columns, *constraints)
    if table in _INDEXES:
        op.create_index(f"ix_{table}_run_id", table, _INDEXES[table])


def downgrade() -> None:
    # Processes of different runs may now have the same number, and the old schema cannot represent compacted segments.
    raise RuntimeError("this migration cannot be undone: restore a backup from before it")
