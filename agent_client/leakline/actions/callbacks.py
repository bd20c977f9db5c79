"""Implementation of `run.on(event, callback)`: computes verdicts inside the training process, within the budget.

The verdict comes from the usual analysis, applied to the data of this process. It needs no server and does not cover
other ranks. An analysis starts in the background at a generation end, and its verdict is reported at the first
generation end after the analysis has completed.

`VerdictEvents` compares consecutive verdicts of this process, and reports the differences under the event names of
alerts:

    reported before         now suspected   now confirmed           now recovered   now gone, ok
    nothing                 suspected       suspected, confirmed    -               -
    suspected               -               confirmed               recovered       (forgotten)
    confirmed, violated     -               -                       recovered       (forgotten)

A finding whose status falls back to "watch" for a while is not reported again when it returns. A finding that is
confirmed when it first appears is also reported to callbacks for suspected findings. A violated count is reported as
`contract.violated` instead of either event.

`_VerdictThread` runs one analysis at a time, each in a new thread. An analysis of many measurements takes tenths of a
second and cannot be split into slices. Meanwhile the interpreter keeps switching to the training thread, which is never
blocked for much longer than one switch interval. The CPU time of the analysis is charged to the budget. The thread
refers only to recorded data, not to objects of the program.

If there are too many snapshots to analyze, `thinned` drops every second phase end and sample. If that is not enough, it
drops every second snapshot. Declarations, cleanup results and holders are kept, because later verdicts depend on them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ..errors import BadArgument
from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..sampling.overhead_budget import Governor
from ..snapshot import Batch, Event, Holder, ProcessIdentity, RunHeader, Snapshot

if TYPE_CHECKING:
    from ..analysis.results import Finding, Verdict


FREQUENT: Final = ("phase_end", "sample")
# Thin to this share of the limit, so that the next snapshot does not require thinning again.
ROOM: Final = 3 / 4
DECLARING: Final = frozenset(
    {"expect", "track", "gauge", "watch", "fix", "band", "budget", "register_cleanup"}
)
# Limits on what is kept from dropped snapshots, newest first: runs of each cleanup, events of each kind, and holders.
TIMES_KEPT: Final = 32
EVENTS_KEPT: Final = 256
HOLDERS_KEPT: Final = 256


def thinned(snapshots: Sequence[Snapshot], limit: int) -> list[Snapshot]:
    """Return about half of the snapshots, including the first and the newest.

    The lasting events and holders of dropped snapshots are moved to the first snapshot.
    """
    frequent = 0
    kept = []
    for snapshot in snapshots:
        frequent += snapshot.kind in FREQUENT
        if snapshot is snapshots[-1] or snapshot.kind not in FREQUENT or frequent % 2:
            kept.append(snapshot)
    if len(kept) > limit * ROOM:
        # Count backwards from the newest snapshot: it must be kept, because the verdict describes its moment.
        kept = [kept[0], *kept[1:][::-2][::-1]]
    there = {snapshot.sequence for snapshot in kept[1:]}
    gone = [snapshot for snapshot in snapshots if snapshot.sequence not in there]
    first = replace(
        kept[0],
        events=lasting_events(event for snapshot in gone for event in snapshot.events),
        holders=_lasting_holders(holder for snapshot in gone for holder in snapshot.holders),
    )
    return [first, *kept[1:]]


def lasting_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the newest cleanup events, and the first and newest event of each declaration.

    Loops tend to repeat declarations, so the events between the first and the newest are dropped.
    """
    found: dict[tuple[str, str, str], list[Event]] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.kind == "cleanup":
            same = found.setdefault((event.kind, event.name, ""), [])
            same.append(event)
            del same[:-TIMES_KEPT]
        elif event.kind in DECLARING:
            same = found.setdefault((event.kind, event.name, repr(event.data)), [])
            same[1:] = [event]
    by_kind: dict[str, list[Event]] = {}
    for event in sorted(
        (each for same in found.values() for each in same), key=lambda event: event.time
    ):
        by_kind.setdefault(event.kind, []).append(event)
    return tuple(event for same in by_kind.values() for event in same[-EVENTS_KEPT:])


