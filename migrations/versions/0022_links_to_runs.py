"""Let a token open the page of one run and nothing else."""

import sqlalchemy as sa
from alembic import op

revision = "0022_links_to_runs"
down_revision = "0021_severity_of_runs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("run_id", sa.Text()))


def downgrade() -> None:
    # Who goes back has no links to runs, and one of them would be a token of no kind.
    op.execute("DELETE FROM tokens WHERE scope = 'share'")
    op.drop_column("tokens", "run_id")
