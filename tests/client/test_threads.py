"""A thread that is at work while the interpreter ends takes the process with it where it stands below C++."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from pathlib import Path
from threading import Event, Timer

import pytest

import leakline
from leakline.runtime import threads
from leakline.runtime.threads import COMPUTING_SECONDS, WAITING_SECONDS, OurThread, end_all

CLIENT = Path(leakline.__file__).parent
MANY = 50
# The collector runs on the thread that happens to allocate, and frees the program's tensors there, for which torch lets
# go of the interpreter in the middle of a destructor.
TENSORS = """
import gc, sys, threading, time
import torch
import leakline, leakline.report

def frames():
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        yield frame
        frame = frame.f_back

class Kept:
    pass

def takes_long(path):
    # What the program has left is found by the collection that this thread comes to first, when nobody waits for it.
    while not any(f.f_code.co_name == "end_all" for f in frames()):
        time.sleep(0.001)
    gc.enable()
    while True:
        made = [[] for _ in range(1_000)]

leakline.report.closing_line = takes_long
run = leakline.init(mode="offline")
for number in range(3):
    with run.generation(number):
        pass
gc.disable()
for _ in range(60_000):
    kept = Kept()
    kept.itself, kept.tensors = kept, [torch.zeros(2) for _ in range(8)]
"""
AT_WORK = """
import atexit, os, sys, threading, time, warnings
warnings.simplefilter('ignore')
def tell():
    import wave
    print([t.name for t in threading.enumerate() if t.daemon], flush=True)
atexit.register(tell)
import leakline
from leakline.runtime.threads import OurThread

def compute():
    while True:
        try:
            sum(range(100))
        except Exception:
            pass

def wait():
    os.read(reading, 1)

def load():
    while True:
        for name in ("colorsys", "chunk", "sndhdr", "imghdr"):
            sys.modules.pop(name, None)
            try:
                __import__(name)
            except ImportError:
                pass

reading, writing = os.pipe()
run = leakline.init(mode="offline", quiet=True)
OurThread("test", {work}, waits={waits}).start()
"""


def ended(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    script = folder / "ends.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_closing_verdict_that_takes_long_aborts_no_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = ended(tmp_path, TENSORS)
    assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr
    assert "the verdict is not ready yet" in done.stderr


NONE_AT_WORK = "import leakline\nleakline.init(mode='offline', quiet=True)\n"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (AT_WORK.format(work="compute", waits=False), "['leakline-test']\nFalse\n"),
        (AT_WORK.format(work="wait", waits=True), "['leakline-test']\nFalse\n"),
        (NONE_AT_WORK, "True\n"),
    ],
    ids=["computes", "stands still", "none at work"],
)
def test_a_thread_is_left_at_its_work_and_nothing_is_collected_on_it(
    tmp_path: Path, program: str, told: str
) -> None:
    at_exit = "import atexit, gc\natexit.register(lambda: print(gc.isenabled()))\n"
    done = ended(tmp_path, at_exit + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")


@pytest.mark.long
def test_a_thread_in_the_middle_of_an_import_keeps_no_program_from_ending(tmp_path: Path) -> None:
    for _ in range(5):
        done = ended(tmp_path, AT_WORK.format(work="load", waits=False))
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


def import_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[OurThread, Event]:
    """A thread that is in the body of a module, until the event is set."""
    (tmp_path / "takes_long.py").write_text("import sys\nsys.leakline_test.wait(20)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    go_on = Event()
    monkeypatch.setattr(sys, "leakline_test", go_on, raising=False)
    thread = OurThread("importing", __import__, "takes_long")
    thread.start()
    return thread, go_on


def test_a_thread_that_imports_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold the lock of imports, which nobody would release any more."""
    thread, go_on = import_beside(tmp_path, monkeypatch)
    later = Timer(3 * COMPUTING_SECONDS, go_on.set)
    later.start()
    end_all()
    gc.enable()
    assert go_on.is_set() and "takes_long" in sys.modules
    later.join()
    thread.join()
    del sys.modules["takes_long"]


def test_an_import_without_end_holds_up_no_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "IMPORTING_SECONDS", 2 * COMPUTING_SECONDS)
    thread, go_on = import_beside(tmp_path, monkeypatch)
    end_all()
    gc.enable()
    assert thread.is_alive() and not go_on.is_set()
    go_on.set()
    thread.join()
    del sys.modules["takes_long"]
