"""The `leakline` command line.

Each module in `commands` defines either one command, with its docstring as help text, or a table of several commands.
Imports any package of `leakline`, and the server inside functions. Start reading in `main`; `_MODULES` maps commands to
modules.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, NoReturn

from .. import __version__
from ..errors import LeaklineError
from .printing import open_what_is_closed, plain, plainly

# Command modules are imported only when used: `leakline report` must not import the server.
GROUPS: Final = {
    "Start": {
        "serve": "serve the dashboard and the API",
        "demo": "train a leaking run and a fixed run, and show both",
    },
    "Record a run": {
        "run": "run an unmodified program with telemetry",
        "watch": "watch a running process from outside",
        "sync": "upload recordings that the server does not have",
        "import": "import a log: printed blocks, CSV, W&B, MLflow, psrecord",
    },
    "Read runs": {
        "runs": "list the runs of a server",
        "verdict": "print the verdict of a run",
        "compare": "compare two runs, optionally as a gate in CI",
        "top": "show a live view of a run in the terminal",
        "report": "print the report of a recording without a server",
        "estimate": "check an estimate such as '208 x 100 KB = 20 GB'",
    },
    "Administer a server": {
        "token": "create, list and revoke tokens",
        "password": "set the administrator password",
        "webhook": "send a test alert",
        "db": "back up, restore and upgrade the database",
        "drill": "plant a leak and check the entire chain, up to the alert",
    },
}
COMMANDS: Final = {
    command: summary for group in GROUPS.values() for command, summary in group.items()
}

# Commands whose module contains several commands, or cannot have the command's name: `import` is a Python keyword,
# and `run` would be confused with `leakline/run.py`.
_MODULES: Final = {
    "import": "import_", "run": "run_", "watch": "run_", "sync": "recordings", "report": "recordings",
    "token": "administration", "password": "administration", "webhook": "administration", "db": "administration",
}  # fmt: skip

# These commands send terminal control sequences themselves. The names that they print are either cleaned by
# `report/terminal_text.py` or come from programs that they start themselves.
_DRAWS: Final = frozenset({"serve", "demo", "drill", "top"})


class Command(NamedTuple):
    """Definition of one command, taken from a module in `commands`. ``help`` is the command's description with
    examples.
    """

    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    main: Callable[[argparse.Namespace], int]


def load_command(name: str) -> Command:
    """Import the module of a command."""
    module = importlib.import_module(f".commands.{_MODULES.get(name, name)}", __name__)
    if hasattr(module, "COMMANDS"):
        return Command(*module.COMMANDS[name])
    return Command(module.__doc__ or "", module.configure, module.main)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 1 for failure, 2 for a usage error.

    Commands may define further statuses.
    """
    open_what_is_closed()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((a for a in arguments if not a.startswith("-")), None)
    parser = _Parser(
        prog="leakline",
        usage="leakline [-h] [--version] COMMAND ...",
        description=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    # List these two options only in the usage line, so that the help with all commands fits on a screen of 24 lines.
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument(
        "--version", action="version", version=f"leakline {__version__}", help=argparse.SUPPRESS
    )
    commands = parser.add_subparsers(
        prog="leakline", dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    for command, summary in COMMANDS.items():
        if command != name:
            commands.add_parser(command, help=summary, add_help=False)
            continue
        found = load_command(command)
        child = commands.add_parser(
            command,
            help=summary,
            description=found.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.configure(child)
        child.set_defaults(main=found.main, refuse=child.error)
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            # Let the command's own parser report the error, because its help lists the valid options.
            options.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        if name in _DRAWS:
            return int(options.main(options))
        with plainly():
            return int(options.main(options))
    except LeaklineError as error:
        print(plain(f"leakline: {error}"), file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader has closed the pipe (as in `leakline runs | head`), which is not an error.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _overview() -> str:
    """Return all commands with their summaries, by group."""
    lines = ["Live memory telemetry for training runs. For help: leakline COMMAND --help"]
    for title, commands in GROUPS.items():
        lines += [f"{title}:"]
        lines += [f"  {command:<9} {summary}" for command, summary in commands.items()]
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Parser that reports a usage error in one line, with the command that shows the help."""

    def error(self, message: str) -> NoReturn:
        line = plain(" ".join(message.split()))
        self.exit(2, f"{self.prog}: {line}; see: {self.prog} --help\n")
