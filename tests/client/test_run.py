"""What the calls of a run record, read back from its spool, and that the real server accepts any of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
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
from tests.flows.conftest import Server

import leakline
from leakline import Run
from leakline.core.training_loop import GenerationNumbers, checked_number
from leakline.errors import BadArgument
from leakline.runtime import error_boundary
from leakline.snapshot import Snapshot
from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_format import read_header
from leakline.transport.spool_upload import Uploaded, upload


def labels(snapshots: list[Snapshot]) -> list[str]:
    return [s.label for s in snapshots if s.kind not in ("baseline", "finish")]


NO_NUMBERS = (math.nan, math.inf, "5", None, True, [1])


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        *(("expect", (dict, count)) for count in (-1, True, 1.5, (3, 2), (1, 2, 3), "2")),
        ("expect", (7, 1)), ("expect", ("not a name", 1)),
        ("track", ("", [])), ("track", (3, [])), ("track", ("x", [], 0)), ("track", ("x", [], "many")),
        *(("gauge", ("pending", value)) for value in NO_NUMBERS),
    ],
)  # fmt: skip
def test_a_wrong_argument_raises_immediately(
    offline: Run, call: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(BadArgument):
        getattr(offline, call)(*arguments)
    if call == "gauge" and arguments[1] is not None:
        with pytest.raises(BadArgument, match="warn_above"):
            offline.gauge("pending", 1, warn_above=arguments[1])


def test_untrackable_objects_are_never_shown_in_errors(offline: Run) -> None:
    class Secret:
        def __repr__(self) -> str:
            return "password"

    with pytest.raises(BadArgument) as caught:
        offline.track("x", Secret())
    assert "password" not in str(caught.value)


def test_arrays_must_be_tracked_by_a_function(offline: Run) -> None:
    buffer = [np.zeros(100)]
    with pytest.raises(BadArgument, match="pass a function"):
        offline.track("buffer", buffer[0])
    offline.track("buffer", lambda: buffer[0])
    with offline.phase("train"):
        buffer[0].resize(200)
    assert len(buffer[0]) == 200


def test_each_phase_and_generation_end_has_its_label(offline: Run) -> None:
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


def test_the_unit_names_labels_and_provides_equal_calls() -> None:
    for unit in ("episode", "epoch", "step"):
        run = leakline.init(mode="offline", unit=unit, quiet=True)
        getattr(run, unit)(4)
        run.finish()
    assert {"episode 4: end", "epoch 4: end", "step 4: end"} <= set(labels(recorded()))


@pytest.mark.parametrize(
    ("given", "called", "unit"),
    [
        (None, "epoch", "epoch"),
        (None, "generation", "generation"),
        ("step", "epoch", "step"),
    ],
)
def test_the_first_call_names_the_unit_unless_it_is_given(
    server: Any, given: str | None, called: str, unit: str
) -> None:
    run = leakline.init(server=server.address, unit=given, quiet=True)
    for number in range(3):
        getattr(run, called)(number)
        run.episode(number)
    run.finish()
    (path,) = Path(os.environ["LEAKLINE_DIR"]).rglob("*.spool")
    assert read_header(path)[0].unit == unit
    assert server.headers[-1]["unit"] == unit
    assert f"{unit} 2: end" in labels(recorded())
    # All of it reached the server, in order.
    assert server.sequences == [s.sequence for s in recorded()]


def test_a_snapshot_is_taken_at_any_point_with_any_label(offline: Run) -> None:
    offline.snapshot("before anything")
    with offline.generation(5), offline.phase("train"):
        offline.snapshot("inside")
    offline.snapshot("between generations")
    offline.finish()
    assert [(s.sequence, s.kind, s.generation) for s in recorded()] == [
        (1, "baseline", None), (2, "manual", None), (3, "manual", 5), (4, "phase_end", 5),
        (5, "generation_end", 5), (6, "manual", 5), (7, "finish", 5),
    ]  # fmt: skip
    manual = [s.label for s in recorded() if s.kind == "manual"]
    assert manual == ["before anything", "inside", "between generations"]


def test_a_process_without_calls_is_sampled_by_time(
    monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    monkeypatch.setattr("leakline.sampling.background_readings.REPORT_EVERY_SECONDS", 0.05)
    monkeypatch.setenv("LEAKLINE_SAMPLE_SECONDS", "0.02")
    leakline.init(mode="offline", quiet=True)
    until(lambda: [s for s in recorded() if s.kind == "sample"])
    assert all(s.samples["process.rss_bytes"] > 0 for s in recorded())


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
def test_generation_numbers_only_increase(given: list[float], axis: list[int]) -> None:
    numbers, found = GenerationNumbers(), list[int | None]()
    for number in given:
        numbers.advance(number)
        found.append(numbers.axis)
    assert found == axis


def test_a_too_large_generation_number_does_not_change_the_axis() -> None:
    numbers = GenerationNumbers()
    numbers.advance(2**53)
    with pytest.raises(OverflowError):
        numbers.advance(0)
    assert (numbers.axis, numbers.given) == (2**53, 2**53)


def test_integers_of_other_types_are_valid_generation_numbers() -> None:
    numbers = [checked_number(each) for each in (np.int64(3), np.float32(4.0), 5.0, True)]
    assert numbers == [3, 4, 5, 1]
    assert all(type(each) is int for each in numbers)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        ("3", TypeError), (None, TypeError), (math.nan, TypeError), (math.inf, TypeError), ([1], TypeError),
        (2**53 + 1, OverflowError), (-1e300, OverflowError), (10**5_000, OverflowError),
    ],
    ids=range(8),
)  # fmt: skip
def test_invalid_generation_numbers_are_refused(number: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_number(number)


def generations(snapshots: list[Snapshot]) -> list[tuple[int | None, str]]:
    return [(s.generation, s.label) for s in snapshots if s.kind == "generation_end"]


def test_rerunning_a_cell_continues_the_axis_with_one_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = leakline.init(mode="offline")
    for number in (0, 1, 2, 1, 2, 3):
        run.generation(number)
        with run.phase("train"):
            pass
    run.finish()
    snapshots = recorded()
    assert generations(snapshots) == [
        (0, "generation 0: end"), (1, "generation 1: end"), (2, "generation 2: end"),
        (3, "generation 3 (called 1): end"), (4, "generation 4 (called 2): end"),
        (5, "generation 5 (called 3): end"),
    ]  # fmt: skip
    assert "generation 3 (called 1): after train" in [s.label for s in snapshots]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "recorded as" in line]
    assert warnings == [
        "leakline: generation 1 came after 2: it is recorded as generation 3, and counting continues from there, "
        "so that no earlier measurements are lost; for a separate training run, call leakline.init again"
    ]
    assert [event.name for event in events("mark")] == ["generation 3 (called 1) came after 2"]


def test_a_repeated_block_or_a_fraction_is_the_next_generation(offline: Run) -> None:
    for number in (0, 3, 3, 3, 3.5):
        with offline.generation(number):
            pass
    offline.finish()
    assert [number for number, _ in generations(recorded())] == [0, 3, 4, 5, 6]
    assert generations(recorded())[-1][1] == "generation 6 (called 3.5): end"


def test_the_same_generation_called_again_changes_nothing(offline: Run) -> None:
    for _ in range(3):
        offline.generation(7)
    offline.finish()
    assert labels(recorded()) == ["generation 7: end"]


def test_an_exception_closes_its_phases_and_is_recorded_once(offline: Run) -> None:
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


def test_a_decorated_async_generator_receives_sent_values(
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


def test_phase_names_are_cleaned_and_never_clash_with_our_lines(offline: Run) -> None:
    for name in ("between", "leakline", "other_threads", "", "two\nlines", "x" * 500):
        with offline.phase(name):
            pass
    offline.finish()
    phases = [s.phase for s in recorded() if s.kind == "phase_end"]
    assert phases == ["between_", "leakline_", "other_threads_", "unnamed", "two lines", "x" * 128]


def test_allocations_of_another_thread_have_their_own_line(
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


def test_a_gauge_is_recorded_with_the_next_snapshot_and_warns_at_its_limit(
    offline: Run,
) -> None:
    offline.generation(0)
    offline.gauge("pending", 3, warn_above=50)
    with offline.phase("a"):
        pass
    with offline.phase("b"):
        pass
    for value in (50, 51, 52, 10, 60):
        offline.gauge("pending", value, warn_above=50)
    offline.finish()
    values = [s.samples.get("gauge.pending") for s in recorded()]
    assert values == [None, 3, None, 60, None]
    warnings = [(e.name, e.generation, e.data["value"]) for e in events("warning")]
    assert warnings == [("pending", 0, 51), ("pending", 0, 60)]
    assert len(events("gauge")) == 1


def test_lengths_of_tracked_containers_are_recorded_with_their_capacity(offline: Run) -> None:
    losses, rewards = list[float](), deque[float](maxlen=1000)
    offline.track("losses", losses)
    offline.track("rewards", rewards, capacity=1000)
    for episode in range(6):
        offline.episode(episode)
        losses += [0.5] * 400
        rewards.extend([1.0] * 400)
    offline.finish()
    ends = [s.samples for s in generation_ends()]
    assert [s["tracked.losses.length"] for s in ends] == [400, 800, 1200, 1600, 2000, 2400]
    assert [s["tracked.rewards.length"] for s in ends] == [400, 800, 1000, 1000, 1000, 1000]
    assert "tracked.losses.capacity" not in ends[0]
    assert ends[0]["tracked.rewards.capacity"] == events("track")[1].data["capacity"] == 1000


def test_marks_notes_and_plans_are_sent_as_events(offline: Run) -> None:
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


def test_a_watched_builtin_type_is_counted_by_censuses() -> None:
    kept = [({"number": number}, frozenset((number,))) for number in range(200)]
    run = leakline.init(mode="offline", quiet=True, watch=[dict, "frozenset"])
    run.finish()
    baseline = recorded()[0]
    assert baseline.samples["type.dict.count"] >= len(kept)
    assert baseline.samples["type.frozenset.count"] >= len(kept)
    assert {e.name for e in baseline.events if e.kind == "watch"} == {"dict", "frozenset"}


def test_an_expectation_for_a_class_that_never_appears_is_still_recorded(offline: Run) -> None:
    offline.expect("NoSuchClassAnywhere", 2)
    for generation in range(3):
        offline.generation(generation)
    offline.finish()
    assert [e.name for e in events("expect")] == ["NoSuchClassAnywhere"]


@pytest.mark.long
def test_repeated_declarations_of_an_unseen_class_wait_once(offline: Run) -> None:
    for generation in range(20):
        offline.generation(generation)
        offline.expect("NeverMade", 2)
    assert len(offline._loop._unresolved) == 1
    for count in range(1000):
        offline.expect("NeverMade", count)
    assert len(offline._loop._unresolved) <= 256
    assert offline._loop.losses.totals()["events"] > 0


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


def test_current_is_the_active_run_or_a_no_op_run(
    spool_directory: Any,
) -> None:
    nothing = leakline.current()
    with nothing.phase("x"), nothing.cleanup("y"), nothing.generation(1):
        nothing.gauge("g", float("nan"))
        nothing.on("suspected", print)
    assert (nothing.url, nothing.id, nothing.report()) == ("", "", "")
    run = leakline.init(mode="offline", quiet=True)
    assert leakline.current() is run


def test_a_disabled_run_does_nothing_at_all(spool_directory: Any) -> None:
    threads, before = threading.active_count(), (signal.getsignal(signal.SIGTERM), sys.excepthook)
    run = leakline.init(mode="disabled")
    assert (signal.getsignal(signal.SIGTERM), sys.excepthook) == before
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


def test_internal_errors_are_swallowed_counted_and_warned_about_once(
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


SNAPSHOTS, WARM_UP = 10_000, 2_000
# A batch in transit or a heap scan accounts for up to 2.5 MB; keeping snapshots would take 40 MB and more.
PRIVATE_LIMIT_BYTES = 4 * 2**20
# Blocks of the interpreter's allocator; keeping one dictionary per snapshot would add 8,000 and more.
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
            # A training is slower than this; no snapshot may be lost because of a full queue.
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
def test_client_memory_does_not_grow_with_the_number_of_snapshots(
    where: str, spool_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_MODE", "offline" if where == "offline" else "online")
    monkeypatch.setenv("LEAKLINE_SERVER", "http://127.0.0.1:9")
    # Run in its own process, so that memory is the client's and not that of other tests.
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


# -- what the real server accepts --------------------------------------------------------------------------

STRANGE = (
    "x" * 10_000, "\x00\x01\x7f\x1b[31m", "\ud800 half a pair", "\u202e right to left", "", " ", "\n\n",
    "\N{GRINNING FACE}" * 300, "a/b//c/", "../../etc", "'; drop table runs; --", "<script>alert(1)</script>",
    "phase.x.rss_bytes", "\u0130\u0131\ufb03", "e\u0301" * 200, "\ufeff", "null", "gauge.gauge.gauge",
)  # fmt: skip


HUGE = (
    0, -0.0, 1e-320, 2**53, -(2**53), 2**53 + 1, 10**30, 10**400, 1e15, 1.5e15, -1e18, 1e300, -1e300,
    sys.float_info.max, math.inf, -math.inf, math.nan, True,
)  # fmt: skip


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server.address
    server.stop()


@pytest.fixture
def uploaded(real_server: str, spool_directory: Path) -> Callable[[], Uploaded]:
    """Return a function that sends the test's one run to the real server; it raises if the run itself is refused."""

    def send() -> Uploaded:
        leakline.current().finish()
        (path,) = spool_directory.rglob("*.spool")
        return upload(path, Delivery(real_server))

    return send


