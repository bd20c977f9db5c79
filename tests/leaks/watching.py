"""A watcher of a running program: every verdict of the server, and the peak memory of all processes."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Final

import psutil
from tests.flows.conftest import Server, eventually
from tests.leaks.scoring import Look, Seen

from leakline.errors import ServerRefused

# The server examines a run at most every half second, so no verdict is missed.
LOOK_SECONDS: Final = 0.25
# A verdict that has not changed for this long after the end of its run is the last one.
QUIET_SECONDS: Final = 1.5


class Watch:
    """Polls in a thread while its ``with`` block runs; then ``last_verdict`` waits for the end."""

    def __init__(self, server: Server, run: str) -> None:
        self.looks: list[Look] = []
        self.peak_bytes = 0
        self._server, self._run = server, run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch {run}", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def last_verdict(self, generations: int) -> Seen:
        """Return everything that was seen, once the run has ended and its verdict no longer changes."""
        eventually(lambda: self._server.get(f"/runs/{self._run}")["state"] != "running")
        self._server.verdict(self._run, generations)
        verdict = self._unchanged()
        incidents = self._server.get(f"/runs/{self._run}/incidents")["items"]
        return Seen(verdict, tuple(self.looks), tuple(incidents))

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._look()
            self.peak_bytes = max(self.peak_bytes, memory_of_all_bytes())

    def _look(self) -> dict[str, Any] | None:
        try:
            verdict = self._server.get(f"/runs/{self._run}/verdict")
        except ServerRefused:
            # The program has not announced its run yet.
            return None
        look = Look(verdict["generations"], verdict["status"])
        if not self.looks or self.looks[-1] != look:
            self.looks.append(look)
        return verdict

    def _unchanged(self) -> dict[str, Any]:
        pause, since = threading.Event(), time.monotonic()
        before = self._look()
        while time.monotonic() < since + QUIET_SECONDS:
            pause.wait(LOOK_SECONDS)
            verdict = self._look()
            if verdict != before:
                before, since = verdict, time.monotonic()
        assert before is not None, f"the server no longer knows {self._run}"
        return before


def memory_of_all_bytes() -> int:
    """Return the memory of this process and all descendants, with the server; shared memory counts once (Linux)."""
    here = psutil.Process()
    return sum(_proportional_bytes(each) for each in [here, *here.children(recursive=True)])


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        # The process has exited meanwhile.
        return 0
