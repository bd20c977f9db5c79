"""Plant a known leak, run the whole chain on it, and say whether it was found, and how right.

A drill starts a server on SQLite in a temporary folder, a receiver of its webhook, and a training in a process of its
own that keeps objects, tensors with their graph (needs torch) or the entries of a container. Without KIND it drills
all three, twenty seconds each. Exit status 0 when all was right, 1 when something was wrong.

example: leakline drill
         leakline drill graph
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from ..drill.receiver import Receiver
from ..errors import BadArgument, LeaklineError, ServerRefused
from ..text_format import format_bytes, worded
from .asking import Asker
from .children import Children, ends_by_signals

GENERATIONS: Final = 30
MAX_GENERATIONS: Final = 200
READY_SECONDS: Final = 30.0
VERDICT_SECONDS: Final = 20.0
ALERT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1
# How far off a right answer may be: the growth, the first leaking generation, the place of the right name.
RATE_TOLERANCE: Final = 0.25
START_TOLERANCE: Final = 2
PLACES: Final = 3
RAISED: Final = ("suspected", "confirmed")
TRAINING: Final = Path(__file__).resolve().parents[1] / "drill" / "training.py"
# How the client measures is drilled as the shell has it; where it sends and what it is called is ours to say.
KEPT: Final = frozenset(
    {"LEAKLINE_NATIVE", "LEAKLINE_MAX_OVERHEAD", "LEAKLINE_MAX_PAUSE", "LEAKLINE_SAMPLE_SECONDS"}
)
RANKS: Final = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})


class Kind(NamedTuple):
    """One leak to plant. ``answers``: kinds of finding that are right; ``names``: what piles up and what keeps it."""

    summary: str
    phase: str
    answers: tuple[str, ...]
    names: tuple[str, ...]


KINDS: Final = {
    "objects": Kind(
        "environments that a registry keeps", "collect", ("objects", "container"),
        ("Environment", "Registry.environments"),
    ),
    "graph": Kind(
        "losses kept as torch tensors with their graph", "train", ("graph",),
        ("Tensor", "MseLossBackward0", "Losses.losses"),
    ),
    "container": Kind(
        "a history of records that is never cut", "collect", ("container", "objects"),
        ("dict", "bytes", "History.records"),
    ),
}  # fmt: skip


class Answer(NamedTuple):
    question: str
    right: bool
    text: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", help=f"{', '.join(KINDS)}; default: all of them"
    )
    parser.add_argument(
        "--generations",
        type=int,
        default=GENERATIONS,
        help=f"generations to train (default {GENERATIONS})",
    )


def main(options: argparse.Namespace) -> int:
    """Start server and receiver, drill one kind after the other, and print the answers."""
    kinds = _chosen(options)
    with (
        ends_by_signals(),
        _folder() as folder,
    ):
        try:
            with Receiver() as receiver, Children() as children:
                asker = _serve(children, receiver, folder)
                drills = [
                    _drill(kind, options.generations, asker, receiver, children, folder)
                    for kind in kinds
                ]
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr, flush=True)
            return 130
    return 0 if all(drills) else 1


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the kinds to drill. Raises BadArgument, or LeaklineError where torch is asked for and missing."""
    if options.kind is not None and options.kind not in KINDS:
        raise BadArgument("KIND", options.kind, f"must be one of {', '.join(KINDS)}")
    if not 0 < options.generations <= MAX_GENERATIONS:
        raise BadArgument(
            "--generations", options.generations, f"must be from 1 to {MAX_GENERATIONS}"
        )
    if options.kind not in (None, "graph"):
        return [options.kind]
    if find_spec("torch") is not None:
        return [options.kind] if options.kind else list(KINDS)
    if options.kind == "graph":
        raise LeaklineError("a drill of graphs needs torch: pip install torch")
    print("graph: skipped, needs torch\n", flush=True)
    return [kind for kind in KINDS if kind != "graph"]


