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

`CensusPlan` decides when a census is worth its price, and how it is taken: soon while something rises, regularly while
memory does, ever more rarely while nothing does. In one piece where the training thread then stands still for no longer
than the longest pause; the native module can do larger heaps in slices, the pure census cannot.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

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
        self._left_out: Callable[[], float] = lambda: 0.0
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
        # CPU seconds of our own threads since each began, by its identifier: written by the thread itself, and not
        # held against the budget.
        self.thread_seconds: dict[int, float] = {}

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
        return 0.0 if self._since is None else self.work_seconds() - self._since

    def leave_out(self, seconds: Callable[[], float]) -> None:
        """Do not charge what this running total says: collections that come while we measure, but not for that."""
        self._left_out = seconds

    def work_seconds(self) -> float:
        """The clock that charges are made by."""
        return self._work_clock() - self._left_out()

    @contextmanager
    def measuring(self, work: str, *, set_up: bool = False) -> Iterator[None]:
        """Charge the time of the block, without what blocks inside it charge themselves.

        ``set_up``: reported in the ledger, not taken from the budget.
        """
        outer, self._inner = self._inner, 0.0
        outermost = self._since is None
        if outermost:
            self._since = self.work_seconds()
        started, wall_started = self.work_seconds(), self._clock()
        try:
            yield
        finally:
            elapsed = self.work_seconds() - started
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
            "client.background_seconds": round(sum(self.thread_seconds.copy().values()), 6),
            "client.pause_seconds": round(longest, 6),
        }


Way = Literal["whole", "slices"]

# The pure census lists all objects in one call that nothing can interrupt: over this many would take over 50 ms. The
# rest of it is held to a deadline, not to the pause.
PAUSE_LIMIT_OBJECTS: Final = 600_000
# Before the first census has measured it: tracked objects per allocated block, and seconds per block.
OBJECTS_PER_BLOCK: Final = 0.5
SECONDS_PER_BLOCK: Final = 0.4e-6
NATIVE_SECONDS_PER_BLOCK: Final = 0.1e-6
LONGEST_GAP: Final = 16
# While memory rises, whatever is counted in between.
LONGEST_GAP_WHILE_MEMORY_RISES: Final = 3
YOUNG_ENDS: Final = 3
DEADLINE_SECONDS: Final = 1.0
# The low of so many generation ends is compared with lows before it: what swings comes down within them.
_ENDS: Final = 4
# A rise of the low by less than this, or than this share of it, is what heaps do while they settle.
_LEAST_BYTES: Final = 2 * 2**20
_LEAST_SHARE: Final = 0.01


class RisingMemory:
    """Detect a lasting rise of private memory since the last census, from one reading at each generation end.

    That is a reason to scan the heap, whatever the counts between two scans say: arrays, bytes and strings are only
    counted by a heap scan, and a queue of them that grows shows in memory alone. A slow rise adds up.
    """

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=_ENDS)
        self._before: float | None = None

    def note(self, private_bytes: float) -> bool:
        """Return True if the lowest of the newest readings lies above the lowest before by an amount that matters."""
        self._newest.append(private_bytes)
        if len(self._newest) < _ENDS:
            return False
        low = min(self._newest)
        before = low if self._before is None else min(low, self._before)
        self._before = before
        return low - before >= max(_LEAST_BYTES, _LEAST_SHARE * before)

    def counted(self) -> None:
        """A census has counted what there is: a rise begins from here."""
        self._before = None