def with_patience(call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """Call, and allow a wrong argument to raise `BadArgument` but nothing else."""
    with contextlib.suppress(BadArgument):
        call(*arguments, **named)


@pytest.mark.flow
def test_the_server_accepts_any_name(offline: Run, uploaded: Callable[[], Uploaded]) -> None:
    for number, name in enumerate(STRANGE):
        offline.generation(number)
        with offline.phase(name), offline.phase(name[::-1]):
            offline.snapshot(name)
        offline.mark(name)
        offline.note(name * 3, link=name)
        for call in (offline.gauge, offline.track):
            with_patience(call, name, [] if call == offline.track else 1)
        with_patience(offline.expect, name, (0, 2**53), after=name)
        with_patience(offline.expect, "a.B", 1, after=name)
        with_patience(offline.find_holders, name)
        with_patience(offline.band, name, (0, None), low=0)
        with_patience(offline.budget, name, normal="1 MB")
        with_patience(offline.fix, name, phase=name, location=name, promises={"peak_bytes": 1})
        with_patience(offline.register_cleanup, name, lambda: None, when=("gauge.x", 1))
        with offline.cleanup(name):
            pass
    done = uploaded()
    assert done.refused == 0
    assert done.sent > 3 * len(STRANGE)


@pytest.mark.flow
@pytest.mark.long
def test_the_server_accepts_any_number(offline: Run, uploaded: Callable[[], Uploaded]) -> None:
    for number, value in enumerate(HUGE):
        offline.generation(number)
        for suffix in ("", "_bytes", ".count", ".length"):
            with_patience(offline.gauge, f"n{number}{suffix}", value)
            with_patience(offline.track, f"f{number}{suffix}", lambda value=value: value)
        with_patience(offline.gauge, f"w{number}", 1, warn_above=value)
        with_patience(offline.expect, "a.B", value)
        with_patience(offline.expect, "a.B", (0, value))
        with_patience(offline.track, f"t{number}", [], capacity=value)
        for low, high in ((value, None), (None, value)):
            with_patience(offline.band, "process.rss_bytes", (0, 10), low=low, high=high)
            with_patience(offline.budget, "train", normal=low, leak=high)
        with_patience(offline.band, "gauge.x", (value, value), low=1)
        with_patience(offline.fix, "f", promises={"peak_bytes": value})
        with_patience(offline.fix, "f", promises={"generations": value, "count:a.B": value})
        for call in (offline.generation, offline.epoch):
            with contextlib.suppress(TypeError, OverflowError, ValueError):
                call(value)
        offline.snapshot("after")
    done = uploaded()
    # Swallowed: functions of the program that give no length, and generations that are not numbers.
    error_boundary.swallowed.clear()
    assert (done.refused, done.sent > len(HUGE)) == (0, True)


@pytest.mark.flow
def test_the_server_accepts_very_many_of_everything(
    offline: Run, uploaded: Callable[[], Uploaded]
) -> None:
    class Agent:
        pass

    kept = []
    classes = [type(f"Class{'z' * 600}{number}", (), {}) for number in range(400)]
    with contextlib.ExitStack() as stack:
        for depth in range(40):
            stack.enter_context(offline.phase(f"{depth}" + "x" * 300))
    for i in range(200):
        with offline.phase(f"{i} " + "y" * 120):
            pass
    for number in range(4):
        offline.generation(number)
        for i in range(600):
            with_patience(offline.gauge, f"{number}.{i}" + "g" * 100, i)
            with_patience(offline.track, f"{number}.{i}", kept)
            offline.mark("m" * 300)
            offline.expect(classes[i % 400], (0, i))
        kept += [kind() for kind in classes for _ in range(20)]
        kept += [Agent() for _ in range(1000)]
        offline.census()
        offline.find_holders(Agent)
        with offline.phase("train"):
            pass
    done = uploaded()
    assert (done.refused, done.sent > 8) == (0, True)


@pytest.mark.flow
def test_the_server_accepts_very_long_names(offline: Run, uploaded: Callable[[], Uploaded]) -> None:
    long = "n" * 3000
    held = type(long, (), {})
    holder = type(f"Holder{long}", (), {})()
    setattr(holder, f"attribute_{long}", {f"key{long}": [held() for _ in range(5000)]})
    globals()[f"global_{long}"] = holder
    error = type(f"Error{long}", (Exception,), {})
    try:
        for number in range(6):
            offline.generation(number)
            offline.census()
            offline.find_holders(held)
            with contextlib.suppress(error), offline.phase("train"):
                holder.__dict__[f"attribute_{long}"][f"key{long}"] += [held() for _ in range(2000)]
                raise error(long)
        done = uploaded()
    finally:
        del globals()[f"global_{long}"]
    assert (done.refused, done.sent > 12) == (0, True)


@pytest.mark.flow
def test_the_server_accepts_whatever_a_program_prints(
    uploaded: Callable[[], Uploaded], capfd: pytest.CaptureFixture[str]
) -> None:
    run = leakline.init(mode="offline", quiet=True, log_lines=True)
    for number, text in enumerate((*STRANGE, "x" * 1_000_000)):
        run.generation(number)
        with contextlib.suppress(UnicodeEncodeError):
            sys.stdout.write(f"{text}\n")
        logging.getLogger("program").warning("%s", text)
        with run.phase("train"):
            pass
    with capfd.disabled():
        assert uploaded().refused == 0


@pytest.mark.flow
@pytest.mark.parametrize(
    "named",
    [
        {"config": {f"k{i}": {"a": [{"b": {"c": {"d": {"e": [i] * 900}}}}]} for i in range(900)}},
        {"config": {name: name for name in STRANGE} | {"n": math.nan, "i": 10**30, "s": {1, 2}}},
        {"tags": [f"tag {i} {'t' * 100}" for i in range(300)]},
        {"phases": [f"{i}" + "p" * 100 for i in range(600)]},
        {"name": "n" * 128, "project": "p" * 128, "total": 10**30},
    ],
)
def test_the_server_accepts_whatever_a_run_starts_with(
    uploaded: Callable[[], Uploaded], named: dict[str, Any]
) -> None:
    try:
        run = leakline.init(mode="offline", quiet=True, **named)
    except BadArgument:
        return
    run.generation(0)
    done = uploaded()
    assert (done.refused, done.sent) == (0, 3)
