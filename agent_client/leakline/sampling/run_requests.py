"""Requests to a run from users and the server. Any thread may add requests; the training thread serves them.

The response to a batch may contain requests in these forms: ``{"id": str, "kind": "find_holders", "type": str}``,
``{"id": str, "kind": "census"}`` or ``{"id": str, "kind": "cleanup"}``, which runs the program's registered cleanups. A
request with ``"asked_by": "person"`` may exceed the overhead budget, but never the longest pause. The outcome is sent
as an event of kind ``mark`` with a name like ``find_holders pkg.Class: done`` and the data ``{"request": id, "outcome":
str}``. Holders and censuses are sent like the results of any other scan.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

KINDS: Final = ("find_holders", "census", "cleanup")
WAITING_LIMIT: Final = 16
# Number of request IDs to remember: the server repeats a request in every response until it receives the outcome.
KNOWN_LIMIT: Final = 256
TEXT_LIMIT: Final = 256
# A request is refused after it has been put back this many times for lack of budget.
PATIENCE: Final = 256

DONE: Final = "done"
NOTHING_FOUND: Final = "nothing found"
REFUSED: Final = "refused"
QUIET: Final = f"{REFUSED}: the run is quiet"
NO_ROOM: Final = "the remaining overhead budget is too small"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a scan or a cleanup.

    ``type`` is a class's full name, only for ``find_holders``. ``id`` is empty for the program's own requests.
    """

    kind: str
    type: str = ""
    id: str = ""
    by_person: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {self.type}".rstrip()


@dataclass(frozen=True, slots=True)
class Answer:
    request: Request
    outcome: str

    @property
    def text(self) -> str:
        return f"{self.request.name}: {self.outcome}"

    @property
    def data(self) -> dict[str, str]:
        named = {"request": self.request.id} if self.request.id else {}
        return {**named, "outcome": self.outcome}


class RequestBox:
    """Queues of requests.

    If ``refuse`` is given, every request from the server gets this text as its outcome and is not served.
    """

    def __init__(self, *, refuse: str | None = None) -> None:
        self._refuse = refuse
        # Reentrant, because a signal handler may end the run in the middle of a call.
        self._lock = threading.RLock()
        self.waiting: deque[tuple[Request, int]] = deque()
        # Cleanups have a queue of their own, because they run a function of the program instead of
        # a heap scan.
        self.cleanups: list[Request] = []
        self.answers: list[Answer] = []
        self._known: dict[str, None] = {}
        # Number of requests that were malformed, of an unknown kind, or beyond the limit.
        self.ignored = 0

    def put(self, wishes: object) -> None:
        """Add the server's requests. Malformed entries are ignored and counted."""
        if not isinstance(wishes, list):
            return
        for wish in wishes[:KNOWN_LIMIT]:
            request = _checked(wish)
            with self._lock:
                if request is None:
                    self.ignored += 1
                elif request.id not in self._known:
                    self._take_in(request)

    def ask(self, kind: str, type_name: str = "") -> None:
        """Add a request from the program itself, to be served at its next phase end."""
        request = Request(kind, type_name, by_person=True)
        with self._lock:
            if any(request == waiting for waiting, _ in self.waiting):
                return
            self._add(request)

    def take(self) -> list[tuple[Request, int]]:
        """Remove all waiting requests except cleanups, and return each with the number of times it was put back."""
        with self._lock:
            taken, self.waiting = list(self.waiting), deque()
        return taken

    def put_back(self, request: Request, times: int) -> None:
        """Queue a request again for lack of budget. After PATIENCE times, refuse it."""
        with self._lock:
            if times < PATIENCE:
                self.waiting.append((request, times + 1))
            else:
                self.answers.append(Answer(request, f"{REFUSED}: {NO_ROOM}"))

    def take_cleanups(self) -> list[Request]:
        """Remove and return all waiting cleanup requests."""
        if not self.cleanups:
            return []
        with self._lock:
            taken, self.cleanups = self.cleanups, []
        return taken

    def answer(self, request: Request, outcome: str) -> None:
        """Record the outcome of a request that another module has served."""
        with self._lock:
            self.answers.append(Answer(request, outcome))

    def take_answers(self) -> tuple[Answer, ...]:
        """Remove and return the recorded answers."""
        with self._lock:
            answers, self.answers = self.answers, []
        return tuple(answers)

    def _take_in(self, request: Request) -> None:
        self._known[request.id] = None
        while len(self._known) > KNOWN_LIMIT:
            del self._known[next(iter(self._known))]
        if self._refuse is not None:
            self.answers.append(Answer(request, self._refuse))
        else:
            self._add(request)

    def _add(self, request: Request) -> None:
        if request.kind == "cleanup" and len(self.cleanups) < WAITING_LIMIT:
            self.cleanups.append(request)
        elif request.kind != "cleanup" and len(self.waiting) < WAITING_LIMIT:
            self.waiting.append((request, 0))
        else:
            self.ignored += 1


def _checked(wish: Any) -> Request | None:
    if not isinstance(wish, dict):
        return None
    kind, number, name = wish.get("kind"), wish.get("id"), wish.get("type", "")
    if kind not in KINDS or not (_is_text(number) and number):
        return None
    if kind == "find_holders" and not (_is_text(name) and name):
        return None
    by_person = wish.get("asked_by") == "person"
    return Request(kind, name if kind == "find_holders" else "", number, by_person)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_LIMIT and value.isprintable()
