"""All facilities of the native module in a loop, while a program does everything that moves, frees or reorders objects.

    PYTHON soak.py CLIENT FOLDER SECONDS [NAME ...]

Standard library only. Exits with 0 when the time is over, every facility has run, and memory has not grown with the
number of runs; it crashes otherwise. NAME selects facilities of the table below.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from pathlib import Path

# Growth allowed after warm-up: enough for fragmentation, too little for a leak in every turn.
MOST_GROWTH_BYTES = 96 << 20
KEPT = 3_000


class Node:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("__weakref__", "left", "right")


class Finalized:
    """An object that runs code while it is freed, also inside a collection."""

    def __init__(self, other):
        self.other = other

    def __del__(self):
        self.other = [self]
        time.sleep(0)


# -- what the program does


def makes_and_drops(chance, kept):
    for i in range(200):
        one = Slotted()
        one.left = [i]
        some = (one, Node({i: one}), (one, [i]), {"a": i}, (i, "b"), bytearray(i), float(i))
        kept.append(chance.choice(some))


def ties_cycles(chance, kept):
    for i in range(100):
        a, b = Node(i), Finalized(None)
        a.value, b.other = b, a
        if chance.random() < 0.2:
            kept.append(weakref.ref(a))


def grows_and_shrinks(chance, kept):
    lists, many = [], {}
    ends = deque()
    for i in range(chance.randrange(30_000)):
        lists.append((i, [i]))
        many[i] = [i]
        ends.append([i])
    kept.append((lists, many, ends, set(many), OrderedDict(many)))
    time.sleep(0)
    del lists[: len(lists) // 2]
    while len(ends) > 10:
        ends.popleft()
        if len(ends) % 1_000 == 0:
            time.sleep(0)
    many.clear()
    kept.pop()


def collects(chance, kept):
    gc.collect(chance.randrange(3))


def freezes(chance, kept):
    gc.freeze()
    makes_and_drops(chance, kept)
    gc.unfreeze()


def makes_and_drops_classes(chance, kept):
    for i in range(5):
        metaclass = type(f"Meta{i}", (type,), {})
        cls = metaclass(f"Kind{i}", (Node,), {"__slots__": ()} if i % 2 else {})
        kept.append([cls(j) for j in range(20)])


def runs_generators(chance, kept):
    def numbers(n):
        try:
            for i in range(n):
                yield [i]
        finally:
            time.sleep(0)

    some = [numbers(5) for _ in range(50)]
    for one in some:
        next(one)
    kept.append(some)


def builds_tuples(chance, kept):
    """Build tuples as Python does: building raises an error if another holder exists meanwhile."""

    def items(n):
        for i in range(n):
            if i % 5 == 0:
                time.sleep(0)
            yield [i]

    for _ in range(20):
        kept.append(tuple(items(chance.randrange(1, 80))))


def switches_the_collector(chance, kept):
    gc.disable()
    ties_cycles(chance, kept)
    gc.enable()


PROGRAM = [
    makes_and_drops, makes_and_drops, ties_cycles, grows_and_shrinks, collects, freezes, makes_and_drops_classes,
    runs_generators, builds_tuples, switches_the_collector,
]  # fmt: skip


# -- what Leakline does meanwhile: one turn each


def _in_slices(work):
    """Run all steps, but give up after five seconds, as a caller without time left does."""
    end = time.monotonic() + 5
    while not work.step(0.0005):
        time.sleep(0)
        if time.monotonic() > end:
            return
    work.result()


def _census_in_slices():
    from leakline.probes.heap.census import SlicedCensus

    _in_slices(SlicedCensus())


def _census(*deadline):
    from leakline.probes.heap.census import take_census

    take_census(*deadline)


def _references_to_classes(module):
    classes = [weakref.ref(cls) for cls in Node.__subclasses__() + type.__subclasses__(type)]
    for _ in range(20):
        module.reference_counts(classes)
        time.sleep(0)


INSTANCES = [Node, Slotted, tuple, float, type]
FACILITIES = {
    "referrers": lambda module, heap: _in_slices(module.ReferrerPass(heap[:20])),
    "referrers at once": lambda module, heap: module.referrers_among(heap, heap[:20]),
    "instances": lambda module, heap: _in_slices(module.InstancePass(INSTANCES, each=7)),
    "newest": lambda module, heap: module.newest_instances([Node, dict, Finalized], 10, 0.01),
    "garbage": lambda module, heap: module.garbage(300_000, 20_000_000),
    "references to classes": lambda module, heap: _references_to_classes(module),
    "census in slices": lambda module, heap: _census_in_slices(),
    "census at once": lambda module, heap: _census(),
    "census with a deadline": lambda module, heap: _census(0.001),
}


# -- together


def main(client, folder, seconds, *names):
    from check_native import load

    # Switch threads wherever possible.
    sys.setswitchinterval(1e-5)
    module = load(client, folder)
    heap = [Node([i]) for i in range(5_000)]
    heap += [{"a": [one]} for one in heap[:2_000]]
    before = [sys.getrefcount(one) for one in heap]
    chosen = {name: FACILITIES[name] for name in names} if names else FACILITIES
    turns = dict.fromkeys(chosen, 0)
    end = time.monotonic() + float(seconds)
    failures, ended = [], threading.Event()

    @contextlib.contextmanager
    def guarded(name):
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - of either side: the other thread has to hear of it
            failures.append(f"{name}: {type(error).__name__}: {error}")

    def program(seed):
        chance, kept = random.Random(seed), deque(maxlen=KEPT)
        rounds = 0
        while not (ended.is_set() or failures):
            with guarded("the program"):
                chance.choice(PROGRAM)(chance, kept)
            rounds += 1
            if rounds % 100 == 0:
                # The incremental collector of the first 3.14 does not keep up by itself.
                gc.collect()

    def ours(number):
        mine = list(chosen)[number::2]
        while mine and (time.monotonic() < end or not turns[mine[-1]]) and not failures:
            for name in mine:
                with guarded(name):
                    chosen[name](module, heap)
                turns[name] += 1

    programs = [threading.Thread(target=program, args=(seed,)) for seed in (1, 2)]
    lookers = [threading.Thread(target=ours, args=(number,)) for number in (0, 1)]
    for thread in programs + lookers:
        thread.start()
    time.sleep(float(seconds) / 3)
    warm = resident()
    for thread in lookers:
        thread.join()
    ended.set()
    for thread in programs:
        thread.join()
    gc.collect()
    grown = resident() - warm
    after = [sys.getrefcount(one) for one in heap]
    numbers = ", ".join(f"{name} {number}" for name, number in turns.items())
    sys.stdout.write(f"{numbers} turns; {grown / 1e6:+.1f} MB\n")
    sys.stdout.flush()
    if failures:
        sys.exit(failures[0])
    if after != before:
        sys.exit("references to the heap were kept or lost")
    if grown > MOST_GROWTH_BYTES and "LD_PRELOAD" not in os.environ:
        sys.exit(f"memory grew by {grown / 1e6:.0f} MB")


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(*sys.argv[1:])
