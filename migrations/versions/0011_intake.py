"""Count the runs and bytes that each project stores in a day.

Fixes: any sender could fill the disk overnight.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011_intake"
down_revision = "0010_strands"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "intake",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "day", name="pk_intake"),
    )


def downgrade() -> None:
    op.drop_table("intake")
