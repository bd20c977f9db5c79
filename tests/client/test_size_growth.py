"""Which types grow larger without growing in number."""

from __future__ import annotations

import pytest

from leakline import growth
from leakline.budget import Governor
from leakline.growth import GROWS_LARGER_BYTES, TypeGrowth
from leakline.looks import Looks, Measured
from leakline.probes.containers import ContainerWatch
from leakline.probes.native import native


def test_the_types_that_can_grow_are_found_once_for_a_census(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def can_grow() -> dict[str, type]:
        calls.append(1)
        return {"builtins.bytearray": bytearray}

    monkeypatch.setattr(growth, "_can_grow", can_grow)
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
