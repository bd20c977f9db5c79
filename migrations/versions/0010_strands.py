"""Store summaries of each chunk by phase and kind.

Fixes: a chart of one phase of a very long run had to read all snapshots of the run. Existing chunks do not have these
summaries and are read as before.
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
