"""The native scan for referrers and instances, and the holder search built on it, in slices of a running program."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest
from tests.probes.heaps import needs_native, run_alone

from leakline.probes.native_module import forget, native
from leakline.probes.references.referrers import ReferrerSearch
from leakline.sampling.holder_paths import FoundHolder, SlicedHolderSearch, find_holders
from leakline.snapshot import CYCLIC_GARBAGE

pytestmark = [pytest.mark.alone, needs_native]

HERE = __name__
SLICE = 0.005
module: Any = native()


class Kept:
    pass


class Holder:
    def __init__(self) -> None:
        self.history: deque[tuple[Any, ...]] = deque()
        self.names: dict[str, Any] = {}


trainer = Holder()


@pytest.fixture(autouse=True)
def fresh_trainer() -> Iterator[None]:
    """Use an object on the collector's lists, where the module itself is not."""
    global trainer
    trainer = Holder()
    yield
    trainer = Holder()


def _search(
    types: list[type], seconds: float = SLICE, **options: Any
) -> tuple[list[FoundHolder], int]:
    search = SlicedHolderSearch(types, 20.0, **options)
    steps = 1
    while not search.step(seconds):
        steps += 1
    return search.result(), steps


def _fresh(name: str) -> type:
    return type(name, (Kept,), {"__module__": __name__})


def test_more_referrers_than_the_limit_are_reported_as_incomplete() -> None:
    target = Kept()
    keeps = [[target] for _ in range(100)]
    look = module.ReferrerPass([target], 10)
    look.step(-1.0)
    pairs, whole = look.result()
    assert (len(pairs), whole) == (10, False)
    assert keeps


def test_wrong_arguments_raise_instead_of_crashing() -> None:
    for wrong in ({1}, None, "ab"):
        with pytest.raises(TypeError):
            module.ReferrerPass(wrong)
        with pytest.raises(TypeError):
            module.referrers_among([], wrong)
    with pytest.raises(TypeError):
        module.InstancePass([1], 3)
    with pytest.raises(ValueError, match="1 to"):
        module.InstancePass([Kept], 0)
    with pytest.raises(ValueError, match="too many"):
        module.ReferrerPass([None] * 20_000)
    look = module.ReferrerPass([])
    assert look.step(-1.0)
    assert look.result() == ([], True)
    assert look.result()[0] == []
    assert look.step(-1.0)


