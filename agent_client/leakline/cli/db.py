"""The database of a server: a copy of it, how large it is, what may go, a run as a file.

Reads the settings of the server (LEAKLINE_DATABASE_URL, LEAKLINE_KEEP_DAYS, LEAKLINE_THIN_AFTER_DAYS,
LEAKLINE_KEEP_BYTES). The server may run meanwhile, but for restore, rewrite and upgrade.

example: leakline db backup leakline-monday.db
         leakline db size --json
         LEAKLINE_KEEP_DAYS=30 leakline db retain --dry-run
         leakline db export 5f2c8d1e9a0b4c37 --format csv --out run.csv
         leakline db partition --parts 16
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import LeaklineError
from ..text_format import count_of, format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    size = actions.add_parser("size", help="bytes of the database and of each project")
    size.add_argument("--json", action="store_true", help="the same in bytes, for programs")
    retain = actions.add_parser("retain", help="remove and thin what the settings say, now")
    retain.add_argument(
        "--dry-run", action="store_true", help="say what would go, and leave it there"
    )
    for name in ("keep-days", "thin-after-days", "keep-bytes"):
        variable = f"LEAKLINE_{name.upper().replace('-', '_')}"
        retain.add_argument(f"--{name}", metavar="LIMIT", help=f"instead of {variable}")
    export = actions.add_parser("export", help="a run as a file")
    export.add_argument("run", help="the id of the run")
    export.add_argument("--format", choices=["json", "csv", "parquet"], default="json")
    export.add_argument("--out", metavar="FILE", type=Path, help="default: standard output")
    rewrite = actions.add_parser(
        "rewrite", help="write an SQLite file anew, so that it can give space back"
    )
    partition = actions.add_parser(
        "partition", help="spread the large tables of Postgres over partitions by run"
    )
    partition.add_argument(
        "--parts", type=int, required=True, help="how many; 0: plain tables again"
    )
    upgrade = actions.add_parser(
        "upgrade", help="bring the database to this version, as a start does"
    )
    backup = actions.add_parser("backup", help="copy an SQLite database, also beside a server")
    backup.add_argument("file", metavar="FILE", type=Path, help="a new file")
    restore = actions.add_parser("restore", help="put a backup in the place of the SQLite database")
    restore.add_argument("file", metavar="FILE", type=Path, help="a file of db backup")
    for action, run in (
        (upgrade, _upgrade),
        (backup, _backup),
        (restore, _restore),
        (size, _size),
        (retain, _retain),
        (export, _export),
        (rewrite, _rewrite),
        (partition, _partition),
    ):
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
    given = {
        "LEAKLINE_DATABASE_URL": options.database_url,
        "LEAKLINE_KEEP_DAYS": getattr(options, "keep_days", None),
        "LEAKLINE_THIN_AFTER_DAYS": getattr(options, "thin_after_days", None),
        "LEAKLINE_KEEP_BYTES": getattr(options, "keep_bytes", None),
    }
    said = {variable: text for variable, text in given.items() if text is not None}
    typed = {variable: option_of(variable) for variable in said}
    config = from_environment({**os.environ, **said}, typed)
    return int(options.run_action(options, config))


def _upgrade(_options: argparse.Namespace, config: Any) -> int:
    from leakline_server import safekeeping

    done = safekeeping.bring_up_to_date(config)
    if done.before == done.after:
        print(f"the database is at schema {done.after} already")
    else:
        print(f"the database is at schema {done.after} now; before: {done.before or 'empty'}")
    return 0


def _backup(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import safekeeping

    done = safekeeping.back_up(config, options.file)
    print(f"{options.file}: {format_bytes(done.bytes)}, whole, at schema {done.schema or 'none'}")
    return 0


def _restore(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import safekeeping

    done, kept = safekeeping.put_back(config, options.file)
    print(f"restored {options.file}: {format_bytes(done.bytes)}, at schema {done.schema}")
    if kept is not None:
        print(f"what was there is kept as {kept}")
    return 0


def _size(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import upkeep
    from leakline_server.store import disk, sizes

    with upkeep.opened(config) as engine:
        upkeep.measure(engine, time.time())
        space, projects = disk.space(engine), sizes.projects(engine)
        address = disk.shown(engine)
    if options.json:
        items = [{"project": p.name, "runs": p.runs, "bytes": p.bytes} for p in projects]
        told = {"database": address, "bytes": space.bytes, "free_bytes": space.free, "items": items}
        print(json.dumps(told, indent=2))
        return 0
    free = f", {format_bytes(space.free)} of it free" if space.free else ""
    print(f"{address}: {format_bytes(space.bytes)}{free}")
    width = max((len(project.name) for project in projects), default=0)
    for project in projects:
        print(
            f"  {project.name:{width}}  {project.runs:>7,} runs  {format_bytes(project.bytes):>11}"
        )
    return 0


def _retain(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import upkeep
    from leakline_server.store.retention import Limits

    if config.limits == Limits():
        raise LeaklineError(
            "nothing is set to go: set LEAKLINE_KEEP_DAYS, LEAKLINE_THIN_AFTER_DAYS or LEAKLINE_KEEP_BYTES"
        )
    with upkeep.opened(config) as engine:
        now = time.time()
        decision, to_thin = upkeep.decide(engine, config.limits, now)
        for going in decision.going:
            days = (now - going.last_seen_at) / 86_400
            because = {
                "age": f"heard of {count_of(round(days), 'day')} ago",
                "size": "its project is too large",
            }
            named = f"{going.run_id}  {going.project}/{going.name}"
            print(f"remove {named}  {format_bytes(going.bytes)}  {because[going.why]}")
        for run_id, _ in to_thin:
            print(f"thin   {run_id}")
        for large in decision.too_large:
            sizes = f"{format_bytes(large.bytes)}, above {format_bytes(large.limit)}"
            print(
                f"{large.project} stays at {sizes}: what is left is live, or tagged keep or baseline"
            )
        size = sum(going.bytes for going in decision.going)
        told = (
            f"{count_of(len(decision.going), 'run')} ({format_bytes(size)}), {len(to_thin)} to thin"
        )
        if options.dry_run:
            print(f"would go: {told}; nothing was changed")
            return 0
        done = upkeep.retain(engine, config.limits, decision, to_thin)
    print(
        f"removed {count_of(done.removed, 'run')}, left {count_of(done.left_out, 'snapshot')} out of "
        f"{count_of(done.thinned_runs, 'run')}"
    )
    return 0


def _export(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import upkeep

    with upkeep.opened(config) as engine:
        pieces = upkeep.exported(engine, options.run, options.format)
        # Before a file is made: a run that is not there makes none.
        first = next(pieces)
        if options.out is None:
            _write(sys.stdout.buffer, first, pieces)
            sys.stdout.buffer.flush()
            return 0
        # A whole file or none: what is cut off must not look like a run.
        partial = options.out.with_name(options.out.name + ".part")
        with partial.open("wb") as file:
            _write(file, first, pieces)
        partial.replace(options.out)
    return 0


def _write(file: BinaryIO, first: bytes, rest: Iterable[bytes]) -> None:
    file.write(first)
    for piece in rest:
        file.write(piece)


def _rewrite(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import upkeep

    before, after = upkeep.rewrite(config)
    print(f"{format_bytes(before)} before, {format_bytes(after)} now")
    return 0


def _partition(options: argparse.Namespace, config: Any) -> int:
    from leakline_server import upkeep

    with upkeep.opened(config) as engine:
        for table in upkeep.partition(engine, options.parts):
            parts = f"{table.parts} partitions" if table.parts else "one plain table"
            print(f"{table.table}: {parts}, {table.rows:,} rows")
    return 0
