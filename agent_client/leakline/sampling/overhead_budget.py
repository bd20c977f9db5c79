"""Decides what may be measured now, and keeps a ledger of the cost of measuring.

The budget is in CPU seconds of the training thread: a start credit plus a share of the elapsed wall time. CPU time is
used because wall time on a busy machine includes the work of other processes: a census could appear to cost twice as
much. Work is either deep (a census, a search for holders) or light (the snapshots at phase ends). Each kind of work is
limited to a part of the budget, and deep work also to the remainder of the entire budget. Frequent work therefore
cannot starve rare work, expensive work cannot starve cheap work, and at most a single misjudged task can exceed the
budget.

Memory readings at phase boundaries cost microseconds and are never refused for their cost: without them, the phase
accounts would name the wrong phase. They are accounted separately, so that frequent phases do not use up the budget for
snapshots.

The training thread also has a longest pause. A measurement that would probably exceed it runs in slices in the
background, or not at all.

`CensusPlan` decides when a census is worth its cost, and how to take the census: soon while a count rises, regularly
while memory rises, and with growing gaps while neither rises. A census is taken in one piece if that stops the training
thread for no longer than the longest pause. Larger heaps can be scanned in slices by the native module, but not by the
pure Python census.
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

# The credit lets a short run measure about as much as a long run; after about two minutes, the
# share of the elapsed time exceeds the credit.
START_CREDIT_SECONDS: Final = 1.25
# The start credit for deep work if the native module is available, whose scans cost less than half
# as much.
NATIVE_DEEP_CREDIT_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 0.05
# The part of the budget for all deep work together, that is, all work not listed in LIGHT_PARTS.
DEEP_PART: Final = 0.7
# The part of the budget for deep work that is due only because time has passed.
ROUTINE_PART: Final = 0.08
# The parts of the budget for single kinds of deep work: searches for holders must remain affordable
# after censuses, and other scans after searches.
OWN_PARTS: Final = {"census": 0.45, "holders": 0.3, "mappings": 0.1}
# For each kind of light work, the part of the budget that all light work together may use before
# this kind is refused.
LIGHT_PARTS: Final = {
    "nested": 0.1, "phase": 0.25, "generation": 0.5, "manual": 0.5, "finish": 0.5,
}  # fmt: skip
# With each refusal, the expected cost is multiplied by this factor, so that one slow moment does
# not block a kind of work forever.
FORGET: Final = 0.97
# How long refused light work is not considered again; in this time, the budget grows by less than
# the cost of one snapshot.
STAND_BACK_SECONDS: Final = 0.02
# The cost of a single piece of light work is charged to light work up to this limit, or up to twice
# the expected cost if that is more; any cost above it is charged to deep work. Otherwise one
# probe's slow first reading would prevent the next generation ends from being measured.
SURPRISE_SECONDS: Final = 0.05
# Maximum number of phase entries at which memory is read within one second; a training loop has far
# fewer entries.
ENTRIES_PER_SECOND: Final = 2000


class Governor:
    """The budget and the ledger for all measuring on the training thread.

    ``clock`` returns wall seconds, and ``work_clock`` returns the calling thread's CPU seconds. ``max_pause_seconds``
    is the longest that one piece of work may stop the training thread. The start credit for deep work may be smaller
    than the start credit for all work.
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
        # Seconds spent, by kind of deep work.
        self._spent: dict[str, float] = {}
        self._credit = start_credit_seconds if share > 0 else 0.0
        deep = start_credit_seconds if deep_credit_seconds is None else deep_credit_seconds
        self._saved = self._credit - min(self._credit, deep)
        self._clock, self._work_clock = clock, work_clock
        self._left_out: Callable[[], float] = lambda: 0.0
        self._started = clock()
        self._longest = self._inner = 0.0
        # When the current outermost measurement began.
        self._since: float | None = None
        self._costs: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._entries, self._entries_since = 0, self._started
        self._set_up = 0.0
        # CPU seconds of routine work, and the kinds of work that were allowed as routine work but
        # not charged yet.
        self._routine_seconds, self._is_routine = 0.0, set[str]()
        # CPU seconds of each of our own threads by thread identifier, written by the thread itself.
        # These seconds do not count against the budget.
        self.thread_seconds: dict[int, float] = {}

    def allows(
        self,
        work: str,
        default_seconds: float = 0.0,
        *,
        expected_seconds: float | None = None,
        routine: bool = False,
    ) -> bool:
        """Return True if the budget covers another piece of ``work``.

        The cost is estimated from earlier pieces unless ``expected_seconds`` is given. ``routine`` marks work without a
        specific reason; such work gets a smaller part of the budget.
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
        """Return True if memory may be read at this phase entry, or False after too many entries within a second."""
        now = self._clock()
        if now - self._entries_since >= 1.0:
            self._entries, self._entries_since = 0, now
        self._entries += 1
        return self._entries <= ENTRIES_PER_SECOND

    def _has_room(self, work: str, expected: float) -> bool:
        available = self.available_seconds
        if work in LIGHT_PARTS:
            # The cost of deep work does not count here: otherwise one misjudged census would leave
            # entire generations unmeasured.
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
        """Return the CPU seconds left in the part of the budget for this kind of deep work."""
        part = OWN_PARTS.get(work, DEEP_PART)
        return (self.available_seconds - self._saved) * part - self._spent.get(work, 0.0)

    @property
    def spent_seconds(self) -> float:
        """The CPU seconds charged so far, without set-up."""
        return self._light_seconds + self._deep_seconds + self._accounting_seconds

    @property
    def available_seconds(self) -> float:
        return self._credit + self.share * (self._clock() - self._started)

    def fits_pause(self, expected_seconds: float) -> bool:
        """Return True if the current measurement may take this many more seconds within the longest pause."""
        return self._under_way() + expected_seconds <= self.max_pause_seconds

    def expects(self, work: str, default_seconds: float) -> float:
        """Return the expected CPU seconds of the next piece of ``work``."""
        return self._costs.get(work, default_seconds)

    def _under_way(self) -> float:
        return 0.0 if self._since is None else self.work_seconds() - self._since

    def leave_out(self, seconds: Callable[[], float]) -> None:
        """Exclude a running total from charges: the seconds of garbage collections during a measurement."""
        self._left_out = seconds

    def work_seconds(self) -> float:
        """Return the running total of CPU seconds that charges are computed from."""
        return self._work_clock() - self._left_out()

    @contextmanager
    def measuring(self, work: str, *, set_up: bool = False) -> Iterator[None]:
        """Charge the CPU time of the block, without the time that nested blocks charge themselves.

        With ``set_up``, the time is reported in the ledger but not charged to the budget.
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
            # Light work is charged at most twice its expected cost; for work that is permanently
            # slower, the estimate still adapts after a few charges.
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
            # Keep the higher of the newest and the smoothed cost, so that a cheap census does not
            # start a series of censuses.
            self._costs[work] = max(seconds, self._smooth(work, seconds))

    def _smooth(self, work: str, seconds: float) -> float:
        return 0.7 * self._costs.get(work, seconds) + 0.3 * seconds

    def charge_background(self, work: str, seconds: float, longest_slice: float) -> None:
        """Charge background work, which stops the program for only one slice at a time."""
        self.charge(work, seconds)
        self._longest = max(self._longest, longest_slice)

    def charge_phase_accounting(self, seconds: float) -> None:
        """Charge the memory readings at phase boundaries."""
        self._accounting_seconds += seconds

    def ledger(self) -> dict[str, float]:
        """Return the running totals ``client.seconds`` and ``.background_seconds`` (CPU) and the longest
        ``.pause_seconds``.

        ``client.seconds`` covers measuring, on the training thread and in slices. ``.background_seconds`` covers our
        other threads, for example recording and sending, which do not count against the budget. ``.pause_seconds`` is
        the longest pause since the previous call, in wall seconds.
        """
        longest, self._longest = self._longest, 0.0
        return {
            "client.seconds": round(self._set_up + self.spent_seconds, 6),
            "client.background_seconds": round(sum(self.thread_seconds.copy().values()), 6),
            "client.pause_seconds": round(longest, 6),
        }


