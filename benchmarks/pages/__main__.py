"""Measure the cost of Leakline's pages in a real Chromium with a real server.

    make bench-pages                  prints a table for each part, then every figure with its target
    make bench-pages CHECK=1          exits with 1 when a target is missed or could not be measured

    ROWS=open,update,list             some of them
    SHORT=1                           one short pass, to check that it works; CHECK=1 always fails with it
    BENCH_ARGS="--json FILE --markdown FILE"

Nothing is cached when a page is opened, and server and browser share the machine's cores.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Final

from benchmarks.program import Program
from benchmarks.server.feeding import SHORT
from benchmarks.server.machine import end_with_all_that_was_started
from benchmarks.server.rows import Part
from playwright.sync_api import Browser

from . import listing, opening, updating
from .browser import chromium


def _in_browser(measure: Callable[[Browser], list[Part]]) -> Callable[[], list[Part]]:
    def measured() -> list[Part]:
        with chromium() as browser:
            return measure(browser)

    return measured


PROGRAM: Final = Program(
    "pages",
    __doc__,
    {
        "open": _in_browser(opening.measure),
        "update": _in_browser(updating.measure),
        "list": _in_browser(listing.measure),
    },
    SHORT,
)


def main() -> int:
    end_with_all_that_was_started()
    return PROGRAM.run(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()},"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
