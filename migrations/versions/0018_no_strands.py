"""Drop the summaries of chunks by phase and kind, and the rollups of 64 chunks.

A chart of one phase now reads the chunks of the columns that it shows, which takes a second for a million snapshots.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018_no_strands"
down_revision = "0017_assertions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Subtract the dropped bytes from the sizes of segments, from which the sizes of runs and projects are computed. Sum
    # up the chunks of all segments in one pass, because the key of ``chunks`` cannot be used to look up the chunks of a
    # single segment.
    op.execute(
        "UPDATE segments SET bytes = bytes - packed.size FROM (SELECT run_id, process_id, first_sequence,"
        " coalesce(sum(length(strands)), 0) AS size FROM chunks GROUP BY run_id, process_id, first_sequence) AS packed"
        " WHERE packed.run_id = segments.run_id AND packed.process_id = segments.process_id"
        " AND packed.first_sequence = segments.first_sequence AND level > 0"
    )
    op.execute("UPDATE segments SET level = 1 WHERE level > 1")
    # Have all runs measured again.
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
