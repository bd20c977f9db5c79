"""Plant a known leak, run the entire chain, and check what Leakline reports.

A drill starts a server with SQLite in a temporary folder, a receiver for its
webhook, and a training process that retains objects, tensors with their graph
(needs torch) or entries of a container. Each kind takes about twenty seconds.
The exit status is 0 if every answer is right, otherwise 1.

example: leakline drill
         leakline drill graph
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from ...analysis.status import ACTIVE
from ...errors import BadArgument, LeaklineError
from ...text_format import count_of, format_bytes, worded
from ..child_programs import (
    Children,
    ends_by_signals,
    signals_ignored,
    start_server,
    wait_for_verdict,
)
from ..server_queries import Asker

# Limits for a correct answer: the relative error of the growth, the error of the start in generations, and the rank of
# the first suspect with an expected name.
RATE_TOLERANCE: Final = 0.25
START_TOLERANCE: Final = 2
PLACES: Final = 3
KEEPERS: Final = ("holder", "container")
_ITEMS: Final = re.compile(r"\[[^\]]*\]")
# Markers such as `<locals>`, `<cache>` and `<closure>`, which describe how a name holds an object and are not names.
_MARKS: Final = re.compile(r"<[^>]*>")

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PlantedLeak:
    """The answers that are accepted for one planted leak.

    ``phases``: accepted phases, where None means "between phases". ``types``: names of the accumulating types without
    their modules; empty if Python has no type for the leaked memory. ``holders``: a finding's path must contain one of
    these paths; None if nothing in Python holds the objects. ``kinds``: accepted kinds of the finding. ``first``: the
    earliest and latest generation accepted as the start of the leak; the two differ if a store legitimately fills up
    before it exceeds its bound.
    """

    phases: tuple[str | None, ...]
    types: tuple[str, ...]
    holders: tuple[str, ...] | None
    kinds: tuple[str, ...] = ()
    first: tuple[int, int] = (0, 0)

    def has_phase(self, finding: Json) -> bool:
        """Return True if the finding's phase or phase path is correct. A leak between phases has neither."""
        path = finding["phase_path"] or finding["phase"]
        return not {finding["phase"], path}.isdisjoint(self.phases)

    def has_name(self, suspect: Json) -> bool:
        """Return True if the suspect is one of the expected types or holders."""
        name, role = suspect["name"], suspect["role"]
        if role == "type":
            return name.rpartition(".")[2] in self.types
        return role in KEEPERS and any(leads_through(name, path) for path in self.holders or ())

    def place(self, finding: Json) -> int | None:
        """Return the 1-based rank of the first suspect with an expected name, or None if there is none."""
        places = enumerate(finding["suspects"], 1)
        return next((place for place, suspect in places if self.has_name(suspect)), None)

    def start_off(self, finding: Json) -> float | None:
        """Return the error of the start in generations, or None if the finding has no start."""
        start = finding["started_at_generation"]
        if start is None:
            return None
        earliest, latest = self.first
        return float(max(earliest - start["estimate"], start["estimate"] - latest, 0.0))


def rate_off(finding: Json, planted: float) -> float:
    """Return the error of the growth as a fraction of the planted bytes per generation."""
    rate: float = finding["growth_bytes_per_generation"]["estimate"]
    return abs(rate - planted) / planted


def leads_through(path: str, holder: str) -> bool:
    """Return True if the names of ``holder`` occur in ``path`` as a consecutive sequence of complete names.

    The module before these names, the path from the holder to the object after them, item markers (``[*]``) and markers
    of how a name holds an object (``<locals>``) are ignored. For a holder ``Class.attribute``, neither the class nor
    the attribute alone matches.
    """
    names, wanted = _names(path), _names(holder)
    return any(names[i : i + len(wanted)] == wanted for i in range(len(names)))


def _names(path: str) -> list[str]:
    return [name for name in _MARKS.sub("", _ITEMS.sub("", path)).split(".") if name]