def test_sampled_instances_are_spread_irregularly_over_their_age() -> None:
    cls, other = _fresh("Even"), _fresh("Odd")
    ones = []
    # The collector's oldest list keeps the order of creation.
    gc.disable()
    try:
        for _ in range(5_000):
            # They alternate, so that a regular step would never hit one of the two kinds.
            ones += [cls(), other()]
        gc.collect()
    finally:
        gc.enable()
    look = module.InstancePass([cls, other, np.ndarray], 10)
    while not look.step(0.0005):
        pass
    (count, chosen), (count_other, _), _ = look.result()
    assert (count, count_other) == (5_000, 5_000)
    places = [next(i for i, one in enumerate(ones) if one is each) for each in chosen]
    assert 10 <= len(places) <= 20
    assert places == sorted(places)
    assert places[0] < 2_000
    assert places[-1] > 8_000
    assert len({place // 2 % 2 for place in places}) == 2


def test_untracked_instances_are_counted_once() -> None:
    class Own(np.ndarray[Any, Any]):
        """A separate type, so that no other test has instances."""

    kind = type(np.zeros(1).view(Own))
    arrays = [np.zeros(2).view(Own) for _ in range(700)]
    shared = [(arrays[0], i) for i in range(50)]
    gc.collect()
    look = module.InstancePass([kind], 10)
    look.step(-1.0)
    ((count, chosen),) = look.result()
    assert count == 700
    assert {type(one) for one in chosen} == {kind}
    assert shared


def test_a_sliced_search_finds_what_an_unsliced_one_finds() -> None:
    cls = _fresh("Sliced")
    trainer.history.extend((i, cls(), [i]) for i in range(40))
    filler = [[i] for i in range(200_000)]
    found, steps = _search([cls], 0.001)
    assert found == find_holders([cls], 20)
    assert (found[0].path, found[0].count) == (f"{HERE}.Holder.history[*][*]", 40)
    assert steps > 1
    assert filler


def test_with_seeds_and_totals_no_heap_scan_for_samples_is_needed() -> None:
    cls = _fresh("Seeded")
    trainer.names["all"] = [cls() for _ in range(30)]
    seeds = [weakref.ref(one) for one in trainer.names["all"][::3]]
    found, steps = _search([cls], seeds={cls: seeds}, totals={cls: 3_000})
    assert (found[0].path, found[0].count) == (f"{HERE}.Holder.names[*][*]", 3_000)
    # Everything was found near a global name: no slice of the heap was needed.
    assert steps == 1


def test_without_seeds_the_sample_covers_all_ages() -> None:
    """The newest alone would be those in use by the program, which it holds only for a moment."""
    cls = _fresh("Spread")
    trainer.names["all"] = [cls() for _ in range(60)]
    trainer.names["now"] = [[cls() for _ in range(16)]]
    found, steps = _search([cls], -1.0, totals={cls: 76})
    assert found[0].path == f"{HERE}.Holder.names[*][*]"
    # Each step is at most an entire scan: one for samples, then those for their referrers. Measured 4.
    assert steps <= 5
    assert found[0].count > 50


def test_a_search_keeps_no_instances_or_classes_between_steps() -> None:
    cls = _fresh("Gone")
    trainer.names["all"] = [cls() for _ in range(30)]
    filler = [[i] for i in range(200_000)]
    search = SlicedHolderSearch([cls], 20.0)
    search.step(0.0005)
    ones = [weakref.ref(one) for one in trainer.names["all"]]
    gone = weakref.ref(cls)
    trainer.names.clear()
    assert all(one() is None for one in ones)
    del cls
    gc.collect()
    assert gone() is None
    while not search.step(0.0005):
        pass
    assert search.result() == []
    assert filler


LOCALS = """
import threading
from leakline.sampling.holder_paths import SlicedHolderSearch

class Step: pass

def go_on(search):
    while not search.step(0.001): pass

def train():
    episode = [Step() for _ in range(12)]
    search = SlicedHolderSearch([Step])
    thread = threading.Thread(target=go_on, args=(search,))
    thread.start()
    thread.join()
    print(search.result()[0].path)

train()
"""


def test_locals_of_the_thread_that_starts_the_search_are_named(tmp_path: Path) -> None:
    assert run_alone(tmp_path, LOCALS) == "__main__.train.<locals>.episode[*]\n"


def test_a_spent_budget_ends_the_search_with_partial_results() -> None:
    cls = _fresh("Hasty")
    # One path is near a global name, and one object could only be named by heap scans.
    trainer.names["all"] = [cls() for _ in range(30)]
    trainer.names["far"] = [[[]] for _ in range(100)]
    trainer.names["far"][50][0].append([cls() for _ in range(30)])
    for budget, steps_allowed in ((0.5, 3), (2.5, 8)):
        ticks = iter(range(10_000))
        search = SlicedHolderSearch([cls], budget, clock=lambda: float(next(ticks)))  # noqa: B023
        steps = 1
        while not search.step(-1.0 if steps == 1 else 0.00001):
            steps += 1
        assert steps <= steps_allowed
        assert search.result()[0].path == f"{HERE}.Holder.names[*][*]"


def test_cyclic_garbage_is_recognized_in_slices_too() -> None:
    cls = _fresh("Cyclic")
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            one: Any = cls()
            one.itself = [one]
        del one
        found, _ = _search([cls], -1.0)
        assert [(each.path, each.count) for each in found] == [(CYCLIC_GARBAGE, 30)]
        # Reachable again, it is no longer garbage.
        trainer.names["some"] = [one for one in gc.get_objects() if type(one) is cls][:15]
        found, _ = _search([cls], -1.0)
        assert {each.path for each in found} >= {CYCLIC_GARBAGE, f"{HERE}.Holder.names[*][*]"}
    finally:
        gc.enable()


def test_a_search_costs_at_most_three_heap_scans() -> None:
    """Helper objects between the samples and a name: two passes. The result is the ratio to the reference pass."""
    cls = _fresh("Costly")
    filler = [(i, [i]) for i in range(250_000)]
    random.Random(0).shuffle(filler)
    trainer.history.extend((i, [cls()], {"i": [i]}) for i in range(2_000))
    started = thread_time()
    Counter(map(type, gc.get_objects()))
    reference = thread_time() - started
    search = SlicedHolderSearch([cls], 20.0)
    seconds = longest = 0.0
    done = False
    while not done:
        started = thread_time()
        done = search.step(SLICE)
        step = thread_time() - started
        seconds, longest = seconds + step, max(longest, step)
    assert search.result()[0].path == f"{HERE}.Holder.history[*][*][*]"
    # Measured 1.0 to 3.0 on a fresh heap; the longest step 0.6 to 1.1, which is the collector's list of all objects.
    assert seconds < 4 * reference
    assert longest < 2 * reference


def test_without_the_native_module_the_error_names_the_alternative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKLINE_NATIVE", "0")
    forget()
    try:
        with pytest.raises(RuntimeError, match="use find_holders"):
            SlicedHolderSearch([Kept])
    finally:
        monkeypatch.undo()
        forget()


def test_dropped_objects_are_released_before_the_search_ends() -> None:
    """A list has no weak reference: between two steps the search would be its last holder."""
    kept, dropped = [Kept()], [Kept()]
    gone = weakref.ref(dropped[0])
    search = ReferrerSearch([kept, dropped])
    search.let_go()
    del dropped
    assert gone() is not None
    search.take_up()
    assert gone() is None
    assert search.samples(3) == [kept]
