"""Effects of cleanups: how much they freed, and which cleanups do not help or run too rarely. Pure functions.

If a cleanup does not affect a leak, the program cannot contain the leak by itself, so the finding's priority is raised
by one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final

from ...snapshot import Event
from ...text_format import count_of, format_bytes, format_times, join_words, short_name
from ..results import Finding
from ..run_history import amount_of, number_of
from ..timeline import Timeline
from .verdict_summary import Priorities, one_worse, priority

# A single run may come too early to free anything.
RUNS_AT_LEAST: Final = 2
# A drop by less than this share of the growth per generation is due to chance: a collection always returns some pages.
_CHANCE: Final = 0.01
# A cleanup that frees less than this share of the growth per generation is not effective against it.
_REACHES: Final = 0.3
# Number of generations without a cleanup required to measure the growth per generation.
_STEPS_AT_LEAST: Final = 4
# Kinds of memory outside the process, against which cleanups are not measured.
_ELSEWHERE: Final = frozenset({"gpu", "gpu_fragmentation", "children", "shared_memory", "external"})

# The recorded data of one run of a cleanup.
Run = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Freed:
    """Bytes that a cleanup freed in one or more runs. A value that was not measured is None."""

    host: float | None
    device: float | None = None

    @property
    def known(self) -> bool:
        return self.host is not None or self.device is not None

    @property
    def something(self) -> bool:
        """True if any of the measured memory was freed."""
        return max(self.host or 0, self.device or 0) > 0

    @property
    def words(self) -> str:
        """The freed sizes as text, such as ``1.20 GiB and 3.00 MiB of GPU memory``."""
        host, device = self.host or 0, self.device or 0
        parts = [format_bytes(host)] if host > 0 else []
        parts += [f"{format_bytes(device)} of GPU memory"] if device > 0 else []
        return join_words(parts) or "nothing"


def freed_by(run: Run) -> Freed:
    """Return the bytes that one run freed.

    On each device, the larger of two drops counts: the drop in live tensors or the drop in reserved memory. The drops
    are not added up, because they overlap if the memory of freed tensors is returned to the device immediately.
    """
    falls: dict[str, float] = {}
    for series, pair in _pairs(run.get("devices")):
        device = series.rpartition(".")[0]
        falls[device] = max(falls.get(device, 0), pair[0] - pair[1])
    return Freed(number_of(run.get("freed_bytes")), sum(falls.values()) if falls else None)


def freed_in_all(times: Sequence[Freed]) -> Freed:
    """Return the sum over several runs. Negative values, caused by the program's allocations, are left out."""

    def total(sizes: Iterable[float | None]) -> float | None:
        known = [size for size in sizes if size is not None]
        return sum(size for size in known if size > 0) if known else None

    return Freed(total(each.host for each in times), total(each.device for each in times))


