"""Checks of everything the native module promises, in any interpreter, with the standard library alone.

    PYTHON check_native.py CLIENT FOLDER [NAME ...]

CLIENT contains the package `leakline`, FOLDER the compiled module; NAME skips a check. Each check is a function in the
table below; a failing check ends the process with its name and what was observed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import random
import sys
import threading
import time
from collections import Counter, deque


def load(client, folder):
    """Load the module from this folder in preference to one that an editable install has compiled in place."""
    faulthandler.enable()
    sys.path.insert(0, client)
    import leakline

    leakline.__path__.insert(0, folder)
    from leakline.probes import native_module

    module = native_module.native()
    if module is None:
        sys.exit(f"no native module: {native_module.why_not_native()}")
    if not module.__file__.startswith(folder):
        sys.exit(f"another module was loaded: {module.__file__}")
    return module


def main(client, folder):
    module = load(client, folder)
    for check in CHECKS:
        gc.collect()
        started = time.process_time()
        check(module)
        sys.stdout.write(f"{check.__name__:60} {time.process_time() - started:6.2f} s\n")


CHECKS = []


def is_a_check(function):
    CHECKS.append(function)
    return function


# -- heaps to scan


class Node:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("__weakref__", "left", "right")


class Tall(tuple):
    pass


def grown(number, seed=3):
    """Return an aged heap: made in one order, then thinned and shuffled."""
    chance = random.Random(seed)
    made = []
    for i in range(number):
        kind = i % 5
        if kind == 0:
            made.append(Node([i]))
        elif kind == 1:
            one = Slotted()
            one.left = made[chance.randrange(len(made))]
            made.append(one)
        elif kind == 2:
            made.append({"a": [i], i: None})
        elif kind == 3:
            made.append(Tall((i, [i])))
        else:
            made.append([made[chance.randrange(len(made))]])
    chance.shuffle(made)
    return made[: number * 3 // 4]


class Churn:
    """A thread that allocates, frees, grows, makes cycles and collects while something else is measured."""

    def __init__(self, collects=False):
        self.collects = collects
        self.ended = threading.Event()
        self.rounds = 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.ended.set()
        self.thread.join()

    def run(self):
        chance = random.Random(5)
        kept = deque(maxlen=5_000)
        while not self.ended.is_set():
            self.rounds += 1
            for i in range(200):
                a, b = {"i": [i]}, [i]
                a["b"] = b
                if chance.random() < 0.3:
                    b.append(a)
                kept.append(chance.choice((a, b)))
            if self.collects and self.rounds % 20 == 0:
                gc.collect(chance.choice((0, 0, 1, 2)))
            elif self.rounds % 200 == 0:
                # The incremental collector of the first 3.14 does not keep up by itself.
                gc.collect()


def to_the_end(work, seconds=0.0005):
    """Run all steps, releasing the interpreter lock between them."""
    steps = 1
    while not work.step(seconds):
        steps += 1
        time.sleep(0)
    return steps


def when_whole(make):
    """Return the result of the first attempt that missed nothing."""
    for _ in range(TRIES):
        work = make()
        to_the_end(work)
        found, whole = work.result()
        if whole:
            return found
    raise AssertionError(f"none of {TRIES} walks was whole")


# -- the census

# Constant full collections may reorder the lists during any walk, which then reports that it is not complete.
TRIES = 300
ROWS = (Node, Slotted, Tall)


@is_a_check
def the_census_counts_what_brute_force_counts(module):
    from leakline.probes.heap.census import take_census

    heap = grown(40_000)
    # The first census imports and caches objects; from then on they exist.
    take_census()
    gc.collect()
    counts = Counter(map(type, gc.get_objects()))
    result = take_census()
    assert result.is_exact, result.coverage
    for kind in (*ROWS, type, type(gc)):
        assert result.counts[kind] == counts[kind], (kind, result.counts[kind], counts[kind])
    # Tuples of plain values are on no list: each is visited once, through its referrer.
    pairs = [Node((i, str(i))) for i in range(10_000)]
    more = take_census()
    assert 0 <= more.counts[tuple] - result.counts[tuple] - len(pairs) < 50
    assert more.counts[Node] - result.counts[Node] == len(pairs)
    del heap, pairs


@is_a_check
def the_census_in_slices_counts_the_same(module):
    from leakline.probes.heap.census import SlicedCensus, take_census

    heap = grown(40_000)
    expected = take_census().counts
    expected = {id(kind): expected[kind] for kind in ROWS}
    gc.disable()
    work = SlicedCensus()
    assert to_the_end(work) > 3
    result = work.result()
    gc.enable()
    assert result.is_whole
    assert {kind: result.counts[kind] for kind in expected} == expected
    del heap


@is_a_check
def the_census_in_slices_is_exact_beside_a_program_that_runs(module):
    from leakline.probes.heap.census import SlicedCensus

    heap = grown(15_000)
    counts = Counter(map(type, gc.get_objects()))
    for collects in (False, True):
        with Churn(collects):
            for _ in range(TRIES):
                work = SlicedCensus()
                to_the_end(work)
                result = work.result()
                if result.is_whole:
                    break
        assert result.is_whole
        # Objects of the heap live from the first slice to the last.
        found = {kind.__name__: result.counts[id(kind)] for kind in ROWS}
        assert found == {kind.__name__: counts[kind] for kind in ROWS}, found
    del heap


@is_a_check
def containers_may_shrink_between_two_slices(module):
    from leakline.probes.heap.census import SlicedCensus

    for make, shrink in (
        (lambda: deque([i] for i in range(60_000)), lambda one: [one.popleft() for _ in range(59_990)]),
        (lambda: [[i] for i in range(60_000)], lambda one: one.__delitem__(slice(10, None))),
        (lambda: {i: [i] for i in range(60_000)}, lambda one: one.clear()),
        (lambda: {(i, "a") for i in range(60_000)}, lambda one: one.clear()),
    ):  # fmt: skip
        for steps in range(1, 40, 6):
            one = make()
            work = SlicedCensus()
            for _ in range(steps):
                work.step(0.0001)
            shrink(one)
            to_the_end(work)
            work.result()


# -- referrers and instances


@is_a_check
def referrers_in_slices_are_all_that_there_are(module):
    heap = grown(40_000)
    targets = random.Random(1).sample(heap, 50)
    # enumerate() is avoided: its internal pair would be a referrer too.
    expected = {
        (place, id(referrer))
        for place in range(len(targets))
        for referrer in gc.get_referrers(targets[place])
        if referrer is not targets
    }
    work = module.ReferrerPass(targets)
    to_the_end(work)
    pairs, whole = work.result()
    seen = {(place, id(referrer)) for place, referrer in pairs if referrer is not targets}
    assert whole
    assert seen == expected, (len(seen - expected), len(expected - seen))


@is_a_check
def referrers_are_found_beside_a_program_that_runs(module):
    heap = grown(15_000)
    targets = random.Random(1).sample(heap, 20)
    for collects in (False, True):
        with Churn(collects):
            pairs = when_whole(lambda: module.ReferrerPass(targets))
        found = {place for place, referrer in pairs if referrer is heap}
        assert found == set(range(20)), found


@is_a_check
def instances_are_counted_exactly(module):
    heap = grown(40_000)
    counts = Counter(map(type, gc.get_objects()))
    kinds = list(ROWS)
    work = module.InstancePass(kinds, each=5)
    to_the_end(work)
    rows = work.result()
    assert [number for number, _ in rows] == [counts[kind] for kind in kinds], rows
    for kind, (_, some) in zip(kinds, rows, strict=True):
        assert 5 <= len(some) <= 10, len(some)
        assert all(type(one) is kind for one in some)
    del heap


@is_a_check
def instances_are_counted_beside_a_program_that_runs(module):
    heap = grown(15_000)
    counts = Counter(map(type, gc.get_objects()))
    expected = [counts[kind] for kind in ROWS]
    with Churn():
        seen = []
        for _ in range(TRIES):
            work = module.InstancePass(list(ROWS), each=5)
            to_the_end(work)
            seen.append([number for number, _ in work.result()])
            # The result does not say whether full collections made it miss some.
            if seen[-1] == expected:
                break
    assert seen[-1] == expected, (seen, expected)
    del heap


@is_a_check
def the_newest_instances_come_first(module):
    heap = grown(10_000)
    last = [Node(i) for i in range(10)]
    (some,) = module.newest_instances([Node], 10, 1.0)
    assert {id(one) for one in some} == {id(one) for one in last}
    del heap


# -- tuples that are being built

# `tuple(iterator)` must hold the only reference when it grows what it has filled or cuts it to its length.
BUILT = 60
# At these lengths it is full before it grows, if the iterator gives no length hint.
FULL = (10, 25, 43)


@contextlib.contextmanager
def only_what_is_made_here():
    """Freeze older objects, so that scans see only what is made inside."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ItemsWithALook:
    """Yields the values; before the one at ``at``, or before the end, it scans and keeps the result."""

    def __init__(self, values, at, look, kept):
        self.left, self.at, self.look, self.kept = list(values)[::-1], at, look, kept
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.given == self.at:
            self.kept.append(self.look())
        self.given += 1
        if not self.left:
            raise StopIteration
        return self.left.pop()


