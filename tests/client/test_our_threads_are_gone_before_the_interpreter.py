"""A thread that is at work while the interpreter ends takes the process with it where it stands below C++."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import leakline
from leakline.threads import WAITING_SECONDS

CLIENT = Path(leakline.__file__).parent
# Beside tests that take the machine to themselves for a moment.
SECONDS = 60.0
MANY = 50

# The collector runs on the thread that happens to allocate, and frees the program's tensors there, for which torch lets
# go of the interpreter in the middle of a destructor.
TENSORS = """
import gc
import torch
import leakline, leakline.report

class Kept:
    pass

def takes_long(path):
    while True:
        for _ in range(50):
            kept = Kept()
            kept.itself = kept
            kept.tensors = [torch.zeros(2) for _ in range(20)]
        gc.collect()

leakline.report.closing_line = takes_long
run = leakline.init(mode="offline")
for number in range(3):
    with run.generation(number):
        pass
"""
AT_WORK = """
import atexit, os, sys, threading, time
atexit.register(lambda: print([t.name for t in threading.enumerate() if t.daemon], flush=True))
import leakline
from leakline.threads import OurThread

def compute():
    while True:
        try:
            sum(range(100))
        except Exception:
            pass

def wait():
    os.read(reading, 1)

reading, writing = os.pipe()
run = leakline.init(mode="offline", quiet=True)
OurThread("test", {work}, waits={waits}).start()
"""


def ended(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    script = folder / "ends.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def test_a_closing_verdict_that_takes_long_aborts_no_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = ended(tmp_path, TENSORS)
    assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr
    assert "the verdict takes longer than an exit may" in done.stderr


def test_a_thread_that_computes_leaves_and_says_nothing(tmp_path: Path) -> None:
    done = ended(tmp_path, AT_WORK.format(work="compute", waits=False))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_thread_that_stands_still_is_left_where_it_is(tmp_path: Path) -> None:
    done = ended(tmp_path, AT_WORK.format(work="wait", waits=True))
    assert (done.returncode, done.stdout, done.stderr) == (0, "['leakline-test']\n", "")


def test_nobody_waits_long_for_threads_that_stand_still(tmp_path: Path) -> None:
    many = f"[OurThread('test', os.read, reading, 1, waits=True).start() for _ in range({MANY})]"
    timed = "atexit.register(lambda: print(time.monotonic() - began))"
    began = "atexit.register(lambda: globals().update(began=time.monotonic()))"
    program = AT_WORK.format(work="wait", waits=True)
    done = ended(tmp_path, f"import atexit, time\n{timed}\n{program}\n{many}\n{began}\n")
    # Of all of them together.
    assert float(done.stdout.splitlines()[-1]) < MANY * WAITING_SECONDS, done.stderr


def test_every_thread_of_the_client_is_one_that_leaves() -> None:
    others = [
        str(path.relative_to(CLIENT))
        for path in CLIENT.rglob("*.py")
        if "threading.Thread(" in path.read_text() and not {"cli", "drill"} & set(path.parts)
    ]
    assert others == []
