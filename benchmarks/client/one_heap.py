"""Measure scans of one heap in a separate process and print rows as JSON.

example: python -m benchmarks.client.one_heap 1000000 census,pauses
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from .heaps import Kept, Planted, Registry, Suspect, planted_heap, tracked_counts
from .looks import Look, PhaseEndReadings, is_native, looks
from .peers import peers
from .rows import NOT_BUILT, NOT_MEASURED, Row, to_json
from .timing import PATIENCE_SECONDS, busy, each, in_turns, longest_gap_ms, once, reference


def main(objects: int, parts: tuple[str, ...]) -> None:
    _load_torch()
    arrays_before = _arrays()
    planted = planted_heap(objects)
    table = f"heap of {objects:,} objects"
    for row in _rows(objects, table, parts, planted, arrays_before):
        print(json.dumps(to_json(row.scaled())), flush=True)


def _rows(
    objects: int, table: str, parts: tuple[str, ...], planted: Planted, arrays_before: int
) -> Iterator[Row]:
    bench = Bench(objects, table, planted, arrays_before)
    if "census" in parts:
        yield from bench.census()
    if {"pauses", "peers"} & set(parts):
        baseline_ms = longest_gap_ms(busy)
        if "pauses" in parts:
            yield from bench.pauses(baseline_ms)
        if "peers" in parts and is_native():
            yield from bench.peers(baseline_ms)


@dataclass(frozen=True, slots=True)
class Bench:
    """One heap and the parts that are measured on it."""

    objects: int
    table: str
    planted: Planted
    arrays_before: int

    def census(self) -> Iterator[Row]:
        """Yield CPU time and memory of every scan next to the reference, and whether the counts are right."""
        if is_native():
            yield self._reference()
            yield from self._phase_end()
        for look in looks(self.objects):
            if look.run is None:
                yield Row(self.table, look.name, missing=NOT_BUILT, note=look.why)
            else:
                yield self._look(look, look.run)

    def pauses(self, baseline_ms: float) -> Iterator[Row]:
        """Yield the longest time that a thread could not run during each scan, minus the cost of switching alone."""
        if is_native():
            yield Row(self.table, "reference", {"pause_ms": _beyond(baseline_ms, reference)})
            yield Row(
                self.table, "a busy program, nothing measured", {"pause_ms": baseline_ms},
                note="subtracted from the other pauses",
            )  # fmt: skip
        for look in looks(self.objects):
            if look.run is None:
                yield Row(self.table, look.name, missing=NOT_BUILT, note=look.why)
                continue
            at_most = {} if look.pause_at_most_ms is None else {"pause_ms": look.pause_at_most_ms}
            yield Row(self.table, look.name, {"pause_ms": _beyond(baseline_ms, look.run)}, at_most)

    def peers(self, baseline_ms: float) -> Iterator[Row]:
        """Yield cost, pauses and results of the peers."""
        for look, found in peers():
            if look.run is None:
                yield Row(self.table, look.name, missing=NOT_MEASURED, note=look.why)
            else:
                yield self._peer(look, look.run, found, baseline_ms)

    def _reference(self) -> Row:
        first = once(reference)
        cost = in_turns(reference)
        figures = {"cpu_ms": cost.milliseconds, "ratio": 1.0, "peak_mb": first.peak_mb}
        listed = len(gc.get_objects())
        note = f"{listed:,} objects listed, {self.planted.arrays:,} arrays planted"
        return Row(self.table, "reference", figures, note=note)

    def _phase_end(self) -> Iterator[Row]:
        for reading in PhaseEndReadings().readings():
            at_most = {} if reading.at_most_ms is None else {"cpu_ms": reading.at_most_ms}
            yield Row(self.table, reading.name, {"cpu_ms": each(reading.run)}, at_most)

    def _look(self, look: Look, run: Callable[[], Any]) -> Row:
        first = once(run)
        cost = in_turns(run)
        figures = {"cpu_ms": cost.milliseconds, "ratio": cost.ratio, "peak_mb": first.peak_mb}
        at_most = {} if look.ratio_at_most is None else {"ratio": look.ratio_at_most}
        if look.cpu_at_most_ms is not None:
            at_most["cpu_ms"] = look.cpu_at_most_ms
        exactly: dict[str, float] = {}
        if look.counts is not None:
            arrays, counts = look.counts(first.answer)
            figures |= {"arrays_found": arrays - self.arrays_before, "classes_off": _off(counts)}
            exactly = {"arrays_found": self.planted.arrays, "classes_off": 0}
        if look.is_right is not None:
            figures["holder_named"], exactly["holder_named"] = look.is_right(first.answer), 1
        note = "" if look.says is None else look.says(first.answer)
        raw = {"wall_ms": first.wall_ms, "repeats": cost.repeats}
        return Row(self.table, look.name, figures, at_most, exactly, note=note, raw=raw)

    def _peer(
        self, look: Look, run: Callable[[], Any], found: Callable[[Any], int], baseline_ms: float
    ) -> Row:
        first = once(run)
        arrays = max(0, found(first.answer) - self.arrays_before)
        figures = {
            "pause_ms": max(0.0, first.gap_ms - baseline_ms),
            "peak_mb": first.peak_mb,
            "arrays_found": arrays,
        }
        if first.cpu_ms < PATIENCE_SECONDS * 1e3:
            cost = in_turns(run, 3)
            figures |= {"cpu_ms": cost.milliseconds, "ratio": cost.ratio}
        else:
            reference_ms = once(reference).cpu_ms
            figures |= {"cpu_ms": first.cpu_ms, "ratio": first.cpu_ms / reference_ms}
        return Row(self.table, look.name, figures, raw={"wall_ms": first.wall_ms})


def _beyond(baseline_ms: float, run: Callable[[], Any]) -> float:
    return max(0.0, longest_gap_ms(run) - baseline_ms)


def _off(counts: Mapping[int, int]) -> int:
    """Return how many classes of the heap have a count that differs from the brute-force count."""
    return sum(
        counts.get(id(cls), 0) != count
        for cls, count in tracked_counts().items()
        if issubclass(cls, (Kept, Suspect, Registry))
    )


def _arrays() -> int:
    """Count the arrays that torch and numpy themselves keep, by brute force over everything reachable."""
    import numpy as np

    seen: set[int] = set()
    waiting: list[Any] = gc.get_objects()
    count = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if type(thing) is np.ndarray:
            count += 1
            if thing.base is not None:
                waiting.append(thing.base)
            if thing.dtype == object:
                waiting += list(thing.flat)
        waiting += [x for x in gc.get_referents(thing) if id(x) not in seen]
    return count


def _load_torch() -> None:
    """Import torch, whose thousands of classes and many objects belong to a training program's heap."""
    if find_spec("torch") is None:
        return
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), tuple(sys.argv[2].split(",")))
