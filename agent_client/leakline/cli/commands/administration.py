"""Commands that administer a server: `leakline token`, `leakline password`, `leakline webhook`, `leakline db`."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import BadArgument, LeaklineError
from ...report.document_blocks import columns_text
from ...text_format import format_bytes

if TYPE_CHECKING:
    from leakline_server.security.token_issuing import Wish
    from leakline_server.store.engine import Engine

TOKEN_HELP: Final = """\
Create, list and revoke the access tokens of a server.

With scope ingest, a token writes to one project and reads nothing. Scope read
allows reading everything, and scope admin allows everything. A new token is
printed only once, alone on standard output. The command uses the server's
database and creates it if necessary. The server may be running.

example: export LEAKLINE_TOKEN=$(leakline token create --project erl-trading)
         leakline token create --scope admin --name me --expires 30d
         leakline token list
         leakline token revoke 3
"""


def configure_token(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a token and print it; it cannot be shown again"
    )
    create.add_argument(
        "--scope", choices=["ingest", "read", "admin"], default="ingest",
        help="permissions of the token (default ingest)",
    )  # fmt: skip
    create.add_argument(
        "--project",
        help='the only project that an ingest token can write to (default: LEAKLINE_PROJECT, otherwise "default")',
    )
    create.add_argument(
        "--name", default="", help="name of the token (default: its project or scope)"
    )
    create.add_argument(
        "--expires", default="365d", help="lifetime in days or hours, such as 30d or 12h, or never (default 365d)"
    )  # fmt: skip
    create.add_argument(
        "--browser", action="store_true", help="allow use by web pages from other origins (LEAKLINE_ALLOWED_ORIGINS)"
    )  # fmt: skip
    listing = actions.add_parser(
        "list", help="list the tokens, newest first, without their secrets"
    )
    revoke = actions.add_parser("revoke", help="revoke a token")
    revoke.add_argument("id", type=int, help="id of the token, as shown by leakline token list")
    for action, run in ((create, _create_token), (listing, _list_tokens), (revoke, _revoke_token)):
        action.add_argument(
            "--database-url", metavar="URL",
            help="URL of the database (default: LEAKLINE_DATABASE_URL, otherwise .leakline-server/leakline.db)",
        )  # fmt: skip
        if action is not revoke:
            action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run_action=run)


def main_token(options: argparse.Namespace) -> int:
    try:
        from leakline_server import admin
        from leakline_server.errors import RequestRefused
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing); install it with: pip install 'leakline[server]'"
        ) from None
    wish = _wish(options) if options.action == "create" else None
    with admin.opened_at(options.database_url, new=wish is not None) as engine:
        try:
            return int(options.run_action(options, engine, wish))
        except RequestRefused as error:
            raise LeaklineError(error.message) from error


def _wish(options: argparse.Namespace) -> Wish:
    from leakline_server.security.token_issuing import Wish

    project = options.project
    if project is None and options.scope == "ingest":
        project = os.environ.get("LEAKLINE_PROJECT", "").strip() or None
    return Wish(options.scope, project, options.name, _days(options.expires), options.browser)


def _days(text: str) -> float | None:
    """Parse ``30d``, ``12h`` or ``30`` as days; return None for ``never``."""
    if text == "never":
        return None
    number, hours = (text[:-1], 24.0) if text.endswith("h") else (text.removesuffix("d"), 1.0)
    try:
        return float(number) / hours
    except ValueError:
        raise BadArgument(
            "--expires", text, "must be days or hours such as 30d or 12h, or never"
        ) from None


def _create_token(options: argparse.Namespace, engine: Engine, wish: Wish) -> int:
    from leakline_server.security import token_issuing
    from leakline_server.store.maintenance.disk_space import place_of

    token, secret = token_issuing.issue(engine, wish, time.time())
    known = token_issuing.to_json(token)
    if options.json:
        print(json.dumps({**known, "token": secret}, indent=2))
        return 0
    what = f"writes to project {token.project}" if token.project else f"has scope {token.scope}"
    until = f"expires {known['expires_at']}" if known["expires_at"] else "never expires"
    print(
        f"token {token.id} {what} and {until}; it is stored in {place_of(engine.url)}. It is shown only this once:",
        file=sys.stderr,
    )
    print(secret)
    return 0


def _list_tokens(options: argparse.Namespace, engine: Engine, _: None) -> int:
    from leakline_server.security import token_issuing
    from leakline_server.store import access
    from leakline_server.store.maintenance.disk_space import place_of

    items = [token_issuing.to_json(token) for token in access.list_tokens(engine)]
    if options.json:
        print(json.dumps({"items": items, "next": None}, indent=2))
    elif not items:
        print(f"no tokens in {place_of(engine.url)}; create one with: leakline token create")
    else:
        print(columns_text([_TOKEN_HEADINGS, *map(_token_row, items)]))
    return 0


def _revoke_token(options: argparse.Namespace, engine: Engine, _: None) -> int:
    from leakline_server.security import token_issuing
    from leakline_server.store.maintenance.disk_space import place_of

    token = token_issuing.revoke(engine, options.id, time.time())
    print(
        f"token {token.id} ({token.name}) has been revoked in {place_of(engine.url)}; a running server rejects "
        "it within seconds"
    )
    return 0


_TOKEN_HEADINGS = ("ID", "NAME", "PREFIX", "SCOPE", "STATE", "EXPIRES", "LAST USED")


def _token_row(item: dict[str, Any]) -> tuple[str, ...]:
    of = item["project"] or item["run"]
    scope = f"{item['scope']} {of}" if of else item["scope"]
    return (
        str(item["id"]),
        item["name"],
        f"{item['prefix']}…",
        f"{scope} (browser)" if item["browser"] else scope,
        item["state"],
        item["expires_at"] or "never",
        item["last_used_at"] or "never",
    )


PASSWORD_HELP: Final = """\
Set or remove the password with which administrators sign in to the dashboard.

