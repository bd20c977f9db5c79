"""Instance counts from the reference counts of classes, compared with counting one by one."""

from __future__ import annotations

import gc
import random
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tests.probes.heaps import needs_native

from leakline.probes.heap.census import count_tracked, take_census
from leakline.probes.heap.instance_counts import ClassCounts
from leakline.probes.native_module import native
from leakline.probes.references.attributes import attributes
from leakline.probes.references.class_names import type_name
from leakline.sampling.type_counts import TypeGrowth


class Agent:
    pass


class Better(Agent):
    pass


class Slotted:
    __slots__ = ("x",)


class Wandering:
    pass


class Annotated:
    pass


AGENT, BETTER, WANDERING, ANNOTATED = map(type_name, (Agent, Better, Wandering, Annotated))


def _calibrated() -> ClassCounts:
    counts = ClassCounts()
    counts.calibrate(take_census().counts)
    return counts


def _read(counts: ClassCounts, name: str) -> int | None:
    """Read by name: holding the class itself would be one more reference to it."""
    return counts.read_names([name]).get(name)


def _changes(counts: ClassCounts, name: str) -> list[tuple[int, int]]:
    return [(last, now) for cls, last, now in counts.changes() if type_name(cls) == name]


def test_nothing_is_counted_before_a_census() -> None:
    counts = ClassCounts()
    assert counts.read() == {}
    assert counts.read_names(["builtins.list", AGENT]) == {}
    assert counts.names() == ()


def test_every_creation_and_deletion_is_counted_exactly() -> None:
    """Also if one class is the base of another."""
    chance = random.Random(7)
    counts = _calibrated()
    make: dict[str, Callable[[], object]] = {
        AGENT: lambda: Agent(),
        BETTER: lambda: Better(),
        type_name(Slotted): lambda: Slotted(),
    }
    kept: dict[str, list[object]] = {name: [] for name in make}
    for _ in range(200):
        name = chance.choice(list(kept))
        if chance.random() < 0.6:
            kept[name] += [make[name]() for _ in range(chance.randrange(40))]
        else:
            del kept[name][: chance.randrange(40)]
        for one, alive in kept.items():
            assert _read(counts, one) == len(alive)


def test_reading_all_equals_counting_all() -> None:
    kept = [Agent() for _ in range(30)]
    counts = _calibrated()
    kept += [Agent() for _ in range(12)]
    assert counts.count_of(id(Agent)) == len(kept)
    assert counts.count_of(12345) is None
    read = counts.read()
    assert read[Agent] == len(kept)
    truth = Counter(map(type, gc.get_objects()))
    # Other threads of the test program may create objects in between.
    wrong = {cls: (n, truth[cls]) for cls, n in read.items() if cls in truth and n != truth[cls]}
    assert len(wrong) <= 3, wrong


def test_tensors_and_parameters_are_counted() -> None:
    counts = _calibrated()
    names = ["torch.Tensor", "torch.nn.parameter.Parameter"]
    before = counts.read_names(names)
    kept = [torch.zeros(2) for _ in range(9)], torch.nn.Linear(3, 4)
    after = counts.read_names(names)
    assert [after[name] - before[name] for name in names] == [len(kept[0]), 2]


def test_kept_graphs_do_not_change_the_count_of_tensors() -> None:
    counts = _calibrated()
    net = torch.nn.Linear(8, 8)
    losses = []
    for _ in range(4):
        losses += [net(torch.randn(2, 8)).relu().pow(2).mean().exp().sum() for _ in range(5)]
        counts.calibrate(take_census().counts)
        assert _read(counts, "torch.Tensor") is not None
    # Saved tensors have been scanned; the count now matches the collector's list.
    read = _read(counts, "torch.Tensor")
    assert read == sum(type(one) is torch.Tensor for one in gc.get_objects())
    assert len(losses) == 20


def test_no_class_is_kept_alive() -> None:
    counts = ClassCounts()

    def scope() -> weakref.ref[type]:
        class Passing:
            pass

        one = Passing()
        counts.calibrate(take_census().counts)
        assert _read(counts, type_name(Passing)) == 1
        del one
        return weakref.ref(Passing)

    gone = scope()
    gc.collect()
    assert gone() is None
    counts.calibrate(take_census().counts)
    assert not any("Passing" in name for name in counts.names())


