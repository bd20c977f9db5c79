"""Checks that without the native module the census gives the same counts, with the standard library alone.

PYTHON check_pure.py CLIENT
"""

from __future__ import annotations

import gc
import sys
from collections import Counter


class Node:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("left",)


def no_look_breaks_a_tuple_that_is_being_built():
    from leakline.probes.heap.heap_walk import listed_objects, listed_referrers

    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return
    # A tuple of 10, 25 or 43 may still grow, and only the native module can detect that.
    for length in {*range(1, 25)} - {10}:
        values = [Node(i) for i in range(length)]
        for look in (listed_objects, lambda values=values: listed_referrers(*values)):
            for at in {0, length // 2, length - 1} - {10}:
                kept = []

                def items(values=values, at=at, look=look, kept=kept):
                    for number, value in enumerate(values):
                        if number == at:
                            kept.append(look())
                        yield value

                built = tuple(items())
                assert len(built) == length
                assert kept[0]
        found = listed_referrers(values[0])
        assert any(one is built for one in found)
        assert any(one is values for one in found)


def main(client):
    sys.path.insert(0, client)
    from leakline.probes.heap.census import take_census
    from leakline.probes.native_module import native, why_not_native

    assert native() is None
    why = why_not_native()
    assert why and "\n" not in why, why
    heap = [Node((i,)) for i in range(20_000)] + [Slotted() for _ in range(500)]
    gc.collect()
    result = take_census()
    counts = Counter(map(type, gc.get_objects()))
    for kind in (Node, Slotted):
        found = result.counts.get(kind)
        assert found == counts[kind], (kind, found, counts[kind])
    assert len(heap) == 20_500
    del heap
    no_look_breaks_a_tuple_that_is_being_built()
    sys.stdout.write(f"pure: {why}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