class CensusPlan:
    """Asked at generation ends. ``blocks`` counts the interpreter's allocated blocks."""

    def __init__(
        self,
        governor: Governor,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        is_native: Callable[[], object] = lambda: None,
        modules: Callable[[], int] = lambda: len(sys.modules),
    ) -> None:
        self._governor, self._blocks, self._is_native = governor, blocks, is_native
        self._modules, self._loaded = modules, modules()
        # For a program that calls nothing of ours: it is at work while we look, so in slices or not at all.
        self.only_in_background = False
        self._objects_per_block = OBJECTS_PER_BLOCK
        # In one piece and in slices they differ; None before the first.
        self._seconds_per_block: dict[Way, float] = {}
        self._gap = 1
        self._since = 0
        self._ends = 0

    @property
    def is_set_up(self) -> bool:
        """The first generation loads what the program loads; the census at its end is set-up like the baseline."""
        return self._ends <= 1

    @property
    def is_young(self) -> bool:
        """Its first generations: the program still loads what it needs."""
        return self._ends <= YOUNG_ENDS

    @property
    def too_large(self) -> bool:
        """So large a heap that no census can be taken without stopping the program for too long."""
        return self.way() is None

    def way(self) -> Way | None:
        """How a census could be taken now; None where it would stop the program for too long."""
        if self.only_in_background:
            return "slices" if self._is_native() else None
        if self._is_native():
            return (
                "whole" if self._governor.fits_pause(self.expected_seconds("whole")) else "slices"
            )
        objects = self._blocks() * self._objects_per_block
        limit = PAUSE_LIMIT_OBJECTS * self._governor.max_pause_seconds / MAX_PAUSE_SECONDS
        return "whole" if objects <= limit else None

    def expected_seconds(self, way: Way = "whole") -> float:
        """CPU seconds of one census of the heap as it is."""
        unknown = NATIVE_SECONDS_PER_BLOCK if self._is_native() else SECONDS_PER_BLOCK
        # The two ways cost about the same.
        known = next(iter(self._seconds_per_block.values()), unknown)
        return self._blocks() * self._seconds_per_block.get(way, known)

    def due(self, rising: bool, memory_rises: bool = False) -> Way | None:
        """Return how a census is taken if it is time for one and there is budget. Called once per generation end.

        ``rising``: something that is counted rises and is worth a look; ``memory_rises``: private memory does.
        """
        self._ends += 1
        self._since += 1
        if self._is_loading() and not rising and self._since < LONGEST_GAP:
            return None
        if rising:
            self._gap = min(self._gap, 2)
        elif memory_rises:
            self._gap = min(self._gap, LONGEST_GAP_WHILE_MEMORY_RISES)
        if self._since < self._gap:
            return None
        way = self.way()
        if way is None or self.is_set_up:
            return way
        expected = self.expected_seconds(way)
        allowed = self._governor.allows(
            "census", expected_seconds=expected, routine=not (rising or memory_rises)
        )
        return way if allowed else None

    def _is_loading(self) -> bool:
        """Return True if a program that calls nothing of ours has loaded modules since the last generation end.

        Then what a census counts is in doubt as soon as it is reported. `leakline.init` is called by programs that have
        loaded most of what they need, and the first generation is set-up there.
        """
        before, self._loaded = self._loaded, self._modules()
        return self.only_in_background and self._loaded != before

    def begun(self) -> None:
        """A census in slices is under way: the next is not due before its gap has passed."""
        self._since = 0

    def taken(self, objects: int, seconds: float, rising: bool, way: Way = "whole") -> None:
        """A census has found so many objects in so many CPU seconds."""
        blocks = max(1, self._blocks())
        self._objects_per_block = objects / blocks
        self._seconds_per_block[way] = seconds / blocks
        if way == "slices" and "whole" in self._seconds_per_block:
            # One slow moment must not rule out the other way for good.
            self._seconds_per_block["whole"] *= FORGET
        self._since = 0
        if self._ends:
            self._gap = 1 if rising else min(self._gap * 2, LONGEST_GAP)


class Rhythm:
    """Asked at generation ends: due after ``first`` of them, then ever more rarely.

    What was found may ask for one more look at once; the gap goes on from where it was.
    """

    def __init__(self, first: int, longest: int) -> None:
        self._longest, self._gap, self._wait, self._since = longest, first, first, 0

    def is_due(self) -> bool:
        """Once per generation end."""
        self._since += 1
        return self._since >= self._wait

    def restart(self) -> None:
        """Something else has just looked; the gap stays."""
        self._since = 0

    def looked(self, *, again_soon: bool) -> None:
        self._since = 0
        if not again_soon:
            self._gap = min(self._gap * 2, self._longest)
        self._wait = 1 if again_soon else self._gap
