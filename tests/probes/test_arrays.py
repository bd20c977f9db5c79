"""Arrays that are allocated first and written later."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import run_alone

from leakline.probes.heap import arrays as arrays_module
from leakline.probes.heap.arrays import PREALLOCATED_FLOOR_BYTES, PreallocatedArrays

MIB = 1 << 20
# In a long-lived process, malloc may take a smaller array from memory that was written before.
SIZE = 256 * MIB
# The system may provide memory in pages of 2 MiB, and the first and last page belong to other memory as well.
NEAR = 2 * MIB + 2 * mmap.PAGESIZE


def sizes(arrays: PreallocatedArrays) -> tuple[float, float]:
    read = arrays.read()
    return read["arrays.written_bytes"], read["arrays.unwritten_bytes"]


@pytest.mark.parametrize("read_whole", [False, True])
@pytest.mark.parametrize("of_torch", [False, True])
def test_what_the_program_writes_is_counted(
    read_whole: bool, of_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = SIZE
    if read_whole:
        monkeypatch.setattr(arrays_module, "_READ_WHOLE_BYTES", size)
    # torch.zeros writes the zeros.
    make: Any = torch.empty if of_torch else np.zeros
    array = make(size, dtype=torch.uint8 if of_torch else np.uint8)
    array[: size // 4] = 1
    arrays = PreallocatedArrays()
    arrays.find([array, array])
    assert sizes(arrays) == pytest.approx((size // 4, size * 3 // 4), abs=NEAR)
    array[: size // 2] = 1
    assert sizes(arrays) == pytest.approx((size // 2, size // 2), abs=NEAR)
    # The array is known already.
    arrays.find([array])
    array[:] = 1
    assert sizes(arrays) == pytest.approx((size, 0), abs=NEAR)
    del array
    gc.collect()
    assert sizes(arrays) == pytest.approx((size, 0), abs=NEAR)


def test_arrays_that_are_found_later_add_only_what_is_written_later() -> None:
    arrays = PreallocatedArrays()
    first = np.zeros(SIZE, np.uint8)
    arrays.find([first])
    later = np.zeros(2 * SIZE, np.uint8)
    later[:SIZE] = 1
    arrays.find([first, later])
    assert sizes(arrays) == pytest.approx((0, 2 * SIZE), abs=2 * NEAR)
    later[:] = 1
    assert sizes(arrays) == pytest.approx((SIZE, SIZE), abs=2 * NEAR)


def test_complete_small_and_mapped_arrays_are_not_watched(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\0" * 2 * PREALLOCATED_FLOOR_BYTES)
    mapped = np.memmap(tmp_path / "data", np.uint8, "r+")
    arrays = PreallocatedArrays()
    written, small = np.ones(SIZE, np.uint8), np.zeros(PREALLOCATED_FLOOR_BYTES - 1, np.uint8)
    arrays.find([
        written, small, np.asarray(mapped), np.zeros(SIZE, np.uint8)[1:],
        torch.from_file(str(tmp_path / "data"), size=PREALLOCATED_FLOOR_BYTES, dtype=torch.uint8),
        torch.empty(SIZE, dtype=torch.uint8, device="meta"), torch.zeros(3, 3).to_sparse(),
    ])  # fmt: skip
    assert arrays.read() == {}


def test_the_program_can_still_resize_and_swap_its_arrays() -> None:
    array, one, other = np.zeros(SIZE, np.uint8), torch.empty(SIZE), torch.empty(SIZE)
    arrays = PreallocatedArrays()
    arrays.find([array, one, other])
    arrays.read()
    array.resize(2 * SIZE, refcheck=True)
    torch.utils.swap_tensors(one, other)


def test_memory_that_is_given_back_is_watched_no_longer() -> None:
    array = np.zeros(SIZE, np.uint8)
    array[: SIZE // 2] = 1
    arrays = PreallocatedArrays()
    arrays.find([array])
    del array
    assert sizes(arrays) == pytest.approx((SIZE // 2, 0), abs=NEAR)


def test_a_system_without_page_information_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_module, "_PAGEMAP", "/proc/self/missing")
    arrays, array = PreallocatedArrays(), np.zeros(SIZE, np.uint8)
    arrays.find([array])
    assert arrays.read() == {}


def test_a_reading_that_fails_counts_nothing_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, array = PreallocatedArrays(), np.zeros(SIZE, np.uint8)
    arrays.find([array])
    before = arrays.read()
    with monkeypatch.context() as without:
        without.setattr(arrays_module, "_PAGEMAP", "/proc/self/missing")
        assert arrays.read() == {}
    assert arrays.read() == before


PROGRAM = """
import numpy as np, torch
from leakline.probes.growing_containers import ContainerWatch

class Buffer:
    def __init__(self):
        self.fields = {"observations": np.zeros(64 << 20, np.uint8), "actions": torch.empty(16 << 20)}

def main():
    buffer, watch = Buffer(), ContainerWatch()
    watch.find()
    print(watch.preallocated.read()["arrays.unwritten_bytes"] >> 20)
    buffer.fields["observations"][:] = 1
    print(watch.preallocated.read()["arrays.written_bytes"] >> 20)

main()
"""


def test_arrays_are_found_below_the_programs_variables(tmp_path: Path) -> None:
    left, written = map(int, run_alone(tmp_path, PROGRAM).split())
    assert left == pytest.approx(128, abs=6)
    assert written == pytest.approx(64, abs=6)
