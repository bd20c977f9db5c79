"""Bytes that few looks have counted: enough to name what grows, or not known yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pieces import (
    EVOLVE,
    NOWHERE,
    assessed,
    candidate,
    cause_of,
    ends_history,
    steps_history,
    study_of,
)

from leakline.analysis import examine
from leakline.analysis.attribution.causes import Cause
from leakline.analysis.attribution.native_owners import (
    _ends,
    _explains,
    _growth,
    with_seldom_counted,
)
from leakline.analysis.findings.verdict_summary import finding_sentence
from leakline.analysis.results import Finding
from leakline.analysis.run_history import RunHistory, Value, history_from_batches
from leakline.analysis.statistics.count_evidence import CountGrowth, grow_larger
from leakline.snapshot import Batch, Number, ProcessIdentity, RunHeader, Snapshot

MB = 1_000_000
SECONDS = 26
GROWS = 5 * MB
CENSUSES = (2, 4, 8, 16)
# Second -> how many there are, and their bytes.
Table = Mapping[int, tuple[int, int]]


def table(each: int = MB, *, per_second: int = 5, at: tuple[int, ...] = CENSUSES) -> Table:
    return {second: (per_second * second, per_second * second * each) for second in at}


def found(
    types: Mapping[str, Table],
    bytes_series: str = "type.{}.bytes",
    *,
    kept: int = 0,
    faster_from: int = SECONDS,
) -> Finding:
    """The finding of a run that gains 5 MB each second, with these types counted.

    ``kept``: what the allocator keeps unused beside that. ``faster_from``: from when on it gains three times as much.
    """
    snapshots = []
    for second in range(SECONDS):
        gained = 30 * MB + (GROWS + kept) * second + 2 * GROWS * max(0, second - faster_from)
        samples = {"process.rss_bytes": gained + 9 * MB, "process.anon_bytes": gained}
        if kept:
            samples["allocator.kept_bytes"] = kept * second
        for name, counted in types.items():
            if second in counted:
                count, size = counted[second]
                samples |= {f"type.{name}.count": count, bytes_series.format(name): size}
        snapshots.append(
            Snapshot(
                sequence=second, time=1e9 + second, monotonic=float(second), generation=None, phase=None,
                label="", kind="generation_end", samples=samples,
            )
        )  # fmt: skip
    batch = Batch(ProcessIdentity("a"), tuple(snapshots))
    verdict = examine(history_from_batches(RunHeader("r", "p", "n", "second", None, 1e9), [batch]))
    return next(f for f in verdict.findings if f.status in ("suspected", "confirmed"))


@pytest.mark.parametrize(
    "counted",
    [
        table(each=MB // 5), table(each=2 * MB), table(at=(2, 4)), {**table(), 16: (80, 41 * MB)},
        {**table(), 8: (20, 20 * MB)},
    ],
    ids=["a fifth", "twice as much", "two readings", "rose no more", "not each time"],
)  # fmt: skip
def test_bytes_that_are_not_what_memory_gained_name_nothing(counted: Table) -> None:
    finding = found({"bytearray": counted})
    assert (finding.kind, finding.suspects) == ("native", ())


@pytest.mark.parametrize(
    ("name", "series", "kind"),
    [
        ("bytearray", "type.{}.bytes", "objects"),
        ("str", "type.{}.bytes", "objects"),
        ("numpy.ndarray", "arrays.bytes", "arrays"),
    ],
)
def test_the_type_whose_bytes_are_what_memory_gained_is_named(
    name: str, series: str, kind: str
) -> None:
    finding = found({name: table()}, series)
    (suspect,) = finding.suspects
    assert (finding.kind, suspect.name) == (kind, name)
    assert suspect.count_per_generation == pytest.approx(5)
    assert suspect.bytes_per_generation == pytest.approx(GROWS)
    assert not any("No Python object" in line for line in finding.evidence)
    assert any(line.startswith("Measured objects explain 100 %") for line in finding.evidence)


@pytest.mark.parametrize(
    ("name", "series", "kind", "count"),
    [
        ("bytearray", "type.{}.bytes", "objects", 1),
        ("str", "type.{}.bytes", "objects", 20_000),
        ("numpy.ndarray", "arrays.bytes", "arrays", 7),
        ("torch.Tensor", "tensors.bytes", "tensors", 1),
    ],
)
def test_as_many_objects_as_ever_are_named_when_their_bytes_grow(
    name: str, series: str, kind: str, count: int
) -> None:
    larger = {second: (count, size) for second, (_, size) in table().items()}
    finding = found({name: larger}, series)
    (suspect,) = finding.suspects
    assert (finding.kind, suspect.name, suspect.count_per_generation) == (kind, name, 0)
    assert f"{name.rpartition('.')[2]} objects that grow larger" in finding_sentence(
        finding, "second"
    )
    assert any("they grow larger" in line for line in finding.evidence)


def test_of_classes_whose_bytes_are_told_together_the_one_that_becomes_more_is_named() -> None:
    parameters = {second: (4, size) for second, (_, size) in table().items()}
    kinds = {"torch.nn.parameter.Parameter": parameters, "torch.Tensor": table()}
    (suspect,) = found(kinds, "tensors.bytes").suspects
    assert (suspect.name, suspect.count_per_generation) == ("torch.Tensor", pytest.approx(5))


def test_freed_memory_beside_objects_that_are_no_more_keeps_its_name() -> None:
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
def test_a_name_stays_while_nothing_is_counted(
    at: tuple[int, ...], faster_from: int, named: list[str]
) -> None:
    finding = found({"numpy.ndarray": table(at=at)}, "arrays.bytes", faster_from=faster_from)
    assert [suspect.name for suspect in finding.suspects] == named


def test_objects_of_one_size_beside_growth_of_no_name_are_not_named() -> None:
    steady = dict.fromkeys(CENSUSES, (1, 80 * MB))
    finding = found({"numpy.ndarray": steady}, "arrays.bytes")
    assert (finding.kind, finding.suspects) == ("native", ())


def test_of_several_the_one_with_most_of_the_bytes_is_named() -> None:
    """The numbers that our own client keeps rise as well."""
    finding = found({"int": table(each=28, per_second=32), "bytearray": table()})
    assert [suspect.name for suspect in finding.suspects] == ["bytearray"]


def test_a_name_makes_nobody_surer() -> None:
    named, unnamed = found({"bytearray": table()}), found({})
    assert (named.status, named.confidence) == (unnamed.status, unnamed.confidence)


def test_numbers_that_every_program_makes_are_no_suspects_beside_a_class_that_is_the_growth() -> (
    None
):
    """Counted every second, so that each has a pattern of its own."""
    seconds = tuple(range(SECONDS))
    every = {
        "app.Episode": table(each=64, at=seconds),
        "bytearray": table(each=MB, at=seconds),
        "int": table(each=28, per_second=32, at=seconds),
    }
    finding = found(every)
    assert [suspect.name for suspect in finding.suspects] == ["app.Episode", "bytearray"]
    assert not any("int" in line.split() for line in finding.evidence)


def test_each_of_two_phases_that_keep_memory_has_its_finding() -> None:
    """One array becomes longer in embed, by 2 MB; retrieve puts six strings of 0.3 MB into a list."""
    steps: list[tuple[str, int, str | None]] = []
    series: dict[str, list[Value]] = {
        name: []
        for name in (
            "process.anon_bytes", "allocator.in_use_bytes", "container.app.packed.length",
            "container.app.packed.bytes", "type.numpy.ndarray.count", "arrays.bytes",
        )
    }  # fmt: skip
    for generation in range(30):
        for phase in ("embed", "train", "retrieve"):
            bank = 2 * MB * (generation + 1)
            entries = 6 * (generation + (phase == "retrieve"))
            kept = bank + entries * 3 * MB // 10
            steps.append(("phase_end", generation, phase))
            row: tuple[Value, ...] = (29 * MB + kept, 10 * MB + kept, entries, None, None, None)
            for column, value in zip(series.values(), row, strict=True):
                column.append(value)
        steps.append(("generation_end", generation, None))
        counted = generation % 3 == 0
        row = (
            29 * MB + kept, 10 * MB + kept, entries, entries * 3 * MB // 10,
            5 if counted else None, bank if counted else None,
        )  # fmt: skip
        for column, value in zip(series.values(), row, strict=True):
            column.append(value)
    columns: Mapping[str, Sequence[Value]] = series
    verdict = examine(steps_history(steps, columns))
    first, second = (f for f in verdict.findings if f.status == "confirmed")
    assert (first.phase, first.kind, first.suspects[0].name) == ("embed", "arrays", "numpy.ndarray")
    assert (second.phase, second.suspects[0].name) == ("retrieve", "app.packed")
    assert first.growth_bytes_per_generation.estimate == pytest.approx(2 * MB, rel=0.1)
    assert second.growth_bytes_per_generation.estimate == pytest.approx(1.8 * MB, rel=0.1)
    assert {each.phase for each in verdict.ruled_out} <= {"train"}


MIB = 2**20
# While no count is known to rise, looks become ever more seldom.
LOOKS = (1, 3, 7, 15, 31)
COUNTED_TOO_SELDOM = "Objects were counted too seldom since it began: what it is, is not known yet."
UNEXPLAINED = "No Python object that was counted explains it."


def young_run(
    seconds: int, looks: Mapping[int, Mapping[str, Number]], rises: float = 10.0, first: int = 0
) -> RunHistory:
    """Private memory rises by so many MiB a second from ``first`` on; ``looks``: what was counted, by second."""
    snapshots = []
    for at in range(seconds):
        kept = 200 * MIB + round(rises * MIB * max(0, at - first))
        samples = {"process.rss_bytes": 100 * MIB + kept, "process.anon_bytes": kept}
        snapshots.append(
            Snapshot(
                sequence=at, time=1e9 + at, monotonic=float(at), generation=None, phase=None, label="",
                kind="generation_end", samples={**samples, **looks.get(at, {})},
            )
        )  # fmt: skip
    header = RunHeader("r", "p", "n", "second", None, 1e9)
    return history_from_batches(header, [Batch(ProcessIdentity("a"), tuple(snapshots))])


def arrays_at(counts: Mapping[int, int], size: int = MIB) -> dict[int, dict[str, Number]]:
    return {
        at: {
            "python.objects": 50_000, "arrays.count": count, "arrays.bytes": count * size,
            "type.numpy.ndarray.count": count,
        }
        for at, count in counts.items()
    }  # fmt: skip


IN_STEP = arrays_at({at: 10 * (at + 1) for at in LOOKS})


def told(history: RunHistory) -> Finding | None:
    return next((f for f in examine(history).findings if f.status != "ok"), None)


def test_arrays_in_a_list_are_never_called_native_from_the_first_word_on() -> None:
    said = {seconds: told(young_run(seconds, IN_STEP)) for seconds in range(4, 60)}
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
@pytest.mark.parametrize("seconds", [12, 20, 28])
def test_arrays_that_do_not_rise_with_it_are_not_blamed(
    counts: dict[int, int], seconds: int
) -> None:
    finding = told(young_run(seconds, arrays_at(counts)))
    assert finding is not None
    assert (finding.kind, finding.suspects) == ("native", ())
    assert UNEXPLAINED in finding.evidence


@pytest.mark.parametrize("looks", [(1,), (1, 3)])
def test_before_two_looks_have_seen_it_grow_nobody_is_blamed(looks: Sequence[int]) -> None:
    seen = arrays_at(dict.fromkeys(looks, 7))
    history = young_run(34, seen, first=10)
    finding = told(history)
    assert finding is not None
    assert finding.status in ("watch", "suspected", "confirmed")
    assert finding.unknown == "seldom"
    assert COUNTED_TOO_SELDOM in finding.evidence
    assert UNEXPLAINED not in finding.evidence
    assert not any("outside Python" in line for line in finding.advice)
    assert any("next looks at the heap" in line for line in finding.advice)
    assert "memory, of what is not known yet" in examine(history).summary


def test_once_two_looks_have_seen_it_grow_and_nothing_with_it_no_object_explains_it() -> None:
    seen = arrays_at(dict.fromkeys((1, 3, 7, 15, 31), 7))
    finding = told(young_run(34, seen, first=10))
    assert finding is not None
    assert UNEXPLAINED in finding.evidence
    assert finding.unknown is None
    assert COUNTED_TOO_SELDOM not in finding.evidence


def test_what_was_never_looked_at_is_not_waited_for() -> None:
    """A heap too large to be counted: nothing will tell it later."""
    finding = told(young_run(34, {5: {"type.app.Env.count": 2}, 9: {"type.app.Env.count": 2}}))
    assert finding is not None
    assert finding.unknown is None
    assert COUNTED_TOO_SELDOM not in finding.evidence


READ: list[Value] = [None, 5, None, 7, None]


@pytest.mark.parametrize(
    ("first", "end", "ends"),
    [
        (0, 5, (1, 3)), (2, 5, (3, 3)), (0, 3, (1, 1)), (0, 1, None),
    ],
)  # fmt: skip
def test_where_the_first_and_the_last_reading_is(
    first: int, end: int, ends: tuple[int, int] | None
) -> None:
    assert _ends(READ, first, end) == ends


def test_bytes_that_were_never_read_are_none() -> None:
    assert _explains([0.0, 100.0], [None, 100], 0, 1)
    assert not _explains([0.0, 100.0], [100, None], 0, 1)


def test_a_growth_of_few_looks_has_the_start_of_the_memory_it_explains() -> None:
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
    """What names native growth of 5,000 bytes a generation, of a type looked at in these generations."""
    owned = {"numpy.ndarray": "arrays.bytes", "torch.Tensor": "tensors.bytes"}.get(
        name, f"type.{name}.bytes"
    )
    size: list[Value] = [None] * 24
    count: list[Value] = [None] * 24
    for i, g in enumerate(looks):
        size[g] = 9000 + (5000 * g if sizes is None else sizes[i])
        count[g] = 100 + (g if counts is None else counts[i])
    memory = [100_000 + 5000 * g for g in range(24)]
    history = ends_history({"process.anon_bytes": memory, f"type.{name}.count": count, owned: size})
    (found,) = with_seldom_counted(study_of(history), [a], 24)
    return found.cause


SOME = assessed(
    cause_of(kind="native", place=NOWHERE, rate=5000.0), start=(3.0, 9.0, 9.0), window=21.0
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("bytes", "objects"), ("app.Blob", "objects"), ("numpy.ndarray", "arrays"), ("torch.Tensor", "tensors")],
)  # fmt: skip
def test_native_growth_is_named_after_the_type_that_rose_with_it(name: str, kind: str) -> None:
    cause = _named_by(name, [2, 9, 23], SOME)
    assert cause.owner is not None
    assert (cause.owner.name, cause.kind, cause.measured, cause.owner.bytes_rate) == (
        name,
        kind,
        5000,
        5000,
    )
    assert (cause.rate, cause.place) == (SOME.cause.rate, cause.owner.place)
    placed = replace(SOME, cause=replace(SOME.cause, place=EVOLVE))
    assert _named_by(name, [2, 9, 23], placed).place == EVOLVE


ENVS = candidate("app.Env", "object")


def test_what_has_a_name_or_lies_elsewhere_is_not_named_anew() -> None:
    for cause in (replace(SOME.cause, kind="gpu"), replace(SOME.cause, members=(ENVS,))):
        assert _named_by("bytes", [2, 9, 23], replace(SOME, cause=cause)) == cause


@pytest.mark.parametrize(
    ("looks", "more", "named"),
    [
        ([2, 9, 23], {}, True), ([1, 2, 23], {}, False), ([2, 9, 23], {"sizes": [0, 13_999, 100_000]}, False),
    ],
    ids=["three looks", "two since just before", "not in step"],
)  # fmt: skip
def test_three_looks_since_just_before_the_start_have_to_agree(
    looks: list[int], more: dict[str, Any], named: bool
) -> None:
    """Seven generations gained 35,000 bytes: two fifths of that are 14,000."""
    assert (_named_by("bytes", looks, SOME, **more).owner is not None) == named


def test_without_a_start_looks_count_from_the_first_generation_on() -> None:
    unknown = replace(SOME, start=None, window=24.0)
    assert _named_by("bytes", [0, 9, 10], unknown).owner is not None
    # Too short a time for a name that stays while nothing is counted.
    assert _named_by("bytes", [3, 9, 10], unknown).owner is None


@pytest.mark.parametrize(
    ("counts", "sizes", "larger"),
    [
        ([1, 1], [10, 20], True), ([100, 90], [10, 20], True), ([100, 109], [10, 20], True),
        ([100, 111], [10, 20], False), ([100, 200], [10, 20], False), ([0, 5], [0, 20], False),
    ],
    ids=["as many", "fewer", "a few more", "more", "each as large", "from nothing"],
)  # fmt: skip
def test_objects_grow_larger_where_hardly_more_of_them_come(
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
def test_bytes_explain_memory_where_they_gained_three_fifths_to_a_third_more(
    gained: float, size: int, explains: bool
) -> None:
    assert _explains([9, 50, 50 + gained, 9], [None, 7, 7 + size, None], 1, 2) == explains
