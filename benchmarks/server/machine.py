"""CPU, memory and disk usage of servers, including all processes that they have started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
CORES: Final = sorted(os.sched_getaffinity(0))
# The measured server has one core, the driver the others.
SERVER_CORE: Final = CORES[0]
DRIVER_CORES: Final = CORES[1:] or CORES
MIB: Final = 2**20


def end_with_all_that_was_started() -> None:
    """Let SIGTERM exit like an interrupt, so that a benchmark stops its servers first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def pin_driver() -> None:
    os.sched_setaffinity(0, DRIVER_CORES)


def on_server_core(command: Sequence[str]) -> list[str]:
    """Return the command bound to one core from the start, so that the program plans for one."""
    if shutil.which("taskset") is None:
        raise SystemExit("bench-server: needs taskset (Debian: apt-get install util-linux)")
    return ["taskset", "-c", str(SERVER_CORE), *command]


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        each = left.pop()
        found.append(each)
        left += children.get(each, ())
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes and all descendants, alive (in microseconds) and reaped (in ticks)."""
    return sum(_own(each) for pid in pids for each in family(pid))


def _own(pid: int) -> float:
    with suppress(OSError):
        # clock_getcpuclockid(3): the CPU clock of another process.
        alive = time.clock_gettime((~pid << 3) | 2)
        return alive + (int(_stat(pid)[13]) + int(_stat(pid)[14])) / _TICKS
    return 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields from the state on: [0] state, [1] parent, [13] and [14] ticks of reaped children."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def resident_mib(pids: Iterable[int]) -> float:
    """Return resident memory in MiB; pages shared by several processes count once for each."""
    total = 0
    for pid in pids:
        for each in family(pid):
            with suppress(OSError):
                total += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE") / MIB


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 180.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(
                    f"bench-server: {process.args!r} does not listen; ended with {process.poll()}"
                ) from None
            time.sleep(0.02)
        else:
            return


def disk_bytes(folder: Path) -> int:
    """Return the disk space used by the files, not their apparent size."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found += path.stat().st_blocks * 512
    return found


def forget_pages(folder: Path) -> None:
    """Write the files to disk and drop them from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)
