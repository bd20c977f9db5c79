"""Facts about a run for all moments of a timeline: declarations, count series, holders, and growth of counts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import Final, Literal

from ..snapshot import CYCLIC_GARBAGE, Holder
from ..text_format import short_name
from .assertions.expected_counts import (
    COLLECTIONS,
    Bounded,
    Readings,
    Violation,
    applicable_readings,
    bounded_containers,
    find_violation,
    tracked_names,
    types_of,
)
from .run_history import TENSOR as JS_TENSOR
from .run_history import TENSORS as JS_TENSORS
from .run_history import Holders, RunHistory, most_of
from .statistics.count_evidence import (
    LOOK_BACK,
    WINDOW,
    CountGrowth,
    count_growth,
    grow_larger,
    may_grow,
)
from .timeline import Timeline

TENSOR: Final = "torch.Tensor"
ARRAY: Final = "numpy.ndarray"
FIGURE: Final = "matplotlib.figure.Figure"
# Garbage explains the growth of a type only if it is at least this share of what the type gained.
_MOST_OF_A_RISE: Final = 0.5
# Reported garbage counts only if it shrinks by this share within this many full collections. One collection is not
# enough, because a reading in the middle of a collection still counts what it frees.
_FREED: Final = 0.5
_COLLECTIONS_PASSED: Final = 2
# After this many generations without a reading, the growth of a count is stale unless memory still rises at no
# less than this share of its earlier rate.
_STALE: Final = 4
_GOES_ON: Final = 0.25
# Prefixes of series that come only from a client inside the program, or from a log of its objects.
_FROM_INSIDE: Final = (
    "type.", "python.", "phase.", "container.", "tracked.", "tensors.", "arrays.", "figures.", "js.", "tfjs.",
)  # fmt: skip
# Key of the growths cached in `Timeline.known`.
GROWTHS: Final = "growths"
# A path may be the culprit if it holds this share of what the best path holds, or of what the type gained.
_AS_MANY: Final = 0.3
# Minimum number of readings of a container's length to decide whether it grows.
_MIN_LENGTHS: Final = 3
# Number of readings of a type's count and bytes that are compared to decide whether its objects grow larger.
_SIZES_COMPARED: Final = 3


class Facts:
    """The declarations and holders of a run, and facts derived from them; shared by all moments of a timeline."""

    def __init__(
        self, history: RunHistory, timeline: Timeline, limit_bytes: float | None = None
    ) -> None:
        self.history = history
        self.limit_bytes = limit_bytes
        self.timeline = timeline
        self._counts_of_looks: dict[str, list[float | None]] = {}
        self.holders = self._holders(history.holders_by_type)
        self.bytes_each = history.holders_by_type.bytes_each
        self.watched: frozenset[str] = history.said.once(
            "watched", (history.events, history.expectations), lambda: _watched(history)
        )
        self.readings: tuple[Readings, ...] = applicable_readings(timeline, history.expectations)

    def _growing_containers(self) -> list[str]:
        growths = self.growths(len(self.timeline))
        return [
            name
            for series, name, role in self.count_series
            if role == "container" and series in growths and self.store_of(name) is None
        ]

    def _holders(self, found: Holders) -> Mapping[str, str]:
        """Map each type to its best holder: the path that holds the most objects or leads into a growing container.

        Garbage is ignored if it is a small part of the growth, since a few objects of any class may wait for the
        collector, or if full collections did not free it. Paths that hold no more objects than before are ignored
        as well.
        """
        passing = {name for name, holder in found.garbage.items() if self._is_passing(holder)}
        growing = self._growing_containers() if found.newest else []
        best: dict[str, str] = {}
        for name, paths in found.newest.items():
            lasting = found.newest_kept.get(name, {}) if name in passing else paths
            if self._grow_larger(name):
                lasting = self._largest(found, name, lasting)
            known = [path for path in lasting if self._holds_more(found, name, path, growing)]
            if known:
                best[name] = _best_of({path: lasting[path] for path in known}, growing)
        return best

    def _holds_more(self, found: Holders, name: str, path: str, growing: Sequence[str]) -> bool:
        """Return True if this path holds more and more objects of the type, or if that is unknown.

        The length of the container that holds the objects is the best evidence. Without this length, the path must
        hold a substantial share of the type's growth between two searches, or up to the only search, because a few
        short-lived objects are held at any moment. If several processes count the type, their searches are mixed
        and prove nothing. Objects that grow larger are exempt: neither their number nor the length of their
        container rises.
        """
        if path == CYCLIC_GARBAGE or any(leads_into(path, container) for container in growing):
            return True
        if self._grow_larger(name):
            return True
        container, item, _ = path.rpartition("[*]")
        series = f"container.{container}.length"
        if item and container and series in self.timeline.series:
            lengths = [length for length in self.timeline.series[series] if length is not None]
            if len(lengths) >= _MIN_LENGTHS and self.store_of(container) is None:
                return lengths[-1] > lengths[0]
        if name in _counted_by_several(self.history):
            return True
        looks = found.looks(name)
        if name not in self._counts_of_looks:
            self._counts_of_looks[name] = self._counts_at(name, list(looks))
        counts = self._counts_of_looks[name]
        first, last = counts[0], counts[-1]
        held = [looks[sequence].get(path, 0) for sequence in looks]
        if first is None or last is None:
            return True
        if len(looks) > 1 and last > first:
            return held[-1] - held[0] >= _AS_MANY * (last - first)
        least = self._least_count(name)
        return held[-1] >= _AS_MANY * (last - (last if least is None else least))

    def _counts_at(self, name: str, sequences: Sequence[int]) -> list[float | None]:
        """Return the newest count of a type at each of these snapshots of the timeline's process, oldest first."""
        process = next(iter(self.history.of_instance(self.timeline.instance)), None)
        if process is None:
            return [None] * len(sequences)
        counts = process.series.get(f"type.{name}.count", ())
        found: list[float | None] = []
        newest: float | None = None
        seen = 0
        for sequence in sequences:
            end = min(bisect_right(process.sequence, sequence), len(counts))
            rows = range(end - 1, seen - 1, -1)
            newest = next((counts[row] for row in rows if counts[row] is not None), newest)
            seen = max(seen, end)
            found.append(newest)
        return found

    def _largest(self, found: Holders, name: str, paths: Mapping[str, int]) -> Mapping[str, int]:
        """Return the paths to the largest object of a type whose objects grow larger.

        Without such a search, return the paths to a sample of all objects, if the sample represents most of their
        bytes.
        """
        counted = self.timeline.series.get(f"type.{name}.count", ())
        count = next((n for n in reversed(counted) if n is not None), 0)
        sampled = count * found.bytes_each.get(name, 0) >= _MOST_OF_A_RISE * self._sizes(name)[0][1]
        return found.newest_unsized.get(name, paths if sampled else {})

    def _grow_larger(self, name: str) -> bool:
        """Return True if the bytes of a type rose at each of the last readings, while its count hardly rose."""
        steps = [*pairwise(self._sizes(name))]
        return len(steps) == _SIZES_COMPARED - 1 and all(
            now[1] > before[1] and grow_larger(before, now) for now, before in steps
        )

    def _sizes(self, name: str) -> list[tuple[float, float]]:
        """Return (count, bytes) at the last readings of a type's bytes, newest first."""
        counted = self.timeline.series.get(f"type.{name}.count", ())
        sizes = self.timeline.series.get(f"type.{name}.bytes", ())
        rows = islice(
            (i for i in reversed(range(len(sizes))) if sizes[i] is not None), _SIZES_COMPARED
        )
        found = []
        for row in rows:
            counts = (counted[i] for i in range(min(row, len(counted) - 1), -1, -1))
            count = next((n for n in counts if n is not None), None)
            size = sizes[row]
            if count is not None and size is not None:
                found.append((float(count), float(size)))
        return found

    def _least_count(self, name: str) -> float | None:
        counts = self.timeline.series.get(f"type.{name}.count", ())
        return min((count for count in counts if count is not None), default=None)

    def _is_passing(self, holder: Holder) -> bool:
        process = next(iter(self.history.of_instance(self.timeline.instance)), None)
        if process is None:
            return False
        end = bisect_right(process.sequence, holder.sequence)
        counts = process.series.get(f"type.{holder.type}.count", ())
        known = [count for count in counts[:end] if count is not None]
        if not known:
            return False
        collections = process.series.get(COLLECTIONS, ())
        # A search that ends early counts only part of the garbage. If nothing was collected since an earlier
        # search, there is at least as much garbage as that search found.
        held = max(
            one.count
            for one in self.history.holders_by_type.garbage_looks[holder.type]
            if not _risen(
                collections[max(0, bisect_right(process.sequence, one.sequence) - 1) : end]
            )
        )
        if held < _MOST_OF_A_RISE * (known[-1] - min(known)):
            return True
        later = [count for count in counts[end:] if count is not None]
        passed = _risen(collections[max(0, end - 1) :]) >= _COLLECTIONS_PASSED
        return bool(later) and passed and min(later) > known[-1] - _FREED * held

    @cached_property
    def bounded(self) -> tuple[Bounded, ...]:
        return bounded_containers(self.timeline, self.history.capacities, self.limit_bytes)

    @cached_property
    def stores(self) -> Mapping[str, Bounded]:
        """Container path -> bounded container whose items it keeps.

        Containers of a declaration are recognized by equal lengths or names.
        """
        found = {store.name: store for store in self.bounded if not store.declared}
        declared = [store for store in self.bounded if store.declared]
        for series in self.timeline.series:
            if series.startswith("container.") and series.endswith(".length"):
                store = next((b for b in declared if self._is_store(series, b)), None)
                if store is not None:
                    found[series[len("container.") : -len(".length")]] = store
        names = {store.name: store for store in declared}
        for paths in self.history.holders_by_type.newest.values() if names else ():
            for path in paths:
                # A container that was never seen to grow has no lengths to compare.
                outer = path.partition("[")[0]
                store = names.get(short_name(outer))
                if store is not None and f"container.{outer}.length" not in self.timeline.series:
                    found[outer] = store
        return found

    def store_of(self, path: str) -> Bounded | None:
        """Return the declared store that this path leads into, or None."""
        into = (store for name, store in self.stores.items() if leads_into(path, name))
        return next(into, None)

    @cached_property
    def bounded_bytes(self) -> list[float]:
        """Bytes of all bounded containers per generation."""
        return list(map(sum, zip(*(b.gained for b in self.bounded if b.gained), strict=True)))

    @cached_property
    def from_outside(self) -> bool:
        """True if only metrics of the process were read, and no object was ever counted."""
        return not any(name.startswith(_FROM_INSIDE) for name in self.timeline.series)

    @cached_property
    def count_series(self) -> tuple[tuple[str, str, Literal["type", "container"]], ...]:
        """(series, name, role) of every count that can be evidence of a leak."""
        timeline = self.timeline
        types = types_of(timeline)
        found: list[tuple[str, str, Literal["type", "container"]]] = []
        if timeline.has("figures.open"):
            # The number of figures open in pyplot is exact and read often, so it takes precedence over the count
            # of the class.
            found.append(("figures.open", FIGURE, "type"))
        found.extend((f"type.{name}.count", name, "type") for name in sorted(types))
        for series, name in (
            ("tensors.count", TENSOR), ("arrays.count", ARRAY), (JS_TENSORS, JS_TENSOR),
        ):  # fmt: skip
            if timeline.has(series) and name not in types:
                found.append((series, name, "type"))
        found.extend(
            (series, series[len("container.") : -len(".length")], "container")
            for series in sorted(timeline.series)
            if series.startswith("container.")
            and series.endswith(".length")
            and series[len("container.") : -len(".length")] not in self.stores
        )
        free = tracked_names(timeline) - {b.name for b in self.bounded}
        found.extend((f"tracked.{name}.length", name, "container") for name in sorted(free))
        return tuple(found)

    def series_of(self, name: str, role: str) -> str | None:
        """Return the series in which a type or a container is counted, or None."""
        wanted = name, role
        return next((series for series, *what in self.count_series if tuple(what) == wanted), None)

    def growths(self, end: int) -> Mapping[str, CountGrowth]:
        """Return the growth of every count that grows at the end of generation number ``end``, by series."""
        return self.timeline.known.once(end, GROWTHS, lambda: self._growths(end))

    def _growths(self, end: int) -> dict[str, CountGrowth]:
        return {
            series: growth
            for series, _, _ in self.count_series
            if (growth := growth_of(self.timeline, series, end)) is not None
        }

    def _is_store(self, series: str, bounded: Bounded) -> bool:
        """Return True if this series is the length of a container that keeps a declared store's items.

        The container and the store ``bounded`` then always have the same length.
        """
        lengths = self.timeline.readings(series)
        pairs = [(a, b) for a, b in zip(lengths, bounded.length, strict=True) if a is not None]
        return len(pairs) >= 2 and all(a == b for a, b in pairs) and pairs[0] != pairs[-1]

    def types_in(self, container: str) -> list[str]:
        """Return the names of the types that are held in a container, sorted."""
        return sorted(name for name, path in self.holders.items() if leads_into(path, container))

    def violations(self, last_row: int) -> dict[str, Violation]:
        """Return the violation of each type with more objects than expected.

        Counts below the declared count are not leaks and are left out.
        """
        found: dict[str, Violation] = {}
        for readings in self.readings:
            violation = find_violation(self.timeline, readings, last_row)
            if violation is None or not violation.above:
                continue
            known = found.get(violation.type)
            if known is None or (violation.proven and not known.proven):
                found[violation.type] = violation
        return found