@contextmanager
def _folder() -> Iterator[str]:
    """Make a folder for the database and the spools, and remove it in the end."""
    path = tempfile.mkdtemp(prefix="leakline-drill-")
    try:
        yield path
    finally:
        # A second signal must not leave half of it.
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        shutil.rmtree(path, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(**more: str) -> dict[str, str]:
    """Return the shell's, without what it says of other servers and runs."""
    kept = {
        name: value for name, value in os.environ.items()
        if name in KEPT or not (name.startswith("LEAKLINE_") or name in RANKS)
    }  # fmt: skip
    return {**kept, **more}


def _serve(children: Children, receiver: Receiver, folder: str) -> Asker:
    """Start a server on a free port that alerts the receiver. Raises LeaklineError when it does not start."""
    environment = _environment(
        LEAKLINE_DATABASE_URL=f"sqlite:///{folder}/leakline.db", LEAKLINE_WEBHOOK_URL=receiver.url,
        LEAKLINE_WEBHOOK_SECRET=receiver.secret, LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8", TMPDIR=folder,
    )  # fmt: skip
    command = [
        sys.executable, "-P", "-m", "leakline", "serve", "--host", "127.0.0.1", "--port", "0"
    ]  # fmt: skip
    server = children.start("server", command, environment)
    # It says its address in its first line, or ends; what does neither is ended.
    patience = threading.Timer(READY_SECONDS, server.process.kill)
    patience.start()
    try:
        said = next(server.lines(), "")
    finally:
        patience.cancel()
    if "http://" not in said:
        server.wait()
        raise LeaklineError(f"the server did not start: {server.last_words()}")
    return Asker(said[said.index("http://") :].split()[0])


def _drill(
    name: str, generations: int, asker: Asker, receiver: Receiver, children: Children, folder: str
) -> bool:
    """Train, wait for the last verdict and its alert, print the answers. Returns True if all are right."""
    kind, run = KINDS[name], secrets.token_hex(8)
    began = time.monotonic()
    print(f"{name}: {kind.summary}", flush=True)
    environment = _environment(
        LEAKLINE_SERVER=asker.server, LEAKLINE_RUN_ID=run, LEAKLINE_DIR=f"{folder}/spools", TMPDIR=folder,
        LEAKLINE_QUIET="1", OMP_NUM_THREADS="1",
    )  # fmt: skip
    command = [sys.executable, "-P", str(TRAINING), name, "--generations", str(generations)]
    training = children.start(name, command, environment)
    planted = [int(line) for line in training.lines()]
    if training.wait() != 0:
        raise LeaklineError(f"the training failed: {training.last_words()}")
    verdict = _last_verdict(asker, run, generations)
    answers = [*_answers(kind, mean(planted), verdict), _alert(receiver, run, verdict)]
    for answer in answers:
        mark = "right" if answer.right else "WRONG"
        print(f"  {answer.question + '?':<12} {mark}  {answer.text}")
    passed = all(answer.right for answer in answers)
    seconds = time.monotonic() - began
    print(f"  {'passed' if passed else 'FAILED'} after {seconds:.0f} s\n", flush=True)
    return passed


def _last_verdict(asker: Asker, run: str, generations: int) -> dict[str, Any]:
    """Return the verdict over all generations of a run that has ended; the newest one when that takes too long."""
    verdict = None
    deadline = time.monotonic() + VERDICT_SECONDS
    while time.monotonic() < deadline:
        try:
            verdict = asker.get(f"/runs/{run}/verdict")
        except ServerRefused as refused:
            if refused.status != 404:
                raise
        else:
            ended = asker.get(f"/runs/{run}")["state"] != "running"
            if ended and verdict["generations"] >= generations:
                break
        time.sleep(POLL_SECONDS)
    if verdict is None:
        raise LeaklineError(
            f"the server has no verdict on the training after {VERDICT_SECONDS:.0f} s"
        )
    return verdict


def _answers(kind: Kind, planted: float, verdict: Mapping[str, Any]) -> Iterator[Answer]:
    """Compare a verdict with what was planted, in the order in which a person asks."""
    raised = [finding for finding in verdict["findings"] if finding["status"] in RAISED]
    status = worded(verdict["status"], verdict["summary"])
    if not raised:
        text = f"not found within {verdict['generations']} generations; {status}"
        yield Answer("found", False, text)
        return
    finding = max(raised, key=lambda each: _place(kind, each) is not None)
    more = f"; {len(raised) - 1} more besides" if len(raised) > 1 else ""
    yield Answer("found", not more, status + more)
    yield Answer("where", finding["phase"] == kind.phase, finding["phase"] or "no single phase")
    names = [suspect["name"] for suspect in finding["suspects"]]
    place = _place(kind, finding)
    named = f"{names[place - 1]} in place {place}" if place else ", ".join(names) or "nothing named"
    right = finding["kind"] in kind.answers and place is not None and place <= PLACES
    yield Answer("what", right, f"{finding['kind']}; {named}")
    rate = finding["growth_bytes_per_generation"]["estimate"]
    off = rate / planted - 1
    text = f"{format_bytes(rate)} per generation, planted {format_bytes(planted)}: off by {abs(off):.1%}"
    yield Answer("how much", abs(off) <= RATE_TOLERANCE, text)
    start = finding["started_at_generation"]
    since = None if start is None else round(start["estimate"])
    text = "start unknown" if since is None else f"generation {since}, planted from 0 on"
    yield Answer("since when", since is not None and since <= START_TOLERANCE, text)


def _place(kind: Kind, finding: Mapping[str, Any]) -> int | None:
    """Return the place of the first suspect that was planted or keeps what was, from 1."""
    for place, suspect in enumerate(finding["suspects"], 1):
        # What a path ends with inside a container says where in an item, not what the container is.
        name = suspect["name"].partition("[*]")[0]
        if any(name == wanted or name.endswith(f".{wanted}") for wanted in kind.names):
            return place
    return None


def _alert(receiver: Receiver, run: str, verdict: Mapping[str, Any]) -> Answer:
    """Wait for the alert on the status of a verdict."""
    seconds = ALERT_SECONDS if verdict["status"] in RAISED else 0.0
    came = receiver.wait_for(run, f"incident.{verdict['status']}", seconds)
    # An alert on the end of the run says nothing of the leak.
    alerts = [alert for alert in came if alert.event.startswith("incident.")]
    if not alerts:
        return Answer("alert", False, "none came")
    right = all(alert.signature_valid for alert in alerts)
    signed = "correctly signed" if right else "WRONGLY signed"
    return Answer("alert", right, f"{signed}: {', '.join(alert.event for alert in alerts)}")
