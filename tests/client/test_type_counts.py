"""Types whose count or size rises: which are news, which are searched for holders, and what follows them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import numpy
import pytest

import leakline
from leakline.probes.growing_containers import ContainerWatch
from leakline.probes.heap import instance_counts
from leakline.probes.heap.census import take_census
from leakline.probes.native_module import native
from leakline.sampling import type_counts
from leakline.sampling.heap_scans import Looks, Measured
from leakline.sampling.overhead_budget import Governor
from leakline.sampling.type_counts import (
    FASTER,
    GROWS_LARGER_BYTES,
    LIBRARY_RISE_BEFORE_HOLDERS,
    NEWS_FOR,
    News,
    TypeGrowth,
)

needs_native = pytest.mark.skipif(native() is None, reason="needs the native module")


class Kept:
    pass


class Piled:
    """A class that is counted as a library class."""


PILED = f"{Piled.__module__}.{Piled.__qualname__}"


def test_a_rise_is_news_for_a_while_and_again_when_it_accelerates() -> None:
    news = News()
    is_news = []
    for _ in range(12):
        news.rose(10)
        is_news.append(news.is_news)
    # Every cache rises once, and after a while the rise is no longer news.
    assert is_news == [False, *[True] * NEWS_FOR, *[False] * (11 - NEWS_FOR)]
    news.rose(10 * FASTER + 1)
    assert news.is_news


def test_a_rise_whose_holders_were_searched_is_not_news() -> None:
    news = News()
    for _ in range(3):
        news.rose(10)
    news.looked_at()
    news.rose(10)
    assert not news.is_news


def test_a_rise_during_library_loading_hides_no_leak_for_long() -> None:
    news = News()
    news.rose(5_000)
    for _ in range(40):
        news.rose(1)
    assert not news.is_news
    news.rose(20)
    assert news.is_news


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count only these two of the thousands of classes that tests load."""
    monkeypatch.setattr(instance_counts, "all_classes", lambda: [Piled, numpy.ndarray])


def calibrated() -> TypeGrowth:
    growth = TypeGrowth()
    growth.calibrate(take_census().counts)
    growth.close_generation()
    return growth


def end_with(growth: TypeGrowth, kept: list[Piled], counts: Iterable[int]) -> None:
    """End one generation for each number, with that many objects alive."""
    for count in counts:
        del kept[count:]
        kept += [Piled() for _ in range(count - len(kept))]
        growth.close_generation()


