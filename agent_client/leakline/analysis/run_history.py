"""The input of the analysis: one run as plain columns, ranges of generations, and facts about the entire run.

The server reads a run from its database, the offline report from a spool; both produce the same columns, and
therefore the same verdict. `Spans` stores a million generations in a few hundred numbers.

A run may have thousands of processes, each with events and holders. `Said` and `Holders` compute facts about the
entire run once: a pass over all processes for each process would take quadratic time.

The series names of TensorFlow.js are defined here too. In TensorFlow.js runs, resident memory follows the garbage
collector rather than the program, and a page in a browser cannot read resident memory at all. The tensors, whose
number and size are exact, therefore count as the memory of the run, and all other memory is a separate channel.
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
    """A set of integers as ascending (first, last) ranges, which include both ends and have gaps between them."""

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
        """Return the numbers up to and including ``last``."""
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

# The holder path of every running thread.
_THREADS: Final = "threading._active[*]"


class Said:
    """A cache of results, keyed by a name and by the identity of the inputs."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, what: str, of: tuple[object, ...], work: Callable[[], T]) -> T:
        """Return the result of ``work``, computed once. ``work`` must depend only on the objects in ``of``."""
        key = (what, *map(id, of))
        if key not in self._found:
            # Keep the objects alive with the result, so that no other object can have their ids.
            self._found[key] = (of, work())
        found: T = self._found[key][1]
        return found


class Holders:
    """All holders of a run, by type of the objects that they keep alive."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self._holders = holders

    @cached_property
    def garbage(self) -> Mapping[str, Holder]:
        """The newest record of cyclic garbage (objects that refer only to each other) by type."""
        return {name: looks[-1] for name, looks in self.garbage_looks.items()}

    @cached_property
    def garbage_looks(self) -> Mapping[str, Sequence[Holder]]:
        """All records of cyclic garbage by type, oldest first."""
        found: dict[str, list[Holder]] = {}
        for holder in sorted(self._holders, key=lambda one: one.sequence):
            if holder.path == CYCLIC_GARBAGE:
                found.setdefault(holder.type, []).append(holder)
        return found

    @cached_property
    def garbage_types(self) -> Mapping[str, int]:
        """The number of objects in cyclic garbage at the newest search, by type in descending order."""
        ranked = sorted(self.garbage.values(), key=lambda h: (-h.count, h.type))
        return {holder.type: holder.count for holder in ranked}

    @cached_property
    def newest(self) -> Mapping[str, Mapping[str, int]]:
        """The number of objects by type and path, at the newest search for the type."""
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
        """Like `newest`, but without cyclic garbage."""
        return _newest([h for h in self._holders if h.path != CYCLIC_GARBAGE])

    @cached_property
    def newest_unsized(self) -> Mapping[str, Mapping[str, int]]:
        """Like `newest`, but only from searches that record no size per object.

        For example, a search for the largest object of a type records no such size.
        """
        return _newest([h for h in self._holders if h.bytes_each is None])

    @cached_property
    def best(self) -> Mapping[str, str]:
        """The path that held the most objects of each type at the newest search."""
        return {name: most_of(paths) for name, paths in self.newest.items()}

    @cached_property
    def bytes_each(self) -> Mapping[str, int]:
        newest: dict[str, tuple[int, int]] = {}
        # A thread's data is in the local variables of its call, which are not included in the size of a thread object.
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
    """Group events by kind, in their original order."""
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
# The columns that every snapshot of a process has.
COLUMNS: Final = ("sequence", "time", "monotonic", "generation", "phase", "label", "kind")
# Upper bound of valid counts and sizes.
LARGEST: Final = 2.0**63
# A program that declares no generations is counted in minutes.
MINUTE_SECONDS: Final = 60.0


def number_of(value: object) -> int | float | None:
    """Return a value from the wire if it is a number within range, otherwise None.

    Integers stay integers.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # The comparison is also false for NaN, and for integers that are too large for a float.
    return value if -LARGEST <= value <= LARGEST else None


def amount_of(value: object) -> int | float | None:
    """Return a number of bytes or objects like `number_of`, but None if it is negative."""
    number = number_of(value)
    return number if number is not None and number >= 0 else None


@dataclass(frozen=True, slots=True)
class Expectation:
    """A declared count of live instances. ``after`` limits the count to the end of one phase.

    ``accepted``: a person accepted a count that was stable in runs of the project; the program does not declare it.
    ``baseline``: the limit is the highest count in the first generation; ``high`` is set to this count once it has
    been read.
    """

    type: str
    low: int
    high: int
    after: str | None = None
    accepted: bool = False
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The part of a very long process that is not read: generations and the phases of these generations."""

    generations: Spans = NO_SPANS
    phases: frozenset[str] = frozenset()


NOTHING_LEFT_OUT: Final = LeftOut()


@dataclass(frozen=True, slots=True)
class ProcessHistory:
    """All snapshots of one process instance in sequence order, except snapshots that are left out.

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
    # Seconds per generation if the process declares none; 0 if it is not counted in time (`generation_axis.py`).
    unit_seconds: float = MINUTE_SECONDS

    def __len__(self) -> int:
        return len(self.sequence)

    def picked(
        self,
        pick: Callable[[Sequence[Any]], Sequence[Any]],
        series: Mapping[str, Sequence[Value]] | None = None,
    ) -> ProcessHistory:
        """Return a copy with ``pick`` applied to every column, and with ``series`` instead of all series if given."""
        columns: dict[str, Any] = {name: pick(getattr(self, name)) for name in COLUMNS}
        wanted = self.series if series is None else series
        return replace(
            self, **columns, series={name: pick(column) for name, column in wanted.items()}
        )


@dataclass(frozen=True, slots=True)
class RunHistory:
    """One run. ``expectations`` and ``capacities`` come from its events; a server adds accepted counts.

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
    # The run was counted in seconds for its first minutes, and is counted in minutes now.
    began_by_seconds: bool = False
    # Number of processes that were not read, because the run has too many.
    processes_left_out: int = 0
    # Cache of facts about the run that each process needs; copies with other processes share it.
    said: Said = field(default_factory=Said, compare=False, repr=False)

    @property
    def holders_by_type(self) -> Holders:
        return self.said.once("holders", (self.holders,), lambda: Holders(self.holders))

    @property
    def ranks_until(self) -> float | None:
        """The time up to which every rank has reported, or None if there is only one rank."""
        of = self.processes
        return self.said.once("ranks", (of,), lambda: _reported_until(of))

    def events_of(self, kind: str) -> Sequence[Event]:
        """Return the events of one kind, in their original order."""
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
    """Return the newest declared expectation for each type and phase (``after``)."""
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
# Buffers outside the heap, reported by Node only.
EXTERNAL_BYTES: Final = "js.external_bytes"
RESIDENT_BYTES: Final = "process.rss_bytes"
# A computed series: the heap and buffers that V8 keeps, without the tensors.
KEPT: Final = "js.kept"
# The name of the tensor class in JavaScript programs.
TENSOR: Final = "tf.Tensor"
# Key in the environment, and in a mark event if the value changes later: whether TensorFlow.js reports that some
# of its bytes may already have been freed.
UNRELIABLE: Final = "tfjs_memory_unreliable"


def is_javascript(series: Mapping[str, T]) -> bool:
    return TENSOR_BYTES in series


def is_page(series: Mapping[str, T]) -> bool:
    """Return True if the memory of the process is never read, as in a browser."""
    return is_javascript(series) and RESIDENT_BYTES not in series
