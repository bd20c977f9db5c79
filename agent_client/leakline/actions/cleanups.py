"""Decides which registered cleanups are due, runs them, and measures how much memory each cleanup frees.

A cleanup is due if the server requested it and the program allows requests, or if the program's condition is met. It
runs on the training thread between two statements of the program, after the phase or generation end at which it became
due (`run.py`), never during our own measurements. The freed memory is therefore attributed
like memory that the program's own statements free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..errors import BadArgument
from ..runtime.error_boundary import Guard
from ..sampling.run_requests import DONE, FAILED, REFUSED
from .callbacks import is_at_least

if TYPE_CHECKING:
    from ..core.training_loop import Loop
    from ..sampling.run_requests import RequestBox
    from ..snapshot import Number, Snapshot

REGISTERED_LIMIT: Final = 16
# Maximum number of classes reported with an event.
COUNTS_LIMIT: Final = 32
# Number of generations before an automatic cleanup runs again while its condition persists. The number doubles each
# time, up to the limit below.
AGAIN_AFTER: Final = 8
AGAIN_AT_MOST: Final = 64

NOT_REGISTERED: Final = f"{REFUSED}: no registered cleanup allows requests"

# A status of the verdict, or a series and the value that it should not exceed.
When = str | tuple[str, float]


@dataclass(slots=True)
class Registered:
    """A registered cleanup; ``when`` is None if it never runs automatically."""

    name: str
    function: Callable[[], object]
    on_request: bool
    when: When | None
    guard: Guard = field(init=False)
    # How many generations had ended at the last automatic run, and how many more must end before the next automatic
    # run.
    ran_at: int | None = None
    gap: int = 1

    def __post_init__(self) -> None:
        self.guard = Guard(f"the cleanup {self.name}")

    @property
    def declared(self) -> dict[str, Any]:
        """The declaration as sent to the server."""
        when = list(self.when) if isinstance(self.when, tuple) else self.when
        return {"on_request": self.on_request, "when": when}


@dataclass(frozen=True, slots=True)
class Before:
    """Measurements before a cleanup: ``counts`` holds instances by type, and ``devices`` holds bytes by series."""

    bytes: int
    started: float
    counts: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, Number] = field(default_factory=dict)


class Cleanups:
    """All cleanups of a run.

    ``status`` returns the status of the newest verdict. If ``quiet``, users cannot request registered cleanups.
    """

    def __init__(
        self, loop: Loop, requests: RequestBox, status: Callable[[], str], *, quiet: bool
    ) -> None:
        self._loop, self._requests, self._status, self._quiet = loop, requests, status, quiet
        self.registered: dict[str, Registered] = {}
        # Newest readings of the series that occur in cleanup conditions.
        self._readings: dict[str, Number] = {}
        self._generation_ends = 0
        self._running = False
        loop.listeners.append(self._see)

    def check_room(self, name: str) -> None:
        """Raise BadArgument if the limit of registered cleanups is reached and ``name`` is not registered yet."""
        if name not in self.registered and len(self.registered) >= REGISTERED_LIMIT:
            raise BadArgument(
                "name", name, f"exceeds the limit of {REGISTERED_LIMIT} registered cleanups"
            )

    def register(self, cleanup: Registered) -> None:
        """Register a cleanup, replacing any cleanup with the same name."""
        cleanup.on_request = cleanup.on_request and not self._quiet
        known = self.registered.get(cleanup.name)
        if known is not None and known.declared == cleanup.declared:
            # Loops tend to register the same cleanup in every generation, which must not reset its state.
            known.function = cleanup.function
            return
        self.registered[cleanup.name] = cleanup
        self._loop.note("register_cleanup", cleanup.name, cleanup.declared)

    def _see(self, snapshot: Snapshot) -> None:
        self._generation_ends += snapshot.kind == "generation_end"
        # Iterate over a copy, because the recorder's thread calls this as well.
        for cleanup in list(self.registered.values()):
            if isinstance(cleanup.when, tuple) and cleanup.when[0] in snapshot.samples:
                self._readings[cleanup.when[0]] = snapshot.samples[cleanup.when[0]]

    def forget(self) -> None:
        """Release the registered functions and the program's objects that they hold."""
        self.registered.clear()

    def run_due(self) -> None:
        """Run the cleanups that are due. Phases that a cleanup opens do not start other cleanups."""
        if self._running:
            return
        self._running = True
        try:
            self._run_asked()
            for cleanup in list(self.registered.values()):
                because = self._calls_for(cleanup)
                if because:
                    cleanup.ran_at = self._generation_ends
                    twice = 2 * cleanup.gap if cleanup.gap > 1 else AGAIN_AFTER
                    cleanup.gap = min(AGAIN_AT_MOST, twice)
                    self._run(cleanup, because)
        finally:
            self._running = False

    def _run_asked(self) -> None:
        """If requests are pending, run each cleanup that allows requests once, and send the outcome as the answer."""
        asked = self._requests.take_cleanups()
        if not asked:
            return
        allowed = [each for each in self.registered.values() if each.on_request]
        outcome = DONE if allowed else NOT_REGISTERED
        if outcome == DONE:
            went_well = [self._run(each, "it was requested") for each in allowed]
            outcome = DONE if all(went_well) else FAILED
        for request in asked:
            self._requests.answer(request, outcome)

    def _calls_for(self, cleanup: Registered) -> str:
        """Return the reason why a cleanup should run automatically now, or an empty string."""
        because = self._reason(cleanup)
        if not because:
            cleanup.gap = 1
        elif cleanup.ran_at is None or self._generation_ends >= cleanup.ran_at + cleanup.gap:
            return because
        return ""

    def _reason(self, cleanup: Registered) -> str:
        if isinstance(cleanup.when, str):
            status = self._status()
            return f"the verdict is {status}" if is_at_least(status, cleanup.when) else ""
        if cleanup.when is None:
            return ""
        series, limit = cleanup.when
        reading = self._readings.get(series)
        above = reading is not None and reading > limit
        return f"{series} is {reading}, above {limit}" if above else ""

    def _run(self, cleanup: Registered, because: str) -> bool:
        """Run a cleanup and return True if it succeeded. If it raises, only the exception's type is reported."""
        before = self.begin(with_counts=True)
        failures = cleanup.guard.count
        with cleanup.guard:
            cleanup.function()
        failed = cleanup.guard.count > failures
        self.end(cleanup.name, before, because, cleanup.guard.newest if failed else None)
        return not failed

    def begin(self, *, with_counts: bool = False) -> Before:
        counts = self._loop.counts() if with_counts else {}
        # Read devices before private memory, so that memory taken by this query is not attributed to the
        # cleanup.
        devices = self._loop.device_bytes()
        return Before(self._loop.read_private_bytes(), time.perf_counter(), counts, devices)

    def end(
        self, name: str, before: Before, because: str | None = None, error: str | None = None
    ) -> None:
        """Report how much memory a cleanup freed on the host and on devices, and the changes in instance counts."""
        seconds = time.perf_counter() - before.started
        after_bytes = self._loop.read_private_bytes()
        data: dict[str, Any] = {
            "before_bytes": before.bytes, "after_bytes": after_bytes,
            "freed_bytes": before.bytes - after_bytes, "seconds": round(seconds, 6),
        }  # fmt: skip
        if before.devices:
            # Leave out a device without a second reading: how much was freed there is unknown.
            now = self._loop.device_bytes()
            data["devices"] = {
                each: [n, now[each]] for each, n in before.devices.items() if each in now
            }
        if because is not None:
            data["because"] = because
        if before.counts:
            after = self._loop.counts()
            both = {each: [n, after[each]] for each, n in before.counts.items() if each in after}
            changed = [each for each in both if any(both[each])][:COUNTS_LIMIT]
            data["counts"] = {each: both[each] for each in changed}
        if error is not None:
            data["error"] = error
        self._loop.note("cleanup", name, data)
