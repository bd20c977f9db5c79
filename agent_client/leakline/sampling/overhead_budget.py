"""The overhead governor: what may be measured now, and the ledger of what measuring has cost.

CPU seconds of the training thread are a budget: a start credit, and from then on a share of the wall time that has
passed. CPU, because on a busy machine our clock would run while others compute, and a census would cost twice what it
takes. Each kind of work may bring its own class, deep (a census, a search for holders) or light (the snapshots at
phase ends), only up to a part of the budget, and never the whole over it. So the frequent cannot starve the rare, the
expensive cannot starve the cheap, and the budget is overrun by one misjudged piece of work at most.

Reading memory at the bounds of phases costs microseconds and is never refused for cost, because the phase accounts
would name the wrong phase without it. It has a pot of its own: phases that are entered often leave the snapshots
theirs.

Next to the budget stands the longest pause: what is measured at one moment on the training thread may not be expected
to stop it for longer. What would is done in slices in the background, or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# A short run shall see as much as a long one; after two minutes it is less than the share itself.
START_CREDIT_SECONDS: Final = 1.25
# Of it for deep work where the native module does that: as many looks cost less than half.
NATIVE_DEEP_CREDIT_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 0.05
# Deep work is all but LIGHT_PARTS; together it may use this part of the budget.
DEEP_PART: Final = 0.7
# Deep work for which there is no reason but that time has passed may use this part of the budget.
ROUTINE_PART: Final = 0.08
# Who holds what rises must be affordable after censuses, and counting after searches.
OWN_PARTS: Final = {"census": 0.45, "holders": 0.3}
# Light work: the part of the budget that all light work together may have used before this kind stands back.
LIGHT_PARTS: Final = {
    "nested": 0.1, "phase": 0.25, "generation": 0.5, "manual": 0.5, "finish": 0.5,
}  # fmt: skip
# With each refusal the expected cost shrinks a little: one slow moment must not end a kind of work for good.
FORGET: Final = 0.97
# Light work that was refused is not considered again for this long: in it the budget grows by less than one snapshot.
STAND_BACK_SECONDS: Final = 0.02
# What one piece of light work may cost unexpectedly; the rest of such a surprise is charged to deep work. Otherwise
# the first slow reading of one probe would blank the generation ends after it.
SURPRISE_SECONDS: Final = 0.05
# Entries of phases that are read within one second, far more than a loop that trains has.
ENTRIES_PER_SECOND: Final = 2000


class Governor:
    """Charged with every second of measuring on the training thread.

    ``clock`` gives wall seconds, ``work_clock`` the CPU seconds of the calling thread. ``max_pause_seconds`` is the
    longest that one piece of work may stop the training thread. Deep work may have a smaller credit at the start than
    all work together.
    """

    def __init__(
        self,
        share: float,
        start_credit_seconds: float = START_CREDIT_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
        work_clock: Callable[[], float] = time.thread_time,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
        deep_credit_seconds: float | None = None,
    ) -> None:
        self.share, self.max_pause_seconds = share, max_pause_seconds
        self._light_seconds = self._deep_seconds = self._accounting_seconds = 0.0
        # By kind of deep work.
        self._spent: dict[str, float] = {}
        self._credit = start_credit_seconds if share > 0 else 0.0
        deep = start_credit_seconds if deep_credit_seconds is None else deep_credit_seconds
        self._saved = self._credit - min(self._credit, deep)
        self._clock, self._work_clock = clock, work_clock
        self._started = clock()
        self._longest = self._inner = 0.0
        # When the measuring began that is under way.
        self._since: float | None = None
        self._costs: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._entries, self._entries_since = 0, self._started
        self._set_up = 0.0
        # Of deep work; and the work that was allowed as such, until it is charged.
        self._routine_seconds, self._is_routine = 0.0, set[str]()
        # CPU seconds of our own threads.
        self._threads: dict[int, float] = {}

    def allows(
        self,
        work: str,
        default_seconds: float = 0.0,
        *,
        expected_seconds: float | None = None,
        routine: bool = False,
    ) -> bool:
        """Is there budget for one more ``work``? It is expected to cost what it cost before, unless known better.

        ``routine``: nothing gives a reason for it, and it has to be content with less.
        """
        if work in self._not_before and self._clock() < self._not_before[work]:
            return False
        known = self._costs.get(work, default_seconds)
        expected = known if expected_seconds is None else expected_seconds
        if routine and expected > self._routine_room:
            return False
        if self._has_room(work, expected):
            (self._is_routine.add if routine else self._is_routine.discard)(work)
            return True
        if expected_seconds is None:
            self._costs[work] = known * FORGET
            if work in LIGHT_PARTS:
                self._not_before[work] = self._clock() + STAND_BACK_SECONDS
        return False

    def reads_entry(self) -> bool:
        """May memory be read as one more phase is entered? Not only when they follow each other too fast."""
        now = self._clock()
        if now - self._entries_since >= 1.0:
            self._entries, self._entries_since = 0, now
        self._entries += 1
        return self._entries <= ENTRIES_PER_SECOND

    def _has_room(self, work: str, expected: float) -> bool:
        available = self.available_seconds
        if work in LIGHT_PARTS:
            # Not held against what deep work has used: one misjudged census would blank whole generations.
            return self._light_seconds + expected <= available * LIGHT_PARTS[work]
        if self.spent_seconds + expected > available:
            return False
        if expected > self.room(work):
            return False
        return self._deep_seconds + expected <= (available - self._saved) * DEEP_PART

    @property
    def _routine_room(self) -> float:
        return (self.available_seconds - self._saved) * ROUTINE_PART - self._routine_seconds

    def room(self, work: str) -> float:
        """CPU seconds that this kind of deep work may still use of its own part of the budget."""
        part = OWN_PARTS.get(work, DEEP_PART)
        return (self.available_seconds - self._saved) * part - self._spent.get(work, 0.0)

    @property
    def spent_seconds(self) -> float:
        """Charged so far, without set-up."""
        return self._light_seconds + self._deep_seconds + self._accounting_seconds

    @property
    def available_seconds(self) -> float:
        return self._credit + self.share * (self._clock() - self._started)

    def fits_pause(self, expected_seconds: float) -> bool:
        """May the training thread stand still for so long, in addition to what it has been measuring for already?"""
        return self._under_way() + expected_seconds <= self.max_pause_seconds

    def expects(self, work: str, default_seconds: float) -> float:
        """CPU seconds that one more ``work`` is thought to cost."""
        return self._costs.get(work, default_seconds)

    def _under_way(self) -> float:
        return 0.0 if self._since is None else self._work_clock() - self._since

    def leave_out(self, seconds: Callable[[], float]) -> None:
        """Do not charge what this running total says: collections that come while we measure, but not for that."""
        clock = self._work_clock
        self._work_clock = lambda: clock() - seconds()

    def work_seconds(self) -> float:
        """The clock that charges are made by."""
        return self._work_clock()

    @contextmanager
    def measuring(self, work: str, *, set_up: bool = False) -> Iterator[None]:
        """Charge the time of the block, without what blocks inside it charge themselves.

        ``set_up``: reported in the ledger, not taken from the budget.
        """
        outer, self._inner = self._inner, 0.0
        outermost = self._since is None
        if outermost:
            self._since = self._work_clock()
        started, wall_started = self._work_clock(), self._clock()
        try:
            yield
        finally:
            elapsed = self._work_clock() - started
            self.charge(work, elapsed - self._inner, set_up=set_up)
            self._inner = outer + elapsed
            if outermost:
                self._since = None
            self._longest = max(self._longest, self._clock() - wall_started)

    def charge(self, work: str, seconds: float, *, set_up: bool = False) -> None:
        if set_up:
            self._set_up += seconds
            return
        if work in LIGHT_PARTS:
            # Twice what was expected: work that has become expensive for good is known as such after a few times.
            bounded = min(seconds, max(SURPRISE_SECONDS, 2 * self._costs.get(work, 0.0)))
            self._light_seconds += bounded
            self._deep_seconds += seconds - bounded
            self._costs[work] = self._smooth(work, bounded)
        else:
            self._deep_seconds += seconds
            self._spent[work] = self._spent.get(work, 0.0) + seconds
            if work in self._is_routine:
                self._is_routine.discard(work)
                self._routine_seconds += seconds
            # The dearer of both: one lucky census must not start a series of them.
            self._costs[work] = max(seconds, self._smooth(work, seconds))

    def _smooth(self, work: str, seconds: float) -> float:
        return 0.7 * self._costs.get(work, seconds) + 0.3 * seconds

    def charge_background(self, work: str, seconds: float, longest_slice: float) -> None:
        """Charge work that was done in the background, which stood still for one slice at a time."""
        self.charge(work, seconds)
        self._longest = max(self._longest, longest_slice)

    def note_thread(self) -> None:
        """For our own threads: tell in the ledger what the calling one has cost since it began."""
        self._threads[threading.get_ident()] = time.thread_time()

    def charge_phase_accounting(self, seconds: float) -> None:
        """Charge reading memory at the bounds of phases."""
        self._accounting_seconds += seconds

    def ledger(self) -> dict[str, float]:
        """``client.seconds`` and ``.background_seconds`` (CPU, running totals), ``.pause_seconds`` (wall, the longest).

        The first of measuring, on the training thread and in the background; the second of recording and sending,
        which is not held against the budget.
        """
        longest, self._longest = self._longest, 0.0
        return {
            "client.seconds": round(self._set_up + self.spent_seconds, 6),
            "client.background_seconds": round(sum(self._threads.copy().values()), 6),
            "client.pause_seconds": round(longest, 6),
        }
