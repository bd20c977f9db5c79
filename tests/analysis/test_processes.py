"""The verdict tells the growth of each process beside that of the run, and which of them its findings name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import EVALUATE, MIB, Leak, Training, history_of, kept_environments

from leakline.analysis import RunHistory, examine, history_from_batches
from leakline.analysis.findings.growth_tables import _weight, measured, of_how_many, process_growth
from leakline.analysis.results import Interval, ProcessGrowth
from leakline.analysis.statistics.trend import Slope


def ranks(*leaking: bool) -> RunHistory:
    each = [
        Training(
            leaks=(kept_environments(),) if leaks else (), generations=24, instance=f"p{rank}", rank=rank, seed=rank + 1
        )
        for rank, leaks in enumerate(leaking)
    ]  # fmt: skip
    return history_from_batches(each[0].header(), [b for one in each for b in one.batches()])


def told(history: RunHistory) -> dict[str, ProcessGrowth]:
    return {each.process: each for each in examine(history).processes}


def test_growth_that_cannot_be_told_is_not_zero() -> None:
    assert told(RunHistory("empty")) == {}
    (one,) = told(Training(generations=1).history()).values()
    assert one.growth_bytes_per_generation is None
    # Another rank that reads no memory: it has joined, and that is all.
    history = ranks(True)
    blind = replace(history.processes[0], instance="p1", rank=1, series={})
    found = told(replace(history, processes=(*history.processes, blind)))
    assert found["rank 0 main"].growth_bytes_per_generation is not None
    assert found["rank 1 main"] == ProcessGrowth("rank 1 main", "p1", None)


def test_of_healthy_ranks_none_is_named() -> None:
    found = told(ranks(False, False))
    assert [each.findings for each in found.values()] == [(), ()]
    for each in found.values():
        growth = each.growth_bytes_per_generation
        assert growth is not None
        assert growth.low <= 0 <= growth.high


def test_the_rank_that_leaks_is_named_and_the_run_grows_by_the_sum() -> None:
    verdict = examine(ranks(False, True))
    healthy, leaking = verdict.processes
    named = tuple(f.fingerprint for f in verdict.findings if f.process == "rank 1 main")
    assert (healthy.process, healthy.findings) == ("rank 0 main", ())
    assert (leaking.process, leaking.findings) == ("rank 1 main", named)
    for end in ("estimate", "low", "high"):
        parts = [getattr(each.growth_bytes_per_generation, end) for each in verdict.processes]
        assert getattr(verdict.growth_bytes_per_generation, end) == pytest.approx(sum(parts))
    assert leaking.growth_bytes_per_generation is not None
    assert leaking.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.3)


def test_ranks_that_leak_alike_are_both_named_by_their_one_finding() -> None:
    verdict = examine(ranks(True, True))
    (finding,) = [f for f in verdict.findings if f.status == "confirmed"]
    assert [each.findings for each in verdict.processes] == [(finding.fingerprint,)] * 2


def test_the_sentence_names_the_ranks_that_leak_and_of_many_the_first() -> None:
    assert examine(ranks(False, True)).summary.endswith(" (rank 1 main)")
    both = examine(ranks(True, True)).summary
    assert both.endswith(" (rank 0 main and rank 1 main together)")
    assert examine(ranks(*6 * [True])).summary.endswith("rank 3 main and 2 more together)")
    assert "rank" not in examine(ranks(True)).summary


def test_the_numbers_of_several_ranks_are_sums_and_evidence_says_whose_it_is() -> None:
    alone, both = (
        next(f for f in examine(ranks(first, True)).findings if f.status == "confirmed")
        for first in (False, True)
    )
    assert [f.suspects[0].count_per_generation for f in (alone, both)] == [16, 32]
    growth = both.growth_bytes_per_generation.estimate
    assert both.suspects[0].bytes_per_generation == pytest.approx(growth, abs=0.1)
    assert not any("rank" in line for line in alone.evidence)
    assert {line.split(":")[0] for line in both.evidence} <= {"rank 0 main", "rank 1 main"}


def test_a_rank_that_hardly_grows_is_not_named_beside_one_that_leaks() -> None:
    large = Training(
        leaks=(replace(kept_environments(), holders=()),), generations=24, instance="p1", rank=1, seed=2,
    )  # fmt: skip
    leak = Leak(EVALUATE, 0.01 * MIB, {"trading.TradingEnvironment": 16})
    small = replace(large, leaks=(leak,), instance="p0", rank=0, seed=1, noise=0.0)
    verdict = examine(history_from_batches(small.header(), [*small.batches(), *large.batches()]))
    (finding,) = [f for f in verdict.findings if f.status == "confirmed"]
    assert finding.process == "rank 1 main"
    assert finding.suspects[0].count_per_generation == 16
    assert [each.findings for each in verdict.processes] == [(), (finding.fingerprint,)]


def test_the_attempts_of_a_rank_are_told_once_with_the_newest_process() -> None:
    first = Training(leaks=(kept_environments(),), generations=12, instance="a")
    second = replace(first, instance="b", attempt=2, first_generation=12)
    history = history_from_batches(first.header(), [*first.batches(), *second.batches()])
    (one,) = told(history).values()
    assert one.instance == "b"
    assert one.findings


def of_place(growth: float | None, *findings: str) -> ProcessGrowth:
    return ProcessGrowth("p", "i", None if growth is None else Interval(growth, 0, 0), findings)


def test_processes_that_a_finding_names_go_first_and_then_those_that_grow_most() -> None:
    order = [of_place(-5, "f"), of_place(9), of_place(0), of_place(-3), of_place(None)]
    mixed = [order[i] for i in (4, 2, 0, 3, 1)]
    assert sorted(mixed, key=_weight) == order


@pytest.mark.parametrize(("points", "known"), [(0, False), (1, False), (2, True)])
def test_two_readings_make_a_rate(points: int, known: bool) -> None:
    assert (measured(Slope(5, 4, 6, points)) == Interval(5, 4, 6)) is known


def test_processes_that_were_not_read_are_told() -> None:
    one = history_of([1.0])
    assert of_how_many(one) == ""
    left = replace(one, processes=one.processes * 2, processes_left_out=1_000)
    assert of_how_many(left) == " (of the 2 largest processes; 1,000 more are not studied)"


@pytest.mark.parametrize(("places", "told"), [(1_024, 1_024), (1_025, 1_024)])
def test_as_many_places_are_told_in_their_order(places: int, told: int) -> None:
    """Of more the one that grows least is left out."""
    timelines = [SimpleNamespace(name=f"rank {i} main", instance=f"p{i}") for i in range(places)]
    growths = [SimpleNamespace(growth=Slope(9.0 * (i != 3), 0, 9, 9)) for i in range(places)]
    moments = [
        (SimpleNamespace(timeline=timeline), growth, ())
        for timeline, growth in zip(timelines, growths, strict=True)
    ]
    found = process_growth(cast(Any, timelines), cast(Any, moments), ())
    names = [
        timeline.name for timeline in timelines if places == told or timeline.name != "rank 3 main"
    ]
    assert [each.process for each in found] == names
