"""Owners of unattributed growth: types that few censuses counted, and files, threads and other handles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from builder import BASELINE, TRAIN, Leak, Training, curve, history_of
from pieces import (
    EVOLVE,
    NOWHERE,
    assessed,
    candidate,
    cause_of,
    ends_history,
    growing,
    study_of,
)

from leakline.analysis import examine
from leakline.analysis.attribution.candidates import Candidate
from leakline.analysis.attribution.causes import Cause, brings_some
from leakline.analysis.attribution.native_owners import (
    _explains,
    _growth,
    with_rarely_counted,
)
from leakline.analysis.findings.verdict_summary import finding_sentence
from leakline.analysis.results import Finding, Verdict
from leakline.analysis.run_history import RunHistory, Value, history_from_batches
from leakline.analysis.statistics.count_evidence import CountGrowth, grow_larger
from leakline.snapshot import Batch, Holder, Number, ProcessIdentity, RunHeader, Snapshot

MB = 1_000_000
SECONDS = 26


@pytest.fixture(autouse=True)
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge the growth of these short runs at once."""
    monkeypatch.setattr("leakline.analysis.status.LOADING_SECONDS", 0)


GROWS = 5 * MB
CENSUSES = (2, 4, 8, 16)
# Second -> number of objects and their bytes.
Table = Mapping[int, tuple[int, int]]


def table(each: int = MB, *, per_second: int = 5, at: tuple[int, ...] = CENSUSES) -> Table:
    return {second: (per_second * second, per_second * second * each) for second in at}


def read_by_second(
    gained: Sequence[float], looks: Mapping[int, Mapping[str, Number]]
) -> RunHistory:
    """Return private memory per second; ``looks``: other readings by second."""
    snapshots = []
    for at, private in enumerate(gained):
        samples = {
            "process.rss_bytes": round(private) + 9 * MB,
            "process.anon_bytes": round(private),
        }
        snapshots.append(
            Snapshot(
                sequence=at, time=1e9 + at, monotonic=float(at), generation=None, phase=None, label="",
                kind="generation_end", samples={**samples, **looks.get(at, {})},
            )
        )  # fmt: skip
    header = RunHeader("r", "p", "n", "second", None, 1e9)
    return history_from_batches(header, [Batch(ProcessIdentity("a"), tuple(snapshots))])


def found(
    types: Mapping[str, Table], bytes_series: str = "type.{}.bytes", *, kept: int = 0, faster_from: int = SECONDS
) -> Finding:  # fmt: skip
    """Return the finding of a run that gains 5 MB per second while these types are counted.

    ``kept``: unused bytes kept by the allocator. ``faster_from``: second from which it gains three times as much.
    """
    gained, looks = [], {}
    for second in range(SECONDS):
        faster = 2 * GROWS * max(0, second - faster_from)
        gained.append(30 * MB + (GROWS + kept) * second + faster)
        looks[second] = {"allocator.kept_bytes": kept * second} if kept else {}
        for name, counted in types.items():
            if second in counted:
                count, size = counted[second]
                looks[second] |= {f"type.{name}.count": count, bytes_series.format(name): size}
    verdict = examine(read_by_second(gained, looks))
    return next(f for f in verdict.findings if f.status in ("suspected", "confirmed"))


