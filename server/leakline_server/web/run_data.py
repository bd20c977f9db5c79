"""Everything that is known of one run, in the shapes of the API: what its page and its charts are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakline.analysis.results import Books, ExpectationRow, SteadyCount, StoreFill, TypeGrowth

from ..chart_parts import Axis, Points, add_up
from ..store.accepted_counts import AcceptedCount
from .annotations import NO_CLOCK, Clock

Json = Mapping[str, Any]

# (names, phase or "*", kind or None) -> one Points for each name and phase; a name may end in "*".
ReadSeries = Callable[[Sequence[str], str | None, str | None], Sequence[Points]]


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything a page of a run is made of, in the shapes of the API."""

    run: Json
    verdict: Json | None
    axis: Axis
    read: ReadSeries
    books: Books
    types: Sequence[TypeGrowth]
    stores: Sequence[StoreFill]
    expectations: Sequence[ExpectationRow] = ()
    steady: Sequence[SteadyCount] = ()
    # What stands in the project of the run.
    accepted: Sequence[AcceptedCount] = ()
    events: Sequence[Json] = ()
    large_objects: Sequence[Json] = ()
    holders: Sequence[Json] = ()
    snapshots: Sequence[Json] = ()
    process: str | None = None  # "rank role" of the process whose lines are shown
    incidents: Sequence[Json] = ()
    # {event, created_at in Unix seconds, payload}, the newest first.
    alerts: Sequence[Json] = ()
    census: Json | None = None
    clock: Clock = NO_CLOCK
    # What the address of the page asks for, by parameter.
    asked: Mapping[str, str] = field(default_factory=dict)
    # Private memory of all processes at the end of the generation that the books are shown of as one sum.
    end_bytes: float | None = None

    @property
    def kind(self) -> str | None:
        """Of the snapshots that most lines are drawn of: generation ends; all where there are no generations."""
        return "generation_end" if self.axis.unit == "generation" else None

    def read_ends(self, names: Sequence[str]) -> Sequence[Points]:
        """The lines of these series over such snapshots."""
        return self.read(names, None, self.kind) if names else ()


def process_label(process: Json) -> str:
    """The same for every attempt of one rank, so that its lines join."""
    return f"rank {process['rank']} {process['role']}"


def summed(points: Sequence[Points], names: tuple[str, ...]) -> list[Points]:
    """One line per phase from several series; lines whose first series was not measured are left out."""
    by_phase: dict[str | None, dict[str, Points]] = defaultdict(dict)
    for each in points:
        by_phase[each.phase][each.name] = each
    return [
        add_up([found[name] for name in names if name in found])
        for found in by_phase.values()
        if names[0] in found and any(y is not None for y in found[names[0]].y)
    ]


def last_of(points: Points) -> float | None:
    return next((y for y in reversed(points.y) if y is not None), None)
