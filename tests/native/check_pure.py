"""Without the native module the census gives the same counts, checked with the standard library alone.

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


def main(client):
    sys.path.insert(0, client)
    from leakline.probes.census import take_census
    from leakline.probes.native import native, why_not_native

    assert native() is None
    why = why_not_native()
    assert why and "\n" not in why, why
    heap = [Node((i,)) for i in range(20_000)] + [Slotted() for _ in range(500)]
    gc.collect()
    result = take_census()
    counts = Counter(map(type, gc.get_objects()))
    for kind in (Node, Slotted):
        assert result.counts.get(kind) == counts[kind], (
            kind,
            result.counts.get(kind),
            counts[kind],
        )
    assert len(heap) == 20_500
    sys.stdout.write(f"pure: {why}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
