"""Add tables for removed runs that are still being purged and for run sizes, and an index for an incident's alerts."""

import sqlalchemy as sa
from alembic import op

revision = "0007_removals_and_sizes"
down_revision = "0006_several_servers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sizes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("thinned", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_sizes"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_sizes_run_id", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "removals",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("processes", sa.BigInteger(), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("swept_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_removals"),
    )
    op.create_index("ix_alerts_incident_id", "alerts", ["incident_id"])


def downgrade() -> None:
    op.drop_index("ix_alerts_incident_id", "alerts")
    op.drop_table("removals")
    op.drop_table("sizes")
