"""Files, connections and processes are small by all that can be measured, and named where nothing else explains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import BASELINE, MIB, TRAIN, Leak, Training, curve, history_of
from pieces import EVOLVE, candidate, growing

from leakline.analysis import examine
from leakline.analysis.attribution.candidates import Candidate
from leakline.analysis.attribution.causes import brings_some
from leakline.analysis.results import Verdict
from leakline.snapshot import Holder

# The list is 500 bytes longer for each file.
FILES = {
    "_io.BufferedWriter": 6.0, "container.app.Recorder.files.length": 6.0,
    "container.app.Recorder.files.bytes": 3_000.0,
}  # fmt: skip


def leaking(counts: dict[str, float], start: int = 0, memory_from: int = 0) -> Verdict:
    training = Training(
        generations=30,
        leaks=(Leak(TRAIN, 6 * MIB, start=memory_from), Leak(TRAIN, 0.0, counts, start=start)),
        noise=0.5 * MIB, census_every=1,
    )  # fmt: skip
    training.counts |= dict.fromkeys(counts, 0.0)
    return examine(training.history())


def test_open_files_stand_for_the_buffers_behind_them() -> None:
    verdict = leaking(FILES)
    (finding,) = (f for f in verdict.findings if f.status == "confirmed")
    assert (finding.kind, finding.phase) == ("objects", TRAIN)
    assert [s.name for s in finding.suspects[:2]] == ["_io.BufferedWriter", "app.Recorder.files"]
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.1)
    # The container is no second finding.
    assert not any(
        f.suspects and f.suspects[0].name == "app.Recorder.files" for f in verdict.findings
    )


def of_small_actors(*paths: str) -> Verdict:
    """Four more in each generation, of which a size was measured, and one container for each."""
    counts = {
        "agents.Actor": 4.0,
        "container.app.Pool.actors.length": 4.0,
        "container.app.Pool.actors.bytes": 12_416.0,
    }
    holders = tuple(Holder(0, "agents.Actor", path, 100, 3_104) for path in paths)
    leak = Leak(TRAIN, 6 * MIB, counts, holders=holders)
    training = Training(generations=30, leaks=(leak,), noise=0.5 * MIB)
    training.counts |= dict.fromkeys(counts, 0.0)
    return examine(training.history())


def test_small_objects_that_are_no_threads_are_not_blamed_for_it() -> None:
    finding = of_small_actors("app.Pool.actors[*]").findings[0]
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_threads_are_named_for_what_their_calls_hold() -> None:
    """Locals of a call are in no size of the thread object."""
    finding = of_small_actors("app.Pool.actors[*]", "threading._active[*]").findings[0]
    assert (finding.status, finding.kind, finding.phase) == ("confirmed", "objects", TRAIN)
    assert finding.suspects[0].name == "agents.Actor"


@pytest.mark.parametrize(
    "verdict",
    [leaking({"tqdm.std.Unit": 6.0}), leaking(FILES, start=14)],
    ids=["holds nothing else", "rises later"],
)
def test_what_rises_at_another_time_or_holds_nothing_is_not_blamed(verdict: Verdict) -> None:
    finding = verdict.findings[0]
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_processes_are_named_for_what_children_take() -> None:
    children, helpers = curve(lambda i: 8.0 * i, 30), [float(i) for i in range(30)]
    history = history_of(
        curve(lambda i: 0.0, 30), 100 * BASELINE, children__uss_bytes=children,
        **{"type__multiprocessing.context.ForkProcess__count": helpers, "type__app.Env__count": helpers},
    )  # fmt: skip
    finding = examine(history).findings[0]
    assert finding.kind == "children"
    assert [s.name for s in finding.suspects] == ["multiprocessing.context.ForkProcess"]


def test_a_container_is_told_with_what_was_found_in_it() -> None:
    holder = Holder(0, "numpy.ndarray", "app.Storage.elites[*]", 40, 256 * 1024)
    counts = {
        "container.app.Storage.elites.length": 10.0,
        "container.app.Storage.elites.bytes": 6.0 * MIB,
    }
    training = Training(generations=30, leaks=(Leak(TRAIN, 6 * MIB, counts, holders=(holder,)),))
    training.counts |= dict.fromkeys(counts, 0.0)
    del training.counts["numpy.ndarray"]
    finding = examine(training.history()).findings[0]
    assert [(s.role, s.name) for s in finding.suspects] == [
        ("container", "app.Storage.elites"), ("type", "numpy.ndarray"),
    ]  # fmt: skip


CAPTURES = {"cv2.VideoCapture": 1.0, "container.app.opening.length": 1.0}
RECORDS = {
    "app.Record": 1.0, "float": 2.0, "container.app.losses.length": 1.0, "container.app.losses.bytes": 32.0,
}  # fmt: skip


def with_holder(counts: dict[str, float], holder: Holder) -> Verdict:
    training = Training(
        generations=30, leaks=(Leak(TRAIN, 6 * MIB, counts, holders=(holder,)),), noise=0.5 * MIB,
        census_every=1,
    )  # fmt: skip
    training.counts |= dict.fromkeys(counts, 0.0)
    return examine(training.history())


@pytest.mark.parametrize("name", ["cv2.VideoCapture", "pyarrow.lib.Table", "sqlite3.Connection"])
def test_handles_of_any_library_stand_for_the_memory_behind_them(name: str) -> None:
    counts = {name: 1.0, "container.app.opening.length": 1.0}
    finding = with_holder(counts, Holder(0, name, "app.opening[*]", 30)).findings[0]
    assert (finding.status, finding.kind, finding.phase) == ("confirmed", "objects", TRAIN)
    assert [(s.role, s.name) for s in finding.suspects] == [
        ("type", name), ("holder", "app.opening[*]"), ("container", "app.opening"),
    ]  # fmt: skip
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.1)


def test_a_container_of_the_program_goes_before_the_books_of_a_library() -> None:
    """A worker comes with each fold, and multiprocessing keeps a set of all of them."""
    name = "multiprocessing.context.ForkProcess"
    counts = {name: 1.0, "container.app.Folds.workers.length": 1.0}
    holder = Holder(0, name, "multiprocessing.process._children[*]", 30)
    finding = with_holder(counts, holder).findings[0]
    assert [(s.role, s.name) for s in finding.suspects] == [
        ("type", name), ("container", "app.Folds.workers"), ("holder", "multiprocessing.process._children[*]"),
    ]  # fmt: skip
    assert "app.Folds.workers keeps ForkProcess alive" in " ".join(finding.advice)


WORKERS = candidate("multiprocessing.context.ForkProcess", "library", slope=2.0)


@pytest.mark.parametrize(
    ("container", "owner", "is_told"),
    [
        (candidate("app.pools", "container"), WORKERS, True),
        (candidate("app.pools", "container"), replace(WORKERS, holder="threading._active"), True),
        # Each is known to be held elsewhere in the program.
        (candidate("app.pools", "container"), replace(WORKERS, holder="app.workers[*]"), False),
        (candidate("threading._active", "container"), WORKERS, False),
        (candidate("app.losses", "container", slope=1.5), WORKERS, False),
        (candidate("app.losses", "container", slope=50.0), WORKERS, False),
        (candidate("app.losses", "container", place=EVOLVE), WORKERS, False),
        (candidate("app.losses", "container", growth=growing(pattern="irregular")), WORKERS, False),
    ],
)
def test_a_container_whose_entries_come_with_several_objects_keeps_them(
    container: Candidate, owner: Candidate, is_told: bool
) -> None:
    assert brings_some(container, owner) is is_told


def test_records_and_numbers_that_are_kept_beside_it_are_not_blamed() -> None:
    """Their bytes are known whole: they hide nothing, however steadily there are more of them."""
    finding = with_holder(RECORDS, Holder(0, "app.Record", "app.records[*]", 30, 220)).findings[0]
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_handles_that_are_released_are_not_blamed() -> None:
    leaks = (
        Leak(TRAIN, 6 * MIB),
        Leak(TRAIN, 0.0, CAPTURES, times=lambda g: 1.0 if g % 2 else -1.0),
    )
    training = Training(generations=30, leaks=leaks, noise=0.5 * MIB, census_every=1)
    training.counts |= dict.fromkeys(CAPTURES, 4.0)
    finding = examine(training.history()).findings[0]
    assert (finding.kind, finding.suspects) == ("native", ())


@pytest.mark.parametrize("every", [1, 3])
def test_handles_are_named_where_memory_rises_in_their_generations(every: int) -> None:
    """Growth in each third generation is not that of a handle which is opened in each."""
    training = Training(
        generations=36, noise=0.2 * MIB, census_every=1,
        leaks=(
            Leak(TRAIN, 18 * MIB, times=lambda g: float(g % 3 == 0)),
            Leak(TRAIN, 0.0, {"_io.BufferedWriter": 1.0}, times=lambda g: float(g % every == 0)),
        ),
    )  # fmt: skip
    training.counts["_io.BufferedWriter"] = 0.0
    finding = examine(training.history()).findings[0]
    named = [s.name for s in finding.suspects][:1]
    assert named == (["_io.BufferedWriter"] if every == 3 else [])


def test_small_tensors_stand_for_the_freed_memory_around_them() -> None:
    counts = {
        "torch.Tensor": 120.0, "tensors.count": 120.0, "tensors.bytes": 7_680.0,
        "container.app.kept.length": 120.0, "container.app.kept.bytes": 8_640.0,
        "allocator.kept_bytes": 5.6 * MIB,
    }  # fmt: skip
    verdict = with_holder(counts, Holder(0, "torch.Tensor", "app.kept[*]", 3_600))
    (finding,) = (f for f in verdict.findings if f.status == "confirmed")
    assert (finding.kind, finding.phase) == ("tensors", TRAIN)
    assert [s.name for s in finding.suspects[:2]] == ["torch.Tensor", "app.kept[*]"]
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.15)
    assert any("C allocator keeps" in line for line in finding.evidence)


@pytest.mark.parametrize("again", [(), (38,), (12, 41), (40, 41, 42, 43)], ids=str)
@pytest.mark.parametrize(
    ("fills_until", "bytes_each", "status"),
    [(44, 9 * MIB, "suspected"), (9, 9 * MIB, None), (44, 9_000, None)],
    ids=["one more in each generation", "a pool that fills", "with almost no memory of their own"],
)
def test_processes_counted_in_each_generation_need_few_readings_of_their_memory(
    fills_until: int, bytes_each: float, status: str | None, again: tuple[int, ...]
) -> None:
    """Children cost time to read: within a small budget they are hardly read again after the seventh generation."""
    name = "multiprocessing.context.ForkProcess"
    workers = Leak(TRAIN, 0.0, {name: 1.0}, times=lambda g: float(g < fills_until))
    training = Training(generations=44, leaks=(workers,), noise=0.5 * MIB, census_every=1)
    training.counts[name] = 0.0
    history = training.history()
    (process,) = history.processes
    own = [
        bytes_each * min(g + 1, fills_until)
        if kind == "generation_end" and g is not None and (g < 7 or g in again)
        else None
        for kind, g in zip(process.kind, process.generation, strict=True)
    ]
    grown = replace(process, series={**process.series, "children.uss_bytes": own})
    found = examine(replace(history, processes=(grown,))).findings
    named = [(f.kind, f.status) for f in found if f.status in ("suspected", "confirmed")]
    assert named == ([("children", status)] if status else [])