@pytest.mark.parametrize(
    "counted",
    [
        table(each=MB // 5), table(each=2 * MB), table(at=(2, 4)), {**table(), 16: (80, 41 * MB)},
        {**table(), 8: (20, 20 * MB)},
    ],
    ids=["a fifth", "twice as much", "two readings", "rose no more", "not each time"],
)  # fmt: skip
def test_types_whose_bytes_do_not_match_the_growth_are_not_named(counted: Table) -> None:
    finding = found({"bytearray": counted})
    assert (finding.kind, finding.suspects) == ("native", ())


@pytest.mark.parametrize(
    ("name", "series", "kind", "as_many"),
    [
        ("bytearray", "type.{}.bytes", "objects", None), ("numpy.ndarray", "arrays.bytes", "arrays", None),
        ("str", "type.{}.bytes", "objects", 20_000), ("numpy.ndarray", "arrays.bytes", "arrays", 7),
        ("torch.Tensor", "tensors.bytes", "tensors", 1),
    ],
)  # fmt: skip
def test_the_type_whose_bytes_match_the_growth_is_named(
    name: str, series: str, kind: str, as_many: int | None
) -> None:
    """Also if the number of objects is constant and they grow larger."""
    counted = {at: (as_many or count, size) for at, (count, size) in table().items()}
    finding = found({name: counted}, series)
    (suspect,) = finding.suspects
    assert (finding.kind, suspect.name) == (kind, name)
    assert suspect.count_per_generation == pytest.approx(0 if as_many else 5)
    larger = f"{name.rpartition('.')[2]} objects that grow larger"
    assert (larger in finding_sentence(finding, "second")) is (as_many is not None)
    assert any("the objects grow larger" in line for line in finding.evidence) is (
        as_many is not None
    )
    assert not any("No Python object" in line for line in finding.evidence)
    if as_many is None:
        assert suspect.bytes_per_generation == pytest.approx(GROWS)
        assert any(line.startswith("Measured objects explain 100 %") for line in finding.evidence)


def test_of_classes_sharing_bytes_the_growing_one_is_named() -> None:
    parameters = {second: (4, size) for second, (_, size) in table().items()}
    kinds = {"torch.nn.parameter.Parameter": parameters, "torch.Tensor": table()}
    (suspect,) = found(kinds, "tensors.bytes").suspects
    assert (suspect.name, suspect.count_per_generation) == ("torch.Tensor", pytest.approx(5))


def test_kept_free_memory_is_named_if_objects_do_not_increase() -> None:
    steady = dict.fromkeys(CENSUSES, (8, 80 * MB))
    finding = found({"torch.Tensor": steady}, "tensors.bytes", kept=2 * GROWS)
    assert (finding.kind, finding.suspects) == ("allocator_retained", ())


@pytest.mark.parametrize(
    ("at", "faster_from", "named"),
    [
        ((1, 3, 9), SECONDS, ["numpy.ndarray"]),
        ((1, 3, 7), SECONDS, []),
        ((1, 3, 9), 12, []),
    ],
    ids=["memory goes on as before", "too short", "memory goes on otherwise"],
)
def test_a_name_persists_while_nothing_is_counted(
    at: tuple[int, ...], faster_from: int, named: list[str]
) -> None:
    finding = found({"numpy.ndarray": table(at=at)}, "arrays.bytes", faster_from=faster_from)
    assert [suspect.name for suspect in finding.suspects] == named


def test_a_name_does_not_raise_the_confidence() -> None:
    named, unnamed = found({"bytearray": table()}), found({})
    assert (named.status, named.confidence) == (unnamed.status, unnamed.confidence)


def test_common_numbers_are_not_suspects_next_to_a_growing_class() -> None:
    """They are counted every second, so that each has its own pattern."""
    seconds = tuple(range(SECONDS))
    every = {
        "app.Episode": table(each=64, at=seconds),
        "bytearray": table(each=MB, at=seconds),
        "int": table(each=28, per_second=32, at=seconds),
    }
    finding = found(every)
    assert [suspect.name for suspect in finding.suspects] == ["app.Episode", "bytearray"]
    assert not any("int" in line.split() for line in finding.evidence)


MIB = 2**20
# While no count is known to rise, censuses become rarer.
LOOKS = (1, 3, 7, 15, 31)
NOT_KNOWN_YET = (
    "Since the growth began, objects have been counted too rarely to identify what grows."
)
UNEXPLAINED = "No counted Python object explains the growth."


def arrays_at(counts: Mapping[int, int], size: int = MIB) -> dict[int, dict[str, Number]]:
    return {
        at: {
            "python.objects": 50_000, "arrays.count": count, "arrays.bytes": count * size,
            "type.numpy.ndarray.count": count,
        }
        for at, count in counts.items()
    }  # fmt: skip


def young_run(
    seconds: int, looks: Mapping[int, Mapping[str, Number]], rises: float = 10.0, first: int = 0
) -> RunHistory:
    """Return private memory that rises by ``rises`` MiB per second from ``first`` on."""
    gained = [200 * MIB + rises * MIB * max(0, at - first) for at in range(seconds)]
    return read_by_second(gained, looks)


IN_STEP = arrays_at({at: 10 * (at + 1) for at in LOOKS})


def first_finding(history: RunHistory) -> Finding | None:
    return next((f for f in examine(history).findings if f.status != "ok"), None)


def test_arrays_in_a_list_are_never_reported_as_native() -> None:
    said = {
        seconds: first_finding(young_run(seconds, IN_STEP))
        for seconds in (*range(4, 20), 28, 40, 59)
    }
    first = min(seconds for seconds, finding in said.items() if finding is not None)
    assert first < 15
    for seconds, finding in said.items():
        if finding is not None:
            assert finding.kind == "arrays", (seconds, finding)
            assert finding.suspects[0].name == "numpy.ndarray"
            assert finding.suspects[0].count_per_generation == pytest.approx(10)
    prints = {finding.fingerprint for finding in said.values() if finding is not None}
    assert len(prints) == 1, "it is one leak, known better by and by"
    assert {finding.status for finding in said.values() if finding} == {
        "watch",
        "suspected",
        "confirmed",
    }


@pytest.mark.parametrize(
    "counts",
    [
        {at: 10 + at for at in LOOKS},
        {1: 20, 3: 40, 7: 40, 15: 40, 31: 40},
        {1: 20, 3: 40, 7: 20, 15: 160, 31: 40},
    ],
    ids=["a tenth of it", "rose once", "come and go"],
)
def test_arrays_that_do_not_grow_with_memory_are_not_blamed(counts: dict[int, int]) -> None:
    finding = first_finding(young_run(28, arrays_at(counts)))
    assert finding is not None
    assert (finding.kind, finding.suspects) == ("native", ())
    assert UNEXPLAINED in finding.evidence


@pytest.mark.parametrize(
    ("looks", "is_waited_for"),
    [
        (arrays_at({1: 7}), True), (arrays_at({1: 7, 3: 7}), True),
        (arrays_at(dict.fromkeys((1, 3, 7, 15, 31), 7)), False),
        # A heap too large to be counted: nothing will become known later.
        ({5: {"type.app.Env.count": 2}, 9: {"type.app.Env.count": 2}}, False),
    ],
    ids=["one look", "two before it grew", "two since it grew", "never looked at"],
)  # fmt: skip
def test_no_type_is_blamed_before_two_censuses_saw_it_grow(
    looks: Mapping[int, Mapping[str, Number]], is_waited_for: bool
) -> None:
    history = young_run(34, looks, first=10)
    finding = first_finding(history)
    assert finding is not None
    assert finding.status in ("watch", "suspected", "confirmed")
    assert finding.unknown == ("rarely_counted" if is_waited_for else None)
    assert (NOT_KNOWN_YET in finding.evidence) is is_waited_for
    assert (UNEXPLAINED in finding.evidence) is not is_waited_for
    if is_waited_for:
        assert not any("outside Python" in line for line in finding.advice)
        assert any("More heap scans" in line for line in finding.advice)
        assert "memory that has not been identified yet" in examine(history).summary


def test_a_rarely_counted_growth_starts_with_the_memory_it_explains() -> None:
    a = assessed(cause_of(kind="native"), start=(3.0, 2.0, 4.0), window=20.0)
    x, counts = [4.0, 6.0, 14.0], [10.0, 14.0, 40.0]
    assert _growth(a, x, counts) == CountGrowth(
        "irregular", 3.0, 2.0, 3.25, 3.0, 2.0, 4.0, 2, 20.0, 15.0
    )
    unknown = _growth(replace(a, start=None), x, counts)
    assert (unknown.start, unknown.start_low, unknown.start_high) == (4.0, 4.0, 4.0)


def _named_by(
    name: str, looks: Sequence[int], a: Any, *, sizes: Sequence[int] | None = None, counts: Sequence[int] | None = None
) -> Cause:  # fmt: skip
    """Return the cause of native growth of 5,000 bytes per generation with a type counted in these generations."""
    size: list[Value] = [None] * 24
    count: list[Value] = [None] * 24
    for i, g in enumerate(looks):
        size[g] = 9000 + (5000 * g if sizes is None else sizes[i])
        count[g] = 100 + (g if counts is None else counts[i])
    memory = [100_000 + 5000 * g for g in range(24)]
    history = ends_history(
        {"process.anon_bytes": memory, f"type.{name}.count": count, f"type.{name}.bytes": size}
    )
    (named,) = with_rarely_counted(study_of(history), [a], 24)
    return named.cause


SOME = assessed(
    cause_of(kind="native", place=NOWHERE, rate=5000.0), start=(3.0, 9.0, 9.0), window=21.0
)


ENVS = candidate("app.Env", "object")


def test_named_growth_and_growth_elsewhere_keep_their_name() -> None:
    for cause in (replace(SOME.cause, kind="gpu"), replace(SOME.cause, members=(ENVS,))):
        assert _named_by("bytes", [2, 9, 23], replace(SOME, cause=cause)) == cause
    placed = replace(SOME, cause=replace(SOME.cause, place=EVOLVE))
    assert _named_by("bytes", [2, 9, 23], placed).place == EVOLVE


@pytest.mark.parametrize(
    ("looks", "more", "named"),
    [
        ([2, 9, 23], {}, True), ([1, 2, 23], {}, False), ([2, 9, 23], {"sizes": [0, 13_999, 100_000]}, False),
    ],
    ids=["three looks", "two since just before", "not in step"],
)  # fmt: skip
def test_three_censuses_since_just_before_the_start_must_agree(
    looks: list[int], more: dict[str, Any], named: bool
) -> None:
    """Seven generations gained 35,000 bytes; two fifths of that are 14,000."""
    assert (_named_by("bytes", looks, SOME, **more).owner is not None) == named


def test_without_a_start_censuses_count_from_generation_0() -> None:
    unknown = replace(SOME, start=None, window=24.0)
    assert _named_by("bytes", [0, 9, 10], unknown).owner is not None
    # The time is too short for a name that persists while nothing is counted.
    assert _named_by("bytes", [3, 9, 10], unknown).owner is None


@pytest.mark.parametrize(
    ("counts", "sizes", "larger"),
    [
        ([1, 1], [10, 20], True), ([100, 90], [10, 20], True), ([100, 109], [10, 20], True),
        ([100, 111], [10, 20], False), ([100, 200], [10, 20], False), ([0, 5], [0, 20], False),
    ],
    ids=["as many", "fewer", "a few more", "more", "each as large", "from nothing"],
)  # fmt: skip
def test_objects_grow_larger_if_their_number_hardly_changes(
    counts: list[float], sizes: list[float], larger: bool
) -> None:
    before, now = zip(counts, sizes, strict=True)
    assert grow_larger(before, now) == larger


@pytest.mark.parametrize(
    ("gained", "size", "explains"),
    [
        (100, 60, True), (100, 59, False), (100, 130, True), (100, 131, False), (0, 0, False), (1, 1, True),
        (-9, -9, False),
    ],
)  # fmt: skip
def test_bytes_explain_memory_within_60_to_133_percent(
    gained: float, size: int, explains: bool
) -> None:
    assert _explains([9, 50, 50 + gained, 9], [None, 7, 7 + size, None], 1, 2) == explains
    # Bytes missing at one end explain nothing.
    assert not _explains([9, 50, 50 + gained, 9], [None, 7, None, None], 1, 2)


# The list grows by 500 bytes per file.
FILES = {
    "_io.BufferedWriter": 6.0, "container.app.Recorder.files.length": 6.0,
    "container.app.Recorder.files.bytes": 3_000.0,
}  # fmt: skip


def handles(
    counts: dict[str, float], *holders: Holder, start: int = 0, census_every: int = 1
) -> Verdict:
    """Return the verdict on native growth of 6 MiB per generation in training; the counts rise from ``start`` on."""
    leaks = (Leak(TRAIN, 6 * MIB, holders=holders), Leak(TRAIN, 0.0, counts, start=start))
    training = Training(generations=30, leaks=leaks, noise=0.5 * MIB, census_every=census_every)
    training.counts |= dict.fromkeys(counts, 0.0)
    return examine(training.history())


def test_open_files_are_named_for_their_buffers() -> None:
    verdict = handles(FILES)
    (finding,) = (f for f in verdict.findings if f.status == "confirmed")
    assert (finding.kind, finding.phase) == ("objects", TRAIN)
    assert [s.name for s in finding.suspects[:2]] == ["_io.BufferedWriter", "app.Recorder.files"]
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.1)
    # The container is not a second finding.
    assert not any(
        f.suspects and f.suspects[0].name == "app.Recorder.files" for f in verdict.findings
    )


