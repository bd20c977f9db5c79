"""A program ends with Leakline as it ends without, and as fast; its end is recorded, and the next run starts cleanly.

The test machine is shared, so these tests allow more seconds than `tests/soak/test_exits.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.client.conftest import no_threads
from tests.client.exits import ENDS, End, seconds_to_end
from tests.client.faults import FaultServer
from tests.client.recording import events, recorded

import leakline
from leakline.core.exit_status import end_of
from leakline.snapshot import Snapshot
from leakline.transport.spool_format import read_batches, read_end, read_header

NOBODY: Final = "http://127.0.0.1:9"
UP_SECONDS: Final = 0.6
ABSENT_SECONDS: Final = 1.0
DOWN_SECONDS: Final = 2.6
# Replaces Leakline in the comparison runs without it.
STAND_IN: Final = """
from contextlib import nullcontext
class Run:
    def generation(self, number): return nullcontext()
    def phase(self, name): return nullcontext()
def init(*arguments, **named): return Run()
"""
BEFORE: Final = """
import atexit, os, signal, subprocess, sys, threading, time
from {module} import init
run = init("endings")
for number in range(12):
    with run.generation(number), run.phase("train"):
        sum(range(10_000))
print("trained", flush=True)
"""
INTERRUPT: Final = "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
# What the program does after its training.
ENDINGS: Final = {
    "falls off its end": "print('last', end='')",
    "sys.exit()": "sys.exit()",
    "sys.exit(7)": "sys.exit(7)",
    "sys.exit(300)": "sys.exit(300)",
    "sys.exit with a message": "sys.exit('no data set')",
    "exit of site": "exit(4)",
    "raise SystemExit in a phase": "with run.generation(12), run.phase('train'): raise SystemExit(3)",
    "SystemExit in a thread": "t = threading.Thread(target=sys.exit, args=(7,)); t.start(); t.join()",
    "os._exit": "os._exit(5)",
    "an exception": "raise ValueError('planned')",
    "an exception in a phase": "with run.generation(12), run.phase('train'): raise ValueError('planned')",
    "an exception with a cause": "try: 1 / 0\nexcept ZeroDivisionError as error: raise KeyError('x') from error",
    "a group of exceptions": "raise ExceptionGroup('both', [ValueError(1), KeyError(2)])",
    "a recursion without end": "def deeper(): deeper()\ntry: deeper()\nexcept RecursionError: sys.exit(9)",
    "an exception in a thread": "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    "a hook for exceptions": "sys.excepthook = lambda *error: print('hooked', error[0].__name__)\nraise ValueError",
    "a hook that ends": "sys.excepthook = lambda *error: os._exit(11)\nraise ValueError",
    "a finalizer that raises": "class Last:\n    def __del__(self): raise ValueError('late')\nlast = Last()",
    "Ctrl-C": INTERRUPT,
    "Ctrl-C in a phase": f"with run.generation(12), run.phase('train'): {INTERRUPT}",
    "KeyboardInterrupt by hand": "raise KeyboardInterrupt",
    "KeyboardInterrupt of a subclass": "class Stop(KeyboardInterrupt): pass\nraise Stop",
    "Ctrl-C that is caught": f"try: {INTERRUPT}\nexcept KeyboardInterrupt: print('caught')",
    "Ctrl-C that becomes a status": f"try: {INTERRUPT}\nexcept KeyboardInterrupt: sys.exit(130)",
    "Ctrl-C that becomes an error": f"try: {INTERRUPT}\nexcept KeyboardInterrupt: raise ValueError('stopped')",
    "Ctrl-C by default": f"signal.signal(signal.SIGINT, signal.SIG_DFL); {INTERRUPT}",
    "Ctrl-C ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGINT)",
    "Ctrl-C in asyncio": (
        "import asyncio\nasync def main(): os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(9)\n"
        "asyncio.run(main())"
    ),
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "SIGTERM with a handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\nos.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    ),
    "SIGTERM ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGTERM)",
    "SIGTERM as an interrupt": (
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    ),
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP); time.sleep(9)",
    "SIGUSR1": "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(9)",
    "SIGALRM": "signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(9)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL); time.sleep(9)",
    "abort": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "a fault with faulthandler": (
        "import faulthandler, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "faulthandler.enable(open(os.devnull, 'w')); faulthandler._sigsegv()"
    ),
    "another program": "os.execv(sys.executable, [sys.executable, '-c', 'print(1); raise SystemExit(6)'])",
    "handlers at exit in their order": "for n in range(3): atexit.register(print, n)",
    "a handler at exit that raises": "atexit.register(lambda: 1 / 0); atexit.register(print, 'other')",
    "a handler at exit that ends": "atexit.register(os._exit, 8)",
    "Ctrl-C and handlers at exit": f"atexit.register(print, 'saved'); {INTERRUPT}",
    "a thread that goes on": "threading.Thread(target=lambda: (time.sleep(0.5), print('later'))).start()",
    "a daemon thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a closed stdout": "sys.stdout.close()",
    "a broken pipe": "r, w = os.pipe(); os.close(r); os.dup2(w, 1); print('x' * 10)",
    "fork": "pid = os.fork()\nif pid == 0: sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "fork and Ctrl-C in the child": (
        f"pid = os.fork()\nif pid == 0: {INTERRUPT}\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "multiprocessing by fork": (
        "import multiprocessing\ncontext = multiprocessing.get_context('fork')\n"
        "child = context.Process(target=sys.exit, args=(5,)); child.start(); child.join(); print(child.exitcode)"
    ),
    "multiprocessing by spawn": (
        "import multiprocessing\ncontext = multiprocessing.get_context('spawn')\n"
        "child = context.Process(target=os._exit, args=(5,)); child.start(); child.join(); print(child.exitcode)"
    ),
    "a child that is still alive": (
        "import multiprocessing\n"
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,), daemon=True).start()"
    ),
    "a pool": (
        "import concurrent.futures\n"
        "with concurrent.futures.ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, -2])))"
    ),
    "a pool whose child dies": (
        "import concurrent.futures\n"
        "with concurrent.futures.ProcessPoolExecutor(1) as pool:\n"
        "    dead = pool.submit(os._exit, 3)\n"
        # Without this wait the traceback would name another line.
        "    concurrent.futures.wait([dead])\n"
        "    dead.result()"
    ),
    "a subprocess that is interrupted": (
        "print(subprocess.run([sys.executable, '-c', 'raise KeyboardInterrupt'], stderr=subprocess.DEVNULL).returncode)"
    ),
}  # fmt: skip
# How a program ends without Leakline: its exit status or signal.
EXPECTED: Final = {
    "falls off its end": "status 0",
    "sys.exit()": "status 0",
    "sys.exit(7)": "status 7",
    "sys.exit(300)": "status 44",
    "sys.exit with a message": "status 1",
    "exit of site": "status 4",
    "raise SystemExit in a phase": "status 3",
    "SystemExit in a thread": "status 0",
    "os._exit": "status 5",
    "an exception": "status 1",
    "an exception in a phase": "status 1",
    "an exception with a cause": "status 1",
    "a group of exceptions": "status 1",
    "a recursion without end": "status 9",
    "an exception in a thread": "status 0",
    "a hook for exceptions": "status 1",
    "a hook that ends": "status 11",
    "a finalizer that raises": "status 0",
    "Ctrl-C": "SIGINT",
    "Ctrl-C in a phase": "SIGINT",
    "KeyboardInterrupt by hand": "SIGINT",
    "KeyboardInterrupt of a subclass": "status 1",
    "Ctrl-C that is caught": "status 0",
    "Ctrl-C that becomes a status": "status 130",
    "Ctrl-C that becomes an error": "status 1",
    "Ctrl-C by default": "SIGINT",
    "Ctrl-C ignored": "status 0",
    "Ctrl-C in asyncio": "SIGINT",
    "SIGTERM": "SIGTERM",
    "SIGTERM with a handler": "status 143",
    "SIGTERM ignored": "status 0",
    "SIGTERM as an interrupt": "SIGINT",
    "SIGHUP": "SIGHUP",
    "SIGUSR1": "SIGUSR1",
    "SIGALRM": "SIGALRM",
    "SIGKILL": "SIGKILL",
    "abort": "SIGABRT",
    "a fault with faulthandler": "SIGSEGV",
    "another program": "status 6",
    "handlers at exit in their order": "status 0",
    "a handler at exit that raises": "status 0",
    "a handler at exit that ends": "status 8",
    "Ctrl-C and handlers at exit": "SIGINT",
    "a thread that goes on": "status 0",
    "a daemon thread": "status 0",
    "a closed stdout": "status 0",
    "a broken pipe": "status 1",
    "fork": "status 0",
    "fork and Ctrl-C in the child": "status 0",
    "multiprocessing by fork": "status 0",
    "multiprocessing by spawn": "status 0",
    "a child that is still alive": "status 0",
    "a pool": "status 0",
    "a pool whose child dies": "status 1",
    "a subprocess that is interrupted": "status 0",
}


LEAKLINE_RUN: Final = ("-m", "leakline", "run", "--", sys.executable)


class Ended(NamedTuple):
    """How a program ended: its status (negative for a signal) and its output without our own lines."""

    status: int
    stdout: str
    stderr: list[str]


def shown(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


def ended(
    folder: Path, code: str, module: str, server: str = "", command: Sequence[str] = ()
) -> Ended:
    """Run a program that uses ``module``, started by ``command``, in its own folder."""
    folder.mkdir()
    (folder / "stand_in.py").write_text(STAND_IN)
    script = folder / "train.py"
    script.write_text(BEFORE.format(module=module) + code + "\n")
    environment = {"LEAKLINE_SERVER": server, "LEAKLINE_DIR": str(folder / "spool")}
    done = subprocess.run(
        [sys.executable, *command, str(script)], capture_output=True, text=True, timeout=60,
        cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    lines = [
        re.sub("0x[0-9a-f]+", "0x", line.replace(str(folder), ""))
        for line in done.stderr.splitlines()
        if not line.startswith("leakline: ")
    ]
    return Ended(done.returncode, done.stdout, lines)


def test_every_ending_has_an_expected_status() -> None:
    assert list(EXPECTED) == list(ENDINGS)


@pytest.mark.flow
@pytest.mark.long
@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_as_it_does_without_leakline(tmp_path: Path, server: Any, name: str) -> None:
    if name == "SIGHUP" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("nohup hands down that SIGHUP is ignored")
    ways = {
        "without": ("stand_in",), "no server": ("leakline", NOBODY), "a server": ("leakline", server.address),
        "leakline run": ("stand_in", NOBODY, LEAKLINE_RUN),
    }  # fmt: skip
    with ThreadPoolExecutor(len(ways)) as pool:
        found = {
            way: pool.submit(ended, tmp_path / way, ENDINGS[name], *arguments)
            for way, arguments in ways.items()
        }
    without = found["without"].result()
    assert without.stdout.startswith("trained\n")
    assert shown(without.status) == EXPECTED[name]
    assert {way: each.result() for way, each in found.items()} == dict.fromkeys(ways, without)


START: Final = """
import os, signal, sys, threading, time
{before}
import leakline
run = leakline.init(quiet={quiet})
run.generation(0)
with run.phase("train"):
    pass
