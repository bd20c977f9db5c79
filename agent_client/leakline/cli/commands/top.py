"""Show a live view of a run in the terminal.

The view shows the verdict, the current memory and its trend, the phases and
types that grow, and the forecast. It is updated until the run has ended or you
press Ctrl-C. If standard output is not a terminal, one line is printed for
each change. RUN is a run id, or project/name for the newest run of that name.

example: leakline top erl-trading/before-fix
         leakline top 01k5... --once
         leakline top erl-trading/before-fix --once --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TextIO
from urllib.parse import quote

from ...errors import ServerUnreachable
from ...report.terminal_text import Shown, brief, frame
from ..child_programs import ends_by_signals
from ..server_queries import Asker, add_server

EVERY_SECONDS: Final = 2.0
SHORTEST_SECONDS: Final = 0.2
# Escape sequences: enter the alternate screen and hide the cursor; leave the screen and show the cursor; move to the
# top left corner; clear the line from the cursor; clear the screen from the cursor.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id, or project/name")
    parser.add_argument("--once", action="store_true", help="print the current view and exit")
    parser.add_argument(
        "--json", action="store_true", help="with --once, print the view's data as JSON"
    )
    parser.add_argument(
        "--every", type=_seconds, default=EVERY_SECONDS, metavar="SECONDS",
        help=f"seconds between updates (default {EVERY_SECONDS:g})",
    )  # fmt: skip
    add_server(parser)
    parser.set_defaults(usage_error=parser.error)


def main(options: argparse.Namespace) -> int:
    if options.json and not options.once:
        options.usage_error("--json requires --once")
    asker = Asker(options.server)
    run_id = asker.run_id(options.run)
    first = _ask(asker, run_id)
    if options.json:
        asked = ("run", "verdict", "phases", "types")
        print(json.dumps({name: getattr(first, name) for name in asked}, indent=2))
    elif options.once:
        print("\n".join(_frame(first, sys.stdout)))
    else:
        with ends_by_signals():
            _follow(first, lambda: _ask(asker, run_id), options.every)
    return 0


def _follow(first: Shown, ask: Callable[[], Shown], every: float) -> None:
    """Redraw the view until the run has ended or Ctrl-C is pressed."""
    shown = first
    show: Callable[[Shown], None] = _lines()
    if not sys.stdout.isatty():
        for shown in _news(first, ask, every):
            show(shown)
        return
    with _screen(sys.stdout) as show:
        try:
            for shown in _news(first, ask, every):
                show(shown)
        except KeyboardInterrupt:
            pass
    # Print the last frame on the normal screen, so that it remains visible.
    print("\n".join(_frame(shown, sys.stdout)))


def _news(first: Shown, ask: Callable[[], Shown], every: float) -> Iterator[Shown]:
    shown = first
    while True:
        yield shown
        if shown.run["state"] != "running" and not shown.note:
            return
        time.sleep(every)
        try:
            shown = ask()
        except ServerUnreachable as error:
            shown = replace(shown, note=str(error))


def _lines() -> Callable[[Shown], None]:
    """Return a function that prints the state as one line, but only if the line has changed."""
    said: list[str] = []

    def show(shown: Shown) -> None:
        line = shown.note or brief(shown)
        if said != [line]:
            said[:] = [line]
            print(line, flush=True)

    return show


@contextmanager
def _screen(terminal: TextIO) -> Iterator[Callable[[Shown], None]]:
    def show(shown: Shown) -> None:
        lines = (f"{line}{_REST_OF_LINE}" for line in _frame(shown, terminal))
        terminal.write(f"{_HOME}{chr(10).join(lines)}{_REST}")
        terminal.flush()

    terminal.write(_ENTER)
    try:
        yield show
    finally:
        terminal.write(_LEAVE)
        terminal.flush()


def _frame(shown: Shown, out: TextIO) -> list[str]:
    if not out.isatty():
        return frame(shown)
    size = shutil.get_terminal_size()
    return frame(shown, size.columns, size.lines - 1, colours=not os.environ.get("NO_COLOR"))


def _ask(asker: Asker, run_id: str) -> Shown:
    address = f"/runs/{quote(run_id, safe='')}"
    run: Mapping[str, Any] = asker.get(address)
    return Shown(
        run, asker.get(f"{address}/verdict"), asker.get(f"{address}/phases"), asker.get(f"{address}/types")["items"]
    )  # fmt: skip


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_SECONDS <= seconds <= 3600:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be from {SHORTEST_SECONDS} to 3600 seconds"
        )
    return seconds