@pytest.mark.usefixtures("few_classes")
def test_library_classes_are_news_only_in_large_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakline.sampling.type_counts.is_user_class", lambda cls: False)
    growth, kept = calibrated(), list[Piled]()
    news = []
    for _ in range(14):
        kept += [Piled() for _ in range(10)]
        growth.close_generation()
        news.append(growth._rises[PILED].news.is_news)
    # The first ten belong to what the program loaded.
    assert news.index(True) == 1 + -(-LIBRARY_RISE_BEFORE_HOLDERS // 10)
    assert not news[-1]


@pytest.mark.usefixtures("few_classes")
def test_small_swings_of_a_large_library_count_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakline.sampling.type_counts.is_user_class", lambda cls: False)
    growth, kept = calibrated(), list[Piled]()
    end_with(growth, kept, [6_400, *range(6_410, 6_520, 10), 6_450, 6_480, 6_540])
    assert growth.to_search(5) == []
    end_with(growth, kept, range(6_640, 7_440, 100))
    assert growth.to_search(5) == [Piled]


SWINGING = [208, 6_429, 7_053, 6_365, 7_091, 6_743, 6_909, 7_067, 6_440, 7_250]


@pytest.mark.usefixtures("few_classes")
@pytest.mark.parametrize(
    ("counts", "searched"),
    [
        *((SWINGING[:censuses], []) for censuses in range(len(SWINGING))),
        ([208, 6_429, 6_700, 7_000, 7_300], [numpy.ndarray]),
    ],
)
def test_arrays_are_searched_if_every_census_finds_more(
    counts: list[int], searched: list[type]
) -> None:
    growth = TypeGrowth()
    for count in counts:
        growth.calibrate({numpy.ndarray: count})
    assert growth.to_search(5) == searched


@pytest.mark.usefixtures("few_classes")
def test_arrays_that_leak_behind_a_swing_are_searched_repeatedly() -> None:
    growth, searched = TypeGrowth(), 0
    for k in range(120):
        growth.calibrate({numpy.ndarray: 6_000 + 50 * k + (400 if k % 2 else 0)})
        if growth.to_search(5):
            growth.searched([numpy.ndarray])
            searched += 1
    assert searched >= 4


@pytest.mark.usefixtures("few_classes")
@pytest.mark.parametrize(
    ("counts", "least", "most"),
    [
        ([60, 40] * 12, 1, 1),
        ([40, 60, 50, 70, 60, 80, 70, 90], 5, 5),
        # A large momentary count does not hide a leak for long.
        ([2_000, *range(10, 100, 3)], 4, 30),
    ],
    ids=["come and go", "rise in a swing", "a moment of many"],
)
def test_a_count_rises_if_it_exceeds_earlier_swings(
    counts: list[int], least: int, most: int
) -> None:
    growth = calibrated()
    end_with(growth, [Piled()], counts)
    assert least <= growth._rises[PILED].rises <= most


def test_two_classes_with_one_name_are_one_rise() -> None:
    """When a module is loaded again, the rise continues with the class that rises."""

    def make() -> type:
        return type("Env", (), {"__module__": __name__})

    first, second = make(), make()
    kept = [first(), second()]
    growth = calibrated()
    for _ in range(3):
        kept += [first(), second(), second()]
        growth.close_generation()
    rise = growth._rises[f"{__name__}.Env"]
    assert (rise.rises, rise.cls()) == (3, second)
    assert len(kept) == 11


@needs_native
def test_our_references_to_leaked_objects_are_not_program_types() -> None:
    kept: list[object] = []
    run = leakline.init(mode="offline", quiet=True, watch=[Kept])
    for generation in range(8):
        with run.generation(generation), run.phase("train"):
            kept += [Kept() for _ in range(4)]
    run.finish()
    ours = [one for each in kept for one in weakref.getweakrefs(each)]
    assert len(ours) >= 8
    # A dict or list in it would be a type of the program that grows with the leak.
    assert {type(one).__module__.partition(".")[0] for one in ours} == {"leakline"}


def test_types_that_can_grow_are_determined_once_per_census(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def can_grow() -> dict[str, type]:
        calls.append(1)
        return {"builtins.bytearray": bytearray}

    monkeypatch.setattr(type_counts, "_can_grow", can_grow)
    types = TypeGrowth()
    others = [(f"library.Class{i}", 1, 100) for i in range(6_000)]
    for census in range(3):
        types.note_sizes([*others, ("builtins.bytearray", 1, census * GROWS_LARGER_BYTES)])
    assert len(calls) == 3
    assert types.grows_larger() is bytearray


@pytest.mark.parametrize(
    ("counts", "found"),
    [((13_000, 13_005, 13_010), str), ((13_000, 12_990, 13_005), str), ((10, 20, 30), None)],
    ids=["a few more", "come and go", "one more for each"],
)
def test_a_growing_string_is_found_among_many_strings(
    counts: tuple[int, ...], found: type | None
) -> None:
    types = TypeGrowth()
    for census, count in enumerate(counts):
        types.note_sizes([("str", count, (1 + census) * 10 * GROWS_LARGER_BYTES)])
    assert types.grows_larger() is found


@needs_native
def test_without_budget_the_largest_object_is_sought_near_the_roots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "kept", bytearray(64 * GROWS_LARGER_BYTES))
    types = TypeGrowth()
    for census in range(3):
        types.note_sizes([("bytearray", 1, census * GROWS_LARGER_BYTES)])
    governor = Governor(0.02, start_credit_seconds=0.1)
    looks = Looks(governor, types, ContainerWatch(), blocks=lambda: 10**8)
    measured = Measured({})
    looks._find_largest(measured)
    assert [holder.path for holder in measured.holders] == [f"{__name__}.kept"]
