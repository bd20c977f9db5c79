"""How many generations' instances are alive: one or two for what is made anew, one more each time for a leak."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from tests.probes.heaps import needs_native

from leakline.probes.cohorts import (
    CLASSES_LIMIT,
    INSTANCES_OF_A_GENERATION,
    REFERENCES_OF_A_CLASS,
    BirthCohorts,
    newest_of_census,
    pick_newest,
)
from leakline.probes.names import type_name


class Agent:
    pass


class Bare:
    __slots__ = ("x",)


def _told(cohorts: BirthCohorts, cls: type = Agent) -> tuple[Any, Any]:
    """How many generations are alive, and the age of the oldest."""
    read = cohorts.read()
    return tuple(read.get(f"cohort.{type_name(cls)}.{what}") for what in ("alive", "oldest"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("stay", "are_made", "last"),
    [(0, 12, (1, 0)), (1, 12, (2, 19)), (100, 0, (1, 19))],
    ids=["made anew", "a few stay", "nothing is made"],
)
def test_what_does_not_pile_up_has_one_or_two_birth_generations(
    stay: int, are_made: int, last: tuple[int, int]
) -> None:
    cohorts = BirthCohorts()
    old = [Agent() for _ in range(stay)]
    cohorts.note(0, {Agent: old})
    for generation in range(1, 20):
        made = [Agent() for _ in range(are_made)]
        cohorts.note(generation, {Agent: [*reversed(made), *old]})
    assert _told(cohorts) == last


def test_a_leak_has_one_more_birth_generation_each_time() -> None:
    cohorts = BirthCohorts()
    kept: list[Agent] = []
    for generation in range(20):
        kept += [Agent() for _ in range(3)]
        cohorts.note(generation, {Agent: kept[::-1]})
        assert _told(cohorts) == (generation + 1, generation)


def test_nothing_is_kept_alive() -> None:
    cohorts = BirthCohorts()
    kept = [Agent()]
    gone = weakref.ref(kept[0])
    cohorts.note(1, {Agent: kept})
    kept.clear()
    assert gone() is None
    assert _told(cohorts) == (0, None)


def test_a_class_that_allows_no_weak_reference_is_left_out() -> None:
    cohorts = BirthCohorts()
    cohorts.note(1, {Bare: [Bare()]})
    assert cohorts.read() == {}
    assert cohorts.instances(Bare) == []


def test_the_number_of_classes_is_bounded_and_one_makes_room_for_another() -> None:
    cohorts = BirthCohorts()
    classes = [type(f"C{i}", (Agent,), {}) for i in range(CLASSES_LIMIT + 5)]
    kept = [cls() for cls in classes]
    cohorts.note(1, {cls: [one] for cls, one in zip(classes, kept, strict=True)})
    assert sum(name.endswith(".alive") for name in cohorts.read()) == CLASSES_LIMIT
    cohorts.forget(type_name(classes[0]))
    cohorts.note(2, {classes[-1]: [kept[-1]]})
    assert _told(cohorts, classes[-1])[0] == 1
    assert _told(cohorts, classes[0])[0] is None


def test_a_long_leak_is_counted_on_though_its_references_are_thinned_out() -> None:
    cohorts = BirthCohorts()
    kept: list[Agent] = []
    generations = 4 * REFERENCES_OF_A_CLASS
    for generation in range(generations):
        new = [Agent() for _ in range(INSTANCES_OF_A_GENERATION)]
        kept += new
        cohorts.note(generation, {Agent: new[::-1]})
        assert len(cohorts.instances(Agent)) <= REFERENCES_OF_A_CLASS
    assert _told(cohorts) == (generations, generations - 1)
    kept.clear()
    del new
    assert _told(cohorts) == (0, None)


def test_memory_of_all_classes_stays_within_two_megabytes() -> None:
    cohorts = BirthCohorts()
    classes = [type(f"C{i}", (Agent,), {}) for i in range(CLASSES_LIMIT)]
    kept = []
    for generation in range(REFERENCES_OF_A_CLASS):
        new = {cls: [cls() for _ in range(2)] for cls in classes}
        kept.append(new)
        cohorts.note(generation, new)
    references = {id(one): one for cls in classes for one in cohorts.instances(cls)}
    size = sum(sys.getsizeof(one) for one in references.values())
    size += sum(
        sys.getsizeof(cohort) + sys.getsizeof(cohort.references)
        for state in cohorts._classes.values()
        for cohort in state.cohorts
    )
    assert size < 2_500_000


def test_a_sample_over_the_ages_serves_the_search_for_holders() -> None:
    cohorts = BirthCohorts()
    kept: list[Agent] = []
    for generation in range(5):
        kept += [Agent(), Agent()]
        cohorts.note(generation, {Agent: kept[::-1]})
    ones = [one() for one in cohorts.instances(Agent)]
    assert ones[0] in kept[:2]
    assert ones[-1] in kept[-2:]


def test_a_census_gives_its_instances_oldest_first_and_not_in_part() -> None:
    ones = [Agent() for _ in range(30)]
    assert newest_of_census({Agent: ones}, 31)[Agent][0] is ones[-1]
    assert newest_of_census({Agent: ones}, 30) == {}


@needs_native
def test_the_newest_are_picked_from_the_young_end_of_the_heap() -> None:
    kept = [Agent() for _ in range(30)]
    gc.collect()
    kept += [Agent() for _ in range(3)]
    picked = pick_newest([Agent])
    assert [id(one) for one in picked[Agent]] == [id(one) for one in kept[:-9:-1]]