def test_connections_are_named_and_not_the_caches_of_their_statements() -> None:
    finding = handles(
        {"functools._lru_cache_wrapper": 5.0, "sqlite3.Connection": 5.0},
        *(Holder(0, name, "app.Store.sessions[*]", 60, None)
          for name in ("functools._lru_cache_wrapper", "sqlite3.Connection")),
    ).findings[0]  # fmt: skip
    assert (finding.kind, finding.suspects[0].name) == ("objects", "sqlite3.Connection")


def of_small_actors(*paths: str) -> Finding:
    """Return the finding for four more actors per generation with a known size, and one container per path."""
    counts = {
        "agents.Actor": 4.0, "container.app.Pool.actors.length": 4.0, "container.app.Pool.actors.bytes": 12_416.0,
    }  # fmt: skip
    holders = [Holder(0, "agents.Actor", path, 100, 3_104) for path in paths]
    return handles(counts, *holders, census_every=3).findings[0]


def test_small_objects_other_than_threads_are_not_blamed() -> None:
    finding = of_small_actors("app.Pool.actors[*]")
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_threads_are_named_for_the_locals_of_their_calls() -> None:
    """The size of a thread object does not include the locals of its call."""
    finding = of_small_actors("app.Pool.actors[*]", "threading._active[*]")
    assert (finding.status, finding.kind, finding.phase) == ("confirmed", "objects", TRAIN)
    assert finding.suspects[0].name == "agents.Actor"


