"""What the analysis derives from a run, kept for as long as the run stays as it is.

Reading a history takes long for a long run, and every viewer of a page asks for the same. A run changes only with its
revision, so (run, revision) names an answer; what is kept are the answers, never the histories.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from leakline import analysis
from leakline.analysis.history import RunHistory
from leakline.analysis.results import Books, Comparison, ExpectationRow, StoreFill, TypeGrowth

from ..store import history
from ..store.engine import Engine
from .annotations import Clock, clock_of

MAX_RUNS: Final = 32
MAX_COMPARISONS: Final = 16

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
# A run at one of its revisions.
Version = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Derived:
    books: Books
    types: tuple[TypeGrowth, ...]
    stores: tuple[StoreFill, ...]
    expectations: tuple[ExpectationRow, ...]
    clock: Clock


class Derivations:
    """For any thread. Every method raises NoSuchRun."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: _Newest[Version, Derived] = _Newest(MAX_RUNS)
        self._comparisons: _Newest[tuple[Version, Version], Comparison] = _Newest(MAX_COMPARISONS)

    def of(self, run_id: str) -> Derived:
        found = self._runs.get(self._version(run_id))
        if found is None:
            past, revision = history.load_history_at(self._engine, run_id)
            found = self._runs.put((run_id, revision), _derive(past))
        return found

    def compare(self, before: str, after: str) -> Comparison:
        found = self._comparisons.get((self._version(before), self._version(after)))
        if found is None:
            older, older_revision = history.load_history_at(self._engine, before)
            newer, newer_revision = history.load_history_at(self._engine, after)
            key = ((before, older_revision), (after, newer_revision))
            found = self._comparisons.put(key, analysis.compare(older, newer))
        return found

    def _version(self, run_id: str) -> Version:
        return run_id, history.revision(self._engine, run_id)


def _derive(past: RunHistory) -> Derived:
    return Derived(
        analysis.books(past),
        tuple(analysis.type_growth(past)),
        tuple(analysis.store_fill(past)),
        tuple(analysis.expectation_rows(past)),
        clock_of(past),
    )


class _Newest(Generic[Key, Answer]):
    """The answers used last."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: OrderedDict[Key, Answer] = OrderedDict()

    def get(self, key: Key) -> Answer | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Key, answer: Answer) -> Answer:
        with self._lock:
            self._kept[key] = answer
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return answer
