"""The heap scans of Leakline that are measured, each with its targets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leakline.probes.heap.census import SlicedCensus, take_census
from leakline.probes.heap.instance_counts import ClassCounts
from leakline.probes.native_module import why_not_native
from leakline.sampling.holder_paths import SlicedHolderSearch
from leakline.sampling.incremental_scan import BREAK_SECONDS, SLICE_SECONDS
from leakline.sampling.overhead_budget import Governor
from leakline.sampling.sampler import Sampler

from .heaps import Suspect

# Ratio targets apply to heaps of a million objects or more: on smaller ones the fixed cost of a scan dominates.
LARGE: Final = 900_000
HUGE: Final = 4_500_000
# Time limit of a holder search on a huge heap.
HOLDER_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """One kind of heap scan. ``run`` is None if it is not built; ``why`` gives the reason."""

    name: str
    run: Callable[[], Any] | None
    ratio_at_most: float | None = None
    pause_at_most_ms: float | None = None
    cpu_at_most_ms: float | None = None
    why: str = ""
    # Text for the last column, from the result.
    says: Callable[[Any], str] | None = None
    # Checks the result of a scan that returns no counts.
    is_right: Callable[[Any], bool] | None = None
    # Returns (arrays, instances by address of their class) from the result, for scans that count everything.
    counts: Callable[[Any], tuple[int, Mapping[int, int]]] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading taken at every phase end: short, with a target in milliseconds."""

    name: str
    run: Callable[[], object]
    at_most_ms: float | None = None


@dataclass(slots=True)
class PhaseEndReadings:
    """A sampler in the state it has in a run after the baseline."""

    sampler: Sampler = field(default_factory=lambda: Sampler(Governor(1.0)))
    counts: ClassCounts = field(default_factory=ClassCounts)

    def __post_init__(self) -> None:
        self.sampler.start()
        self.sampler.measure("baseline")
        self.counts.calibrate(take_census().counts)

    def readings(self) -> Iterator[Reading]:
        yield Reading("a phase end", lambda: self.sampler.measure("phase_end"), 0.5)
        yield Reading(
            "a nested phase end",
            lambda: self.sampler.measure("phase_end", nested=True),
            0.5,
        )
        yield Reading(
            f"instances of {len(self.counts.names()):,} classes", self.counts.changes, 0.5
        )


def is_native() -> bool:
    """Return True if this process measures the native scans."""
    return os.environ.get("LEAKLINE_NATIVE") != "0"


def looks(objects: int) -> Iterator[Look]:
    """Yield the scans for this process; they depend on whether the native module is disabled."""
    if is_native():
        yield from _native(objects)
        yield _holders(objects)
    else:
        ratio = 2.0 if objects >= LARGE else None
        yield Look("full census, pure Python", take_census, ratio, counts=_census_counts)


def _native(objects: int) -> Iterator[Look]:
    names = ("full census, native", "full census, in slices")
    why = why_not_native()
    if why is not None:
        for name in names:
            yield Look(name, None, why=why)
        return
    ratio = 0.6 if objects >= LARGE else None
    yield Look(names[0], take_census, ratio, counts=_census_counts)
    yield Look(
        names[1],
        lambda: in_slices(SlicedCensus()),
        ratio,
        15.0,
        counts=lambda result: (_arrays(result), result.counts),
    )


def _holders(objects: int) -> Look:
    name = f"holders of {Suspect.__name__}, in slices"
    why = why_not_native()
    if why is not None:
        return Look(name, None, why=why)
    return Look(
        name,
        lambda: in_slices(SlicedHolderSearch([Suspect], HOLDER_SECONDS)),
        pause_at_most_ms=50.0,
        cpu_at_most_ms=HOLDER_SECONDS * 1e3 if objects >= HUGE else None,
        says=_first_path,
        is_right=lambda holders: "Registry.finished" in _first_path(holders),
    )


def in_slices(work: Any) -> Any:
    """Run sliced work like the client's own thread does, with breaks in which other threads get the lock."""
    while not work.step(SLICE_SECONDS):
        time.sleep(BREAK_SECONDS)
    return work.result()


def _census_counts(result: Any) -> tuple[int, Mapping[int, int]]:
    counts = {id(cls): count for cls, count in result.counts.items()}
    return _arrays(result), counts


def _arrays(result: Any) -> int:
    return 0 if result.arrays is None else int(result.arrays.count)


def _first_path(holders: Any) -> str:
    return holders[0].path if holders else "no path"
