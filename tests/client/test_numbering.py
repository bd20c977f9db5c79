"""Numbers of generations that go back, repeat, jump or are no integers: one axis that only goes forward."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable

import numpy as np
import pytest

import leakline
from leakline.analysis import examine, history_from_batches
from leakline.core.generation_numbering import GenerationNumbers, checked_number
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

Recorded = Callable[[], list[Snapshot]]


def axis_of(numbers: Iterable[float]) -> list[int | None]:
    counted = GenerationNumbers()
    found = []
    for number in numbers:
        counted.advance(number)
        found.append(counted.axis)
    return found


@pytest.mark.parametrize(
    ("given", "axis"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([5, 6, 106, 107], [5, 6, 106, 107]),
        ([-2, -1, 0], [-2, -1, 0]),
        ([0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([0, 1, 2, 1, 3, 4], [0, 1, 2, 3, 4, 5]),
        ([0, 10, 20, 0, 10], [0, 10, 20, 21, 31]),
        ([3, 2, 1, 0], [3, 4, 5, 6]),
        ([4, 4, 4], [4, 5, 6]),
        ([0, 0.5, 1.0, 1.5], [0, 1, 2, 3]),
    ],
)
def test_the_axis_only_goes_forward(given: list[float], axis: list[int]) -> None:
    assert axis_of(given) == axis


def test_a_number_beyond_what_is_exact_leaves_the_axis_as_it_was() -> None:
    counted = GenerationNumbers()
    counted.advance(2**53)
    with pytest.raises(OverflowError):
        counted.advance(0)
    assert (counted.axis, counted.given) == (2**53, 2**53)


def test_whole_numbers_of_other_types_are_numbers() -> None:
    numbers = [checked_number(each) for each in (np.int64(3), np.float32(4.0), 5.0, True)]
    assert numbers == [3, 4, 5, 1]
    assert all(type(each) is int for each in numbers)


@pytest.mark.parametrize("number", ["3", None, float("nan"), float("inf"), [1]])
def test_what_is_not_a_number_is_refused(number: object) -> None:
    with pytest.raises(TypeError):
        checked_number(number)


@pytest.mark.parametrize("number", [2**53 + 1, -1e300, 10**5_000], ids=["one", "float", "digits"])
def test_a_number_beyond_what_is_exact_is_refused(number: float) -> None:
    with pytest.raises(OverflowError):
        checked_number(number)


def ends(snapshots: list[Snapshot]) -> list[tuple[int | None, str]]:
    return [(s.generation, s.label) for s in snapshots if s.kind == "generation_end"]


def test_a_cell_that_runs_again_continues_with_one_warning(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    run = leakline.init(mode="offline")
    for number in (0, 1, 2, 1, 2, 3):
        run.generation(number)
        with run.phase("train"):
            pass
    run.finish()
    snapshots = recorded()
    assert ends(snapshots) == [
        (0, "generation 0: end"), (1, "generation 1: end"), (2, "generation 2: end"),
        (3, "generation 3 (called 1): end"), (4, "generation 4 (called 2): end"),
        (5, "generation 5 (called 3): end"),
    ]  # fmt: skip
    assert "generation 3 (called 1): after train" in [s.label for s in snapshots]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "recorded as" in line]
    assert warnings == [
        "leakline: generation 1 came after 2: it is recorded as generation 3, and counting continues from there, "
        "so that nothing measured before is lost; for a separate training call leakline.init again"
    ]
    marks = [e.name for s in snapshots for e in s.events if e.kind == "mark"]
    assert marks == ["generation 3 (called 1) came after 2"]


def test_a_block_that_runs_again_is_the_next_generation(
    offline: leakline.Run, recorded: Recorded
) -> None:
    for number in (0, 3, 3, 3):
        with offline.generation(number):
            pass
    offline.finish()
    assert [number for number, _ in ends(recorded())] == [0, 3, 4, 5]


def test_a_fraction_is_a_generation_of_its_own(offline: leakline.Run, recorded: Recorded) -> None:
    for number in (0.0, 0.5, 1.0):
        offline.generation(number)
    offline.finish()
    labels = [label for _, label in ends(recorded())]
    assert labels[1:] == ["generation 1 (called 0.5): end", "generation 2 (called 1): end"]


def fresh_memory(size: int) -> mmap.mmap:
    """Map private memory, which the allocator cannot serve from what earlier tests have freed."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    mapped.write(b"x" * size)
    return mapped


def test_a_second_loop_is_judged_with_the_first(offline: leakline.Run, recorded: Recorded) -> None:
    kept = []
    for _ in range(2):
        for epoch in range(7):
            with offline.generation(epoch), offline.phase("train"):
                kept.append(fresh_memory(4 * 2**20))
    offline.finish()
    header = RunHeader("r", "p", "n", "generation", None, 0.0)
    batch = Batch(ProcessIdentity("one"), tuple(recorded()))
    verdict = examine(history_from_batches(header, [batch], ended=True))
    growth = verdict.growth_bytes_per_generation
    # A busy machine leaves some generations out, never the last.
    assert ends(recorded())[-1] == (13, "generation 13 (called 6): end")
    assert verdict.generations > 7
    assert growth is not None and growth.estimate > 2 * 2**20
