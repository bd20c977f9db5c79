"""Declared stores among what grows: what they fill with is excused, and what is beyond their capacity is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from ..assertions.expected_counts import Bounded
from ..series_facts import Facts
from ..statistics.count_evidence import CountGrowth, count_growth
from ..timeline import Timeline

# Objects of one type that come with each item of a store, at most, and how exactly.
_PER_ITEM: Final = 8
_EXACTLY: Final = 0.02
# Different lengths that must agree before a class of the program counts as what a store keeps.
_MIN_LENGTHS: Final = 3
# A rise by this share of what a full store held is more than items of varying size make.
_MUCH: Final = 0.5
# What one object keeps may be measured by so much more than what one item of the store takes.
_AS_LARGE: Final = 1.5


def lies_in_a_store(facts: Facts, series: str, name: str, role: str, end: int) -> bool:
    """Return True if this growth lies inside a declared store within its capacity, by its path or its holder's.

    What goes on growing once the store takes in no more is not explained by it.
    """
    path = name if role == "container" else facts.holders.get(name)
    store = None if path is None else facts.store_of(path)
    if store is None or store.is_over(end):
        return False
    return not _grows_in_a_full_store(facts.timeline, series, store, end)


def _grows_in_a_full_store(timeline: Timeline, series: str, store: Bounded, end: int) -> bool:
    """Return True if a count has risen since the store was last longer than before.

    Items of varying size replace each other, so that the count of their parts wanders: only a rise that is as large in
    each generation, or by a large share of the count, is not of that kind. Where each item brought the same number of
    parts, any lasting rise counts.
    """
    full = next((i for i in range(end - 1, 0, -1) if store.length[i - 1] != store.length[i]), 0)
    x, counts = timeline.points(series, end)
    after = [i for i, at in enumerate(x) if at >= timeline.generations[full]]
    growth = (
        count_growth(
            [x[i] for i in after], [counts[i] for i in after], spacing=timeline.spacing(end)
        )
        if after
        else None
    )
    if growth is None:
        return False
    steady = growth.pattern in ("constant", "periodic")
    much = counts[-1] - counts[after[0]] >= _MUCH * counts[after[0]]
    return steady or much or _is_exact(timeline, x, counts, store)


def _is_exact(
    timeline: Timeline, x: Sequence[float], counts: Sequence[float], store: Bounded
) -> bool:
    """Return True if each item that the store took in brought the same number with it."""
    lengths = [store.length[timeline.position[int(at)]] for at in x]
    each = [
        (b - a) / (longer - length)
        for (a, length), (b, longer) in pairwise(zip(counts, lengths, strict=True))
        if longer > length
    ]
    return len(each) >= _MIN_LENGTHS and max(each) - min(each) <= _EXACTLY * max(each)


def comes_with_a_store(facts: Facts, growth: CountGrowth, end: int) -> bool:
    """Return True if these are as many per generation as a declared store takes in, or so many for each item."""
    return any(_come_with_items(store, growth, end) for store in facts.bounded)


def _come_with_items(store: Bounded, growth: CountGrowth, end: int) -> bool:
    speed = store.per_generation(end) if store.is_filling(end) else 0.0
    each = growth.slope / speed if speed > 0 else 0.0
    return 1 <= round(each) <= _PER_ITEM and abs(each - round(each)) <= _EXACTLY * round(each)


def is_stored(facts: Facts, name: str, end: int) -> bool:
    """Whether objects of this class may be the items of a declared store: always as many, and of their size.

    That is no proof, since two stores may fill in step; it excuses a class only while memory shows no other growth.
    """
    return any(_are_its_items(facts, name, store, end) for store in facts.bounded)


def _are_its_items(facts: Facts, name: str, store: Bounded, end: int) -> bool:
    size, most = facts.bytes_each.get(name), store.fullest(end)
    if size is None or not store.bytes or store.is_over(end) or store.length[most] <= 0:
        return False
    if size > _AS_LARGE * store.bytes[most] / store.length[most]:
        return False
    counts = facts.timeline.readings(f"type.{name}.count")[:end]
    pairs = [(a, b) for a, b in zip(counts, store.length, strict=False) if a is not None]
    alike = all(abs(count - length) <= _EXACTLY * length for count, length in pairs)
    return alike and len({length for _, length in pairs}) >= _MIN_LENGTHS


def grows_while_a_store_fills(facts: Facts, name: str, end: int, *, full: bool = False) -> bool:
    """Return True if these objects of the language became more only while a declared store took in items.

    How many of them one item holds varies: the tokens of a document, the steps of an episode. ``full``: only if the
    store takes in no more by now.
    """
    x, counts = facts.timeline.points(f"type.{name}.count", end)
    at = [facts.timeline.position[int(generation)] for generation in x]
    rises = [(at[i - 1], at[i]) for i in range(1, len(at)) if counts[i] > counts[i - 1]]
    within = (
        store
        for store in facts.bounded
        if not store.is_over(end) and not (full and store.is_filling(end))
    )
    return bool(rises) and any(
        all(store.length[after] > store.length[before] for before, after in rises[-_MIN_LENGTHS:])
        for store in within
    )


def overshooting(facts: Facts, end: int) -> Iterator[tuple[str, CountGrowth]]:
    """(name, growth) of the declared stores that hold more than they may, and ever more; the growth is that beyond."""
    timeline = facts.timeline
    x = [float(g) for g in timeline.generations[:end]]
    for store in facts.bounded:
        if store.is_over(end):
            growth = count_growth(x, store.overshoot(end), x[0], timeline.spacing(end))
            if growth is not None:
                yield store.name, growth
