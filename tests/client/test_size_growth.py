"""Which types grow larger without growing in number."""

from __future__ import annotations

import pytest

from leakline import growth
from leakline.growth import GROWS_LARGER_BYTES, TypeGrowth


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