def _lasting_holders(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """Return the newest holder on each path."""
    found: dict[tuple[str, str], Holder] = {}
    for holder in holders:
        found.pop((holder.type, holder.path), None)
        found[holder.type, holder.path] = holder
    return tuple(list(found.values())[-HOLDERS_KEPT:])


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one analysis.

    ``verdict`` is None if the analysis failed. ``seconds`` is the CPU time that the analysis took. ``longest_stop`` is
    the longest time, in seconds, for which the analysis may have blocked the training thread without interruption.
    """

    verdict: Verdict | None
    happened: frozenset[str]
    seconds: float
    longest_stop: float


class _VerdictThread:
    """Runs the analysis in a background thread; its public methods are for the training thread only."""

    def __init__(self, header: RunHeader, process: ProcessIdentity) -> None:
        self.header, self._process = header, process
        self._guard = Guard("computing the verdict")
        self._thread: OurThread | None = None
        self._found: list[Look] = []
        # Only one analysis at a time uses `_kept` (an `analysis.incremental_cache.Kept`) and `_events`.
        self._kept: Any = None
        self._events = VerdictEvents()

    def prepare(self) -> None:
        """Import the analysis on this thread: a child that was forked while another thread imported the analysis could
        never import it.
        """
        from ..analysis.incremental_cache import Kept

        self._kept = Kept()

    @property
    def is_free(self) -> bool:
        """True if no analysis is running and no result is waiting to be taken."""
        return self._thread is None

    def begin(self, snapshots: Sequence[Snapshot]) -> None:
        """Start an analysis of ``snapshots``, which must not change afterwards.

        Call this only after `prepare` and while `is_free` is true.
        """
        self._found = []
        thread = OurThread("verdict", self._run, snapshots, self._found)
        thread.start()
        self._thread = thread

    def wait(self, timeout_seconds: float) -> None:
        """Wait until no analysis is running."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take(self) -> Look | None:
        """Return the result of a completed analysis once, or None if no result is waiting."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._found.pop()

    def _run(self, snapshots: Sequence[Snapshot], found: list[Look]) -> None:
        started = time.thread_time()
        verdict, happened = None, frozenset[str]()
        with self._guard:
            verdict = self._examined(snapshots)
            happened = frozenset(self._events.since_last(verdict))
        seconds = time.thread_time() - started
        found.append(Look(verdict, happened, seconds, min(seconds, sys.getswitchinterval())))

    def _examined(self, snapshots: Sequence[Snapshot]) -> Verdict:
        # Import lazily, so that a run without callbacks does not load the analysis before the run ends.
        from ..analysis import examine
        from ..analysis.run_history import history_from_batches

        batch = Batch(self._process, tuple(snapshots))
        return examine(history_from_batches(self.header, [batch]), self._kept)


SUSPECTED: Final = "incident.suspected"
CONFIRMED: Final = "incident.confirmed"
RECOVERED: Final = "incident.recovered"
OOM: Final = "oom.risk"
VIOLATED: Final = "contract.violated"
EVENTS: Final = (SUSPECTED, CONFIRMED, RECOVERED, OOM, VIOLATED)

_STANDING: Final = ("suspected", "confirmed", "watch", "learning")
# After one of these events, nothing more is reported about a finding until the finding disappears.
_SETTLED: Final = frozenset({CONFIRMED, VIOLATED})
_RISKS: Final = ("high", "critical")


@dataclass(frozen=True, slots=True)
class _Reported:
    finding: Finding
    events: frozenset[str]


class VerdictEvents:
    """Derives events from successive verdicts: call ``since_last`` with each verdict in turn."""

    def __init__(self) -> None:
        # Maps the fingerprints of findings to the events already reported.
        self._reported: dict[str, _Reported] = {}
        self._risk = 0

    def since_last(self, verdict: Verdict) -> set[str]:
        """Return the events since the previous verdict.

        The events include ``oom.risk`` when the risk becomes high, and again when it becomes critical.
        """
        found, reported = set[str](), dict[str, _Reported]()
        here = {finding.fingerprint for finding in verdict.findings}
        gone = [each for name, each in self._reported.items() if name not in here]
        for finding in verdict.findings:
            before = self._events_before(finding, gone)
            now = _events(finding)
            found |= frozenset() if before & _SETTLED else now - before
            if finding.status == "recovered" and before:
                found.add(RECOVERED)
            elif finding.status in _STANDING and (before or now):
                reported[finding.fingerprint] = _Reported(finding, before | now)
        self._reported = reported
        if self._riskier(verdict):
            found.add(OOM)
        return found

    def _events_before(self, finding: Finding, gone: list[_Reported]) -> frozenset[str]:
        """Return the events already reported for a finding.

        Events reported under an earlier fingerprint are included: a leak that is now identified more precisely is not a
        second leak.
        """
        known = self._reported.get(finding.fingerprint)
        if known is None and finding.status in _STANDING and gone:
            from ..analysis.attribution.causes import goes_on_as

            known = next((each for each in gone if goes_on_as(each.finding, finding)), None)
            if known is not None:
                gone.remove(known)
        return frozenset() if known is None else known.events

    def _riskier(self, verdict: Verdict) -> bool:
        risk = _RISKS.index(verdict.oom.risk) + 1 if verdict.oom.risk in _RISKS else 0
        # The risk may alternate between high and critical. The higher level counts as reported until the risk is over.
        before, self._risk = self._risk, max(risk, self._risk) if risk else 0
        return risk > before


def _events(finding: Finding) -> frozenset[str]:
    """Return the events that apply to a finding in its current status."""
    if finding.status not in ("suspected", "confirmed"):
        return frozenset()
    if finding.kind == "count_contract":
        return frozenset({VIOLATED})
    return frozenset({SUSPECTED, CONFIRMED} if finding.status == "confirmed" else {SUSPECTED})


Callback = Callable[[Any], object]

# Maximum number of snapshots kept for the analysis.
KEPT_SNAPSHOTS: Final = 512
# Estimated CPU seconds of the first analysis, when little has been recorded.
FIRST_LOOK_SECONDS: Final = 0.01
# Maximum number of seconds to wait for the analysis at the end of a run.
LAST_LOOK_SECONDS: Final = 0.5
# Statuses from best to worst: a callback for one status is also called for every worse status.
LADDER: Final = ("watch", "suspected", "confirmed")
OTHERS: Final = ("learning", "ok", "filling", "recovered")
HEARD: Final = (*OTHERS, *LADDER, *EVENTS)


def check(event: object, callback: object) -> None:
    """Raise BadArgument, with the valid names, if the event or the callback is invalid."""
    if not isinstance(event, str) or event not in HEARD:
        raise BadArgument("event", event, f"must be one of {', '.join(HEARD)}")
    if not callable(callback):
        raise BadArgument("callback", f"<{type(callback).__name__}>", "must be callable")


class VerdictWatch:
    """Analyzes the snapshots of this process during the run, and determines which callbacks are due."""

    def __init__(self, header: RunHeader, process: ProcessIdentity, governor: Governor) -> None:
        self._governor = governor
        self._callbacks: list[tuple[str, Callback]] = []
        self._due: deque[tuple[Callback, Verdict]] = deque()
        self._snapshots: list[Snapshot] = []
        # The recorder's thread also adds snapshots. The lock is reentrant because a signal handler may end the run
        # while this thread holds the lock.
        self._lock = threading.RLock()
        # Whether some snapshots have not been analyzed yet, and whether a generation end was recorded since the last
        # call of `examine`.
        self._news = self._ended = False
        # Whether verdicts are computed at all, and whether the run is over.
        self.follows = self._is_over = False
        self._verdict_thread = _VerdictThread(header, process)
        self.status = "learning"
        # The newest verdict, or None before the first analysis.
        self.newest: Verdict | None = None

    def describe(self, header: RunHeader) -> None:
        """Use another header in the next analyses."""
        self._verdict_thread.header = header

    def follow(self, past: Iterable[Snapshot] = ()) -> None:
        """Start collecting snapshots, beginning with those in ``past``. Only the first call has an effect."""
        if not (self.follows or self._is_over):
            with self._governor.measuring("verdict", set_up=True):
                self._verdict_thread.prepare()
            self._keep(past)
            self.follows = True

    def add(self, event: str, callback: Callback) -> None:
        """Register a callback; ``event`` is one of HEARD."""
        self._callbacks.append((event, callback))

    def see(self, snapshot: Snapshot) -> None:
        """Store a snapshot."""
        if self.follows:
            self._keep([snapshot])
            if snapshot.kind == "generation_end":
                self._ended = self._news = True

    def forget(self) -> None:
        """Release the callbacks and the objects of the program that they hold; no analysis starts after this."""
        self._is_over, self.follows = True, False
        self._callbacks.clear()
        self._due.clear()
        self._snapshots.clear()
        self.newest = None
        self._verdict_thread.wait(LAST_LOOK_SECONDS)

    def examine(self) -> None:
        """After a generation end, collect the result of a completed analysis and start the next analysis if the budget
        allows.
        """
        if self._ended:
            self._ended = False
            self._take()
            self._begin()

    def conclude(self) -> None:
        """Analyze all snapshots that have not been analyzed yet, within LAST_LOOK_SECONDS."""
        if not self._callbacks:
            return
        deadline = time.monotonic() + LAST_LOOK_SECONDS
        self._verdict_thread.wait(LAST_LOOK_SECONDS)
        self._take()
        # Analyze what was recorded since the previous analysis began.
        self._begin()
        self._verdict_thread.wait(max(0.0, deadline - time.monotonic()))
        self._take()

    def due(self) -> Iterator[tuple[Callback, Verdict]]:
        """Yield each due callback once, with its verdict.

        Call the callbacks outside any error boundary: if a callback raises, the remaining callbacks are still due.
        """
        while self._due:
            yield self._due.popleft()

    def _keep(self, snapshots: Iterable[Snapshot]) -> None:
        with self._lock:
            self._snapshots += [_small(snapshot) for snapshot in snapshots]
            while len(self._snapshots) > KEPT_SNAPSHOTS:
                self._snapshots = thinned(self._snapshots, KEPT_SNAPSHOTS)

    def _begin(self) -> None:
        if self._is_over or not (self._news and self._verdict_thread.is_free):
            return
        if self._governor.allows("verdict", FIRST_LOOK_SECONDS):
            with self._governor.measuring("verdict_begun"):
                self._verdict_thread.begin(self._snapshots[:])
            # The flag stays set if no thread could be started.
            self._news = False

    def _take(self) -> None:
        look = self._verdict_thread.take()
        if look is None:
            return
        self._governor.charge_background("verdict", look.seconds, look.longest_stop)
        if look.verdict is None:
            return
        verdict, before, self.status = look.verdict, self.status, look.verdict.status
        self.newest = verdict
        self._due.extend(
            (callback, verdict)
            for event, callback in self._callbacks
            if event in look.happened or _reached(event, before, verdict.status)
        )


def _small(snapshot: Snapshot) -> Snapshot:
    """Return a copy of the snapshot without the data that the analysis does not read, to save memory.

    The census is the largest part, and its numbers are also recorded as series. The analysis does not read log
    lines.
    """
    # Intern the names: each snapshot has its own copies, which take more memory than the numbers.
    samples = {sys.intern(name): value for name, value in snapshot.samples.items()}
    events = tuple(event for event in snapshot.events if event.kind != "log")
    return replace(snapshot, samples=samples, events=events, census=None, large_objects=())


def is_at_least(status: str, wanted: str) -> bool:
    """Return True if ``status`` is in LADDER and at least as bad as ``wanted``."""
    return _height(status) >= _height(wanted) > 0


def _reached(wanted: str, before: str, now: str) -> bool:
    if wanted not in LADDER:
        return now == wanted and before != wanted
    return is_at_least(now, wanted) and not is_at_least(before, wanted)


def _height(status: str) -> int:
    return LADDER.index(status) + 1 if status in LADDER else 0
