"""Every byte between two generation ends is on exactly one line of the books."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leakline
from leakline.budget import ENTRIES_PER_SECOND
from leakline.phases import (
    BETWEEN,
    ELSEWHERE_LIMIT,
    OTHER_THREADS,
    OWN,
    PATHS_LIMIT,
    Frame,
    PhaseBooks,
    Reading,
    book_samples,
)
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


def test_what_changes_while_only_another_thread_has_a_phase_open_is_on_its_line() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    memory.bytes += 1
    elsewhere = books.enter_elsewhere("load", memory.read())
    memory.bytes += 20
    train = books.enter("train", memory.read())
    memory.bytes += 300
    books.exit(train, memory.read())
    memory.bytes += 4000
    books.exit_elsewhere(elsewhere, memory.read())
    memory.bytes += 50_000
    lines = books.close_generation(memory.read())
    assert lines[OTHER_THREADS].bytes == 4020
    assert lines["train"].bytes == 300, (
        "both open: nobody can tell, so the training thread's gets it"
    )
    assert lines[BETWEEN].bytes == 50_001


def test_the_line_of_other_threads_is_absent_until_one_opens_a_phase() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    assert OTHER_THREADS not in books.close_generation(memory.read())
    books.enter_elsewhere("load", memory.read())
    assert OTHER_THREADS in books.close_generation(memory.read())


def test_phases_of_several_threads_overlap_and_the_last_one_closes_the_line() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    first = books.enter_elsewhere("load", memory.read())
    second = books.enter_elsewhere("load", memory.read())
    unread = books.enter_elsewhere("save", None)
    memory.bytes += 5
    books.exit_elsewhere(first, memory.read())
    memory.bytes += 6
    books.exit_elsewhere(second, memory.read())
    memory.bytes += 7
    books.exit_elsewhere(unread, None)
    lines = books.close_generation(memory.read())
    assert (lines[OTHER_THREADS].bytes, lines[BETWEEN].bytes) == (11, 7)
    assert books.open_elsewhere == []


def test_phases_that_other_threads_never_close_are_bounded() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    frames = [books.enter_elsewhere("load", memory.read()) for _ in range(ELSEWHERE_LIMIT + 10)]
    assert len(books.open_elsewhere) == ELSEWHERE_LIMIT
    assert [frame.booked for frame in frames[-10:]] == [False] * 10


class Interrupted(PhaseBooks):
    """Books whose next booking is interrupted by ``work``, as a collection may."""

    work: Callable[[], object] | None = None

    def book(self, reading: Reading) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()
        super().book(reading)


def test_a_generator_that_a_collection_closes_while_we_book_takes_nothing_twice() -> None:
    memory = Memory()
    books = Interrupted(memory.read())
    abandoned = books.enter("produce", memory.read())
    consume = books.enter("consume", memory.read())
    memory.bytes += 9
    books.work = lambda: books.exit(abandoned, memory.read())
    assert not books.exit(consume, memory.read()), "closed with the phase around it"
    assert books.open == []
    lines = books.close_generation(memory.read())
    assert sum(line.bytes for line in lines.values()) == 9
    assert lines["produce/consume"].executions == 1


# A random loop: what happens next is one of these, with a change of memory before it.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter a", "enter b", "enter c", "enter unread", "exit", "exit outer", "exit old",
                         "own work", "generation", "other thread enters", "other thread exits"]),
        st.integers(-10_000, 10_000),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_the_lines_sum_to_the_whole_whatever_happens(steps: list[tuple[str, int]]) -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    opened: list[Frame] = []
    elsewhere: list[Frame] = []
    before = memory.read()
    books.close_generation(before)
    for what, change in [*steps, ("generation", 0)]:
        memory.bytes += change
        if what.startswith("enter"):
            reading = None if what == "enter unread" else memory.read()
            opened.append(books.enter(what[-1], reading))
        elif what == "exit" and opened:
            frame = opened.pop()
            books.exit(frame, memory.read() if frame.booked else None)
        elif what == "exit outer" and opened:
            # An exception that leaves several phases, or an early return that skipped some.
            books.exit(opened[0], memory.read())
            opened.clear()
        elif what == "exit old" and opened:
            books.exit(opened.pop(0), memory.read())
        elif what == "other thread enters":
            elsewhere.append(books.enter_elsewhere("load", memory.read()))
        elif what == "other thread exits" and elsewhere:
            books.exit_elsewhere(elsewhere.pop(0), memory.read())
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
    assert ends[2].samples["phase.evaluate/episode.bytes"] == pytest.approx(40_000_000, rel=0.01)


def test_a_leak_in_short_phases_is_booked_to_its_phase_when_no_snapshot_is_affordable(
    monkeypatch: pytest.MonkeyPatch, recorded: Callable[[], list[Snapshot]]
) -> None:
    monkeypatch.setenv("LEAKLINE_MAX_OVERHEAD", "0.01")
    run = leakline.init(mode="offline", quiet=True)
    assert run._loop is not None
    run._loop.governor._credit = 0.01
    kept: list[mmap.mmap] = []
    for epoch in range(4):
        run.epoch(epoch)
        for _ in range(100):
            with run.phase("load"):
                pass
            with run.phase("train"):
                kept.append(two_private_pages())
            with run.phase("evaluate"):
                pass
    assert run._loop.losses.totals()["thinned"] > 600, "most phase ends had no snapshot"
    run.finish()
    ends = [s for s in recorded() if s.kind == "generation_end"]
    leaked = 4 * 100 * 2 * mmap.PAGESIZE
    assert sum(s.samples.get("phase.train.bytes", 0) for s in ends) == pytest.approx(
        leaked, abs=leaked / 4
    )
    for line in ("load", "evaluate", "between"):
        total = sum(abs(s.samples.get(f"phase.{line}.bytes", 0)) for s in ends)
        assert total < leaked / 4, line
    for thing in kept:
        thing.close()


def two_private_pages() -> mmap.mmap:
    """Fresh memory past the allocator, which would first fill what others left free."""
    size = 2 * mmap.PAGESIZE
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(b"x" * size)
    return pages


def fresh_pages(size: int) -> mmap.mmap:
    """The same, and without a copy of it."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, mmap.PAGESIZE):
        pages[at] = 1
    return pages


