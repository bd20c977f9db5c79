"""Instances of all ages are remembered weakly, in bounded space, for the search for holders."""

from __future__ import annotations

import gc
import weakref

from tests.probes.heaps import needs_native

from leakline.probes.heap.age_samples import (
    CLASSES_LIMIT,
    INSTANCES_OF_A_GENERATION,
    REFERENCES_OF_A_CLASS,
    AgeSamples,
    pick_newest,
)


class Agent:
    def __init__(self, generation: int = 0) -> None:
        self.generation = generation


class Bare:
    __slots__ = ("x",)


def test_nothing_is_kept_alive() -> None:
    samples = AgeSamples()
    kept = [Agent()]
    gone = weakref.ref(kept[0])
    samples.note({Agent: kept})
    assert [one() for one in samples.instances(Agent)] == kept
    kept.clear()
    assert gone() is None
    assert samples.instances(Agent) == []


def test_an_instance_is_noted_once() -> None:
    samples = AgeSamples()
    kept: list[Agent] = []
    for _ in range(5):
        kept.append(Agent())
        samples.note({Agent: kept[::-1]})
    assert [one() for one in samples.instances(Agent)] == kept


def test_a_class_that_allows_no_weak_reference_is_left_out() -> None:
    samples = AgeSamples()
    for _ in range(2):
        samples.note({Bare: [Bare()]})
    assert samples.instances(Bare) == []


def test_the_number_of_classes_is_bounded() -> None:
    samples = AgeSamples()
    classes = [type(f"C{i}", (Agent,), {}) for i in range(CLASSES_LIMIT + 5)]
    kept = [cls() for cls in classes]
    samples.note({cls: [one] for cls, one in zip(classes, kept, strict=True)})
    assert sum(bool(samples.instances(cls)) for cls in classes) == CLASSES_LIMIT


def test_a_long_leak_keeps_a_bounded_sample_of_all_its_ages() -> None:
    samples = AgeSamples()
    kept: list[Agent] = []
    generations = 4 * REFERENCES_OF_A_CLASS
    for generation in range(generations):
        new = [Agent(generation) for _ in range(INSTANCES_OF_A_GENERATION)]
        kept += new
        samples.note({Agent: new[::-1]})
        assert len(samples.instances(Agent)) <= REFERENCES_OF_A_CLASS
    ages = [one.generation for weak in samples.instances(Agent) if (one := weak()) is not None]
    assert ages == sorted(ages)
    assert ages[0] == 0 and ages[-1] == generations - 1
    assert len(set(ages)) >= REFERENCES_OF_A_CLASS // 2


def test_what_is_made_anew_fills_no_memory() -> None:
    samples = AgeSamples()
    for generation in range(4 * REFERENCES_OF_A_CLASS):
        samples.note({Agent: [Agent(generation) for _ in range(INSTANCES_OF_A_GENERATION)]})
    (sample,) = samples._classes.values()
    assert sample is not None
    assert sum(map(len, sample.cohorts)) <= REFERENCES_OF_A_CLASS
    assert len(sample.known) <= REFERENCES_OF_A_CLASS


@needs_native
def test_the_newest_are_picked_from_the_young_end_of_the_heap() -> None:
    kept = [Agent() for _ in range(30)]
    gc.collect()
    kept += [Agent() for _ in range(3)]
    # The heap of the tests that ran before may lie between: the collector reorders what it looks through.
    picked = pick_newest([Agent], seconds=60)
    assert [id(one) for one in picked[Agent]] == [id(one) for one in kept[:-9:-1]]
