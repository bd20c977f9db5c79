"""Child processes for all measurements: one CPU thread for numeric libraries and the same hash seed in each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# With several threads, CPU time would depend on how many cores are free.
PINNED: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
}


# Long compared with the time to refill a cache, short compared with the time in which a machine's speed drifts.
TURN_SECONDS: Final = 1.0


def run_child(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the lines that a module of this package prints. Exit with its stderr if it fails."""
    with _progress(module, arguments):
        return _lines(_started((module, *arguments), None, environment or {}))


def run_in_turns(
    commands: Sequence[Sequence[str]], *, core: int | None, environment: Mapping[str, str]
) -> list[list[str]]:
    """Run modules on one core in turns: each runs for a second while the others are stopped.

    Whatever slows the core down slows all of them, and each has the caches to itself. With ``core`` None, any core is
    used.
    """
    children = [_started(command, core, environment) for command in commands]
    try:
        with _progress(commands[0][0], commands[0][1:]):
            _take_turns(children)
            return [_lines(child) for child in children]
    finally:
        # A stopped process does not receive SIGINT.
        for child in children:
            child.kill()


def _take_turns(children: Sequence[subprocess.Popen[str]]) -> None:
    """Alternate between the children until only one is left, which may then run on."""
    while len(left := [child for child in children if child.poll() is None]) > 1:
        for child in left:
            for other in left:
                other.send_signal(SIGCONT if other is child else SIGSTOP)
            with suppress(subprocess.TimeoutExpired):
                child.wait(TURN_SECONDS)
    for child in left:
        child.send_signal(SIGCONT)


def _started(
    command: Sequence[str], core: int | None, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start a module. ``core`` is the only core that its threads may use."""
    bound = [] if core is None else ["taskset", "--cpu-list", str(core)]
    module, *arguments = command
    return subprocess.Popen(
        [*bound, sys.executable, "-m", f"benchmarks.client.{module}", *arguments],
        cwd=ROOT, env={**os.environ, **PINNED, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def _progress(module: str, arguments: Sequence[str]) -> Iterator[None]:
    """Show on a terminal what is being measured: some modules take a minute."""
    shown = sys.stderr.isatty()
    if shown:
        what = f"measuring: {module} {' '.join(arguments)}"
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
    yield
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _lines(child: subprocess.Popen[str]) -> list[str]:
    out, err = child.communicate()
    if child.returncode:
        sys.stderr.write(err)
        raise SystemExit(f"bench-client: {' '.join(child.args)} ended with {child.returncode}")  # type: ignore[arg-type]
    return [line for line in out.splitlines() if line.startswith("{")]