Way = Literal["whole", "slices"]

# The pure Python census lists all objects in one uninterruptible call, which takes over 50 ms for
# more objects than this. The other work of this census is limited by a deadline, not by the pause.
PAUSE_LIMIT_OBJECTS: Final = 600_000
# Estimates until the first census has measured the values: tracked objects per allocated block, and
# seconds per block.
OBJECTS_PER_BLOCK: Final = 0.5
SECONDS_PER_BLOCK: Final = 0.4e-6
NATIVE_SECONDS_PER_BLOCK: Final = 0.1e-6
LONGEST_GAP: Final = 16
# This gap applies while memory rises but no count does.
LONGEST_GAP_WHILE_MEMORY_RISES: Final = 3
YOUNG_ENDS: Final = 3
DEADLINE_SECONDS: Final = 1.0
# The lowest reading of this many generation ends is compared with the earlier low; periodically
# varying memory usually drops back within this many generation ends.
_ENDS: Final = 4
# A smaller rise of the low, in bytes or as a share of the low, is normal while a heap settles.
_LEAST_BYTES: Final = 2 * 2**20
_LEAST_SHARE: Final = 0.01


class RisingMemory:
    """A detector for a lasting rise of private memory since the last census, from one reading per generation end.

    Such a rise is a reason to scan the heap even if no count rises: only a heap scan counts arrays, bytes and strings,
    so between two scans a growing queue of such objects shows only in the process's memory. Slow rises add up until the
    next census.
    """

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=_ENDS)
        self._before: float | None = None

    def note(self, private_bytes: float) -> bool:
        """Return True if the lowest of the newest readings is significantly above the earlier low."""
        self._newest.append(private_bytes)
        if len(self._newest) < _ENDS:
            return False
        low = min(self._newest)
        before = low if self._before is None else min(low, self._before)
        self._before = before
        return low - before >= max(_LEAST_BYTES, _LEAST_SHARE * before)

    def counted(self) -> None:
        """Forget the earlier low after a census, so that the next rise is measured from the current memory."""
        self._before = None