def test_phases_that_follow_each_other_too_fast_leave_their_bytes_between_not_to_us(
    offline: leakline.Run, recorded: Callable[[], list[Snapshot]]
) -> None:
    assert offline._loop is not None
    governor = offline._loop.governor
    offline.generation(0)
    governor._entries, governor._entries_since = ENTRIES_PER_SECOND, governor._clock() + 3600
    with offline.phase("train"):
        kept = fresh_pages(40_000_000)
    offline.generation(1)
    governor._entries = 0
    with offline.phase("train"):
        governor._entries = ENTRIES_PER_SECOND
        with offline.phase("batch"):
            kept_too = fresh_pages(40_000_000)
    offline.finish()
    first, second = [s for s in recorded() if s.kind == "generation_end"]
    assert first.samples["phase.between.bytes"] == pytest.approx(len(kept), rel=0.05)
    assert second.samples["phase.train.bytes"] == pytest.approx(len(kept_too), rel=0.05)
    for end in (first, second):
        assert abs(end.samples["phase.leakline.bytes"]) < 20_000_000
    assert first.samples["phase.train.executions"] == 1


def test_our_own_size_is_never_told_as_negative(
    offline: leakline.Run, recorded: Callable[[], list[Snapshot]]
) -> None:
    assert offline._loop is not None
    offline._loop._own_bytes = -(10**9)
    offline.snapshot("now")
    offline.finish()
    assert {s.samples["client.bytes"] for s in recorded() if s.kind == "manual"} == {0}


def test_samples_of_the_books_have_the_names_of_the_contract() -> None:
    memory = Memory()
    books = PhaseBooks(memory.read())
    books.exit(books.enter("train", memory.read()), memory.read())
    samples = book_samples(books.close_generation(memory.read()))
    assert set(samples) == {
        "phase.between.bytes", "phase.between.seconds", "phase.leakline.bytes", "phase.leakline.seconds",
        "phase.train.bytes", "phase.train.seconds", "phase.train.executions",
    }  # fmt: skip
