"""Whatever a program does with its phases, the lines of a generation sum to the change of memory, to the byte.

Programs are drawn at random and run through the real run, blocks, loop and books; only memory, the clock and the
budget are made up, so that every byte is known and every snapshot may be thinned.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.budget import Governor
from leakline.looks import Measured
from leakline.loop import Loop
from leakline.recorder import Losses
from leakline.run import Run
from leakline.snapshot import Snapshot

KINDS = (
    "phase", "nested", "recursion", "same object again", "exception", "early return", "decorated", "other thread",
    "other thread overlaps", "generator to its end", "generator abandoned", "generator kept", "generation",
    "inside generation", "snapshot", "nothing",
)  # fmt: skip
# What happens, what follows it inside, and by how much memory changes around it.
PROGRAMS: st.SearchStrategy[list[Any]] = st.recursive(
    st.lists(st.tuples(st.sampled_from(KINDS), st.just([]), st.integers(-999, 999)), max_size=4),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(KINDS), inner, st.integers(-999, 999)), max_size=4
    ),
    max_leaves=12,
)


class Planned(Exception):
    pass


class _Sampler:
    """Memory as the program says; measuring takes some of its own."""

    census_too_large = False

    def __init__(self) -> None:
        self.bytes = 1_000_000
        self._own = itertools.cycle((7, 0, -3, 11))

    def read_private_bytes(self) -> int:
        return self.bytes

    def measure(self, kind: str, *, nested: bool = False) -> Measured:
        samples: dict[str, int | float] = {"process.anon_bytes": self.bytes}
        self.bytes += next(self._own)
        return Measured(samples)

    def take_collections(self) -> list[Any]:
        return []

    def full_name(self, target: type | str) -> str | None:
        return None


class _Governor(Governor):
    """Refuses what the draw says: snapshots are thinned, entries are not read."""

    def __init__(self, refusals: list[bool]) -> None:
        super().__init__(1.0)
        self._refused = itertools.cycle([*refusals, False])

    def allows(self, *arguments: Any, **more: Any) -> bool:
        return not next(self._refused)

    def reads_entry(self) -> bool:
        return not next(self._refused)


class _Program:
    """Runs what was drawn. ``names`` of phases repeat, so that phases meet themselves."""

    def __init__(self, refusals: list[bool], helper: ThreadPoolExecutor) -> None:
        self.memory = _Sampler()
        self.snapshots: list[Snapshot] = []
        sampler: Any = self.memory
        self.loop = Loop(
            "generation", sampler, _Governor(refusals), Losses(), self.snapshots.append
        )
        self.run_ = Run()
        self.run_._loop = self.loop
        nothing_due: Any = SimpleNamespace(
            verdicts=SimpleNamespace(examine=list, due=list), cleanups=SimpleNamespace(run_due=list)
        )
        self.run_._chain = nothing_due
        self._helper = helper
        self._names = itertools.cycle("abc")
        self._shared = self.run_.phase("shared")
        self._kept: list[Any] = []
        self._number = itertools.count()

    def execute(self, steps: list[Any]) -> None:
        for kind, inner, change in steps:
            self.memory.bytes += change
            getattr(self, "_" + kind.replace(" ", "_"))(inner)
            self.memory.bytes -= 2 * change

    def end(self) -> None:
        self.loop.finish()
        self._kept.clear()

    def _phase(self, inner: list[Any]) -> None:
        with self.run_.phase(next(self._names)):
            self.execute(inner)

    def _nested(self, inner: list[Any]) -> None:
        with self.run_.phase("outer"), self.run_.phase(next(self._names)):
            self.memory.bytes += 13
            self.execute(inner)

    def _recursion(self, inner: list[Any]) -> None:
        @self.run_.phase("tree")
        def down(depth: int) -> None:
            self.memory.bytes += 1
            if depth:
                down(depth - 1)
            else:
                self.execute(inner)

        down(3)

    def _same_object_again(self, inner: list[Any]) -> None:
        with self._shared:
            self.memory.bytes += 5
            with self._shared:
                self.execute(inner)
            self.memory.bytes += 3

    def _exception(self, inner: list[Any]) -> None:
        with suppress(Planned), self.run_.phase("fails"), self.run_.phase(next(self._names)):
            self.execute(inner)
            raise Planned

    def _early_return(self, inner: list[Any]) -> None:
        for _ in range(2):
            with self.run_.phase("search"):
                self.execute(inner)
                return

    def _decorated(self, inner: list[Any]) -> None:
        self.run_.phase("decorated")(self.execute)(inner)

    def _items(self, inner: list[Any]) -> Iterator[int]:
        with self.run_.phase("produce"):
            self.memory.bytes += 17
            yield 1
            self.execute(inner)
            yield 2

    def _generator_to_its_end(self, inner: list[Any]) -> None:
        for _ in self._items(inner):
            with self.run_.phase("consume"):
                self.memory.bytes += 19

    def _generator_abandoned(self, inner: list[Any]) -> None:
        items = self._items([])
        next(items)
        with self.run_.phase("consume"):
            self.execute(inner)
            # Closed from within a phase that was opened after its own.
            del items
            self.memory.bytes += 23

    def _generator_kept(self, inner: list[Any]) -> None:
        items = self._items(inner)
        next(items)
        self._kept.append(items)

    def _other_thread(self, inner: list[Any]) -> None:
        self._elsewhere(lambda: self._phase(inner))

    def _other_thread_overlaps(self, inner: list[Any]) -> None:
        block = self.run_.phase("load")
        self._elsewhere(block.__enter__)
        self.execute(inner)
        self._elsewhere(lambda: block.__exit__(None, None, None))

    def _elsewhere(self, work: Callable[[], object]) -> None:
        if threading.get_ident() == self.loop._thread:
            self._helper.submit(work).result()
        else:
            work()

    def _generation(self, inner: list[Any]) -> None:
        if threading.get_ident() == self.loop._thread:
            self.run_.generation(next(self._number))
        self.execute(inner)

    def _inside_generation(self, inner: list[Any]) -> None:
        if threading.get_ident() != self.loop._thread:
            return
        with self.run_.generation(next(self._number)):
            self.execute(inner)

    def _snapshot(self, inner: list[Any]) -> None:
        self.run_.snapshot("here")
        self.execute(inner)

    def _nothing(self, inner: list[Any]) -> None:
        self.execute(inner)


def booked(snapshot: Snapshot) -> int:
    return sum(
        int(value)
        for name, value in snapshot.samples.items()
        if name.startswith("phase.") and name.endswith(".bytes")
    )


@settings(max_examples=150)
@given(PROGRAMS, st.lists(st.booleans(), max_size=7))
def test_the_lines_of_every_generation_sum_to_the_change_of_memory(
    steps: list[Any], refusals: list[bool]
) -> None:
    with ThreadPoolExecutor(1) as helper:
        program = _Program(refusals, helper)
        program.run_.generation(next(program._number))
        started = program.memory.bytes
        program.execute(steps)
        program.end()
        ends = [s for s in program.snapshots if s.kind == "generation_end"]
        assert ends, "the last generation is never left out"
        before = started
        for end in ends:
            after = int(end.samples["process.anon_bytes"])
            assert booked(end) == after - before
            before = after
        assert program.run_._guard.count == 0


@settings(max_examples=50)
@given(PROGRAMS)
def test_without_generators_no_phase_stays_open(steps: list[Any]) -> None:
    with ThreadPoolExecutor(1) as helper:
        program = _Program([], helper)
        program.run_.generation(0)
        program.execute(_without_generators(steps))
        assert program.loop.phase is None
        assert program.loop._books.open_elsewhere == []
        program.end()


def _without_generators(steps: list[Any]) -> list[Any]:
    return [
        ("nothing" if kind.startswith("generator") else kind, _without_generators(inner), change)
        for kind, inner, change in steps
    ]


def test_the_drawn_programs_meet_every_line() -> None:
    """Else the property could hold because nothing happens."""
    with ThreadPoolExecutor(1) as helper:
        program = _Program([], helper)
        program.run_.generation(next(program._number))
        program.execute([(kind, [("phase", [], 5)], 7) for kind in KINDS])
        program.end()
    names = {name for s in program.snapshots for name in s.samples if name.endswith(".bytes")}
    for line in (
        "between",
        "leakline",
        "other_threads",
        "outer/",
        "tree",
        "shared",
        "fails",
        "produce",
    ):
        assert any(name.startswith(f"phase.{line}") for name in names), line


def test_the_last_generation_is_told_also_when_it_ended_without_a_snapshot() -> None:
    with ThreadPoolExecutor(1) as helper:
        program = _Program([True] * 50, helper)
        for number in range(3):
            with program.run_.generation(number):
                program.memory.bytes += 10
        program.loop.finish()
    (end,) = [s for s in program.snapshots if s.kind == "generation_end"]
    assert end.generation == 2
    assert end.samples["phase.between.bytes"] == 30
    assert [s.kind for s in program.snapshots] == ["generation_end", "finish"]