@pytest.mark.parametrize(
    "verdict",
    [handles({"tqdm.std.Unit": 6.0}), handles(FILES, start=14)],
    ids=["holds nothing else", "rises later"],
)
def test_counts_rising_at_other_times_are_not_blamed(verdict: Verdict) -> None:
    finding = verdict.findings[0]
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_processes_are_named_for_the_memory_of_children() -> None:
    children, helpers = curve(lambda i: 8.0 * i, 30), [float(i) for i in range(30)]
    history = history_of(
        curve(lambda i: 0.0, 30), 100 * BASELINE, children__uss_bytes=children,
        **{"type__multiprocessing.context.ForkProcess__count": helpers, "type__app.Env__count": helpers},
    )  # fmt: skip
    finding = examine(history).findings[0]
    assert finding.kind == "children"
    assert [s.name for s in finding.suspects] == ["multiprocessing.context.ForkProcess"]


CAPTURES = {"cv2.VideoCapture": 1.0, "container.app.opening.length": 1.0}
RECORDS = {
    "app.Record": 1.0, "float": 2.0, "container.app.losses.length": 1.0, "container.app.losses.bytes": 32.0,
}  # fmt: skip


def test_a_container_of_the_program_precedes_one_of_a_library() -> None:
    """A worker is added with each fold, and multiprocessing keeps a set of all workers."""
    name = "multiprocessing.context.ForkProcess"
    counts = {name: 1.0, "container.app.Folds.workers.length": 1.0}
    holder = Holder(0, name, "multiprocessing.process._children[*]", 30)
    finding = handles(counts, holder).findings[0]
    assert [(s.role, s.name) for s in finding.suspects] == [
        ("type", name), ("container", "app.Folds.workers"), ("holder", "multiprocessing.process._children[*]"),
    ]  # fmt: skip
    assert "app.Folds.workers keeps ForkProcess alive" in " ".join(finding.advice)


