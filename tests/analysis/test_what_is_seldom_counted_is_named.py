"""A program that calls nothing of ours is counted after 2, 4, 8 and 16 seconds: enough to name what bytes it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from leakline.analysis import examine
from leakline.analysis.history import Value, history_from_batches
from leakline.analysis.results import Finding
from leakline.analysis.summary import finding_sentence
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

from .pieces import steps_history

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
        table(each=MB // 5),
        table(each=2 * MB),
        table(at=(2, 4)),
        {**table(), 16: (80, 41 * MB)},
        {**table(), 8: (20, 20 * MB)},
    ],
    ids=["a fifth", "twice as much", "two readings", "rose no more", "not each time"],
)
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
    assert any(line.startswith("Measured objects explain 100%") for line in finding.evidence)


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
