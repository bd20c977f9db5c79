"""Every byte between two generation ends is on exactly one line of the books."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leakline
from leakline.phases import BETWEEN, OWN, PATHS_LIMIT, Frame, PhaseBooks, Reading, book_samples
from leakline.snapshot import Snapshot


class Memory:
    """Private memory that moves as a test says; time moves with every reading."""

    def __init__(self) -> None:
        self.bytes, self.seconds = 1000, 0.0

    def read(self) -> Reading:
        self.seconds += 1.0
        return Reading(self.bytes, self.seconds)


def test_memory_outside_every_phase_is_booked_between() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    memory.bytes += 7
    lines = books.close_generation(memory.read())
    assert lines[BETWEEN].bytes == 7
    assert lines[OWN].bytes == 0


def test_a_nested_phase_keeps_its_bytes_from_the_phase_around_it() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    outer = books.enter("evaluate", memory.read())
    memory.bytes += 10
    inner = books.enter("episode", memory.read())
    memory.bytes += 100
    books.exit(inner, memory.read())
    memory.bytes += 1
    books.exit(outer, memory.read())
    lines = books.close_generation(memory.read())
    assert (lines["evaluate"].bytes, lines["evaluate/episode"].bytes) == (11, 100)


def test_our_own_work_is_on_our_own_line() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    memory.bytes += 5
    books.book(memory.read())
    memory.bytes += 3
    books.book_own_work(memory.read())
    assert books.close_generation(memory.read())[OWN].bytes == 3


def test_leaving_an_outer_phase_closes_what_was_left_open_inside() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    outer = books.enter("outer", memory.read())
    inner = books.enter("inner", memory.read())
    assert books.exit(outer, memory.read())
    assert not books.exit(inner, memory.read())
    assert books.path is None


def test_a_phase_inside_itself_is_the_same_phase() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    frames = [books.enter("search", memory.read()) for _ in range(100)]
    assert {frame.path for frame in frames} == {"search"}


def test_mutual_recursion_does_not_make_paths_without_end() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    paths = {books.enter(name, memory.read()).path for name in ("a", "b") * 50}
    assert paths == {"a", "a/b"}


def test_paths_are_bounded_and_the_rest_shares_a_line() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    for i in range(PATHS_LIMIT + 10):
        books.exit(books.enter(f"phase {i}", memory.read()), memory.read())
    lines = books.close_generation(memory.read())
    assert len(lines) <= PATHS_LIMIT + 3
    assert lines["other"].executions == 10


def test_a_phase_whose_entry_was_not_read_leaves_its_bytes_to_the_line_around_it() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    outer = books.enter("outer", memory.read())
    inner = books.enter("inner", None)
    memory.bytes += 9
    books.exit(inner, memory.read())
    books.exit(outer, memory.read())
    lines = books.close_generation(memory.read())
    assert (lines["outer"].bytes, lines["outer/inner"].bytes) == (9, 0)
    assert lines["outer/inner"].executions == 1


def test_a_generation_that_starts_inside_a_phase_splits_its_bytes() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    frame = books.enter("train", memory.read())
    memory.bytes += 4
    first = books.close_generation(memory.read())
    memory.bytes += 6
    books.exit(frame, memory.read())
    second = books.close_generation(memory.read())
    assert (first["train"].bytes, second["train"].bytes) == (4, 6)


# A random loop: what happens next is one of these, with a change of memory before it.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter a", "enter b", "enter c", "enter unread", "exit", "exit outer", "exit old",
                         "own work", "generation"]),
        st.integers(-10_000, 10_000),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_the_lines_sum_to_the_whole_whatever_happens(steps: list[tuple[str, int]]) -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    opened: list[Frame] = []
    before = memory.read()
    books.close_generation(before)
    for what, change in [*steps, ("generation", 0)]:
        memory.bytes += change
        if what.startswith("enter"):
            reading = None if what == "enter unread" else memory.read()
            opened.append(books.enter(what[-1], reading))
        elif what == "exit" and opened:
            books.exit(opened.pop(), memory.read())
        elif what == "exit outer" and opened:
            # An exception that leaves several phases, or an early return that skipped some.
            books.exit(opened[0], memory.read())
            opened.clear()
        elif what == "exit old" and opened:
            books.exit(opened.pop(0), memory.read())
        elif what == "own work":
            books.book_own_work(memory.read())
        elif what == "generation":
            now = memory.read()
            lines = books.close_generation(now)
            assert sum(line.bytes for line in lines.values()) == now.bytes - before.bytes
            assert sum(line.seconds for line in lines.values()) == now.seconds - before.seconds
            before = now


def books_of(snapshot: Snapshot) -> int:
    return sum(
        int(value)
        for name, value in snapshot.samples.items()
        if name.startswith("phase.") and name.endswith(".bytes")
    )


def private(snapshot: Snapshot) -> int:
    return int(snapshot.samples["process.anon_bytes"]) + int(
        snapshot.samples.get("process.swap_bytes", 0)
    )


def test_in_a_real_run_the_lines_sum_to_the_change_of_private_memory(
    offline: leakline.Run, recorded: Callable[[], list[Snapshot]]
) -> None:
    kept: list[Any] = []
    for generation in range(5):
        offline.generation(generation)
        with offline.phase("evaluate"):
            with offline.phase("episode"):
                kept.append(bytearray(40_000_000))
            kept.append(bytearray(1_000_000))
        with pytest.raises(ValueError, match="planned"), offline.phase("train"):
            kept.append(bytearray(2_000_000))
            raise ValueError("planned")
    offline.finish()
    ends = [s for s in recorded() if s.kind == "generation_end"]
    assert [s.generation for s in ends] == [0, 1, 2, 3, 4]
    for before, after in pairwise(ends):
        assert books_of(after) == private(after) - private(before)
    # So large that the allocator always maps it afresh, in whole pages.
    assert ends[2].samples["phase.evaluate/episode.bytes"] == pytest.approx(40_000_000, abs=100_000)


def test_samples_of_the_books_have_the_names_of_the_contract() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    books.exit(books.enter("train", memory.read()), memory.read())
    samples = book_samples(books.close_generation(memory.read()))
    assert set(samples) == {
        "phase.between.bytes", "phase.between.seconds", "phase.leakline.bytes", "phase.leakline.seconds",
        "phase.train.bytes", "phase.train.seconds", "phase.train.executions",
    }  # fmt: skip
