"""Merge rules and accepted counts into one table, as assertions.

Rules keep their ids, to which alerts refer.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017_assertions"
down_revision = "0016_formats_by_apprise"
branch_labels = None
depends_on = None

# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_RULE = "name, project, run, measure, hold, grace, advice, source, enabled, created_at"
_STATE = "run_id, firing, generation, value, since, changed_at"
# A damaged row may refer to a run that does not exist, and the foreign key would make the upgrade fail.
_KNOWN = "WHERE s.run_id IN (SELECT id FROM runs)"


def upgrade() -> None:
    op.create_table(
        "assertions",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("measure", sa.Text(), server_default="value", nullable=False),
        sa.Column("hold", sa.Integer(), server_default="1", nullable=False),
        sa.Column("grace", sa.Integer(), server_default="1", nullable=False),
        sa.Column("advice", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_assertions"),
    )
    op.create_index("ix_assertions_project", "assertions", ["project", "metric"])
    _create_states("assertion", "assertions")
    op.execute(
        f"{_insert()} INTO assertions (id, origin, metric, low, high, {_RULE}) "
        f"SELECT id, 'rule', series, below, above, {_RULE} FROM rules ORDER BY id"
    )
    _continue_numbers("rules", "assertions")
    metric = _of_text("type", "'type.' || type || '.count'")
    op.execute(
        f"{_insert()} INTO assertions (origin, metric, scope, low, high, project, run, source, created_at, ended_at) "
        f"SELECT 'accepted', {metric}, phase, low, high, project, run, 'page', created_at, ended_at "
        "FROM accepted_counts ORDER BY id"
    )
    op.execute(
        f"{_insert()} INTO assertion_states (assertion_id, {_STATE}) SELECT rule_id, {_STATE} "
        f"FROM rule_states s {_KNOWN} AND s.rule_id IN (SELECT id FROM rules) ORDER BY id"
    )
    for table in ("rule_states", "rules", "accepted_counts"):
        op.drop_table(table)


def downgrade() -> None:
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
        sa.PrimaryKeyConstraint("id", name="pk_rules"),
    )
    _create_states("rule", "rules")
    op.create_table(
        "accepted_counts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("low", sa.BigInteger(), nullable=False),
        sa.Column("high", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_accepted_counts"),
    )
    op.create_index("ix_accepted_counts_project", "accepted_counts", ["project", "type"])
    op.execute(
        f"{_insert()} INTO rules (id, series, below, above, {_RULE}) "
        f"SELECT id, metric, low, high, {_RULE} FROM assertions WHERE origin = 'rule' ORDER BY id"
    )
    _continue_numbers("assertions", "rules")
    name = _of_text("metric", "substr(metric, 6, length(metric) - 11)")
    op.execute(
        f"{_insert()} INTO accepted_counts (type, phase, low, high, project, run, created_at, ended_at) "
        f"SELECT {name}, scope, low, high, project, run, created_at, ended_at "
        "FROM assertions WHERE origin = 'accepted' ORDER BY id"
    )
    op.execute(
        f"{_insert()} INTO rule_states (rule_id, {_STATE}) SELECT assertion_id, {_STATE} "
        f"FROM assertion_states s {_KNOWN} AND s.assertion_id IN (SELECT id FROM rules) ORDER BY id"
    )
    for table in ("assertion_states", "assertions"):
        op.drop_table(table)


def _create_states(of: str, table: str) -> None:
    states, key = f"{of}_states", f"{of}_id"
    op.create_table(
        states,
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column(key, _ID, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("firing", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("since", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            [key], [f"{table}.id"], name=f"fk_{states}_{key}", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=f"fk_{states}_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=f"pk_{states}"),
        sa.UniqueConstraint(key, "run_id", name=f"uq_{states}_{key}_run_id"),
    )
    op.create_index(f"ix_{states}_run_id", states, ["run_id"])


def _insert() -> str:
    """Return the INSERT keyword; on SQLite it skips damaged rows with missing values, so that the upgrade succeeds."""
    return "INSERT" if op.get_bind().dialect.name == "postgresql" else "INSERT OR IGNORE"


def _continue_numbers(old: str, new: str) -> None:
    """Continue the id sequence of the old table, so that no new rule gets the id of a deleted rule."""
    if op.get_bind().dialect.name == "postgresql":
        drawn = f"nextval(pg_get_serial_sequence('{old}', 'id'))"
        used = f"(SELECT max(id) FROM {new})"
        op.execute(
            f"SELECT setval(pg_get_serial_sequence('{new}', 'id'), greatest({drawn}, {used}))"
        )


def _of_text(column: str, made: str) -> str:
    """Return SQL that converts only text values: once converted to text, a damaged value could not be detected."""
    if op.get_bind().dialect.name == "postgresql":
        return made
    return f"CASE typeof({column}) WHEN 'text' THEN {made} ELSE {column} END"
