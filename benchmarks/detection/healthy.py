"""Healthy runs: memory that rises, oscillates, steps or peaks without a leak. Each family is one function."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from .cases import Case, Sketch, Values

_CAPACITY: Final = 10_000  # items of a buffer
_TURN: Final = 2 * math.pi


def flat(rng: random.Random, n: int) -> Case:
    return Sketch(rng, n, phase_accounts=rng.random() < 0.5).case("flat")


def declared_fill(rng: random.Random, n: int) -> Case:
    """Fill a buffer of known capacity, possibly beyond the end of the run; its size is measured to 10 %."""
    sketch = Sketch(rng, n, phase_accounts=rng.random() < 0.5)
    fill_declared(sketch, rng.randint(n // 6, round(1.3 * n)), rng.uniform(0.3, 4.0))
    return sketch.case("declared fill")


def fill_declared(sketch: Sketch, full_after: int, size: float) -> None:
    """Add a declared buffer that is full after ``full_after`` generations and then holds ``size`` of the baseline."""
    held = [min(1.0, (i + 1) / full_after) for i in range(sketch.n)]
    measured = sketch.rng.uniform(0.9, 1.1) * size * sketch.baseline
    sketch.add(lambda i: size * held[i])
    sketch.others["tracked.buffer.length"] = tuple(float(int(_CAPACITY * h)) for h in held)
    sketch.others["tracked.buffer.bytes"] = tuple(measured * h for h in held)
    sketch.capacities["buffer"] = _CAPACITY


def undeclared_fill(rng: random.Random, n: int) -> Case:
    """Fill a buffer without declared capacity within the run, in half of the runs in native memory."""
    sketch = Sketch(rng, n)
    full, size = rng.randint(n // 6, 2 * n // 3), rng.uniform(0.3, 4.0)
    held = [min(1.0, (i + 1) / full) for i in range(n)]
    sketch.add(lambda i: size * held[i])
    if rng.random() < 0.5:
        sketch.others["container.app.Replay.items.length"] = tuple(
            float(int(_CAPACITY * h)) for h in held
        )
    return sketch.case("undeclared fill")


def readable_fill(rng: random.Random, n: int) -> Case:
    """Fill a buffer without declaration whose capacity the client reads."""
    sketch = Sketch(rng, n, phase_accounts=rng.random() < 0.5)
    fill_readable(sketch, rng.randint(n // 6, 2 * n // 3), rng.uniform(0.3, 4.0))
    return sketch.case("readable fill")


def fill_readable(sketch: Sketch, full: int, size: float) -> None:
    """Fill a deque with ``maxlen`` or arrays that were allocated first, until generation ``full``."""
    n = sketch.n
    held = [min(1.0, (i + 1) / full) for i in range(n)]
    sketch.add(lambda i: size * held[i])
    if sketch.rng.random() < 0.5:
        total = size * sketch.baseline
        sketch.others["arrays.written_bytes"] = tuple(total * h for h in held)
        sketch.others["arrays.unwritten_bytes"] = tuple(total * (1 - h) for h in held)
        return
    measured = sketch.rng.uniform(0.9, 1.1) * size * sketch.baseline
    container = "container.app.Replay.items"
    sketch.others[f"{container}.length"] = tuple(float(int(_CAPACITY * h)) for h in held)
    sketch.others[f"{container}.bytes"] = tuple(measured * h for h in held)
    sketch.others[f"{container}.capacity"] = (float(_CAPACITY),) * n


def saturation(rng: random.Random, n: int) -> Case:
    sketch = Sketch(rng, n)
    pace, size = rng.uniform(2, n / 5), rng.uniform(0.1, 1.5)
    sketch.add(lambda i: size * (1 - math.exp(-i / pace)))
    return sketch.case("saturation")


def undeclared_saturation(rng: random.Random, n: int) -> Case:
    """Remember each state of a finite set when it is first seen; nothing declares or shows the size of the set."""
    sketch = Sketch(rng, n)
    pace, size, states = rng.uniform(3, n / 3), rng.uniform(0.3, 4.0), rng.randint(500, 20_000)
    seen = [0]
    for _ in range(n):
        unseen = states - seen[-1]
        new = unseen * (1 - math.exp(-1 / pace))
        seen.append(min(states, seen[-1] + max(0, round(rng.gauss(new, math.sqrt(new))))))
    held = [count / states for count in seen[1:]]
    sketch.add(lambda i: size * held[i])
    _count(sketch, held, size, states)
    return sketch.case("undeclared saturation")


def undeclared_sawtooth(rng: random.Random, n: int) -> Case:
    """Clear a store after many generations in which it grew evenly."""
    sketch = Sketch(rng, n)
    period, size = rng.randint(13, max(14, n // 3)), rng.uniform(0.3, 2.0)
    held = [(i % period + 1) / period for i in range(n)]
    sketch.add(lambda i: size * held[i])
    _count(sketch, held, size, _CAPACITY)
    return sketch.case("undeclared sawtooth")


def refill(rng: random.Random, n: int) -> Case:
    """Hold a number of instances, release them, and slowly create as many again."""
    sketch = Sketch(rng, n)
    until, pace, size = rng.randint(4, n // 4), rng.randint(8, n // 2), rng.uniform(0.3, 2.0)
    held = [1.0 if i < until else min(1.0, (i - until) / pace) for i in range(n)]
    sketch.add(lambda i: size * held[i])
    _count(sketch, held, size, rng.randint(50, 5_000))
    return sketch.case("refill")


def _count(sketch: Sketch, held: Sequence[float], size: float, most: int) -> None:
    """Count what is held in a container or as instances of a class, in half of the runs with its bytes."""
    name, what = sketch.rng.choice(
        (("container.app.Memory.seen", "length"), ("type.app.Entry", "count"))
    )
    sketch.others[f"{name}.{what}"] = tuple(float(round(most * h)) for h in held)
    if sketch.rng.random() < 0.5:
        measured = sketch.rng.uniform(0.9, 1.1) * size * sketch.baseline
        sketch.others[f"{name}.bytes"] = tuple(measured * h for h in held)


def logarithm(rng: random.Random, n: int) -> Case:
    sketch = Sketch(rng, n)
    size = rng.uniform(0.03, 0.3)
    sketch.add(lambda i: size * math.log1p(i))
    return sketch.case("logarithm")


def steps(rng: random.Random, n: int) -> Case:
    """Add one to four permanent steps up."""
    sketch = Sketch(rng, n)
    found = [(rng.randint(2, n - 2), rng.uniform(0.05, 0.6)) for _ in range(rng.randint(1, 4))]
    sketch.add(lambda i: sum(size for at, size in found if i >= at))
    return sketch.case("steps")


def sawtooth(rng: random.Random, n: int) -> Case:
    """Add memory that the collector frees every few generations."""
    sketch = Sketch(rng, n)
    period, size = rng.randint(3, 12), rng.uniform(0.05, 0.8)
    sketch.add(lambda i: size * (i % period) / period)
    return sketch.case("sawtooth")


def season(rng: random.Random, n: int) -> Case:
    sketch = Sketch(rng, n)
    period, size, begin = rng.uniform(6, 30), rng.uniform(0.03, 0.3), rng.uniform(0, _TURN)
    sketch.add(lambda i: size * (1 + math.sin(_TURN * i / period + begin)))
    return sketch.case("season")


def wandering(rng: random.Random, n: int) -> Case:
    """Add slow noise that always returns to its mean."""
    sketch = Sketch(rng, n)
    pull, size, levels = rng.uniform(0.05, 0.3), rng.uniform(0.005, 0.03), [0.0]
    for _ in range(n - 1):
        levels.append((1 - pull) * levels[-1] + rng.gauss(0, size))
    sketch.add(lambda i: levels[i])
    return sketch.case("wandering")


def page_cache(rng: random.Random, n: int) -> Case:
    """Keep files in the page cache up to the limit; the process itself does not grow."""
    sketch = Sketch(rng, n)
    room, full = 0.95 * (sketch.headroom - 1), rng.randint(n // 6, n)
    files = [sketch.baseline * room * min(1.0, (i + 1) / full) for i in range(n)]
    shared = sketch.baseline * rng.uniform(0.02, 0.2)
    sketch.others["process.file_bytes"] = tuple(files)
    sketch.others["process.shared_bytes"] = tuple(shared for _ in range(n))
    sketch.others["process.rss_bytes"] = tuple(sketch.baseline + f + shared for f in files)
    return sketch.case("page cache")


def arenas(rng: random.Random, n: int) -> Case:
    """Add allocator arenas: one jump each, most of them early, and none once every thread has its own."""
    sketch = Sketch(rng, n)
    at = [int(0.4 * n * rng.random() ** 2) for _ in range(rng.randint(3, 6))]
    each = rng.uniform(0.02, 0.06)
    held = [each * sum(a <= i for a in at) for i in range(n)]
    sketch.add(lambda i: held[i])
    sketch.others |= kept_by_allocator(sketch, held)
    return sketch.case("arenas")


def kept_by_allocator(sketch: Sketch, held: Sequence[float]) -> dict[str, Values]:
    """Return the C library's own figures when it keeps these shares of the baseline without using them."""
    before, says = sketch.rng.uniform(0.01, 0.05), sketch.rng.uniform(0.9, 1.0)
    return {
        "allocator.kept_bytes": tuple(sketch.baseline * (before + says * h) for h in held),
        "allocator.in_use_bytes": tuple(sketch.baseline * 0.8 for _ in held),
    }


