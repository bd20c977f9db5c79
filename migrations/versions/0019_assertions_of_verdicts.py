"""Convert the bands, budgets and fix promises in stored verdicts to assertions.

A run that has ended is not examined again, so its page and its gates would otherwise show that nothing was declared.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0019_assertions_of_verdicts"
down_revision = "0018_no_strands"
branch_labels = None
depends_on = None

_RUNS = sa.table("runs", sa.column("id", sa.Text), sa.column("verdict", sa.Text))
_METRICS = {
    "phase": "phase.kept_bytes", "generation": "generation.kept_bytes", "run": "run.kept_bytes",
}  # fmt: skip
_STATES = {
    "within": "holds", "outside": "broken", "normal": "holds", "leak": "broken", "held": "holds", "refuted": "broken",
}  # fmt: skip
# Claims that promise a minimum; all other claims promise a maximum.
_LEAST = ("generations", "possible_generations")


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # Run the conversion as an SQL function on bytes, because the driver cannot return damaged text.
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.create_function("with_assertions", 1, with_assertions)
        found = "with_assertions(CAST(verdict AS BLOB))"
        op.execute(
            f"UPDATE runs SET verdict = coalesce({found}, verdict) WHERE verdict IS NOT NULL"
        )
        return
    ids = connection.scalars(sa.select(_RUNS.c.id).where(_RUNS.c.verdict.is_not(None))).all()
    for each in ids:
        one = _RUNS.c.id == each
        found = with_assertions(connection.scalar(sa.select(_RUNS.c.verdict).where(one)))
        if found is not None:
            connection.execute(_RUNS.update().where(one).values(verdict=found))


def downgrade() -> None:
    """Do nothing: an older server ignores the list, and writes its own fields with the next verdict."""


def with_assertions(stored: bytes | str) -> str | None:
    """Return the JSON of a verdict with a list of assertions, or None if it already has such a list or is damaged."""
    try:
        verdict = json.loads(stored)
        if "assertions" in verdict:
            return None
        bands, budgets, fixes = (verdict.pop(name, ()) for name in ("bands", "budgets", "fixes"))
        verdict["assertions"] = [*map(_band, bands), *map(_budget, budgets), *map(_promise, fixes)]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return json.dumps(verdict)


def _assertion(check: dict, **more) -> dict:
    empty = dict.fromkeys(
        ("phase", "low", "high", "leak", "first", "last", "process", "location", "measured", "worst",
         "worst_generation")
    )  # fmt: skip
    state = check.get("state") or check["outcome"]
    state = "open" if state == "within" and check["open"] else _STATES.get(state, state)
    found = {"outside": 0, "judged": 0, "deviations": []}
    return empty | found | {"state": state, "sentence": check["sentence"]} | more


def _exactly(value):
    return None if value is None else {"estimate": value, "low": value, "high": value}


def _band(check: dict) -> dict:
    outside = check["below"] + check["above"]
    same = ("first", "last", "low", "high", "process", "deviations")
    worst = max(check["deviations"], key=lambda each: abs(each["off_by"]), default=None)
    return _assertion(
        check, origin="band", name=check["series"], metric=check["series"], outside=outside,
        judged=outside + check["within"], worst=worst and worst["measured"],
        worst_generation=worst and worst["generation"], **{name: check[name] for name in same},
    )  # fmt: skip


def _budget(check: dict) -> dict:
    same = ("leak", "worst", "worst_generation", "process")
    return _assertion(
        check, origin="budget", name=check["name"], metric=_METRICS[check["scope"]],
        phase=check["name"] if check["scope"] == "phase" else None, high=check["normal"],
        measured=_exactly(check["newest"]), outside=check["beyond"], judged=check["generations"],
        **{name: check[name] for name in same},
    )  # fmt: skip


def _promise(check: dict) -> dict:
    claim, counted = check["claim"], check["claim"].removeprefix("count:")
    bound = "low" if claim in _LEAST else "high"
    return _assertion(
        check, origin="fix", name=check["fix"], metric=claim if counted == claim else f"type.{counted}.count",
        phase=check["phase"], location=check["location"], measured=check["measured"], **{bound: check["promised"]},
    )  # fmt: skip