The database stores an argon2 hash. Changing the password ends the sessions
that were started with the old password. LEAKLINE_ADMIN_PASSWORD, if set,
replaces the password when the server next starts.

example: leakline password
         printf %s "$SECRET" | leakline password --stdin
         leakline password --remove
"""


def configure_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stdin",
        action="store_true",
        help="read the password from standard input instead of asking for it",
    )
    parser.add_argument("--remove", action="store_true", help="remove the password")
    parser.add_argument(
        "--database-url", metavar="URL",
            help="URL of the database (default: LEAKLINE_DATABASE_URL, otherwise .leakline-server/leakline.db)",
    )  # fmt: skip


def main_password(options: argparse.Namespace) -> int:
    try:
        from leakline_server import admin
        from leakline_server.security.credentials import check_password, hash_password
        from leakline_server.store import access
        from leakline_server.store.maintenance.disk_space import place_of
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing); install it with: pip install 'leakline[server]'"
        ) from None
    hashed = None
    if not options.remove:
        try:
            hashed = hash_password(check_password(_asked_password(options.stdin)))
        except ValueError as error:
            raise BadArgument("password", "...", str(error)) from None
    with admin.opened_at(options.database_url, new=not options.remove) as engine:
        was_there = access.set_password(engine, hashed)
        place = place_of(engine.url)
    if options.remove:
        done = "the password has been removed from" if was_there else "no password was set in"
        print(f"{done} {place}")
    else:
        print(f"the password is set in {place}; use it to sign in to the dashboard")
    return 0


def _asked_password(stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise LeaklineError("cannot ask for the password without a terminal; use --stdin")
    first = getpass.getpass("New password: ")
    if getpass.getpass("Repeat the password: ") != first:
        raise LeaklineError("the passwords do not match; nothing was changed")
    return first


WEBHOOK_HELP: Final = """\
Send a signed test message to the alert webhook and print the response.

The command uses the settings of the server, such as LEAKLINE_WEBHOOK_URL, and
its database, which stores a generated secret. The server does not have to run.
A successful test enables a webhook that was disabled.

