"""Back up, restore or upgrade the database of a server.

Reads the settings of the server (LEAKLINE_DATABASE_URL). A backup may be made while the server runs; stop it before
restore and upgrade.

example: leakline db backup leakline-monday.db
         leakline db restore leakline-monday.db
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ...errors import LeaklineError
from ...text_format import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    upgrade = actions.add_parser(
        "upgrade", help="bring the database to this version, as a start does"
    )
    backup = actions.add_parser("backup", help="copy an SQLite database, also beside a server")
    backup.add_argument("file", metavar="FILE", type=Path, help="a new file")
    restore = actions.add_parser("restore", help="put a backup in the place of the SQLite database")
    restore.add_argument("file", metavar="FILE", type=Path, help="a file of db backup")
    for action, run in ((upgrade, _upgrade), (backup, _backup), (restore, _restore)):
        action.add_argument(
            "--database-url", metavar="URL", help="default: LEAKLINE_DATABASE_URL, else .leakline-server/leakline.db"
        )  # fmt: skip
        action.set_defaults(run_action=run)


def main(options: argparse.Namespace) -> int:
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


def _upgrade(_options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin

    done = admin.bring_up_to_date(config)
    if done.before == done.after:
        print(f"the database is at schema {done.after} already")
    else:
        print(f"the database is at schema {done.after} now; before: {done.before or 'empty'}")
    return 0


def _backup(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin

    done = admin.back_up(config, options.file)
    print(f"{options.file}: {format_bytes(done.bytes)}, whole, at schema {done.schema or 'none'}")
    return 0


def _restore(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import admin

    done, kept = admin.put_back(config, options.file)
    print(f"restored {options.file}: {format_bytes(done.bytes)}, at schema {done.schema}")
    if kept is not None:
        print(f"what was there is kept as {kept}")
    return 0
