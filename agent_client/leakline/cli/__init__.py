"""The `leakline` program: one file a command. A command's module docstring is its help text."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from .. import __version__
from ..errors import LeaklineError
from .printing import open_what_is_closed, plain, plainly

# Modules are imported only when their command is used: `leakline report` must not load the server.
COMMANDS: Final = {
    "serve": "the dashboard and the API",
    "demo": "serve, train a leaking and a fixed run, print the pages to open",
    "run": "start a program as it is, with telemetry",
    "watch": "the same from outside, for a process that runs already",
    "drill": "plant a known leak, run the whole chain, say how right the answer was",
    "report": "the text report of a spool, without any server",
    "sync": "upload what the server has not got",
    "import": "make a run of an old log: printed blocks, CSV, W&B, MLflow, psrecord, mprof",
    "runs": "list the runs of a server",
    "verdict": "the verdict of one run",
    "compare": "the comparison of two runs; a gate for CI",
    "top": "a live view of a run in the terminal",
    "estimate": "check a sum such as '208 x 100 KB = 20 GB', also by what a run measured",
    "token": "what programs show to a server that asks who they are: make, list, revoke",
    "password": "the password to sign in with on the pages of a server",
    "webhook": "test the alert webhook",
    "db": "the database of a server: backup, size, retention, a run as a file",
}

# A keyword of Python names no module.
_FILES: Final = {"import": "import_"}

# They command the terminal themselves; names reach it through `report/frame.py`, or are of their own programs.
_DRAWS: Final = frozenset({"serve", "demo", "drill", "top"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 failed, 2 wrong use, others as the command says."""
    open_what_is_closed()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((a for a in arguments if not a.startswith("-")), None)
    parser = _Parser(
        prog="leakline",
        description="Live memory telemetry for training runs.",
        epilog="example: leakline serve, then in another terminal: leakline runs",
    )
    parser.add_argument("--version", action="version", version=f"leakline {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, summary in COMMANDS.items():
        if command != name:
            commands.add_parser(command, help=summary, add_help=False)
            continue
        module = importlib.import_module(f".{_FILES.get(command, command)}", __name__)
        child = commands.add_parser(
            command,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(child)
        child.set_defaults(main=module.main, refuse=child.error)
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            # By the command, whose help says what there is.
            options.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        if name in _DRAWS:
            return int(options.main(options))
        with plainly():
            return int(options.main(options))
    except LeaklineError as error:
        print(plain(f"leakline: {error}"), file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader of a pipe (`leakline runs | head`) has what it wanted.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Wrong use is one line as well: what was wrong, and where the right use stands."""

    def error(self, message: str) -> NoReturn:
        line = plain(" ".join(message.split()))
        self.exit(2, f"{self.prog}: {line}; see: {self.prog} --help\n")
