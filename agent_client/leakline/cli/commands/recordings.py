"""Commands for recordings (spools): `leakline report` reads them without a server, `leakline sync` uploads them."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Final

from ... import __version__
from ...errors import ServerRefused, SpoolError
from ...report import report_items, report_markdown, report_text, spools_by_run
from ...report.document import Origin
from ...settings import resolve
from ...text_format import format_utc
from ...transport.http_delivery import Delivery
from ...transport.orphan_recovery import settle, upload_sentence
from ...transport.spool_format import read_header
from ...transport.spool_upload import upload

REPORT_HELP: Final = """\
Print the text report of a recorded run, without a server.

The report contains the last snapshot, the trend, growth, large objects and the
verdict. PATH is a spool (*.spool), the folder of one run, or a folder of runs
such as .leakline.

example: leakline report .leakline
         leakline report .leakline/1a1f9383687f60fa84567 --since "Debug checkpoint 1"
         leakline report .leakline --markdown > report.md
"""


def configure_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a spool or a folder with spools")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--since", metavar="LABEL", help="compare with this snapshot instead of the first snapshot"
    )
    form.add_argument(
        "--markdown", action="store_true",
        help="print the verdict, the memory by phase, and the types as Markdown, to paste into an issue",
    )  # fmt: skip
    form.add_argument("--json", action="store_true", help="print JSON with one item per run")


def main_report(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"items": report_items(options.path)}, indent=2))
    elif options.markdown:
        origin = Origin(format_utc(time.time()), __version__)
        print(report_markdown(options.path, origin), end="")
    else:
        print(report_text(options.path, options.since))
    return 0


SYNC_HELP: Final = """\
Upload recorded data that the server does not have yet.

PATH is a spool (*.spool), the folder of one run, or a folder of runs such as
.leakline. Repeating an upload changes nothing. Data that cannot be read or
that the server refuses is counted, and the exit status is then 1.

example: leakline sync .leakline
         leakline sync .leakline --server http://10.0.0.5:8765
"""

TIMEOUT_SECONDS = 30.0


def configure_sync(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a spool or a folder with spools")
    parser.add_argument(
        "--server",
        help="address of the server (default: LEAKLINE_SERVER, otherwise http://127.0.0.1:8765)",
    )
    parser.add_argument(
        "--again", action="store_true",
        help="also send what the server has accepted, or refused because of resume",
    )  # fmt: skip
    parser.add_argument(
        "--allow-damage",
        action="store_true",
        help="exit with status 0 even if part of a recording cannot be read",
    )


def _turn(path: Path) -> tuple[bool, float]:
    """Return the sort key for uploads: main processes first, because an attempt may require that it is the first."""
    try:
        header, process = read_header(path)
    except SpoolError:
        return True, 0.0
    return process.role != "main", header.started_at


def main_sync(options: argparse.Namespace) -> int:
    settings = resolve(server=options.server)
    delivery = Delivery(settings.server, settings.token, TIMEOUT_SECONDS, ca_file=settings.ca_file)
    failed = 0
    for spools in spools_by_run(options.path):
        for path in sorted(spools, key=_turn):
            try:
                settle(path)
                done = upload(path, delivery, again=options.again)
            except SpoolError as error:
                # Continue: a broken file must not keep other files from being uploaded.
                print(f"{os.path.relpath(path)}: skipped, {error}")
                failed = 1
                continue
            except ServerRefused as error:
                # Continue after a refused file, too.
                print(
                    f"{os.path.relpath(path)}: refused by {settings.server} ({error.status}: {error})"
                )
                failed = 1
                continue
            print(f"{done.name}: {upload_sentence(done)} {settings.server}/runs/{done.run}")
            is_whole = options.allow_damage or done.held is None or done.held.is_whole
            if done.refused or not is_whole:
                failed = 1
    delivery.close()
    return failed


COMMANDS: Final = {
    "report": (REPORT_HELP, configure_report, main_report),
    "sync": (SYNC_HELP, configure_sync, main_sync),
}
