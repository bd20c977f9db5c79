"""Objects that hold memory which Python does not see: files, connections, threads, processes, shared memory.

Such an object is small by all that can be measured of it. Where nothing explains a growth of native memory, of children
or of shared memory, and one of them rises with it from the same generation on, that is what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .candidates import Candidate
from .study import Assessed
from .wording import short_name

# By what they hold, the likeliest first: a process has connections, shared memory has a map of its own.
_HANDLES: Final = {
    "native": (
        "Connection", "Session", "Thread", "Timer", "ThreadPoolExecutor", "BufferedWriter", "BufferedReader",
        "BufferedRandom", "TextIOWrapper", "FileIO", "File", "Dataset", "Image", "SummaryWriter", "socket", "mmap",
    ),
    "children": (
        "Process", "ForkProcess", "SpawnProcess", "Pool", "ProcessPoolExecutor", "Popen",
        "_MultiProcessingDataLoaderIter",
    ),
    "shared_memory": ("SharedMemory", "mmap"),
}  # fmt: skip
_NEAR: Final = (3.0, 0.10)  # generations; share of the age
_MIN_RISES: Final = 3


def with_handles(found: Sequence[Assessed], candidates: Sequence[Candidate]) -> list[Assessed]:
    """The same, with growth of no name named after the handles that rise with it; they are told once."""
    result, told = [], set()
    for a in found:
        owner = None if a.cause.owner is not None else _rising_with(a, candidates)
        if owner is not None:
            a = _named(a, owner, candidates)
            told |= {(member.name, member.role) for member in a.cause.members}
        result.append(a)
    return [a for a in result if not (_is_idle(a) and _names(a) & told)]


def _rising_with(a: Assessed, candidates: Sequence[Candidate]) -> Candidate | None:
    names = _HANDLES.get(a.cause.kind, ())
    near = [c for c in candidates if short_name(c.name) in names and _goes_with(a, c)]
    return min(
        near, key=lambda c: (names.index(short_name(c.name)), -c.growth.slope, c.name), default=None
    )


def _goes_with(a: Assessed, c: Candidate) -> bool:
    """In the same phase, as far as both are known to be in one, and since about the same generation."""
    phases = {place.phase for place in (a.cause.place, c.place)} - {None}
    if c.role != "type" or c.growth.rises < _MIN_RISES or len(phases) > 1 or a.start is None:
        return False
    least, share = _NEAR
    return abs(c.growth.start - a.start[0]) <= max(least, share * a.window)


def _named(a: Assessed, owner: Candidate, candidates: Sequence[Candidate]) -> Assessed:
    slope = owner.growth.slope
    holding = [c for c in candidates if c.role == "container" and c.growth.slope == slope]
    cause = replace(
        a.cause, kind="objects" if a.cause.kind == "native" else a.cause.kind,
        place=a.cause.place if a.cause.place.phase is not None else owner.place,
        members=(owner, *holding),
    )  # fmt: skip
    steady = {"steady"} if owner.growth.pattern in ("constant", "periodic") else set()
    g = owner.growth
    start = g.start, g.start_low, g.start_high
    return replace(a, cause=cause, start=start, witnesses=a.witnesses | {"counts"} | steady)


def _is_idle(a: Assessed) -> bool:
    return a.cause.owner is not None and not a.scale.is_material(a.cause.rate.estimate, a.window)


def _names(a: Assessed) -> set[tuple[str, str]]:
    return {(member.name, member.role) for member in a.cause.members}
