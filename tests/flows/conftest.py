"""Real server processes and real training processes; nothing in between is replaced."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from leakline.analysis.results import SEVERITY
from leakline.transport.http_delivery import request_json

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
# A verdict over all generations takes well under a second after the training; on a busy machine it takes longer, and a
# missing one still fails.
VERDICT_SECONDS: Final = 90.0
TRAINING_SECONDS: Final = 400.0
# Instead of the default 48: critic steps take most of the time of a training and do not affect memory.
CRITIC_STEPS: Final = 1
# Trained with default settings; results of these leaks are not compared with another training.
AS_SHIPPED: Final = (("loss_history",), ("figures",), ("deepcopied_checkpoints",))
# With generations this short, the default overhead leaves too little time for the usual number of scans.
OVERHEAD: Final = "0.05"
# Graphs are scanned only between the steps of autograd, which the default makes too rare in generations of a second.
OF_GRAPHS: Final = "0.1"


def by_cost(names: Iterable[str], in_test_all: Container[str]) -> list[Any]:
    """Return test parameters; those outside ``in_test_all`` run only in `make test-leaks`."""
    return [pytest.param(n, marks=() if n in in_test_all else pytest.mark.leaks) for n in names]


def eventually(ask: Callable[[], Any], seconds: float = VERDICT_SECONDS) -> Any:
    """Call ``ask`` until its result is true, and return the result."""
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < deadline, f"still {found!r} after {seconds} s"
        pause.wait(0.05)
    return found


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without settings of other runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEAKLINE_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Any]:
    return eventually


class Server:
    """`leakline serve` on loopback. A restart with the same folder and port is the same server."""

    def __init__(self, folder: Path, port: int = 0, **environ: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leakline", "serve", "--port", str(port)],
            cwd=folder, env=clean_environment(**environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, line + self.process.stdout.read()
        self.address = "http://" + line.split("http://")[1].split()[0]
        self.port = int(self.address.rpartition(":")[2])

    def get(self, path: str) -> dict[str, Any]:
        return request_json(self.address, "GET", path)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=20)

    def verdict(self, run: str, generations: int) -> dict[str, Any]:
        """Return the verdict once it covers all generations."""

        def ask() -> dict[str, Any] | None:
            found = self.get(f"/runs/{run}/verdict")
            return found if found["generations"] >= generations else None

        return dict(eventually(ask))


def leakline(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as users and CI do."""
    return subprocess.run(
        [sys.executable, "-m", "leakline", *arguments, "--server", server.address],
        env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def compare(
    server: Server, before: str, after: str, *more: str
) -> subprocess.CompletedProcess[str]:
    return leakline(server, "compare", before, after, *more)


def train(
    server: Server, folder: Path, run: str, program: str, *arguments: object, **environ: str
) -> int:
    """Run the program as a training that reports to the server, and return its exit status."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py", *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=200,
        env=clean_environment(LEAKLINE_SERVER=server.address, LEAKLINE_RUN_ID=run, **environ), check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def page_of(server: Server, path: str) -> str:
    """Return a page; for a run, with all its tabs."""
    tabs = "?tab=all" if re.fullmatch("/runs/[^/?]+", path) else ""
    with urlopen(server.address + path + tabs) as answer:
        return html.unescape(answer.read().decode())


def section(page: str, name: str) -> str:
    return re.findall(rf'<(?:section|div)[^>]* id="{name}".*?</section>', page, re.DOTALL)[0]


def text_of(markup: str) -> str:
    """Return the visible text; a break may be anywhere."""
    return " ".join(re.sub(r"<[^>]+>", " ", markup.replace("<wbr>", "")).split())


def rows_of(page: str, name: str) -> list[str]:
    """Return the text of each row of the table in a section."""
    return [text_of(row) for row in re.findall(r"<tr>.*?</tr>", section(page, name), re.DOTALL)]


@dataclass(frozen=True)
class Trained:
    """A finished training. ``output`` is what it printed: one line of fitness per generation."""

    run: str
    output: str
    errors: str
    status: int
    spool: Path


class Training:
    """`python -m erl_trading` in its own process."""

    def __init__(
        self, server: str, run: str, folder: Path, leaks: Sequence[str] = (), generations: int = 16,
        population: int = 16, critic_steps: int = 48, fixes: Sequence[str] = (), overhead: str = OVERHEAD,
    ) -> None:  # fmt: skip
        self.run, self.spool = run, folder / ".leakline" / run
        leak_arguments = [argument for leak in leaks for argument in ("--leak", leak)]
        fix_arguments = [argument for fix in fixes for argument in ("--fix", fix)]
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "erl_trading", "--server", server, "--run-id", run, "--name", run,
                "--generations", str(generations), "--population", str(population),
                "--critic-steps", str(critic_steps), *leak_arguments, *fix_arguments,
            ],
            cwd=folder, env=clean_environment(PYTHONPATH=str(EXAMPLES), LEAKLINE_MAX_OVERHEAD=overhead),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read_until(self, text: str) -> str:
        """Read the output up to the line that contains ``text``."""
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"the training ended before {text!r}: {seen}")

    def wait(self) -> Trained:
        """Wait for the end; ``output`` is the part that was not read before."""
        output, errors = self.process.communicate(timeout=TRAINING_SECONDS)
        return Trained(self.run, output, errors, self.process.returncode, self.spool)


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(folder: Path, port: int = 0, **environ: str) -> Server:
        started.append(Server(folder, port, **environ))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def start_training() -> Iterator[Callable[..., Training]]:
    started: list[Training] = []

    def start(*arguments: Any, **options: Any) -> Training:
        started.append(Training(*arguments, **options))
        return started[-1]

    yield start
    for training in started:
        training.process.kill()
        training.process.communicate()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one server on SQLite for all trainings of the session."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def trained(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Trained, dict[str, Any]]]:
    """Train with these leaks, once per session, and return (the training, its verdict on the server)."""
    done: dict[tuple[str, ...], tuple[Trained, dict[str, Any]]] = {}

    def train(*leaks: str) -> tuple[Trained, dict[str, Any]]:
        if leaks not in done:
            run = "-".join(leaks).replace("_", "-") or "no-leak"
            folder = tmp_path_factory.mktemp("training")
            steps = {} if leaks in AS_SHIPPED else {"critic_steps": CRITIC_STEPS}
            overhead = OF_GRAPHS if "loss_graph" in leaks else OVERHEAD
            ended = Training(server.address, run, folder, leaks, overhead=overhead, **steps).wait()
            assert ended.status == 0, ended.errors
            done[leaks] = ended, server.verdict(run, 16)
        return done[leaks]

    return train


def severity(status: str) -> int:
    return SEVERITY.index(status)  # type: ignore[arg-type]


def accused(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings with a problem; status "ok" means that a growth does not matter."""
    return [finding for finding in verdict["findings"] if finding["status"] != "ok"]
