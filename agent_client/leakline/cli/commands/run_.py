"""The commands `leakline run` and `leakline watch`, which record programs that do not call Leakline."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...analysis.generation_axis import UNITS_OF_TIME
from ...console import Notices, set_up
from ...core.exit_status import end_of
from ...core.process_tree import readable_name
from ...errors import BadArgument, LeaklineError, ServerRefused, ServerUnreachable, SpoolError
from ...launcher.program_launch import (
    Inside,
    Program,
    Watch,
    check,
    check_inside,
    leave_as,
    plan_for,
    wait_for_end,
    why_not_malloc,
)
from ...launcher.run_summary import closing_words
from ...probes.native_module import why_not_native
from ...settings import MODES, Settings, resolve
from ...transport.http_delivery import Delivery, not_accepted
from ...transport.oom_inference import UNWATCHED
from ...transport.orphan_recovery import settle
from ...transport.spool_format import read_header
from ...transport.spool_upload import upload
from ..child_programs import ends_by_signals

RUN_HELP: Final = """\
Run an unmodified program with telemetry.

The program after -- runs as usual: it uses the same terminal and receives the
signals, and leakline run exits with the program's exit status. In a Python
program, memory, types and child processes are measured. A generation is an
epoch or a number of steps if the program trains with PyTorch, Lightning,
Transformers, Keras or Stable-Baselines3, otherwise a second or, after ten
minutes, a minute. --per sets it. All ranks of torchrun belong to one run.
Programs not written in Python are observed from outside. A program that calls
leakline.init takes over the run.

Growth per second is called a leak after five minutes, or when the program has
ended: until then, it may be loading its data.

example: leakline run -- python train.py --epochs 30
         leakline run --project trading --name before-fix -- torchrun --nproc-per-node 2 train.py
         leakline run --mode offline -- python short.py
"""

UNIT: Final = "second"
# Time limits after the program has ended: for each request, and for all these requests together. An unresponsive server
# must not delay the exit status for long.
ANSWER_SECONDS = 2.0
AFTERWARDS_SECONDS = 10.0


def configure_run(parser: argparse.ArgumentParser) -> None:
    _add_run_options(parser)
    parser.add_argument(
        "--children", action="store_true",
        help="also observe the Python programs that the program starts, not only their total memory",
    )  # fmt: skip
    parser.add_argument(
        "--native", action="store_true",
        help="name the library whose malloc memory grows; samples allocations once memory has risen (Linux with glibc)",
    )  # fmt: skip
    parser.add_argument(
        "--log-lines",
        action="store_true",
        help="record the newest 50 lines that the program prints",
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM ...",
        help="the program and its arguments",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that correspond to arguments of `leakline.init`."""
    parser.add_argument(
        "--project",
        help='project of the run (default: LEAKLINE_PROJECT, otherwise the token\'s project, otherwise "default")',
    )
    parser.add_argument(
        "--name", help="name of the run (default: LEAKLINE_RUN_NAME, otherwise a generated name)"
    )
    parser.add_argument(
        "--tag", action="append", default=[], dest="tags", metavar="TAG",
        help="tag of the run; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--server",
        help="address of the server (default: LEAKLINE_SERVER, otherwise http://127.0.0.1:8765)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="send data to the server, only record a spool, or neither (default: LEAKLINE_MODE, otherwise online)",
    )
    parser.add_argument(
        "--directory", metavar="DIR", help="folder for the spool (default: LEAKLINE_DIR, otherwise .leakline)"
    )  # fmt: skip
    parser.add_argument(
        "--per", choices=tuple(UNITS_OF_TIME),
        help="unit in which growth is judged (default: generations found in the program, otherwise second)",
    )  # fmt: skip
    parser.add_argument(
        "--quiet", action="store_true", default=None, help="do not print Leakline's own messages"
    )


