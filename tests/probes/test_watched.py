"""Creations and deletions of watched classes, from weak references and exact counts; classes known to pile up; and
weakly remembered instances of all ages.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.probes.heaps import needs_native, run_alone

from leakline.probes.heap.watched_instances import (
    CLASSES_LIMIT,
    INSTANCES_OF_A_GENERATION,
    REFERENCES_OF_A_CLASS,
    AgeSamples,
    WatchedClasses,
    known_to_pile_up,
    pick_newest,
    piling_in_census,
)
from leakline.probes.references.class_names import type_name
from leakline.probes.tracked_containers import read_figures


class Episode:
    pass


class Bare:
    __slots__ = ("x",)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ours to leave alone")


NAME = type_name(Episode)


def _watch(name: str = NAME, **options: int) -> WatchedClasses:
    watched = WatchedClasses(**options)
    watched.watch(name)
    return watched


def _read(watched: WatchedClasses, alive: int) -> tuple[Any, Any]:
    samples = watched.read({NAME: alive})
    return samples.get(f"type.{NAME}.created"), samples.get(f"type.{NAME}.freed")


def test_counting_starts_at_the_first_reading() -> None:
    watched = _watch()
    assert watched.read({NAME: 5}) == {}
    assert _read(watched, 5) == (0, 0)


def test_replaced_instances_are_counted_although_the_total_is_constant() -> None:
    watched = _watch()
    kept = [Episode() for _ in range(10)]
    watched.note({Episode: kept})
    watched.read({NAME: 10})
    for generation in range(1, 6):
        kept = [Episode() for _ in range(10)]
        watched.note({Episode: kept})
        assert _read(watched, 10) == (10 * generation, 10 * generation)


def test_unseen_instances_still_show_in_the_count() -> None:
    watched = _watch()
    watched.read({NAME: 10})
    assert _read(watched, 14) == (4, 0)
    assert _read(watched, 3) == (4, 11)


def test_created_minus_freed_is_the_change_of_the_count() -> None:
    watched = _watch()
    kept: list[Episode] = []
    watched.read({NAME: 0})
    for step in range(50):
        kept += [Episode() for _ in range(step % 7)]
        watched.note({Episode: kept[-3:]})
        del kept[: step % 5]
        created, freed = _read(watched, len(kept))
        assert created - freed == len(kept)


def test_a_reading_without_a_count_loses_nothing() -> None:
    watched = _watch()
    kept = [Episode() for _ in range(4)]
    watched.note({Episode: kept})
    watched.read({NAME: 4})
    kept.clear()
    assert watched.read({}) == {}
    assert _read(watched, 0) == (0, 4)


def test_a_new_instance_at_a_reused_address_is_counted() -> None:
    watched = _watch()
    watched.read({NAME: 0})
    for _ in range(20):
        one = Episode()
        watched.note({Episode: [one]})
        del one
    assert _read(watched, 0) == (20, 20)


def test_watching_keeps_nothing_alive_and_ignores_other_classes() -> None:
    watched = _watch()
    kept: list[Any] = [Episode(), Bare()]
    gone = weakref.ref(kept[0])
    watched.note({Episode: kept[:1], Bare: kept[1:]})
    kept.clear()
    assert gone() is None


def test_classes_that_cannot_be_followed_are_left_out() -> None:
    watched = _watch(limit=100)
    kept = [Episode() for _ in range(100)]
    watched.note({Episode: kept})
    assert watched.names == (NAME,)
    kept.append(Episode())
    watched.note({Episode: kept})
    assert watched.read({NAME: 101}) == {}
    assert watched.names == ()
    bare = _watch(type_name(Bare))
    bare.note({Bare: [Bare()]})
    assert bare.names == ()


def test_no_code_of_the_class_runs() -> None:
    watched = _watch(type_name(Unhashable))
    ones = [Unhashable() for _ in range(3)]
    watched.note({Unhashable: ones})
    watched.note({Unhashable: ones})
    watched.read({type_name(Unhashable): 3})
    ones.clear()
    samples = watched.read({type_name(Unhashable): 0})
    assert samples[f"type.{type_name(Unhashable)}.freed"] == 3


def test_deaths_on_other_threads_are_counted() -> None:
    watched = _watch()
    kept = [Episode() for _ in range(4_000)]
    watched.note({Episode: kept})
    watched.read({NAME: 4_000})
    parts = [kept[i::4] for i in range(4)]
    kept.clear()
    threads = [threading.Thread(target=part.clear) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _read(watched, 0) == (0, 4_000)


PROGRAM = """
from leakline.probes.heap.watched_instances import WatchedClasses

class Episode: pass

watched = WatchedClasses()
watched.watch("__main__.Episode")
kept = [Episode() for _ in range(1000)]
watched.note({Episode: kept})
for one in kept:
    one.itself = one
"""


def test_deaths_while_the_interpreter_ends_are_silent(tmp_path: Path) -> None:
    run_alone(tmp_path, PROGRAM)


@pytest.mark.parametrize("name", ["threading.Thread", "subprocess.Popen", "torch.optim.adam.Adam"])
def test_classes_known_to_pile_up_are_listed_by_their_names(name: str) -> None:
    module, _, cls = name.rpartition(".")
    loaded = __import__(module, fromlist=[cls])
    assert type_name(getattr(loaded, cls)) == name
    names = known_to_pile_up()
    assert name in names
    assert all(each.rpartition(".")[0] in sys.modules for each in names)


def test_open_files_are_counted_by_a_census() -> None:
    counts = {"_io.BufferedReader": 1, "_io.FileIO": 1, type_name(Episode): 3}
    assert piling_in_census(counts) == {
        "type._io.BufferedReader.count": 1,
        "type._io.FileIO.count": 1,
    }


def test_open_figures_are_counted_once_matplotlib_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "matplotlib._pylab_helpers", raising=False)
        assert read_figures() == {}
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    pyplot.figure()
    pyplot.figure()
    assert read_figures() == {"figures.open": 2}
    pyplot.close("all")
    assert read_figures() == {"figures.open": 0}


# -- instances of all ages, remembered weakly for the search for holders


class Agent:
    def __init__(self, generation: int = 0) -> None:
        self.generation = generation


def test_age_samples_keep_nothing_alive() -> None:
    samples = AgeSamples()
    kept = [Agent()]
    gone = weakref.ref(kept[0])
    samples.note({Agent: kept})
    assert [one() for one in samples.instances(Agent)] == kept
    kept.clear()
    assert gone() is None
    assert samples.instances(Agent) == []


def test_an_instance_is_sampled_once() -> None:
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


def test_replaced_instances_do_not_fill_memory() -> None:
    samples = AgeSamples()
    for generation in range(4 * REFERENCES_OF_A_CLASS):
        samples.note({Agent: [Agent(generation) for _ in range(INSTANCES_OF_A_GENERATION)]})
    (sample,) = samples._classes.values()
    assert sample is not None
    assert sum(map(len, sample.cohorts)) <= REFERENCES_OF_A_CLASS
    assert len(sample.known) <= REFERENCES_OF_A_CLASS


@needs_native
def test_the_newest_instances_are_picked_from_the_young_generation() -> None:
    kept = [Agent() for _ in range(30)]
    gc.collect()
    kept += [Agent() for _ in range(3)]
    # Objects of earlier tests may be in between: the collector reorders what it visits.
    picked = pick_newest([Agent], seconds=60)
    assert [id(one) for one in picked[Agent]] == [id(one) for one in kept[:-9:-1]]
