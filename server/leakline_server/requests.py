"""What the training processes are asked for: looks, by people and by the examiner for what nobody holds yet, and by
people the cleanup that a program has registered.

In memory alone: a request that a restart loses is asked again by whoever still wants it. It goes with every answer to
a batch of its process until a batch tells what came of it, so it may be told twice; the client looks once. All calls
may come from any thread.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from leakline.analysis.results import Finding, Verdict

from .errors import TooBusy

# Waiting for one run, and runs that anything waits for.
MAX_WAITING: Final = 16
MAX_RUNS: Final = 1_024
# What no batch has answered by then is forgotten: the process ended, or does not know requests.
EXPIRE_SECONDS: Final = 3_600.0
# The holders of one type are looked for at most once in so many generations.
AGAIN_AFTER: Final = 8
# Kinds of finding whose holders can be looked for.
SEARCHED: Final = frozenset({"objects", "tensors", "arrays"})

_RANK: Final = re.compile(r"rank (\d+)")


@dataclass(frozen=True, slots=True)
class Request:
    """``kind`` is find_holders, census or cleanup; ``type`` is for the first alone."""

    id: str
    kind: str
    type: str
    rank: int
    by_person: bool
    asked_at: float

    def told(self) -> dict[str, str]:
        """As the answer to a batch carries it."""
        named = {"type": self.type} if self.type else {}
        by = "person" if self.by_person else "server"
        return {"id": self.id, "kind": self.kind, **named, "asked_by": by}


class Requests:
    """``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Request]] = {}
        # (run, type) -> the generation it was last asked for.
        self._asked: dict[tuple[str, str], int] = {}

    def ask(
        self, run_id: str, kind: str, type_name: str = "", rank: int = 0, *, by_person: bool = True
    ) -> Request:
        """Ask this process of the run; the same request that waits already is that one. Raises TooBusy."""
        with self._lock:
            waiting = self._of(run_id)
            for known in waiting.values():
                if (known.kind, known.type, known.rank) == (kind, type_name, rank):
                    if by_person <= known.by_person:
                        return known
                    del waiting[known.id]
                    break
            if len(waiting) >= MAX_WAITING:
                raise TooBusy(
                    "too_many_requests",
                    f"{MAX_WAITING} requests wait for run {run_id} already; ask again when it has answered",
                    retry_after_seconds=30,
                )
            number = secrets.token_hex(8)
            request = Request(number, kind, type_name, rank, by_person, self._clock())
            self._waiting.setdefault(run_id, waiting)[number] = request
            while len(self._waiting) > MAX_RUNS:
                del self._waiting[next(iter(self._waiting))]
            return request

    def of(self, run_id: str, rank: int) -> list[dict[str, str]]:
        """What the answer to a batch of this process carries."""
        if run_id not in self._waiting:
            return []
        with self._lock:
            return [r.told() for r in self._of(run_id).values() if r.rank == rank]

    def answered(self, run_id: str, events: Iterable[Any]) -> None:
        """Forget what these events of a batch tell the outcome of."""
        if run_id not in self._waiting:
            return
        ids = [event.data.get("request") for event in events if event.kind == "mark"]
        with self._lock:
            waiting = self._of(run_id)
            for number in ids:
                if isinstance(number, str):
                    waiting.pop(number, None)

    def wanted(self, verdict: Verdict) -> None:
        """Ask for the holders of what is suspected and held by nothing that has a name yet."""
        for finding in verdict.findings:
            name = searched_type(finding)
            if name is None or not self._is_due(verdict.run, name, verdict.generations):
                continue
            try:
                self.ask(verdict.run, "find_holders", name, _rank(finding), by_person=False)
            except TooBusy:
                return

    def _is_due(self, run_id: str, name: str, generation: int) -> bool:
        with self._lock:
            last = self._asked.get((run_id, name))
            if last is not None and generation < last + AGAIN_AFTER:
                return False
            # At the end of the order, so that the longest not asked for is forgotten first.
            self._asked.pop((run_id, name), None)
            self._asked[run_id, name] = generation
            while len(self._asked) > MAX_RUNS * MAX_WAITING:
                del self._asked[next(iter(self._asked))]
            return True

    def _of(self, run_id: str) -> dict[str, Request]:
        """What waits for a run, without what has waited too long. Under the lock."""
        waiting = self._waiting.get(run_id, {})
        now = self._clock()
        for request in list(waiting.values()):
            if now - request.asked_at > EXPIRE_SECONDS:
                del waiting[request.id]
        if not waiting:
            self._waiting.pop(run_id, None)
        return waiting


def searched_type(finding: Finding) -> str | None:
    """The type whose holders would say more of this finding; None when it has one, or none can be looked for."""
    if finding.status not in ("suspected", "confirmed") or finding.kind not in SEARCHED:
        return None
    if any(suspect.role == "holder" for suspect in finding.suspects):
        return None
    return next((suspect.name for suspect in finding.suspects if suspect.role == "type"), None)


def _rank(finding: Finding) -> int:
    """Of a run with several processes, the first that the finding is about."""
    found = _RANK.search(finding.process or "")
    return int(found.group(1)) if found else 0
