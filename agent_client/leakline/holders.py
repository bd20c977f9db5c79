"""What keeps objects alive, as a path of names, and what one more of them costs.

A sample of the live objects of a type, spread over their age, is followed upwards until it reaches something with a
name. A path counts for more the more of the sample it leads to, and the fewer objects it starts from: a list that
keeps all of them says more than the one helper that each of them has.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from time import thread_time
from types import FrameType
from typing import Any, Final

from leakline.probes.deep import marginal_bytes
from leakline.probes.frames import locals_by_function
from leakline.probes.heap import HeapWalk
from leakline.probes.names import is_collectable, type_name
from leakline.probes.referrers import FoundPath, ReferrerSearch, forward_names
from leakline.snapshot import Holder

# Each sample makes every look through the heap dearer.
SAMPLES: Final = 10
PATHS_OF_A_TYPE: Final = 3
# Paths that lead to less than this share of the sample are chance.
_SHARE_TOLD: Final = 0.1
# The part of the budget for paths; the rest is for sizes.
_PATHS_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class FoundHolder:
    """What keeps ``count`` objects of ``type`` alive; ``to_holder`` gives it the sequence number it travels with."""

    type: str
    path: str
    count: int
    bytes_each: int | None

    def to_holder(self, sequence: int) -> Holder:
        return Holder(sequence, self.type, self.path, self.count, self.bytes_each)


def find_holders(
    types: Sequence[type],
    budget_seconds: float,
    frame: FrameType | None = None,
    clock: Callable[[], float] = thread_time,
) -> list[FoundHolder]:
    """What keeps live objects of exactly these ``types`` alive: at most three paths each, the likeliest first.

    ``count`` is how many of the type the path leads to, scaled from the sample. ``bytes_each`` is what one more
    object adds, buffers and graphs included and without what they share; None where that took too long. ``frame`` is
    where the calling thread stands (here, if left out); objects held by locals of other threads are not named. A type
    without a path is left out. The budget is CPU seconds of this thread, and is checked between looks through the whole
    heap, one of which may overrun it.
    """
    started = clock()
    # Strings only: what the locals hold is let go of before the search.
    named = forward_names(
        {
            name: found.read()
            for name, found in locals_by_function(frame or sys._getframe(1)).items()
        }
    )
    totals, samples = _samples(types)
    search = ReferrerSearch(
        samples,
        named,
        lambda: clock() - started > budget_seconds * _PATHS_SHARE,
        [_bits(position) for position in range(len(types))],
    )
    paths = search.run()
    del search
    found: list[FoundHolder] = []
    for position, cls in enumerate(types):
        ones = samples[position * SAMPLES : (position + 1) * SAMPLES]
        present = [one for one in ones if one is not None]
        mine = list(_of_type(paths, position, len(present)))
        if mine:
            each = marginal_bytes(present, lambda: clock() - started > budget_seconds)
            found += [
                FoundHolder(type_name(cls), path, max(1, round(share * totals[position])), each)
                for path, share in mine
            ]
    return found


def _bits(position: int) -> int:
    """The samples of one type."""
    return ((1 << SAMPLES) - 1) << (position * SAMPLES)


def _samples(types: Sequence[type]) -> tuple[list[int], list[Any]]:
    """How many there are of each type, and SAMPLES places for each, oldest first, None where there are fewer."""
    totals: list[int] = []
    samples: list[Any] = []
    # The collector keeps the youngest generation first and, in each, the oldest object first.
    wanted = dict.fromkeys(map(id, types), True)
    everything = [
        one for generation in (2, 1, 0) for one in _of_types(gc.get_objects(generation), wanted)
    ]
    for cls in types:
        ones = [one for one in everything if type(one) is cls]
        if not ones and not is_collectable(cls):
            ones = HeapWalk({}, 1 << 62, lambda: False).run().untracked_of(cls)
        totals.append(len(ones))
        spread = _spread(ones)
        samples += spread + [None] * (SAMPLES - len(spread))
    return totals, samples


def _of_types(objects: list[Any], wanted: dict[int, bool]) -> Iterator[Any]:
    # By address: a class of the program may hash in its own way.
    return compress(objects, map(wanted.__contains__, map(id, map(type, objects))))


def _spread(ones: list[Any]) -> list[Any]:
    """At most SAMPLES of them, from the oldest to the newest."""
    if len(ones) <= SAMPLES:
        return ones
    return [ones[round(i * (len(ones) - 1) / (SAMPLES - 1))] for i in range(SAMPLES)]


def _of_type(paths: list[FoundPath], position: int, count: int) -> Iterator[tuple[str, float]]:
    """(path, share of the sample) of one type, the likeliest first."""
    if not count:
        return
    bits = _bits(position)
    ranked = [
        ((found.samples & bits).bit_count(), found.roots, len(found.path), found.path)
        for found in paths
        if found.samples & bits
    ]
    ranked.sort(key=lambda row: (-row[0] / row[1], row[2], row[3]))
    for leads_to, _, _, path in ranked[:PATHS_OF_A_TYPE]:
        if leads_to / count >= _SHARE_TOLD:
            yield path, leads_to / count
