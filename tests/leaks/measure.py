"""Measure what each leak switch of an example adds, without Leakline: the source of the expected findings.

    python -m tests.leaks.measure erl_trading                       # every switch, against the catalogue
    python -m tests.leaks.measure erl_trading loss_graph figures    # some of them

Each training runs in its own process, once without any switch and once with each. The leak is the difference between
the two at the same generation, since both trainings are identical otherwise.

- Memory: the anonymous resident memory of the process, from procfs, at generation ends.
- Objects: `gc.get_objects`, and the lengths of the trainer's own containers.
- The rate: the median of the slopes between all pairs of generations.
- The phase: where the growing objects are created, by counts at phase ends. The memory of the process alone cannot
  show that: memory freed in one phase is reused by the next, and the growth appears only in a third.
- Below 1.5 MiB per generation procfs is too coarse, so the bytes of the kept objects are counted.

Exit status 1 if the catalogue is wrong or off by more than a tenth.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.leaks.catalogue import EXAMPLES, GRAPHS, MIB, Case

COARSE_BYTES: Final = 3 * MIB // 2
NOISE_BYTES: Final = MIB // 2
TOLERANCE: Final = 0.10

Counts = dict[str, int]


@dataclass(frozen=True)
class Example:
    """The objects and containers of an example that are counted.

    ``types`` are counted by name. ``containers`` are the trainer's own, as attribute paths. ``walked`` are those whose
    bytes are counted object by object, for leaks that are too small for procfs; counting millions of objects would
    itself affect procfs.
    """

    generations: int
    types: tuple[str, ...]
    containers: tuple[str, ...]
    walked: tuple[str, ...] = ()


_OF_AN_EVOLUTION: Final = (
    "losses", "environments", "past_populations", "best_agents", "batches", "uploads.pending",
)  # fmt: skip
TRAININGS: Final = {
    "erl_trading": Example(
        16, ("DDPGAgent", "TradingEnvironment", "Experience", "Upload", "Tensor"),
        _OF_AN_EVOLUTION, walked=_OF_AN_EVOLUTION,
    ),
    "dqn_fuel_breaks": Example(
        12, ("FireEnvironment", "VectorisedFireEnvironment", "Experience", "Tensor"),
        (
            "agent.values", "agent.rewards", "agent.losses", "replay.priorities",
            "collector.experience_buffer", "vectorised",
        ),
    ),
}  # fmt: skip


@dataclass
class Reading:
    """The end of one generation. ``peak_bytes`` is the highest resident memory so far.

    ``phase_bytes``: change of private memory in each top-level phase. ``phase_counts``: change of ``counts``.
    """

    private_bytes: int
    resident_bytes: int
    peak_bytes: int
    held_bytes: int
    counts: Counts
    phase_bytes: Counts
    phase_counts: dict[str, Counts]


def memory() -> tuple[int, int, int]:
    """Return (anonymous, total, peak) resident bytes of this process."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    anonymous, whole, highest = (int(fields[name][0]) for name in ("RssAnon", "VmRSS", "VmHWM"))
    return 1024 * anonymous, 1024 * whole, 1024 * highest


class Meter:
    """Replaces a Leakline run, and reads procfs and counts at the same points."""

    def __init__(self, example: Example) -> None:
        self.readings: list[Reading] = []
        self.trainer: Any = None
        self._example = example
        self._depth = 0
        self._phase_bytes: Counts = {}
        self._phase_counts: dict[str, Counts] = {}

    def generation(self, number: int) -> None:
        if number > 0:
            self.read()

    episode = generation

    @contextmanager
    def cleanup(self, name: str) -> Iterator[None]:
        yield

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._depth += 1
        if self._depth == 1:
            counts, private = self._counts(), memory()[0]
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._phase_bytes[name] = memory()[0] - private
                after = self._counts()
                self._phase_counts[name] = {key: after[key] - counts[key] for key in counts}

    def gauge(self, name: str, value: float, warn_above: float | None = None) -> None:
        pass

    def read(self) -> None:
        held = held_bytes([attrgetter(name)(self.trainer) for name in self._example.walked])
        self.readings.append(
            Reading(*memory(), held, self._counts(), self._phase_bytes, self._phase_counts)
        )
        self._phase_bytes, self._phase_counts = {}, {}

    def _counts(self) -> Counts:
        counts = live_objects(self._example.types)
        containers = self._example.containers
        counts.update((name, len(attrgetter(name)(self.trainer))) for name in containers)
        if "environments" in containers:
            histories = (each.episode_observations for each in self.trainer.environments)
            counts["episode_observations"] = sum(map(len, histories))
        return counts


def live_objects(types: Sequence[str]) -> Counts:
    """Count instances by class name, tensors with a graph, and figures registered in pyplot."""
    counts = dict.fromkeys((*types, GRAPHS), 0)
    for thing in gc.get_objects():
        name = type(thing).__name__
        if name in counts:
            counts[name] += 1
            if name == "Tensor" and thing.grad_fn is not None:
                counts[GRAPHS] += 1
    pyplot = sys.modules.get("matplotlib.pyplot")
    counts["figures"] = 0 if pyplot is None else len(pyplot.get_fignums())
    return counts


def held_bytes(roots: Sequence[object]) -> int:
    """Return the bytes of everything reachable from ``roots`` that belongs to the training, each object once."""
    import numpy as np
    import torch

    seen: set[int] = set()
    waiting, total = list(roots), 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, type(sys), type(memory))):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        if isinstance(thing, torch.Tensor):
            total += thing.untyped_storage().nbytes()
        elif not isinstance(thing, np.ndarray):
            waiting.extend(gc.get_referents(thing))
    return total


