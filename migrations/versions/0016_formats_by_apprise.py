"""Convert webhooks with the Discord and Teams formats to apprise, and disable webhooks that apprise does not support.

The server no longer writes these two formats, so deliveries in them would fail.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016_formats_by_apprise"
down_revision = "0015_damaged"
branch_labels = None
depends_on = None

_WEBHOOKS = sa.table(
    "webhooks",
    sa.column("id", sa.BigInteger),
    sa.column("enabled", sa.Boolean),
    *(sa.column(name, sa.Text) for name in ("url", "format", "source", "disabled_reason")),
)
_DELIVERIES = sa.table(
    "deliveries",
    sa.column("webhook_id", sa.BigInteger),
    *(sa.column(name, sa.Text) for name in ("state", "last_error")),
)
# Alternative forms of Discord webhook URLs, and apprise's name for the thread parameter.
_SAME = {
    "https://canary.discord.com/": "https://discord.com/",
    "https://ptb.discord.com/": "https://discord.com/",
    "/api/v9/webhooks/": "/api/webhooks/",
    "/api/v10/webhooks/": "/api/webhooks/",
    "thread_id=": "thread=",
}
# Webhook URLs of both services, in the forms that apprise accepts unchanged.
_DISCORD = ("https://discord.com/api/webhooks/", "https://discordapp.com/api/webhooks/")
_TEAMS = (
    "https://%.logic.azure.%/workflows/%/triggers/manual/paths/invoke%?%",
    "https://%platform.%/workflows/%/triggers/manual/paths/invoke%?%",
)


def upgrade() -> None:
    # Everything is done in SQL, because damaged text cannot be read into Python.
    w, d = _WEBHOOKS.c, _DELIVERIES.c
    # Webhooks from the environment get their format at each start of the server, so only other webhooks are converted.
    of_discord = sa.and_(w.source == "api", w.format == "discord")
    of_teams = sa.and_(w.source == "api", w.format == "teams")
    url = sa.func.rtrim(w.url, "/")
    for old, new in _SAME.items():
        url = sa.func.replace(url, old, new)
    small = sa.func.lower(url)
    taken = sa.or_(*(sa.and_(small.like(f"{a}%/%"), small.not_like(f"{a}%/%/%")) for a in _DISCORD))
    op.execute(_WEBHOOKS.update().where(of_discord, taken).values(format="apprise", url=url))
    taken = sa.or_(*map(sa.func.lower(w.url).like, _TEAMS))
    op.execute(_WEBHOOKS.update().where(of_teams, taken).values(format="apprise"))
    # The remaining webhooks keep their URLs and formats, so that users can look them up.
    left = sa.and_(sa.or_(of_discord, of_teams), w.enabled)
    of_left = d.webhook_id.in_(sa.select(w.id).where(left))
    waiting = d.state.in_(("pending", "claimed"))
    error = "webhook disabled: its format is no longer supported"
    op.execute(
        _DELIVERIES.update().where(of_left, waiting).values(state="failed", last_error=error)
    )
    reason = (
        "Leakline no longer writes the format " + w.format + ", and apprise does not support this "
        "address: delete this webhook and add another"
    )
    op.execute(_WEBHOOKS.update().where(left).values(enabled=False, disabled_reason=reason))


def downgrade() -> None:
    w = _WEBHOOKS.c
    ours = sa.and_(w.source == "api", w.format == "apprise")
    of_teams = w.url.like("%/workflows/%")
    op.execute(_WEBHOOKS.update().where(ours, of_teams).values(format="teams"))
    url = sa.func.replace(w.url, "thread=", "thread_id=")
    op.execute(_WEBHOOKS.update().where(ours).values(format="discord", url=url))
