"""Asks the probes that fit the moment, with a clock on each, and leaves out what fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .budget import Governor
from .census_plan import DEADLINE_SECONDS, CensusPlan
from .growth import TypeGrowth
from .guard import Guard
from .holders import find_holders
from .probes.allocator import read_allocator
from .probes.census import CensusResult, look_at_tensors, take_census
from .probes.cgroup import read_cgroup
from .probes.collector import CollectorStatistics
from .probes.containers import ContainerWatch
from .probes.cuda import read_cuda
from .probes.figures import read_figures
from .probes.names import type_name
from .probes.nvml import read_nvml
from .probes.process import read_children, read_private_bytes, read_process
from .probes.system import read_system
from .probes.tracked import TrackedContainer
from .snapshot import Census, Holder, LargeObject, Number

# Which probes are asked at which moment.
NESTED: Final = ("process", "cuda", "types")
PHASE: Final = (*NESTED, "collector", "tracked", "cgroup", "allocator", "figures", "containers")
GENERATION: Final = (*PHASE, "system", "nvml", "children")
SAMPLE: Final = ("process", "cgroup", "cuda")
# The recorder reads every second; a `sample` snapshot tells ten readings.
READINGS_PER_SAMPLE: Final = 10
# A probe, or a tracked container, that failed this often in a row is not asked again.
FAILURES_LIMIT: Final = 3
# A reading dearer than this is asked at generation ends only, and by budget.
DEAR_SECONDS: Final = 0.001
TYPES_IN_CENSUS: Final = 48
LARGE_OBJECTS: Final = 20
LARGE_OBJECTS_AT_LEAST_BYTES: Final = 10 * 2**20
TRACKED_LIMIT: Final = 64
# CPU seconds: five looks through the heap of a torch process.
HOLDER_SECONDS: Final = 0.35
CLASSES_PER_SEARCH: Final = 3
# One list of all objects and one look at the type of each.
TENSORS_SECONDS: Final = 0.05


@dataclass(slots=True)
class Measured:
    """What one look gave. The sequence numbers inside are set when the snapshot gets its own."""

    samples: dict[str, Number]
    census: Census | None = None
    large_objects: tuple[LargeObject, ...] = ()
    holders: tuple[Holder, ...] = ()


@dataclass(slots=True)
class Probe:
    """One source of samples, with what it last cost."""

    name: str
    read: Callable[[], Mapping[str, Number]]
    guard: Guard = field(init=False)
    seconds: float = 0.0
    seconds_before: float = 0.0

    def __post_init__(self) -> None:
        self.guard = Guard(f"reading {self.name}")

    @property
    def dear(self) -> bool:
        """Twice in a row: once may be a busy machine or the first use."""
        return min(self.seconds, self.seconds_before) > DEAR_SECONDS


class Sampler:
    """The probes of one process. ``measure`` runs on the training thread, ``sample`` on the recorder's."""

    def __init__(self, governor: Governor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._governor, self._clock = governor, clock
        self._collector = CollectorStatistics()
        self._types = TypeGrowth()
        self._containers = ContainerWatch(self._types.count_of)
        self._lengths: dict[str, Number] = {}
        self._tracked: dict[str, Probe] = {}
        self._plan = CensusPlan(governor)
        self._census_guard, self._holder_guard = (
            Guard("the census"),
            Guard("the search for holders"),
        )
        self._probes = {
            name: Probe(name, read)
            for name, read in (
                ("process", read_process), ("cgroup", read_cgroup), ("system", read_system),
                ("allocator", read_allocator), ("collector", self._collector.read), ("cuda", read_cuda),
                ("nvml", read_nvml), ("figures", read_figures), ("children", _read_children),
                ("types", self._types.read), ("containers", self._containers.read),
                ("tracked", self._read_tracked),
            )
        }  # fmt: skip

    def start(self) -> None:
        self._collector.start()

    def stop(self) -> None:
        self._collector.stop()

    def forget(self) -> None:
        """Let go of what the program gave: after the end nothing of ours keeps it alive."""
        self._tracked.clear()

    @property
    def census_too_large(self) -> bool:
        """The heap is so large that a census would stop the program for too long."""
        return self._plan.too_large

    def watch(self, name: str) -> None:
        """Count the class of this full name from now on."""
        self._types.ask(name)

    def full_name(self, target: type | str) -> str | None:
        """The name a class has in the series; None while no class of that name is known."""
        return type_name(target) if isinstance(target, type) else self._types.resolve(target)

    def track(self, name: str, target: object, capacity: int | None) -> None:
        """Follow the length of this container from now on."""
        if name in self._tracked or len(self._tracked) < TRACKED_LIMIT:
            read = TrackedContainer(name, target, capacity).read
            self._tracked[name] = Probe(f"the tracked {name}", read)

    def read_private_bytes(self) -> int:
        return read_private_bytes()

    def measure(self, kind: str, *, nested: bool = False) -> Measured:
        """``baseline`` always takes a census; generation ends take one, and look for holders, by budget."""
        if kind == "phase_end":
            return Measured(self._ask(NESTED if nested else PHASE, kind))
        if kind != "generation_end":
            measured = Measured(self._ask(GENERATION, kind))
            if kind == "baseline" and self._plan.fits_pause():
                self._take_census(measured, rising=False)
            return measured
        rising = self._types.close_generation()
        measured = Measured(self._ask(GENERATION, kind))
        rising = self._containers_grew(measured.samples) or rising
        if self._plan.due(rising):
            with self._governor.measuring("census", set_up=self._plan.is_set_up):
                self._take_census(measured, rising)
        elif rising:
            self._look_at_tensors(measured)
        self._find_holders(measured)
        return measured

    def sample(self) -> dict[str, Number]:
        """The short reading of the recorder's thread."""
        return self._ask(SAMPLE, "sample")

    def _ask(self, names: tuple[str, ...], kind: str) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        for name in names:
            probe = self._probes[name]
            if probe.guard.count_in_a_row >= FAILURES_LIMIT:
                continue
            if name == "process" or not probe.dear or kind in ("baseline", "manual"):
                self._read(probe, samples)
            elif kind == "generation_end" and self._governor.allows(name, probe.seconds):
                with self._governor.measuring(name):
                    self._read(probe, samples)
        return samples

    def _read(self, probe: Probe, samples: dict[str, Number]) -> None:
        started = self._clock()
        with probe.guard:
            samples.update(probe.read())
        probe.seconds_before, probe.seconds = probe.seconds, self._clock() - started

    def _take_census(self, measured: Measured, rising: bool) -> None:
        with self._census_guard:
            started = self._governor.work_seconds()
            result = take_census(
                DEADLINE_SECONDS, lambda instances: self._containers.find(None, instances)
            )
            self._keep_census(measured, result)
            seconds = self._governor.work_seconds() - started
            self._plan.taken(result.objects, seconds, rising)

    def _keep_census(self, measured: Measured, result: CensusResult) -> None:
        measured.samples.update(_told_by(result))
        measured.census = result.to_census(0, TYPES_IN_CENSUS)
        measured.large_objects = result.large_objects(
            0, LARGE_OBJECTS, LARGE_OBJECTS_AT_LEAST_BYTES
        )
        if result.is_exact:
            self._types.calibrate(result.counts)
            self._types.note_census(result.counts)
            measured.samples.update({**self._types.read(), **self._types.read_census()})

    def _look_at_tensors(self, measured: Measured) -> None:
        """Between two censuses: whether what rises are tensors, and whether they hold graphs."""
        if self._plan.fits_pause() and self._governor.allows("tensors", TENSORS_SECONDS):
            with self._census_guard, self._governor.measuring("tensors"):
                measured.samples.update(look_at_tensors())

    def _find_holders(self, measured: Measured) -> None:
        classes = self._types.to_search(CLASSES_PER_SEARCH)
        if not classes or not self._plan.fits_pause():
            return
        if not self._governor.allows("holders", HOLDER_SECONDS):
            return
        with self._holder_guard, self._governor.measuring("holders"):
            self._types.searched(classes)
            found = find_holders(classes, HOLDER_SECONDS)
            measured.holders = tuple(holder.to_holder(0) for holder in found)

    def _containers_grew(self, samples: Mapping[str, Number]) -> bool:
        """Is any container longer than at the generation end before?"""
        before, self._lengths = self._lengths, {
            name: value
            for name, value in samples.items()
            if name.startswith("container.") and name.endswith(".length")
        }  # fmt: skip
        return any(value > before.get(name, 0) for name, value in self._lengths.items())

    def _read_tracked(self) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        # A copy: what a tracked function does may end the run.
        for probe in list(self._tracked.values()):
            if probe.guard.count_in_a_row < FAILURES_LIMIT:
                self._read(probe, samples)
        return samples


def _told_by(result: CensusResult) -> dict[str, Number]:
    """The samples of a census. Scaled counts stay in the census itself: on a line they would look like growth."""
    samples = result.samples()
    if result.is_exact:
        return samples
    return {name: value for name, value in samples.items() if not name.endswith("count")}


def _read_children() -> dict[str, Number]:
    """Looking for children means reading every process of the machine; the kernel knows at once of none."""
    if not hasattr(os, "waitid"):
        return dict(read_children())
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {"children.count": 0, "children.pss_bytes": 0, "children.uss_bytes": 0}
    return dict(read_children())


class BackgroundFold:
    """A reading every second, told once in ten: the last value, and the highest memory as the peak."""

    def __init__(
        self,
        sampler: Sampler,
        emit: Callable[[Mapping[str, Number]], None],
        readings: int = READINGS_PER_SAMPLE,
    ) -> None:
        self._sampler, self._emit, self._readings = sampler, emit, readings
        self._count, self._peak = 0, 0

    def tick(self) -> None:
        samples = self._sampler.sample()
        self._count += 1
        self._peak = max(self._peak, int(samples.get("process.rss_bytes", 0)))
        if self._count < self._readings:
            return
        if self._peak:
            # The kernel's own high-water mark never goes down; this one is of the last ten seconds.
            samples["process.peak_bytes"] = self._peak
        self._count, self._peak = 0, 0
        self._emit(samples)