example: LEAKLINE_WEBHOOK_URL=https://hooks.example.com/leakline leakline webhook test
"""


def configure_webhook(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["test"], help="send a test message")
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="URL of the database (default: LEAKLINE_DATABASE_URL, otherwise .leakline-server/leakline.db)",
    )


def main_webhook(options: argparse.Namespace) -> int:
    """Send a test message and return 0. Raises LeaklineError if the message is not accepted or a setting is invalid."""
    try:
        from leakline_server.admin import at, check_webhook
        from leakline_server.alerts.sending.http_post import Delivered
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing); install it with: pip install 'leakline[server]'"
        ) from None
    checked = check_webhook(at(options.database_url or None))
    if checked.made_secret is not None:
        print(
            f"generated a webhook secret and stored it in {checked.database}; it is shown only this once: "
            f"{checked.made_secret}"
        )
    if not isinstance(checked.outcome, Delivered):
        raise LeaklineError(f"webhook {checked.where}: {checked.outcome.reason}")
    status = checked.outcome.status
    said = "accepted the message" if status is None else f"answered {status}"
    print(
        f"webhook {checked.where}: {said} after {checked.outcome.seconds:.2f} s "
        f"(format: {checked.form}, database: {checked.database})"
    )
    return 0


DB_HELP: Final = """\
Back up, restore or upgrade the database of a server.

A backup can be made while the server runs. Stop the server before a restore or
an upgrade.

example: leakline db backup leakline-monday.db
         leakline db restore leakline-monday.db
"""


def configure_db(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    upgrade = actions.add_parser(
        "upgrade", help="upgrade the schema to this version; starting the server does this too"
    )
    backup = actions.add_parser(
        "backup", help="back up an SQLite database, even while a server runs"
    )
    backup.add_argument("file", metavar="FILE", type=Path, help="file to create")
    restore = actions.add_parser("restore", help="replace the SQLite database with a backup")
    restore.add_argument("file", metavar="FILE", type=Path, help="file created by db backup")
    for action, run in (
        (upgrade, _upgrade_database),
        (backup, _back_up_database),
        (restore, _restore_database),
    ):
        action.add_argument(
            "--database-url", metavar="URL",
            help="URL of the database (default: LEAKLINE_DATABASE_URL, otherwise .leakline-server/leakline.db)",
        )  # fmt: skip
        action.set_defaults(run_action=run)


def main_db(options: argparse.Namespace) -> int:
    try:
        from leakline_server.config import from_environment, option_of
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing); install it with: pip install 'leakline[server]'"
        ) from None
    variable, url = "LEAKLINE_DATABASE_URL", options.database_url
    given = {} if url is None else {variable: url}
    typed = dict.fromkeys(given, option_of(variable))
    config = from_environment({**os.environ, **given}, typed)
    return int(options.run_action(options, config))


def _upgrade_database(_options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin
    from leakline_server.store.maintenance.disk_space import place_of

    done, place = admin.bring_up_to_date(config), place_of(config.database_url)
    if done.before == done.after:
        print(f"the database {place} is already at schema {done.after}")
    else:
        before = f"at {done.before}" if done.before else "empty"
        print(f"the database {place} is now at schema {done.after}; it was {before}")
    return 0


def _back_up_database(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin
    from leakline_server.store.maintenance.disk_space import place_of

    done = admin.back_up(config, options.file)
    print(
        f"backed up {place_of(config.database_url)} to {options.file}: {format_bytes(done.bytes)}, complete, at schema "
        f"{done.schema or 'none'}"
    )
    return 0


def _restore_database(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin
    from leakline_server.store.maintenance.disk_space import place_of

    done, kept = admin.put_back(config, options.file)
    print(
        f"restored {options.file} to {place_of(config.database_url)}: {format_bytes(done.bytes)}, at schema "
        f"{done.schema}"
    )
    if kept is not None:
        print(f"the previous database is kept as {kept}")
    return 0


COMMANDS: Final = {
    "token": (TOKEN_HELP, configure_token, main_token),
    "password": (PASSWORD_HELP, configure_password, main_password),
    "webhook": (WEBHOOK_HELP, configure_webhook, main_webhook),
    "db": (DB_HELP, configure_db, main_db),
}
