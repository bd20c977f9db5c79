"""What the analysis reads: one run as plain columns, spans of generations, and facts of the entire run.

The server fills it from its store, the offline report from a spool; both give the same columns, so both get the same
verdict. `Spans` holds a million generations in a few hundred numbers.

A run may have thousands of processes, each with events and holders. `Said` and `Holders` compute what concerns the
whole run once: a pass over all of them for each process would take the square of their number.

The names of series of TensorFlow.js are here too. There, resident memory follows the collector and not the program, and
a page in a browser cannot read it at all. So the tensors, which are counted and sized exactly, are the memory of such a
run, and other memory is a channel of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final, TypeVar

from ..snapshot import CYCLIC_GARBAGE, Batch, Event, Holder, RunHeader, Snapshot


@dataclass(frozen=True, slots=True)
class Spans(Collection[int]):
    """``spans``: (first, last) of each, both in it, ascending and with a gap between one and the next."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ascending: Iterable[int]) -> Spans:
        numbers = list(ascending)
        breaks = [(a, b) for a, b in pairwise(numbers) if b > a + 1]
        firsts, lasts = (b for _, b in breaks), (a for a, _ in breaks)
        pairs = zip([*numbers[:1], *firsts], [*lasts, *numbers[-1:]], strict=True)
        return cls(tuple(pairs))

    @property
    def first(self) -> int | None:
        return self.spans[0][0] if self.spans else None

    @property
    def last(self) -> int | None:
        return self.spans[-1][1] if self.spans else None

    def until(self, last: float) -> Spans:
        """Those that are not above this one."""
        found = ((a, int(min(b, last))) for a, b in self.spans if a <= last)
        return Spans(tuple(found))

    def above(self, first: float) -> Spans:
        found = ((a, b) for a, b in self.spans if b > first)
        return Spans(tuple((int(max(a, first + 1)), b) for a, b in found))

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int):
            return False
        at = bisect_right(self.spans, value, key=lambda span: span[0]) - 1
        return at >= 0 and value <= self.spans[at][1]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(a, b + 1) for a, b in self.spans)

    def __len__(self) -> int:
        return sum(b - a + 1 for a, b in self.spans)


NO_SPANS: Final = Spans()


def union(several: Iterable[Spans]) -> Spans:
    first, *more = [each for each in several if each] or [NO_SPANS]
    return _merged(sorted(chain(first.spans, *(each.spans for each in more)))) if more else first