def checkpoints(rng: random.Random, n: int) -> Case:
    """Hold a checkpoint in memory at the end of every k-th generation."""
    sketch = Sketch(rng, n)
    period, size = rng.randint(5, 20), rng.uniform(0.1, 1.0)
    sketch.add(lambda i: size * (i % period == period - 1))
    return sketch.case("checkpoints")


def evaluations(rng: random.Random, n: int) -> Case:
    """Run a larger evaluation every k generations: a peak inside it, and a rest that the next one frees."""
    sketch = Sketch(rng, n, phase_accounts=True)
    period, size, left = rng.randint(4, 12), rng.uniform(0.3, 2.0), rng.uniform(0.0, 0.1)
    sketch.passes(lambda i: size * (i % period == period - 1), 0)
    sketch.add(lambda i: left * size * (i % period == period - 1))
    return sketch.case("evaluations")


def population(rng: random.Random, n: int) -> Case:
    """Let the population grow and shrink between two sizes; its members are counted."""
    sketch = Sketch(rng, n)
    low, high, each = 8, rng.randint(16, 40), rng.uniform(0.005, 0.03)
    usual = (low + high) / 2
    sizes = [round(usual)]
    for _ in range(n - 1):
        step = 0.3 * (usual - sizes[-1]) + rng.gauss(0, (high - low) / 6)
        sizes.append(min(high, max(low, round(sizes[-1] + step))))
    sketch.add(lambda i: each * (sizes[i] - low))
    sketch.others["type.app.Agent.count"] = tuple(float(size) for size in sizes)
    return sketch.case("population")


def warm_up(rng: random.Random, n: int) -> Case:
    """Grow in each of ten generations by the same or a little less, and not after them."""
    sketch = Sketch(rng, n)
    size, bend = rng.uniform(0.1, 1.0), rng.uniform(0.6, 1.0)
    sketch.add(lambda i: size * min(1.0, i / 10) ** bend)
    return sketch.case("warm-up")


def resume(rng: random.Random, n: int) -> Case:
    """Interrupt the run, restart it some generations earlier in a new process, and warm up again."""
    sketch = Sketch(rng, n)
    broke, back = rng.randint(n // 4, 3 * n // 4), rng.randint(0, 6)
    lower, pace, size = rng.uniform(0.0, 0.3), rng.randint(1, 4), rng.uniform(0.1, 0.5)
    since = [i if i < broke else i - broke for i in range(n)]
    sketch.add(lambda i: size * min(1.0, since[i] / pace) - lower * (i >= broke))
    sketch.generation = tuple(i if i < broke else i - back for i in range(n))
    sketch.attempt = tuple(1 if i < broke else 2 for i in range(n))
    return sketch.case("resume")