print("ready", flush=True)
"""


def spools(directory: Path) -> list[Path]:
    """Return the spools in the order in which their processes started."""
    return sorted(directory.rglob("*.spool"), key=lambda path: read_header(path)[0].started_at)


class Left(NamedTuple):
    """What a training printed, and what it recorded about its end."""

    status: int
    stdout: str
    stderr: str
    snapshots: list[Snapshot]
    end: tuple[str, str]
    spools: int


Train = Callable[..., Left]


@pytest.fixture
def train(start: Callable[..., subprocess.Popen[str]], spool_directory: Path) -> Train:
    """Run a training script that begins as usual and continues with ``code``."""

    def run(code: str, before: str = "", quiet: bool = True, **environ: str) -> Left:
        begin = START.format(before=before, quiet=quiet)
        process = start(begin + textwrap.dedent(code), **{"LEAKLINE_MODE": "offline", **environ})
        out, err = process.communicate(timeout=60)
        ends = [read_end(path) or {} for path in spools(spool_directory)]
        end = ends[-1].get("state", ""), ends[-1].get("reason", "")
        return Left(process.returncode, out, err, recorded(), end, len(ends))

    return run


# A SystemExit that is caught and kept alive until the end.
KEPT = """kept = []
try:
    sys.exit(4)
