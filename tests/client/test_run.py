"""What the calls of a run leave behind, read back from its spool."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.client.recording import (
    MIB,
    events,
    fresh_pages,
    generation_ends,
    recorded,
)

import leakline
from leakline import Run
from leakline.analysis import check_counts, examine, history_from_batches
from leakline.errors import BadArgument
from leakline.runtime import error_boundary
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot


def labels(snapshots: list[Snapshot]) -> list[str]:
    return [s.label for s in snapshots if s.kind not in ("baseline", "finish")]


@pytest.mark.parametrize(
    ("target", "count"),
    [(7, 1), ("not a name", 1), (dict, -1), (dict, True), (dict, 1.5), (dict, (3, 2)), (dict, (1, 2, 3)), (dict, "2")],
)  # fmt: skip
def test_a_wrong_expectation_raises_at_once(offline: Run, target: Any, count: Any) -> None:
    with pytest.raises(BadArgument):
        offline.expect(target, count)


def test_wrong_tracking_raises_at_once_and_never_shows_the_object(offline: Run) -> None:
    class Secret:
        def __repr__(self) -> str:
            return "password"

    with pytest.raises(BadArgument) as caught:
        offline.track("x", Secret())
    assert "password" not in str(caught.value)
    for name, target, capacity in (("", [], None), (3, [], None), ("x", [], 0), ("x", [], "many")):
        with pytest.raises(BadArgument):
            offline.track(name, target, capacity)  # type: ignore[arg-type]


def test_an_array_is_tracked_by_a_function_so_that_it_can_be_resized(offline: Run) -> None:
    buffer = [np.zeros(100)]
    with pytest.raises(BadArgument, match="give a function"):
        offline.track("buffer", buffer[0])
    offline.track("buffer", lambda: buffer[0])
    with offline.phase("train"):
        buffer[0].resize(200)
    assert len(buffer[0]) == 200


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "5", None, True, [1]])
def test_a_wrong_gauge_raises_at_once(offline: Run, value: Any) -> None:
    with pytest.raises(BadArgument, match=r"value|warn_above"):
        offline.gauge("pending", value)
    if value is not None:
        with pytest.raises(BadArgument):
            offline.gauge("pending", 1, warn_above=value)


def test_each_phase_end_has_its_label_and_each_generation_its_end(offline: Run) -> None:
    for generation in (0, 1):
        offline.generation(generation)
        with offline.phase("evaluate"), offline.phase("episode"):
            pass
    offline.finish()
    assert labels(recorded()) == [
        "generation 0: after evaluate/episode", "generation 0: after evaluate", "generation 0: end",
        "generation 1: after evaluate/episode", "generation 1: after evaluate", "generation 1: end",
    ]  # fmt: skip
    first = recorded()[1]
    assert (first.phase, first.generation, first.kind) == ("evaluate/episode", 0, "phase_end")


def test_the_unit_names_the_labels_and_its_calls_are_the_same() -> None:
    for unit in ("episode", "epoch", "step"):
        run = leakline.init(mode="offline", unit=unit, quiet=True)
        getattr(run, unit)(4)
        run.finish()
    assert {"episode 4: end", "epoch 4: end", "step 4: end"} <= set(labels(recorded()))


def test_a_generation_as_a_context_ends_with_it(offline: Run) -> None:
    with offline.generation(5):
        pass
    offline.snapshot("between generations")
    offline.finish()
    kinds = [(s.sequence, s.kind, s.generation) for s in recorded()]
    assert kinds == [
        (1, "baseline", None), (2, "generation_end", 5), (3, "manual", 5), (4, "finish", 5)
    ]  # fmt: skip


def test_every_snapshot_has_the_next_sequence_number(offline: Run) -> None:
    offline.generation(0)
    with offline.phase("train"):
        offline.snapshot("inside")
    offline.finish()
    assert [s.sequence for s in recorded()] == [*range(1, len(recorded()) + 1)]
    assert len(recorded()) >= 5


def test_the_same_generation_called_again_changes_nothing(offline: Run) -> None:
    for _ in range(3):
        offline.generation(7)
    offline.finish()
    assert labels(recorded()) == ["generation 7: end"]


def test_an_exception_closes_the_phases_it_leaves_and_is_told_once(offline: Run) -> None:
    offline.generation(0)
    with (
        pytest.raises(ValueError, match="planned"),
        offline.phase("evaluate"),
        offline.phase("episode"),
    ):
        raise ValueError("planned")
    with offline.phase("train"):
        pass
    offline.finish()
    assert labels(recorded())[-2] == "generation 0: after train"
    (told,) = events("exception")
    assert (told.name, told.data["phase"]) == ("ValueError", "evaluate/episode")


def test_an_early_return_and_a_break_close_a_phase(offline: Run) -> None:
    def early() -> int:
        with offline.phase("search"):
            return 3

    assert early() == 3
    for _ in range(5):
        with offline.phase("loop"):
            break
    assert offline._loop.phase is None
    offline.finish()
    assert labels(recorded()) == ["after search", "after loop"]


def test_decorated_functions_run_in_their_phase_and_keep_name_and_result(offline: Run) -> None:
    @offline.phase("train")
    def train(x: int, *, twice: bool = False) -> int:
        """Doc."""
        return x * 2 if twice else x

    @offline.phase("wait")
    async def wait() -> str:
        await asyncio.sleep(0)
        return "done"

    @offline.phase("produce")
    def produce() -> Iterator[int]:
        yield 1
        yield 2

    assert train(4, twice=True) == 8
    assert (train.__name__, train.__doc__) == ("train", "Doc.")
    assert asyncio.run(wait()) == "done"
    assert list(produce()) == [1, 2]
    offline.finish()
    assert labels(recorded()) == ["after train", "after wait", "after produce"]


def test_a_decorated_asynchronous_generator_runs_in_its_phase_and_hears_its_caller(
    offline: Run,
) -> None:
    heard: list[object] = []

    @offline.phase("produce")
    async def produce() -> AsyncGenerator[str | None, str]:
        try:
            while True:
                try:
                    heard.append((yield offline._loop.phase))
                except KeyError as error:
                    heard.append(type(error))
        finally:
            heard.append("closed")

    async def consume() -> None:
        items = produce()
        assert await anext(items) == "produce"
        assert await items.asend("more") == "produce"
        assert await items.athrow(KeyError("planned")) == "produce"
        await items.aclose()

    asyncio.run(consume())
    assert heard == ["more", KeyError, "closed"]
    assert offline._loop.phase is None
    offline.finish()
    assert labels(recorded()) == ["after produce"]


def test_a_recursive_decorated_function_is_one_phase(offline: Run) -> None:
    @offline.phase("tree")
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    assert depth(5) == 5
    offline.finish()
    assert set(labels(recorded())) == {"after tree"}


def test_names_of_phases_are_cleaned_and_never_mistaken_for_our_own_lines(offline: Run) -> None:
    for name in ("between", "leakline", "other_threads", "", "two\nlines", "x" * 500):
        with offline.phase(name):
            pass
    offline.finish()
    phases = [s.phase for s in recorded() if s.kind == "phase_end"]
    assert phases == ["between_", "leakline_", "other_threads_", "unnamed", "two lines", "x" * 128]


def test_what_another_thread_allocates_beside_an_idle_training_thread_has_a_line_of_its_own(
    offline: Run,
) -> None:
    kept = []

    def work() -> None:
        with offline.phase("loader"):
            kept.append(fresh_pages(40 * MIB))

    offline.generation(0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with offline.phase("train"):
        pass
    offline.finish()
    (end,) = generation_ends()
    assert end.samples["phase.other_threads.bytes"] == pytest.approx(len(kept[0]), rel=0.2)
    assert abs(end.samples["phase.between.bytes"]) < 8 * MIB
    assert "phase.loader.bytes" not in end.samples


def test_while_both_have_a_phase_open_the_training_thread_s_is_booked(offline: Run) -> None:
    offline.generation(0)

    def work() -> None:
        with offline.phase("loader"):
            pass

    thread = threading.Thread(target=work)
    with offline.phase("train"):
        thread.start()
        thread.join()
    offline.finish()
    assert labels(recorded())[:2] == ["generation 0: after loader", "generation 0: after train"]
    (end,) = generation_ends()
    assert "phase.loader.bytes" not in end.samples
    assert "phase.train.bytes" in end.samples


def test_a_gauge_is_told_with_the_next_snapshot_and_with_each_generation_end(offline: Run) -> None:
    offline.generation(0)
    offline.gauge("pending", 3, warn_above=50)
    with offline.phase("a"):
        pass
    with offline.phase("b"):
        pass
    for value in (51, 52, 10, 60):
        offline.gauge("pending", value, warn_above=50)
    offline.finish()
    values = [s.samples.get("gauge.pending") for s in recorded()]
    assert values == [None, 3, None, 60, None]
    assert [e.data["value"] for e in events("warning")] == [51, 60]
    assert len(events("gauge")) == 1


def test_a_cleanup_tells_before_after_and_freed(offline: Run) -> None:
    held = [fresh_pages(30_000_000)]

    @offline.cleanup("buffers")
    def clean() -> None:
        held.clear()

    clean()
    offline.finish()
    (told,) = events("cleanup")
    assert told.name == "buffers"
    assert told.data["freed_bytes"] == pytest.approx(30_000_000, rel=0.1)
    assert told.data["before_bytes"] - told.data["after_bytes"] == told.data["freed_bytes"]


def test_marks_notes_and_plans_travel_as_events(offline: Run) -> None:
    offline.mark("learning rate drop")
    offline.note("see the profile", link="https://example.org")
    offline.band("process.rss_bytes", (1, 5), low="30 GiB", high="40 GB")
    offline.budget("evaluate", normal="4 GiB", leak=5 * 2**30)
    offline.fix(
        "detach losses", phase="train", location="trainer.py:281",
        promises={"growth_bytes_per_generation": "500 MiB", "generations": 25},
    )  # fmt: skip
    offline.finish()
    told = {e.kind: (e.name, e.data) for s in recorded() for e in s.events}
    assert told["mark"] == ("learning rate drop", {})
    assert told["note"][1] == {"text": "see the profile", "link": "https://example.org"}
    bounds = {"low_bytes": 30 * 2**30, "high_bytes": 40 * 10**9}
    assert told["band"][1] == {"first": 1, "last": 5, **bounds}
    assert told["budget"][1] == {"normal_bytes": 4 * 2**30, "leak_bytes": 5 * 2**30}
    promised = {"growth_bytes_per_generation": 500 * 2**20, "generations": 25}
    assert told["fix"][1]["promises"] == promised


class TrackedEnvironment:
    pass


def test_watched_and_expected_classes_are_counted_before_they_grow() -> None:
    run = leakline.init(mode="offline", quiet=True, watch=[TrackedEnvironment])
    kept = []
    run.expect("TrackedEnvironment", (1, 2), after="evaluate")
    for generation in range(3):
        run.generation(generation)
        with run.phase("evaluate"):
            kept.append(TrackedEnvironment())
    run.finish()
    series = f"type.{TrackedEnvironment.__module__}.TrackedEnvironment.count"
    counts = [s.samples.get(series) for s in recorded() if s.kind == "phase_end"]
    assert counts == [1, 2, 3]
    (expected,) = events("expect")
    assert expected.name == f"{TrackedEnvironment.__module__}.TrackedEnvironment"
    assert expected.data == {"low": 1, "high": 2, "after": "evaluate"}


def test_a_class_that_does_not_come_back_to_its_baseline_is_told() -> None:
    run = leakline.init(mode="offline", quiet=True)
    run.expect(TrackedEnvironment, "baseline", after="evaluate")
    kept = [TrackedEnvironment(), TrackedEnvironment()]
    for generation in range(4):
        run.generation(generation)
        with run.phase("evaluate"):
            kept.extend(TrackedEnvironment() for _ in range(3 * (generation == 2)))
    run.finish()
    history = history_from_batches(
        RunHeader("r", "p", "r", "generation", None, 0.0), [Batch(ProcessIdentity("p"), tuple(recorded()))]
    )  # fmt: skip
    (row,) = check_counts(history)
    assert (row.low, row.high) == (None, 2)
    assert row.measured is not None and row.measured.estimate == 5
    assert (row.state, row.deviations[0].generation) == ("broken", 2)
    (finding,) = examine(history).findings
    assert finding.suspects[0].name == f"{TrackedEnvironment.__module__}.TrackedEnvironment"


def test_a_watched_builtin_is_counted_at_censuses() -> None:
    run = leakline.init(mode="offline", quiet=True, watch=[dict, "frozenset"])
    run.finish()
    baseline = recorded()[0]
    assert baseline.samples["type.dict.count"] > 100
    assert baseline.samples["type.frozenset.count"] > 0
    assert {e.name for e in baseline.events if e.kind == "watch"} == {"dict", "frozenset"}


def test_an_expectation_for_a_class_that_never_appears_is_still_told(offline: Run) -> None:
    offline.expect("NoSuchClassAnywhere", 2)
    for generation in range(3):
        offline.generation(generation)
    offline.finish()
    assert [e.name for e in events("expect")] == ["NoSuchClassAnywhere"]


@pytest.mark.long
def test_a_declaration_repeated_for_a_class_that_never_appears_waits_once(offline: Run) -> None:
    for generation in range(20):
        offline.generation(generation)
        offline.expect("NeverMade", 2)
    assert len(offline._loop._unresolved) == 1
    for count in range(1000):
        offline.expect("NeverMade", count)
    assert len(offline._loop._unresolved) <= 256
    assert offline._loop.losses.totals()["events"] > 0


def test_a_tracked_container_is_not_kept_alive_and_its_length_is_told(offline: Run) -> None:
    buffer: list[int] = []
    offline.track("replay", buffer, capacity=100)
    offline.generation(0)
    buffer.extend(range(40))
    offline.finish()
    (end,) = generation_ends()
    assert end.samples["tracked.replay.length"] == 40
    assert end.samples["tracked.replay.capacity"] == 100
    (told,) = events("track")
    assert told.data == {"capacity": 100}


def test_after_finish_every_call_does_nothing(offline: Run) -> None:
    offline.finish()
    offline.finish()
    before = len(recorded())
    offline.generation(1)
    with offline.phase("late"):
        pass
    offline.expect("not checked any more", -1)
    offline.gauge("x", 1)
    offline.snapshot("late")
    assert len(recorded()) == before
    assert leakline.current() is not offline


def test_current_is_the_active_run_and_otherwise_one_that_does_nothing(
    spool_directory: Any,
) -> None:
    nothing = leakline.current()
    with nothing.phase("x"), nothing.cleanup("y"), nothing.generation(1):
        nothing.gauge("g", float("nan"))
        nothing.on("suspected", print)
    assert (nothing.url, nothing.id, nothing.report()) == ("", "", "")
    run = leakline.init(mode="offline", quiet=True)
    assert leakline.current() is run


def test_library_code_decorated_before_init_belongs_to_the_later_run() -> None:
    @leakline.current().phase("library")
    def work() -> None:
        return None

    run = leakline.init(mode="offline", quiet=True)
    work()
    run.finish()
    assert labels(recorded()) == ["after library"]


def test_a_disabled_run_does_nothing_at_all(spool_directory: Any) -> None:
    threads = threading.active_count()
    run = leakline.init(mode="disabled")
    for generation in range(3):
        run.generation(generation)
        with run.phase("train"):
            run.gauge("x", 1)
    run.snapshot("here")
    run.finish()
    assert threading.active_count() == threads
    assert not spool_directory.exists()
    assert run.url == ""


def test_a_probe_that_fails_costs_only_its_own_samples(
    offline: Run, internal_exceptions: Any
) -> None:
    def broken() -> dict[str, int]:
        raise RuntimeError("planned")

    offline._loop.sampler._probes["cgroup"].read = broken
    for _ in range(10):
        with offline.phase("train"):
            pass
    offline.finish()
    assert len(internal_exceptions) == 3
    internal_exceptions.clear()
    ends = [s for s in recorded() if s.kind == "phase_end"]
    assert len(ends) == 10
    assert all("process.rss_bytes" in s.samples for s in ends)


def test_a_failure_of_ours_is_swallowed_counted_and_warned_of_once(
    offline: Run, internal_exceptions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    offline._loop.sampler.read_private_bytes = lambda: 1 // 0  # type: ignore[method-assign]
    for generation in range(5):
        offline.generation(generation)
        with offline.phase("train"):
            pass
    assert offline._guard.count >= 5
    assert len([r for r in caplog.records if "measuring failed" in r.message]) == 1
    internal_exceptions.clear()
    del offline._loop.sampler.read_private_bytes
    offline.finish()
    error_boundary.swallowed.clear()


def test_the_samples_of_a_snapshot_are_finite_numbers(offline: Run) -> None:
    offline.generation(0)
    offline.finish()
    for snapshot in recorded():
        for name, value in snapshot.samples.items():
            assert type(value) in (int, float), name
            assert value == value


def test_a_folder_that_cannot_be_written_is_one_warning_and_the_server_still_hears(
    tmp_path: Any, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    run = leakline.init(directory=tmp_path / "file", server=server.address, quiet=True)
    run.generation(0)
    with run.phase("train"):
        pass
    run.finish()
    assert run.report() == ""
    assert server.sequences == [1, 2, 3, 4]
    assert len([r for r in caplog.records if "cannot record to disk" in r.message]) == 1


def test_a_folder_deleted_while_running_is_one_warning_and_the_server_still_hears(
    spool_directory: Any, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = leakline.init(server=server.address, quiet=True)
    run._chain.recorder.flush(5)
    shutil.rmtree(spool_directory)
    for generation in range(3):
        run.generation(generation)
    run.finish()
    assert len([r for r in caplog.records if "cannot record to disk" in r.message]) == 1
    assert set(server.sequences) >= {2, 3, 4, 5}


SNAPSHOTS, WARM_UP = 10_000, 2_000
# A batch on its way or a look beside the loop is up to 2.5 MB of this; kept snapshots would be 40 MB and more.
PRIVATE_LIMIT_BYTES = 4 * 2**20
# Blocks of the interpreter's allocator; one kept dictionary per snapshot would be 8,000 and more.
BLOCKS_LIMIT = 1_000

PROGRAM = """
import gc, json, sys, threading
import leakline
from leakline.probes.memory.process_memory import read_private_bytes

