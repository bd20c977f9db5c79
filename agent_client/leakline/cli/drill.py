"""Plant a known leak, run the whole chain for real, and say whether it was found, and how right.

A drill starts a server on SQLite in a temporary folder, a receiver of its webhook, and a training in a process of
its own that plants what KIND says. Without KIND it drills three: a leak with a name, one without, and a store that
fills rightly. Each takes about twenty seconds. Exit status 0 when all was right, 1 when a drill failed.

example: leakline drill
         leakline drill --list --json
         leakline drill cycles
         leakline drill --all --json
         leakline drill --all --results drill-results.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..drill.kinds import GENERATIONS, KINDS, REPRESENTATIVE, Kind
from ..drill.matrix import matrix, matrix_lines, results_page
from ..drill.receiver import Received, Receiver
from ..drill.scoring import RAISED, Answer, Look, Message, Seen, Truth, score
from ..drill.telling import Drilled, as_json, kinds_as_json, lines, listing, summary
from ..errors import BadArgument, LeaklineError, ServerRefused
from .asking import Asker
from .children import Child, Children, ends_by_signals

MAX_GENERATIONS: Final = 200
READY_SECONDS: Final = 30.0
VERDICT_SECONDS: Final = 20.0
# How long a message that must come is waited for, and how long one that must not come could take.
WEBHOOK_SECONDS: Final = 10.0
NO_WEBHOOK_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.1
# `small_training` must not lie below the name `leakline`: what does is passed over as ours.
PROGRAMS: Final = Path(__file__).resolve().parents[1] / "drill"
# How the client measures is drilled as the shell has it; where it sends and what it is called is ours to say.
KEPT: Final = frozenset(
    {"LEAKLINE_NATIVE", "LEAKLINE_MAX_OVERHEAD", "LEAKLINE_MAX_PAUSE", "LEAKLINE_SAMPLE_SECONDS"}
)
RANKS: Final = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})


@dataclass(frozen=True)
class Chain:
    """What all drills of a call share."""

    children: Children
    receiver: Receiver
    asker: Asker
    folder: Path
    generations: int


@dataclass
class Training:
    """What is known of a training while it runs, by generation: bytes planted, Unix seconds of its end."""

    run: str = field(default_factory=lambda: secrets.token_hex(8))
    planted: list[int] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    # Why it failed; empty for one that did not.
    failure: str = ""

    def note(self, line: str) -> None:
        told = json.loads(line)
        self.planted.append(told["planted_bytes"])
        self.ended_at.append(told["ended_at"])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", nargs="?", help="what to plant; see --list")
    parser.add_argument("--all", action="store_true", help="every kind, about eight minutes")
    parser.add_argument("--list", action="store_true", help="name the kinds and end")
    parser.add_argument("--json", action="store_true", help="the answers for programs")
    parser.add_argument(
        "--results", type=Path, metavar="FILE",
        help="write what was planted against what it was called, as a page in Markdown",
    )  # fmt: skip
    parser.add_argument(
        "--generations", type=int, default=GENERATIONS, help=f"to train (default {GENERATIONS})"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with database and spools"
    )


def main(options: argparse.Namespace) -> int:
    """1. what to drill  2. server and receiver  3. one drill after the other  4. what came of them."""
    if options.list:
        print(json.dumps(kinds_as_json(), indent=2) if options.json else "\n".join(listing()))
        return 0
    kinds, skipped = _chosen(options)
    drills: list[Drilled] = []
    with (
        ends_by_signals(),
        _folder(options.keep) as folder,
        Receiver() as receiver,
        Children() as children,
    ):
        try:
            asker = _serve(children, receiver, folder)
            chain = Chain(children, receiver, asker, folder, options.generations)
            for kind in kinds:
                drills.append(_drill(chain, kind))
                if not options.json:
                    print("\n".join(lines(drills[-1])) + "\n", flush=True)
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr, flush=True)
            return 130
    _tell(drills, skipped, options.json)
    if options.results:
        _write(options.results, results_page(drills, skipped, _about(options.generations)))
    return 0 if all(drilled.passed for drilled in drills) else 1


def _chosen(options: argparse.Namespace) -> tuple[list[Kind], list[Kind]]:
    """(what to drill, what cannot be drilled here). Raises BadArgument, or LeaklineError when nothing is left."""
    if options.kind is not None and options.all:
        raise BadArgument("KIND", options.kind, "not together with --all")
    if options.kind is not None and options.kind not in KINDS:
        raise BadArgument(
            "KIND", options.kind, "no such kind; see them with: leakline drill --list"
        )
    names = (options.kind,) if options.kind else KINDS if options.all else REPRESENTATIVE
    wanted = [KINDS[name] for name in names]
    _check_generations(options.generations, wanted)
    skipped = [kind for kind in wanted if kind.missing]
    if len(skipped) == len(wanted):
        missing = " ".join(skipped[0].missing)
        raise LeaklineError(f"{skipped[0].name} needs what is not installed: pip install {missing}")
    return [kind for kind in wanted if not kind.missing], skipped


def _check_generations(generations: int, kinds: Sequence[Kind]) -> None:
    if not 0 < generations <= MAX_GENERATIONS:
        raise BadArgument("--generations", generations, f"must be from 1 to {MAX_GENERATIONS}")
    for kind in kinds:
        if generations <= kind.first:
            why = f"{kind.name} begins in generation {kind.first}: train {kind.first + 1} or more"
            raise BadArgument("--generations", generations, why)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    """For the database, the spools and what trainings write; removed in the end."""
    path = Path(tempfile.mkdtemp(prefix="leakline-drill-"))
    try:
        yield path
    finally:
        if keep:
            print(f"kept: {path}", file=sys.stderr, flush=True)
        else:
            # A second Ctrl-C must not leave half of it.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            shutil.rmtree(path, ignore_errors=True)
            signal.signal(signal.SIGINT, before)


def _environment(**more: str) -> dict[str, str]:
    """The shell's, without what it says of other servers and runs."""
    kept = {
        name: value for name, value in os.environ.items()
        if name in KEPT or not (name.startswith("LEAKLINE_") or name in RANKS)
    }  # fmt: skip
    return {**kept, **more}