def _merged(ascending: Iterable[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for first, last in ascending:
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return Spans(tuple(found))


T = TypeVar("T")

# The holder of every thread that runs.
_THREADS: Final = "threading._active[*]"


class Said:
    """Results by what was asked and by the very tuples that it was asked of."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, what: str, of: tuple[object, ...], work: Callable[[], T]) -> T:
        """What ``work`` gave when this was asked of the same objects first. It must depend on nothing else."""
        key = (what, *map(id, of))
        if key not in self._found:
            # With what it is of: as long as that is here, nothing else has its id.
            self._found[key] = (of, work())
        found: T = self._found[key][1]
        return found


class Holders:
    """All holders of a run, by the types that they keep."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self._holders = holders

    @cached_property
    def garbage(self) -> Mapping[str, Holder]:
        """type -> the newest holder that says its objects only keep each other."""
        return {name: looks[-1] for name, looks in self.garbage_looks.items()}

    @cached_property
    def garbage_looks(self) -> Mapping[str, Sequence[Holder]]:
        """type -> the holders that say its objects only keep each other, oldest first."""
        found: dict[str, list[Holder]] = {}
        for holder in sorted(self._holders, key=lambda one: one.sequence):
            if holder.path == CYCLIC_GARBAGE:
                found.setdefault(holder.type, []).append(holder)
        return found

    @cached_property
    def garbage_types(self) -> Mapping[str, int]:
        """type -> objects that only each other kept, when last looked; most first."""
        ranked = sorted(self.garbage.values(), key=lambda h: (-h.count, h.type))
        return {holder.type: holder.count for holder in ranked}

    @cached_property
    def newest(self) -> Mapping[str, Mapping[str, int]]:
        """type -> path -> how many objects it held when the type was last looked for."""
        return _newest(self._holders)

    def looks(self, name: str) -> Mapping[int, Mapping[str, int]]:
        """Return the searches for the holders of a type, oldest first: sequence -> path -> objects held."""
        return self._looks.get(name, {})

    @cached_property
    def _looks(self) -> Mapping[str, Mapping[int, Mapping[str, int]]]:
        found: dict[str, dict[int, dict[str, int]]] = {}
        for holder in sorted(self._holders, key=lambda one: one.sequence):
            paths = found.setdefault(holder.type, {}).setdefault(holder.sequence, {})
            paths[holder.path] = max(paths.get(holder.path, holder.count), holder.count)
        return found

    @cached_property
    def newest_kept(self) -> Mapping[str, Mapping[str, int]]:
        """The same without garbage."""
        return _newest([h for h in self._holders if h.path != CYCLIC_GARBAGE])

    @cached_property
    def newest_unsized(self) -> Mapping[str, Mapping[str, int]]:
        """The same of searches that say nothing of the size of one more, as those for the largest object of a type."""
        return _newest([h for h in self._holders if h.bytes_each is None])

    @cached_property
    def best(self) -> Mapping[str, str]:
        """type -> the path that held most of its objects when last looked for."""
        return {name: most_of(paths) for name, paths in self.newest.items()}

    @cached_property
    def bytes_each(self) -> Mapping[str, int]:
        newest: dict[str, tuple[int, int]] = {}
        # What a thread works on are locals of its call: no size of the thread object has them in it.
        threads = {holder.type for holder in self._holders if holder.path == _THREADS}
        for holder in self._holders:
            if holder.bytes_each is not None and holder.type not in threads:
                row = (holder.sequence, holder.bytes_each)
                newest[holder.type] = max(newest.get(holder.type, row), row)
        return {name: each for name, (_, each) in newest.items()}


def most_of(paths: Mapping[str, int]) -> str:
    return max(paths, key=lambda path: (paths[path], path))


def _newest(holders: Sequence[Holder]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    at: dict[str, int] = {}
    for holder in holders:
        paths = found.setdefault(holder.type, {})
        if holder.sequence > at.get(holder.type, holder.sequence - 1):
            paths.clear()
            at[holder.type] = holder.sequence
        if holder.sequence == at[holder.type]:
            paths[holder.path] = max(paths.get(holder.path, holder.count), holder.count)
    return found


def _of_kind(events: Sequence[Event]) -> Mapping[str, Sequence[Event]]:
    """The events by their kind, in their order."""
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.kind, []).append(event)
    return found


def by_instance(processes: Sequence[ProcessHistory]) -> Mapping[str, Sequence[ProcessHistory]]:
    found: dict[str, list[ProcessHistory]] = {}
    for process in processes:
        found.setdefault(process.instance, []).append(process)
    return found


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
    # What it is counted by where it declares no generations; 0: not by time (`generation_axis.py`).
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
        return self.said.once("events", (self.events,), lambda: _of_kind(self.events)).get(kind, ())

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
    from .generation_axis import in_its_unit

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


TENSORS: Final = "tfjs.tensors"
TENSOR_BYTES: Final = "tfjs.bytes"
HEAP_BYTES: Final = "js.heap_bytes"
# In Node: buffers outside the heap.
EXTERNAL_BYTES: Final = "js.external_bytes"
RESIDENT_BYTES: Final = "process.rss_bytes"
# Worked out: what V8 keeps of heap and buffers outside the tensors.
KEPT: Final = "js.kept"
# The name of their tensors, as a program writes it.
TENSOR: Final = "tf.Tensor"
# Of the environment, and of a mark where it has changed since: whether TensorFlow.js itself says that its bytes may be
# freed already.
UNRELIABLE: Final = "tfjs_memory_unreliable"


def is_javascript(series: Mapping[str, T]) -> bool:
    return TENSOR_BYTES in series


def is_page(series: Mapping[str, T]) -> bool:
    """Whether nobody reads the memory of the process, as in a browser."""
    return is_javascript(series) and RESIDENT_BYTES not in series
