"""Decides which heap scans (for a census, tensors or holders) to run now, and on which thread.

A scan runs on the training thread if it stops that thread for no longer than the longest pause. Otherwise it runs in
slices in the background if the native module is available, or not at all. Results of a sliced scan are sent with the
training thread's own snapshots: holders with its next snapshot, a census with the next generation end. A census started
at one generation end is therefore reported at the following generation end.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..probes.growing_containers import ContainerWatch
from ..probes.heap.census import SlicedCensus, count_tracked, look_at_tensors, take_census
from ..probes.heap.census_result import CensusResult, SlicedResult
from ..probes.heap.cyclic_garbage import OBJECTS_REPORTED, GarbageProbe
from ..probes.heap.tensor_storages import tensor_types
from ..probes.memory.process_memory import read_mappings
from ..probes.native_module import native
from ..runtime.error_boundary import Guard
from ..snapshot import (
    LARGE_OBJECTS,
    LARGE_OBJECTS_AT_LEAST_BYTES,
    Census,
    Holder,
    LargeObject,
    Number,
)
from .holder_paths import (
    FoundHolder,
    SlicedHolderSearch,
    find_holder_of_chain,
    find_holder_of_largest,
    find_holders,
)
from .incremental_scan import SliceThread
from .native_allocations import NativeAllocations
from .overhead_budget import DEADLINE_SECONDS, CensusPlan, Governor, Rhythm, RisingMemory
from .run_requests import DONE, FAILED, NOTHING_FOUND, REFUSED, Answer, Request
from .type_counts import NEWS_FOR, Following, News, TypeGrowth

if TYPE_CHECKING:
    from .worker_requests import WorkerNote

TYPES_IN_CENSUS: Final = 48
# CPU seconds for a search for holders, enough for five scans of a torch process's heap or, in slices, for one scan of
# five million objects.
HOLDER_SECONDS: Final = 0.35
SLICED_HOLDER_SECONDS: Final = 1.0
# Expected CPU seconds of a search only near the program's roots, which takes two milliseconds on an
# idle machine.
NEAR_SECONDS: Final = 0.01
# Minimum budget for a sliced search; most holders are found near the program's roots in less time.
SEARCH_AT_LEAST_SECONDS: Final = 0.05
CLASSES_PER_SEARCH: Final = 3
LOOKS_OF_A_SEARCH: Final = 2
# A scan for tensors costs less than a census: it only checks types, whereas a census follows
# references.
TENSORS_PART_OF_CENSUS: Final = 0.35
FOLLOWING_SECONDS: Final = 0.002
# Number of generation ends before the first container search that does not use a census, and the maximum number between
# two such searches.
CONTAINERS_GAPS: Final = (4, 16)
CONTAINERS_SECONDS: Final = 0.002
# Expected CPU seconds of the first reading of the mappings: for their number, and for each resident byte.
MAPPINGS_SECONDS: Final = 0.005
MAPPINGS_SECONDS_PER_BYTE: Final = 1e-11
# Time limit for a scan for garbage, as a fraction of the longest pause.
GARBAGE_PART_OF_PAUSE: Final = 0.4
GARBAGE_GAPS: Final = (1, 16)
# If there is this many times as much garbage as at any previous scan, the next scan follows soon.
GARBAGE_RISES: Final = 1.2
GARBAGE_FADES: Final = 0.7
# If a sliced census took a larger part of a generation, it is not a point-in-time snapshot, and its
# counts are shown only as a table.
MOMENT_PART: Final = 0.2
# Number of recounts that count as set-up. A program usually loads modules only in a few places; all later recounts are
# charged to the budget.
SETTLED_AS_SET_UP: Final = 8
# How long to wait for work in progress at the end of a run.
LAST_LOOK_SECONDS: Final = 0.5


@dataclass(slots=True)
class Measured:
    """The result of one measurement. Sequence numbers are added when the snapshot gets its own number."""

    samples: dict[str, Number]
    census: Census | None = None
    large_objects: tuple[LargeObject, ...] = ()
    holders: tuple[Holder, ...] = ()
    answers: tuple[Answer | WorkerNote, ...] = ()


class Looks:
    """Heap scans for the training thread. Every census updates the type counts and the watched containers."""

    def __init__(
        self,
        governor: Governor,
        types: TypeGrowth,
        containers: ContainerWatch,
        blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._governor, self._types, self._containers = governor, types, containers
        self.following = Following(types)
        self._blocks = blocks
        self.plan = CensusPlan(governor, blocks, is_native=native)
        self.slices = SliceThread(governor.work_seconds)
        self._guard, self._holder_guard = Guard("the census"), Guard("the search for holders")
        # Number of references to every class when the current census began, and whether a count was
        # rising at that time.
        self._references: Mapping[int, int] = {}
        self._was_rising = False
        self._census: SlicedResult | None = None
        # Duration of the newest sliced census and of the newest generation.
        self._census_seconds, self._generation_seconds = 0.0, 0.0
        self._last_end = time.perf_counter()
        self._garbage, self._garbage_guard = GarbageProbe(), Guard("the scan for cyclic garbage")
        self._garbage_rhythm, self._most_garbage = Rhythm(*GARBAGE_GAPS), 0.0
        self._memory, self._mappings_guard = RisingMemory(), Guard("reading the mappings")
        self.allocations, self._allocations_guard = NativeAllocations(), Guard("sampling malloc")
        # Number of recounts in the program's first generations.
        self._settled = 0
        # True after a search for holders of tensors, a sliced census that found graphs, or a rise of
        # the longest chain. Tensors are checked for graphs only then, because the check turns the
        # data saved by graphs into tensors that nothing in Python holds.
        self._graphs_wanted = False
        # The longest chain of autograd nodes so far.
        self._chain, self._chain_news = 0, News()
        self._following_guard = Guard("following instances")
        self._containers_guard = Guard("finding containers")
        self._containers_rhythm = Rhythm(*CONTAINERS_GAPS)
        # Number of frozen objects, which are hidden from the collector, when types were first
        # counted.
        self._frozen = 0
        # How many individual objects a census reports, and their minimum size.
        self.large_objects = LARGE_OBJECTS
        self.large_from_bytes = LARGE_OBJECTS_AT_LEAST_BYTES
        # The request that is being served in the background.
        self._asked: Request | None = None

    def stay_in_background(self) -> None:
        """Restrict scans to slices.

        The program runs while we measure, so a scan must not hold the program's objects.
        """
        self.plan.only_in_background = True

    def at_baseline(self, measured: Measured) -> None:
        """Take a census if possible. It counts as set-up, because the loop has not begun."""
        way = self.plan.way()
        self._frozen = gc.get_freeze_count()
        with self._guard:
            if way == "whole":
                self._take_census(measured, rising=False)
            elif way == "slices":
                work = self._begin_census(rising=False)
                started = self._governor.work_seconds()
                # Let other threads run.
                while not work.step(self._governor.max_pause_seconds / 4):
                    time.sleep(0)
                seconds = self._governor.work_seconds() - started
                self._census_ended(work.result(), seconds, alone=True)
                self._tell_census(measured)

    def at_generation_end(self, measured: Measured, rising: bool) -> None:
        """Run the scans that are due and within budget."""
        now = time.perf_counter()
        self._generation_seconds, self._last_end = now - self._last_end, now
        self.fetch(measured)
        self._tell_census(measured)
        self._follow(measured)
        private = _private_bytes(measured.samples)
        memory_rises = private is not None and self._memory.note(private)
        if self.allocations.is_possible and private is not None:
            with self._allocations_guard, self._governor.measuring("malloc"):
                measured.samples.update(self.allocations.at_generation_end(private))
        # A requested class with a doubtful count is also a reason for a census.
        way = self.plan.due(rising or self._types.is_in_doubt(), memory_rises)
        if way == "whole":
            with self._guard, self._governor.measuring("census", set_up=self.plan.is_set_up):
                self._take_census(measured, rising)
        else:
            wanted = self._graphs_wanted
            if wanted:
                # Scan for tensors first, before other work uses up the pause.
                self._look_at_tensors(measured)
            if self.plan.is_young or (way == "slices" and rising):
                self._recount()
            if not self.plan.only_in_background:
                self._find_containers()
            if rising and not wanted:
                self._look_at_tensors(measured)
        self._note_chain(measured)
        self._look_at_garbage(measured, rising)
        self._find_holders(measured)
        if memory_rises:
            self._look_at_mappings(measured)
        # The census starts after the search, because a known rise matters more than one that a
        # census might reveal.
        if way == "slices" and self.slices.is_free:
            with self._guard:
                self.slices.offer("census", self._begin_census(rising))

    def _look_at_mappings(self, measured: Measured) -> None:
        """Read what kind of memory grows, which only matters if no counted object turns out to explain the growth."""
        resident = measured.samples.get("process.rss_bytes", 0)
        expected = self._governor.expects(
            "mappings", MAPPINGS_SECONDS + MAPPINGS_SECONDS_PER_BYTE * resident
        )
        if self._governor.fits_pause(expected) and self._governor.allows("mappings", expected):
            with self._mappings_guard, self._governor.measuring("mappings"):
                measured.samples.update(read_mappings())

    def wait(self) -> None:
        """Wait briefly for work in progress, because its result cannot be reported later."""
        self.slices.wait(LAST_LOOK_SECONDS)

    def fetch(self, measured: Measured) -> None:
        """Collect the result of a finished background scan."""
        if self.slices.work is None:
            return
        with self._governor.measuring("fetch"):
            outcome = self.slices.take()
        if outcome is None:
            return
        self._governor.charge_background(outcome.name, outcome.seconds, outcome.longest_slice)
        asked, self._asked = self._asked, None
        if asked is not None:
            status = FAILED if outcome.result is None else DONE if outcome.result else NOTHING_FOUND
            measured.answers += (Answer(asked, status),)
        if outcome.result is None:
            return
        if outcome.name == "holders":
            self._record_holders(measured, outcome.result)
        else:
            self._census_ended(outcome.result, outcome.seconds)
            self._census_seconds = outcome.wall_seconds

    def at_finish(self, measured: Measured) -> None:
        """Collect the results that became available after the last generation end."""
        self.fetch(measured)
        self._tell_census(measured)

    def stop(self) -> None:
        """Stop all background work."""
        self.slices.stop()
        self.allocations.stop()

    def _take_census(self, measured: Measured, rising: bool) -> None:
        started = self._governor.work_seconds()
        result = take_census(DEADLINE_SECONDS, self._on_instances)
        is_whole = result.is_exact and self._sees_the_same_heap()
        measured.samples.update(_told_by(result, with_counts=is_whole))
        self._tell(measured, result)
        if is_whole:
            self._types.calibrate(result.counts)
            self._types.note_sizes(result.rows_by_type())
            measured.samples.update({**self._types.read(), **self._types.read_census()})
        self.plan.taken(result.objects, self._governor.work_seconds() - started, rising)
        self._memory.counted()

    def _on_instances(self, instances: Mapping[type, Sequence[object]]) -> None:
        self._containers.find(None, instances)
        self._containers_rhythm.restart()
        self.following.at_census(instances)

    def _find_containers(self) -> None:
        """Find containers near the program's roots, without a census."""
        if not self._containers_rhythm.is_due():
            return
        if self._governor.allows("containers_found", CONTAINERS_SECONDS):
            with self._containers_guard, self._governor.measuring("containers_found"):
                self._containers.find()
                self._containers_rhythm.looked(again_soon=False)

    def _follow(self, measured: Measured) -> None:
        if self._governor.allows("following", FOLLOWING_SECONDS):
            with self._following_guard, self._governor.measuring("following"):
                measured.samples.update(self.following.at_generation_end())

    def _begin_census(self, rising: bool) -> SlicedCensus:
        self._references, self._was_rising = self._types.references(), rising
        self.plan.begun()
        return SlicedCensus()

    def _census_ended(self, result: SlicedResult, seconds: float, *, alone: bool = False) -> None:
        if self._sees_the_same_heap():
            self._types.calibrate_between(
                self._references, result.counts, result.names, alone=alone
            )
        self.plan.taken(result.objects, seconds, self._was_rising, "slices")
        self._memory.counted()
        self._census = result

    def _tell_census(self, measured: Measured) -> None:
        result, self._census = self._census, None
        if result is None:
            return
        self._tell(measured, result)
        # A sliced census cannot follow chains, because their tensors are replaced while it runs.
        has_graphs = result.tensors is not None and result.tensors.graph_count > 0
        self._graphs_wanted = self._graphs_wanted or has_graphs
        if not self._sees_the_same_heap():
            return
        if self._census_seconds <= self._generation_seconds:
            self._types.note_sizes(result.rows_by_type())
        if self._census_seconds <= MOMENT_PART * self._generation_seconds:
            # Counts taken at this generation end take precedence, because they are newer than the
            # census.
            measured.samples = {**result.samples(), **self._types.read_census(), **measured.samples}
        elif self._census_seconds <= self._generation_seconds:
            # The census counts every long-lived object once, which is accurate enough for bytes,
            # because these are compared over many generations.
            measured.samples = {**result.sizes(), **measured.samples}

    def _tell(self, measured: Measured, result: CensusResult | SlicedResult) -> None:
        measured.census = result.to_census(0, TYPES_IN_CENSUS)
        measured.large_objects = result.large_objects(0, self.large_objects, self.large_from_bytes)

    def _look_at_tensors(self, measured: Measured) -> None:
        """Count tensors between two censuses, because rising counts may come from tensors, which may hold graphs."""
        if self.plan.only_in_background:
            return
        unknown = TENSORS_PART_OF_CENSUS * self.plan.expected_seconds()
        expected = self._governor.expects("tensors", unknown)
        if native() is not None and not self._governor.fits_pause(expected):
            return
        if self.plan.way() is not None and self._governor.allows("tensors", unknown):
            with self._guard, self._governor.measuring("tensors"):
                measured.samples.update(look_at_tensors())
                self._graphs_wanted = False

    def _note_chain(self, measured: Measured) -> None:
        length = measured.samples.get("tensors.graph_depth")
        if length is not None and length > self._chain:
            self._chain_news.rose(length - self._chain)
            self._chain = int(length)
            self._graphs_wanted = self._graphs_wanted or self._chain_news.rises <= NEWS_FOR

    def _sees_the_same_heap(self) -> bool:
        """Return False if the program has frozen more objects since the baseline.

        The collector does not list frozen objects, so they would seem to have been freed.
        """
        return gc.get_freeze_count() <= self._frozen

    def settle_doubts(self) -> None:
        """Recount requested classes without exact counts, if a recount fits the longest pause.

        A limited number of recounts in the first generations counts as set-up; all other recounts are charged to the
        budget. Until the recount, these classes are not reported.
        """
        if self._settled < SETTLED_AS_SET_UP:
            self._settled += self.plan.is_young
            self._recount()
        else:
            self._recount(set_up=False)

    def _recount(self, *, set_up: bool = True) -> None:
        """Recount all classes: loading modules may change a class's references without changing its instances."""
        is_set_up = set_up and self.plan.is_young
        expected = self._governor.expects(
            "recount", TENSORS_PART_OF_CENSUS * self.plan.expected_seconds()
        )
        fits = native() is not None and self._governor.fits_pause(expected)
        if not (fits and self._sees_the_same_heap()) or self.plan.only_in_background:
            return
        if is_set_up or self._governor.allows("recount", expected):
            with self._guard, self._governor.measuring("recount", set_up=is_set_up):
                self._types.calibrate_tracked(count_tracked())

    def _look_at_garbage(self, measured: Measured, rising: bool) -> None:
        """Scan for garbage that awaits collection, without running the collector.

        While the collector is off, a scan may run at every generation end. Otherwise, scans become less frequent.
        """
        seconds = GARBAGE_PART_OF_PAUSE * self._governor.max_pause_seconds
        enabled = gc.isenabled()
        due = self._garbage_rhythm.is_due()
        if native() is None or (enabled and not due) or not self._governor.fits_pause(seconds):
            return
        if self._governor.allows("garbage", seconds, routine=enabled and not rising):
            with self._garbage_guard, self._governor.measuring("garbage"):
                found = self._garbage.read(seconds)
                objects = 0 if found is None else found.objects
                # As much garbage as before is normal between two collections, even in a healthy
                # program.
                many = objects >= max(OBJECTS_REPORTED, GARBAGE_RISES * self._most_garbage)
                # The maximum decays, so that garbage from loading libraries does not count forever.
                self._most_garbage = max(GARBAGE_FADES * self._most_garbage, objects)
                self._garbage_rhythm.looked(again_soon=many)
                if found is not None:
                    measured.samples.update(found.samples())
                    measured.holders += found.holders(0)

    def _find_holders(self, measured: Measured) -> None:
        classes = self._types.to_search(CLASSES_PER_SEARCH)
        way = self.plan.way()
        if way is not None and not self.plan.only_in_background:
            self._find_largest(measured)
            self._find_chain(measured)
        if not classes or way is None:
            return
        if self._must_search_in_background():
            self._search_in_background(classes)
        elif self._governor.allows("holders", HOLDER_SECONDS):
            with self._holder_guard, self._governor.measuring("holders"):
                self._searched(classes)
                found = find_holders(classes, HOLDER_SECONDS)
                self._record_holders(measured, found)

    def _find_largest(self, measured: Measured) -> None:
        """Find the holder of a tensor, array or container that grows while the number of objects does not."""
        kind = self._types.grows_larger()
        if kind is None:
            return
        near_only = self._must_search_in_background()
        whole = min(HOLDER_SECONDS, LOOKS_OF_A_SEARCH * self.plan.expected_seconds())
        expected = min(NEAR_SECONDS, whole) if near_only else whole
        if self._governor.allows("holders", expected_seconds=expected):
            with self._holder_guard, self._governor.measuring("holders"):
                self._types.searched_largest(kind)
                seconds = self._governor.max_pause_seconds if near_only else HOLDER_SECONDS
                found = find_holder_of_largest(kind, seconds, near_only=near_only)
                self._record_holders(measured, found)

    def _find_chain(self, measured: Measured) -> None:
        """Find what holds the longest chain of autograd nodes, once the chain has grown repeatedly."""
        kinds = tensor_types()
        rose = measured.samples.get("tensors.graph_depth") == self._chain
        if not (kinds and rose and self._chain_news.is_news):
            return
        near_only = self._must_search_in_background()
        if self._governor.allows("holders", NEAR_SECONDS if near_only else HOLDER_SECONDS):
            with self._holder_guard, self._governor.measuring("holders"):
                self._chain_news.looked_at()
                seconds = self._governor.max_pause_seconds if near_only else HOLDER_SECONDS
                found = find_holder_of_chain(kinds[0], self._chain, seconds, near_only=near_only)
                self._record_holders(measured, found)

    def serve(self, request: Request, measured: Measured) -> str | None:
        """Serve a request and return the outcome.

        The outcome is "" if the request is in progress, and None if it must wait for budget or for other work. A user's
        request is charged to the budget and may exceed the budget, but never the longest pause.
        """
        way = self.plan.way()
        if way is None:
            return f"{REFUSED}: too many objects for a heap scan"
        if request.kind == "census":
            return self._serve_census(request, measured, way == "whole")
        classes = self._types.classes_of(request.type)
        if not classes:
            return NOTHING_FOUND
        return self._serve_search(request, measured, classes[:CLASSES_PER_SEARCH])

    def _serve_census(self, request: Request, measured: Measured, whole: bool) -> str | None:
        if not (request.by_person or self._governor.allows("census")):
            return None
        if not whole:
            return self._begin(request, "census", lambda: self._begin_census(rising=False))
        if measured.census is None:
            with self._guard, self._governor.measuring("census"):
                self._take_census(measured, rising=False)
        return FAILED if measured.census is None else DONE

    def _serve_search(
        self, request: Request, measured: Measured, classes: list[type]
    ) -> str | None:
        if not (request.by_person or self._governor.allows("holders", HOLDER_SECONDS)):
            return None
        if self._must_search_in_background():
            return self._begin(
                request, "holders", lambda: SlicedHolderSearch(classes, SLICED_HOLDER_SECONDS)
            )
        with self._holder_guard, self._governor.measuring("holders"):
            found = find_holders(classes, HOLDER_SECONDS)
            self._record_holders(measured, found)
            return DONE if found else NOTHING_FOUND
        return FAILED

    def _begin(self, request: Request, name: str, make: Callable[[], Any]) -> str | None:
        if not self.slices.is_free:
            return None
        with self._holder_guard, self._governor.measuring(f"{name}_begun"):
            self.slices.offer(name, make())
            self._asked = request
            return ""
        return FAILED

    def _searched(self, classes: list[type]) -> None:
        self._types.searched(classes)
        kinds = tensor_types()
        self._graphs_wanted = self._graphs_wanted or any(cls in kinds for cls in classes)

    def _must_search_in_background(self) -> bool:
        """Return True if a search must run in slices, because it would exceed the longest pause.

        Even if the search near the program's roots is fast, the next search may take several heap scans.
        """
        search_seconds = LOOKS_OF_A_SEARCH * self.plan.expected_seconds()
        stops_too_long = not self._governor.fits_pause(search_seconds)
        return native() is not None and (self.plan.only_in_background or stops_too_long)

    def _record_holders(self, measured: Measured, found: Iterable[FoundHolder]) -> None:
        """Record the holders outside leakline, and start reading the containers among them."""
        outside_leakline = [one for one in found if not one.path.startswith("leakline.")]
        measured.holders += tuple(one.to_holder(0) for one in outside_leakline)
        self._containers.note_holders(one.path for one in outside_leakline)

    def _search_in_background(self, classes: list[type]) -> None:
        seconds = min(SLICED_HOLDER_SECONDS, self._governor.room("holders"))
        if self.slices.is_free and self._governor.allows("holders", expected_seconds=seconds / 2):
            if seconds < SEARCH_AT_LEAST_SECONDS:
                return
            with self._holder_guard, self._governor.measuring("holders_begun"):
                counts = {cls: self._types.count_of(id(cls)) for cls in classes}
                totals = {cls: count for cls, count in counts.items() if count}
                search = SlicedHolderSearch(
                    classes,
                    seconds,
                    seeds=self.following.instances(classes),
                    totals=totals,
                )
                self._searched(classes)
                self.slices.offer("holders", search)


def _private_bytes(samples: Mapping[str, Number]) -> Number | None:
    private = samples.get("process.anon_bytes", samples.get("process.rss_bytes"))
    return None if private is None else private + samples.get("process.swap_bytes", 0)


def _told_by(result: CensusResult, *, with_counts: bool) -> dict[str, Number]:
    """Return the samples of a census.

    ``with_counts`` is False if counts are extrapolated or miss frozen objects. Counts are then left
    out, because in a series they would look like growth or a drop; the census itself keeps them.
    """
    samples = result.samples()
    if with_counts:
        return samples
    return {name: value for name, value in samples.items() if not name.endswith("count")}
