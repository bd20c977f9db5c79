"""Requests scans from worker processes that grow, one at a time (see `worker_scan.py`).

The first scan of a worker reads its containers, and each later scan finds what has grown since. Of all workers, the one
that has grown most is scanned first.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..probes.memory.process_memory import PROC
from ..runtime.error_boundary import Guard
from ..text_format import short_name
from .worker_scan import EXPLAINS, SUFFIX, Offer, install

# Minimum growth between two scans of a worker: in bytes, and as a share of its growth up to the previous scan.
LEAST_BYTES: Final = 8 * 2**20
LEAST_SHARE: Final = 0.25
# Minimum time between two scans: in seconds, and in durations of the previous scan (0.3 % of the time).
GAP_SECONDS: Final = 20.0
GAP_SCANS: Final = 300.0
SCANS_LIMIT: Final = 6
# Maximum number of results in a run.
NOTES_LIMIT: Final = 64
# A worker that waits for a task answers with the next one. After this many missing answers, it is not scanned again.
PATIENCE_SECONDS: Final = 60.0
UNANSWERED_LIMIT: Final = 2


# Flag of a process in /proc/PID/stat.
_FORKED_WITHOUT_EXEC: Final = 0x40
# Numbers of the system calls in which Python waits for a task and goes on waiting: read, futex and poll.
_RESTARTED: Final = {
    "x86_64": ([b"0"], [b"202"], [b"7"]), "aarch64": ([b"63"], [b"98"], [b"73"]),
}  # fmt: skip


@dataclass(slots=True)
class _Worker:
    """A child, with its private bytes at the first, the newest, and the last scanned and requested reading."""

    name: str
    first: int
    scanned: int
    size: int = 0
    requested: int = 0
    scans: int = 0
    unanswered: int = 0

    @property
    def is_due(self) -> bool:
        least = max(LEAST_BYTES, LEAST_SHARE * (self.scanned - self.first))
        is_allowed = self.scans < SCANS_LIMIT and self.unanswered < UNANSWERED_LIMIT
        return is_allowed and self.size - self.scanned >= least


class WorkerNote(NamedTuple):
    """The text and the data of the event that reports a scan."""

    text: str
    data: dict[str, Any]


class WorkerRequests:
    """The requests of one run. Call ``note`` at each reading of the child processes, and ``take`` for the results.

    The names of request files begin with ``prefix``. Child processes that start from now on answer requests.
    """

    def __init__(self, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._prefix = prefix
        self._offer = Offer(prefix)
        self._offer.make()
        self._guard = Guard("requesting scans of child processes")
        self._workers: dict[int, _Worker] = {}
        # The request that waits for its answer: the process ID, the file, and the time of the request.
        self._waiting: tuple[int, Path, float] | None = None
        self._not_before = 0.0
        self._found: list[WorkerNote] = []
        self._notes_left = NOTES_LIMIT

    def abandon(self) -> None:
        """Answer the parent's requests in a forked child."""
        if self._prefix:
            install(self._prefix)

    def end(self) -> None:
        self._offer.make(withdraw=True)
        waiting, self._waiting, self._prefix = self._waiting, None, ""
        if waiting is not None:
            waiting[1].unlink(missing_ok=True)

    def take(self) -> tuple[WorkerNote, ...]:
        """Return the results since the last call."""
        found, self._found = self._found, []
        return tuple(found)

    def note(self, sizes: Mapping[int, tuple[str, int]]) -> None:
        """Note the name and the private bytes of each child by process ID, and complete or make a request."""
        if not self._prefix:
            return
        with self._guard:
            known = self._workers
            self._workers = {p: known.get(p) or _Worker(*row, row[1]) for p, row in sizes.items()}
            for pid, worker in self._workers.items():
                worker.name, worker.size = sizes[pid]
            if self._waiting is not None:
                self._complete(*self._waiting)
            if self._waiting is None and self._clock() >= self._not_before:
                self._request()

    def _complete(self, pid: int, path: Path, since: float) -> None:
        self._waiting, worker = None, self._workers.get(pid)
        try:
            text, is_late = path.read_text(), self._clock() - since > PATIENCE_SECONDS
        except FileNotFoundError:
            text, is_late = "", True
        if worker is not None and not text.endswith("\n") and not is_late:
            self._waiting = pid, path, since
            return
        path.unlink(missing_ok=True)
        if worker is not None and text.endswith("\n"):
            found = json.loads(text)
            grown, worker.scans = worker.requested - worker.scanned, worker.scans + 1
            # The scan itself copies some pages that the worker shares with its parent.
            worker.scanned = worker.size
            self._not_before = since + max(GAP_SECONDS, GAP_SCANS * found["seconds"])
            if "private" in found and self._notes_left:
                self._notes_left -= 1
                self._found.append(_note_of(worker.name, found, grown))
        elif worker is not None:
            worker.unanswered += 1

    def _request(self) -> None:
        due = [(pid, worker) for pid, worker in self._workers.items() if worker.is_due]
        # A second scan comes first, because it is the first one with a result.
        due.sort(key=lambda one: (one[1].scans != 1, one[1].scans, one[1].first - one[1].size))
        # A spawned child may not answer yet.
        for pid, worker in ((pid, worker) for pid, worker in due if _answers(pid)):
            path = Path(f"{self._prefix}-{pid}{SUFFIX}")
            path.write_bytes(b"")
            self._waiting, worker.requested = (pid, path, self._clock()), worker.size
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGURG)
            break


def _note_of(worker: str, found: Mapping[str, Any], grown: int) -> WorkerNote:
    # Unlike the reading in the worker, ``grown`` includes pages that the worker copies by reading objects.
    share, types, holder = min(1.0, found["explained"] / max(grown, found["private"])), [], ""
    text = f"{worker}: no container explains its growth"
    if share >= EXPLAINS:
        # In a spawned child, the main module has another name.
        texts = [*found["types"], found["holder"]]
        *types, holder = (each.replace("__mp_main__", "__main__") for each in texts)
        held = f", held by {holder}" if holder else ""
        text = f"{worker} keeps {', '.join(map(short_name, types))}{held}"
    return WorkerNote(
        text, {"worker": worker, "types": types, "holder": holder, "share": round(share, 3)}
    )


def _answers(pid: int) -> bool:
    """Return True if a process runs our Python, handles SIGURG, and is at a point where the signal is harmless.

    A signal interrupts sleeping system calls. Native code often does not expect this, so a process is not sent the
    signal while it sleeps, except in calls that the kernel restarts.
    """
    if signal.getsignal(signal.SIGURG) is not signal.SIG_DFL:
        # Forked children have inherited the program's handler.
        return False
    process = PROC / str(pid)
    try:
        call = (process / "syscall").read_bytes().split()[:1]
        if call != [b"running"] and call not in _RESTARTED.get(os.uname().machine, ()):
            return False
        if not os.path.samefile(process / "exe", PROC / "self/exe"):  # noqa: PTH121
            return False
        flags = int((process / "stat").read_bytes().rpartition(b")")[2].split()[6])
        command = (process / "cmdline").read_bytes()
        status = (process / "status").read_bytes()
    except OSError:
        return False
    blocked, caught = (
        int(status.partition(name)[2].split(None, 1)[0], 16) >> (signal.SIGURG - 1) & 1
        for name in (b"\nSigBlk:", b"\nSigCgt:")
    )
    # Other programs that were started by exec may have a handler of their own.
    is_ours = flags & _FORKED_WITHOUT_EXEC or b"multiprocessing" in command or b"loky" in command
    return bool(caught and not blocked and is_ours)
