"""The cleanups that a program registered: which of them is due, and what each has freed.

One is due when the server asked and the program allows that, or when what the program set for it has come. It runs on
the training thread between two of its statements, after the phase or generation end that found it due (`run.py`), never
in the middle of our own measuring. So what it frees is booked like anything else the program does there.
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
# Classes reported with an event.
COUNTS_LIMIT: Final = 32
# Generations until an automatic cleanup runs again while what called for it lasts; twice as many each time after.
AGAIN_AFTER: Final = 8
AGAIN_AT_MOST: Final = 64

NOT_REGISTERED: Final = f"{REFUSED}: no cleanup is registered for it"

# A status of the verdict, or a series and what it is to stay at or below.
When = str | tuple[str, float]


@dataclass(slots=True)
class Registered:
    """``when`` is None for one that never runs by itself."""

    name: str
    function: Callable[[], object]
    on_request: bool
    when: When | None
    guard: Guard = field(init=False)
    # Generation ends seen when it last ran by itself, and how many more until it may again.
    ran_at: int | None = None
    gap: int = 1

    def __post_init__(self) -> None:
        self.guard = Guard(f"the cleanup {self.name}")

    @property
    def declared(self) -> dict[str, Any]:
        """As it is sent to the server."""
        when = list(self.when) if isinstance(self.when, tuple) else self.when
        return {"on_request": self.on_request, "when": when}


@dataclass(frozen=True, slots=True)
class Before:
    """What was there as a cleanup began. ``counts``: instances by type. ``devices``: bytes by series."""

    bytes: int
    started: float
    counts: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, Number] = field(default_factory=dict)


class Cleanups:
    """``status`` gives the verdict's. ``quiet``: nothing that is registered may be asked for."""

    def __init__(
        self, loop: Loop, requests: RequestBox, status: Callable[[], str], *, quiet: bool
    ) -> None:
        self._loop, self._requests, self._status, self._quiet = loop, requests, status, quiet
        self.registered: dict[str, Registered] = {}
        # Newest readings of the series that cleanups wait for.
        self._readings: dict[str, Number] = {}
        self._generation_ends = 0
        self._running = False
        loop.listeners.append(self._see)

    def check_room(self, name: str) -> None:
        """Raises BadArgument."""
        if name not in self.registered and len(self.registered) >= REGISTERED_LIMIT:
            raise BadArgument("name", name, f"is one more than the {REGISTERED_LIMIT} there may be")

    def register(self, cleanup: Registered) -> None:
        """In place of one of the same name."""
        cleanup.on_request = cleanup.on_request and not self._quiet
        known = self.registered.get(cleanup.name)
        if known is not None and known.declared == cleanup.declared:
            # Loops tend to register in every generation: that starts nothing new.
            known.function = cleanup.function
            return
        self.registered[cleanup.name] = cleanup
        self._loop.note("register_cleanup", cleanup.name, cleanup.declared)

    def _see(self, snapshot: Snapshot) -> None:
        self._generation_ends += snapshot.kind == "generation_end"
        # A copy: the recorder's thread comes here as well.
        for cleanup in list(self.registered.values()):
            if isinstance(cleanup.when, tuple) and cleanup.when[0] in snapshot.samples:
                self._readings[cleanup.when[0]] = snapshot.samples[cleanup.when[0]]

    def forget(self) -> None:
        """Let go of the functions, and of what they hold of the program."""
        self.registered.clear()

    def run_due(self) -> None:
        """Run what is due. A cleanup that opens phases of its own does not start another."""
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
        """All that wait are answered by one run of each cleanup that may be asked for."""
        asked = self._requests.take_cleanups()
        if not asked:
            return
        allowed = [each for each in self.registered.values() if each.on_request]
        outcome = DONE if allowed else NOT_REGISTERED
        if outcome == DONE:
            went_well = [self._run(each, "it was asked for") for each in allowed]
            outcome = DONE if all(went_well) else FAILED
        for request in asked:
            self._requests.answer(request, outcome)

    def _calls_for(self, cleanup: Registered) -> str:
        """Why it is to run by itself now, empty when it is not."""
        because = self._reason(cleanup)
        if not because:
            cleanup.gap = 1
        elif cleanup.ran_at is None or self._generation_ends >= cleanup.ran_at + cleanup.gap:
            return because
        return ""

    def _reason(self, cleanup: Registered) -> str:
        if isinstance(cleanup.when, str):
            status = self._status()
            return f"the run is {status}" if is_at_least(status, cleanup.when) else ""
        if cleanup.when is None:
            return ""
        series, limit = cleanup.when
        reading = self._readings.get(series)
        above = reading is not None and reading > limit
        return f"{series} is {reading}, above {limit}" if above else ""

    def _run(self, cleanup: Registered, because: str) -> bool:
        """Whether it went well; an exception of it is reported by its type, and stays inside."""
        before = self.begin(with_counts=True)
        failures = cleanup.guard.count
        with cleanup.guard:
            cleanup.function()
        failed = cleanup.guard.count > failures
        self.end(cleanup.name, before, because, cleanup.guard.newest if failed else None)
        return not failed

    def begin(self, *, with_counts: bool = False) -> Before:
        counts = self._loop.counts() if with_counts else {}
        # Before private memory: what asking for it takes is not the cleanup's.
        devices = self._loop.device_bytes()
        return Before(self._loop.read_private_bytes(), time.perf_counter(), counts, devices)

    def end(
        self, name: str, before: Before, because: str | None = None, error: str | None = None
    ) -> None:
        """Tell what a cleanup has freed: bytes, here and on devices, and of a registered one the known counts."""
        seconds = time.perf_counter() - before.started
        after_bytes = self._loop.read_private_bytes()
        data: dict[str, Any] = {
            "before_bytes": before.bytes, "after_bytes": after_bytes,
            "freed_bytes": before.bytes - after_bytes, "seconds": round(seconds, 6),
        }  # fmt: skip
        if before.devices:
            # Where one of the two readings is missing, nothing is known of what was freed there.
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
