"""Rename tables, columns and fields of stored verdicts whose names a stranger could not guess.

Nothing is converted but names, so an older server reads the database again after a downgrade.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0020_plain_names"
down_revision = "0019_assertions_of_verdicts"
branch_labels = None
depends_on = None

# (table, column before, column after), with the names of tables before the upgrade.
_COLUMNS = (
    ("runs", "presumed", "end_inferred"),
    ("runs", "runs_out_at", "oom_at"),
    ("processes", "presumed", "end_inferred"),
    ("deliveries", "tries", "attempts"),
    ("tokens", "begins", "prefix"),
)
_RUNS = sa.table("runs", sa.column("id", sa.Text), sa.column("verdict", sa.Text))
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
    _rewrite_verdicts(with_new_names)


def downgrade() -> None:
    _rewrite_verdicts(with_old_names)
    op.drop_index("ix_delivery_attempts_delivery_id", "delivery_attempts")
    op.rename_table("delivery_attempts", "tries")
    op.create_index("ix_tries_delivery_id", "tries", ["delivery_id"])
    op.drop_index("ix_runs_oom_at", "runs")
    for table, before, after in _COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {after} TO {before}")
    op.create_index("ix_runs_runs_out_at", "runs", ["runs_out_at", "id"])


def _rewrite_verdicts(rewrite) -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # In the database, because damaged text cannot be read here.
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.create_function(rewrite.__name__, 1, rewrite)
        found = f"{rewrite.__name__}(CAST(verdict AS BLOB))"
        op.execute(
            f"UPDATE runs SET verdict = coalesce({found}, verdict) WHERE verdict IS NOT NULL"
        )
        return
    ids = connection.scalars(sa.select(_RUNS.c.id).where(_RUNS.c.verdict.is_not(None))).all()
    for each in ids:
        one = _RUNS.c.id == each
        found = rewrite(connection.scalar(sa.select(_RUNS.c.verdict).where(one)))
        if found is not None:
            connection.execute(_RUNS.update().where(one).values(verdict=found))


def with_new_names(stored: bytes | str) -> str | None:
    """Return the JSON of a verdict with the new names of fields; None where the verdict is damaged."""
    return _renamed(stored, lambda names: names)


def with_old_names(stored: bytes | str) -> str | None:
    """Return the JSON of a verdict with the old names of fields; None where the verdict is damaged."""
    return _renamed(stored, lambda names: {after: before for before, after in names.items()})


def _renamed(stored, direction) -> str | None:
    try:
        verdict = json.loads(stored)
        unknown = direction(_UNKNOWN)
        for finding in verdict.get("findings") or ():
            if finding.get("unknown") in unknown:
                finding["unknown"] = unknown[finding["unknown"]]
        for check in verdict.get("assertions") or ():
            _rename(check, direction(_ASSERTION))
            for deviation in check["deviations"]:
                _rename(deviation, direction(_DEVIATION))
        for score in (verdict.get("forecast_score") or {}, *_leads(verdict)):
            _rename(score, direction(_LEAD))
            for past in score.get("past", ()):
                _rename(past, direction(_PAST))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return json.dumps(verdict)


def _leads(verdict):
    return (verdict.get("forecast_score") or {}).get("by_lead") or ()


def _rename(fields, names) -> None:
    for before, after in names.items():
        if before in fields:
            fields[after] = fields.pop(before)
