"""The password with which administrators sign in on the pages of a server. Kept as argon2 in its database.

Whoever signed in with the one before is signed out. LEAKLINE_ADMIN_PASSWORD of the server wins at its next start.

example: leakline password
         printf %s "$SECRET" | leakline password --stdin
         leakline password --remove
"""

from __future__ import annotations

import argparse
import getpass
import sys

from ...errors import BadArgument, LeaklineError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stdin", action="store_true", help="read it there, and ask nothing")
    parser.add_argument("--remove", action="store_true", help="there is none any more")
    parser.add_argument(
        "--database-url", metavar="URL", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
    )  # fmt: skip


def main(options: argparse.Namespace) -> int:
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
            hashed = hash_password(check_password(_asked(options.stdin)))
        except ValueError as error:
            raise BadArgument("password", "...", str(error)) from None
    with admin.opened_at(options.database_url, new=not options.remove) as engine:
        was_there = access.set_password(engine, hashed)
    if options.remove:
        print("the password is removed" if was_there else "there was no password")
    else:
        print("the password is set; sign in with it on the pages of the server")
    return 0


def _asked(stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise LeaklineError("there is no terminal to ask for the password: use --stdin")
    first = getpass.getpass("New password: ")
    if getpass.getpass("Once more: ") != first:
        raise LeaklineError("the two were not the same; nothing was changed")
    return first