except SystemExit as error:
    kept.append(error)
"""
SIGNAL: Final = "os.kill(os.getpid(), signal.SIG{}); time.sleep(30)"


@pytest.mark.flow
@pytest.mark.parametrize(
    ("code", "status", "end"),
    [
        ("", 0, ("finished", "")),
        ("raise ValueError('planned')", 1, ("failed", "ValueError")),
        (SIGNAL.format("TERM"), -15, ("terminated", "SIGTERM")),
        (SIGNAL.format("INT"), -2, ("terminated", "KeyboardInterrupt")),
        ("sys.exit()", 0, ("finished", "")),
        ("sys.exit(7)", 7, ("failed", "exit status 7")),
        ("sys.exit('no data set')", 1, ("failed", "exit status 1")),
        ("sys.exit(130)", 130, ("terminated", "SIGINT")),
        ("exit(7)", 7, ("failed", "exit status 7")),
        ("with run.phase('train'): raise SystemExit(7)", 7, ("failed", "exit status 7")),
        ("try:\n    sys.exit(7)\nexcept SystemExit:\n    pass", 0, ("finished", "")),
        (f"{KEPT}run.generation(1)", 0, ("finished", "")),
        (f"{KEPT}try:\n    sys.exit(7)\nfinally:\n    kept.clear()", 7, ("failed", "exit status 7")),
        ("try:\n    sys.exit(7)\nfinally:\n    run.generation(1)", 7, ("failed", "exit status 7")),
        (f"{KEPT}run.generation(1)\nwith run.phase('a'): raise kept[0]", 4, ("failed", "exit status 4")),
        ("threading.Thread(target=sys.exit, args=(7,)).start()", 0, ("finished", "")),
        ("run.finish()\nsys.exit(7)", 7, ("finished", "")),
    ],
)  # fmt: skip
def test_the_recorded_end_matches_the_end_of_the_program(
    train: Train, code: str, status: int, end: tuple[str, str]
) -> None:
    left = train(code)
    assert (left.status, left.end, left.spools) == (status, end, 1), left.stderr
    kinds = [s.kind for s in left.snapshots]
    assert kinds[:2] == ["baseline", "phase_end"]
    assert kinds[-2:] == ["generation_end", "finish"]


@pytest.mark.flow
@pytest.mark.parametrize(
    ("finish", "end"), [("", ("terminated", "SIGTERM")), ("run.finish()", ("finished", ""))]
)
def test_the_sigterm_handler_of_the_program_still_works(
    train: Train, finish: str, end: tuple[str, str]
) -> None:
    left = train(
        "os.kill(os.getpid(), signal.SIGTERM)\nrun.generation(1)\n"
        f"print('saved a checkpoint', flush=True)\n{finish}",
        before="signal.signal(signal.SIGTERM, lambda *a: print('own', flush=True))",
    )
    assert left.stdout.split("\n")[:3] == ["ready", "own", "saved a checkpoint"]
    assert (left.status, left.end) == (0, end)


PLANNED: Final = """
with run.generation(1), run.phase("train"), run.phase("update"):
    raise ValueError("planned")
