"""A launcher that is a rank itself has the others as children: what they hold is told once, by them."""

from __future__ import annotations

from dataclasses import replace

from leakline.analysis import examine
from leakline.analysis.history import RunHistory
from leakline.analysis.results import Finding

from .builder import MIB, curve, history_of

GENERATIONS = 40


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
