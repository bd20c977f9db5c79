"""Show Leakline at work: serve the dashboard, train two runs, compare them.

The runs are real training runs, one with a leak and one with the fix: the
example `erl_trading`, with torch on the CPU, about half a minute each. The
demo prints three URLs to open (before, after, comparison), and the dashboard
stays up until Ctrl-C.

The story `misdiagnosis` shows a fix in the wrong place: the next run shows
that its promise is broken and where the leak really is.

example: leakline demo
         leakline demo --exit
         leakline demo --story misdiagnosis
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ...analysis.assertions.declared_limits import GROWTH, PHASE_GROWTH
from ...errors import LeaklineError
from ...text_format import join_words, worded
from ..child_programs import Children, ends_by_signals, start_server, wait_for_verdict
from ..server_queries import Asker

HOST: Final = "127.0.0.1"
PORT: Final = 8765
PROJECT: Final = "erl-trading"
GENERATIONS: Final = 16
NEEDED: Final = ("torch", "numpy")
INSTALL: Final = "pip install 'leakline[server,examples]' torch"
# The demo sets these variables for its training runs, so values from the shell must not interfere.
DECIDED: Final = (
    "LEAKLINE_SERVER", "LEAKLINE_PROJECT", "LEAKLINE_RUN_NAME", "LEAKLINE_RUN_ID", "LEAKLINE_MODE",
    "LEAKLINE_QUIET", "RANK", "LOCAL_RANK", "WORLD_SIZE",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """One training run of a story: its name, its leaks, and the example's other arguments."""

    name: str
    leaks: tuple[str, ...]
    more: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"with {join_words(self.leaks)}" if self.leaks else "without a leak"

    @property
    def arguments(self) -> list[str]:
        return [each for leak in self.leaks for each in ("--leak", leak)] + [*self.more]


# The buffer does not reach this size in sixteen generations, so the training phase never begins.
_NEVER_READY: Final = ("--replay-ready", "60000")
# The runs before and after the fix. In the misdiagnosis story, the losses were blamed for keeping their graphs, and
# were detached. But the phase that computes the losses never ran, and the leak is in the environments.
STORIES: Final = {
    "fix": (Training("before-fix", ("old_population",)), Training("after-fix", ())),
    "misdiagnosis": (
        Training("before-wrong-fix", ("kept_environments", "loss_graph"), _NEVER_READY),
        Training(
            "after-wrong-fix", ("kept_environments",), (*_NEVER_READY, "--fix", "detach_losses")
        ),
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exit", action="store_true", help="exit with status 0 after both runs")
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"port of the dashboard (default {PORT})"
    )
    parser.add_argument(
        "--generations",
        type=int,
        default=GENERATIONS,
        help=f"generations per run (default {GENERATIONS})",
    )
    parser.add_argument(
        "--story", choices=STORIES, default="fix",
        help="fix: the leak is found and fixed; misdiagnosis: the wrong code is changed",
    )  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Check the requirements, start the server, train both runs, print the results and wait for Ctrl-C."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise LeaklineError(
            f"the demo needs {join_words(missing)}; install the requirements with: {INSTALL}"
        )
    folder = example_folder()
    with ends_by_signals(), Children() as children:
        try:
            asker = _serve(children, options.port)
            runs = [
                _train(children, asker, training, options.generations, folder)
                for training in STORIES[options.story]
            ]
            _tell(asker, *runs)
        except KeyboardInterrupt:
            print("\nstopped", flush=True)
            return 130
        if not options.exit:
            _wait_for_ctrl_c(children)
    return 0


def example_folder() -> Path:
    """Return the folder of the package `erl_trading`: next to this package in a wheel, in `examples/` in a checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parents[2] / "examples", here.parents[4] / "examples"):
        if (folder / "erl_trading" / "__main__.py").is_file():
            return folder
    raise LeaklineError("the example erl_trading is not installed; reinstall leakline")


def _serve(children: Children, wanted_port: int) -> Asker:
    port = _free_port(wanted_port)
    if port != wanted_port != 0:
        print(f"port {wanted_port} is in use; using {port}")
    # A generated webhook secret is printed only once, on stderr, so stderr must not be discarded.
    shown = not os.environ.keys().isdisjoint(("LEAKLINE_WEBHOOK_URL", "LEAKLINE_WEBHOOK_URL_FILE"))
    asker = start_server(children, port, errors_shown=shown)
    print(f"the dashboard is at {asker.server}", flush=True)
    return asker


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            # The server sets this option too. With it, a port in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise LeaklineError(f"no free port on {HOST}")


def _train(
    children: Children, asker: Asker, training: Training, generations: int, folder: Path
) -> dict[str, Any]:
    """Train one run in its own process; return the run and its final verdict from the server."""
    run = secrets.token_hex(8)
    print(
        f"\n{training.name} trains {training.sentence}; live at {asker.server}/runs/{run}",
        flush=True,
    )
    command = [
        sys.executable, "-m", "erl_trading", "--project", PROJECT, "--name", training.name,
        "--generations", str(generations), "--server", asker.server, "--run-id", run,
        *training.arguments,
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name not in DECIDED}
    path = os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH"))))
    child = children.start(training.name, command, {**environment, "PYTHONPATH": path})
    _show_progress(child.lines())
    if child.wait() != 0:
        raise LeaklineError(f"the training run {training.name} failed: {child.last_words()}")
    found = wait_for_verdict(asker, run, generations)
    print(f"  {worded(found['verdict']['status'], found['verdict']['summary'])}", flush=True)
    return found


def _show_progress(lines: Iterator[str]) -> None:
    """Print the progress: on a terminal, in a single line that is overwritten; otherwise line by line."""
    terminal, width = sys.stdout.isatty(), 0
    for line in lines:
        text = f"  {line.rstrip()}"
        if not terminal:
            print(text, flush=True)
            continue
        # Pad the line, so that nothing of a longer previous line remains visible.
        width = max(width, len(text))
        print(text.ljust(width), end="\r", flush=True)
    if terminal and width:
        print()


def _tell(asker: Asker, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    query = {"before": before["id"], "after": after["id"]}
    comparison = asker.get("/compare", query)
    print()
    for title, run in (("before", before), ("after", after)):
        print(f"{title:<11} {asker.server}/runs/{run['id']}")
        print(f"{'':<11} {worded(run['verdict']['status'], run['verdict']['summary'])}")
    print(f"{'comparison':<11} {asker.server}/compare?before={before['id']}&after={after['id']}")
    print(f"{'':<11} {worded(comparison['outcome'], comparison['summary'])}", flush=True)
    for line in _moral(after["verdict"]):
        print(line, flush=True)


def _moral(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a run with a declared fix: the outcome of its promises, and the actual leak."""
    found = {check["metric"]: check for check in verdict["assertions"] if check["origin"] == "fix"}
    if not found:
        return
    yield ""
    for title, claim in (("blamed", PHASE_GROWTH), ("promised", GROWTH)):
        if claim in found:
            state, sentence = found[claim]["state"], found[claim]["sentence"]
            yield f"{title:<11} {'' if state == 'undecided' else f'{state}: '}{sentence}"
    yield f"{'in fact':<11} {worded(verdict['status'], verdict['summary'])}"


def _wait_for_ctrl_c(children: Children) -> None:
    try:
        print("\nThe dashboard stays up until you press Ctrl-C.", flush=True)
        children.wait_for_any()
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
    else:
        raise LeaklineError("the server exited unexpectedly")