def test_a_class_with_unstable_references_is_left_out_until_stable() -> None:
    counts = _calibrated()
    registry: list[type] = [Wandering] * 50
    counts.calibrate(take_census().counts)
    assert _read(counts, WANDERING) is None
    assert WANDERING not in counts.names()
    counts.calibrate(take_census().counts)
    assert _read(counts, WANDERING) == 0
    one = Wandering()
    assert _read(counts, WANDERING) == 1
    assert one and registry


def test_the_comparison_of_a_metaclass_never_runs() -> None:
    asked: list[str] = []

    class Touchy(type):
        def __eq__(cls, other: object) -> bool:
            asked.append("eq")
            return True

        def __hash__(cls) -> int:
            asked.append("hash")
            raise TypeError("unhashable class")

        def __subclasses__(cls) -> list[type]:
            asked.append("subclasses")
            raise RuntimeError

    class Odd(metaclass=Touchy):
        pass

    kept = [Odd() for _ in range(3)]
    result = take_census()
    counts = ClassCounts()
    counts.calibrate(result.counts)
    counts.read()
    assert asked == []
    row = next(row for row in result.to_census(1, 100_000).types if row[0].endswith("Odd"))
    assert row[1] == len(kept)


def counts_now() -> dict[int, int]:
    """Return counts by class address, as a census in slices does."""
    return {id(cls): count for cls, count in take_census().counts.items()}


def test_a_sliced_census_of_an_idle_program_counts_new_classes_exactly() -> None:
    counts = ClassCounts()
    things = [Agent() for _ in range(7)]
    nodes = [Better() for _ in range(3)]
    before = counts.references()
    assert counts.read_names([AGENT]) == {}, "known, but not counted yet"
    census = counts_now()
    nodes.append(Better())
    counts.calibrate_between(before, census, alone=True)
    assert counts.read_names([AGENT]) == {AGENT: 7}
    assert counts.read_names([BETTER]) == {}, "one came while the census went on"
    things.append(Agent())
    assert counts.read_names([AGENT]) == {AGENT: 8}
    counts.calibrate_between(counts.references(), counts_now(), alone=True)
    assert counts.read_names([BETTER]) == {BETTER: 4}


def test_for_a_running_program_a_new_class_is_known_only_by_changes() -> None:
    counts = ClassCounts()
    nodes = [Better() for _ in range(3)]
    counts.calibrate_between(counts.references(), counts_now(), alone=False)
    assert counts.read_names([BETTER]) == {}
    assert counts.count_of(id(Better)) is None
    counts.changes()
    about = counts.read_names([BETTER], [BETTER])[BETTER]
    nodes += [Better(), Better()]
    assert counts.read_names([BETTER], [BETTER]) == {BETTER: about + 2}
    assert [(type_name(cls), now - last) for cls, last, now in counts.changes()] == [(BETTER, 2)]
    assert not counts.counts_exactly([BETTER])
    assert counts.counts_exactly(["of.no.Class"])


@needs_native
def test_watched_classes_are_counted_exactly_or_not_at_all() -> None:
    growth = TypeGrowth()
    growth.ask(BETTER)
    nodes = [Better() for _ in range(3)]
    growth.calibrate_between(growth.references(), counts_now(), {}, alone=False)
    for _ in range(3):
        nodes.append(Better())
        growth.close_generation()
    assert f"type.{BETTER}.count" not in growth.read()
    assert BETTER not in growth.reported_counts()
    assert not growth.counts_exactly()
    assert not growth.is_in_doubt(), "another census in slices would give no more"
    growth.calibrate_tracked(count_tracked())
    assert growth.counts_exactly()
    assert growth.reported_counts()[BETTER] == growth.read()[f"type.{BETTER}.count"] == 6


@needs_native
def test_counting_tracked_objects_hides_no_change() -> None:
    counts = ClassCounts()
    nodes = [Better() for _ in range(3)]
    counts.calibrate_between(counts.references(), counts_now(), alone=False)
    counts.changes()
    nodes.append(Better())
    counts.calibrate_tracked(count_tracked())
    assert _changes(counts, BETTER) == [(3, 4)]


