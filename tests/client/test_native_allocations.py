"""When allocations are sampled, and which libraries are recorded."""

from __future__ import annotations

from typing import Any

import pytest

from leakline.sampling import native_allocations
from leakline.sampling.native_allocations import NativeAllocations

MIB = 2**20


class Library:
    """The preloaded library, with outstanding bytes by name."""

    def __init__(self) -> None:
        self.is_armed = False
        self.armings = 0
        self.bytes: dict[str, int] = {}

    def leakline_malloc_arm(self, on: int) -> int:
        self.is_armed = bool(on)
        self.armings += on
        return 5 * on

    def leakline_malloc_outstanding(self, found: Any, most: int) -> int:
        for row, (name, size) in zip(found, self.bytes.items(), strict=False):
            row.name, row.bytes = name.encode(), size
        return min(most, len(self.bytes))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(native_allocations, "_preloaded", lambda: library)
    return library


def _measure(allocations: NativeAllocations, *mib: float) -> list[dict[str, Any]]:
    return [allocations.at_generation_end(size * MIB) for size in mib]


def test_flat_memory_is_never_sampled(library: Library) -> None:
    allocations = NativeAllocations()
    assert _measure(allocations, *([100, 180] * 100)) == [{}] * 200
    assert library.armings == 0


def test_rising_memory_is_sampled_until_it_has_been_flat_for_long(library: Library) -> None:
    allocations = NativeAllocations()
    _measure(allocations, *(100 + 2 * i for i in range(40)))
    assert (library.is_armed, library.armings) == (True, 1)
    _measure(allocations, *([180] * 60))
    assert library.is_armed
    _measure(allocations, *([180] * 20))
    assert not library.is_armed
    _measure(allocations, *(180 + 2 * i for i in range(40)))
    assert (library.is_armed, library.armings) == (True, 2)
    allocations.stop()
    assert not library.is_armed
    assert allocations.bytes == 5, "the table remains in memory"


def test_large_libraries_are_recorded_from_then_on(library: Library) -> None:
    allocations = NativeAllocations()
    _measure(allocations, *range(100, 140, 2))
    library.bytes = {"libsmall.so": MIB - 1}
    assert _measure(allocations, 140) == [{}]
    library.bytes |= {"libfeed.so": 2 * MIB}
    assert _measure(allocations, 142) == [{"malloc.libfeed.so.bytes": 2 * MIB}]
    library.bytes = {}
    assert _measure(allocations, 144) == [{"malloc.libfeed.so.bytes": 0}]
    library.bytes = {f"lib{i}.so": (i + 1) * MIB for i in range(99)}
    (samples,) = _measure(allocations, 146)
    assert len(samples) == 16
    assert samples["malloc.lib98.so.bytes"] == 99 * MIB


def test_without_the_library_sampling_is_not_possible(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocations = NativeAllocations()
    assert allocations.is_possible
    monkeypatch.setattr(native_allocations, "_preloaded", lambda: None)
    allocations = NativeAllocations()
    assert not allocations.is_possible
    allocations.stop()
