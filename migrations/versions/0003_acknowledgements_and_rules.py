"""Add acknowledgements, rules and their states, previous secrets of webhooks, and urgent or expiring alerts."""

import sqlalchemy as sa
from alembic import op

revision = "0003_acknowledgements_and_rules"
down_revision = "0002_incidents_and_alerts"
branch_labels = None
depends_on = None

# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("alerts", sa.Column("subject", sa.Text(), server_default="", nullable=False))
    op.add_column(
        "alerts",
        sa.Column("urgent", sa.Boolean(), server_default=sa.text("true"), nullable=False),
    )
    op.add_column("alerts", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column(
        "alerts", sa.Column("number", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.add_column("alerts", sa.Column("quiet_until", sa.Double(), nullable=True))
    op.add_column("webhooks", sa.Column("name", sa.Text(), server_default="", nullable=False))
    op.add_column("webhooks", sa.Column("previous_secret", sa.Text(), nullable=True))
    op.add_column("webhooks", sa.Column("previous_until", sa.Double(), nullable=True))
    op.add_column(
        "webhooks", sa.Column("failures", sa.Integer(), server_default="0", nullable=False)
    )
    op.add_column("webhooks", sa.Column("failing_since", sa.Double(), nullable=True))
    op.create_table(
        "acknowledgements",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_acknowledgements")),
    )
    op.create_index("ix_acknowledgements_project", "acknowledgements", ["project", "fingerprint"])
    op.create_table(
        "rules",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("above", sa.Double(), nullable=True),
        sa.Column("below", sa.Double(), nullable=True),
        sa.Column("hold", sa.Integer(), nullable=False),
        sa.Column("grace", sa.Integer(), nullable=False),
        sa.Column("advice", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rules")),
    )
    op.create_table(
        "rule_states",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("rule_id", _ID, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("firing", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("since", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["rule_id"], ["rules.id"], name=op.f("fk_rule_states_rule_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_rule_states_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rule_states")),
        sa.UniqueConstraint("rule_id", "run_id", name=op.f("uq_rule_states_rule_id_run_id")),
    )
    op.create_index("ix_rule_states_run_id", "rule_states", ["run_id"])


def downgrade() -> None:
    op.drop_table("rule_states")
    op.drop_table("rules")
    op.drop_table("acknowledgements")
    for table, columns in (
        ("webhooks", ("failing_since", "failures", "previous_until", "previous_secret", "name")),
        ("alerts", ("quiet_until", "number", "expires_at", "urgent", "subject")),
    ):
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column)