"""
ONE_BEFORE: Final = """
try:
    with run.phase("train"):
        raise ValueError("first")
except ValueError as kept:
    first = kept
raise KeyError("second")
"""


@pytest.mark.flow
@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (PLANNED, [("ValueError", "train/update")]),
        (ONE_BEFORE, [("ValueError", "train"), ("KeyError", None)]),
    ],
)
def test_an_exception_that_ends_the_program_is_recorded_once(
    train: Train, code: str, raised: list[tuple[str, str | None]]
) -> None:
    left = train(code)
    assert [(e.name, e.data.get("phase")) for e in events("exception")] == raised
    assert left.end[0] == "failed"


@pytest.mark.flow
@pytest.mark.parametrize(("end", "said"), [("", 1), ("os.kill(os.getpid(), 15)", 0)])
def test_a_terminated_program_prints_no_verdict(train: Train, end: str, said: int) -> None:
    assert len(train(end, quiet=False).stderr.splitlines()) == 1 + said


@pytest.mark.flow
def test_a_sigterm_during_the_end_takes_effect_after_it(train: Train, server: Any) -> None:
    left = train(
        """
        close = run._chain.close

        def interrupted(end):
            os.kill(os.getpid(), signal.SIGTERM)
            close(end)

        run._chain.close = interrupted
        raise ValueError("planned")
        """,
        LEAKLINE_MODE="online",
        LEAKLINE_SERVER=server.address,
    )
    assert (left.status, left.end) == (-signal.SIGTERM, ("failed", "ValueError"))
    assert [(end["state"], end["reason"]) for end in server.ends] == [("failed", "ValueError")]


@pytest.mark.flow
def test_a_ctrl_c_within_finish_does_not_change_the_exit_of_the_program(train: Train) -> None:
    left = train(
        """
        from leakline.run import Run
        leave = Run._leave

        def interrupted(self, end):
            os.kill(os.getpid(), signal.SIGINT)
            leave(self, end)

        Run._leave = interrupted
        raise SystemExit(3)
        """,
        quiet=False,
        LEAKLINE_MODE="online",
        LEAKLINE_SERVER=NOBODY,
    )
    assert left.status == 3
    assert "Traceback" not in left.stderr
    assert "KeyboardInterrupt" not in left.stderr


@pytest.mark.flow
@pytest.mark.parametrize(("chains", "status"), [(True, 0), (False, -15)])
def test_a_sigterm_handler_that_calls_the_previous_one_keeps_control(
    train: Train, chains: bool, status: int
) -> None:
    left = train(
        f"""
        before = signal.getsignal(signal.SIGTERM)
        came = []

        def stop(number, frame):
            came.append(number)
            if callable(before):
                before(number, frame)

        if {chains}:
            signal.signal(signal.SIGTERM, stop)
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved a checkpoint", len(came), flush=True)
        """
    )
    assert left.stdout == ("ready\nsaved a checkpoint 1\n" if chains else "ready\n")
    assert (left.status, left.end) == (status, ("terminated", "SIGTERM"))


@pytest.mark.flow
def test_leakline_run_installs_no_sigterm_handler_in_the_program(
    tmp_path: Path, spool_directory: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, sys\n"
        "print('leakline' in sys.modules, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "run", "--mode", "offline", "--", sys.executable, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "True True\n"), done.stderr
    (path,) = spools(spool_directory)
    end = read_end(path) or {}
    assert (end["state"], end["reason"]) == ("terminated", "SIGTERM")


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (0, ("finished", "")),
        (1, ("failed", "exit status 1")),
        (-signal.SIGKILL, ("terminated", "SIGKILL")),
        (-signal.SIGINT, ("terminated", "SIGINT")),
        (-64, ("terminated", "SIGRTMAX")),
        (128 + signal.SIGINT, ("terminated", "SIGINT")),
        (128 + signal.SIGKILL, ("terminated", "SIGKILL")),
        (128 + signal.SIGHUP, ("failed", "exit status 129")),
        (255, ("failed", "exit status 255")),
    ],
)
def test_each_exit_status_maps_to_an_end(status: int, end: tuple[str, str]) -> None:
    assert end_of(status) == end


@pytest.fixture(scope="module")
def seconds_without_us(tmp_path_factory: pytest.TempPathFactory) -> float:
    return seconds_to_end(tmp_path_factory.mktemp("without"), ENDS["normal end"], None)[0]


@pytest.mark.flow
@pytest.mark.alone
@pytest.mark.parametrize(
    "kind", ["normal end", "SIGTERM", "daemon threads", "shutdown", "os._exit"]
)
def test_a_program_ends_soon_when_its_server_is_up(
    tmp_path: Path, server: Any, seconds_without_us: float, kind: str
) -> None:
    end = ENDS[kind]
    seconds, printed = seconds_to_end(tmp_path, end, server.address)
    assert printed == ""
    assert seconds - seconds_without_us < UP_SECONDS
    assert [ended["state"] for ended in server.ends] == ([] if end.state is None else [end.state])
    if end.state is not None:
        assert server.sequences == sorted(set(server.sequences))
        assert len(server.sequences) >= 42


@pytest.mark.flow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "mode", "allowed"),
    [
        ("normal end", "absent", ABSENT_SECONDS), ("exception", "dripping", DOWN_SECONDS),
        ("os._exit", "black hole", UP_SECONDS),
    ],
)  # fmt: skip
def test_a_program_ends_soon_when_its_server_is_down(
    tmp_path: Path, faulty: FaultServer, seconds_without_us: float, kind: str, mode: str, allowed: float
) -> None:  # fmt: skip
    faulty.set(mode)
    seconds, printed = seconds_to_end(tmp_path, ENDS[kind], faulty.address)
    assert printed == ""
    assert seconds - seconds_without_us < allowed


@pytest.mark.flow
@pytest.mark.alone
def test_the_exit_of_a_long_run_does_not_wait_for_its_verdict(
    tmp_path: Path, server: Any, seconds_without_us: float
) -> None:
    many = "for g in range(20, 400):\n    with run.generation(g), run.phase('train'): pass"
    long = End("", 0, before=many)
    seconds, _ = seconds_to_end(tmp_path, long, server.address, quiet=False)
    assert seconds - seconds_without_us < UP_SECONDS
    assert server.ends[0]["state"] == "finished"


def together(*work: Callable[[], object]) -> None:
    """Run all functions at the same time, one thread each, and raise what any of them raised."""
    ready = threading.Barrier(len(work))

    def run(one: Callable[[], object]) -> None:
        ready.wait(20)
        one()

    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(run, one) for one in work]:
            done.result()


def test_reusing_a_run_id_in_one_process_starts_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch, spool_directory: Path
) -> None:
    monkeypatch.setenv("LEAKLINE_RUN_ID", "ours")
    for generation in range(3):
        leakline.init(mode="offline", quiet=True).generation(generation)
    leakline.current().finish()
    headers = [read_header(path) for path in spools(spool_directory)]
    assert [(run.id, who.role, who.attempt) for run, who in headers] == [
        ("ours", "main", 1), ("ours", "main", 2), ("ours", "main", 3),
    ]  # fmt: skip
    assert len({who.instance for _, who in headers}) == 3


def test_the_first_line_of_a_resumed_run_names_the_attempt(
    monkeypatch: pytest.MonkeyPatch, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEAKLINE_RUN_ID", "ours")
    for _ in range(2):
        run = leakline.init(name="again", server=server.address)
        run.generation(0)
        run.finish()
    address = f"leakline: run again -> {server.address}/runs/ours"
    first = [line for line in caplog.messages if line.startswith("leakline: run ")]
    assert first == [address, f"{address} (attempt 2)"]


def test_an_exception_in_a_notebook_cell_does_not_end_the_run(
    spool_directory: Path,
) -> None:
    first = leakline.init(mode="offline", quiet=True)
    with contextlib.suppress(ValueError), first.generation(0), first.phase("train"):
        raise ValueError("in a cell")
    assert leakline.current() is first
    with first.generation(1), first.phase("train"):
        pass
    second = leakline.init(mode="offline", quiet=True)
    with second.generation(0):
        pass
    second.finish()
    ends = [read_end(path) for path in spools(spool_directory)]
    assert [(end["state"], end["reason"]) for end in ends if end] == [("finished", "")] * 2
    assert [e.name for e in events("exception")] == ["ValueError"]


def test_starting_a_run_ends_the_previous_one_within_its_phase(
    spool_directory: Path,
) -> None:
    first = leakline.init(mode="offline", quiet=True)
    first.generation(0)
    phase = first.phase("train")
    phase.__enter__()
    second = leakline.init(mode="offline", quiet=True)
    phase.__exit__(None, None, None)
    second.finish()
    kinds = [
        [s.kind for batch in read_batches(path) for s in batch.snapshots]
        for path in spools(spool_directory)
    ]
    assert kinds == [["baseline", "generation_end", "finish"], ["baseline", "finish"]]
    assert [(read_end(path) or {})["state"] for path in spools(spool_directory)] == ["finished"] * 2


@pytest.mark.parametrize("online", [False, True])
def test_a_run_without_threads_is_fully_recorded_at_its_end(
    spool_directory: Path, server: Any, internal_exceptions: Any, online: bool
) -> None:
    with no_threads():
        run = leakline.init(
            server=server.address, mode="online" if online else "offline", quiet=True
        )
        assert leakline.current() is run
        for generation in range(3):
            with run.generation(generation):
                pass
        began = time.monotonic()
        run.finish()
    # The end does not wait for a thread that never started.
    assert time.monotonic() - began < ABSENT_SECONDS
    assert [s.kind for s in recorded()] == ["baseline", *["generation_end"] * 3, "finish"]
    (path,) = spools(spool_directory)
    assert (read_end(path) or {})["state"] == "finished"
    assert {str(error) for error in internal_exceptions} == {"can't start new thread"}
    internal_exceptions.clear()


def fail(*_: object) -> None:
    raise OSError("planned")


@pytest.mark.parametrize("part", ["output.stop", "loop.sampler.stop", "recorder.close", "sender.close"])  # fmt: skip
def test_a_failing_part_does_not_keep_others_from_closing(
    spool_directory: Path, server: Any, internal_exceptions: Any, part: str
) -> None:
    run = leakline.init(server=server.address, quiet=True, log_lines=True)
    with run.generation(0):
        pass
    chain = run._chain
    owner, _, name = part.rpartition(".")
    failing = attrgetter(owner)(chain)
    close = getattr(failing, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failing, name, fail)
        run.finish()
    assert [str(error) for error in internal_exceptions] == ["planned"]
    internal_exceptions.clear()
    file = chain.outbox.file
    assert file is not None and file._fd < 0
    (path,) = spools(spool_directory)
    assert (read_end(path) is None) == (part == "recorder.close")
    assert len(server.ends) == (part != "sender.close")
    close(*(({}, 5.0) if name == "close" else ()))


def test_a_discarded_run_leaves_no_spool_even_if_a_part_fails(
    offline: leakline.Run, spool_directory: Path, internal_exceptions: Any
) -> None:
    sampler = offline._chain.loop.sampler
    assert spools(spool_directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "stop", fail)
        offline._chain.discard()
    assert spools(spool_directory) == []
    assert [str(error) for error in internal_exceptions] == ["planned"]
    internal_exceptions.clear()


def test_a_run_may_begin_on_one_thread_and_end_on_another(spool_directory: Path) -> None:
    made: list[leakline.Run] = []
    before = signal.getsignal(signal.SIGTERM), sys.excepthook

    def begin() -> None:
        made.append(leakline.init(mode="offline", quiet=True))
        with made[0].generation(0), made[0].phase("train"):
            pass

    together(begin)
    assert leakline.current() is made[0]
    # Only the main thread may set a signal handler.
    assert signal.getsignal(signal.SIGTERM) is before[0]
    together(made[0].finish)
    assert leakline.current().id == ""
    assert [s.kind for s in recorded()] == ["baseline", "phase_end", "generation_end", "finish"]
    (path,) = spools(spool_directory)
    assert read_end(path)["state"] == "finished"  # type: ignore[index]


def test_phases_of_many_threads_are_all_recorded(offline: leakline.Run) -> None:
    offline.generation(0)

    def work(name: str) -> None:
        for _ in range(10):
            with offline.phase(name), offline.phase("inner"):
                leakline.current().mark("here")

    together(*(lambda n=n: work(f"thread {n}") for n in range(8)))
    offline.finish()
    phases = [s.phase for s in recorded() if s.kind == "phase_end"]
    for n in range(8):
        assert phases.count(f"thread {n}") == 10
    assert sum(str(phase).endswith("inner") for phase in phases) == 80
    numbers = [s.sequence for s in recorded()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.long
def test_nothing_is_recorded_after_the_end_of_a_run(
    spool_directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(8):
        run = leakline.init(mode="offline", quiet=True)
        ended = threading.Event()

        def work(run: leakline.Run = run, ended: threading.Event = ended) -> None:
            after = 0
            generation = 0
            while after < 20:
                after += ended.is_set()
                generation += 1
                run.generation(generation)
                with run.phase("train"), run.phase("inner"):
                    run.gauge("g", generation)
                    run.note("n")
                    run.snapshot("s")
                    run.census()

        def finish(run: leakline.Run = run, ended: threading.Event = ended) -> None:
            ended.wait(0.01)
            run.finish()
            ended.set()

        together(work, work, work, finish)
    for path in spools(spool_directory):
        kinds = [s.kind for batch in read_batches(path) for s in batch.snapshots]
        # Snapshots may have been taken before the end, but none after it.
        assert kinds.index("finish") == len(kinds) - 1
        assert (read_end(path) or {})["state"] == "finished"
    assert capfd.readouterr() == ("", "")


def test_a_run_ended_by_many_threads_ends_once(
    offline: leakline.Run,
    spool_directory: Path,
) -> None:
    offline.generation(0)
    seen: list[Any] = []

    def finish() -> None:
        offline.finish()
        # Whichever thread ended the run, it has ended when the call returns.
        (path,) = spools(spool_directory)
        seen.append(read_end(path))

    together(*[finish] * 8)
    assert [end["state"] for end in seen] == ["finished"] * 8
    assert [s.kind for s in recorded()].count("finish") == 1


# The usual beginning, then a slow end on another thread.
ENDS_SLOWLY: Final = """
close, began, go_on = run._chain.close, threading.Event(), threading.Event()

def slowly(end):
    began.set()
    go_on.wait({seconds})
    close(end)

run._chain.close = slowly
threading.Thread(target=run.finish).start()
began.wait(20)
"""
FORKS: Final = """
pid = os.fork()
if pid == 0:
    signal.alarm(2)
    run.finish()
    assert run.report() == ""
    sys.exit(0)
status = os.waitpid(pid, 0)[1]
go_on.set()
sys.exit(status != 0)
"""


@pytest.mark.flow
@pytest.mark.parametrize(
    ("seconds", "code", "status"),
    [(0.5, SIGNAL.format("TERM"), -signal.SIGTERM), (20, FORKS, 0)],
    ids=["a signal waits for it", "a forked child waits for nobody"],
)
def test_a_program_can_exit_while_another_thread_ends_the_run(
    train: Train, seconds: float, code: str, status: int
) -> None:
    left = train(ENDS_SLOWLY.format(seconds=seconds) + code)
    assert (left.status, left.stdout, left.stderr) == (status, "ready\n", "")
    assert (left.end[0], left.spools) == ("finished", 1)
