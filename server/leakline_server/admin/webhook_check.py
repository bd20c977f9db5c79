"""One signed test message to the webhook of the settings, with or without a running server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from leakline.errors import BadArgument, LeaklineError

from ..alerts.sending.address_check import shown
from ..alerts.sending.http_post import Delivered, Outcome
from ..alerts.sending.send_message import send, trial
from ..alerts.sending.signing import make_secret
from ..config import Config
from ..paths import MIGRATIONS
from ..store.alerts import webhooks
from ..store.engine import DATABASE_ERRORS, BadDatabaseUrl, Engine, open_engine, without_content
from ..store.migrate import NewerDatabase, upgrade


@dataclass(frozen=True, slots=True)
class Checked:
    """``where`` may be shown. ``made_secret`` is the secret if it was made just now, to be shown once."""

    where: str
    outcome: Outcome
    made_secret: str | None = field(repr=False)


def check_webhook(config: Config) -> Checked:
    """Send it and say what came back; a receiver that accepts it is enabled again if it was disabled.

    Raises BadArgument without LEAKLINE_WEBHOOK_URL, LeaklineError when the secret's database cannot be used.
    """
    if config.webhook_url is None:
        why = "set it to the address alerts go to"
        raise BadArgument("LEAKLINE_WEBHOOK_URL", "", why, "environment")
    try:
        engine = open_engine(config.database_url, config.synchronous)
        upgrade(engine, MIGRATIONS)
        return _check(config, config.webhook_url, engine)
    except (*DATABASE_ERRORS, BadDatabaseUrl, NewerDatabase, OSError) as error:
        raise LeaklineError(f"the database cannot be used: {without_content(error)}") from error


def _check(config: Config, url: str, engine: Engine) -> Checked:
    secret, made = config.webhook_secret, None
    if secret is None:
        secret, made = webhooks.stored_secret(engine, make_secret)
    now = time.time()
    said = "Alerts of this server arrive here. Nothing leaks; somebody ran `leakline webhook test`."
    outgoing = trial(url, config.webhook_format, secret, config.address, now, said)
    outcome = send(outgoing, config.webhook_allow, now)
    if isinstance(outcome, Delivered):
        webhooks.enable_configured(engine, url)
    return Checked(shown(url), outcome, made)
