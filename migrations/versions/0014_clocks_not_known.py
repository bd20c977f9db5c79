"""Delete the stored skews of clocks that are behind, because older servers did not measure these skews correctly.

Fixes: older servers used the age of a process's first batch as its skew, so a recording that was uploaded later seemed
to come from a clock that was behind. The clock would be reported as wrong, and the times of later data would be
shifted.
"""

from alembic import op

revision = "0014_clocks_not_known"
down_revision = "0013_accepted_counts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Correct clocks differ by less than 300 s. Negative skews, from clocks that are ahead, cannot be the age of a batch
    # and are kept.
    op.execute("UPDATE processes SET clock_skew_seconds = NULL WHERE clock_skew_seconds > 300")


def downgrade() -> None:
    """Do nothing: the deleted values are lost, and no server needs them."""
