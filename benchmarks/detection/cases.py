"""A generated run with its ground truth, and the sketch it is built from. Memory in bytes, shares of the baseline."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MIB: Final = 2**20
GIB: Final = 2**30
SHORTEST: Final = 30  # generations
LONGEST: Final = 150
PHASES: Final = ("evaluate", "train", "evolve")
# Standard deviation of readings as a share of the baseline, and their autocorrelation.
_NOISE: Final = (0.002, 0.02)
_RESEMBLANCE: Final = (0.0, 0.6)
_BASELINE_BYTES: Final = (0.3 * GIB, 30 * GIB)
# The limit of a healthy run as a multiple of its peak memory.
_HEADROOM: Final = (1.2, 4.0)
# Half of the programs declare their planned length, as a multiple of the generations seen.
_PLANNED: Final = (1.2, 2.0)

Values = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Leak:
    """The lost memory: ``shares[i]`` of the baseline by the end of reading ``i``, without noise.

    ``start`` is the first generation that leaks, ``slope`` its loss per generation as a share of the baseline.
    """

    start: int
    slope: float
    shares: Values


@dataclass(frozen=True, slots=True)
class Case:
    """One run: the readings at the end of each generation, and the ground truth.

    ``private`` contains noise, ``clean`` does not. ``beside`` is memory outside the process that counts towards the
    limit, with noise. ``others`` are further series by name, ``witness`` those that a second witness adds. ``out_at``
    is the reading at which a leaking run reaches ``limit_bytes``.
    """

    family: str
    baseline: float
    private: Values
    clean: Values
    limit_bytes: float
    leak: Leak | None = None
    total: int | None = None
    beside: Values = ()
    others: Mapping[str, Values] = field(default_factory=dict)
    witness: Mapping[str, Values] = field(default_factory=dict)
    watched: tuple[str, ...] = ()
    capacities: Mapping[str, int] = field(default_factory=dict)
    generation: tuple[int, ...] = ()
    attempt: tuple[int, ...] = ()
    # Private bytes at the end of each phase, one row per phase; empty without memory by phase.
    inside: tuple[Values, ...] = ()
    where: Mapping[str, int] = field(default_factory=dict)  # series -> phase of the change
    initially: Mapping[str, float] = field(
        default_factory=dict
    )  # series -> value before the first generation
    out_at: int | None = None

    def __len__(self) -> int:
        return len(self.private)

    @property
    def seen(self) -> list[float]:
        """The input of single-curve detectors: memory that cannot be reclaimed, of all processes."""
        if not self.beside:
            return list(self.private)
        return [a + b for a, b in zip(self.private, self.beside, strict=True)]


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def first_order_noise(rng: random.Random, n: int, size: float) -> list[float]:
    """Return AR(1) noise: each reading keeps a part of the last deviation; ``size`` is the standard deviation."""
    keep = rng.uniform(*_RESEMBLANCE)
    fresh = size * math.sqrt(1 - keep * keep)
    found = [rng.gauss(0, size)]
    while len(found) < n:
        found.append(keep * found[-1] + rng.gauss(0, fresh))
    return found


class Sketch:
    """A run under construction: parts of its memory, each in one phase, and further series."""

    def __init__(
        self,
        rng: random.Random,
        generations: int,
        *,
        noise: float | None = None,
        phase_accounts: bool = False,
    ) -> None:
        self.rng, self.n, self.phase_accounts = rng, generations, phase_accounts
        self.baseline = log_uniform(rng, *_BASELINE_BYTES)
        self.headroom = log_uniform(rng, *_HEADROOM)
        self.noise = log_uniform(rng, *_NOISE) if noise is None else noise
        self.total = round(generations * rng.uniform(*_PLANNED)) if rng.random() < 0.5 else None
        self.others: dict[str, Values] = {}
        self.witness: dict[str, Values] = {}
        self.where: dict[str, int] = {}
        self.initially: dict[str, float] = {}
        self.watched: tuple[str, ...] = ()
        self.capacities: dict[str, int] = {}
        self.generation = tuple(range(generations))
        self.attempt = (1,) * generations
        self._parts: list[tuple[int, list[float]]] = []
        self._passing: list[tuple[int, list[float]]] = []
        self._leaks: list[Leak] = []
        self._beside: tuple[Values, Values] | None = None

    def add(self, shape: Callable[[int], float], phase: int = 0) -> None:
        """Add memory on top of the baseline, as a share per reading, that changes in one phase."""
        self._parts.append((phase, [shape(i) for i in range(self.n)]))

    def passes(self, shape: Callable[[int], float], phase: int) -> None:
        """Add memory that exists at the end of one phase and is gone at the end of the next."""
        self._passing.append((phase, [shape(i) for i in range(self.n)]))

    def leak(
        self,
        start: int,
        slope: float,
        lost: Callable[[int], float],
        *,
        phase: int = 1,
        name: str = "app.Episode",
    ) -> Leak:
        """Lose ``lost(k)`` of the baseline by the end of the ``k``-th leaking generation, counted from one."""
        shares = tuple(lost(i - start + 1) if i >= start else 0.0 for i in range(self.n))
        leak = Leak(start, slope, shares)
        self._leaks.append(leak)
        self._parts.append((phase, list(shares)))
        self._counted(leak, phase, name)
        return leak

    def elsewhere(self, series: str, before: float, leak: Leak) -> None:
        """Add a leak in other processes that share the limit, on top of ``before`` (a share of the baseline)."""
        self._leaks.append(leak)
        clean = tuple(self.baseline * (before + share) for share in leak.shares)
        scatter = first_order_noise(self.rng, self.n, self.noise * self.baseline)
        self._beside = (clean, tuple(max(0.0, a + b) for a, b in zip(clean, scatter, strict=True)))
        self.others[series] = self._beside[1]

    def _counted(self, leak: Leak, phase: int, name: str) -> None:
        """Add the second witness: counts of a class and its list grow with the leak; half of them have bytes."""
        each, before = self.rng.randint(4, 64), self.rng.randint(0, 200)
        counts = tuple(float(before + round(each * s / leak.slope)) for s in leak.shares)
        kept = f"container.app.{name.rsplit('.', 1)[-1]}Log.kept.length"
        self.witness |= {f"type.{name}.count": counts, kept: tuple(c - before for c in counts)}
        if self.rng.random() < 0.5:
            size = self.rng.uniform(0.8, 1.0) * leak.slope * self.baseline / each
            self.witness[f"type.{name}.bytes"] = tuple(size * c for c in counts)
        self.initially |= {f"type.{name}.count": float(before), kept: 0.0}
        self.where |= dict.fromkeys(self.witness.keys() - self.where.keys(), phase)

    def case(self, family: str) -> Case:
        clean = self._levels()
        scatter = first_order_noise(self.rng, self.n, self.noise * self.baseline)
        leak = _together(self._leaks)
        outside, read = self._beside or ((0.0,) * self.n, ())
        under_limit = [a + b for a, b in zip(clean, outside, strict=True)]
        peak = max(under_limit)
        return Case(
            family, self.baseline, _sum(clean, scatter), tuple(clean),
            peak if leak else peak * self.headroom, leak, self.total, read, self.others, self.witness,
            self.watched, self.capacities, self.generation, self.attempt,
            self._inside(clean, scatter) if self.phase_accounts else (), self.where,
            self.initially,
            under_limit.index(peak) if leak else None,
        )  # fmt: skip

    def _levels(self) -> list[float]:
        return [
            self.baseline * (1 + sum(part[i] for _, part in self._parts)) for i in range(self.n)
        ]

    def _inside(self, clean: Sequence[float], scatter: Sequence[float]) -> tuple[Values, ...]:
        """Return the readings at the end of each phase: changes in or before the phase, plus the run's noise."""
        return tuple(
            tuple(self._at_phase_end(i, phase, scatter) for i in range(self.n))
            for phase in range(len(PHASES))
        )

    def _at_phase_end(self, i: int, phase: int, scatter: Sequence[float]) -> float:
        share = 1.0
        for where, part in self._parts:
            share += part[i] if where <= phase else (part[i - 1] if i else 0.0)
        share += sum(part[i] for where, part in self._passing if where == phase)
        passed = (phase + 1) / (len(PHASES) + 1)
        drift = passed * scatter[i] + (1 - passed) * scatter[max(0, i - 1)]
        return self.baseline * (share + self.rng.gauss(0, 0.3 * self.noise)) + drift


def _together(leaks: Sequence[Leak]) -> Leak | None:
    """Combine several leaks of one run into one ground truth with their total loss."""
    if not leaks:
        return None
    shares = tuple(sum(column) for column in zip(*(leak.shares for leak in leaks), strict=True))
    return Leak(min(leak.start for leak in leaks), sum(leak.slope for leak in leaks), shares)


def _sum(clean: Sequence[float], scatter: Sequence[float]) -> Values:
    return tuple(max(0.0, a + b) for a, b in zip(clean, scatter, strict=True))
