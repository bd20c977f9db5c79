"""What the collector lists, asked of Python: without the tuples that are still being built.

Whoever builds a tuple needs its only reference: ``tuple(iterator)`` ends in a SystemError where somebody holds what it
has filled so far when it comes to make it longer or shorter. A look that holds what it found, in a thread beside, would
do that to the program. What cannot be told here is a tuple that has no gaps and is changed all the same: one that is
full and about to be made longer, or the argument of a hook of torch. Nor can it be helped where a program has audit
hooks in Python, or runs without the interpreter lock. The native module sees what refers to a tuple.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import chain, compress, repeat, starmap
from operator import eq, is_, is_not
from typing import Any

from leakline.probes.references.frames import no_collection


def listed_objects(generation: int | None = None) -> list[Any]:
    """``gc.get_objects(generation)``; finished tuples come behind everything else."""
    return _finished(gc.get_objects, generation)


def listed_referrers(*targets: Any) -> list[Any]:
    """``gc.get_referrers(*targets)``; finished tuples come behind everything else."""
    return _finished(gc.get_referrers, *targets)


def _finished(look: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
    found: list[list[Any]] = []
    tuples: list[list[Any]] = []
    asked = starmap(look, [arguments])
    others = _by_type(found, is_not)
    tuples_found = _by_type(found, is_)
    # What a tuple refers to leaves out the places that are not filled yet.
    filled = map(len, map(gc.get_referents, chain.from_iterable(tuples)))
    is_filled = map(eq, chain(filled, (None,)), map(len, chain.from_iterable(tuples)))
    finished = _selected(tuples, is_filled)
    with no_collection():
        # Nothing is called by this frame until the lists are let go of, only by what is gone through: no other thread
        # runs. A collection would have it run, for callbacks and finalizers.
        found += asked
        ones = [*others]
        tuples += ([*tuples_found],)
        ones += finished
        del found[:], tuples[:]
    return ones


def _by_type(found: list[list[Any]], compare: Callable[[object, object], bool]) -> compress[Any]:
    return _selected(found, map(compare, map(type, chain.from_iterable(found)), repeat(tuple)))


def _selected(found: list[list[Any]], chosen: map[bool]) -> compress[Any]:
    # One more than is chosen from, here as above: all come to their end and hold no list any more, for the look meets
    # them, too.
    return compress(chain(chain.from_iterable(found), (None,)), chosen)
