"""Reads the probes for each kind of snapshot and measures their cost. A probe that keeps failing is no longer read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..probes.gpu.nvml import read_nvml
from ..probes.gpu.torch_devices import read_cuda, read_pinned
from ..probes.growing_containers import ContainerWatch
from ..probes.heap.cyclic_garbage import AllocatedBlocks, Collection, CollectorStatistics
from ..probes.memory.cgroup import read_cgroup
from ..probes.memory.process_memory import (
    PeakMemory,
    read_allocator,
    read_private_bytes,
    read_pyarrow,
    read_sqlite,
)
from ..probes.memory.system_memory import SharedFiles, read_system
from ..probes.references.class_names import type_name
from ..probes.tracked_containers import TrackedContainer, read_figures
from ..runtime.error_boundary import Guard
from ..snapshot import Number
from .heap_scans import Looks, Measured
from .overhead_budget import Governor
from .run_requests import Answer, RequestBox
from .type_counts import News, TypeGrowth

if TYPE_CHECKING:
    from pathlib import Path

    from ..probes.child_memory import ChildSizes
    from ..probes.child_names import ChildNames
    from .worker_requests import WorkerRequests

# The probes that are read for each kind of snapshot.
NESTED: Final = ("process", "cuda", "mps", "types")
PHASE: Final = (
    *NESTED, "collector", "tracked", "cgroup", "allocator", "figures", "containers", "arrays", "pinned",
)  # fmt: skip
GENERATION: Final = (*PHASE, "system", "shm", "nvml", "children", "pyarrow", "sqlite")
SAMPLE: Final = ("process", "cgroup", "system", "shm", "cuda", "mps", "pinned")
# The probes that read device memory from torch's allocators, and the name endings of the series that a cleanup may
# reduce.
DEVICES: Final = ("cuda", "mps")
DEVICE_BYTES: Final = (".allocated_bytes", ".reserved_bytes", ".driver_bytes")
# A probe or a tracked container is not read again after this many failures in a row.
FAILURES_LIMIT: Final = 3
# A probe that takes longer is read only at the baseline, for manual snapshots and, within the
# budget, at generation ends.
EXPENSIVE_SECONDS: Final = 0.001
TRACKED_LIMIT: Final = 64
# Share of the remaining budget for child processes that one reading may spend on exact sizes, so
# that enough of the budget remains for many readings.
CHILDREN_PART_OF_ROOM: Final = 0.01


@dataclass(slots=True)
class Probe:
    """One source of samples, with the cost of its last reading.

    ``is_expensive`` is True if the last two readings were both expensive; a busy machine or the first use may make a
    single reading expensive.
    """

    name: str
    read: Callable[[], Mapping[str, Number]]
    guard: Guard = field(init=False)
    seconds: float = 0.0
    is_expensive: bool = False

    def __post_init__(self) -> None:
        self.guard = Guard(f"reading {self.name}")


class Sampler:
    """The probes of one process. ``measure`` runs on the training thread, and ``sample`` on the recorder's thread."""

    def __init__(
        self,
        governor: Governor,
        clock: Callable[[], float] = time.thread_time,
        *,
        exact_peaks: bool = False,
        requests: RequestBox | None = None,
    ) -> None:
        self._governor, self._clock = governor, clock
        self._memory = PeakMemory(exact=exact_peaks)
        self._requests = requests or RequestBox()
        blocks = AllocatedBlocks()
        self._collector = CollectorStatistics(blocks)
        governor.leave_out(self._collector.cpu_seconds)
        self._types = TypeGrowth()
        self._containers = ContainerWatch(self._types.count_of)
        # Lengths of containers at the previous generation end, and the growth of containers that
        # have grown.
        self._lengths: dict[str, Number] = {}
        self._growths: dict[str, News] = {}
        self._tracked: dict[str, Probe] = {}
        self._looks = Looks(governor, self._types, self._containers, blocks.recent)
        self._workers: WorkerRequests | None = None
        self._children = _Children(governor)
        self._probes = {
            name: Probe(f"{name} metrics", read)
            for name, read in (
                ("process", self._memory.read), ("cgroup", read_cgroup), ("system", read_system),
                ("shm", SharedFiles().read), ("pinned", read_pinned),
                ("allocator", read_allocator), ("collector", self._collector.read), ("cuda", read_cuda),
                ("mps", _read_mps), ("nvml", read_nvml), ("figures", read_figures), ("children", self._children.read),
                ("types", self._types.read), ("containers", self._containers.read),
                ("arrays", self._containers.preallocated.read), ("tracked", self._read_tracked),
                ("pyarrow", read_pyarrow), ("sqlite", read_sqlite),
            )
        }  # fmt: skip

    def start(self) -> None:
        self._collector.start()

    def stop(self) -> None:
        self._collector.stop()
        self._looks.stop()
        if self._workers is not None:
            self._workers.end()

    def abandon(self) -> None:
        """Remove our hooks in a forked child. Only the parent has threads to stop."""
        self._collector.stop()
        self._looks.allocations.stop()
        if self._workers is not None:
            self._workers.abandon()

    def scan_workers(self, requests: Path) -> None:
        """Scan growing child processes from now on. The names of request files begin with ``requests``."""
        from .worker_requests import WorkerRequests

        self._workers = WorkerRequests(str(requests))
        self._children.note = self._workers.note

    def forget(self) -> None:
        """Release references to the program's objects, so that we keep no object alive after the run."""
        self._tracked.clear()

    def tell_large(self, most: int, from_bytes: int) -> None:
        """Set the number of individual objects that a census reports, and their minimum size."""
        self._looks.large_objects, self._looks.large_from_bytes = most, from_bytes

    @property
    def exact_peaks(self) -> bool:
        """True if exact peaks were requested and the kernel permits them."""
        return self._memory.exact

    def stay_in_background(self) -> None:
        """Measure on one of our threads, for a program that does not call our API."""
        self._looks.stay_in_background()

    def loop_began(self) -> None:
        """Measure on the thread that calls us, because the program's generations are known now."""
        self._looks.plan.loop_began()

    def take_collections(self) -> list[Collection]:
        """Return the full garbage collections since the last call that are worth reporting."""
        return self._collector.take()

    @property
    def census_too_large(self) -> bool:
        """True if every census of this heap would stop the program for too long."""
        return self._looks.plan.too_large

    def watch(self, name: str) -> None:
        """Count the class with this full name from now on."""
        self._types.ask(name)
        self._looks.following.watch(name)

    def full_name(self, target: type | str) -> str | None:
        """Return a class's full name, as used in series, or None while no class with that name is known."""
        return type_name(target) if isinstance(target, type) else self._types.resolve(target)

    def track(self, name: str, target: object, capacity: int | None) -> None:
        """Record the size of this container from now on."""
        if name in self._tracked or len(self._tracked) < TRACKED_LIMIT:
            read = TrackedContainer(name, target, capacity).read
            self._tracked[name] = Probe(f"the tracked container {name}", read)

    def read_private_bytes(self) -> int:
        """Return the process's private bytes, without the memory that a scan or the sampling of malloc uses."""
        slices, own = self._looks.slices, self._looks.allocations.bytes
        return read_private_bytes() - own - (0 if slices.work is None else slices.bytes)

    def device_bytes(self) -> dict[str, Number]:
        """Return each device's bytes as reported by torch's allocators.

        The result is {} if the program uses no device through torch.
        """
        samples: dict[str, Number] = {}
        for name in DEVICES:
            probe = self._probes[name]
            if probe.guard.count_in_a_row < FAILURES_LIMIT:
                self._read(probe, samples)
        return {name: value for name, value in samples.items() if name.endswith(DEVICE_BYTES)}

    def counts(self) -> dict[str, int]:
        """Return the number of instances by full class name, for reported classes and tensors."""
        with self._looks.slices.turn:
            return self._types.reported_counts()

    def measure(self, kind: str, *, nested: bool = False) -> Measured:
        """Read all data of one snapshot.

        The baseline includes a census if possible. Generation ends include a census and a search for holders if they
        are due and within budget.
        """
        if kind == "finish":
            self._looks.wait()
        # While the training thread holds the turn, no scan runs in the background.
        with self._looks.slices.turn:
            return self._measure(kind, nested)

    def _measure(self, kind: str, nested: bool) -> Measured:
        if not self._types.counts_exactly():
            self._looks.settle_doubts()
        if kind == "phase_end":
            measured = Measured(self._ask(NESTED if nested else PHASE, kind))
            self._looks.fetch(measured)
            if not nested:
                self._serve(measured)
            return measured
        rising = kind == "generation_end" and self._types.close_generation()
        measured = Measured(self._ask(GENERATION, kind))
        if self._workers is not None:
            measured.answers += self._workers.take()
        if kind == "baseline":
            self._looks.at_baseline(measured)
        elif kind == "generation_end":
            rising = self._containers_grew(measured.samples) or rising
            self._looks.at_generation_end(measured, rising)
            self._serve(measured)
        elif kind == "finish":
            self._looks.at_finish(measured)
        # A census itself uses memory, and the peak that it causes must not be reported as the
        # program's.
        self._memory.restart()
        return measured

    def _serve(self, measured: Measured) -> None:
        requests = self._requests
        for request, times in requests.take() if requests.waiting else ():
            outcome = self._looks.serve(request, measured)
            if outcome is None:
                requests.put_back(request, times)
            elif outcome:
                measured.answers += (Answer(request, outcome),)
        if requests.answers:
            measured.answers += requests.take_answers()

    def look(self) -> None:
        """Record the current memory for the next snapshot's peak."""
        self._memory.look()

    def sample(self) -> dict[str, Number]:
        """Return the samples that are cheap enough for the recorder's thread."""
        return self._ask(SAMPLE, "sample")

    def _ask(self, names: tuple[str, ...], kind: str) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        for name in names:
            probe = self._probes[name]
            if probe.guard.count_in_a_row >= FAILURES_LIMIT:
                continue
            if name == "process" or not probe.is_expensive or kind in ("baseline", "manual"):
                self._read(probe, samples)
            elif kind == "generation_end" and self._governor.allows(name, probe.seconds):
                with self._governor.measuring(name):
                    self._read(probe, samples)
        return samples

    def _read(self, probe: Probe, samples: dict[str, Number]) -> None:
        started = self._clock()
        with probe.guard:
            samples.update(probe.read())
        before, probe.seconds = probe.seconds, self._clock() - started
        probe.is_expensive = min(before, probe.seconds) > EXPENSIVE_SECONDS

    def _containers_grew(self, samples: Mapping[str, Number]) -> bool:
        """Return True if a container has grown since the previous generation end and is worth a deeper scan."""
        grown: list[News] = []
        for name, length in samples.items():
            if not (name.startswith("container.") and name.endswith(".length")):
                continue
            # The first length of a container is not a rise, and a missing length is not a drop.
            before, self._lengths[name] = self._lengths.get(name, length), length
            if length > before:
                news = self._growths.setdefault(name, News())
                news.rose(length - before)
                grown.append(news)
        return any(news.is_news for news in grown)

    def _read_tracked(self) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        # Iterate over a copy, because a tracked container's function may end the run.
        for probe in list(self._tracked.values()):
            if probe.guard.count_in_a_row < FAILURES_LIMIT:
                self._read(probe, samples)
        return samples


def _read_mps() -> dict[str, Number]:
    if "torch.mps" not in sys.modules:
        return {}
    from ..probes.gpu.torch_devices import read_mps

    return read_mps()


class _Children:
    """A reader of child processes that keeps their names and sizes between readings."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self.note: Callable[[dict[int, tuple[str, int]]], None] = lambda _: None
        self._names: ChildNames | None = None
        self._sizes: ChildSizes | None = None

    def read(self) -> dict[str, Number]:
        """Read the child processes, if the process has any.

        Finding them requires a scan of all processes on the machine, so the kernel is asked first.
        """
        if hasattr(os, "waitid"):
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                sizes = ("count", "pss_bytes", "uss_bytes", "rss_bytes")
                return {f"children.{size}": 0 for size in sizes}
        # Imported here because most programs have no child processes.
        from ..probes.child_memory import child_sizes, read_children
        from ..probes.child_names import ChildNames

        self._names, self._sizes = self._names or ChildNames(), self._sizes or child_sizes()
        seconds = self._governor.room("children") * CHILDREN_PART_OF_ROOM
        seconds = max(0.0, min(seconds, self._governor.max_pause_seconds))
        return read_children(names=self._names, sizes=self._sizes, seconds=seconds, note=self.note)