def _settings_of(options: argparse.Namespace) -> Settings:
    settings = resolve(
        project=options.project, name=options.name, tags=options.tags or None, server=options.server,
        mode=options.mode, directory=options.directory, quiet=options.quiet,
    )  # fmt: skip
    # Choose the name here, because otherwise each process of the run would choose its own.
    return replace(settings, name=settings.name or readable_name(settings.run_id))


def main_run(options: argparse.Namespace) -> int:
    """Run the program and return its exit status. If a signal ended the program, end by the same signal."""
    command = _command(options.program)
    settings = _settings_of(options)
    if settings.mode == "disabled":
        return _as_it_is(command)
    set_up()
    notices = Notices(settings.quiet or settings.rank > 0)
    unit = options.per or UNIT
    plan = plan_for(
        unit, options.tags, children=options.children, log_lines=options.log_lines,
        is_automatic=options.per is None,
    )  # fmt: skip
    if why_not := options.native and why_not_malloc():
        notices.say(f"--native has no effect, because {why_not}")
    try:
        program = Program(command, settings, plan, preloads=options.native and not why_not)
        program.start()
        notices.say(_hello(settings))
        if why_not_native() is not None:
            notices.say(
                f"types are counted only in training loops that Leakline finds, because {why_not_native()}; to count"
                " them everywhere, install a C compiler and reinstall leakline"
            )
        status = _follow(program, settings, unit)
    finally:
        shutil.rmtree(plan.seen, ignore_errors=True)
    words = _afterwards(program, settings, end_of(status))
    if words:
        notices.say(words)
    return leave_as(status)


def _command(words: Sequence[str]) -> list[str]:
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise BadArgument("PROGRAM", "", "is missing; use: leakline run -- python train.py")
    return command


def _as_it_is(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise BadArgument("PROGRAM", command[0], f"cannot be started ({error.strerror})") from None


def _hello(settings: Settings) -> str:
    if settings.mode == "online":
        return f"run {settings.name} -> {settings.url}"
    where = settings.run_directory
    return f"run {settings.name} records to {where}; upload it with: leakline sync {where}"


def _follow(program: Program, settings: Settings, unit: str) -> int:
    """Wait for the program to end. If it does not observe itself, watch it from outside."""
    if program.is_seen():
        return program.wait()
    try:
        watch = Watch(settings, program.pid, unit, is_silent=True)
    except LeaklineError:
        # The program has already ended, so there is nothing to watch.
        return program.wait()
    watch.begin()
    status = program.wait()
    state, reason = end_of(status)
    killed = watch.killed() if reason == "SIGKILL" else None
    watch.end(*(("killed", killed) if killed else (state, reason)))
    return status


def _afterwards(program: Program, settings: Settings, end: tuple[str, str]) -> str:
    """Send the remaining data within the time limit; return the last line to print."""
    where = settings.run_directory
    words = f"recorded; for the verdict: leakline report {where}"
    if settings.mode == "online":
        words = f"some data was not sent; upload it with: leakline sync {where}"
    with program.afterwards(AFTERWARDS_SECONDS):
        _settle_all(settings, program.pid, end)
        unsent = _send_what_is_left(settings) if settings.mode == "online" else ""
        if unsent:
            words = f"{unsent}; upload it with: leakline sync {where}"
        elif settings.mode == "online":
            words = f"the verdict is not ready yet; see it in a few seconds at {settings.url}"
        if not (settings.quiet or settings.rank > 0):
            words = closing_words(settings, unsent=unsent)
    return words


def _settle_all(settings: Settings, pid: int, end: tuple[str, str] | None = None) -> None:
    """Record the end of each process that could not record its own end, for example because it was killed.

    A program that starts its own run records the end itself, unless that run was still active when the program ended.
    ``end``: the end of the process ``pid``, if it is known.
    """
    for path in sorted(settings.run_directory.glob("*.spool")):
        with suppress(SpoolError):
            settle(path, end if _is_of(path, pid) else None)


def _send_what_is_left(settings: Settings) -> str:
    """Upload the pending data of all processes. Return the reason for a failure, or an empty string.

    Data is pending if a process was killed, had no server for a while, or ended too soon to send it. If the server does
    not respond, it is not contacted again.
    """
    unsent = ""
    delivery = Delivery(
        settings.server, settings.token, timeout_seconds=ANSWER_SECONDS, ca_file=settings.ca_file
    )
    with closing(delivery):
        for path in sorted(settings.run_directory.glob("*.spool")):
            try:
                upload(path, delivery)
            except ServerUnreachable as error:
                return error.sentence
            except ServerRefused as error:
                unsent = not_accepted(settings.server, error.status, str(error))
            except SpoolError:
                continue
    return unsent


def _is_of(path: Path, pid: int) -> bool:
    """Return True if the spool is readable and belongs to the process."""
    try:
        return read_header(path)[1].pid == pid
    except SpoolError:
        return False


WATCH_HELP: Final = """\
Watch a running process from outside until it ends.

Once per time interval, the command measures memory by kind, child processes
and GPU memory. It cannot see object types or the exit status; the reason for
the end is inferred if possible. Ctrl-C stops watching and leaves the process
running.

With --inside, an observer starts in a program of Python 3.14 or newer and
also records types, as with leakline run. Use the Python version of the program.
The observer stays until the program ends, even after Ctrl-C.

example: leakline watch 41723
         leakline watch 41723 --inside --project trading --name night-run
"""

# How long to wait for a program to run Python code before the user is informed.
RUNS_PYTHON_WITHIN_SECONDS = 10.0
ENDED = "the process has exited; its exit status is not available"


def configure_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="process id")
    parser.add_argument(
        "--inside",
        action="store_true",
        help="observe a program of Python 3.14 or newer from inside, until it ends",
    )
    _add_run_options(parser)


