"""Frames of threads that go on meanwhile: an interpreter that collects while it makes one must not lose its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import faulthandler, gc, random, sys, threading, time
from leakline.probes import frames

faulthandler.enable()
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
print("seen", seen)
"""


def test_reading_the_locals_of_a_busy_thread_never_breaks_the_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[1]) > 100
