"""Store why a process ended, and whether its end was reported or inferred from silence."""

import sqlalchemy as sa
from alembic import op

revision = "0004_ends_of_processes"
down_revision = "0003_acknowledgements_and_rules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "processes", sa.Column("end_reason", sa.Text(), server_default="", nullable=False)
    )
    for table in ("processes", "runs"):
        op.add_column(
            table,
            sa.Column("presumed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        )


def downgrade() -> None:
    for table in ("processes", "runs"):
        with op.batch_alter_table(table) as changed:
            changed.drop_column("presumed")
    with op.batch_alter_table("processes") as changed:
        changed.drop_column("end_reason")
