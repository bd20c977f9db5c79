"""Watching another process until it ends: for `leakline watch`, and for what `leakline run` starts and is no Python."""

from __future__ import annotations

import os
import select
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..console import set_up
from ..core.environment import command_line
from ..core.pipeline import Chain, Subject
from ..errors import LeaklineError
from ..probes.memory.process_memory import OtherProcess
from ..runtime.error_boundary import Guard
from ..sampling.external_process import started_as
from ..settings import Settings, start_ticks
from ..snapshot import Number, Snapshot
from ..transport.oom_inference import killed_for_memory, last_readings
from .interval_clock import Intervals

# Where the kernel gives no handle of a process.
LOOK_EVERY_SECONDS: Final = 0.2
# With one, the kernel wakes us.
HANDLE_SECONDS: Final = 60.0
# Last readings that may say how it ended.
READINGS_KEPT: Final = 12


class Watch:
    """One process from outside, from `begin` to `end`. Raises LeaklineError when there is nothing to watch."""

    def __init__(
        self, settings: Settings, pid: int, unit: str = "minute", *, is_told_of: bool = False
    ) -> None:
        self.pid = pid
        check(pid)
        environment = {"command_line": command_line(started_as(pid)), "watched_from_outside": True}
        subject = Subject(pid, is_told_of=is_told_of, unit=unit, environment=environment)
        # Neither what it prints nor the peak that only it may ask for is to be had from outside.
        plain = replace(settings, log_lines=False, exact_peaks=False, allocations=False)
        self.chain = Chain(plain, subject)
        self._readings: list[tuple[float, dict[str, Number]]] = []
        self.chain.loop.listeners.append(self._remember)
        self._intervals = Intervals(unit, self.chain.loop.end_interval)

    def begin(self) -> None:
        set_up()
        self.chain.start()
        self._intervals.start()

    def end(self, state: str, reason: str) -> None:
        """The process has ended, or is watched no longer."""
        self._intervals.stop()
        for step in (self.chain.loop.finish, lambda: self.chain.close((state, reason))):
            with Guard("watching"):
                step()

    def killed(self) -> str | None:
        """Why its last readings say that it was killed for memory; None where they do not."""
        return killed_for_memory(last_readings(self._readings))

    def _remember(self, snapshot: Snapshot) -> None:
        if "process.rss_bytes" in snapshot.samples:
            self._readings.append((snapshot.time, dict(snapshot.samples)))
            del self._readings[:-READINGS_KEPT]


def check(pid: int) -> None:
    """Is there a process of this number with memory of its own?"""
    folder = Path(f"/proc/{pid}")
    if pid <= 0 or not folder.exists():
        raise LeaklineError(f"there is no process {pid}; list yours with: ps -u $USER")
    if not OtherProcess(pid).read():
        try:
            (folder / "status").read_bytes()
        except PermissionError:
            raise LeaklineError(
                f"process {pid} belongs to somebody else, and may not be read; watch it as its owner"
            ) from None
        except OSError:
            raise LeaklineError(f"process {pid} has just ended") from None
        raise LeaklineError(
            f"process {pid} has no memory of its own: it has ended already, or is of the kernel"
        )


def wait_for_end(pid: int) -> None:
    """Until the process has ended. A number that is given anew is another process."""
    ticks = start_ticks(pid)
    handle = _handle(pid)
    try:
        while start_ticks(pid) == ticks and not _is_dead(pid):
            if handle is None:
                time.sleep(LOOK_EVERY_SECONDS)
            else:
                select.select([handle], [], [], HANDLE_SECONDS)
    finally:
        if handle is not None:
            os.close(handle)


def _handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _is_dead(pid: int) -> bool:
    """Gone, or dead and not yet asked for by its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
