"""The processes in which everything is measured: one CPU thread for what computes, the same hashes in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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


def run_child(
    module: str,
    *arguments: str,
    environment: dict[str, str] | None = None,
    core: int | None = None,
) -> list[str]:
    """The lines that a module of this package prints. Ends the benchmark with its words when it fails.

    ``core``: the only one that it may use, with all its threads.
    """
    bound = [] if core is None else ["taskset", "--cpu-list", str(core)]
    command = [*bound, sys.executable, "-m", f"benchmarks.client.{module}", *arguments]
    if sys.stderr.isatty():
        # Some of them take a minute.
        print(
            f"\r\033[Kmeasuring: {module} {' '.join(arguments)}",
            end="",
            file=sys.stderr,
            flush=True,
        )
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **PINNED, **(environment or {})},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if ended.returncode:
        sys.stderr.write(ended.stderr)
        raise SystemExit(
            f"bench-client: {module} {' '.join(arguments)} ended with {ended.returncode}"
        )
    return [line for line in ended.stdout.splitlines() if line.startswith("{")]
