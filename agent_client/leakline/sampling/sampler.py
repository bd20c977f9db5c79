"""Asks the probes that fit the moment, with a clock on each, and leaves out what fails."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..probes.gpu.nvml import read_nvml
from ..probes.gpu.torch_devices import read_cuda
from ..probes.growing_containers import ContainerWatch
from ..probes.heap.cyclic_garbage import AllocatedBlocks, Collection, CollectorStatistics
from ..probes.memory.cgroup import read_cgroup
from ..probes.memory.process_memory import PeakMemory, read_allocator, read_private_bytes
from ..probes.memory.system_memory import read_system
from ..probes.references.class_names import type_name
from ..probes.tracked_containers import TrackedContainer, read_figures
from ..runtime.error_boundary import Guard
from ..snapshot import Number
from .heap_scans import Looks, Measured
from .overhead_budget import Governor
from .run_requests import Answer, RequestBox
from .type_counts import News, TypeGrowth

if TYPE_CHECKING:
    from ..probes.child_memory import ChildSizes
    from ..probes.child_names import ChildNames

# Which probes are asked at which moment.
NESTED: Final = ("process", "cuda", "mps", "types")
PHASE: Final = (*NESTED, "collector", "tracked", "cgroup", "allocator", "figures", "containers")
GENERATION: Final = (*PHASE, "system", "nvml", "children")
SAMPLE: Final = ("process", "cgroup", "system", "cuda", "mps")
# Who reports the memory of devices as torch's allocators know it, and what of that a cleanup may give back.
DEVICES: Final = ("cuda", "mps")
DEVICE_BYTES: Final = (".allocated_bytes", ".reserved_bytes", ".driver_bytes")
# A probe, or a tracked container, that failed this often in a row is not asked again.
FAILURES_LIMIT: Final = 3
# A reading dearer than this is asked at generation ends only, and by budget.
EXPENSIVE_SECONDS: Final = 0.001
TRACKED_LIMIT: Final = 64
# Of the budget that is left to children, what one reading spends on exact sizes: so they are read at many moments.
CHILDREN_PART_OF_ROOM: Final = 0.01


@dataclass(slots=True)
class Probe:
    """One source of samples, with what it last cost.

    ``is_expensive``: twice in a row, as once may be a busy machine or the first use.
    """

    name: str
    read: Callable[[], Mapping[str, Number]]
    guard: Guard = field(init=False)
    seconds: float = 0.0
    is_expensive: bool = False

    def __post_init__(self) -> None:
        self.guard = Guard(f"reading {self.name}")


class Sampler:
    """The probes of one process. ``measure`` runs on the training thread, ``sample`` on the recorder's."""

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
        # Lengths of containers at the generation end before, and which have grown.
        self._lengths: dict[str, Number] = {}
        self._growths: dict[str, News] = {}
        self._tracked: dict[str, Probe] = {}
        self._looks = Looks(governor, self._types, self._containers, blocks.recent)
        self._children = _Children(governor)
        self._probes = {
            name: Probe(name, read)
            for name, read in (
                ("process", self._memory.read), ("cgroup", read_cgroup), ("system", read_system),
                ("allocator", read_allocator), ("collector", self._collector.read), ("cuda", read_cuda),
                ("mps", _read_mps), ("nvml", read_nvml), ("figures", read_figures), ("children", self._children.read),
                ("types", self._types.read), ("containers", self._containers.read),
                ("tracked", self._read_tracked),
            )
        }  # fmt: skip

    def start(self) -> None:
        self._collector.start()

    def stop(self) -> None:
        self._collector.stop()
        self._looks.stop()

    def abandon(self) -> None:
        """In a forked child: no hook of ours stays. The threads are the parent's."""
        self._collector.stop()

    def forget(self) -> None:
        """Let go of what the program gave: after the end nothing of ours keeps it alive."""
        self._tracked.clear()

    def tell_large(self, most: int, from_bytes: int) -> None:
        """Of how many single objects a census reports, and from which size on."""
        self._looks.large_objects, self._looks.large_from_bytes = most, from_bytes

    @property
    def exact_peaks(self) -> bool:
        """Whether each snapshot's peak is exact: asked for, and allowed here."""
        return self._memory.exact

    def stay_in_background(self) -> None:
        """Measure on a thread of ours, for a program that calls nothing of us."""
        self._looks.stay_in_background()

    def take_collections(self) -> list[Collection]:
        """The full collections since the last call."""
        return self._collector.take()

    @property
    def census_too_large(self) -> bool:
        """The heap is so large that a census would stop the program for too long."""
        return self._looks.plan.too_large

    def watch(self, name: str) -> None:
        """Count the class of this full name from now on."""
        self._types.ask(name)
        self._looks.following.watch(name)

    def full_name(self, target: type | str) -> str | None:
        """The name a class has in the series; None while no class of that name is known."""
        return type_name(target) if isinstance(target, type) else self._types.resolve(target)

    def track(self, name: str, target: object, capacity: int | None) -> None:
        """Follow the length of this container from now on."""
        if name in self._tracked or len(self._tracked) < TRACKED_LIMIT:
            read = TrackedContainer(name, target, capacity).read
            self._tracked[name] = Probe(f"the tracked {name}", read)

    def read_private_bytes(self) -> int:
        """Private bytes of the process, without what a look in the background holds for itself just now."""
        slices = self._looks.slices
        return read_private_bytes() - (0 if slices.work is None else slices.bytes)

    def device_bytes(self) -> dict[str, Number]:
        """Tensors, and what the allocator keeps, of each device that the program uses through torch; else empty."""
        samples: dict[str, Number] = {}
        for name in DEVICES:
            probe = self._probes[name]
            if probe.guard.count_in_a_row < FAILURES_LIMIT:
                self._read(probe, samples)
        return {name: value for name, value in samples.items() if name.endswith(DEVICE_BYTES)}

    def counts(self) -> dict[str, int]:
        """Instances by full name, of the classes that are reported and of tensors."""
        with self._looks.slices.turn:
            return self._types.reported_counts()

    def measure(self, kind: str, *, nested: bool = False) -> Measured:
        """``baseline`` always takes a census; generation ends take one, and look for holders, by budget."""
        if kind == "finish":
            self._looks.wait()
        # While the training thread has the turn, no scan goes on in the background.
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
        if kind == "baseline":
            self._looks.at_baseline(measured)
        elif kind == "generation_end":
            rising = self._containers_grew(measured.samples) or rising
            self._looks.at_generation_end(measured, rising)
            self._serve(measured)
        elif kind == "finish":
            self._looks.at_finish(measured)
        # A census rises above what the program uses: that peak is ours.
        self._memory.restart()
        return measured

    def _serve(self, measured: Measured) -> None:
        """What people and the server asked for since."""
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
        """Note how high memory is now, for the peak of the next snapshot."""
        self._memory.look()

    def sample(self) -> dict[str, Number]:
        """The short reading of the recorder's thread."""
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
        """Is some container longer than at the generation end before, and that worth a deeper look?"""
        grown: list[News] = []
        for name, length in samples.items():
            if not (name.startswith("container.") and name.endswith(".length")):
                continue
            # A first length is no rise, and an absent one no fall.
            before, self._lengths[name] = self._lengths.get(name, length), length
            if length > before:
                news = self._growths.setdefault(name, News())
                news.rose(length - before)
                grown.append(news)
        return any(news.is_news for news in grown)

    def _read_tracked(self) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        # A copy: what a tracked function does may end the run.
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
    """The children, with the names and sizes that they had until now."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._names: ChildNames | None = None
        self._sizes: ChildSizes | None = None

    def read(self) -> dict[str, Number]:
        """Looking for children means reading every process of the machine; the kernel knows at once of none."""
        if hasattr(os, "waitid"):
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return {"children.count": 0, "children.pss_bytes": 0, "children.uss_bytes": 0}
        # Most programs have none.
        from ..probes.child_memory import child_sizes, read_children
        from ..probes.child_names import ChildNames

        self._names, self._sizes = self._names or ChildNames(), self._sizes or child_sizes()
        seconds = self._governor.room("children") * CHILDREN_PART_OF_ROOM
        seconds = max(0.0, min(seconds, self._governor.max_pause_seconds))
        return read_children(names=self._names, sizes=self._sizes, seconds=seconds)
