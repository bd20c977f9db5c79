"""What the analysis reads: the history of one run, as plain columns. Pure data, no behaviour beyond building it.

The server fills it from its store, the offline report from a spool; both give the same columns, so
both get the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..snapshot import Batch, Event, Holder, RunHeader, Snapshot
from .generation_ranges import NO_SPANS, Spans
from .run_facts import Holders, Said, by_instance, of_kind

Value = int | float | None
# What every snapshot of a process has.
COLUMNS: Final = ("sequence", "time", "monotonic", "generation", "phase", "label", "kind")
# No count and no size is larger.
LARGEST: Final = 2.0**63
# A program that declares no generations is counted by the minute.
MINUTE_SECONDS: Final = 60.0


def number_of(value: object) -> int | float | None:
    """A plain number from the wire, within what can be counted; a whole one stays whole."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Also false for what is no number, and for whole ones too long to be made a float.
    return value if -LARGEST <= value <= LARGEST else None


def amount_of(value: object) -> int | float | None:
    """The same where it is not below zero: bytes, counts."""
    number = number_of(value)
    return number if number is not None and number >= 0 else None


@dataclass(frozen=True, slots=True)
class Expectation:
    """A declared count of live instances. ``after`` limits it to the end of that phase.

    ``accepted``: not the program declares it, a person accepted what runs of its project had kept to.
    ``baseline``: no more than there were by the end of the first generation; ``high`` is that once it is read.
    """

    type: str
    low: int
    high: int
    after: str | None = None
    accepted: bool = False
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is not read of a very long process: these generations, and the phases that ran in them."""

    generations: Spans = NO_SPANS
    phases: frozenset[str] = frozenset()


NOTHING_LEFT_OUT: Final = LeftOut()


@dataclass(frozen=True, slots=True)
class ProcessHistory:
    """All snapshots of one process instance in sequence order, but for what is left out.

    Every list has one entry per snapshot; ``series`` values are None where nothing was measured.
    """

    instance: str
    rank: int
    role: str
    attempt: int
    sequence: Sequence[int]
    time: Sequence[float]
    monotonic: Sequence[float]
    generation: Sequence[int | None]
    phase: Sequence[str | None]
    label: Sequence[str]
    kind: Sequence[str]
    series: Mapping[str, Sequence[Value]]
    left_out: LeftOut = NOTHING_LEFT_OUT
    # What it is counted by where it declares no generations; 0: not by time (`generation_unit.py`).
    unit_seconds: float = MINUTE_SECONDS

    def __len__(self) -> int:
        return len(self.sequence)

    def picked(
        self,
        pick: Callable[[Sequence[Any]], Sequence[Any]],
        series: Mapping[str, Sequence[Value]] | None = None,
    ) -> ProcessHistory:
        """With what ``pick`` leaves of every column, and of these series instead of all."""
        columns: dict[str, Any] = {name: pick(getattr(self, name)) for name in COLUMNS}
        wanted = self.series if series is None else series
        return replace(
            self, **columns, series={name: pick(column) for name, column in wanted.items()}
        )


@dataclass(frozen=True, slots=True)
class RunHistory:
    """One run. ``expectations`` and ``capacities`` come from its declaring events; a server adds accepted counts.

    ``capacities``: tracked container name -> items it may hold, or None when no bound was declared.
    ``limit_bytes`` overrides the limit found in the series (``cgroup.limit_bytes``, ``system.total_bytes``).
    """

    run: str
    unit: str = "generation"
    total: int | None = None
    phases: tuple[str, ...] = ()
    processes: tuple[ProcessHistory, ...] = ()
    events: tuple[Event, ...] = ()
    holders: tuple[Holder, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    capacities: Mapping[str, int | None] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    limit_bytes: int | None = None
    ended: bool = False
    # It was counted by seconds for its first minutes, and is by minutes now.
    began_by_seconds: bool = False
    # Those that were not read, of a run of very many.
    processes_left_out: int = 0
    # Of what is said once and asked for by each process; a copy with other processes has it too.
    said: Said = field(default_factory=Said, compare=False, repr=False)

    @property
    def holders_by_type(self) -> Holders:
        return self.said.once("holders", (self.holders,), lambda: Holders(self.holders))

    @property
    def ranks_until(self) -> float | None:
        """The time up to which every rank has reported; None for a single rank."""
        of = self.processes
        return self.said.once("ranks", (of,), lambda: _reported_until(of))

    def events_of(self, kind: str) -> Sequence[Event]:
        """In their order."""
        return self.said.once("events", (self.events,), lambda: of_kind(self.events)).get(kind, ())

    def of_instance(self, instance: str) -> Sequence[ProcessHistory]:
        of = self.processes
        return self.said.once("processes", (of,), lambda: by_instance(of)).get(instance, ())


def _reported_until(processes: Sequence[ProcessHistory]) -> float | None:
    newest: dict[int, float] = {}
    for process in processes:
        if len(process):
            newest[process.rank] = max(newest.get(process.rank, 0.0), process.time[-1])
    return min(newest.values()) if len(newest) > 1 else None


def declared_expectations(events: Iterable[Event]) -> tuple[Expectation, ...]:
    """The newest declaration for each (type, after)."""
    found: dict[tuple[str, str | None], Expectation] = {}
    for event in events:
        if event.kind == "expect":
            after = event.data.get("after")
            found[event.name, after] = Expectation(
                event.name, int(event.data["low"]), int(event.data["high"]), after,
                baseline=event.data.get("baseline") is True,
            )  # fmt: skip
    return tuple(found.values())


def declared_capacities(events: Iterable[Event]) -> dict[str, int | None]:
    return {event.name: event.data.get("capacity") for event in events if event.kind == "track"}


def history_from_batches(
    header: RunHeader, batches: Iterable[Batch], *, ended: bool = False
) -> RunHistory:
    """Build the history from batches in any order; repeated snapshots count once."""
    by_instance: dict[str, dict[int, Snapshot]] = {}
    identity = {}
    for batch in batches:
        identity[batch.process.instance] = batch.process
        rows = by_instance.setdefault(batch.process.instance, {})
        for snapshot in batch.snapshots:
            rows.setdefault(snapshot.sequence, snapshot)
    processes: list[ProcessHistory] = []
    events: list[Event] = []
    holders: list[Holder] = []
    for instance, rows in by_instance.items():
        snapshots = [rows[sequence] for sequence in sorted(rows)]
        names = dict.fromkeys(name for s in snapshots for name in s.samples)
        who = identity[instance]
        columns: dict[str, Any] = {
            column: [getattr(s, column) for s in snapshots] for column in COLUMNS
        }
        series = {name: [s.samples.get(name) for s in snapshots] for name in names}
        processes.append(
            ProcessHistory(
                instance, who.rank, who.role, who.attempt, **columns, series=series
            )
        )  # fmt: skip
        for s in snapshots:
            events.extend(s.events)
            holders.extend(s.holders)
    events.sort(key=lambda event: event.time)
    from .generation_unit import in_its_unit

    history = RunHistory(
        run=header.id,
        unit=header.unit,
        total=header.total,
        phases=header.phases,
        processes=tuple(processes),
        events=tuple(events),
        holders=tuple(holders),
        expectations=declared_expectations(events),
        capacities=declared_capacities(events),
        environment=header.environment,
        ended=ended,
    )
    return in_its_unit(history)
