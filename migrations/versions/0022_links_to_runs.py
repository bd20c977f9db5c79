"""Add share tokens, which open the page of a single run."""

import sqlalchemy as sa
from alembic import op

revision = "0022_links_to_runs"
down_revision = "0021_severity_of_runs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("run_id", sa.Text()))


def downgrade() -> None:
    # An older version has no share links and would not recognize the scope of their tokens.
    op.execute("DELETE FROM tokens WHERE scope = 'share'")
    op.drop_column("tokens", "run_id")