def _pairs(counts: object) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield (series, (before, after)) for each entry that is a pair of sizes."""
    for series, pair in counts.items() if isinstance(counts, Mapping) else ():
        if isinstance(pair, Sequence) and len(pair) == 2:
            before, after = (amount_of(each) for each in pair)
            if before is not None and after is not None:
                yield series, (before, after)


@dataclass(frozen=True, slots=True)
class VainCleanup:
    """A cleanup that has no effect on the growth.

    ``freed`` is the sum over all runs. ``type`` is the growing type if its count did not fall in any run.
    """

    name: str
    times: int
    freed: Freed
    type: str = ""

    @property
    def sentence(self) -> str:
        freed = f"only {self.freed.words}" if self.freed.something else "nothing"
        if self.type:
            freed = f"no {short_name(self.type)}"
        ran = f"ran {format_times(self.times)} and freed {freed}"
        return f"The cleanup {self.name} {ran}: it does not affect the memory that is growing."


def vain_cleanup(finding: Finding, events: Iterable[Event]) -> VainCleanup | None:
    """Return the first cleanup that did not affect the growth, or None.

    Only cleanups that have run at least twice since the growth began are considered.
    """
    if finding.kind in _ELSEWHERE:
        return None
    ran = _runs_since(_beginning(finding), events).items()
    found = (_vain(name, runs, finding) for name, runs in ran if len(runs) >= RUNS_AT_LEAST)
    return next((each for each in found if each is not None), None)


@dataclass(frozen=True, slots=True)
class RareCleanup:
    """A cleanup that frees part of the growing memory, but runs too rarely.

    The cleanup ran ``times`` times in the last ``window`` generations. Each run freed ``bytes`` for good, which is the
    growth of ``every`` generations.
    """

    name: str
    times: int
    window: int
    bytes: float
    every: int

    def sentence(self, unit: str) -> str:
        often = f"in each {unit}" if self.every == 1 else f"every {count_of(self.every, unit)}"
        return (
            f"Run the cleanup {self.name} {often}: it ran {format_times(self.times)} in {count_of(self.window, unit)} "
            f"and freed about {format_bytes(self.bytes)} each time."
        )


def rare_cleanup(
    finding: Finding, events: Iterable[Event], timeline: Timeline
) -> RareCleanup | None:
    """Return the first cleanup that lowers private memory, but runs too rarely to stop its growth, or None."""
    if finding.kind in _ELSEWHERE or not timeline.private:
        return None
    beginning = _beginning(finding)
    ran = _generations_of(events, timeline)
    # Growth is measured between generations in which no cleanup ran at all.
    each = _growth_between(timeline, {at for places in ran.values() for at in places})
    if each is None or each <= 0:
        return None
    runs = _runs_since(beginning, events)
    for name, places in ran.items():
        since = [at for at in places if beginning is None or timeline.generations[at] >= beginning]
        if len(since) >= RUNS_AT_LEAST and _vain(name, runs[name], finding) is None:
            found = _rare(name, since, timeline, each)
            if found is not None:
                return found
    return None


def _rare(name: str, places: Sequence[int], timeline: Timeline, each: float) -> RareCleanup | None:
    """Return the cleanup if it runs too rarely, or None. ``places``: positions of the generations in which it ran."""
    private = timeline.private
    # Compare the reading before the generation of a run with the one after the next generation, because a
    # cleanup runs before or after the reading at a generation's end.
    falls = [
        private[at - 1] + 2 * each - private[at + 1]
        for at in places
        if 0 < at < len(private) - 1
        and timeline.generations[at + 1] - timeline.generations[at - 1] == 2
    ]
    if len(falls) < RUNS_AT_LEAST or median(falls) < _REACHES * each:
        return None
    window = timeline.generations[-1] - timeline.generations[places[0]] + 1
    every = max(1, int(median(falls) / each))
    is_rare = every * len(places) < window
    return RareCleanup(name, len(places), window, median(falls), every) if is_rare else None


def _generations_of(events: Iterable[Event], timeline: Timeline) -> dict[str, list[int]]:
    """Return, for each cleanup, the positions of the generations in which it ran and freed something."""
    found: dict[str, set[int]] = {}
    for event in events:
        at = None if event.generation is None else timeline.position.get(event.generation)
        if at is not None and not event.data.get("error") and (freed_by(event.data).host or 0) > 0:
            found.setdefault(event.name, set()).add(at)
    return {name: sorted(places) for name, places in found.items()}


def _growth_between(timeline: Timeline, cleaned: set[int]) -> float | None:
    """Return the median growth in bytes per generation, measured only where no cleanup ran.

    Return None if too few generations remain.
    """
    axis = timeline.generations
    steps = [
        b - a
        for at, (a, b) in enumerate(pairwise(timeline.private), 1)
        if axis[at] - axis[at - 1] == 1 and not cleaned & {at - 1, at}
    ]
    return median(steps) if len(steps) >= _STEPS_AT_LEAST else None


def deeper(finding: Finding, events: Iterable[Event]) -> Finding:
    """If a cleanup did not help, raise the finding's priority and add the reason to its evidence."""
    vain = vain_cleanup(finding, events)
    if vain is None:
        return finding
    grade = one_worse(finding.priority)
    raised = (
        " This raises the finding's priority by one class." if grade != finding.priority else ""
    )
    return replace(finding, priority=grade, evidence=(*finding.evidence, vain.sentence + raised))


def is_deeper(finding: Finding, limits: Priorities) -> bool:
    return finding.priority != priority(finding.growth_bytes_per_generation.estimate, limits)


def _beginning(finding: Finding) -> float | None:
    started = finding.started_at_generation
    return None if started is None else started.estimate


def _runs_since(beginning: float | None, events: Iterable[Event]) -> dict[str, list[Run]]:
    """Return the data of each cleanup's runs, without failed runs, which prove nothing."""
    found: dict[str, list[Run]] = {}
    for event in events:
        if event.kind != "cleanup" or event.data.get("error"):
            continue
        if beginning is None or (event.generation is not None and event.generation >= beginning):
            found.setdefault(event.name, []).append(event.data)
    return found


def _vain(name: str, runs: Sequence[Run], finding: Finding) -> VainCleanup | None:
    grows = next((each.name for each in finding.suspects if each.role == "type"), "")
    changes = [change for run in runs if (change := _change(run, grows)) is not None]
    if changes and min(changes) < 0:
        # The cleanup freed the objects, even if the memory stayed with the allocator.
        return None
    times = [freed_by(run) for run in runs]
    freed = freed_in_all(times)
    chance = _CHANCE * max(0.0, finding.growth_bytes_per_generation.estimate)
    # A cleanup that frees device memory is not judged by the host memory that it frees.
    most = max(max(each.host or 0, each.device or 0) for each in times)
    if all(each.host is not None for each in times) and most <= chance:
        return VainCleanup(name, len(runs), freed)
    return VainCleanup(name, len(runs), freed, grows) if len(changes) == len(runs) else None


def _change(run: Run, name: str) -> float | None:
    """Return the change in a type's instance count during one run of a registered cleanup.

    Return None if the count was not measured, or was zero before the run.
    """
    counts = run.get("counts")
    pair = counts.get(name) if isinstance(counts, Mapping) else None
    if "because" not in run or not isinstance(pair, Sequence) or len(pair) != 2:
        return None
    before, after = (amount_of(each) for each in pair)
    return after - before if before and after is not None else None
