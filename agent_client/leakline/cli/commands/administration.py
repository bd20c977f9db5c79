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
Tokens of a server: what programs show to be let in, each for one thing.

ingest adds to one project and reads nothing, read reads everything, admin does all. The token is shown this once, alone
on standard output. Works on the database of the server (LEAKLINE_DATABASE_URL), which may run meanwhile or be new.

example: export LEAKLINE_TOKEN=$(leakline token create --project erl-trading)
         leakline token create --scope admin --name me --expires 30d
         leakline token list
         leakline token revoke 3
"""


def configure_token(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make one and show it, this once")
    create.add_argument(
        "--scope", choices=["ingest", "read", "admin"], default="ingest", help="what it is for (default ingest)"
    )  # fmt: skip
    create.add_argument(
        "--project", help="of an ingest token (LEAKLINE_PROJECT, else default); it adds to no other"
    )
    create.add_argument("--name", default="", help="what you call it; default: what it is for")
    create.add_argument(
        "--expires", default="365d", help="after so many days or hours, such as 30d or 12h, or never (default 365d)"
    )  # fmt: skip
    create.add_argument(
        "--browser", action="store_true", help="for pages of other origins (LEAKLINE_ALLOWED_ORIGINS)"
    )  # fmt: skip
    listing = actions.add_parser("list", help="what there is, newest first; never the tokens")
    revoke = actions.add_parser("revoke", help="let nobody in with it any more")
    revoke.add_argument("id", type=int, help="as leakline token list shows it")
    for action, run in ((create, _create_token), (listing, _list_tokens), (revoke, _revoke_token)):
        action.add_argument(
            "--database-url", metavar="URL", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
        )  # fmt: skip
        if action is not revoke:
            action.add_argument("--json", action="store_true", help="the same for programs")
        action.set_defaults(run_action=run)


def main_token(options: argparse.Namespace) -> int:
    try:
        from leakline_server import admin
        from leakline_server.errors import RequestRefused
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing): pip install 'leakline[server]'"
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

    token, secret = token_issuing.issue(engine, wish, time.time())
    known = token_issuing.to_json(token)
    if options.json:
        print(json.dumps({**known, "token": secret}, indent=2))
        return 0
    what = f"adds to project {token.project}" if token.project else f"is for {token.scope}"
    until = f"until {known['expires_at']}" if known["expires_at"] else "for ever"
    print(f"token {token.id} {what}, {until}; shown only this once:", file=sys.stderr)
    print(secret)
    return 0


def _list_tokens(options: argparse.Namespace, engine: Engine, _: None) -> int:
    from leakline_server.security import token_issuing
    from leakline_server.store import access

    items = [token_issuing.to_json(token) for token in access.list_tokens(engine)]
    if options.json:
        print(json.dumps({"items": items, "next": None}, indent=2))
    elif not items:
        print("no tokens; make one with: leakline token create")
    else:
        print(columns_text([_TOKEN_HEADINGS, *map(_token_row, items)]))
    return 0


def _revoke_token(options: argparse.Namespace, engine: Engine, _: None) -> int:
    from leakline_server.security import token_issuing

    token = token_issuing.revoke(engine, options.id, time.time())
    print(f"token {token.id} ({token.name}) is revoked; a running server follows within seconds")
    return 0


_TOKEN_HEADINGS = ("ID", "NAME", "BEGINS", "FOR", "STATE", "EXPIRES", "LAST USED")


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
        item["last_used_at"] or "not yet",
    )


PASSWORD_HELP: Final = """\
The password with which administrators sign in on the pages of a server. Kept as argon2 in its database.

Whoever signed in with the one before is signed out. LEAKLINE_ADMIN_PASSWORD of the server wins at its next start.

example: leakline password
         printf %s "$SECRET" | leakline password --stdin
         leakline password --remove
