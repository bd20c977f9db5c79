"""The census against the fastest pure pass, in one process and in turns; generous, for shared machines."""

from __future__ import annotations

import gc
from collections import Counter
from time import process_time

import pytest

from leakline.probes.census import take_census
from leakline.probes.native import native

pytestmark = pytest.mark.alone


class Agent:
    def __init__(self, number: int) -> None:
        self.number, self.memory = number, [number]


def _reference() -> None:
    Counter(map(type, gc.get_objects()))


def test_a_full_census_costs_a_few_passes_over_the_collectors_list() -> None:
    kept = [(Agent(i), {"key": [i]}, {i}) for i in range(60_000)]
    gc.collect()
    times: dict[str, list[float]] = {"reference": [], "census": []}
    for _ in range(3):
        for name, work in (("reference", _reference), ("census", take_census)):
            started = process_time()
            work()
            times[name].append(process_time() - started)
    ratio = min(times["census"]) / min(times["reference"])
    # Measured 1.6 to 2.5 natively, 2.9 to 7 in Python; `make bench-client CHECK=1` holds the real target.
    limit = 5 if native() is not None else 10
    assert ratio < limit, f"{ratio:.2f} times the reference for {len(kept)} rows"
