"""The model of a declared limit, and the reader of the events that declare it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..history import RunHistory, amount_of, number_of
from ..results import AssertionOrigin, AssertionScope, AssertionState
from ..series import lies_within

# The metric of a budget: bytes that its scope keeps.
KEPT: Final = "kept_bytes"
# The names that stand for the entire run; a phase of the same name has precedence.
RUN: Final = "run"
GENERATION: Final = "generation"
# The number of events is up to the sender.
_MAX_OF_AN_ORIGIN: Final = 40


@dataclass(frozen=True, slots=True)
class Assertion:
    """A metric and its bounds, in a range of generations.

    ``low`` and ``high`` are allowed; from ``leak`` on the amount is a leak. ``first`` is None where all generations
    count, ``last`` where the range has no end. ``name``: the series of a band, the phase of a budget.
    """

    origin: AssertionOrigin
    name: str
    metric: str
    scope: AssertionScope | None = None
    low: float | None = None
    high: float | None = None
    leak: float | None = None
    first: int | None = None
    last: int | None = None

    def off_by(self, value: float) -> float:
        """Return 0 within the bounds, the distance below ``low`` as a negative number, or that above ``high``."""
        if self.low is not None and value < self.low:
            return value - self.low
        if self.high is not None and value > self.high:
            return value - self.high
        return 0.0

    def state_of(self, value: float) -> AssertionState:
        if self.leak is not None and value >= self.leak:
            return "broken"
        if self.off_by(value) == 0:
            return "holds"
        return "above_normal" if self.origin == "budget" else "broken"

    def covers(self, generation: int) -> bool:
        begun = self.first is None or generation >= self.first
        return begun and (self.last is None or generation <= self.last)


def declared_assertions(history: RunHistory) -> tuple[Assertion, ...]:
    """Return bands by series and generation, then budgets as declared, each with its newest bounds.

    Events that declare no valid limit are ignored.
    """
    if not (history.events_of("band") or history.events_of("budget")):
        return ()
    of = (history.events, history.processes, history.phases, history.unit)
    return history.said.once("assertions", of, lambda: (*_bands(history), *_budgets(history)))


def declared_budgets(history: RunHistory) -> tuple[Assertion, ...]:
    return tuple(each for each in declared_assertions(history) if each.origin == "budget")


def _bands(history: RunHistory) -> list[Assertion]:
    found: dict[tuple[str, int | None, int | None], Assertion] = {}
    for event in history.events_of("band"):
        band = _band(event.name, event.data)
        if band is not None:
            found[band.name, band.first, band.last] = band
    newest = list(found.values())[-_MAX_OF_AN_ORIGIN:]
    return sorted(newest, key=lambda b: (b.name, b.first, b.last or math.inf))


def _band(series: str, data: Mapping[str, Any]) -> Assertion | None:
    first, last = _whole(data.get("first")), _whole(data.get("last"))
    low, high = number_of(data.get("low_bytes")), number_of(data.get("high_bytes"))
    if first is None or (low is None and high is None):
        return None
    if last is None and data.get("last") is not None:
        return None
    return Assertion("band", series, series, None, low, high, None, first, last)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and number_of(value) is not None else None


def _budgets(history: RunHistory) -> list[Assertion]:
    found: dict[str, Assertion] = {}
    for event in history.events_of("budget"):
        normal, leak = (amount_of(event.data.get(f"{end}_bytes")) for end in ("normal", "leak"))
        if normal is not None or leak is not None:
            scope = _scope(history, event.name)
            found[event.name] = Assertion("budget", event.name, KEPT, scope, None, normal, leak)
    return list(found.values())[-_MAX_OF_AN_ORIGIN:]


def _scope(history: RunHistory, name: str) -> AssertionScope:
    if name not in (RUN, GENERATION, history.unit) or _is_phase(history, name):
        return "phase"
    return "run" if name == RUN else "generation"


def _is_phase(history: RunHistory, name: str) -> bool:
    return any(lies_within(path, name) for path in history.phases) or has_run(history, name)


def has_run(history: RunHistory, phase: str) -> bool:
    """Return True if a snapshot of any process was taken in the phase or within it."""
    return any(
        path and lies_within(path, phase)
        for process in history.processes
        for path in {*process.phase, *process.left_out.phases}
    )
