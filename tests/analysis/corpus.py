"""Generated runs with known truth: families of benign growth and of leaks, one reading per generation."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import builder

from leakline.analysis.run_history import RunHistory

BASE = 4 * 2**30


@dataclass(frozen=True)
class Case:
    family: str
    values: list[float]  # private bytes per generation
    start: int | None = None  # first leaking generation
    slope: float = 0.0  # share of the baseline per generation
    length: list[float] | None = None  # length of a declared container
    capacity: int = 0
    sizes: list[float] | None = None


def history_of(case: Case, end: int | None = None) -> RunHistory:
    if case.length is None or case.sizes is None:
        return builder.history_of(case.values[:end])
    series = {
        "tracked__buffer__length": case.length[:end],
        "tracked__buffer__bytes": case.sizes[:end],
    }
    history = builder.history_of(case.values[:end], **series)
    return replace(history, capacities={"buffer": case.capacity})


def _noise(rng: random.Random, n: int) -> list[float]:
    """Return AR(1) noise of 0.2 to 2 % of the baseline."""
    size = math.exp(rng.uniform(math.log(0.002), math.log(0.02))) * BASE
    rho = rng.uniform(0.0, 0.6)
    out, last = [], 0.0
    for _ in range(n):
        last = rho * last + rng.gauss(0, size * math.sqrt(1 - rho * rho))
        out.append(last)
    return out


def _plus(noise: list[float], shape: Callable[[int], float]) -> list[float]:
    return [BASE * (1 + shape(i)) + e for i, e in enumerate(noise)]


def flat(rng: random.Random, n: int) -> Case:
    return Case("flat", _plus(_noise(rng, n), lambda i: 0.0))


def fill(rng: random.Random, n: int) -> Case:
    """A declared buffer that fills to its capacity; its size is known to 10 %."""
    full, size = rng.randint(n // 6, n), rng.uniform(0.3, 4.0)
    error = rng.uniform(0.9, 1.1)
    length = [10_000 * min(1.0, (i + 1) / full) for i in range(n)]
    values = _plus(_noise(rng, n), lambda i: size * length[i] / 10_000)
    sizes = [BASE * size * error * held / 10_000 for held in length]
    return Case("fill", values, length=length, capacity=10_000, sizes=sizes)


def saturation(rng: random.Random, n: int) -> Case:
    tau, size = rng.uniform(2, n / 5), rng.uniform(0.1, 1.5)
    return Case("saturation", _plus(_noise(rng, n), lambda i: size * (1 - math.exp(-i / tau))))


def logarithm(rng: random.Random, n: int) -> Case:
    size = rng.uniform(0.03, 0.3)
    return Case("logarithm", _plus(_noise(rng, n), lambda i: size * math.log1p(i)))


def steps(rng: random.Random, n: int) -> Case:
    at = sorted((rng.randint(2, n - 2), rng.uniform(0.05, 0.6)) for _ in range(rng.randint(1, 4)))
    return Case("steps", _plus(_noise(rng, n), lambda i: sum(size for a, size in at if i >= a)))


def sawtooth(rng: random.Random, n: int) -> Case:
    period, size = rng.randint(3, 12), rng.uniform(0.05, 0.8)
    return Case("sawtooth", _plus(_noise(rng, n), lambda i: size * (i % period) / period))


def wandering(rng: random.Random, n: int) -> Case:
    level, pull = 0.0, rng.uniform(0.05, 0.3)
    size = rng.uniform(0.005, 0.03)
    levels = []
    for _ in range(n):
        level += -pull * level + rng.gauss(0, size)
        levels.append(level)
    return Case("wandering", _plus(_noise(rng, n), lambda i: levels[i]))


def season(rng: random.Random, n: int) -> Case:
    period, size, phase = rng.uniform(6, 30), rng.uniform(0.03, 0.3), rng.uniform(0, 6.3)
    return Case(
        "season",
        _plus(_noise(rng, n), lambda i: size * (1 + math.sin(6.2832 * i / period + phase))),
    )


def arenas(rng: random.Random, n: int) -> Case:
    """Allocator arenas: one jump each, most of them early, and none once every thread has its own arena."""
    at = sorted(int(0.4 * n * rng.random() ** 2) for _ in range(rng.randint(3, 6)))
    return Case("arenas", _plus(_noise(rng, n), lambda i: 0.04 * sum(a <= i for a in at)))


def warm_up(rng: random.Random, n: int) -> Case:
    size, length = rng.uniform(0.1, 1.0), rng.randint(2, 8)
    return Case("warm_up", _plus(_noise(rng, n), lambda i: size * min(1.0, i / length)))


def peaks(rng: random.Random, n: int) -> Case:
    period, size = rng.randint(3, 12), rng.uniform(0.1, 1.0)
    return Case("peaks", _plus(_noise(rng, n), lambda i: size * (i % period == 0)))


def release(rng: random.Random, n: int) -> Case:
    at, size = rng.randint(n // 4, 3 * n // 4), rng.uniform(0.1, 0.5)
    return Case("release", _plus(_noise(rng, n), lambda i: -size * (i >= at)))


def _slope(rng: random.Random) -> float:
    return math.exp(rng.uniform(math.log(0.005), math.log(0.15)))


def linear(rng: random.Random, n: int) -> Case:
    s = _slope(rng)
    return Case("linear", _plus(_noise(rng, n), lambda i: s * i), 0, s)


def late(rng: random.Random, n: int) -> Case:
    s, at = _slope(rng), rng.randint(n // 8, n // 2)
    return Case("late", _plus(_noise(rng, n), lambda i: s * max(0, i - at)), at + 1, s)


def rising_sawtooth(rng: random.Random, n: int) -> Case:
    s, period = _slope(rng), rng.randint(4, 10)
    size = rng.uniform(0.5, 3.0) * s * period
    shape = _plus(_noise(rng, n), lambda i: s * i + size * (i % period) / period)
    return Case("rising sawtooth", shape, 0, s)


def stairs(rng: random.Random, n: int) -> Case:
    s, period = _slope(rng), rng.randint(2, 6)
    return Case("stairs", _plus(_noise(rng, n), lambda i: s * period * (i // period)), 0, s)


def accelerating(rng: random.Random, n: int) -> Case:
    s = _slope(rng)
    return Case("accelerating", _plus(_noise(rng, n), lambda i: s * i * (0.5 + i / n)), 0, s)


def fill_and_leak(rng: random.Random, n: int) -> Case:
    buffer = fill(rng, n)
    s = max(_slope(rng), 0.01)
    values = [v + BASE * s * i for i, v in enumerate(buffer.values)]
    return Case("fill and leak", values, 0, s, buffer.length, buffer.capacity, buffer.sizes)


def intermittent(rng: random.Random, n: int) -> Case:
    s, share = _slope(rng), rng.uniform(0.3, 0.8)
    total, levels = 0.0, []
    for _ in range(n):
        total += s / share * (rng.random() < share)
        levels.append(total)
    return Case("intermittent", _plus(_noise(rng, n), lambda i: levels[i]), 0, s)


def warm_up_and_leak(rng: random.Random, n: int) -> Case:
    s, size, length = _slope(rng), rng.uniform(0.1, 0.6), rng.randint(2, 6)
    shape = _plus(_noise(rng, n), lambda i: s * i + size * min(1.0, i / length))
    return Case("warm-up and leak", shape, 0, s)


BENIGN = (
    flat, fill, saturation, logarithm, steps, sawtooth, wandering, season, arenas, warm_up, peaks, release,
)  # fmt: skip
LEAKS = (
    linear, late, rising_sawtooth, stairs, accelerating, fill_and_leak, intermittent, warm_up_and_leak,
)  # fmt: skip
