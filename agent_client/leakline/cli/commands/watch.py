"""Watch a process that runs already, from outside, until it ends: time instead of generations, no types.

Reads what the kernel and the driver tell of it: memory by kind, children, GPU memory. How it ended is told as far as
that can be known: whoever has not started a process never learns its exit status. Ctrl-C stops watching, and leaves
the process alone.

example: leakline watch 41723
         leakline watch 41723 --project trading --name night-run
"""

from __future__ import annotations

import argparse
import sys

from ...errors import BadArgument
from ...launcher.process_watch import Watch, check, wait_for_end
from ...launcher.run_summary import closing_words
from ...transport.oom_inference import UNWATCHED
from ..child_programs import ends_by_signals
from .run_ import add_run_options, settings_of

ENDED = "it has ended; how is known to nobody but what started it"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="the number of the process")
    add_run_options(parser)


def main(options: argparse.Namespace) -> int:
    if options.pid <= 0:
        raise BadArgument("PID", options.pid, "must be the number of a process")
    settings = settings_of(options)
    check(options.pid)
    if settings.mode == "disabled":
        return 0
    watch = Watch(settings, options.pid, options.per)
    state, reason = "finished", UNWATCHED
    try:
        with ends_by_signals():
            watch.begin()
            wait_for_end(options.pid)
        killed = watch.killed()
        state, reason = ("killed", killed) if killed else ("finished", ENDED)
    except KeyboardInterrupt:
        pass
    finally:
        watch.end(state, reason)
    # Nobody waits for the end of this process as for that of a training: the verdict may take its time.
    if not settings.quiet:
        # How long it is watched is for whoever stopped that to say, so the program is not called short.
        advised = "" if reason == UNWATCHED else "leakline watch"
        print(f"leakline: {closing_words(settings, command=advised)}", file=sys.stderr)
    return 0
