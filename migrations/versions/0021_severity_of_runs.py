"""Sort the list of runs by how urgent they are.

Nothing is filled in: the severity of a run comes with its next verdict, so one that is silent now is sorted by when it
was last heard of, until it speaks again. That of a run that ended counts no more.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021_severity_of_runs"
down_revision = "0020_plain_names"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("severity", sa.Integer(), nullable=False, server_default="0"))
    urgency = "CASE WHEN state IN ('running', 'silent') THEN severity ELSE 0 END"
    op.create_index("ix_runs_status", "runs", ["status", "id"])
    op.create_index("ix_runs_urgency", "runs", [sa.text(f"({urgency})"), "last_seen_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_runs_urgency", "runs")
    op.drop_index("ix_runs_status", "runs")
    op.drop_column("runs", "severity")
