"""Add a partial index for segments that are not compacted; it contains only a few segments of each process."""

import sqlalchemy as sa
from alembic import op

revision = "0008_segments_to_compact"
down_revision = "0007_removals_and_sizes"
branch_labels = None
depends_on = None

_SEALED = sa.text("level = 0")


def upgrade() -> None:
    op.create_index(
        "ix_segments_level",
        "segments",
        ["run_id", "process_id", "count"],
        sqlite_where=_SEALED,
        postgresql_where=_SEALED,
    )


def downgrade() -> None:
    op.drop_index("ix_segments_level", "segments")
