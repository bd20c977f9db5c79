"""Of several child processes the one that grows is the one that the finding names; ranks tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from builder import MIB, curve, history_of

from leakline.analysis import RunHistory, examine
from leakline.analysis.memory.memory_kinds import GrowingChildren, growing_children, growing_lines
from leakline.analysis.results import Finding, Status, Suspect
from leakline.analysis.run_history import Value
from leakline.analysis.timeline import Timeline

GENERATIONS = 40
RAISED: tuple[Status, ...] = ("suspected", "confirmed")


def finding_of(**gained: float) -> Finding | None:
    """Each child takes 40 MiB and gains so many MiB in each generation from the tenth on."""
    sizes = {
        name: [MIB * (40 + rate * max(0, i - 10)) for i in range(GENERATIONS)]
        for name, rate in gained.items()
    }
    both = [sum(each) for each in zip(*sizes.values(), strict=True)]
    series = {f"children__process__{name}__uss_bytes": size for name, size in sizes.items()}
    flat = curve(lambda _: 0.0, GENERATIONS)
    found = examine(history_of(flat, children__uss_bytes=both, **series)).findings
    return next((f for f in found if f.kind == "children" and f.status in RAISED), None)


def names(finding: Finding) -> list[tuple[str, str]]:
    return [(s.role, s.name) for s in finding.suspects]


def test_where_no_child_grows_there_is_no_finding() -> None:
    assert finding_of(actor=0, learner=0) is None


def test_the_one_that_grows_is_named_with_its_rate() -> None:
    finding = finding_of(actor=0, learner=8, reader=0)
    assert finding is not None
    assert names(finding) == [("process", "learner")]
    assert finding.suspects[0].bytes_per_generation == 8 * MIB
    line = "Of 3 children told one by one, this grows: learner by 8.00 MiB per generation."
    assert line in finding.evidence


def test_of_two_that_grow_the_larger_comes_first_and_one_that_hardly_does_is_not_named() -> None:
    finding = finding_of(actor=6, learner=12, reader=0.5)
    assert finding is not None
    assert names(finding) == [("process", "learner"), ("process", "actor")]


REST = "The children that have no series of their own grow by"


def test_what_has_no_series_of_its_own_is_nobody_and_is_told_as_the_rest() -> None:
    finding = finding_of(actor=0, other=8)
    assert finding is not None
    assert finding.suspects == ()
    assert f"{REST} 8.00 MiB per generation." in finding.evidence
    assert "told one by one" not in " ".join(finding.evidence)


def test_where_one_grows_and_the_rest_as_well_both_are_told() -> None:
    finding = finding_of(actor=8, learner=0, other=4)
    assert finding is not None
    assert names(finding) == [("process", "actor")]
    line = "Of 2 children told one by one, this grows: actor by 8.00 MiB per generation."
    assert line in finding.evidence
    assert f"{REST} 4.00 MiB per generation." in finding.evidence


def test_of_the_rest_a_small_part_of_the_growth_is_not_told() -> None:
    finding = finding_of(actor=8, other=0.5)
    assert finding is not None
    assert REST not in " ".join(finding.evidence)


def with_moves(rest: float) -> Finding | None:
    """``actor`` gains 8 MiB per generation. The rest gains ``rest`` MiB in each and is joined, one after the other, by
    three that had series of their own until then, with their 40 MiB each."""
    told = {
        f"reader-{i}": [MIB * 40.0 if g < 15 + 6 * i else None for g in range(GENERATIONS)]
        for i in range(3)
    }
    actor = [MIB * (40 + 8.0 * max(0, g - 10)) for g in range(GENERATIONS)]
    joined = [sum(row[g] is None for row in told.values()) for g in range(GENERATIONS)]
    other = [MIB * (40 + 40.0 * joined[g] + rest * max(0, g - 10)) for g in range(GENERATIONS)]
    all_of_them = [actor[g] + other[g] + MIB * 40.0 * (3 - joined[g]) for g in range(GENERATIONS)]
    series = {
        f"children__process__{name}__uss_bytes": row
        for name, row in {**told, "actor": actor, "other": other}.items()
    }
    history = history_of(
        curve(lambda _: 0.0, GENERATIONS), children__uss_bytes=all_of_them, **series
    )
    return next((f for f in examine(history).findings if f.kind == "children"), None)


def test_who_loses_its_own_series_is_no_growth_of_the_rest() -> None:
    finding = with_moves(0)
    assert finding is not None
    assert names(finding) == [("process", "actor")]
    assert REST not in " ".join(finding.evidence)


def test_the_rest_is_told_with_its_own_growth_alone_where_others_join_it() -> None:
    finding = with_moves(4)
    assert finding is not None
    assert f"{REST} 4.00 MiB per generation." in finding.evidence


def test_without_series_of_one_child_nobody_is_named() -> None:
    sizes = [MIB * (40 + 8.0 * i) for i in range(GENERATIONS)]
    history = history_of(curve(lambda _: 0.0, GENERATIONS), children__uss_bytes=sizes)
    (finding,) = (f for f in examine(history).findings if f.kind == "children")
    assert finding.suspects == ()
    assert "told one by one" not in " ".join(finding.evidence)


@pytest.mark.parametrize("mib", [0.2, 8.0])
def test_a_child_that_starts_late_and_warms_up_is_no_leak_and_one_that_grows_is(mib: float) -> None:
    """A worker of 55 MiB from generation 3 on gains so much per generation, as a cache does while it fills."""
    sizes = [0.0, 0.0, 15 * MIB, *[MIB * (54 + mib * i) for i in range(13)]]
    baseline = [80.0 * MIB] * len(sizes)
    found = examine(history_of(baseline, children__uss_bytes=sizes)).findings
    assert any(f.kind == "children" for f in found) == (mib == 8.0)


@pytest.mark.parametrize(("name", "told"), [("actor-3", " (actor-3)"), ("other", "")])
def test_the_sentence_of_the_run_says_who_and_names_nobody_where_the_rest_grows(
    name: str, told: str
) -> None:
    grows = [MIB * (40 + 8.0 * i) for i in range(GENERATIONS)]
    series = {f"children__process__{name}__uss_bytes": grows}
    history = history_of(curve(lambda _: 0.0, GENERATIONS), children__uss_bytes=grows, **series)
    assert f"memory of child processes{told}: 8.00 MiB per generation" in examine(history).summary


def with_children(ranks_mib: float, others_mib: float, *, alone: bool) -> RunHistory:
    """The children of rank 0 gain so much in each generation; ``alone``: nobody else tells of the run."""
    flat = curve(lambda _: 0.0, GENERATIONS)
    ranks = [MIB * (50 + ranks_mib * i) for i in range(GENERATIONS)]
    others = [MIB * (20 + others_mib * i) for i in range(GENERATIONS)]
    both = [a + b for a, b in zip(ranks, others, strict=True)]
    history = history_of(flat, children__uss_bytes=both, children__ranks__uss_bytes=ranks)
    if alone:
        return history
    (rank,) = history_of(flat).processes
    return replace(history, processes=(*history.processes, replace(rank, instance="q", rank=1)))


def of_children(history: RunHistory) -> list[Finding]:
    return [f for f in examine(history).findings if f.kind == "children"]


def test_ranks_that_tell_of_themselves_are_no_finding_of_their_launcher() -> None:
    assert not of_children(with_children(9, 0, alone=False))


def test_ranks_that_nobody_tells_of_are_children_that_grow() -> None:
    assert of_children(with_children(9, 0, alone=True))


def test_other_children_of_a_launcher_are_still_seen() -> None:
    (finding,) = of_children(with_children(9, 9, alone=False))
    assert 8 * MIB < finding.growth_bytes_per_generation.estimate < 10 * MIB


def timeline(
    series: Mapping[str, Sequence[Value]], *, segment: Sequence[int] | None = None, generations: Sequence[int] = ()
) -> Timeline:  # fmt: skip
    n = max(map(len, series.values()), default=0)
    named, rows = tuple(generations or range(n)), tuple(range(n))
    return Timeline(
        "rank 0 main", "p", ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], named, series,
        segment or [0] * n, named, rows, None, {g: i for i, g in enumerate(named)},
    )  # fmt: skip


def child(name: str, kind: str = "uss") -> str:
    return f"children.process.{name}.{kind}_bytes"


def line(slope: float, n: int = 10) -> list[Value]:
    return [1_000 + slope * i for i in range(n)]


def test_eight_children_are_named_and_one_that_was_read_twice_is_not() -> None:
    many = timeline({child(f"c{i}"): line(10.0 + i) for i in range(10)})
    assert [s.name for s in growing_children(many, None, 50).suspects] == [
        f"c{i}" for i in range(9, 1, -1)
    ]
    seldom = timeline({child("a"): [1, 50, None, None], child("b"): [1, 50, 99, None]})
    assert [s.name for s in growing_children(seldom, None, 50).suspects] == ["b"]


def test_the_rest_grows_from_the_generation_before_its_start() -> None:
    told = timeline({child("other"): [*[500] * 4, 1_000, 1_010, 1_020, 1_030]})
    # From generation 4 on it grows by 10.
    assert growing_children(told, 5, 50).rest == 10
    # Of two in a row nothing is told, of three it is.
    assert growing_children(told, 6, 50).rest == 10
    assert growing_children(told, 7, 50).rest == 0


@pytest.mark.parametrize(
    ("growing", "lines"),
    [
        (GrowingChildren(), []),
        (
            GrowingChildren((Suspect("a", "process", None, 5),), 1),
            ["Of 1 child told one by one, this grows: a by 5 B per generation."],
        ),
        (
            GrowingChildren((Suspect("a", "process", None, 5), Suspect("b", "process")), 3, 7),
            [
                "Of 3 children told one by one, these grow: a by 5 B, b by 0 B per generation.",
                "The children that have no series of their own grow by 7 B per generation.",
            ],
        ),
    ],
)  # fmt: skip
def test_children_that_grow_are_told_in_lines(growing: GrowingChildren, lines: list[str]) -> None:
    assert growing_lines(growing, "generation") == lines