class CensusPlan:
    """A plan for censuses: whether to take a census at a generation end, and how.

    ``blocks`` returns the number of blocks that the interpreter has allocated.
    """

    def __init__(
        self,
        governor: Governor,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        is_native: Callable[[], object] = lambda: None,
        modules: Callable[[], int] = lambda: len(sys.modules),
    ) -> None:
        self._governor, self._blocks, self._is_native = governor, blocks, is_native
        self._modules, self._loaded = modules, modules()
        # True for a program that does not call our API. Such a program runs while we scan, so only
        # slices are possible.
        self.only_in_background = False
        self._objects_per_block = OBJECTS_PER_BLOCK
        # Separate values for a census in one piece and in slices, because the costs differ; empty before the first
        # census.
        self._seconds_per_block: dict[Way, float] = {}
        self._gap = 1
        self._since = 0
        self._ends = 0

    @property
    def is_set_up(self) -> bool:
        """True until the end of the first generation, including the census at that end.

        The program still loads modules in that generation, so this census counts as set-up, like the baseline.
        """
        return self._ends <= 1

    @property
    def is_young(self) -> bool:
        """True for the first generations, while the program still loads modules."""
        return self._ends <= YOUNG_ENDS

    @property
    def too_large(self) -> bool:
        """True if every kind of census of this heap would stop the program for too long."""
        return self.way() is None

    def way(self) -> Way | None:
        """Return how a census can be taken now, or None if every way would stop the program for too long."""
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
        """Return the expected CPU seconds of a census of the current heap."""
        unknown = NATIVE_SECONDS_PER_BLOCK if self._is_native() else SECONDS_PER_BLOCK
        # Until the cost of this way has been measured, assume the cost of the other way.
        known = next(iter(self._seconds_per_block.values()), unknown)
        return self._blocks() * self._seconds_per_block.get(way, known)

    def due(self, rising: bool, memory_rises: bool = False) -> Way | None:
        """Return how to take a census that is due and within budget, otherwise None.

        Call this method once per generation end. ``rising`` is True if a rising count justifies a scan;
        ``memory_rises`` is True if private memory rises.
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
        """Return True if modules were loaded since the last generation end in a program that does not call our API.

        A census's counts would then be outdated before they are reported. A program that calls `leakline.init` is
        exempt: it has loaded most of its modules before that call, and its first generation is set-up.
        """
        before, self._loaded = self._loaded, self._modules()
        return self.only_in_background and self._loaded != before

    def loop_began(self) -> None:
        """Note that generations have been found in a program that does not call our API.

        From now on, we measure on the program's own thread, so that scans need not be sliced. The first generation is
        set-up, as in other programs.
        """
        if self.only_in_background:
            self.only_in_background = False
            self._ends = 0

    def begun(self) -> None:
        """Note that a sliced census has started. The next census is due after a full gap."""
        self._since = 0

    def taken(self, objects: int, seconds: float, rising: bool, way: Way = "whole") -> None:
        """Record the number of objects and the CPU seconds of a finished census."""
        blocks = max(1, self._blocks())
        self._objects_per_block = objects / blocks
        self._seconds_per_block[way] = seconds / blocks
        if way == "slices" and "whole" in self._seconds_per_block:
            # Lower the estimate for a census in one piece, so that one slow moment does not rule
            # out such a census forever.
            self._seconds_per_block["whole"] *= FORGET
        self._since = 0
        if self._ends:
            self._gap = 1 if rising else min(self._gap * 2, LONGEST_GAP)


class Rhythm:
    """A backoff counted in generation ends: the first scan is due after ``first`` ends, and later gaps grow.

    One more scan may be requested immediately; after that scan, the gap continues from its previous
    value.
    """

    def __init__(self, first: int, longest: int) -> None:
        self._longest, self._gap, self._wait, self._since = longest, first, first, 0

    def is_due(self) -> bool:
        """Return True if a scan is due. Call this method once per generation end."""
        self._since += 1
        return self._since >= self._wait

    def restart(self) -> None:
        """Wait again without changing the gap, because another scan has just done the same work."""
        self._since = 0

    def looked(self, *, again_soon: bool) -> None:
        self._since = 0
        if not again_soon:
            self._gap = min(self._gap * 2, self._longest)
        self._wait = 1 if again_soon else self._gap
