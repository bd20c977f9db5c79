"""Time from the last line of a program until its process is gone, by kind of end and server."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START: Final = """
import atexit, os, signal, sys, threading, time
import leakline
run = leakline.init(mode={mode!r}, server={server!r}, quiet={quiet})
for generation in range(20):
    run.generation(generation)
    with run.phase("train"):
        sum(range(20_000))
{before}
# Handlers installed by the program take the same time without Leakline.
sys.stdout.write(f"{{time.monotonic()}}\\n")
sys.stdout.flush()
{end}
"""
DAEMONS: Final = """
def work():
    while True:
        with run.phase("other"):
            run.gauge("other", 1)
        time.sleep(0.001)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
"""
SHUTDOWN: Final = """
class Late:
    def __del__(self):
        run.snapshot("from a finalizer")
        leakline.current().mark("from a finalizer")
keep = Late()
keep.itself = keep
sys.keep_for_long = Late()
atexit.register(run.mark, "after ours")
"""


@dataclass(frozen=True, slots=True)
class End:
    """Expected end of a program: ``code``, exit status and final state of the run (None: no end is sent)."""

    code: str
    status: int
    state: str | None = "finished"
    before: str = ""


ENDS: Final = {
    "normal end": End("", 0),
    "finish": End("run.finish()", 0),
    "sys.exit": End("sys.exit(3)", 3, "failed"),
    "exception": End("raise ValueError('planned')", 1, "failed"),
    "SIGTERM": End("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -15, "terminated"),
    "SIGINT": End("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -2, "terminated"),
    "daemon threads": End("", 0, before=DAEMONS),
    "shutdown": End("", 0, before=SHUTDOWN),
    "collected": End("del run; import gc; gc.collect()", 0),
    "os._exit": End("os._exit(0)", 0, None),
}  # fmt: skip


def seconds_to_end(
    folder: Path, end: End, server: str | None, *, quiet: bool = True
) -> tuple[float, str]:
    """Return (seconds, text written to stdout meanwhile). ``server`` None disables Leakline."""
    script = folder / "ends.py"
    mode = "disabled" if server is None else "online"
    script.write_text(
        START.format(
            mode=mode, server=server, quiet=quiet, before=textwrap.dedent(end.before), end=end.code
        )
    )
    environment = {**os.environ, "LEAKLINE_DIR": str(folder / "spool")}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    over = time.monotonic()
    assert process.returncode == end.status, err
    line, _, rest = out.partition("\n")
    return over - float(line), rest