def train_and_read(name: str, switches: Sequence[str], generations: int) -> list[Reading]:
    """Run one training in this process."""
    import torch

    def module(part: str) -> Any:
        return import_module(f"examples.{name}.{part}")

    torch.set_num_threads(1)
    meter = Meter(TRAININGS[name])
    market = [module("market").make_market(0)] if name == "erl_trading" else []
    leaks = module("leaks").Leaks.of(switches)
    meter.trainer = module("trainer").Trainer(meter, *market, leaks)
    meter.trainer.train(generations)
    meter.read()
    return meter.readings


def in_a_process(name: str, switches: Sequence[str], generations: int) -> list[Reading]:
    program = [sys.executable, "-m", "tests.leaks.measure", name, *switches]
    command = [*program, "--child", "--generations", str(generations)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [Reading(**row) for row in json.loads(done.stdout)]


@dataclass(frozen=True)
class Measured:
    """The effect of one switch. ``growing``: counted name -> growth per generation."""

    switch: str
    phase: str | None
    private_bytes: float
    held_bytes: float
    share_of_resident: float
    peak_bytes: int
    growing: dict[str, float]
    started_at_generation: int | None

    @property
    def bytes_per_generation(self) -> float:
        """Growth from procfs, or from counting if that is too coarse and the kept objects can be counted."""
        coarse = self.private_bytes < COARSE_BYTES and self.held_bytes > 0
        return self.held_bytes if coarse else self.private_bytes


def difference(switch: str, with_leak: list[Reading], without: list[Reading]) -> Measured:
    pairs = list(zip(with_leak, without, strict=True))
    growing, starts = {}, []
    for name in with_leak[0].counts:
        more = [a.counts[name] - b.counts[name] for a, b in pairs]
        if more[-1] > 0:
            starts.append(next(i for i, value in enumerate(more) if value > 0))
            growing[name] = slope(more[starts[-1] :])
    start = min(starts, default=0)
    private = slope([a.private_bytes - b.private_bytes for a, b in pairs][start:])
    return Measured(
        switch,
        _phase_of(growing, pairs),
        private,
        slope([a.held_bytes - b.held_bytes for a, b in pairs][start:]),
        private / with_leak[-1].resident_bytes,
        with_leak[-1].peak_bytes - without[-1].peak_bytes,
        growing,
        start if starts else None,
    )


def _phase_of(growing: dict[str, float], pairs: list[tuple[Reading, Reading]]) -> str | None:
    """Return the phase in which most of the growing objects are added."""
    added: dict[str, int] = {}
    for a, b in pairs:
        for phase, counts in a.phase_counts.items():
            more = sum(counts[name] - b.phase_counts[phase][name] for name in growing)
            added[phase] = added.get(phase, 0) + more
    return max(added, key=lambda phase: added[phase]) if growing else None


def slope(values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs, which a single late heap trim does not affect."""
    rates = [
        (later - earlier) / (j - i)
        for i, earlier in enumerate(values)
        for j, later in enumerate(values[i + 1 :], i + 1)
    ]
    return median(rates) if rates else 0.0


def agrees(m: Measured, case: Case) -> bool:
    """Return True if the catalogue is right about a switch."""
    if not case.planted:
        return m.phase is None and abs(m.bytes_per_generation) <= NOISE_BYTES
    (right,) = case.planted
    planted = case.bytes_of(right)
    counted = m.growing.get(right.counted, 0.0)
    return (
        (m.phase, m.started_at_generation) == (right.phases[0], right.first[0])
        and abs(m.bytes_per_generation - planted) <= max(TOLERANCE * planted, NOISE_BYTES)
        and abs(counted - right.count) <= TOLERANCE * right.count
    )


def print_measured(m: Measured, right: bool) -> None:
    growing = ", ".join(f"{name} {count:+.2f}" for name, count in m.growing.items())
    print(
        f"{m.switch}: {m.private_bytes / MIB:.2f} MiB per generation ({m.share_of_resident:.2%} of resident),"
        f" kept objects {m.held_bytes / MIB:.3f} MiB, start {m.started_at_generation}, phase {m.phase},"
        f" peak {m.peak_bytes / MIB:+.0f} MiB; {growing or 'nothing grows'}"
        f"; catalogue {'agrees' if right else 'IS WRONG'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("example", choices=TRAININGS)
    parser.add_argument("switches", nargs="*", metavar="SWITCH", help="default: all of them")
    parser.add_argument("--generations", type=int)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    name, cases = options.example, EXAMPLES[options.example]
    generations = options.generations or TRAININGS[name].generations
    if options.child:
        readings = train_and_read(name, options.switches, generations)
        json.dump([asdict(reading) for reading in readings], sys.stdout)
        return 0
    without = in_a_process(name, [], generations)
    end = without[-1]
    print(f"no switch: {end.resident_bytes / MIB:.0f} MiB resident at the end, {end.counts}")
    for path in end.phase_bytes:
        print(f"  {path}: {[round(r.phase_bytes.get(path, 0) / MIB, 1) for r in without]} MiB")
    all_right = True
    for switch in options.switches or cases:
        measured = difference(switch, in_a_process(name, [switch], generations), without)
        right = agrees(measured, cases[switch])
        print_measured(measured, right)
        all_right &= right
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