WORKERS = candidate("multiprocessing.context.ForkProcess", "library", slope=2.0)


@pytest.mark.parametrize(
    ("container", "owner", "is_named"),
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
def test_a_container_may_hold_several_objects_per_entry(
    container: Candidate, owner: Candidate, is_named: bool
) -> None:
    assert brings_some(container, owner) is is_named


def test_kept_records_and_numbers_are_not_blamed() -> None:
    """Their bytes are completely known: they hide nothing, however steadily their number grows."""
    finding = handles(RECORDS, Holder(0, "app.Record", "app.records[*]", 30, 220)).findings[0]
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
def test_handles_are_named_if_memory_rises_in_their_generations(every: int) -> None:
    """Growth in every third generation does not belong to a handle opened in every generation."""
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


def test_small_tensors_are_named_for_free_memory_around_them() -> None:
    counts = {
        "torch.Tensor": 120.0, "tensors.count": 120.0, "tensors.bytes": 7_680.0,
        "container.app.kept.length": 120.0, "container.app.kept.bytes": 8_640.0,
        "allocator.kept_bytes": 5.6 * MIB,
    }  # fmt: skip
    verdict = handles(counts, Holder(0, "torch.Tensor", "app.kept[*]", 3_600))
    (finding,) = (f for f in verdict.findings if f.status == "confirmed")
    assert (finding.kind, finding.phase) == ("tensors", TRAIN)
    assert [s.name for s in finding.suspects[:2]] == ["torch.Tensor", "app.kept[*]"]
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.15)
    assert any("C allocator keeps" in line for line in finding.evidence)
