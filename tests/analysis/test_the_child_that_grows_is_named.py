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


def test_what_has_no_name_of_its_own_is_other_and_is_no_child_told_one_by_one() -> None:
    finding = finding_of(actor=0, other=8)
    assert finding is not None
    assert names(finding) == [("process", "other")]
    assert any(line.startswith("Of 1 child told one by one") for line in finding.evidence)


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
