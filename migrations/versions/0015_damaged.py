"""Add a table for quarantined damaged values, each with its original location.

Fixes: one damaged value made the entire list of runs unreadable, and the affected run could not be deleted.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015_damaged"
down_revision = "0014_clocks_not_known"
branch_labels = None
depends_on = None

# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "damaged",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("found_at", sa.Double(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("row_number", sa.BigInteger(), nullable=False),
        sa.Column("column_name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_damaged_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_damaged"),
    )
    op.create_index("ix_damaged_run_id", "damaged", ["run_id"])


def downgrade() -> None:
    op.drop_table("damaged")
