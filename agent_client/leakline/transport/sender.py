"""The sender's thread sends the outbox's content to the server, waits or gives up after failures, and counts losses.

1. Announce the run (``POST /runs``), and again if the server no longer knows it.
2. Send the outbox in parts that a server accepts (`batching.py`), and advance the mark. A backlog after an outage is
   sent gradually: this thread uses 0.5 % of a core, or 5 % if that is not enough to catch up.
3. If no response arrives, or the response is "not now": wait with growing, jittered pauses, or as long as the server
   requests.
4. If a batch is refused: count it and continue. A refused batch is never sent again, except in halves if it was too
   large.
5. If the entire run is refused (no permission, unknown route): stop. The spool keeps all data.
6. When all data of this run has arrived, send the unsent data of earlier runs, piece by piece (`orphan_recovery.py`).
7. At the end, report how the process left the run (``PATCH /runs/{id}``).
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

# Minimum time between two batches during training, so that frequent snapshots are sent together.
LINGER_SECONDS: Final = 0.3
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
LONGEST_RETRY_AFTER_SECONDS: Final = 300.0
# This thread's CPU time as a share of wall time: while a backlog shrinks, and while it does not shrink because the
# program takes snapshots faster than they are sent.
CATCH_UP_SHARE: Final = 0.005
KEEP_UP_SHARE: Final = 0.05
SENT: Final = "sent"


class Sender:
    """A thread that sends the outbox's content. Call ``wake`` after adding data, and ``close`` once at the end."""

    def __init__(
        self,
        outbox: Outbox,
        delivery: Delivery,
        header: RunHeader,
        process: ProcessIdentity,
        losses: Losses,
        notices: Notices,
        where: str = "",
        in_other_project: str = "",
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
        self._in_other_project = in_other_project
        self._requested, self._ended = requested, ended
        self._thread_seconds = {} if thread_seconds is None else thread_seconds
        self._idle, self._let_go = idle, let_go
        # Random numbers come from the operating system: importing `random` would cost ten times as much.
        self._clock, self._jitter = clock, jitter
        self._guard = Guard("sending")
        self._wake, self._done, self._closing = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._end: Mapping[str, Any] | None = None
        self._stopped = False
        # The header that the server knows.
        self._known: RunHeader | None = None
        # True from a notice about an outage until all data has been sent.
        self._reported_outage = False
        self.failures = 0
        # Number of snapshots that the server has accepted, for the `Account` in `spool_format.py`.
        self.sent = 0
        # The losses last reported to the server.
        self._reported_losses: dict[str, int] = {}
        # Outcomes by sequence number of snapshots beyond the mark, which are still in the outbox but are not sent
        # again.
        self._answered: dict[int, str] = {}
        # Age, in seconds, of the newest snapshot that was sent last.
        self._behind = 0.0
        self._not_before = 0.0
        self._thread = OurThread("sender", self._loop, waits=True)

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, end: Mapping[str, Any], timeout_seconds: float) -> bool:
        """Send the remaining data and the end, within the time limit. Return False if data remains in the spool."""
        self._end = end
        self._delivery.timeout_seconds = min(self._delivery.timeout_seconds, timeout_seconds)
        self._closing.set()
        self._wake.set()
        # If the thread could not start, nothing is sent.
        started = self._thread.ident is not None
        return started and self._done.wait(timeout_seconds) and not self._outbox.pending()

    def describe(self, header: RunHeader) -> None:
        """Announce the run with this header before the next batch is sent."""
        self._header = header

    @property
    def _announced(self) -> bool:
        return self._known is self._header

    def abandon(self) -> None:
        """Release the connection in a forked child, which has no sender thread and shares the parent's connection."""
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
        """Wait for new data and the end of the pause, or for the end of the run."""
        while not self._closing.is_set():
            pause = self._not_before - self._clock()
            if pause > 0:
                self._closing.wait(pause)
            elif self._wake.wait():
                self._wake.clear()
                self._not_before = self._clock() + LINGER_SECONDS
                return

    def _send_all(self) -> None:
        """Send the outbox's content until the server requests a pause or this thread's share of CPU time is used."""
        while self._announce():
            started = time.thread_time()
            batches, mark = self._outbox.unsent()
            if not self._announced:
                # These batches may be the first that belong to a new header.
                continue
            if not all(self._send(batch) for batch in batches):
                return
            # Count only now: if sending had stopped earlier, the outbox would return the same snapshots again, and they
            # would be counted twice.
            self._count(batches)
            if mark:
                self._outbox.accept(mark, self._delivery.server)
            if not self._outbox.pending():
                if self._reported_outage:
                    self._reported_outage = False
                    said = f"{self._delivery.server} answers again; no recorded data is waiting"
                    self._notices.say(said, once="sent")
                return
            if not self._closing.is_set():
                self._rest(batches, time.thread_time() - started)
                return

    def _rest(self, batches: list[Batch], cpu_seconds: float) -> None:
        """Pause between two reads of an outbox that contains more data."""
        newest = max((s.time for batch in batches for s in batch.snapshots), default=0.0)
        behind = time.time() - newest
        share = CATCH_UP_SHARE if behind < self._behind else KEEP_UP_SHARE
        self._behind = behind
        self._not_before = self._clock() + cpu_seconds / share
        self._wake.set()

    def _send(self, batch: Batch) -> bool:
        """Send a batch. Return False if sending must pause or stop."""
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
        """Send a piece of the unsent data of earlier runs, once all of our own data has arrived."""
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
        """Report losses that occurred after the last batch."""
        lost = {**self._losses.totals(), **self._outbox.lost()}
        if lost != self._reported_losses:
            self._send(Batch(self._process, (), lost))

    def _announce(self) -> bool:
        """Return True if the server knows this run, announcing it if necessary."""
        if self._announced or self._stopped:
            return self._announced and not self._stopped
        header = self._header
        # The server compares this local time with its own time to detect a wrong clock.
        hello = {**announcement(header, self._process), "sent_at": time.time()}
        outcome = self._delivery.request("POST", "/runs", hello)
        if isinstance(outcome, Accepted):
            self._known = header
            self.failures = 0
        elif isinstance(outcome, RetryLater):
            self._pause(outcome)
        else:
            self._stop(outcome)
        return self._announced

    def _settle(self, outcome: Outcome) -> bool:
        """Return True if the part needs no retry: it was accepted, or refused permanently."""
        if isinstance(outcome, Accepted):
            self.failures = 0
            # The response may contain requests to the run; `run_requests.py` decides which requests are served.
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
            # The server no longer knows the run, for example because of a fresh database. Announce the run again, once.
            # It has joined the run, so `resume` no longer matters.
            self._known, self._header = None, replace(self._header, resume="allow")
            if self._announce():
                return self._delivery.request("POST", path, body)
        return outcome

    def _pause(self, outcome: RetryLater) -> None:
        self.failures += 1
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self.failures - 1, 10))
        # Wait for between half of the pause and the whole pause, so that many ranks do not return simultaneously.
        pause = longest * (0.5 + self._jitter() / 2)
        if outcome.after_seconds is not None:
            pause = max(pause, min(outcome.after_seconds, LONGEST_RETRY_AFTER_SECONDS))
        self._not_before = self._clock() + pause
        self._wake.set()
        self._reported_outage = True
        said = not_now(outcome, self._delivery.server)
        kept = "; the snapshots are kept and sent later" if isinstance(said, ServerBusy) else ""
        self._notices.say(
            f"{said.sentence}{kept}; recording continues{self._where}", once=type(said).__name__
        )

    def _stop(self, outcome: Refused) -> None:
        self._stopped = True
        said = not_accepted(self._delivery.server, outcome.status, outcome.message)
        # The recording belongs to its project forever, so the token must change before an upload.
        other = outcome.code == "project_not_found"
        # A refusal because of `resume` names the command itself.
        of_resume = self._header.resume != "allow" and outcome.code in (
            "run_not_found",
            "run_exists",
        )
        where = self._where.partition(";")[0] if of_resume else self._where
        rest = self._in_other_project if other else f"; recording continues{where}"
        self._notices.say(f"{said}{rest}", once="stopped")


def _became(outcome: Outcome) -> str:
    """Return "sent" or the loss reason for a part with a final outcome."""
    if isinstance(outcome, Accepted):
        return SENT
    return "too_large" if outcome.status == TOO_LARGE else "refused"


def announcement(header: RunHeader, process: ProcessIdentity) -> dict[str, Any]:
    """Return the body of ``POST /runs``: the run's header and the process that joins the run."""
    identity = {name: getattr(process, name) for name in ProcessIdentity.__dataclass_fields__}
    return {**header_to_wire(header), "process": identity}
