"""Share requests to processes, and the examined revision of each run, between the servers of one database.

Fixes: a request made through one server never reached a process that sends its data to another server, and each server
examined every run.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006_several_servers"
down_revision = "0005_keys_begin_with_the_run"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs", sa.Column("examined", sa.BigInteger(), server_default="0", nullable=False)
    )
    # The revision at which the verdict last changed is the best available estimate of the examined revision.
    op.execute("UPDATE runs SET examined = verdict_revision")
    op.create_table(
        "requests",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("by_person", sa.Boolean(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("answered", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind", "type", "rank", name="pk_requests"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_requests_run_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_requests_answered", "requests", ["answered", "asked_at"])


def downgrade() -> None:
    op.drop_table("requests")
    op.drop_column("runs", "examined")
