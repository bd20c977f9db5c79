"""A generated training as the client would record it: noisy readings, sparse censuses, phases, and a filling buffer.

A leak is planted as (phase, bytes, counts) per generation; the result is batches as they are sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from leakline.analysis import RunHistory, history_from_batches
from leakline.analysis.run_history import ProcessHistory
from leakline.snapshot import (
    CYCLIC_GARBAGE,
    Batch,
    Census,
    Event,
    Holder,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)

MIB = 2**20
GIB = 2**30
EVALUATE, TRAIN, EVOLVE = "evaluate_population", "train_population", "evolve_population"
EPISODE = "evaluate_population/run_episode"
STEPS = (EPISODE, EVALUATE, TRAIN, EVOLVE)
# Counted exactly at every snapshot (heap types); the others only by censuses.
HEAP = ("trading.TradingEnvironment", "agents.DDPGAgent", "torch.Tensor", "torch.nn.parameter.Parameter",
        "matplotlib.figure.Figure", "agents.Actor")  # fmt: skip

_OFTEN_READ = ("container.", "allocator.", "python.")
_NO_TYPES = (*_OFTEN_READ, "tensors.", "arrays.", "figures.")


@dataclass
class Leak:
    """Private bytes and counts added in one phase by each generation from ``start`` on."""

    phase: str
    bytes: float
    counts: dict[str, float] = field(default_factory=dict)
    start: int = 0
    stop: int | None = None
    # Generation -> factor for the amounts; 1 by default.
    times: Callable[[int], float] = lambda generation: 1.0
    holders: tuple[Holder, ...] = ()

    def at(self, generation: int) -> float:
        over = self.stop is not None and generation >= self.stop
        return 0.0 if generation < self.start or over else self.times(generation)


@dataclass
class Training:
    generations: int = 16
    leaks: tuple[Leak, ...] = ()
    seed: int = 1
    resident: float = 300 * MIB
    noise: float = 1.5 * MIB
    warm_up: tuple[float, ...] = (30 * MIB, 8 * MIB, 3 * MIB)
    buffer_bytes: float = 24 * MIB
    buffer_capacity: int = 20_000
    buffer_full_after: int = 8
    declare_buffer: bool = True
    total: int | None = None
    expectations: tuple[tuple[str, int, int, str | None], ...] = ()
    watch: tuple[str, ...] = ("trading.TradingEnvironment",)
    run: str = "run"
    phases: tuple[str, ...] = (EVALUATE, TRAIN, EVOLVE)
    never: tuple[str, ...] = ()
    # Phase path -> executions per generation, if not one.
    executions: dict[str, int] = field(default_factory=dict)
    census_every: int = 3
    counts: dict[str, float] = field(
        default_factory=lambda: {
            "trading.TradingEnvironment": 2, "agents.DDPGAgent": 17, "agents.Actor": 34,
            "torch.Tensor": 900, "torch.nn.parameter.Parameter": 816, "list": 12_000, "dict": 9_000,
            "numpy.ndarray": 1_200, "matplotlib.figure.Figure": 0,
        }
    )  # fmt: skip
    peak_in_evolve: float = 0.0
    limit_bytes: int | None = None
    environment: dict[str, object] = field(default_factory=dict)
    instance: str = "p1"
    rank: int = 0
    attempt: int = 1
    first_generation: int = 0
    collections: bool = True

    def history(self) -> RunHistory:
        history = history_from_batches(self.header(), self.batches())
        if self.limit_bytes is None:
            return history
        return replace(history, limit_bytes=self.limit_bytes)

    def header(self) -> RunHeader:
        return RunHeader(
            self.run, "p", self.run, "generation", self.total, 0.0, self.phases, environment=self.environment
        )  # fmt: skip

    def batches(self) -> list[Batch]:
        who = ProcessIdentity(self.instance, self.rank, 1, "h", "main", self.attempt)
        snapshots = _Recorder(self).record()
        return [Batch(who, tuple(snapshots[i : i + 7])) for i in range(0, len(snapshots), 7)]


class _Recorder:
    def __init__(self, training: Training) -> None:
        self.t = training
        self.random = random.Random(training.seed)
        self.private = training.resident - 90 * MIB
        self.counts = dict(training.counts)
        self.length = 0.0
        self.rows: list[Snapshot] = []
        self.clock = 1_000.0 + 10_000 * training.attempt
        self.collected = 0
        self.extra: dict[str, float] = {}

    def record(self) -> list[Snapshot]:
        t = self.t
        self._snap("baseline", None, None, "baseline", self._declared())
        last_end = self._read()
        for g in range(t.first_generation, t.first_generation + t.generations):
            booked = {}
            before = last_end
            if g - t.first_generation < len(t.warm_up):
                self.private += t.warm_up[g - t.first_generation]
            for step in STEPS:
                if step.split("/")[0] in t.never:
                    continue
                self._run(step, g)
                reading = self._read()
                booked[step] = reading - before
                before = reading
                self._snap("phase_end", g, step, f"generation {g}: after {step}", (), reading)
            self.collected += 1
            last_end = self._read()
            booked["between"] = last_end - before
            series = {f"phase.{name}.bytes": round(v) for name, v in booked.items()}
            series |= {
                f"phase.{n}.executions": t.executions.get(n, 1) for n in booked if n != "between"
            }
            series["generation.seconds"] = 4.0 + self.random.uniform(-0.2, 0.2)
            self._snap("generation_end", g, None, f"generation {g}: end", (), last_end, series)
        return self.rows

    def _run(self, step: str, g: int) -> None:
        t = self.t
        if step == EPISODE:
            room = t.buffer_capacity - self.length
            added = min(room, t.buffer_capacity / t.buffer_full_after)
            self.length += added
            self.private += added / t.buffer_capacity * t.buffer_bytes
            self._count("numpy.ndarray", 0)
        for leak in t.leaks:
            if leak.phase == step:
                times = leak.at(g)
                self.private += times * leak.bytes
                for name, amount in leak.counts.items():
                    self._count(name, times * amount)

    def _count(self, name: str, amount: float) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def _read(self) -> float:
        return self.private + self.random.gauss(0, self.t.noise)

    def _snap(
        self,
        kind: str,
        generation: int | None,
        phase: str | None,
        label: str,
        events: Iterable[Event] = (),
        reading: float | None = None,
        more: dict[str, float] | None = None,
    ) -> None:
        t = self.t
        reading = self._read() if reading is None else reading
        self.clock += 1.0
        census = (
            kind == "generation_end" and generation is not None and generation % t.census_every == 0
        )
        census = census or kind == "baseline"
        over = t.peak_in_evolve if phase == EVOLVE else 0.0
        samples: dict[str, float] = {
            "process.anon_bytes": round(reading),
            "process.swap_bytes": 0,
            "process.rss_bytes": round(reading + 90 * MIB),
            "process.peak_bytes": round(reading + over + 90 * MIB),
            "tracked.replay.length": round(self.length),
            "tracked.replay.bytes": round(self.length / t.buffer_capacity * t.buffer_bytes * 1.03),
        }
        if t.collections:
            samples["python.collections_full"] = self.collected
        for name, value in self.counts.items():
            if name.startswith(_NO_TYPES):
                if census or name.startswith(_OFTEN_READ):
                    samples[name] = round(value)
            elif name in HEAP or census:
                samples[f"type.{name}.count"] = round(value)
        samples.update(more or {})
        holders = ()
        if kind == "generation_end" and generation is not None and generation >= 3:
            holders = tuple(h for leak in t.leaks if leak.at(generation) for h in leak.holders)
        sequence = len(self.rows)
        self.rows.append(
            Snapshot(
                sequence, self.clock, self.clock, generation, phase, label, kind, samples,
                tuple(events),
                census=Census(sequence, "full", 1.0, 50_000, ()) if census else None,
                holders=tuple(
                    Holder(sequence, h.type, h.path, self._held(h, generation), h.bytes_each)
                    for h in holders
                ),
            )
        )  # fmt: skip

    def _held(self, holder: Holder, generation: int | None) -> int:
        """Return a holder that holds more at each search, and the given count at the last."""
        if holder.path == CYCLIC_GARBAGE:
            return holder.count
        last = self.t.first_generation + self.t.generations - 1
        share = ((generation or 0) + 1) / (last + 1)
        return max(1, round(holder.count * share))

    def _declared(self) -> list[Event]:
        t = self.t
        events = [Event(0, 0.0, "watch", name) for name in t.watch]
        if t.declare_buffer:
            events.append(Event(0, 0.0, "track", "replay", data={"capacity": t.buffer_capacity}))
        events += [
            Event(0, 0.0, "expect", name, data={"low": low, "high": high, "after": after})
            for name, low, high, after in t.expectations
        ]
        return events


def loss_graph(size: float = 9 * MIB, start: int = 0) -> Leak:
    counts = {
        "torch.Tensor": 384, "tensors.count": 384, "tensors.graph_count": 384,
        "tensors.graph_bytes": size * 0.8, "container.train.losses.length": 384,
        "container.train.losses.bytes": 384 * 72,
    }  # fmt: skip
    return Leak(TRAIN, size, counts, start)


def kept_environments(size: float = 6 * MIB, start: int = 0) -> Leak:
    counts = {
        "trading.TradingEnvironment": 16, "numpy.ndarray": 64, "list": 48, "dict": 32,
        "arrays.count": 64, "arrays.bytes": size * 0.9,
        "container.trading.TradingEnvironment.episode_rewards.length": 16 * 145,
        "container.trainer.Trainer.kept.length": 16,
    }  # fmt: skip
    holder = Holder(
        0, "trading.TradingEnvironment", "trainer.Trainer.kept[*]", 16, round(size / 16)
    )
    return Leak(EVALUATE, size, counts, start, holders=(holder,))


def episode_history(size: float = 5 * MIB, start: int = 0) -> Leak:
    counts = {
        "container.trading.TradingEnvironment.episode_rewards.length": 16 * 145,
        "container.trading.TradingEnvironment.episode_rewards.bytes": size,
        "numpy.ndarray": 2320, "arrays.count": 2320, "arrays.bytes": size * 0.95,
    }  # fmt: skip
    return Leak(EPISODE, size, counts, start)


def old_population(size: float = 8 * MIB, start: int = 0) -> Leak:
    counts = {
        "agents.DDPGAgent": 16, "agents.Actor": 32, "torch.nn.parameter.Parameter": 768,
        "torch.Tensor": 512, "tensors.count": 512, "tensors.bytes": size * 0.9, "dict": 500,
        "container.trainer.Trainer.population_history.length": 1,
    }  # fmt: skip
    holder = Holder(
        0, "agents.DDPGAgent", "trainer.Trainer.population_history[*][*]", 16, round(size / 16)
    )
    return Leak(EVOLVE, size, counts, start, holders=(holder,))


def best_agents(size: float = 6 * MIB) -> Leak:
    improves = {0, 1, 2, 4, 5, 7, 10, 11, 13, 15}
    holder = Holder(0, "agents.DDPGAgent", "trainer.Trainer.best_agents[*]", 1, round(size))
    counts = {
        "agents.DDPGAgent": 1, "agents.Actor": 2, "torch.Tensor": 40, "tensors.bytes": size,
        "container.trainer.Trainer.best_agents.length": 1,
    }  # fmt: skip
    return Leak(EVOLVE, size, counts, times=lambda g: float(g % 16 in improves), holders=(holder,))


def figures(size: float = 8 * MIB) -> Leak:
    holder = Holder(
        0, "matplotlib.figure.Figure", "matplotlib._pylab_helpers.Gcf.figs", 1, round(size)
    )
    counts = {"matplotlib.figure.Figure": 1, "figures.open": 1, "dict": 900}
    return Leak(EVOLVE, size, counts, times=lambda g: float(g % 5 == 0), holders=(holder,))


def loss_history() -> Leak:
    counts = {
        "container.agents.DDPGAgent.losses.length": 384, "container.agents.DDPGAgent.losses.bytes": 384 * 32,
    }  # fmt: skip
    return Leak(TRAIN, 384 * 32, counts)


def fitness_history() -> Leak:
    counts = {
        "container.trainer.Trainer.fitness.length": 1, "container.trainer.Trainer.fitness.bytes": 32,
        "trainer.GenerationStats": 1,
    }  # fmt: skip
    return Leak(EVOLVE, 600, counts)


BASELINE = 1_000 * MIB


def curve(shape: Callable[[int], float], n: int, noise: float = 2.0) -> list[float]:
    """Return bytes at each generation end: a shape in MiB above the baseline, with Gaussian noise."""
    rng = random.Random(7)
    return [BASELINE + MIB * (shape(i) + rng.gauss(0, noise)) for i in range(n)]


def history_of(
    private: Sequence[float], limit: float | None = None, **others: Sequence[float | None]
) -> RunHistory:
    """Return a history with only one reading at the end of each generation."""
    n = len(private)
    series = {"process.anon_bytes": [round(v) for v in private]}
    series |= {
        name.replace("__", "."): [None if v is None else round(v) for v in row]
        for name, row in others.items()
    }
    times = [60.0 * i for i in range(n)]
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), times, times, list(range(n)), [None] * n, [""] * n,
        ["generation_end"] * n, series,
    )  # fmt: skip
    return RunHistory(
        "r", processes=(process,), limit_bytes=None if limit is None else round(limit)
    )


GB = 10**9
# Table of report 001: GB per generation for histories, environments and old populations.
OF_REPORT_001 = (17.5, 6.5, 2.5)


def crashed_at_13(scale: float) -> RunHistory:
    """Return the run of report 001: 13 of 25 generations, the buffer at 6,960 of 10,000, so no training phase."""
    histories, environments, populations = (scale * gb * GB for gb in OF_REPORT_001)
    run = Training(
        generations=13, total=25, never=(TRAIN,), resident=8.5 * GB, noise=50 * MIB,
        leaks=(episode_history(histories), kept_environments(environments), old_population(populations)),
        buffer_bytes=0.5 * GB, buffer_capacity=10_000, buffer_full_after=19,
    )  # fmt: skip
    return replace(run.history(), ended=True)


def as_crashed() -> float:
    """Return the scale of that run according to its crash: 175 GB after 13 generations."""
    return (175 * GB - 8.5 * GB) / 13 / sum(OF_REPORT_001) / GB
