"""The sender's thread: outbox -> server. Knows when to wait, when to give up, and what got lost.

1. Announce the run (``POST /runs``), once per connection to a server that knows it.
2. Send what the outbox holds, at most 200 snapshots and 256 KiB at a time, and move the mark.
3. No answer, or "not now": wait with growing, jittered pauses, or as long as the server asks.
4. A refusal of a batch: halve it until what is refused is one snapshot, count that and go on.
5. A refusal of the whole run (no permission, unknown route): stop; the spool keeps everything.
6. At the end tell how the process left (``PATCH /runs/{id}``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from .delivery import Accepted, Body, Delivery, Outcome, Refused, RetryLater, encode
from .guard import Guard
from .notices import Notices
from .outbox import Outbox
from .recorder import Losses
from .snapshot import Batch, ProcessIdentity, RunHeader, batch_to_wire, header_to_wire

BATCH_LIMIT_BYTES: Final = 256 * 1024
# Between two batches while training runs, so that frequent snapshots travel together.
LINGER_SECONDS: Final = 0.3
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
LONGEST_RETRY_AFTER_SECONDS: Final = 300.0
# These refuse one batch; every other refusal is about the run or the server.
BATCH_REFUSALS: Final = frozenset({400, 409, 413, 422})
# These may be the fault of one snapshot: its neighbours get another try without it.
DIVISIBLE_REFUSALS: Final = frozenset({400, 413, 422})


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
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: int.from_bytes(os.urandom(2)) / 65536,
        note_cpu: Callable[[], None] = lambda: None,
    ) -> None:
        self._outbox, self._delivery, self._header, self._process = (
            outbox,
            delivery,
            header,
            process,
        )
        self._losses, self._notices, self._where = losses, notices, where
        self._requested, self._note_cpu = requested, note_cpu
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
        self.ever_accepted = False
        self._not_before = 0.0
        self._thread = threading.Thread(target=self._loop, name="leakline-sender", daemon=True)

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
        return self._done.wait(timeout_seconds) and not self._outbox.pending()

    def _loop(self) -> None:
        while not (self._closing.is_set() or self._stopped):
            self._wait()
            with self._guard:
                self._send_all()
            self._note_cpu()
        with self._guard:
            self._finish()
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
        """Everything in the outbox, until a pause is asked for."""
        while self._announce():
            batches, mark = self._outbox.unsent()
            refused = 0
            for batch in batches:
                for part, outcome in deliver(batch, self._post):
                    if not self._settle(outcome):
                        return
                    refused += 0 if isinstance(outcome, Accepted) else len(part.snapshots)
            # Only now: until the mark moves, the same snapshots come again and would count twice.
            if refused:
                self._losses.count("refused", refused)
            if mark:
                self._outbox.accept(mark, self._delivery.server)
            if not self._outbox.pending():
                return

    def _finish(self) -> None:
        if self._stopped or self._end is None:
            return
        self._send_all()
        if self._announced and not self._outbox.pending():
            left = {**self._end, "instance": self._process.instance}
            outcome = self._delivery.request("PATCH", f"/runs/{self._header.id}", left)
            if isinstance(outcome, Accepted):
                self._outbox.accept_end(self._delivery.server)
        self._delivery.close()

    def _announce(self) -> bool:
        """Has the server heard of this run?"""
        if self._announced or self._stopped:
            return self._announced and not self._stopped
        outcome = self._delivery.request("POST", "/runs", announcement(self._header, self._process))
        if isinstance(outcome, Accepted):
            self._announced = True
            self._succeeded()
        elif isinstance(outcome, RetryLater):
            self._pause(outcome)
        else:
            self._stop(outcome)
        return self._announced

    def _settle(self, outcome: Outcome) -> bool:
        """Is what was sent done with (accepted, or refused for good)?"""
        if isinstance(outcome, Accepted):
            self._succeeded()
            # What the server would like to be looked at; `requests.py` decides.
            self._requested(outcome.body.get("requests"))
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

    def _succeeded(self) -> None:
        self.failures, self.ever_accepted = 0, True

    def _pause(self, outcome: RetryLater) -> None:
        self.failures += 1
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self.failures - 1, 10))
        # Between half and all of it: many ranks must not come back at the same moment.
        pause = longest * (0.5 + self._jitter() / 2)
        if outcome.after_seconds is not None:
            pause = max(pause, min(outcome.after_seconds, LONGEST_RETRY_AFTER_SECONDS))
        self._not_before = self._clock() + pause
        self._wake.set()
        self._notices.say(
            f"no server answers at {self._delivery.server} ({outcome.why}); recording goes on{self._where}",
            once="unreachable",
        )

    def _stop(self, outcome: Refused) -> None:
        self._stopped = True
        self._notices.say(
            f"{self._delivery.server} does not accept this run ({outcome.status}: {outcome.message}); "
            f"recording goes on{self._where}",
            once="stopped",
        )


def announcement(header: RunHeader, process: ProcessIdentity) -> dict[str, Any]:
    """The body of ``POST /runs``: the header and the process that joins."""
    identity = {name: getattr(process, name) for name in ProcessIdentity.__dataclass_fields__}
    return {**header_to_wire(header), "process": identity}


def deliver(batch: Batch, post: Callable[[Body], Outcome]) -> Iterator[tuple[Batch, Outcome]]:
    """Post a batch; what is too large or refused goes again in halves. One pair for each part that has its answer.

    The next part is posted when the next pair is asked for.
    """
    body = encode(batch_to_wire(batch))
    whole = len(batch.snapshots) < 2
    if whole or len(body.data) <= BATCH_LIMIT_BYTES:
        outcome = post(body)
        divisible = isinstance(outcome, Refused) and outcome.status in DIVISIBLE_REFUSALS
        if whole or not divisible:
            yield batch, outcome
            return
    for half in _halves(batch):
        yield from deliver(half, post)


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    middle = len(batch.snapshots) // 2
    return (
        replace(batch, snapshots=batch.snapshots[:middle]),
        replace(batch, snapshots=batch.snapshots[middle:]),
    )
