"""${message}

Cures: (the symptom this migration is for)

Must run on SQLite and on Postgres, up and down. A risky change comes as three: add, fill, tighten.
Do not import the tables of the application: they describe today, not the day of this migration.
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