"""


def configure_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stdin", action="store_true", help="read it there, and ask nothing")
    parser.add_argument("--remove", action="store_true", help="there is none any more")
    parser.add_argument(
        "--database-url", metavar="URL", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
    )  # fmt: skip


def main_password(options: argparse.Namespace) -> int:
    try:
        from leakline_server import admin
        from leakline_server.security.credentials import check_password, hash_password
        from leakline_server.store import access
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing): pip install 'leakline[server]'"
        ) from None
    hashed = None
    if not options.remove:
        try:
            hashed = hash_password(check_password(_asked_password(options.stdin)))
        except ValueError as error:
            raise BadArgument("password", "...", str(error)) from None
    with admin.opened_at(options.database_url, new=not options.remove) as engine:
        was_there = access.set_password(engine, hashed)
    if options.remove:
        print("the password is removed" if was_there else "there was no password")
    else:
        print("the password is set; sign in with it on the pages of the server")
    return 0


def _asked_password(stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise LeaklineError("there is no terminal to ask for the password: use --stdin")
    first = getpass.getpass("New password: ")
    if getpass.getpass("Once more: ") != first:
        raise LeaklineError("the two were not the same; nothing was changed")
    return first


WEBHOOK_HELP: Final = """\
Send a signed test message to the alert webhook and say what came back.

Reads the settings of the server: LEAKLINE_WEBHOOK_URL, LEAKLINE_WEBHOOK_SECRET, LEAKLINE_WEBHOOK_ALLOW and
LEAKLINE_DATABASE_URL, where the secret is kept if it was made. The server need not run. A webhook that was
disabled because its receiver answered 410 is enabled again when the test arrives.

example: LEAKLINE_WEBHOOK_URL=https://hooks.example.com/leakline leakline webhook test
"""


def configure_webhook(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["test"], help="what to do")
    parser.add_argument(
        "--database-url", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
    )


def main_webhook(options: argparse.Namespace) -> int:
    """Send a test message. Return 0 if it was accepted; raises LeaklineError if not, or if settings are invalid."""
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


DB_HELP: Final = """\
Back up, restore or upgrade the database of a server.

Reads the settings of the server (LEAKLINE_DATABASE_URL). A backup may be made while the server runs; stop it before
restore and upgrade.

example: leakline db backup leakline-monday.db
         leakline db restore leakline-monday.db
"""


def configure_db(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    upgrade = actions.add_parser(
        "upgrade", help="bring the database to this version, as a start does"
    )
    backup = actions.add_parser("backup", help="copy an SQLite database, also while a server runs")
    backup.add_argument("file", metavar="FILE", type=Path, help="a new file")
    restore = actions.add_parser("restore", help="put a backup in the place of the SQLite database")
    restore.add_argument("file", metavar="FILE", type=Path, help="a file of db backup")
    for action, run in (
        (upgrade, _upgrade_database),
        (backup, _back_up_database),
        (restore, _restore_database),
    ):
        action.add_argument(
            "--database-url", metavar="URL", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
        )  # fmt: skip
        action.set_defaults(run_action=run)


def main_db(options: argparse.Namespace) -> int:
    try:
        from leakline_server.config import from_environment, option_of
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing): pip install 'leakline[server]'"
        ) from None
    variable, url = "LEAKLINE_DATABASE_URL", options.database_url
    given = {} if url is None else {variable: url}
    typed = dict.fromkeys(given, option_of(variable))
    config = from_environment({**os.environ, **given}, typed)
    return int(options.run_action(options, config))


def _upgrade_database(_options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin

    done = admin.bring_up_to_date(config)
    if done.before == done.after:
        print(f"the database is at schema {done.after} already")
    else:
        print(f"the database is at schema {done.after} now; before: {done.before or 'empty'}")
    return 0


def _back_up_database(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin

    done = admin.back_up(config, options.file)
    print(f"{options.file}: {format_bytes(done.bytes)}, whole, at schema {done.schema or 'none'}")
    return 0


def _restore_database(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin

    done, kept = admin.put_back(config, options.file)
    print(f"restored {options.file}: {format_bytes(done.bytes)}, at schema {done.schema}")
    if kept is not None:
        print(f"what was there is kept as {kept}")
    return 0


COMMANDS: Final = {
    "token": (TOKEN_HELP, configure_token, main_token),
    "password": (PASSWORD_HELP, configure_password, main_password),
    "webhook": (WEBHOOK_HELP, configure_webhook, main_webhook),
    "db": (DB_HELP, configure_db, main_db),
}