def main_watch(options: argparse.Namespace) -> int:
    if options.pid <= 0:
        raise BadArgument("PID", options.pid, "must be a process id")
    settings = _settings_of(options)
    (check_inside if options.inside else check)(options.pid)
    if settings.mode == "disabled":
        return 0
    if options.inside:
        return _watch_inside(options, settings)
    watch = Watch(settings, options.pid, options.per or UNIT)
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
    # Unlike in `leakline run`, nobody is waiting for an exit status, so the verdict may take longer.
    if not settings.quiet:
        print(f"leakline: {closing_words(settings)}", file=sys.stderr)
    return 0


def _watch_inside(options: argparse.Namespace, settings: Settings) -> int:
    set_up()
    notices, pid, begun = Notices(settings.quiet), options.pid, False
    plan = plan_for(
        options.per or UNIT, options.tags, children=False, log_lines=False, is_automatic=False
    )
    try:
        inside = Inside(settings, pid, plan)
        try:
            with ends_by_signals():
                inside.start()
                begun = inside.has_begun(RUNS_PYTHON_WITHIN_SECONDS)
                if not begun:
                    notices.say(f"recording starts when process {pid} returns to Python code")
                    begun = inside.has_begun(math.inf)
                if begun:
                    notices.say(_hello(settings))
                wait_for_end(pid)
        except KeyboardInterrupt:
            if not begun:
                inside.withdraw()
            notices.say(_left(settings, pid) if begun else "stopped; nothing was recorded")
            return 0
    finally:
        shutil.rmtree(plan.seen, ignore_errors=True)
    _settle_all(settings, pid)
    unsent = _send_what_is_left(settings) if settings.mode == "online" else ""
    if words := closing_words(settings, unsent=unsent):
        notices.say(words)
    return 0


def _left(settings: Settings, pid: int) -> str:
    where = f"; for the verdict: leakline report {settings.run_directory}"
    if settings.mode == "online":
        where = f" -> {settings.url}"
    return f"process {pid} is recorded from inside until it ends{where}"


COMMANDS: Final = {
    "run": (RUN_HELP, configure_run, main_run),
    "watch": (WATCH_HELP, configure_watch, main_watch),
}
