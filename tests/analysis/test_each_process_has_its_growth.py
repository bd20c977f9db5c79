"""The verdict tells the growth of each process beside that of the run, and which of them its findings name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakline.analysis import examine, history_from_batches
from leakline.analysis.history import RunHistory
from leakline.analysis.processes import MAX_PROCESSES, process_growth
from leakline.analysis.results import ProcessGrowth
from leakline.analysis.series import lanes_of

from .builder import EVALUATE, MIB, Leak, Training, history_of, kept_environments

GENERATIONS = 24


def ranks(*leaking: bool) -> RunHistory:
    each = [
        Training(
            leaks=(kept_environments(),) if leaks else (), generations=GENERATIONS,
            instance=f"p{rank}", rank=rank, seed=rank + 1,
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
    history = ranks(False, True)
    verdict = examine(history)
    healthy, leaking = verdict.processes
    assert (healthy.process, leaking.process) == ("rank 0 main", "rank 1 main")
    assert healthy.findings == ()
    assert leaking.findings == tuple(
        f.fingerprint for f in verdict.findings if f.process == "rank 1 main"
    )
    assert verdict.growth_bytes_per_generation is not None
    for end in ("estimate", "low", "high"):
        assert getattr(verdict.growth_bytes_per_generation, end) == pytest.approx(
            sum(getattr(each.growth_bytes_per_generation, end) for each in verdict.processes)
        )
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
    (alone,) = [f for f in examine(ranks(False, True)).findings if f.status == "confirmed"]
    (finding,) = [f for f in examine(ranks(True, True)).findings if f.status == "confirmed"]
    assert (alone.suspects[0].count_per_generation, finding.suspects[0].count_per_generation) == (
        16,
        32,
    )
    assert finding.suspects[0].bytes_per_generation == pytest.approx(
        finding.growth_bytes_per_generation.estimate, abs=0.1
    )
    assert not any("rank" in line for line in alone.evidence)
    assert {line.split(":")[0] for line in finding.evidence} <= {"rank 0 main", "rank 1 main"}


def test_a_rank_that_hardly_grows_is_not_named_beside_one_that_leaks() -> None:
    small = Training(
        leaks=(Leak(EVALUATE, 0.01 * MIB, {"trading.TradingEnvironment": 16}),),
        generations=GENERATIONS, instance="p0", rank=0, seed=1, noise=0.0,
    )  # fmt: skip
    large = Training(
        leaks=(replace(kept_environments(), holders=()),),
        generations=GENERATIONS,
        instance="p1",
        rank=1,
        seed=2,
    )
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


def test_of_very_many_places_those_that_grow_most_are_told() -> None:
    flat = history_of([100.0 * MIB] * 6)
    many = replace(
        flat,
        processes=tuple(
            replace(flat.processes[0], instance=f"p{rank}", rank=rank)
            for rank in range(MAX_PROCESSES + 1)
        ),
    )
    found = process_growth(lanes_of(many), (), ())
    assert len(found) == MAX_PROCESSES
    # In the order of the ranks, whatever was left out.
    assert [each.process for each in found[:2]] == ["rank 0 main", "rank 1 main"]
