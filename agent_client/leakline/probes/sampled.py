"""The sampled census: small live objects by exact type, from a part of the allocator's pools.

Costs a hundredth of a census and neither stops the program nor touches an object, so that it can be had at most phase
ends. Sees every object of up to 512 bytes, also those the collector does not list (floats, strings, array headers), and
nothing larger. Needs the native module and Python's own allocator; without them it says why, and gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from time import monotonic_ns, thread_time
from typing import Any, Final

from leakline.probes.names import StandIn, hashes_plainly, module_name, qualified_name, type_name
from leakline.probes.native import native, why_not_native

# What the self-test makes of each of four kinds: few enough to start at most one collection of young objects.
_MADE: Final = 200
_TOLERATED_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class SampledCensus:
    """Counts scaled to the whole heap, with how far off each may be.

    The keys of ``counts`` are the classes themselves: drop it soon after, for it keeps classes alive and counts as a
    reference to each of them. ``errors`` are relative standard errors, 0.0 where everything was looked at; a class
    whose few objects were not met is absent. ``coverage`` is the part of the allocated blocks that was looked at,
    ``pools`` how many pools of 16 KiB that were, ``seconds`` CPU time of the calling thread.
    """

    every: int
    counts: Mapping[type, int]
    errors: Mapping[type, float]
    coverage: float
    pools: int
    seconds: float

    def rows(self) -> tuple[tuple[str, int, float], ...]:
        """(name, count, relative standard error), largest first; classes of one name are added up."""
        found: dict[str, tuple[int, float]] = {}
        for cls, number in self.counts.items():
            name = type_name(cls)
            known, variance = found.get(name, (0, 0.0))
            found[name] = known + number, variance + (self.errors[cls] * number) ** 2
        return tuple(
            (name, number, variance**0.5 / number)
            for name, (number, variance) in sorted(found.items(), key=lambda row: -row[1][0])
        )


def take_sample(
    every: int, clock: Callable[[], float] = thread_time, by_file: bool = False
) -> SampledCensus | None:
    """Look at one pool in ``every`` (1: at all), other ones each time.

    Holds the interpreter lock for 10 ns a pool, in slices of a millisecond, and not while it reads and counts. None
    where ``why_no_sample`` says so, and while another thread takes one. ``by_file`` reads memory the way that is left
    where the direct call is forbidden.
    """
    if every < 1:
        raise ValueError(f"every is {every}; say 1 or more")
    if why_no_sample() is not None:
        return None
    started = clock()
    module: Any = native()
    try:
        rows, pools, _, blocks, all_blocks, _ = module.scan_arenas(every, next(_salts), by_file)
    except (OSError, RuntimeError):
        # The program may have changed the allocator or closed what we read through since the self-test.
        return None
    counts: dict[type, int] = {}
    variances: dict[type, float] = {}
    for cls, number, variance in rows:
        key = cls if hashes_plainly(cls) else _stand_in(module_name(cls), qualified_name(cls))
        counts[key] = counts.get(key, 0) + max(1, round(number))
        variances[key] = variances.get(key, 0.0) + variance
    errors = {key: variance**0.5 / counts[key] for key, variance in variances.items()}
    coverage = min(1.0, blocks / all_blocks) if all_blocks else 1.0
    return SampledCensus(every, counts, errors, coverage, pools, clock() - started)


def why_no_sample() -> str | None:
    """One line on why there are no sampled censuses; None when there are. Tries it out at the first question."""
    try:
        return _verdict()
    except RuntimeError:
        return "another thread is trying them out"


@lru_cache(maxsize=1)
def _verdict() -> str | None:
    """Raises `RuntimeError`, which is not remembered, while another thread scans."""
    module: Any = native()
    if module is None:
        return why_not_native()
    if not hasattr(module, "scan_arenas"):
        return "the allocator's memory can be read on 64-bit Linux only"
    try:
        return None if any(_counts_right(module) for _ in range(3)) else _MISCOUNTED
    except OSError as error:
        return str(error)


class _Made:
    """Instances of it are made by the self-test alone."""


class _Lean:
    """The same with its attributes inside: its objects begin at another place of their block."""

    __slots__ = ("one",)


_MISCOUNTED: Final = "the allocator's memory does not hold what was put there"
# Never those of the program's own random numbers.
_salts: Final = count(monotonic_ns())


def _counts_right(module: Any) -> bool:
    """Whether known objects are counted, and half of them no longer when they are gone.

    In the pools of the other half, so that nothing depends on the size of the heap: a millisecond. Other threads may
    make and drop floats and tuples meanwhile, but none of our own classes.
    """
    made: list[list[object]] = [
        [_Made() for _ in range(_MADE)],
        [_Lean() for _ in range(_MADE)],
        [number + 0.5 for number in range(_MADE)],
        [(number,) for number in range(_MADE)],
    ]
    kinds = [type(objects[0]) for objects in made]
    stay = [one for objects in made for one in objects[::2]]
    pools = {id(one) >> 14 for one in stay}
    in_pools = [[id(one) >> 14 in pools for one in objects] for objects in made]
    before = _by_type(module.scan_pools_of(stay))
    for objects in made:
        del objects[1::2]
    after = _by_type(module.scan_pools_of(stay))
    for kind, inside in zip(kinds, in_pools, strict=True):
        gone = sum(inside[1::2])
        allowed = 0.0 if kind in (_Made, _Lean) else _MADE * _TOLERATED_SHARE
        if abs(before.get(kind, 0) - after.get(kind, 0) - gone) > allowed:
            return False
    return all(
        before.get(kind) == sum(inside)
        for kind, inside in zip(kinds[:2], in_pools[:2], strict=True)
    )


def _by_type(rows: list[tuple[type, float, float]]) -> dict[type, int]:
    # Of the program's classes none is a key here: their metaclasses may hash in their own way.
    wanted = {id(kind) for kind in (_Made, _Lean, float, tuple)}
    return {cls: round(number) for cls, number, _ in rows if id(cls) in wanted}


@lru_cache(maxsize=1_024)
def _stand_in(module: str | None, name: str) -> type:
    return type(name, (StandIn,), {"__module__": module, "__qualname__": name})
