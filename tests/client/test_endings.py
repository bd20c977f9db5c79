"""A program ends with Leakline as it ends without: its status or signal, and all that it writes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

NOBODY: Final = "http://127.0.0.1:9"

# What stands for Leakline where there is none.
STAND_IN: Final = """
from contextlib import nullcontext
class Run:
    def generation(self, number): return nullcontext()
    def phase(self, name): return nullcontext()
def init(*arguments, **named): return Run()
"""
START: Final = """
import atexit, os, signal, subprocess, sys, threading, time
from {module} import init
run = init("endings")
for number in range(12):
    with run.generation(number), run.phase("train"):
        sum(range(10_000))
print("trained", flush=True)
"""
INTERRUPT: Final = "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"

# What the program does after its training, by the words of docs/delivery.md.
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
    "Ctrl-C in asyncio": f"import asyncio\nasync def main(): {INTERRUPT}\nasyncio.run(main())",
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
        "with concurrent.futures.ProcessPoolExecutor(1) as pool: pool.submit(os._exit, 3).result()"
    ),
    "a subprocess that is interrupted": (
        "print(subprocess.run([sys.executable, '-c', 'raise KeyboardInterrupt'], stderr=subprocess.DEVNULL).returncode)"
    ),
}  # fmt: skip


DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "delivery.md"
# Ending -> how it is said to end: "status 7", "SIGINT".
TOLD: Final = dict(re.findall(r"^\| (.+?) \| (status \d+|SIG\w+) \|$", DOCUMENT.read_text(), re.M))


class Ended(NamedTuple):
    """How a program ended: its status (of a signal, below zero) and what it wrote, without our own lines."""

    status: int
    stdout: str
    stderr: list[str]


def shown(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., Ended]:
    """Run a program that uses ``module``, by ``command``, and tell how it ended."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)

    def run(code: str, module: str, server: str = "", command: Sequence[str] = ()) -> Ended:
        script = tmp_path / "train.py"
        script.write_text(START.format(module=module) + code + "\n")
        done = subprocess.run(
            [sys.executable, *command, str(script)], capture_output=True, text=True, timeout=60,
            cwd=tmp_path, env={**os.environ, "LEAKLINE_SERVER": server}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        told = [
            re.sub("0x[0-9a-f]+", "0x", line)
            for line in done.stderr.splitlines()
            if not line.startswith("leakline: ")
        ]
        return Ended(done.returncode, done.stdout, told)

    return run


def test_the_documents_name_every_ending() -> None:
    assert list(TOLD) == list(ENDINGS)


@pytest.mark.flow
@pytest.mark.long
@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_as_it_ends_without_us(
    ended: Callable[..., Ended], server: Any, name: str
) -> None:
    code = ENDINGS[name]
    without = ended(code, "stand_in")
    assert without.stdout.startswith("trained\n")
    assert shown(without.status) == TOLD[name]
    assert ended(code, "leakline", NOBODY) == without
    assert ended(code, "leakline", server.address) == without


@pytest.mark.flow
@pytest.mark.long
@pytest.mark.parametrize("code", ENDINGS.values(), ids=ENDINGS)
def test_a_program_that_we_start_ends_as_it_ends_by_itself(
    ended: Callable[..., Ended], code: str
) -> None:
    under = ended(code, "stand_in", NOBODY, ("-m", "leakline", "run", "--", sys.executable))
    assert under == ended(code, "stand_in")
