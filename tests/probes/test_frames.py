"""Locals of running functions, read beside threads that go on; and frames of the program, told from libraries'."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from tests.probes.heaps import run_alone

from leakline.probes.references import program_code

# An interpreter that collects while it makes a frame must not lose its way.
BUSY = """
import gc, random, sys, threading, time
from leakline.probes.references import frames

# Functions of many sizes, so that what is read of a frame that is gone is something else.
source = ""
for size in range(1, 24):
    names = ", ".join(f"v{i}" for i in range(size))
    source += f'''
def f{size}(n):
    {names}, = ([n] for _ in range({size}))
    return [v0] if n <= 0 else ALL[(n * 7 + {size}) % 23](n - 1) + [v0]
'''
space = {}
exec(compile(source, __file__, "exec"), space)
ALL = space["ALL"] = [space[f"f{i}"] for i in range(1, 24)]
over = threading.Event()

def busy():
    while not over.is_set():
        ALL[random.randrange(23)](random.randrange(1, 30))

# Every collection lets other threads run, as a finalizer of the program may.
gc.callbacks.append(lambda phase, info: time.sleep(0))
gc.set_threshold(1, 1000, 1000)
sys.setswitchinterval(1e-6)
thread = threading.Thread(target=busy)
thread.start()
until, seen = time.monotonic() + 3, 0
while time.monotonic() < until:
    for found in frames.locals_of_threads(sys._getframe()).values():
        seen += len(found.read())
over.set()
thread.join()
assert gc.isenabled()
print(seen)
"""


def test_reading_the_locals_of_a_busy_thread_never_breaks_the_program(tmp_path: Path) -> None:
    assert int(run_alone(tmp_path, BUSY)) > 100


WAITING = """
import sys, threading, time, weakref
from leakline.sampling.holder_paths import find_holders

class Step: pass

made = weakref.WeakSet()
started, stop = threading.Event(), threading.Event()

def work():
    pending = [Step() for _ in range(12)]
    made.update(pending)
    started.set()
    stop.wait()
    print(len(pending))
    del pending
    print(len(made))
    # One more line for a tracer to write the locals back.
    last = 1
    print(last)

if len(sys.argv) > 1:
    def hook(frame, event, arg): return hook
    getattr(threading, sys.argv[1])(hook)
thread = threading.Thread(target=work)
thread.start()
started.wait()
paths = [one.path for _ in range(2) for one in find_holders([Step], 20)]
stop.set()
thread.join()
print("__main__.work.<locals>.pending[*]" in paths)
"""


def test_locals_of_other_threads_are_named_and_die_when_the_function_lets_go(
    tmp_path: Path,
) -> None:
    assert run_alone(tmp_path, WAITING).splitlines() == ["12", "0", "1", "True"]


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_a_traced_or_profiled_thread_keeps_its_locals(tmp_path: Path, hook: str) -> None:
    lines = run_alone(tmp_path, WAITING, hook).splitlines()
    assert (lines[0], lines[2]) == ("12", "1")


@pytest.mark.parametrize("folder", ["stdlib", "platstdlib", "purelib", "platlib"])
def test_what_python_installs_is_no_program(folder: str) -> None:
    assert not program_code.is_user_file(
        str(Path(sysconfig.get_path(folder)) / "some" / "module.py")
    )
    assert program_code.is_user_file(__file__)


def test_folders_are_known_while_another_thread_asks_for_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_filled(*_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(sysconfig, "get_config_vars", half_filled)
    with pytest.raises(RuntimeError):
        sysconfig.get_paths()
    program_code._library_folders.cache_clear()
    assert str(Path(pytest.__file__).parent.parent) + "/" in program_code._library_folders()