GENERATIONS: Final = 30
MAX_GENERATIONS: Final = 200
ALERT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1
TRAINING: Final = Path(__file__).resolve().parents[1] / "drill_training.py"
# Settings of the client's measurements are taken from the shell; the server and the run names are set by the drill.
KEPT: Final = frozenset(
    {"LEAKLINE_NATIVE", "LEAKLINE_MAX_OVERHEAD", "LEAKLINE_MAX_PAUSE", "LEAKLINE_SAMPLE_SECONDS"}
)
RANKS: Final = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})


@dataclass(frozen=True, kw_only=True)
class Kind(PlantedLeak):
    """A kind of leak that a drill can plant."""

    summary: str


KINDS: Final = {
    "objects": Kind(
        summary="environments that are never released", phases=("collect",), kinds=("objects", "container"),
        types=("Environment",), holders=("Trainer.environments",),
    ),
    "graph": Kind(
        summary="losses retained as torch tensors with their graph", phases=("train",),
        types=("Tensor", "MseLossBackward0"), holders=("Trainer.losses",), kinds=("graph",),
    ),
    "container": Kind(
        summary="a history of records that is never trimmed", phases=("collect",),
        types=("dict", "bytes"), holders=("Trainer.records",), kinds=("container", "objects"),
    ),
}  # fmt: skip


class Answer(NamedTuple):
    question: str
    right: bool
    text: str


class Alert(NamedTuple):
    """The content of a webhook message, and whether its signature is valid."""

    event: str
    run: str
    signature_valid: bool


class Receiver(ThreadingHTTPServer):
    """Webhook receiver on the loopback interface that verifies messages with ``secret``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/drill"
        self.secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self.alerts: list[Alert] = []

    def __enter__(self) -> Receiver:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        # The server depends on this package and is already running at this point, so the import succeeds.
        from standardwebhooks import Webhook, WebhookVerificationError

        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            Webhook(self.server.secret).verify(body, dict(self.headers))
            valid = True
        except (WebhookVerificationError, ValueError):
            valid = False
        try:
            said = json.loads(body)
            self.server.alerts.append(Alert(said["type"], said["data"]["run"]["id"], valid))
        except (ValueError, KeyError, TypeError):
            valid = False
        self.send_response(204 if valid else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Suppress the request log; the drill prints the received alerts itself."""


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(KINDS)
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", help=f"kind of leak: {kinds} (default: all kinds)"
    )
    parser.add_argument(
        "--generations", type=int, default=GENERATIONS,
        help=f"generations to train (default {GENERATIONS})",
    )  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Start the server and the receiver, drill the kinds one after the other, and print the answers."""
    kinds = _chosen(options)
    try:
        with (
            ends_by_signals(), _folder() as folder,
            Receiver() as receiver, Children() as children,
        ):  # fmt: skip
            environment = _environment(
                LEAKLINE_DATABASE_URL=f"sqlite:///{folder}/leakline.db", LEAKLINE_WEBHOOK_URL=receiver.url,
                LEAKLINE_WEBHOOK_SECRET=receiver.secret, LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8", TMPDIR=folder,
            )  # fmt: skip
            asker = start_server(children, 0, environment)
            passed = [
                _drill(kind, options.generations, asker, receiver, children, folder)
                for kind in kinds
            ]
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr, flush=True)
        return 130
    return 0 if all(passed) else 1


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the kinds to drill. Raises BadArgument, or LeaklineError if torch is missing for the requested kind."""
    if options.kind is not None and options.kind not in KINDS:
        raise BadArgument("KIND", options.kind, f"must be one of {', '.join(KINDS)}")
    if not 0 < options.generations <= MAX_GENERATIONS:
        wanted = f"must be from 1 to {MAX_GENERATIONS}"
        raise BadArgument("--generations", options.generations, wanted)
    kinds = [options.kind] if options.kind else list(KINDS)
    if "graph" in kinds and find_spec("torch") is None:
        if options.kind:
            raise LeaklineError("the graph drill needs torch; install it with: pip install torch")
        print("graph: skipped (needs torch)\n", flush=True)
        kinds.remove("graph")
    return kinds


