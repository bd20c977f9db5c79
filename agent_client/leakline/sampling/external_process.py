"""Observes another process from outside, through the kernel and the GPU driver, without types and phases."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from ..probes.child_memory import read_children
from ..probes.child_names import ChildNames
from ..probes.gpu.nvml import read_nvml_of
from ..probes.memory.cgroup import ROOT, ContainerMemory
from ..probes.memory.process_memory import PROC, OtherProcess
from ..probes.memory.system_memory import read_system
from ..snapshot import Number
from .heap_scans import Measured
from .overhead_budget import Governor
from .sampler import Probe, Sampler

# Probes that cost more than reading a file or two and are therefore read only at interval ends.
_RARE: Final = frozenset({"children", "gpu"})


class OutsideSampler(Sampler):
    """Samples of the process ``pid``, read from outside; empty after the process has ended."""

    def __init__(self, pid: int, governor: Governor) -> None:
        super().__init__(governor)
        self.pid = pid
        self._process = OtherProcess(pid)
        group = ContainerMemory(ROOT, PROC / str(pid) / "cgroup")
        self._highest: Number = 0
        self._outside = {
            name: Probe(name, read)
            for name, read in (
                ("process", self._read_process), ("cgroup", group.read), ("system", read_system),
                ("children", partial(read_children, PROC, pid, ChildNames())), ("gpu", lambda: read_nvml_of(pid)),
            )
        }  # fmt: skip

    def start(self) -> None:
        """Do nothing, because the observed process needs no hooks."""

    def stop(self) -> None:
        """Do nothing, because `start` has not started anything."""

    def measure(self, kind: str, *, nested: bool = False) -> Measured:
        return Measured(self._all(tuple(self._outside)))

    def sample(self) -> dict[str, Number]:
        return self._all(tuple(name for name in self._outside if name not in _RARE))

    def look(self) -> None:
        rss = self._process.read().get("process.rss_bytes", 0)
        self._highest = max(self._highest, rss)

    def read_private_bytes(self) -> int:
        found = self._process.read()
        return int(found.get("process.anon_bytes", 0) + found.get("process.swap_bytes", 0))

    def _read_process(self) -> dict[str, Number]:
        """Return the process's samples, with the highest memory observed since the previous reading as the peak.

        The kernel's own peak is not used, because it covers the process's entire life.
        """
        samples = self._process.read()
        samples.pop("process.peak_bytes", None)
        if samples:
            samples["process.peak_bytes"] = max(self._highest, samples["process.rss_bytes"])
            self._highest = 0
        return samples

    def _all(self, names: tuple[str, ...]) -> dict[str, Number]:
        samples: dict[str, Number] = {}
        for name in names:
            self._read(self._outside[name], samples)
            if not samples:
                # The process has ended. Machine-wide samples on their own would look like a process
                # without memory.
                break
        return samples


def started_as(pid: int, proc: Path = PROC) -> list[str]:
    """Return the command line of a process, or [] if it is empty or cannot be read."""
    try:
        line = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="replace") for part in line.split(b"\0") if part]
