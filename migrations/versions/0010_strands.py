"""Beside each chunk, its numbers by phase and kind.

Cures: a chart of one phase of a very long run read every snapshot of it. Chunks that are there already have none, and
are opened as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010_strands"
down_revision = "0009_deleted_runs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chunks", sa.Column("strands", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("chunks", "strands")
