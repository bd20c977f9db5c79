"""Add the severity of runs, taken from their verdicts, so that the list of runs can be sorted by urgency.

After a run has ended, its severity no longer makes it urgent.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0021_severity_of_runs"
down_revision = "0020_plain_names"
branch_labels = None
depends_on = None

_PRIORITIES = {"critical": 3, "major": 2, "minor": 1}
_RISKS = {"critical": 3, "high": 2}
_GROWING = ("watch", "suspected", "confirmed")
# Verdicts are long, so at most this many are in memory at a time.
_RUNS_AT_ONCE = 100


def upgrade() -> None:
    op.add_column("runs", sa.Column("severity", sa.Integer(), nullable=False, server_default="0"))
    _fill_in()
    urgency = "CASE WHEN state IN ('running', 'silent') THEN severity ELSE 0 END"
    op.create_index("ix_runs_status", "runs", ["status", "id"])
    op.create_index("ix_runs_urgency", "runs", [sa.text(f"({urgency})"), "started_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_runs_urgency", "runs")
    op.drop_index("ix_runs_status", "runs")
    op.drop_column("runs", "severity")


def _fill_in() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # Run the conversion as an SQL function on bytes, because the driver cannot return damaged text.
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.create_function("severity_of", 1, severity_of)
        found = "severity_of(CAST(verdict AS BLOB))"
        op.execute(f"UPDATE runs SET severity = {found} WHERE verdict IS NOT NULL AND {found} > 0")
        return
    runs = sa.table(
        "runs",
        sa.column("id", sa.Text),
        sa.column("verdict", sa.Text),
        sa.column("severity", sa.Integer),
    )
    after = ""
    while True:
        some = sa.select(runs.c.id, runs.c.verdict).where(
            runs.c.id > after, runs.c.verdict.is_not(None)
        )
        rows = connection.execute(some.order_by(runs.c.id).limit(_RUNS_AT_ONCE)).all()
        if not rows:
            return
        for run, verdict in rows:
            if severity := severity_of(verdict):
                connection.execute(runs.update().where(runs.c.id == run).values(severity=severity))
        after = rows[-1].id


def severity_of(verdict) -> int:
    """Return the severity of a verdict, or 0 if the verdict is damaged (the server moves it to quarantine later)."""
    try:
        found = json.loads(verdict)
        grades = [
            _PRIORITIES[each.get("priority", "minor")]
            for each in found.get("findings", ())
            if each["status"] in _GROWING
        ]
        return max((*grades, _RISKS.get(found["oom"].get("risk"), 0)))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return 0
