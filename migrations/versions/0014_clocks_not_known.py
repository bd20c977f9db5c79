"""What servers of before took for a clock that is behind is not known.

Cures: they took the age of the first batch of each process for it, so a recording that was uploaded later had a clock
that was behind by as much. It would be told as one that lies, and what comes of it yet would be moved.
"""

from alembic import op

revision = "0014_clocks_not_known"
down_revision = "0013_accepted_counts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # More than clocks differ. What was ahead of the server's cannot have come of an age, and stands.
    op.execute("UPDATE processes SET clock_skew_seconds = NULL WHERE clock_skew_seconds > 300")


def downgrade() -> None:
    """Nobody knows what it was, and no server needs it."""
