"""The sender's thread: outbox -> server. Knows when to wait, when to give up, and what got lost.

1. Announce the run (``POST /runs``), once per connection to a server that knows it.
2. Send what the outbox holds, in parts that a server takes (`batching.py`), and move the mark. After an outage not
   all at once: this thread takes half a hundredth of a core, or a twentieth where that does not catch up.
3. No answer, or "not now": wait with growing, jittered pauses, or as long as the server asks.
4. A refusal of a batch: count it and go on. It is never sent again, but in halves where it was too large.
5. A refusal of the whole run (no permission, unknown route): stop; the spool keeps everything.
6. When all of that has arrived, send a piece of what earlier runs have left (`orphan_recovery.py`), and another.
7. At the end tell how the process left (``PATCH /runs/{id}``).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..console import Notices
from ..errors import ServerBusy
from ..runtime import threads
from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..snapshot import Batch, ProcessIdentity, RunHeader, header_to_wire
from .batching import BATCH_REFUSALS, TOO_LARGE, consecutive, deliver
from .http_delivery import (
    Accepted,
    Body,
    Delivery,
    Outcome,
    Refused,
    RetryLater,
    not_accepted,
    not_now,
)
from .recorder import Losses
from .spool_file import Outbox

# Between two batches while training runs, so that frequent snapshots travel together.
LINGER_SECONDS: Final = 0.3
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
LONGEST_RETRY_AFTER_SECONDS: Final = 300.0
# CPU seconds of this thread, as a share of wall time, while there is more to send than what has just been recorded;
# and where that share does not catch up, because a program takes snapshots faster.
CATCH_UP_SHARE: Final = 0.005
KEEP_UP_SHARE: Final = 0.05
SENT: Final = "sent"


class Sender:
    """``wake`` when the outbox has news; ``close`` once, at the end. Everything else happens in its thread."""

    def __init__(
        self,
        outbox: Outbox,
        delivery: Delivery,
        header: RunHeader,
        process: ProcessIdentity,
        losses: Losses,
        notices: Notices,
        where: str = "",
        requested: Callable[[object], None] = lambda wishes: None,
        idle: Callable[[], bool] = lambda: False,
        let_go: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: int.from_bytes(os.urandom(2)) / 65536,
        thread_seconds: dict[int, float] | None = None,
    ) -> None:
        self._outbox, self._delivery, self._header, self._process = (
            outbox,
            delivery,
            header,
            process,
        )
        self._losses, self._notices, self._where = losses, notices, where
        self._requested, self._ended = requested, ended
        self._thread_seconds = {} if thread_seconds is None else thread_seconds
        self._idle, self._let_go = idle, let_go
        # From the system, not from `random`: importing that costs a training job ten times what this does.
        self._clock, self._jitter = clock, jitter
        self._guard = Guard("sending")
        self._wake, self._done, self._closing = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._end: Mapping[str, Any] | None = None
        self._announced = self._stopped = False
        self.failures = 0
        # Snapshots that the server has accepted: one side of the `Account` in `spool_format.py`.
        self.sent = 0
        # The losses that the server has heard of.
        self._reported_losses: dict[str, int] = {}
        # What became of snapshots that the mark has not passed yet: they are in the outbox and never sent again.
        self._answered: dict[int, str] = {}
        # Seconds between the newest of what was sent last and now.
        self._behind = 0.0
        self._not_before = 0.0
        self._thread = OurThread("sender", self._loop, waits=True)

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, end: Mapping[str, Any], timeout_seconds: float) -> bool:
        """Send what is left and the end, within the time. False when something stays in the spool."""
        self._end = end
        self._delivery.timeout_seconds = min(self._delivery.timeout_seconds, timeout_seconds)
        self._closing.set()
        self._wake.set()
        # Nothing is sent by one that could not start.
        started = self._thread.ident is not None
        return started and self._done.wait(timeout_seconds) and not self._outbox.pending()

    def abandon(self) -> None:
        """In a forked child: the thread is not there, and the connection is the parent's."""
        self._delivery.abandon()

    def _loop(self) -> None:
        threads.begin(self._closing)
        while not (self._closing.is_set() or self._stopped):
            self._wait()
            with self._guard:
                self._send_all()
                self._send_leftovers()
            self._thread_seconds[threading.get_ident()] = time.thread_time()
        for part in (self._finish, self._delivery.close, self._let_go):
            with self._guard:
                part()
        self._done.set()

    def _wait(self) -> None:
        """Until there is news and the pause is over, or the end has come."""
        while not self._closing.is_set():
            pause = self._not_before - self._clock()
            if pause > 0:
                self._closing.wait(pause)
            elif self._wake.wait():
                self._wake.clear()
                self._not_before = self._clock() + LINGER_SECONDS
                return

    def _send_all(self) -> None:
        """Everything in the outbox, until a pause is asked for or this thread has taken its share."""
        while self._announce():
            started = time.thread_time()
            batches, mark = self._outbox.unsent()
            if not all(self._send(batch) for batch in batches):
                return
            # Only now: until the mark moves, the same snapshots come again and would count twice.
            self._count(batches)
            if mark:
                self._outbox.accept(mark, self._delivery.server)
            if not self._outbox.pending():
                return
            if not self._closing.is_set():
                self._rest(batches, time.thread_time() - started)
                return

    def _rest(self, batches: list[Batch], cpu_seconds: float) -> None:
        """Between two readings of an outbox that holds more."""
        newest = max((s.time for batch in batches for s in batch.snapshots), default=0.0)
        behind = time.time() - newest
        share = CATCH_UP_SHARE if behind < self._behind else KEEP_UP_SHARE
        self._behind = behind
        self._not_before = self._clock() + cpu_seconds / share
        self._wake.set()

    def _send(self, batch: Batch) -> bool:
        """False when a pause is asked for, or the end."""
        left = [s for s in batch.snapshots if s.sequence not in self._answered]
        for run in consecutive(left) if batch.snapshots else [()]:
            for part, outcome in deliver(replace(batch, snapshots=run), self._post):
                if not self._settle(outcome):
                    return False
                self._answered |= dict.fromkeys(
                    (s.sequence for s in part.snapshots), _became(outcome)
                )
        self._reported_losses = dict(batch.lost)
        return True

    def _count(self, batches: list[Batch]) -> None:
        became = Counter(self._answered[s.sequence] for batch in batches for s in batch.snapshots)
        self._answered.clear()
        self.sent += became.pop(SENT, 0)
        for reason, number in became.items():
            self._losses.count(reason, number)

    def _send_leftovers(self) -> None:
        """A piece of what others have left, when everything of ours has arrived."""
        up_to_date = self._announced and not self._outbox.pending() and self.failures == 0
        if up_to_date and not self._closing.is_set() and self._idle():
            self._wake.set()

    def _finish(self) -> None:
        if self._stopped or self._end is None:
            return
        self._send_all()
        if self._announced and not self._outbox.pending():
            self._tell_losses()
            left = {**self._end, "instance": self._process.instance}
            outcome = self._delivery.request("PATCH", f"/runs/{self._header.id}", left)
            if isinstance(outcome, Accepted):
                self._outbox.accept_end(self._delivery.server)
                self._ended()

    def _tell_losses(self) -> None:
        """What was lost after the last batch that reported losses."""
        lost = {**self._losses.totals(), **self._outbox.lost()}
        if lost != self._reported_losses:
            self._send(Batch(self._process, (), lost))

    def _announce(self) -> bool:
        """Has the server heard of this run?"""
        if self._announced or self._stopped:
            return self._announced and not self._stopped
        # Of this clock, by which a server recognises a clock that lies.
        hello = {**announcement(self._header, self._process), "sent_at": time.time()}
        outcome = self._delivery.request("POST", "/runs", hello)
        if isinstance(outcome, Accepted):
            self._announced = True
            self.failures = 0
        elif isinstance(outcome, RetryLater):
            self._pause(outcome)
        else:
            self._stop(outcome)
        return self._announced

    def _settle(self, outcome: Outcome) -> bool:
        """Is what was sent done with (accepted, or refused for good)?"""
        if isinstance(outcome, Accepted):
            self.failures = 0
            # What the server would like to be looked at; `run_requests.py` decides.
            if wishes := outcome.body.get("requests"):
                self._requested(wishes)
            return True
        if isinstance(outcome, RetryLater):
            self._pause(outcome)
            return False
        if outcome.status not in BATCH_REFUSALS:
            self._stop(outcome)
            return False
        self._notices.say(f"the server refused a batch: {outcome.message}", once="refused")
        return True

    def _post(self, body: Body) -> Outcome:
        path = f"/runs/{self._header.id}/batches"
        outcome = self._delivery.request("POST", path, body)
        if isinstance(outcome, Refused) and outcome.status == 404:
            # The server has forgotten the run (a fresh database): announce it again, once.
            self._announced = False
            if self._announce():
                return self._delivery.request("POST", path, body)
        return outcome

    def _pause(self, outcome: RetryLater) -> None:
        self.failures += 1
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self.failures - 1, 10))
        # Between half and all of it: many ranks must not come back at the same moment.
        pause = longest * (0.5 + self._jitter() / 2)
        if outcome.after_seconds is not None:
            pause = max(pause, min(outcome.after_seconds, LONGEST_RETRY_AFTER_SECONDS))
        self._not_before = self._clock() + pause
        self._wake.set()
        said = not_now(outcome, self._delivery.server)
        kept = "; the snapshots are kept and sent later" if isinstance(said, ServerBusy) else ""
        self._notices.say(
            f"{said.sentence}{kept}; recording goes on{self._where}", once=type(said).__name__
        )

    def _stop(self, outcome: Refused) -> None:
        self._stopped = True
        said = not_accepted(self._delivery.server, outcome.status, outcome.message)
        self._notices.say(f"{said}; recording goes on{self._where}", once="stopped")


def _became(outcome: Outcome) -> str:
    """Of a part that has its answer: sent, or the reason of the loss."""
    if isinstance(outcome, Accepted):
        return SENT
    return "too_large" if outcome.status == TOO_LARGE else "refused"


def announcement(header: RunHeader, process: ProcessIdentity) -> dict[str, Any]:
    """The body of ``POST /runs``: the header and the process that joins."""
    identity = {name: getattr(process, name) for name in ProcessIdentity.__dataclass_fields__}
    return {**header_to_wire(header), "process": identity}
