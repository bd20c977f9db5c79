"""What it costs to examine a long run: about a second at most, and no more than in proportion to its length.

Measured as the best of three, since the machine may be busy; the bounds leave a factor of three.
"""

from __future__ import annotations

import random
import sys
import time

import pytest

from leakline.analysis import RunHistory, examine
from leakline.analysis.run_history import Expectation, ProcessHistory

MIB = 2**20
PHASES = ("evaluate", "train", "evolve", None)


def _history(generations: int, types: int = 60) -> RunHistory:
    """Four snapshots in each generation, 60 series: steady, noisy, growing and sparse counts, memory that leaks."""
    rng = random.Random(1)
    n = 4 * generations
    generation = [i // 4 for i in range(n)]
    phase = [PHASES[i % 4] for i in range(n)]
    kind = ["generation_end" if p is None else "phase_end" for p in phase]
    series: dict[str, list[float | int | None]] = {
        "process.anon_bytes": [
            round(500 * MIB + i * MIB / 4 + rng.gauss(0, MIB)) for i in range(n)
        ],
    }
    for t in range(types - 1):
        name = f"type.app.Class{t}.count"
        if t % 4 == 0:
            series[name] = [100 + t] * n
        elif t % 4 == 1:
            series[name] = [100 + round(rng.gauss(0, 5)) for _ in range(n)]
        elif t % 4 == 2:
            series[name] = [100 + 3 * g for g in generation]
        else:
            series[name] = [50 + i if i % 40 == 0 else None for i in range(n)]
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), [float(i) for i in range(n)], [float(i) for i in range(n)],
        generation, phase, [""] * n, kind, series,
    )  # fmt: skip
    return RunHistory("r", processes=(process,), expectations=(Expectation("Class0", 100, 100),))


def _seconds(history: RunHistory) -> float:
    best = 1e9
    for _ in range(3):
        began = time.process_time()
        examine(history)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.long
@pytest.mark.alone
def test_a_thousand_generations_are_examined_in_about_a_second() -> None:
    short, long = _seconds(_history(250)), _seconds(_history(1000))
    sys.stdout.write(f"\nexamine: 250 generations {short:.2f} s, 1,000 generations {long:.2f} s\n")
    assert long < 3.0
    assert long < 6 * short + 0.5
