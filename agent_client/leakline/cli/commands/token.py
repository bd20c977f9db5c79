"""Tokens of a server: what programs show to be let in, each for one thing.

ingest adds to one project and reads nothing, read reads everything, admin does all. The token is shown this once, alone
on standard output. Works on the database of the server (LEAKLINE_DATABASE_URL), which may run meanwhile or be new.

example: export LEAKLINE_TOKEN=$(leakline token create --project erl-trading)
         leakline token create --scope admin --name me --expires 30d
         leakline token list
         leakline token revoke 3
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from ...errors import BadArgument, LeaklineError
from ...report.document_blocks import columns_text

if TYPE_CHECKING:
    from leakline_server.security.token_issuing import Wish
    from leakline_server.store.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
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
    revoke.add_argument("id", type=int, help="as leakline token list tells it")
    for action, run in ((create, _create), (listing, _list), (revoke, _revoke)):
        action.add_argument(
            "--database-url", metavar="URL", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
        )  # fmt: skip
        if action is not revoke:
            action.add_argument("--json", action="store_true", help="the same for programs")
        action.set_defaults(run_action=run)


def main(options: argparse.Namespace) -> int:
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
    """``30d``, ``12h``, ``30``: days; ``never``: None."""
    if text == "never":
        return None
    number, hours = (text[:-1], 24.0) if text.endswith("h") else (text.removesuffix("d"), 1.0)
    try:
        return float(number) / hours
    except ValueError:
        raise BadArgument(
            "--expires", text, "must be days or hours such as 30d or 12h, or never"
        ) from None


def _create(options: argparse.Namespace, engine: Engine, wish: Wish) -> int:
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


def _list(options: argparse.Namespace, engine: Engine, _: None) -> int:
    from leakline_server.security import token_issuing
    from leakline_server.store import access

    items = [token_issuing.to_json(token) for token in access.list_tokens(engine)]
    if options.json:
        print(json.dumps({"items": items, "next": None}, indent=2))
    elif not items:
        print("no tokens; make one with: leakline token create")
    else:
        print(columns_text([_HEADINGS, *map(_row, items)]))
    return 0


def _revoke(options: argparse.Namespace, engine: Engine, _: None) -> int:
    from leakline_server.security import token_issuing

    token = token_issuing.revoke(engine, options.id, time.time())
    print(f"token {token.id} ({token.name}) is revoked; a running server follows within seconds")
    return 0


_HEADINGS = ("ID", "NAME", "BEGINS", "FOR", "STATE", "EXPIRES", "LAST USED")


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    scope = f"{item['scope']} {item['project']}" if item["project"] else item["scope"]
    return (
        str(item["id"]),
        item["name"],
        f"{item['begins']}…",
        f"{scope} (browser)" if item["browser"] else scope,
        item["state"],
        item["expires_at"] or "never",
        item["last_used_at"] or "not yet",
    )
