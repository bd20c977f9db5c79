"""Add counts that a user has accepted as expected for the runs of a project.

Fixes: only the program could declare an expected count, so a user who saw the right count in a run had to change the
program.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013_accepted_counts"
down_revision = "0012_access"
branch_labels = None
depends_on = None

# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "accepted_counts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("low", sa.BigInteger(), nullable=False),
        sa.Column("high", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_accepted_counts"),
    )
    op.create_index("ix_accepted_counts_project", "accepted_counts", ["project", "type"])


def downgrade() -> None:
    op.drop_table("accepted_counts")
