"""What cleanups freed, which ran while something grew and did not reach it, and which reach it too rarely. Pure.

A leak that none reaches lies deeper than the program's own means against it go: its priority is one class worse.
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

# Once may be too early.
RUNS_AT_LEAST: Final = 2
# Less than this part of what grows in a generation is chance: a collection always gives some pages back.
_CHANCE: Final = 0.01
# A cleanup that takes back less of what one generation gains is no means against it.
_REACHES: Final = 0.3
# Generations without a cleanup that tell what one gains.
_STEPS_AT_LEAST: Final = 4
# What a cleanup is held against is the process's own memory.
_ELSEWHERE: Final = frozenset({"gpu", "gpu_fragmentation", "children", "shared_memory", "external"})

# What a cleanup reported of one time it ran.
Run = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Freed:
    """Bytes that a cleanup gave back, one time or several; None where that was not measured."""

    host: float | None
    device: float | None = None

    @property
    def known(self) -> bool:
        return self.host is not None or self.device is not None

    @property
    def something(self) -> bool:
        """Of anything that was measured."""
        return max(self.host or 0, self.device or 0) > 0

    @property
    def words(self) -> str:
        """What was freed where; that of devices has its name next to it."""
        host, device = self.host or 0, self.device or 0
        parts = [format_bytes(host)] if host > 0 else []
        parts += [f"{format_bytes(device)} of GPU memory"] if device > 0 else []
        return join_words(parts) or "nothing"


def freed_by(run: Run) -> Freed:
    """What one time reported. Of a device the larger fall counts, of live tensors or of what the allocator keeps.

    They overlap: what tensors give up may go back to the device at once, and an emptied cache ends no tensor.
    """
    falls: dict[str, float] = {}
    for series, pair in _pairs(run.get("devices")):
        device = series.rpartition(".")[0]
        falls[device] = max(falls.get(device, 0), pair[0] - pair[1])
    return Freed(number_of(run.get("freed_bytes")), sum(falls.values()) if falls else None)


def freed_in_all(times: Sequence[Freed]) -> Freed:
    """Without the times that freed nothing: what the program took meanwhile is not theirs."""

    def total(sizes: Iterable[float | None]) -> float | None:
        known = [size for size in sizes if size is not None]
        return sum(size for size in known if size > 0) if known else None

    return Freed(total(each.host for each in times), total(each.device for each in times))


def _pairs(counts: object) -> Iterator[tuple[str, tuple[float, float]]]:
    """(series, before and after) of those that are two sizes."""
    for series, pair in counts.items() if isinstance(counts, Mapping) else ():
        if isinstance(pair, Sequence) and len(pair) == 2:
            before, after = (amount_of(each) for each in pair)
            if before is not None and after is not None:
                yield series, (before, after)


@dataclass(frozen=True, slots=True)
class VainCleanup:
    """``freed`` by all its runs; ``type`` is named where the count of it did not fall in any of them."""

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
        return f"The cleanup {self.name} {ran}: it does not reach what grows."


def vain_cleanup(finding: Finding, events: Iterable[Event]) -> VainCleanup | None:
    """The first that ran several times since this growth began and freed nothing of it."""
    if finding.kind in _ELSEWHERE:
        return None
    ran = _runs_since(_beginning(finding), events).items()
    found = (_vain(name, runs, finding) for name, runs in ran if len(runs) >= RUNS_AT_LEAST)
    return next((each for each in found if each is not None), None)


@dataclass(frozen=True, slots=True)
class RareCleanup:
    """One that takes back some of what grows, and runs too rarely for it.

    ``times`` in the ``window`` generations since the first of them. ``bytes`` stayed away after it; ``every`` so many
    generations come to as much.
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
            f"and took back about {format_bytes(self.bytes)} each time."
        )


def rare_cleanup(
    finding: Finding, events: Iterable[Event], timeline: Timeline
) -> RareCleanup | None:
    """The first after which private memory lay lower for good, while it grows on between the runs."""
    if finding.kind in _ELSEWHERE or not timeline.private:
        return None
    beginning = _beginning(finding)
    ran = _generations_of(events, timeline)
    # What grows by itself is read where no cleanup of any name came between.
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
    """``places``: positions of the generations it ran in."""
    private = timeline.private
    # Read before the generation of a run and after the next one: it runs before or after the reading at its end.
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
    """Cleanup -> positions of the generations in which it ran and something was freed."""
    found: dict[str, set[int]] = {}
    for event in events:
        at = None if event.generation is None else timeline.position.get(event.generation)
        if at is not None and not event.data.get("error") and (freed_by(event.data).host or 0) > 0:
            found.setdefault(event.name, set()).add(at)
    return {name: sorted(places) for name, places in found.items()}


def _growth_between(timeline: Timeline, cleaned: set[int]) -> float | None:
    """Bytes from one generation to the next where no cleanup ran in either; None where there are few such."""
    axis = timeline.generations
    steps = [
        b - a
        for at, (a, b) in enumerate(pairwise(timeline.private), 1)
        if axis[at] - axis[at - 1] == 1 and not cleaned & {at - 1, at}
    ]
    return median(steps) if len(steps) >= _STEPS_AT_LEAST else None


def deeper(finding: Finding, events: Iterable[Event]) -> Finding:
    """The finding one class worse where a cleanup did not help, and saying so."""
    vain = vain_cleanup(finding, events)
    if vain is None:
        return finding
    grade = one_worse(finding.priority)
    raised = " Its priority is one class higher for it." if grade != finding.priority else ""
    return replace(finding, priority=grade, evidence=(*finding.evidence, vain.sentence + raised))


def is_deeper(finding: Finding, limits: Priorities) -> bool:
    return finding.priority != priority(finding.growth_bytes_per_generation.estimate, limits)


def _beginning(finding: Finding) -> float | None:
    started = finding.started_at_generation
    return None if started is None else started.estimate


def _runs_since(beginning: float | None, events: Iterable[Event]) -> dict[str, list[Run]]:
    """What each cleanup reported of its runs, without those that failed: they show nothing of what it reaches."""
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
        # It reached them, also where the memory stayed with the allocator.
        return None
    times = [freed_by(run) for run in runs]
    freed = freed_in_all(times)
    chance = _CHANCE * max(0.0, finding.growth_bytes_per_generation.estimate)
    # One that is there for the memory of a device is not called vain for what it gives back here.
    most = max(max(each.host or 0, each.device or 0) for each in times)
    if all(each.host is not None for each in times) and most <= chance:
        return VainCleanup(name, len(runs), freed)
    return VainCleanup(name, len(runs), freed, grows) if len(changes) == len(runs) else None


def _change(run: Run, name: str) -> float | None:
    """Instances of this type after one that was registered to help, less those before; None where none were there."""
    counts = run.get("counts")
    pair = counts.get(name) if isinstance(counts, Mapping) else None
    if "because" not in run or not isinstance(pair, Sequence) or len(pair) != 2:
        return None
    before, after = (amount_of(each) for each in pair)
    return after - before if before and after is not None else None
