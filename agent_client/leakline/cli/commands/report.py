"""The text report of a recorded run, without any server: snapshot, trend, growth, large objects, verdict.

PATH is a spool (*.spool), the folder of one run, or a folder of runs such as .leakline.

example: leakline report .leakline
         leakline report .leakline/1a1f9383687f60fa84567 --since "Debug checkpoint 1"
         leakline report .leakline --markdown > report.md
         leakline report .leakline --json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ... import __version__
from ...report import report_items, report_markdown, report_text
from ...report.document import Origin
from ...text_format import format_utc


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a spool or a folder with spools")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--since", metavar="LABEL", help="compare with this snapshot, not the first")
    form.add_argument(
        "--markdown", action="store_true",
        help="verdict, books and types in Markdown, to go with an issue",
    )  # fmt: skip
    form.add_argument("--json", action="store_true", help="the same for programs, a run an item")


def main(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"items": report_items(options.path)}, indent=2))
    elif options.markdown:
        origin = Origin(format_utc(time.time()), __version__)
        print(report_markdown(options.path, origin), end="")
    else:
        print(report_text(options.path, options.since))
    return 0
