"""Cleanups that ran while something grew and did not reach it. Pure.

Such a leak lies deeper than the program's own means against it go: its priority is one class worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..snapshot import Event
from .history import amount_of, number_of
from .priority import Priorities, one_worse, priority
from .results import Finding
from .wording import format_bytes, short_name

# Once may be too early.
RUNS_AT_LEAST: Final = 2
# Less than this part of what grows in a generation is chance: a collection always gives some pages back.
_CHANCE: Final = 0.01
# What a cleanup frees is measured in the process's own memory.
_ELSEWHERE: Final = frozenset({"gpu", "gpu_fragmentation", "children", "shared_memory", "external"})

# What a cleanup told of one time it ran.
Run = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class VainCleanup:
    """``freed_bytes`` of all its runs; ``type`` is named where the count of it did not fall in any of them."""

    name: str
    times: int
    freed_bytes: float
    type: str = ""

    @property
    def told(self) -> str:
        freed = f"only {format_bytes(self.freed_bytes)}" if self.freed_bytes > 0 else "nothing"
        if self.type:
            freed = f"no {short_name(self.type)}"
        return f"The cleanup {self.name} ran {self.times} times and freed {freed}: it does not reach what grows."


def vain_cleanup(finding: Finding, events: Iterable[Event]) -> VainCleanup | None:
    """The first that ran several times since this growth began and freed nothing of it."""
    if finding.kind in _ELSEWHERE:
        return None
    ran = _runs_since(_beginning(finding), events).items()
    found = (_vain(name, runs, finding) for name, runs in ran if len(runs) >= RUNS_AT_LEAST)
    return next((each for each in found if each is not None), None)


def deeper(finding: Finding, events: Iterable[Event]) -> Finding:
    """The finding one class worse where a cleanup did not help, and saying so."""
    vain = vain_cleanup(finding, events)
    if vain is None:
        return finding
    grade = one_worse(finding.priority)
    raised = " Its priority is one class higher for it." if grade != finding.priority else ""
    return replace(finding, priority=grade, evidence=(*finding.evidence, vain.told + raised))


def is_deeper(finding: Finding, limits: Priorities) -> bool:
    return finding.priority != priority(finding.growth_bytes_per_generation.estimate, limits)


def _beginning(finding: Finding) -> float | None:
    started = finding.started_at_generation
    return None if started is None else started.estimate


def _runs_since(beginning: float | None, events: Iterable[Event]) -> dict[str, list[Run]]:
    """What each cleanup told of its runs, without those that failed: they show nothing of what it reaches."""
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
    sizes = [size for run in runs if (size := number_of(run.get("freed_bytes"))) is not None]
    freed = sum(max(0, size) for size in sizes)
    chance = _CHANCE * max(0.0, finding.growth_bytes_per_generation.estimate)
    if len(sizes) == len(runs) and max(sizes) <= chance:
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