def _counted_by_several(history: RunHistory) -> frozenset[str]:
    """Return the types that more than one process counts."""

    def types() -> frozenset[str]:
        series = Counter(name for process in history.processes for name in process.series)
        return frozenset(
            name[len("type.") : -len(".count")]
            for name, processes in series.items()
            if processes > 1 and name.startswith("type.") and name.endswith(".count")
        )

    return history.said.once("counted by several", (history.processes,), types)


def _risen(values: Sequence[int | float | None]) -> float:
    """Return how much a running total has risen from its first reading to its last."""
    known = [value for value in values if value is not None]
    return known[-1] - known[0] if known else 0


def growth_of(timeline: Timeline, series: str, end: int) -> CountGrowth | None:
    """Return the growth of a count at the end of generation number ``end``.

    Return None if the count does not grow or if its growth is stale.
    """
    newest = timeline.values(series)[end - WINDOW : end] if end >= WINDOW else []
    # Most counts of most runs do not grow, and this check is cheap.
    if newest and None not in newest and not may_grow(newest):  # type: ignore[arg-type]
        return None
    x, counts = timeline.points(series, end, baseline=True, newest=LOOK_BACK)
    if not counts or not may_grow(counts):
        return None
    growth = count_growth(x, counts, timeline.generations[0], timeline.spacing(end))
    return None if growth is None or _is_stale(timeline, growth, x[-1], end) else growth


