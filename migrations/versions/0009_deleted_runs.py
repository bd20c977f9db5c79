"""Add soft deletion of runs, and the columns by which the list of runs can be sorted.

Fixes: a run deleted by mistake was lost, and the list had only one order.
"""

import contextlib
import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009_deleted_runs"
down_revision = "0008_segments_to_compact"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_runs_last_seen_at": "last_seen_at",
    "ix_runs_name": "name",
    "ix_runs_growth_bytes": "growth_bytes",
    "ix_runs_rss_bytes": "rss_bytes",
    "ix_runs_runs_out_at": "runs_out_at",
}
# Verdicts are long, so at most this many are in memory at a time.
_AT_ONCE = 200
# The exceptions that reading a damaged verdict may raise.
_DAMAGED = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_deletions"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_deletions_run_id", ondelete="CASCADE"
        ),
    )
    op.add_column("runs", sa.Column("growth_bytes", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("runs_out_at", sa.Double(), nullable=True))
    _fill(op.get_bind())
    for name, column in _INDEXES.items():
        op.create_index(name, "runs", [column, "id"])


def _fill(connection: sa.Connection) -> None:
    """Fill the columns growth_bytes and runs_out_at from the stored verdicts."""
    runs = sa.table("runs", *map(sa.column, ("id", "verdict", "growth_bytes", "runs_out_at")))
    key: sa.ColumnElement[Any] = runs.c.id
    stored: sa.ColumnElement[Any] = runs.c.verdict
    last: Any = ""
    if connection.dialect.name == "sqlite":
        # An SQLite database may contain text that is not UTF-8, and its driver then fails for all rows of a query.
        key, stored, last = sa.literal_column("runs.rowid"), sa.cast(stored, sa.LargeBinary), 0
    some = sa.select(key, stored).where(runs.c.verdict.is_not(None)).order_by(key).limit(_AT_ONCE)
    while rows := connection.execute(some.where(key > last)).all():
        for last, verdict in rows:
            # The server moves damaged verdicts to quarantine when it starts.
            with contextlib.suppress(*_DAMAGED):
                said = json.loads(verdict)
                growth = said.get("growth_bytes_per_generation")
                at = (said.get("oom") or {}).get("at")
                ends = datetime.fromisoformat(at["estimate"]).timestamp() if at else None
                numbers = {
                    "growth_bytes": float(growth["estimate"]) if growth else None,
                    "runs_out_at": ends,
                }
                connection.execute(sa.update(runs).where(key == last).values(numbers))


def downgrade() -> None:
    for name in _INDEXES:
        op.drop_index(name, "runs")
    op.drop_column("runs", "runs_out_at")
    op.drop_column("runs", "growth_bytes")
    op.drop_table("deletions")