run = leakline.init(quiet=True)
loop = run._loop
loop.governor._credit = 1e9
store = []
run.track("store", store, capacity=10)
run.expect("NeverMade", 2)
taken = {}

def elsewhere():
    with run.phase("load"):
        pass

def note(count):
    run._chain.recorder.flush(60)
    gc.collect()
    taken[count] = (read_private_bytes(), sys.getallocatedblocks(), loop._sequence)

def until(count, generation):
    while loop._sequence < count:
        generation += 1
        run.generation(generation)
        for step in range(24):
            with run.phase("train"), run.phase("step"):
                run.gauge("pending", step, warn_above=20)
            with run.phase("evaluate"):
                pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        run.mark("generation over")
        with run.cleanup("store"):
            store.clear()
        gc.collect()
        if generation % 8 == 0:
            # A training is slower than this; no snapshot shall be lost for a full queue.
            run._chain.recorder.flush(60)
    return generation

generation = until(int(sys.argv[1]), 0)
note("warm")
until(int(sys.argv[2]), generation)
note("end")
taken["lost"] = loop.losses.totals()
run.finish()
print(json.dumps(taken))
"""


@pytest.mark.long
@pytest.mark.flow
@pytest.mark.parametrize("where", ["offline", "nobody listens"])
def test_ten_thousand_snapshots_leave_the_client_as_small_as_two_thousand(
    where: str, spool_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_MODE", "offline" if where == "offline" else "online")
    monkeypatch.setenv("LEAKLINE_SERVER", "http://127.0.0.1:9")
    # In a process of its own: its memory is the client's, and nothing of other tests.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(WARM_UP), str(SNAPSHOTS)],
        capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    taken = json.loads(done.stdout)
    warm, end = taken["warm"], taken["end"]
    assert end[2] >= SNAPSHOTS
    assert "queue_full" not in taken["lost"], taken["lost"]
    assert end[0] - warm[0] < PRIVATE_LIMIT_BYTES
    assert end[1] - warm[1] < BLOCKS_LIMIT
    assert sum(path.stat().st_size for path in spool_directory.rglob("*.spool")) > 2**18
