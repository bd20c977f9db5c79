"""Requests to training processes: heap scans and registered cleanups.

People and the examiner request heap scans for objects without a known holder; only people request cleanups.

The table is authoritative, so that a request made on one server reaches a process that sends to another server. This
module keeps a copy of the pending requests, which `refresh` reads periodically, so that no batch waits for the
database. A request is included in every response to its process's batches until a batch reports the outcome. A request
may therefore be sent more than once; the client executes it only once. All methods may be called from any thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from leakline.analysis.results import Finding, Verdict
from leakline.analysis.run_history import TENSOR as JS_TENSOR

from .errors import TooBusy
from .limits import MAX_REQUESTS
from .store import request_rows as stored
from .store.engine import Engine
from .store.request_rows import EXPIRE_SECONDS, Request, TooManyWait, Wanted
from .store.runs.run_history import NoSuchRun

# The examiner's last requests are cached for this many types; for others the table is queried.
MAX_REMEMBERED: Final = 16_384
# The maximum number of requests made on other servers and answered here since the last `refresh`.
MAX_ELSEWHERE: Final = 4_096
# The holders of one type are requested at most once in this many generations.
AGAIN_AFTER: Final = 8
# Kinds of findings whose holders can be searched for.
SEARCHED: Final = frozenset({"objects", "tensors", "arrays"})

# The format of a request id (`store/request_rows.py`).
_ID: Final = re.compile(r"[0-9a-f]{16}")
_RANK: Final = re.compile(r"rank (\d+)")


class Requests:
    """The pending requests. ``clock`` returns Unix seconds; ``has_answers`` is called on any thread when `refresh` has
    something to write.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.time,
        has_answers: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._clock, self._has_answers = engine, clock, has_answers
        # Keeps the table and this copy of it consistent. Never held while a batch waits.
        self._lock = threading.Lock()
        # Run -> pending requests; replaced as a whole.
        self._waiting: Mapping[str, Sequence[Request]] = {}
        # Request id -> run, until the table is updated: first for requests made here, then for requests made on another
        # server.
        self._answered: dict[str, str] = {}
        self._answered_elsewhere: dict[str, str] = {}
        # (run, type) -> generation of the last request.
        self._asked: dict[tuple[str, str], int] = {}

    def ask(self, run_id: str, wanted: Wanted) -> Request:
        """Add a request to a process of the run; if an equal request is pending, return that request instead.

        Raises TooBusy, NoSuchRun, or one of DATABASE_ERRORS.
        """
        with self._lock:
            try:
                request = stored.ask(self._engine, run_id, wanted, self._clock())
            except TooManyWait as error:
                raise TooBusy(
                    "too_many_requests",
                    f"run {run_id} already has {MAX_REQUESTS} pending requests; try again when a request is answered",
                    retry_after_seconds=30,
                ) from error
            same = (request.kind, request.type, request.rank)
            others = [
                r for r in self._waiting.get(run_id, ()) if (r.kind, r.type, r.rank) != same
            ]  # fmt: skip
            self._waiting = {**self._waiting, run_id: (*others, request)}
            return request

    def of(self, run_id: str, rank: int) -> list[dict[str, str]]:
        """Return the requests to include in the response to a batch of this process."""
        waiting = self._waiting.get(run_id)
        if waiting is None:
            return []
        since = self._clock() - EXPIRE_SECONDS
        return [
            r.to_json()
            for r in waiting
            if r.rank == rank and r.asked_at > since and not self._is_answered(r.id)
        ]

    def answered(self, run_id: str, events: Iterable[Any]) -> None:
        """Drop the requests whose outcome these events report.

        An outcome is recorded even if another server sent the request, because the process reports it only once.
        """
        named = (event.data.get("request") for event in events if event.kind == "mark")
        numbers = {number for number in named if isinstance(number, str)}
        if not numbers:
            return
        here = {r.id for r in self._waiting.get(run_id, ())}
        for number in numbers:
            if self._is_answered(number):
                continue
            if number in here:
                self._answered[number] = run_id
                self._has_answers()
            elif _ID.fullmatch(number) and len(self._answered_elsewhere) < MAX_ELSEWHERE:
                self._answered_elsewhere[number] = run_id

    def refresh(self) -> None:
        """Write the answers received here, and read all servers' pending requests. Raises one of DATABASE_ERRORS."""
        with self._lock:
            answered = {**self._answered, **self._answered_elsewhere}
            if answered:
                stored.answered(self._engine, answered)
            by_run: dict[str, list[Request]] = {}
            for request in stored.waiting(self._engine, self._clock()):
                by_run.setdefault(request.run_id, []).append(request)
            self._waiting = by_run
            for number in answered:
                self._answered.pop(number, None)
                self._answered_elsewhere.pop(number, None)

    def _is_answered(self, number: str) -> bool:
        return number in self._answered or number in self._answered_elsewhere

    def wanted(self, verdict: Verdict) -> None:
        """Request a heap scan for each suspected type whose holder is not known yet."""
        for finding in verdict.findings:
            name = searched_type(finding)
            if name is None or not self._is_due(verdict.run, name, verdict.generations):
                continue
            try:
                self.ask(
                    verdict.run, Wanted("find_holders", name, _rank(finding), verdict.generations)
                )
            except (TooBusy, NoSuchRun):
                return

    def _is_due(self, run_id: str, name: str, generation: int) -> bool:
        if not self._is_due_since(self._asked.get((run_id, name)), generation):
            return False
        last = stored.last_asked_at_generation(self._engine, run_id, name)
        due = self._is_due_since(last, generation)
        # Reinsert at the end, so that the least recently requested entry is evicted first.
        self._asked.pop((run_id, name), None)
        self._asked[run_id, name] = generation if due or last is None else last
        while len(self._asked) > MAX_REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return due

    @staticmethod
    def _is_due_since(last: int | None, generation: int) -> bool:
        return last is None or generation >= last + AGAIN_AFTER


def searched_type(finding: Finding) -> str | None:
    """Return the type whose holders should be searched for.

    Return None if a holder is already known or a heap scan cannot find one.
    """
    if finding.status not in ("suspected", "confirmed") or finding.kind not in SEARCHED:
        return None
    if any(suspect.role == "holder" for suspect in finding.suspects):
        return None
    name = next((suspect.name for suspect in finding.suspects if suspect.role == "type"), None)
    # A JavaScript program cannot inspect its own heap.
    return None if name == JS_TENSOR else name


def _rank(finding: Finding) -> int:
    """Return the first rank that the finding names, or 0 in a run with a single process."""
    found = _RANK.search(finding.process or "")
    return int(found.group(1)) if found else 0