class TooFewPromised(ItemsWithALook):
    """Gives a length hint of 7, so that the tuple is full with 7 items."""

    def __length_hint__(self):
        return 7


def _begun(work):
    to_the_end(work)
    return work


def _done(work):
    work.step(-1.0)
    return work, work.result()


def _census_of_tuples(in_slices):
    from leakline.probes.heap.native_census import NO_LIMIT, NativeCensus

    census = NativeCensus({tuple: NO_LIMIT}, 0, in_slices=in_slices)
    if in_slices:
        return _begun(census)
    census.run(None, [])
    return census, census.take_picked(), census.take_large()


@is_a_check
def nothing_holds_a_tuple_that_is_being_built(module):
    values = [Node(i) for i in range(BUILT)]
    looks = {
        "referrers, begun": lambda: _begun(module.ReferrerPass(values)),
        "referrers, done": lambda: _done(module.ReferrerPass(values)),
        "instances, begun": lambda: _begun(module.InstancePass([tuple], 1000)),
        "instances, done": lambda: _done(module.InstancePass([tuple], 1000)),
        "newest": lambda: module.newest_instances([tuple], 1000, 60.0),
        "census, begun": lambda: _census_of_tuples(True),
        "census, done": lambda: _census_of_tuples(False),
    }
    with only_what_is_made_here():
        for name, look in looks.items():
            for length in range(1, BUILT + 1):
                for at in {length // 2, length, 7, *FULL}:
                    for items in (ItemsWithALook, TooFewPromised):
                        kept = []
                        try:
                            built = tuple(items(values[:length], at, look, kept))
                        except SystemError as error:
                            raise AssertionError(f"{name}: of {length} at {at}: {error}") from error
                        assert list(map(id, built)) == list(map(id, values[:length]))


@is_a_check
def tuples_of_any_length_are_found(module):
    with only_what_is_made_here():
        targets = [Node(i) for i in range(BUILT)]
        holders = [tuple([one] * number) for number, one in enumerate(targets)]
        place_of = {id(one): number for number, one in enumerate(holders)}
        work = module.ReferrerPass(targets)
        to_the_end(work)
        pairs, whole = work.result()
        found = sorted(place for place, one in pairs if place_of.get(id(one)) == place)
        assert whole
        assert found == [*range(1, BUILT)], found
        del pairs
        sample = _done(module.InstancePass([tuple], 1000))[1][0][1]
        newest = module.newest_instances([tuple], 1000, 60.0)[0]
        for some in (sample, newest):
            seen = {place_of.get(id(one)) for one in some}
            assert seen >= set(range(1, BUILT)), seen
        # Nested in each other, each with a single reference.
        nested = holders[7]
        for _ in range(12):
            nested = (nested,)
        del holders[7]
        work = module.ReferrerPass([targets[7]])
        to_the_end(work)
        pairs, _ = work.result()
        assert [len(one) for _, one in pairs if type(one) is tuple] == [7]


# -- garbage


@is_a_check
def garbage_is_found_and_left(module):
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            a, b = Node(None), Node(None)
            a.value, b.value = b, a
        del a, b
        looked_at, is_all, dead, size, _, types = module.garbage(400_000, 10**10)
        assert is_all, looked_at
        counts = {kind: number for kind, number, _ in types}
        assert counts.get(Node) == 200, types
        assert size > 200 * 32
        del types, counts
        alive = module.garbage(400_000, 10**10)[2]
        assert alive == dead
        assert gc.collect() >= 200
        assert module.garbage(400_000, 10**10)[2] < dead
    finally:
        gc.enable()


# -- what every check must leave unchanged


@is_a_check
def nothing_keeps_a_reference(module):
    heap = grown(20_000)
    before = list(map(sys.getrefcount, heap))
    classes = list(ROWS)
    class_counts = list(map(sys.getrefcount, classes))
    for name, look in LOOKS.items():
        look(module)
        after = list(map(sys.getrefcount, heap))
        assert after == before, name
        assert list(map(sys.getrefcount, classes)) == class_counts, name


@is_a_check
def a_look_given_up_leaves_nothing_behind(module):
    heap = grown(20_000)
    tracked = len(gc.get_objects())
    for make in (lambda: module.ReferrerPass(heap[:10]), lambda: module.InstancePass([Node])):
        for _ in range(50):
            work = make()
            work.step(0.00001)
            del work
    assert abs(len(gc.get_objects()) - tracked) < 10
    gc.collect()


def _whole(work):
    to_the_end(work)
    work.result()


def _sliced_census(module):
    from leakline.probes.heap.census import SlicedCensus

    _whole(SlicedCensus())


def _census(module):
    from leakline.probes.heap.census import take_census

    take_census()


LOOKS = {
    "census": _census,
    "census in slices": _sliced_census,
    "ReferrerPass": lambda module: _whole(module.ReferrerPass([LOOKS])),
    "InstancePass": lambda module: _whole(module.InstancePass([Node, tuple, str])),
    "newest_instances": lambda module: module.newest_instances([Node, dict], 10, 1.0),
    "garbage": lambda module: module.garbage(400_000, 10**10),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
