"""Of several child processes the one that grows is the one that the finding names, and no other."""

from __future__ import annotations

from leakline.analysis import examine
from leakline.analysis.results import Finding, Status

from .builder import MIB, curve, history_of

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


def test_the_sentence_of_the_run_says_who() -> None:
    flat = curve(lambda _: 0.0, GENERATIONS)
    grows = [MIB * (40 + 8.0 * i) for i in range(GENERATIONS)]
    verdict = examine(
        history_of(
            flat, children__uss_bytes=grows, **{"children__process__actor-3__uss_bytes": grows}
        )
    )
    assert "memory of child processes (actor-3): 8.00 MiB per generation" in verdict.summary


def test_the_sentence_of_the_run_names_nobody_where_the_rest_grows() -> None:
    grows = [MIB * (40 + 8.0 * i) for i in range(GENERATIONS)]
    series = {"children__process__other__uss_bytes": grows}
    history = history_of(curve(lambda _: 0.0, GENERATIONS), children__uss_bytes=grows, **series)
    assert "memory of child processes: 8.00 MiB per generation" in examine(history).summary
