"""Leaking runs: memory lost in every generation, from a later one on, or periodically. Each family is one function."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from .cases import Case, Leak, Sketch, log_uniform
from .healthy import fill_declared, fill_readable, kept_by_allocator

# Loss per generation as a share of the baseline.
SLOPES: Final = (0.004, 0.15)
_LITTLE: Final = (0.004, 0.008)
_SLOW: Final = 0.005


def draw_slope(rng: random.Random) -> float:
    return log_uniform(rng, *SLOPES)


def evenly(slope: float) -> Callable[[int], float]:
    return lambda k: slope * k


def every(period: int, slope: float) -> Callable[[int], float]:
    """Lose the whole of a period at its first generation, then nothing until the next period."""
    return lambda k: slope * period * ((k - 1) // period + 1)


def _soon(rng: random.Random, n: int) -> int:
    return rng.randint(0, n // 6)


def linear(rng: random.Random, n: int) -> Case:
    sketch, slope = Sketch(rng, n, phase_accounts=rng.random() < 0.5), draw_slope(rng)
    sketch.leak(0, slope, evenly(slope))
    return sketch.case("linear")


def late(rng: random.Random, n: int) -> Case:
    sketch, slope = Sketch(rng, n, phase_accounts=rng.random() < 0.5), draw_slope(rng)
    sketch.leak(rng.randint(n // 8, n // 2), slope, evenly(slope))
    return sketch.case("late start")


def rising_sawtooth(rng: random.Random, n: int) -> Case:
    """Let the collector free most of it periodically, and each time less than before."""
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    period = rng.randint(4, 10)
    size = rng.uniform(0.5, 3.0) * slope * period
    sketch.leak(_soon(rng, n), slope, evenly(slope))
    sketch.add(lambda i: size * (i % period) / period)
    return sketch.case("rising sawtooth")


def stairs(rng: random.Random, n: int) -> Case:
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    sketch.leak(_soon(rng, n), slope, every(rng.randint(4, 8), slope))
    return sketch.case("stairs")


def intermittent(rng: random.Random, n: int) -> Case:
    """Leak in every third generation."""
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    sketch.leak(_soon(rng, n), slope, every(3, slope))
    return sketch.case("intermittent")


def accelerating(rng: random.Random, n: int) -> Case:
    """Start with half the slope and end with one and a half times it."""
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    start = _soon(rng, n)
    sketch.leak(start, slope, lambda k: slope * k * (0.5 + 0.5 * k / (n - start)))
    return sketch.case("accelerating")


def fill_and_leak(rng: random.Random, n: int) -> Case:
    """Leak while a declared buffer fills."""
    sketch, slope = Sketch(rng, n, phase_accounts=rng.random() < 0.5), draw_slope(rng)
    fill_declared(sketch, rng.randint(n // 6, n), rng.uniform(0.3, 4.0))
    sketch.leak(0, slope, evenly(slope))
    return sketch.case("fill and leak")


def readable_fill_and_leak(rng: random.Random, n: int) -> Case:
    """Leak while a buffer fills whose capacity the client reads."""
    sketch, slope = Sketch(rng, n, phase_accounts=rng.random() < 0.5), draw_slope(rng)
    fill_readable(sketch, rng.randint(n // 6, n), rng.uniform(0.3, 4.0))
    sketch.leak(0, slope, evenly(slope))
    return sketch.case("readable fill and leak")


def after_full(rng: random.Random, n: int) -> Case:
    """Leak from the generation in which a declared buffer is full."""
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    full = rng.randint(n // 8, n // 2)
    fill_declared(sketch, full, rng.uniform(0.3, 2.0))
    sketch.leak(full, slope, evenly(slope))
    return sketch.case("after full")


def warm_up_and_leak(rng: random.Random, n: int) -> Case:
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    size, length = rng.uniform(0.1, 0.6), rng.randint(2, 10)
    sketch.add(lambda i: size * min(1.0, i / length))
    sketch.leak(0, slope, evenly(slope))
    return sketch.case("warm-up and leak")


def noisy(rng: random.Random, n: int) -> Case:
    """Scatter the readings by as much as one generation leaks."""
    slope = draw_slope(rng)
    sketch = Sketch(rng, n, noise=slope * rng.uniform(0.7, 1.3))
    sketch.leak(_soon(rng, n), slope, evenly(slope))
    return sketch.case("noisy")


def counted(rng: random.Random, n: int) -> Case:
    """Leak little memory, but with exactly rising counts of a class that is watched or measured."""
    slope = log_uniform(rng, *_LITTLE)
    sketch = Sketch(rng, n, phase_accounts=True)
    sketch.leak(_soon(rng, n), slope, evenly(slope))
    sketch.others |= sketch.witness
    if not any(series.endswith(".bytes") for series in sketch.witness):
        sketch.watched = ("app.Episode",)
    sketch.witness = {}
    return sketch.case("counted")


def two_at_once(rng: random.Random, n: int) -> Case:
    """Leak two classes in two phases from the same generation."""
    sketch, slope = Sketch(rng, n, phase_accounts=True), draw_slope(rng)
    start, part = _soon(rng, n), rng.uniform(0.3, 0.7)
    sketch.leak(start, part * slope, evenly(part * slope), phase=0, name="app.Environment")
    rest = (1 - part) * slope
    sketch.leak(start, rest, evenly(rest), phase=1, name="app.Episode")
    return sketch.case("two at once")


def slow(rng: random.Random, n: int) -> Case:
    sketch = Sketch(rng, n)
    sketch.leak(_soon(rng, n), _SLOW, evenly(_SLOW))
    return sketch.case("slow")


def children(rng: random.Random, n: int) -> Case:
    """Keep the process flat while its loader workers grow."""
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    start = _soon(rng, n)
    shares = tuple(slope * max(0, i - start + 1) for i in range(n))
    sketch.elsewhere("children.uss_bytes", rng.uniform(0.2, 1.0), Leak(start, slope, shares))
    sketch.others["children.count"] = (4.0,) * n
    return sketch.case("children")


def allocator(rng: random.Random, n: int) -> Case:
    """Let the C library keep freed memory, and more of it each time."""
    sketch, slope = Sketch(rng, n), draw_slope(rng)
    leak = sketch.leak(_soon(rng, n), slope, evenly(slope))
    sketch.others |= kept_by_allocator(sketch, leak.shares)
    sketch.witness = {}
    return sketch.case("allocator")
