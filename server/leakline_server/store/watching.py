"""What one server asks the database for of what others do: cheap questions, asked again and again.

Asked rather than listened for: a question works through every pooler and after every lost connection, and telling on
each commit would make the writers of all servers wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Engine, select

from .tables import runs

MAX_AT_ONCE: Final = 500


def has_other_servers(engine: Engine) -> bool:
    """Whether others may serve the same database; an SQLite file has one server (`serving.py`)."""
    return engine.dialect.name != "sqlite"


def revisions(engine: Engine, run_ids: Sequence[str]) -> dict[str, int]:
    """Run id -> its revision, of those that there are."""
    found: dict[str, int] = {}
    with engine.connect() as connection:
        for first in range(0, len(run_ids), MAX_AT_ONCE):
            some = runs.c.id.in_(run_ids[first : first + MAX_AT_ONCE])
            rows = connection.execute(select(runs.c.id, runs.c.revision).where(some))
            found |= {row.id: row.revision for row in rows}
    return found
