"""Rename tables, columns and fields of stored verdicts that had obscure names.

Only names change, so an older server can read the database after a downgrade.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0020_plain_names"
down_revision = "0019_assertions_of_verdicts"
branch_labels = None
depends_on = None

# (table, old column, new column), with the table names from before the upgrade.
_COLUMNS = (
    ("runs", "presumed", "end_inferred"),
    ("runs", "runs_out_at", "oom_at"),
    ("processes", "presumed", "end_inferred"),
    ("deliveries", "tries", "attempts"),
    ("tokens", "begins", "prefix"),
)
# The columns that contain verdicts and findings as JSON, in which the server expects the new names.
_VERDICTS = ("runs", "verdict")
_FINDINGS = ("incidents", "finding")
_ASSERTION = {"outside": "violations", "judged": "checked"}
_DEVIATION = {"off_by": "difference"}
_LEAD = {"ahead_from": "lead_from", "ahead_to": "lead_to"}
_PAST = {"came": "actual"}
# Values of the field `unknown` of a finding.
_UNKNOWN = {"seldom": "rarely_counted"}


def upgrade() -> None:
    for table, before, after in _COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")
    op.drop_index("ix_runs_runs_out_at", "runs")
    op.create_index("ix_runs_oom_at", "runs", ["oom_at", "id"])
    op.drop_index("ix_tries_delivery_id", "tries")
    op.rename_table("tries", "delivery_attempts")
    op.create_index("ix_delivery_attempts_delivery_id", "delivery_attempts", ["delivery_id"])
    _rewrite(_VERDICTS, verdict_with_new_names)
    _rewrite(_FINDINGS, finding_with_new_names)


def downgrade() -> None:
    _rewrite(_FINDINGS, finding_with_old_names)
    _rewrite(_VERDICTS, verdict_with_old_names)
    op.drop_index("ix_delivery_attempts_delivery_id", "delivery_attempts")
    op.rename_table("delivery_attempts", "tries")
    op.create_index("ix_tries_delivery_id", "tries", ["delivery_id"])
    op.drop_index("ix_runs_oom_at", "runs")
    for table, before, after in _COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {after} TO {before}")
    op.create_index("ix_runs_runs_out_at", "runs", ["runs_out_at", "id"])


def _rewrite(where, rewrite) -> None:
    name, column = where
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # Run the conversion as an SQL function on bytes, because the driver cannot return damaged text.
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.create_function(rewrite.__name__, 1, rewrite)
        found = f"{rewrite.__name__}(CAST({column} AS BLOB))"
        op.execute(
            f"UPDATE {name} SET {column} = {found} WHERE {column} IS NOT NULL AND {found} IS NOT NULL"
        )
        return
    table = sa.table(name, sa.column("id", sa.Text), sa.column(column, sa.Text))
    stored = table.c[column]
    ids = connection.scalars(sa.select(table.c.id).where(stored.is_not(None))).all()
    for each in ids:
        one = table.c.id == each
        found = rewrite(connection.scalar(sa.select(stored).where(one)))
        if found is not None:
            connection.execute(table.update().where(one).values({column: found}))


def verdict_with_new_names(stored: bytes | str) -> str | None:
    """Return the JSON of a verdict with the new names, or None if nothing changes or the verdict is damaged."""
    return _renamed(stored, _rename_in_verdict, lambda names: names)


def verdict_with_old_names(stored: bytes | str) -> str | None:
    """Return the JSON of a verdict with the old names, or None if nothing changes or the verdict is damaged."""
    return _renamed(stored, _rename_in_verdict, _reversed)


def finding_with_new_names(stored: bytes | str) -> str | None:
    """Return the JSON of a finding with the new names, or None if nothing changes or the finding is damaged."""
    return _renamed(stored, _rename_in_finding, lambda names: names)


def finding_with_old_names(stored: bytes | str) -> str | None:
    """Return the JSON of a finding with the old names, or None if nothing changes or the finding is damaged."""
    return _renamed(stored, _rename_in_finding, _reversed)


def _reversed(names):
    return {after: before for before, after in names.items()}


def _renamed(stored, rename_in, direction) -> str | None:
    try:
        value, before = json.loads(stored), json.loads(stored)
        rename_in(value, direction)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return None if value == before else json.dumps(value)


def _rename_in_verdict(verdict, direction) -> None:
    for finding in verdict.get("findings") or ():
        _rename_in_finding(finding, direction)
    for check in verdict.get("assertions") or ():
        _rename(check, direction(_ASSERTION))
        for deviation in check["deviations"]:
            _rename(deviation, direction(_DEVIATION))
    score = verdict.get("forecast_score") or {}
    for each in (score, *(score.get("by_lead") or ())):
        _rename(each, direction(_LEAD))
        for past in each.get("past", ()):
            _rename(past, direction(_PAST))


def _rename_in_finding(finding, direction) -> None:
    unknown = direction(_UNKNOWN)
    if finding.get("unknown") in unknown:
        finding["unknown"] = unknown[finding["unknown"]]


def _rename(fields, names) -> None:
    for before, after in names.items():
        if before in fields:
            fields[after] = fields.pop(before)