@contextmanager
def _folder() -> Iterator[str]:
    """Create a temporary folder for the database and the spools, and remove it at the end."""
    path = tempfile.mkdtemp(prefix="leakline-drill-")
    try:
        yield path
    finally:
        with signals_ignored():
            shutil.rmtree(path, ignore_errors=True)


def _environment(**more: str) -> dict[str, str]:
    """Return the shell's environment without settings for other servers and runs, extended by ``more``."""
    kept = {
        name: value for name, value in os.environ.items()
        if name in KEPT or not (name.startswith("LEAKLINE_") or name in RANKS)
    }  # fmt: skip
    return {**kept, **more}


def _drill(
    name: str, generations: int, asker: Asker, receiver: Receiver, children: Children, folder: str
) -> bool:
    """Train, wait for the final verdict and its alert, and print the answers. Return True if all answers are right."""
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
        raise LeaklineError(f"the training script failed: {training.last_words()}")
    verdict = wait_for_verdict(asker, run, generations)["verdict"]
    answers = [*_answers(kind, mean(planted), verdict), _alert(receiver, run, verdict)]
    for answer in answers:
        mark = "right" if answer.right else "WRONG"
        print(f"  {answer.question + '?':<12} {mark}  {answer.text}")
    passed = all(answer.right for answer in answers)
    seconds = time.monotonic() - began
    print(f"  {'passed' if passed else 'FAILED'} after {seconds:.0f} s\n", flush=True)
    return passed


def _answers(kind: Kind, planted: float, verdict: Mapping[str, Any]) -> Iterator[Answer]:
    """Compare a verdict with the planted leak, and yield the answers in the order of a user's questions."""
    raised = [finding for finding in verdict["findings"] if finding["status"] in ACTIVE]
    status = worded(verdict["status"], verdict["summary"])
    if not raised:
        text = f"not found within {verdict['generations']} generations; {status}"
        yield Answer("found", False, text)
        return
    finding = max(raised, key=lambda each: kind.place(each) is not None)
    more = f"; {count_of(len(raised) - 1, 'other finding')}" if len(raised) > 1 else ""
    yield Answer("found", not more, status + more)
    yield Answer("where", kind.has_phase(finding), finding["phase"] or "no single phase")
    names = [suspect["name"] for suspect in finding["suspects"]]
    place = kind.place(finding)
    named = f"{names[place - 1]} at rank {place}" if place else ", ".join(names) or "nothing named"
    right = finding["kind"] in kind.kinds and place is not None and place <= PLACES
    yield Answer("what", right, f"{finding['kind']}; {named}")
    rate, off = finding["growth_bytes_per_generation"]["estimate"], rate_off(finding, planted)
    text = f"{format_bytes(rate)} per generation, planted {format_bytes(planted)}: off by {off:.1%}"
    yield Answer("how much", off <= RATE_TOLERANCE, text)
    since = kind.start_off(finding)
    if since is None:
        yield Answer("since when", False, "start unknown")
    else:
        text = f"generation {since:.0f}, planted since generation 0"
        yield Answer("since when", round(since) <= START_TOLERANCE, text)


def _alert(receiver: Receiver, run: str, verdict: Mapping[str, Any]) -> Answer:
    """Wait for the alert about the verdict's status."""

    # Ignore alerts about the end of the run, which say nothing about the leak.
    def arrived() -> list[Alert]:
        found = list(receiver.alerts)
        return [each for each in found if each.run == run and each.event.startswith("incident.")]

    deadline = time.monotonic() + (ALERT_SECONDS if verdict["status"] in ACTIVE else 0.0)
    wanted = f"incident.{verdict['status']}"
    while all(each.event != wanted for each in arrived()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if not (alerts := arrived()):
        return Answer("alert", False, "no alert arrived")
    right = all(alert.signature_valid for alert in alerts)
    signed = "correctly signed" if right else "WRONGLY signed"
    return Answer("alert", right, f"{signed}: {', '.join(alert.event for alert in alerts)}")
