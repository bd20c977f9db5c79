"""The text report of a recorded run, without any server: snapshot, trend, growth, large objects, verdict.

PATH is a spool (*.spool), the folder of one run, or a folder of runs such as .leakline.

example: leakline report .leakline
         leakline report .leakline/1a1f9383687f60fa84567 --since "Debug checkpoint 1"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..report import report_text


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a spool or a folder with spools")
    parser.add_argument(
        "--since", metavar="LABEL", help="compare with this snapshot, not the first"
    )


def main(options: argparse.Namespace) -> int:
    print(report_text(options.path, options.since))
    return 0
