"""`run.on(event, callback)`: the verdict inside the training process, at generation ends and by budget.

The same analysis as everywhere, over what this process has recorded: it needs no server, and knows no other rank. It is
worked out in the background from one generation end on, and reported at the first one after it is done.

`VerdictEvents` compares one verdict of this process with the next, under the event names that alerts have:

    last on a finding        now suspected   now confirmed           now recovered   now gone, ok
    nothing                  suspected       suspected, confirmed    -               -
    suspected                -               confirmed               recovered       (forgotten)
    confirmed, violated      -               -                       recovered       (forgotten)

A finding that is only watched for a while is not reported again when it is back. One that is confirmed at once is
also reported to who waits for suspected ones. A declared count that is broken is `contract.violated` instead of
both.

`_VerdictThread` works the verdict out, one look at a time, a thread for each. A look takes tenths of a second where
much is measured, and cannot be done in slices of our own. The interpreter lets the training thread in between, so it
stands still for little longer than the interpreter's switch interval at one time; what a look costs is charged to the
budget. The thread refers to what was recorded, to nothing of the program's.

`thinned` decides what goes when the snapshots that the verdict is worked out from are too many. Every second phase end
goes; where generation ends alone are too many, every second of all. What the program declared, what its cleanups freed
and who holds what stays: without those a later verdict would be about another program.
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
# Fewer than may be kept by this factor, so that it is not all done again with the next snapshot.
ROOM: Final = 3 / 4
DECLARING: Final = frozenset(
    {"expect", "track", "gauge", "watch", "fix", "band", "budget", "register_cleanup"}
)
# Of the snapshots that went, the newest: times that one cleanup ran, events of one kind, holders.
TIMES_KEPT: Final = 32
EVENTS_KEPT: Final = 256
HOLDERS_KEPT: Final = 256


def thinned(snapshots: Sequence[Snapshot], limit: int) -> list[Snapshot]:
    """About half of them, with the first and the newest. What stays of the others goes with the first."""
    frequent = 0
    kept = []
    for snapshot in snapshots:
        frequent += snapshot.kind in FREQUENT
        if snapshot is snapshots[-1] or snapshot.kind not in FREQUENT or frequent % 2:
            kept.append(snapshot)
    if len(kept) > limit * ROOM:
        # Counted from the newest, which the verdict is about.
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
    """Of each declaration the first time and the newest, as loops declare in every generation; and cleanups."""
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
    """What was found last on each path."""
    found: dict[tuple[str, str], Holder] = {}
    for holder in holders:
        found.pop((holder.type, holder.path), None)
        found[holder.type, holder.path] = holder
    return tuple(list(found.values())[-HOLDERS_KEPT:])


@dataclass(frozen=True, slots=True)
class Look:
    """What one gave. ``verdict`` is None where it failed; ``seconds`` of CPU.

    ``longest_stop``: seconds for which the training thread may have stood still at one time.
    """

    verdict: Verdict | None
    happened: frozenset[str]
    seconds: float
    longest_stop: float


class _VerdictThread:
    """Everything but the looking belongs to the training thread."""

    def __init__(self, header: RunHeader, process: ProcessIdentity) -> None:
        self._header, self._process = header, process
        self._guard = Guard("working out the verdict")
        self._thread: OurThread | None = None
        self._found: list[Look] = []
        # Both are used by one look after the other. The first is an `analysis.incremental_cache.Kept`.
        self._kept: Any = None
        self._events = VerdictEvents()

    def prepare(self) -> None:
        """Load the analysis, here: a child that is forked while another thread imports could never import the same."""
        from ..analysis.incremental_cache import Kept

        self._kept = Kept()

    @property
    def is_free(self) -> bool:
        """Nothing is under way, and nothing waits to be taken."""
        return self._thread is None

    def begin(self, snapshots: Sequence[Snapshot]) -> None:
        """Look at these, which nobody changes. Only while it is free, and after `prepare`."""
        self._found = []
        thread = OurThread("verdict", self._run, snapshots, self._found)
        thread.start()
        self._thread = thread

    def wait(self, timeout_seconds: float) -> None:
        """Until nothing is under way."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take(self) -> Look | None:
        """What the look under way has given, once; None while there is nothing."""
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
        # Lazily: a run without callbacks never loads the analysis before its end.
        from ..analysis import examine
        from ..analysis.run_history import history_from_batches

        batch = Batch(self._process, tuple(snapshots))
        return examine(history_from_batches(self._header, [batch]), self._kept)


SUSPECTED: Final = "incident.suspected"
CONFIRMED: Final = "incident.confirmed"
RECOVERED: Final = "incident.recovered"
OOM: Final = "oom.risk"
VIOLATED: Final = "contract.violated"
EVENTS: Final = (SUSPECTED, CONFIRMED, RECOVERED, OOM, VIOLATED)

_STANDING: Final = ("suspected", "confirmed", "watch", "learning")
# Nothing more is reported of a finding until it is over.
_SETTLED: Final = frozenset({CONFIRMED, VIOLATED})
_RISKS: Final = ("high", "critical")


@dataclass(frozen=True, slots=True)
class _Reported:
    finding: Finding
    events: frozenset[str]


