"""Drop the numbers of chunks by phase and kind, and those of 64 chunks together.

A chart of one phase reads the chunks of the columns that it shows, in a second for a million snapshots.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018_no_strands"
down_revision = "0017_assertions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Sizes of runs and projects count what is packed in rows.
    op.execute(
        "UPDATE segments SET level = 1, bytes = bytes - coalesce((SELECT sum(length(strands)) FROM chunks"
        " WHERE chunks.run_id = segments.run_id AND chunks.process_id = segments.process_id"
        " AND chunks.first_sequence = segments.first_sequence), 0) WHERE level > 0"
    )
    # Count all runs again.
    op.execute("UPDATE sizes SET revision = -1, measured_at = 0")
    op.drop_table("rollups")
    op.drop_column("chunks", "strands")


def downgrade() -> None:
    op.add_column("chunks", sa.Column("strands", sa.LargeBinary(), nullable=True))
    op.create_table(
        "rollups",
        sa.Column("run_id", sa.Text(), primary_key=True),
        *(
            sa.Column(name, sa.BigInteger(), primary_key=True, autoincrement=False)
            for name in ("process_id", "series_id", "first_sequence")
        ),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("last_sequence", "count", "present")
        ),
        *(sa.Column(name, sa.Double()) for name in ("first", "last", "min", "max")),
        sa.Column("pieces", sa.LargeBinary(), nullable=False),
    )
