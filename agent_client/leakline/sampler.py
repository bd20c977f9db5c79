"""Asks the probes that fit the moment, with a clock on each, and leaves out what fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .budget import Governor
from .guard import Guard
from .probes.allocator import read_allocator
from .probes.cgroup import read_cgroup
from .probes.collector import CollectorStatistics
from .probes.cuda import read_cuda
from .probes.figures import read_figures
from .probes.nvml import read_nvml
from .probes.process import read_children, read_private_bytes, read_process
from .probes.system import read_system
from .snapshot import Census, Holder, LargeObject, Number

# Which probes are asked at which moment.
NESTED: Final = ("process", "collector", "cuda")
PHASE: Final = (*NESTED, "cgroup", "allocator", "figures")
GENERATION: Final = (*PHASE, "system", "nvml", "children")
SAMPLE: Final = ("process", "cgroup", "cuda")
# The recorder reads every second; a `sample` snapshot tells ten readings.
READINGS_PER_SAMPLE: Final = 10
# A probe that failed this often is not asked again.
FAILURES_LIMIT: Final = 3
# A reading dearer than this is asked at generation ends only, and by budget.
DEAR_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Measured:
    """What one look gave. The sequence numbers inside are set when the snapshot gets its own."""

    samples: dict[str, Number]
    census: Census | None = None
    large_objects: tuple[LargeObject, ...] = ()
    holders: tuple[Holder, ...] = ()


@dataclass(slots=True)
class Probe:
    name: str
    read: Callable[[], Mapping[str, Number]]
    guard: Guard = field(init=False)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.guard = Guard(f"reading {self.name}")


class Sampler:
    """The probes of one process. ``measure`` runs on the training thread, ``sample`` on the recorder's."""

    def __init__(self, governor: Governor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._governor, self._clock = governor, clock
        self._collector = CollectorStatistics()
        self._probes = {
            name: Probe(name, read)
            for name, read in (
                ("process", read_process), ("cgroup", read_cgroup), ("system", read_system),
                ("allocator", read_allocator), ("collector", self._collector.read), ("cuda", read_cuda),
                ("nvml", read_nvml), ("figures", read_figures), ("children", read_children),
            )
        }  # fmt: skip

    def start(self) -> None:
        self._collector.start()

    def stop(self) -> None:
        self._collector.stop()

    def read_private_bytes(self) -> int:
        return read_private_bytes()

    def watch(self, target: type | str) -> None:
        """Count this class from now on."""

    def track(self, name: str, target: object, capacity: int | None) -> None:
        """Follow the length of this container from now on."""

    def type_name(self, target: type | str) -> str:
        return target if isinstance(target, str) else f"{target.__module__}.{target.__qualname__}"

    def measure(self, kind: str, *, nested: bool = False) -> Measured:
        names: tuple[str, ...] = NESTED if nested else PHASE
        if kind in ("generation_end", "baseline", "finish", "manual"):
            names = GENERATION
        return Measured(self._ask(names, kind))

    def sample(self) -> dict[str, Number]:
        """The short reading of the recorder's thread."""
        return self._ask(SAMPLE, "sample")

    def _ask(self, names: tuple[str, ...], kind: str) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        for name in names:
            probe = self._probes[name]
            if probe.guard.count >= FAILURES_LIMIT or not self._affordable(probe, kind):
                continue
            started = self._clock()
            with probe.guard:
                samples.update(probe.read())
            probe.seconds = self._clock() - started
        return samples

    def _affordable(self, probe: Probe, kind: str) -> bool:
        if probe.seconds <= DEAR_SECONDS or kind in ("baseline", "manual"):
            return True
        return kind == "generation_end" and self._governor.allows(probe.name, probe.seconds)


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
