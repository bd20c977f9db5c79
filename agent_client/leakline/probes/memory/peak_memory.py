"""The highest resident memory between two snapshots, from two witnesses.

The kernel keeps a high-water mark of the process (``VmHWM``) that only ever rises: a peak is seen in it, however
short, when it is the highest so far. Lower ones are seen when a background reading falls into them. With ``exact`` the
mark is set back after each reading (``5`` to ``/proc/self/clear_refs``), so that it is the exact peak since then; it
belongs to the program and its other tools, so only when the user asks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from leakline.probes.memory.process_memory import read_peak_bytes, read_process, read_resident_bytes
from leakline.snapshot import Number

PEAK = "process.peak_bytes"
RESIDENT = "process.rss_bytes"


class PeakMemory:
    """``process.*`` with the peak since the reading before. Any thread may read or look."""

    def __init__(
        self,
        *,
        exact: bool = False,
        read: Callable[[], dict[str, Number]] = read_process,
        look: Callable[[], int | None] = read_resident_bytes,
        read_mark: Callable[[], Number | None] = read_peak_bytes,
    ) -> None:
        self._read, self._look, self._read_mark = read, look, read_mark
        # Reentrant: a signal handler may end the run, and so read, in the middle of a reading.
        self._lock = threading.RLock()
        self._mark: Number = 0
        self._highest = 0
        self._exact = exact and _reset_mark()

    @property
    def exact(self) -> bool:
        """Whether the kernel's mark is set back after each reading: asked for, and allowed here."""
        return self._exact

    def look(self) -> None:
        """A background reading, about 2 microseconds; told by the next `read`."""
        resident = self._look()
        if resident is not None:
            with self._lock:
                self._highest = max(self._highest, resident)

    def read(self) -> dict[str, Number]:
        """``process.*``; ``process.peak_bytes`` is the highest resident memory since the last `read`, as far as known.

        The first one tells the kernel's mark: the peak since the process began.
        """
        with self._lock:
            samples = self._read()
            mark = samples.pop(PEAK, None)
            known: list[Number] = [samples[RESIDENT]] if RESIDENT in samples else []
            if self._highest:
                known.append(self._highest)
            # It has risen; or another tool has set it back, and it tells the time since then.
            if mark is not None and mark != self._mark:
                known.append(mark)
            if known:
                samples[PEAK] = max(known)
            if not self._set_back():
                self._began_at(mark)
            return samples

    def restart(self) -> None:
        """Forget what was highest until now: it was our own work. About 6 microseconds."""
        with self._lock:
            if not self._set_back():
                self._began_at(self._read_mark())

    def _began_at(self, mark: Number | None) -> None:
        self._highest = 0
        if mark is not None:
            self._mark = mark

    def _set_back(self) -> bool:
        """What the next reading finds is of its own time, also when it is lower than the last."""
        self._exact = self._exact and _reset_mark()
        if self._exact:
            self._highest = 0
            self._mark = 0
        return self._exact


def _reset_mark() -> bool:
    """False where the kernel, or what stands before it, does not let us."""
    try:
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, b"5") == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)