def test_a_sliced_census_does_not_override_exact_counts() -> None:
    things = [Agent() for _ in range(7)]
    counts = _calibrated()
    # All were gone during the census, and equally many existed again at its end.
    counts.calibrate_between(counts.references(), {}, alone=False)
    assert counts.read_names([AGENT]) == {AGENT: 7}
    things.append(Agent())
    assert counts.read_names([AGENT]) == {AGENT: 8}


@needs_native
def test_counting_tracked_objects_calibrates_their_classes() -> None:
    counts = _calibrated()
    things = [Agent() for _ in range(5)]
    annotations = [list[Agent] for _ in range(40)]
    assert _read(counts, AGENT) != 5, "references that are no instances"
    counts.calibrate_tracked(count_tracked())
    assert _read(counts, AGENT) is None, "its references moved: not to be trusted yet"
    counts.calibrate_tracked(count_tracked())
    assert _read(counts, AGENT) == 5
    things.append(Agent())
    assert _read(counts, AGENT) == 6
    assert len(annotations) == 40


def test_without_the_interpreter_lock_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    counts = _calibrated()
    things = [Agent()]
    assert counts.read() == {}
    assert counts.read_names([AGENT]) == {}
    assert len(things) == 1


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, type | None], None]:
    """Return a function that simulates the import of a module with many references to a class."""

    def load(name: str, cls: type | None = None) -> None:
        module = types.ModuleType(name)
        module.names = [cls] * 776  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)

    return load


@pytest.mark.parametrize("how", ["whole", "tracked", "slices"])
def test_references_from_newly_loaded_modules_are_not_instances(
    how: str, loaded: Callable[[str, type | None], None]
) -> None:
    if how != "whole" and native() is None:
        pytest.skip("needs the native module")
    counts = _calibrated()
    kept = [Annotated() for _ in range(9)]
    assert _read(counts, ANNOTATED) == 9
    loaded("planted_one", Annotated)
    assert counts.doubt()
    assert counts.doubts_any([ANNOTATED])
    assert _read(counts, ANNOTATED) is None
    assert not _changes(counts, ANNOTATED)
    if how == "whole":
        counts.calibrate(take_census().counts)
    elif how == "tracked":
        counts.calibrate_tracked(count_tracked())
    else:
        before = counts.references()
        counts.calibrate_between(before, count_tracked(), alone=True)
    assert not counts.doubts_any([ANNOTATED])
    assert _read(counts, ANNOTATED) == 9
    # Since the last reliable count.
    assert _changes(counts, ANNOTATED) == [(0, 9)]
    kept.append(Annotated())
    assert _read(counts, ANNOTATED) == 10


def test_a_class_with_stable_references_is_not_in_doubt(
    loaded: Callable[[str, type | None], None],
) -> None:
    counts = _calibrated()
    loaded("planted_two", None)
    counts.doubt()
    assert not counts.doubts_any([ANNOTATED])
    assert _read(counts, ANNOTATED) == 0


def test_instances_made_between_two_doubts_are_a_change(
    loaded: Callable[[str, type | None], None],
) -> None:
    """A program that keeps loading modules must not hide what it keeps."""
    counts, kept = _calibrated(), []
    for turn in range(3):
        kept += [Annotated() for _ in range(5)]
        loaded(f"planted_again_{turn}", Annotated)
        counts.doubt()
        counts.calibrate(take_census().counts)
        assert _changes(counts, ANNOTATED) == [(5 * turn, 5 * turn + 5)]


class Plain:
    size = 1


@pytest.mark.parametrize("copied", [Slotted, Plain])
def test_descriptors_that_were_copied_from_another_class_are_left_out(copied: type) -> None:
    """A decorator may make such a class by ``type(name, bases, dict(vars(other)))``."""
    kept = type("Kept", (), {})()
    kept.name = "a"
    names = {name: value for name, value in vars(copied).items() if name != "__slots__"}
    copy: type = type("Copy", (type(kept),), names)
    assert attributes(copy()) == {}
    assert attributes(kept) == {"name": "a"}