def _serve(children: Children, receiver: Receiver, folder: Path) -> Asker:
    """A server on a free port that tells the receiver. Raises LeaklineError when it does not start."""
    environment = _environment(
        LEAKLINE_DATABASE_URL=f"sqlite:///{folder / 'leakline.db'}",
        LEAKLINE_WEBHOOK_URL=receiver.url,
        LEAKLINE_WEBHOOK_SECRET=receiver.secret,
        LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8",
        TMPDIR=str(folder),
    )
    command = [
        sys.executable,
        "-P",
        "-m",
        "leakline",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
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


def _drill(chain: Chain, kind: Kind) -> Drilled:
    """1. the training, looked at after each generation  2. the last verdict  3. the messages  4. the answers."""
    began = time.monotonic()
    training = _train(chain, kind)
    verdict = _last_verdict(chain, training)
    messages = _messages(chain, kind, training, verdict)
    if training.failure:
        answers: tuple[Answer, ...] = (Answer("trained", False, training.failure),)
    else:
        answers = score(_truth(kind, training), Seen(verdict, training.looks, messages))
    return Drilled(kind, answers, time.monotonic() - began)


def _train(chain: Chain, kind: Kind) -> Training:
    training = Training()
    path = os.pathsep.join(filter(None, (str(PROGRAMS), os.environ.get("PYTHONPATH"))))
    environment = _environment(
        PYTHONPATH=path, LEAKLINE_SERVER=chain.asker.server, LEAKLINE_RUN_ID=training.run,
        LEAKLINE_DIR=str(chain.folder / "spools"), TMPDIR=str(chain.folder), OMP_NUM_THREADS="1",
    )  # fmt: skip
    command = [
        sys.executable, "-P", "-m", "small_training", kind.name, "--generations", str(chain.generations),
    ]  # fmt: skip
    child = chain.children.start(kind.name, command, environment)
    _follow(child, chain, kind, training)
    if child.wait() != 0:
        training.failure = f"the training failed: {child.last_words()}"
    return training


def _follow(child: Child, chain: Chain, kind: Kind, training: Training) -> None:
    """To its end. What the server says of it is asked once a generation, as often as it is examined."""
    shown = sys.stderr.isatty()
    for line in child.lines():
        training.note(line)
        verdict = _verdict(chain, training.run)
        if verdict is not None:
            training.looks.append(Look(verdict["generations"], verdict["status"]))
        if shown:
            status = training.looks[-1].status if training.looks else "not yet heard of"
            told = (
                f"{kind.name}: generation {len(training.planted)} of {chain.generations}: {status}"
            )
            print(told.ljust(79), end="\r", file=sys.stderr, flush=True)
    if shown:
        print(" " * 79, end="\r", file=sys.stderr, flush=True)


def _verdict(chain: Chain, run: str) -> dict[str, Any] | None:
    """None while the server has not heard of the run."""
    try:
        return chain.asker.get(f"/runs/{run}/verdict")
    except ServerRefused as refused:
        if refused.status == 404:
            return None
        raise


def _last_verdict(chain: Chain, training: Training) -> dict[str, Any]:
    """Over all generations of a run that has ended; the newest there is when that takes too long."""
    deadline = time.monotonic() + VERDICT_SECONDS
    while True:
        verdict = _verdict(chain, training.run)
        if verdict is not None and _is_whole(chain, training, verdict):
            training.looks.append(Look(verdict["generations"], verdict["status"]))
            return verdict
        if training.failure or time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    if verdict is None and not training.failure:
        training.failure = "the server never heard of the training"
    return verdict or {}


def _is_whole(chain: Chain, training: Training, verdict: Mapping[str, Any]) -> bool:
    if verdict["generations"] < len(training.planted):
        return False
    return bool(chain.asker.get(f"/runs/{training.run}")["state"] != "running")


def _messages(
    chain: Chain, kind: Kind, training: Training, verdict: Mapping[str, Any]
) -> list[Message]:
    """What the receiver got about leaks of this run, once what must come has come or had time to come."""
    status = verdict.get("status")
    expected = kind.leaks and status in RAISED and not training.failure

    def enough(received: list[Received]) -> bool:
        events = {one.event for one in received}
        return expected and bool(events & {f"incident.{status}", "contract.violated"})

    seconds = WEBHOOK_SECONDS if expected else NO_WEBHOOK_SECONDS
    chain.receiver.wait(training.run, enough, seconds)
    received = chain.receiver.of_run(training.run)
    # That the run has finished, say, is told as well.
    about_leaks = (one for one in received if one.data("incident", "id") is not None)
    return [_message(one, training) for one in about_leaks]


def _message(received: Received, training: Training) -> Message:
    generations = int(received.data("run", "generations") or 0)
    # The newest generation that the message speaks of; one about none is as old as the training.
    ended_at = training.ended_at[max(0, min(generations, len(training.ended_at)) - 1)]
    return Message(
        received.event,
        str(received.data("incident", "id")),
        str(received.data("incident", "status")),
        generations,
        received.arrived_at - ended_at,
        received.signature_valid,
        str(received.data("summary")),
    )


def _truth(kind: Kind, training: Training) -> Truth:
    leaking = training.planted[kind.first :]
    return Truth(kind, sum(leaking) / max(1, len(leaking)))


def _about(generations: int) -> dict[str, str]:
    """What was drilled, on what, and when."""
    return {
        "Leakline": __version__,
        "Python": platform.python_version(),
        "on": f"{platform.system()} {platform.machine()}",
        "generations": f"{generations}",
        "written": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _write(path: Path, text: str) -> None:
    """Raises LeaklineError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LeaklineError(
            f"{path} cannot be written ({error.strerror}); name another FILE"
        ) from None


def _tell(drills: Sequence[Drilled], skipped: Sequence[Kind], wants_json: bool) -> None:
    if wants_json:
        told = {**as_json(drills, skipped), "matrix": matrix(drills)}
        print(json.dumps(told, indent=2))
        return
    for kind in skipped:
        print(f"{kind.name}: skipped, needs {' and '.join(kind.missing)}")
    if len(drills) > 1:
        print("\n".join([*matrix_lines(drills), "", *summary(drills)]))