def _is_stale(timeline: Timeline, growth: CountGrowth, read: float, end: int) -> bool:
    """Return True if the count was last read long ago and memory has hardly risen since that reading."""
    age = timeline.generations[end - 1] - read
    if age < _STALE * timeline.spacing(end) or not timeline.private or growth.start > read:
        return False
    at = timeline.position.get(int(read), 0)
    first = max(0, at - round(min(age, growth.generations)))
    before = timeline.private[at] - timeline.private[first]
    since = timeline.private[end - 1] - timeline.private[at]
    return at > first and since * (at - first) < _GOES_ON * before * (end - 1 - at)


def _best_of(found: Mapping[str, int], growing: Sequence[str]) -> str:
    """Return the path that holds the most objects.

    A path into a growing container wins if it holds a similar number of objects.
    """
    most = max(found.values())
    into = {
        path: count
        for path, count in found.items()
        if count >= _AS_MANY * most and any(leads_into(path, container) for container in growing)
    }
    return most_of(into or found)


def _watched(history: RunHistory) -> frozenset[str]:
    declared = (*history.events_of("watch"), *history.events_of("expect"))
    return frozenset(short_name(event.name) for event in declared) | {
        short_name(expectation.type) for expectation in history.expectations
    }


def leads_into(path: str, container: str) -> bool:
    """Return True if a path leads to the container or into it."""
    return path == container or path.startswith((f"{container}[", f"{container}."))
