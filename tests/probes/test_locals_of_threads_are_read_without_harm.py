"""Locals of other threads' functions are named, and neither kept alive nor lost to a tracer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading, time, weakref
from leakline.holders import find_holders

class Step: pass

made = weakref.WeakSet()
started, stop, go_on = threading.Event(), threading.Event(), threading.Event()

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

{before}
thread = threading.Thread(target=work)
thread.start()
started.wait()
paths = [one.path for one in find_holders([Step], 20)]
paths += [one.path for one in find_holders([Step], 20)]
stop.set()
thread.join()
print("__main__.work.<locals>.pending[*]" in paths)
"""


def _run(folder: Path, before: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(PROGRAM.replace("{before}", before))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_they_are_named_and_die_when_the_function_lets_go(tmp_path: Path) -> None:
    assert _run(tmp_path, "") == ["12", "0", "1", "True"]


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_a_traced_or_profiled_thread_keeps_its_locals(tmp_path: Path, hook: str) -> None:
    hooked = f"def hook(frame, event, arg): return hook\nthreading.{hook}(hook)"
    lines = _run(tmp_path, hooked)
    assert (lines[0], lines[2]) == ("12", "1")
