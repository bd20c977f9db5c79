"""How our threads rest and end: a thread inside C++ code while the interpreter exits would abort the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

import leakline
from leakline.runtime import threads
from leakline.runtime.threads import COMPUTING_SECONDS, WAITING_SECONDS, OurThread, end_all

CLIENT = Path(leakline.__file__).parent
MANY = 50
# The collector runs on whichever thread allocates, and frees the program's tensors there; torch releases the
# interpreter lock in the middle of a destructor.
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
    # This thread triggers the first collection, which finds the garbage of the program, when nothing waits for it.
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
def report():
    import wave
    print([t.name for t in threading.enumerate() if t.daemon], flush=True)
atexit.register(report)
import leakline
from leakline.runtime import threads
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
# A thread that imports without a pause is never observed doing anything else.
threads.IMPORTING_SECONDS = 0.5
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
def test_a_slow_exit_summary_does_not_abort_the_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = ended(tmp_path, TENSORS)
    assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr
    assert "the verdict is not ready yet" in done.stderr


NONE_AT_WORK = "import leakline\nleakline.init(mode='offline', quiet=True)\n"


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (AT_WORK.format(work="compute", waits=False), "['leakline-test']\nFalse\n"),
        (AT_WORK.format(work="wait", waits=True), "['leakline-test']\nFalse\n"),
        (NONE_AT_WORK, "True\n"),
    ],
    ids=["computes", "waits", "none at work"],
)
def test_a_thread_still_working_at_exit_runs_no_collection(
    tmp_path: Path, program: str, printed: str
) -> None:
    at_exit = "import atexit, gc\natexit.register(lambda: print(gc.isenabled()))\n"
    done = ended(tmp_path, at_exit + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


@pytest.mark.long
def test_a_thread_within_an_import_does_not_block_the_exit(tmp_path: Path) -> None:
    for _ in range(5):
        done = ended(tmp_path, AT_WORK.format(work="load", waits=False))
        assert (done.returncode, done.stdout, done.stderr) == (0, "['leakline-test']\n", "")


def test_the_exit_does_not_wait_long_for_waiting_threads(tmp_path: Path) -> None:
    many = f"[OurThread('test', os.read, reading, 1, waits=True).start() for _ in range({MANY})]"
    timed = "atexit.register(lambda: print(time.monotonic() - began))"
    began = "atexit.register(lambda: globals().update(began=time.monotonic()))"
    program = AT_WORK.format(work="wait", waits=True)
    done = ended(tmp_path, f"import atexit, time\n{timed}\n{program}\n{many}\n{began}\n")
    # For all of them together.
    assert float(done.stdout.splitlines()[-1]) < MANY * WAITING_SECONDS, done.stderr


def test_every_client_thread_is_of_our_own_class() -> None:
    others = [
        str(path.relative_to(CLIENT))
        for path in CLIENT.rglob("*.py")
        if "threading.Thread(" in path.read_text() and not {"cli", "drill"} & set(path.parts)
    ]
    assert others == []


def importing_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[OurThread, Event]:
    """Return a thread that executes the body of a module until the event is set."""
    (tmp_path / "takes_long.py").write_text("import sys\nsys.leakline_test.wait(20)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    go_on = Event()
    monkeypatch.setattr(sys, "leakline_test", go_on, raising=False)
    thread = OurThread("importing", __import__, "takes_long")
    thread.start()
    return thread, go_on


def test_the_exit_waits_for_a_thread_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold the import lock, which nothing would release afterwards."""
    thread, go_on = importing_thread(tmp_path, monkeypatch)
    later = Timer(3 * COMPUTING_SECONDS, go_on.set)
    later.start()
    end_all()
    gc.enable()
    assert go_on.is_set() and "takes_long" in sys.modules
    later.join()
    thread.join()
    del sys.modules["takes_long"]


def test_an_endless_import_does_not_block_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "IMPORTING_SECONDS", 2 * COMPUTING_SECONDS)
    thread, go_on = importing_thread(tmp_path, monkeypatch)
    end_all()
    gc.enable()
    assert thread.is_alive() and not go_on.is_set()
    go_on.set()
    thread.join()
    del sys.modules["takes_long"]


# -- rests -------------------------------------------------------------------------------------------------


def on_a_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


class Rests(threading.Event):
    """Records the rests requested, in seconds, without sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        threads.breathe()


def rests_of_work(*, late: bool = False) -> tuple[float, float]:
    """Return the CPU seconds of one piece of work and the seconds of all its rests."""
    rests = Rests()
    threads.begin(rests)
    threads.late(late)
    begun = time.thread_time()
    compute(0.05)
    return time.thread_time() - begun, sum(rests.seconds)


@pytest.mark.alone
def test_our_threads_use_a_small_share_of_the_time() -> None:
    worked, rested = on_a_thread(rests_of_work)
    assert rested > 4 * worked


@pytest.mark.alone
def test_a_late_thread_rests_no_longer_than_it_works() -> None:
    worked, rested = on_a_thread(lambda: rests_of_work(late=True))
    assert worked / 2 < rested <= worked


def rest_after(work_seconds: float, waited_seconds: float, **how: float) -> float:
    """Return the seconds that one of our threads rests after a piece of work and a wait."""
    rests = Rests()
    threads.begin(rests, **how)
    until = time.thread_time() + work_seconds
    while time.thread_time() < until:
        pass
    threads.rested(waited_seconds)
    threads.breathe()
    return sum(rests.seconds)


@pytest.mark.alone
def test_rests_grow_with_the_work_up_to_a_limit() -> None:
    assert on_a_thread(lambda: rest_after(0.0005, 0)) == 0
    assert on_a_thread(lambda: rest_after(0.003, 0)) == threads.LONGEST_REST_SECONDS
    rest = threads.REST_SECONDS
    assert on_a_thread(lambda: rest_after(0.003, 0, longest_rest=rest)) == rest


@pytest.mark.alone
def test_waiting_for_the_interpreter_lock_does_not_count_as_rest() -> None:
    assert on_a_thread(lambda: rest_after(0.003, 0.005)) == threads.LONGEST_REST_SECONDS
    assert on_a_thread(lambda: rest_after(0.003, 0.02)) == 0


@pytest.mark.alone
def test_threads_of_the_program_never_rest() -> None:
    waited: list[float] = []

    def work() -> None:
        for _ in range(1000):
            begun = time.thread_time()
            threads.breathe()
            waited.append(time.thread_time() - begun)

    on_a_thread(work)
    # The check itself costs almost nothing.
    assert sorted(waited)[500] < 20e-6
    assert not hasattr(threads._local, "hurry")


def test_no_thread_rests_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "REST_SECONDS", 60.0)
    ends = threading.Event()
    ends.set()

    def work() -> None:
        threads.begin(ends, longest_rest=60.0)
        compute(0.005)

    begun = time.perf_counter()
    on_a_thread(work)
    assert time.perf_counter() - begun < 30
