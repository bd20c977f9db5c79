"""The processes in which everything is measured: one CPU thread for what computes, the same hashes in each."""

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
# Threads of its own would make CPU time depend on how many cores are free.
PINNED: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
}


# Long beside what a cache needs to fill again, short beside what a machine needs to become faster or slower.
TURN_SECONDS: Final = 1.0


def run_child(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> list[str]:
    """The lines that a module of this package prints. Ends the benchmark with its words when it fails."""
    with _told(module, arguments):
        return _lines(_started((module, *arguments), None, environment or {}))


def run_in_turns(
    commands: Sequence[Sequence[str]], *, core: int | None, environment: Mapping[str, str]
) -> list[list[str]]:
    """As many modules with their arguments, on one core: each goes on for a second while the others stand still.

    What makes the core slow makes all of them slow, and each has its caches to itself. ``core`` None: any.
    """
    children = [_started(command, core, environment) for command in commands]
    try:
        with _told(commands[0][0], commands[0][1:]):
            _take_turns(children)
            return [_lines(child) for child in children]
    finally:
        # What stands still does not hear an interrupt.
        for child in children:
            child.kill()


def _take_turns(children: Sequence[subprocess.Popen[str]]) -> None:
    """Until only one is left, which may go on."""
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
    """``core``: the only one that it may use, with all its threads."""
    bound = [] if core is None else ["taskset", "--cpu-list", str(core)]
    module, *arguments = command
    return subprocess.Popen(
        [*bound, sys.executable, "-m", f"benchmarks.client.{module}", *arguments],
        cwd=ROOT, env={**os.environ, **PINNED, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def _told(module: str, arguments: Sequence[str]) -> Iterator[None]:
    """Some of them take a minute."""
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
