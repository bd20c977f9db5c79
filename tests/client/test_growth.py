"""Types that grow in size, instances followed, and created and freed instances of watched classes."""

from __future__ import annotations

import weakref

import pytest
from tests.client.recording import (
    generation_ends,
)

import leakline
from leakline.probes.growing_containers import ContainerWatch
from leakline.probes.native_module import native
from leakline.sampling import type_counts
from leakline.sampling.heap_scans import Looks, Measured
from leakline.sampling.overhead_budget import Governor
from leakline.sampling.type_counts import GROWS_LARGER_BYTES, TypeGrowth

needs_native = pytest.mark.skipif(native() is None, reason="samples need the native module")


class Kept:
    pass


class Renewed:
    pass


def name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@needs_native
def test_what_follows_a_leak_is_not_taken_for_a_part_of_it() -> None:
    kept: list[object] = []
    run = leakline.init(mode="offline", quiet=True, watch=[Kept])
    for generation in range(8):
        with run.generation(generation), run.phase("train"):
            kept += [Kept() for _ in range(4)]
    run.finish()
    ours = [one for each in kept for one in weakref.getweakrefs(each)]
    assert len(ours) >= 8
    # A plain one would be a type of the program that grows with the leak.
    assert {type(one).__module__.partition(".")[0] for one in ours} == {"leakline"}


def test_created_less_freed_is_the_change_of_the_count() -> None:
    renewed: list[object] = [Renewed() for _ in range(4)]
    run = leakline.init(mode="offline", quiet=True, watch=[Renewed])
    for generation in range(6):
        with run.generation(generation), run.phase("train"):
            renewed[:] = [Renewed() for _ in range(4 + generation)]
    run.finish()
    told = [s.samples for s in generation_ends() if f"type.{name(Renewed)}.created" in s.samples]
    assert len(told) >= 3
    first, last = told[0], told[-1]

    def change(what: str) -> float:
        series = f"type.{name(Renewed)}.{what}"
        return last[series] - first[series]

    assert change("created") - change("freed") == change("count") > 0
    if native() is not None:
        assert change("freed") > 0


def test_the_types_that_can_grow_are_found_once_for_a_census(
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
def test_of_many_strings_a_few_may_come_while_one_grows_larger(
    counts: tuple[int, ...], found: type | None
) -> None:
    types = TypeGrowth()
    for census, count in enumerate(counts):
        types.note_sizes([("str", count, (1 + census) * 10 * GROWS_LARGER_BYTES)])
    assert types.grows_larger() is found


@pytest.mark.skipif(native() is None, reason="without it a search is not split")
def test_the_largest_is_searched_for_near_the_roots_where_no_whole_search_has_room(
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
