"""Send a signed test message to the alert webhook and say what came back.

Reads the settings of the server: LEAKLINE_WEBHOOK_URL, LEAKLINE_WEBHOOK_SECRET, LEAKLINE_WEBHOOK_ALLOW and
LEAKLINE_DATABASE_URL, where the secret is kept if it was made. The server need not run. A webhook that was
disabled because its receiver answered 410 is enabled again when the test arrives.

example: LEAKLINE_WEBHOOK_URL=https://hooks.example.com/leakline leakline webhook test
"""

from __future__ import annotations

import argparse

from ...errors import LeaklineError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["test"], help="what to do")
    parser.add_argument(
        "--database-url", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
    )


def main(options: argparse.Namespace) -> int:
    """Exit status 0 when the receiver accepted the message, 1 when it did not, 2 for wrong settings."""
    try:
        from leakline_server.admin import at, check_webhook
        from leakline_server.alerts.sending.http_post import Delivered
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing); install it: pip install 'leakline[server]'"
        ) from None
    checked = check_webhook(at(options.database_url or None))
    if checked.made_secret is not None:
        print(f"webhook secret, made now and shown only this once: {checked.made_secret}")
    if not isinstance(checked.outcome, Delivered):
        raise LeaklineError(f"webhook {checked.where}: {checked.outcome.reason}")
    print(
        f"webhook {checked.where}: answered {checked.outcome.status} after {checked.outcome.seconds:.2f} s"
    )
    return 0
