"""Every byte between two generation ends is on exactly one line, whatever a program does; and the peaks of phases."""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.recording import (
    MIB,
    booked,
    books_close,
    fresh_pages,
    generation_ends,
    recorded,
)

import leakline
from leakline.core.phase_accounting import (
    BETWEEN,
    ELSEWHERE_LIMIT,
    OTHER_THREADS,
    OWN,
    PATHS_LIMIT,
    PhaseLedger,
    Reading,
)
from leakline.core.training_loop import Loop
from leakline.probes.memory import process_memory
from leakline.probes.memory.process_memory import read_process
from leakline.report import report_text
from leakline.run import Run
from leakline.sampling.heap_scans import Measured
from leakline.sampling.overhead_budget import ENTRIES_PER_SECOND, Governor
from leakline.snapshot import Snapshot
from leakline.transport.recorder import Losses
from leakline.transport.spool_format import read_header


class Memory:
    """Private memory set by the test; time advances with every reading."""

    def __init__(self) -> None:
        self.bytes, self.seconds = 1000, 0.0

    def read(self) -> Reading:
        self.seconds += 1.0
        return Reading(self.bytes, self.seconds)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def phase_accounts(memory: Memory) -> PhaseLedger:
    return PhaseLedger(memory.read())


def test_memory_outside_phases_and_our_own_memory_have_their_lines(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    memory.bytes += 5
    phase_accounts.book(memory.read())
    memory.bytes += 3
    phase_accounts.charge_own_work(memory.read())
    memory.bytes += 2
    lines = phase_accounts.close_generation(memory.read())
    assert (lines[BETWEEN].bytes, lines[OWN].bytes) == (7, 3)


def test_the_bytes_of_a_nested_phase_are_not_charged_to_its_parent(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    outer = phase_accounts.enter("evaluate", memory.read())
    memory.bytes += 10
    inner = phase_accounts.enter("episode", memory.read())
    memory.bytes += 100
    phase_accounts.exit(inner, memory.read())
    memory.bytes += 1
    phase_accounts.exit(outer, memory.read())
    lines = phase_accounts.close_generation(memory.read())
    assert (lines["evaluate"].bytes, lines["evaluate/episode"].bytes) == (11, 100)
    seconds = [lines[name].seconds for name in (BETWEEN, "evaluate", "evaluate/episode")]
    assert seconds == [2, 2, 1]


@pytest.mark.parametrize(("names", "paths"), [("a", {"a"}), ("ab", {"a", "a/b"})])
def test_recursion_does_not_make_endless_paths(
    memory: Memory, phase_accounts: PhaseLedger, names: str, paths: set[str]
) -> None:
    assert {phase_accounts.enter(name, memory.read()).path for name in names * 50} == paths


def test_the_number_of_paths_is_bounded_and_the_rest_shares_a_line(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    for i in range(PATHS_LIMIT + 10):
        phase_accounts.exit(phase_accounts.enter(f"phase {i}", memory.read()), memory.read())
    lines = phase_accounts.close_generation(memory.read())
    assert len(lines) <= PATHS_LIMIT + 3
    assert lines["other"].executions == 10


def test_the_bytes_of_a_phase_with_unread_entry_go_to_its_parent(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    outer = phase_accounts.enter("outer", memory.read())
    inner = phase_accounts.enter("inner", None)
    memory.bytes += 9
    phase_accounts.exit(inner, memory.read())
    phase_accounts.exit(outer, memory.read())
    lines = phase_accounts.close_generation(memory.read())
    assert (lines["outer"].bytes, lines["outer/inner"].bytes) == (9, 0)
    assert lines["outer/inner"].executions == 1


def test_a_generation_that_starts_inside_a_phase_splits_its_bytes(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    frame = phase_accounts.enter("train", memory.read())
    memory.bytes += 4
    first = phase_accounts.close_generation(memory.read())
    memory.bytes += 6
    phase_accounts.exit(frame, memory.read())
    second = phase_accounts.close_generation(memory.read())
    assert (first["train"].bytes, second["train"].bytes) == (4, 6)


def test_memory_taken_in_a_phase_of_another_thread_is_on_its_line(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    memory.bytes += 1
    elsewhere = phase_accounts.enter_elsewhere("load", memory.read())
    memory.bytes += 20
    train = phase_accounts.enter("train", memory.read())
    memory.bytes += 300
    phase_accounts.exit(train, memory.read())
    memory.bytes += 4000
    phase_accounts.exit_elsewhere(elsewhere, memory.read())
    memory.bytes += 50_000
    lines = phase_accounts.close_generation(memory.read())
    assert lines[OTHER_THREADS].bytes == 4020
    # With both phases open the owner cannot be known, so the bytes go to the training thread's phase.
    assert lines["train"].bytes == 300
    assert lines[BETWEEN].bytes == 50_001


def test_the_line_of_other_threads_is_absent_until_one_opens_a_phase(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    assert OTHER_THREADS not in phase_accounts.close_generation(memory.read())
    phase_accounts.enter_elsewhere("load", memory.read())
    assert OTHER_THREADS in phase_accounts.close_generation(memory.read())


def test_phases_that_other_threads_never_close_are_bounded(
    memory: Memory, phase_accounts: PhaseLedger
) -> None:
    frames = [
        phase_accounts.enter_elsewhere("load", memory.read()) for _ in range(ELSEWHERE_LIMIT + 10)
    ]
    assert len(phase_accounts.open_elsewhere) == ELSEWHERE_LIMIT
    assert [frame.booked for frame in frames[-10:]] == [False] * 10


class Interrupted(PhaseLedger):
    """Phase ledger whose next booking is interrupted by ``work``, as a garbage collection may do."""

    work: Callable[[], object] | None = None

    def book(self, reading: Reading) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()
        super().book(reading)


def test_a_generator_closed_during_booking_books_nothing_twice() -> None:
    memory = Memory()
    phase_accounts = Interrupted(memory.read())
    abandoned = phase_accounts.enter("produce", memory.read())
    consume = phase_accounts.enter("consume", memory.read())
    memory.bytes += 9
    phase_accounts.work = lambda: phase_accounts.exit(abandoned, memory.read())
    assert not phase_accounts.exit(consume, memory.read()), "closed with the phase around it"
    assert phase_accounts.open == []
    lines = phase_accounts.close_generation(memory.read())
    assert sum(line.bytes for line in lines.values()) == 9
    assert lines["produce/consume"].executions == 1


def test_the_lines_of_a_real_run_sum_to_the_change_of_private_memory(offline: leakline.Run) -> None:
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
    ends = generation_ends()
    assert [s.generation for s in ends] == [0, 1, 2, 3, 4]
    assert books_close(ends)
    # Large enough that the allocator always maps fresh, whole pages for it.
    assert ends[2].samples["phase.evaluate/episode.bytes"] == pytest.approx(40_000_000, rel=0.01)


def test_a_leak_in_short_phases_is_booked_without_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKLINE_MAX_OVERHEAD", "0.01")
    run = leakline.init(mode="offline", quiet=True)
    run._loop.governor._credit = 0.01
    kept: list[mmap.mmap] = []
    for epoch in range(4):
        run.epoch(epoch)
        for _ in range(100):
            with run.phase("load"):
                pass
            with run.phase("train"):
                kept.append(fresh_pages(16 * mmap.PAGESIZE))
            with run.phase("evaluate"):
                pass
    assert run._loop.losses.totals()["thinned"] > 600, "most phase ends had no snapshot"
    run.finish()
    ends = generation_ends()
    leaked = 4 * 100 * 16 * mmap.PAGESIZE
    assert sum(s.samples.get("phase.train.bytes", 0) for s in ends) == pytest.approx(
        leaked, abs=leaked / 4
    )
    for line in ("load", "evaluate", "between"):
        total = sum(abs(s.samples.get(f"phase.{line}.bytes", 0)) for s in ends)
        assert total < leaked / 4, line
    for thing in kept:
        thing.close()


def test_bytes_of_very_fast_phases_are_booked_between_phases(
    offline: leakline.Run,
) -> None:
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
    first, second = generation_ends()
    assert first.samples["phase.between.bytes"] == pytest.approx(len(kept), rel=0.05)
    assert second.samples["phase.train.bytes"] == pytest.approx(len(kept_too), rel=0.05)
    for end in (first, second):
        assert abs(end.samples["phase.leakline.bytes"]) < 20_000_000
    assert first.samples["phase.train.executions"] == 1


def test_our_own_line_is_never_negative(offline: leakline.Run) -> None:
    offline._loop._own_bytes = -(10**9)
    offline.snapshot("now")
    offline.finish()
    assert {s.samples["client.bytes"] for s in recorded() if s.kind == "manual"} == {0}


KINDS = (
    "phase", "recursion", "same object again", "exception", "other thread", "other thread overlaps",
    "generator abandoned", "generator kept", "generation", "inside generation", "snapshot",
)  # fmt: skip
# An event, the events nested inside it, and the change of memory around it.
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
    """Memory as the generated program sets it; measuring takes some of its own."""

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

    def loop_began(self) -> None:
        pass

    def full_name(self, target: type | str) -> str | None:
        return None


class _Governor(Governor):
    """Governor that refuses as generated: snapshots are thinned and phase entries are not read."""

    def __init__(self, refusals: list[bool]) -> None:
        super().__init__(1.0)
        self._refused = itertools.cycle([*refusals, False])

    def allows(self, *arguments: Any, **more: Any) -> bool:
        return not next(self._refused)

    def reads_entry(self) -> bool:
        return not next(self._refused)


class _Program:
    """Runs a generated program. The ``names`` of phases repeat, so that a phase may contain itself."""

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
            verdicts=SimpleNamespace(follows=False),
            cleanups=SimpleNamespace(registered={}),
            requests=SimpleNamespace(cleanups=[]),
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
            self.memory.bytes += 13
            self.execute(inner)
            raise Planned

    def _items(self, inner: list[Any]) -> Iterator[int]:
        with self.run_.phase("produce"):
            self.memory.bytes += 17
            yield 1
            self.execute(inner)
            yield 2

    def _generator_abandoned(self, inner: list[Any]) -> None:
        items = self._items([])
        next(items)
        with self.run_.phase("consume"):
            self.execute(inner)
            # Closed inside a phase that was opened after its own.
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


@settings(max_examples=100)
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
        private = [started, *(int(end.samples["process.anon_bytes"]) for end in ends)]
        assert [booked(end) for end in ends] == [b - a for a, b in itertools.pairwise(private)]
        assert program.run_._guard.count == 0


def test_the_generated_programs_cover_every_line() -> None:
    """Otherwise the property could hold because the programs do nothing."""
    with ThreadPoolExecutor(1) as helper:
        program = _Program([], helper)
        program.run_.generation(next(program._number))
        program.execute([(kind, [("phase", [], 5)], 7) for kind in KINDS])
        program.end()
    names = {name for s in program.snapshots for name in s.samples if name.endswith(".bytes")}
    lines = "between leakline other_threads fails/ tree shared produce"
    for line in lines.split():
        assert any(name.startswith(f"phase.{line}") for name in names), line


def test_the_last_generation_is_recorded_even_without_a_snapshot() -> None:
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


# -- peaks -------------------------------------------------------------------------------------------------

_ODD = itertools.count()


PEAK, PHASE_PEAK = "process.peak_bytes", "process.phase_peak_bytes"


def rise(by_bytes: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Touch this much fresh memory and free it again."""
    with fresh_pages(by_bytes // mmap.PAGESIZE * mmap.PAGESIZE):
        meanwhile()


Started = Callable[..., leakline.Run]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return a function that starts a run without background readings; tests take readings themselves."""
    monkeypatch.setenv("LEAKLINE_SAMPLE_SECONDS", "0")

    def start(*, exact: bool = False) -> leakline.Run:
        run = leakline.init(mode="offline", quiet=True, exact_peaks=exact)
        run.generation(0)
        return run

    return start


def above_resident(snapshots: list[Snapshot], series: str) -> dict[str, float]:
    """Return, by phase, how far the peak was above resident memory at the end of the phase."""
    return {
        s.phase: s.samples[series] - s.samples["process.rss_bytes"]
        for s in snapshots
        if s.kind == "phase_end" and s.phase
    }


def higher_than_ever() -> int:
    """Return more bytes than this process has used before, about 200 MiB if the kernel can reset its peak.

    The size differs each time: if a reset mark rose to exactly its old value, no change would be seen.
    """
    process_memory._reset_mark()
    samples = read_process()
    return int(samples[PEAK] - samples["process.rss_bytes"]) + (200 + next(_ODD)) * MIB


def test_a_new_high_freed_within_the_phase_is_its_peak(started: Started) -> None:
    run = started()
    high = higher_than_ever()
    with run.phase("quiet"):
        pass
    with run.phase("rises"):
        rise(high)
    with run.phase("quiet again"):
        pass
    run.finish()
    told = above_resident(recorded(), PEAK)
    assert told["rises"] == pytest.approx(high, rel=0.1)
    assert told["quiet"] < 50 * MIB
    assert told["quiet again"] < 50 * MIB


def test_a_lower_peak_is_seen_if_a_background_reading_caught_it(started: Started) -> None:
    run = started()
    rise(higher_than_ever())
    with run.phase("unseen"):
        rise(200 * MIB)
    with run.phase("seen"):
        rise(200 * MIB, run._loop.sampler.look)
    with run.phase("quiet"):
        pass
    run.finish()
    told = above_resident(recorded(), PEAK)
    assert told["seen"] == pytest.approx(200 * MIB, rel=0.1)
    assert told["quiet"] < 50 * MIB


def test_exact_peaks_catch_every_peak(started: Started) -> None:
    run = started(exact=True)
    if not run._loop.sampler.exact_peaks:
        pytest.skip("this kernel does not let a process reset its own mark")
    highs = {"first": 400, "second": 200, "third": 300}
    for phase, high in highs.items():
        with run.phase(phase):
            rise(high * MIB)
    run.finish()
    told = above_resident(recorded(), PEAK)
    assert told == {phase: pytest.approx(high * MIB, rel=0.1) for phase, high in highs.items()}


def test_the_peak_of_a_phase_is_the_highest_snapshot_within_it(started: Started) -> None:
    run = started()
    high = higher_than_ever()
    with run.phase("outer"):
        with run.phase("high"):
            rise(high)
        with run.phase("low"):
            pass
        run.snapshot("inside")
    with run.phase("after"):
        pass
    run.finish()
    of_phases = above_resident(recorded(), PHASE_PEAK)
    assert of_phases["outer/high"] == pytest.approx(high, rel=0.1)
    assert of_phases["outer"] == pytest.approx(high, rel=0.1)
    assert of_phases["outer/low"] < 50 * MIB
    assert of_phases["after"] < 50 * MIB
    since_the_last = above_resident(recorded(), PEAK)
    assert since_the_last["outer"] < 50 * MIB


def test_snapshots_of_other_threads_do_not_hide_the_peak_of_a_phase(
    started: Started,
) -> None:
    run = started()
    high = higher_than_ever()

    def work() -> None:
        with run.phase("load"):
            pass
        run._loop.background(run._loop.sampler.sample())

    with run.phase("train"):
        rise(high)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    run.finish()
    assert [s.label for s in recorded() if s.kind == "sample"] == ["generation 0: during train"]
    assert above_resident(recorded(), PHASE_PEAK)["train"] == pytest.approx(high, rel=0.1)


def test_a_census_is_not_a_peak_of_the_program(started: Started) -> None:
    run = started()
    run._loop.sampler._memory.look = lambda: None  # type: ignore[method-assign]
    measure = run._loop.sampler._looks.at_generation_end
    high = higher_than_ever()

    def census(*arguments: object) -> None:
        rise(high)
        measure(*arguments)  # type: ignore[arg-type]

    run._loop.sampler._looks.at_generation_end = census  # type: ignore[method-assign]
    run.generation(1)
    with run.phase("train"):
        pass
    run.finish()
    assert above_resident(recorded(), PEAK)["train"] < 50 * MIB


@pytest.mark.parametrize(("exact", "says"), [(False, "from background readings"), (True, "exact:")])
def test_the_report_shows_the_peaks_and_how_they_were_measured(
    started: Started, exact: bool, says: str
) -> None:
    run = started(exact=exact)
    exact = run._loop.sampler.exact_peaks
    high = higher_than_ever()
    with run.phase("train"):
        rise(high)
    with run.phase("evaluate"):
        pass
    path = run._chain.spool_path
    run.finish()
    assert read_header(path)[0].environment["exact_peaks"] is exact
    text = report_text(path)
    part = text[text.index("PEAK MEMORY BY PHASE") :].splitlines()[2:5]
    assert (says if exact else "from background readings") in part[0]
    assert [line.split()[0] for line in part[1:]] == ["train", "evaluate"]
    # The peak of the entire run is its highest, not its newest.
    highest = max(s.samples[PEAK] for s in recorded())
    (line,) = [line for line in text.splitlines() if line.strip().startswith("peak:")]
    assert line.endswith(f"{highest / 2**30:.2f} GiB")