class VerdictEvents:
    """``since_last`` is called with each verdict in turn."""

    def __init__(self) -> None:
        # By fingerprint.
        self._reported: dict[str, _Reported] = {}
        self._risk = 0

    def since_last(self, verdict: Verdict) -> set[str]:
        """The events that have happened since the verdict before; oom.risk when it is high, and when critical."""
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
        """Also under another fingerprint that is gone: a leak known better by now is no second one."""
        known = self._reported.get(finding.fingerprint)
        if known is None and finding.status in _STANDING and gone:
            from ..analysis.attribution.causes import goes_on_as

            known = next((each for each in gone if goes_on_as(each.finding, finding)), None)
            if known is not None:
                gone.remove(known)
        return frozenset() if known is None else known.events

    def _riskier(self, verdict: Verdict) -> bool:
        risk = _RISKS.index(verdict.oom.risk) + 1 if verdict.oom.risk in _RISKS else 0
        # It may go to and fro between high and critical: what was reported stays reported until the risk is over.
        before, self._risk = self._risk, max(risk, self._risk) if risk else 0
        return risk > before


def _events(finding: Finding) -> frozenset[str]:
    """What is to be reported of a finding as it stands now."""
    if finding.status not in ("suspected", "confirmed"):
        return frozenset()
    if finding.kind == "count_contract":
        return frozenset({VIOLATED})
    return frozenset({SUSPECTED, CONFIRMED} if finding.status == "confirmed" else {SUSPECTED})


Callback = Callable[[Any], object]

# What the analysis gets to see.
KEPT_SNAPSHOTS: Final = 512
# CPU seconds of the first look, as long as little is recorded.
FIRST_LOOK_SECONDS: Final = 0.01
# At the end of a run, how long what is under way is waited for.
LAST_LOOK_SECONDS: Final = 0.5
# Statuses that get worse in this order: a callback for one also hears of what is worse.
LADDER: Final = ("watch", "suspected", "confirmed")
OTHERS: Final = ("learning", "ok", "filling", "recovered")
HEARD: Final = (*OTHERS, *LADDER, *EVENTS)


def check(event: object, callback: object) -> None:
    """Raises BadArgument, with the names there are."""
    if not isinstance(event, str) or event not in HEARD:
        raise BadArgument("event", event, f"must be one of {', '.join(HEARD)}")
    if not callable(callback):
        raise BadArgument("callback", f"<{type(callback).__name__}>", "must be callable")


class VerdictWatch:
    """Keeps the snapshots it is given, examines them, and says which callbacks are due."""

    def __init__(self, header: RunHeader, process: ProcessIdentity, governor: Governor) -> None:
        self._governor = governor
        self._callbacks: list[tuple[str, Callback]] = []
        self._due: deque[tuple[Callback, Verdict]] = deque()
        self._snapshots: list[Snapshot] = []
        # The recorder's thread adds samples. Reentrant: a signal handler may end the run in the middle of it.
        self._lock = threading.RLock()
        # Not yet looked at, and not yet answered with what was found.
        self._news = self._ended = False
        # Whether anybody wants to know of the verdict.
        self.follows = self._is_over = False
        self._verdict_thread = _VerdictThread(header, process)
        self.status = "learning"
        # The newest that was found.
        self.newest: Verdict | None = None

    def follow(self, past: Iterable[Snapshot] = ()) -> None:
        """From now on; ``past``: what was taken before. Only the first call begins."""
        if not (self.follows or self._is_over):
            with self._governor.measuring("verdict", set_up=True):
                self._verdict_thread.prepare()
            self._keep(past)
            self.follows = True

    def add(self, event: str, callback: Callback) -> None:
        """``event`` is one of HEARD."""
        self._callbacks.append((event, callback))

    def see(self, snapshot: Snapshot) -> None:
        """Remember a snapshot."""
        if self.follows:
            self._keep([snapshot])
            if snapshot.kind == "generation_end":
                self._ended = self._news = True

    def forget(self) -> None:
        """Let go of the callbacks, and of what they hold of the program. Nothing of ours goes on after this."""
        self._is_over, self.follows = True, False
        self._callbacks.clear()
        self._due.clear()
        self._snapshots.clear()
        self.newest = None
        self._verdict_thread.wait(LAST_LOOK_SECONDS)

    def examine(self) -> None:
        """After a generation's end: take what was found, and have what is new looked at where the budget has room."""
        if self._ended:
            self._ended = False
            self._take()
            self._begin()

    def conclude(self) -> None:
        """The last chance of what is new; not for long."""
        if not self._callbacks:
            return
        deadline = time.monotonic() + LAST_LOOK_SECONDS
        self._verdict_thread.wait(LAST_LOOK_SECONDS)
        self._take()
        # What has come since that began.
        self._begin()
        self._verdict_thread.wait(max(0.0, deadline - time.monotonic()))
        self._take()

    def due(self) -> Iterator[tuple[Callback, Verdict]]:
        """What to call now, each once, outside of any guard: where one raises, the others are still due."""
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
            # Still news where no thread could start.
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
    """For keeping. The census is the largest part and the analysis has its numbers as series; it reads no lines."""
    # Each snapshot brings names of its own, which take more than the numbers.
    samples = {sys.intern(name): value for name, value in snapshot.samples.items()}
    events = tuple(event for event in snapshot.events if event.kind != "log")
    return replace(snapshot, samples=samples, events=events, census=None, large_objects=())


def is_at_least(status: str, wanted: str) -> bool:
    """Whether a status of the ladder has been reached, or a worse one."""
    return _height(status) >= _height(wanted) > 0


def _reached(wanted: str, before: str, now: str) -> bool:
    if wanted not in LADDER:
        return now == wanted and before != wanted
    return is_at_least(now, wanted) and not is_at_least(before, wanted)


def _height(status: str) -> int:
    return LADDER.index(status) + 1 if status in LADDER else 0
