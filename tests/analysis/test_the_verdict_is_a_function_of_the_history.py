"""Pure and deterministic: order of arrival, repeats and restarts change nothing, and the JSON is the contract's."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from builder import (
    EPISODE,
    EVALUATE,
    EVOLVE,
    MIB,
    TRAIN,
    Leak,
    Training,
    kept_environments,
    loss_graph,
    old_population,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.analysis import (
    books,
    examine,
    history_from_batches,
    store_fill,
    to_json,
    type_growth,
    verdict_json,
)

leaks = st.lists(
    st.sampled_from([kept_environments, loss_graph, old_population]), max_size=2, unique=True
)  # fmt: skip


@settings(max_examples=25)
@given(leaks, st.integers(1, 18), st.randoms(use_true_random=False))
def test_any_order_and_any_repeat_of_batches_gives_the_same_verdict(
    planted: list[type], generations: int, rng: random.Random
) -> None:
    first = Training(leaks=tuple(make() for make in planted), generations=generations)
    second = Training(generations=generations, instance="p2", rank=1, seed=9)
    batches = [*first.batches(), *second.batches()]
    shuffled = batches + rng.sample(batches, k=len(batches) // 2)
    rng.shuffle(shuffled)
    header = first.header()
    expected = examine(history_from_batches(header, batches))
    assert examine(history_from_batches(header, shuffled)) == expected


@settings(max_examples=15)
@given(leaks, st.integers(0, 60))
def test_every_prefix_has_a_verdict_and_always_the_same(planted: list[type], upto: int) -> None:
    training = Training(leaks=tuple(make() for make in planted), generations=10)
    batches = training.batches()
    snapshots = [s for batch in batches for s in batch.snapshots][:upto]
    prefix = [type(batches[0])(batches[0].process, tuple(snapshots))]
    history = history_from_batches(training.header(), prefix)
    assert examine(history) == examine(history_from_batches(training.header(), prefix))


@settings(max_examples=25)
@given(leaks, st.integers(0, 12), st.integers(0, 10_000))
def test_the_books_add_up(planted: list[type], generations: int, seed: int) -> None:
    history = Training(
        leaks=tuple(make() for make in planted), generations=generations, seed=seed
    ).history()
    result = books(history)
    for i, total in enumerate(result.total):
        assert sum(line.bytes[i] for line in result.lines) == total
    names = [line.name for line in result.lines]
    assert len(set(names)) == len(names)


def test_the_json_has_the_fields_of_the_contract() -> None:
    verdict = verdict_json(
        examine(Training(leaks=(kept_environments(),), limit_bytes=450 * MIB, total=40).history())
    )
    assert json.loads(json.dumps(verdict)) == verdict
    assert {
        "run", "unit", "generations", "status", "summary", "growth_bytes_per_generation", "explained_share",
        "findings", "ruled_out", "oom", "fixes", "effects", "bands", "budgets",
        "settled_at_generation", "forecast_score", "checklist", "processes", "duration", "attempts",
        "generations_passed",
    } == set(verdict)  # fmt: skip
    finding = verdict["findings"][0]
    assert {
        "fingerprint", "status", "kind", "phase", "phase_share", "suspects", "growth_bytes_per_generation",
        "started_at_generation", "confidence", "evidence", "advice",
    } <= set(finding)  # fmt: skip
    assert set(finding["suspects"][0]) == {
        "name",
        "role",
        "count_per_generation",
        "bytes_per_generation",
    }
    assert set(finding["growth_bytes_per_generation"]) == {"estimate", "low", "high"}
    assert set(verdict["oom"]) == {
        "risk", "limit_bytes", "limit_source", "generation", "at", "planned", "sentence",
    }  # fmt: skip
    assert set(verdict["oom"]["at"]) == {"estimate", "low", "high"}


def test_a_fingerprint_is_the_leaks_and_not_the_runs() -> None:
    def fingerprint(leak: Leak, **options: object) -> str:
        return examine(Training(leaks=(leak,), **options).history()).findings[0].fingerprint  # type: ignore[arg-type]

    one = fingerprint(kept_environments(), run="a", seed=1)
    assert one == fingerprint(kept_environments(), run="b", seed=7, generations=20)
    assert one == fingerprint(kept_environments(9 * MIB, start=3), run="c")
    assert one != fingerprint(old_population())
    assert one != fingerprint(loss_graph())


def test_a_leak_is_the_same_one_before_its_holder_is_found_after_it_and_where_it_never_is() -> None:
    """Else what was ignored would be told anew in each run, until that run has found who holds it."""
    leak = kept_environments()
    never = examine(Training(leaks=(replace(leak, holders=()),)).history()).findings[0]
    assert all(s.role != "holder" for s in never.suspects)
    early, late = (examine(Training(leaks=(leak,), generations=n).history()) for n in (3, 16))
    assert any(s.role == "holder" for s in late.findings[0].suspects)
    assert never.fingerprint == late.findings[0].fingerprint
    assert {f.fingerprint for f in early.findings} <= {never.fingerprint}
    elsewhere = tuple(replace(h, path="trainer.Cache.old[*]") for h in leak.holders)
    other = examine(Training(leaks=(replace(leak, holders=elsewhere),)).history()).findings[0]
    assert other.fingerprint == never.fingerprint


def test_what_grows_in_another_container_is_another_leak() -> None:
    def fingerprint(container: str) -> str:
        counts = {f"container.{container}.length": 384, f"container.{container}.bytes": 6 * MIB}
        finding = examine(Training(leaks=(Leak(TRAIN, 6 * MIB, counts),)).history()).findings[0]
        assert finding.suspects[0].name == container
        return finding.fingerprint

    assert fingerprint("train.losses") != fingerprint("train.rewards")


@pytest.mark.parametrize("phase", [EPISODE, EVALUATE, TRAIN, EVOLVE])
def test_the_phase_that_keeps_50_mib_ranks_first_whichever_it_is(phase: str) -> None:
    history = Training(leaks=(Leak(phase, 50 * MIB),), buffer_bytes=0).history()
    top = phase.partition("/")[0]
    lines = {line.name: sum(line.bytes) for line in books(history).lines}
    assert max(lines, key=lambda name: lines[name]) == phase
    assert examine(history).findings[0].phase == top


def test_ranks_that_leak_alike_are_one_finding_with_their_growth_added() -> None:
    ranks = [
        Training(leaks=(kept_environments(),), instance=f"p{r}", rank=r, seed=r + 1)
        for r in range(3)
    ]
    verdict = examine(
        history_from_batches(ranks[0].header(), [b for t in ranks for b in t.batches()])
    )
    active = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert len(active) == 1
    assert abs(active[0].growth_bytes_per_generation.estimate - 18 * MIB) < 2 * MIB
    assert active[0].process == "rank 0 main, rank 1 main, rank 2 main"


def test_a_resume_is_one_axis_and_memory_freed_by_the_crash_is_no_release() -> None:
    first = Training(leaks=(old_population(),), generations=9, instance="p1")
    second = Training(
        leaks=(old_population(),),
        generations=10,
        instance="p2",
        attempt=2,
        first_generation=8,
        seed=5,
    )
    history = history_from_batches(first.header(), [*second.batches(), *first.batches()])
    verdict = examine(history)
    assert verdict.generations == 18
    finding = verdict.findings[0]
    assert (finding.phase, finding.suspects[0].name) == (EVOLVE, "agents.DDPGAgent")
    assert abs(finding.growth_bytes_per_generation.estimate - 8 * MIB) < 2 * MIB


def test_tables_beside_the_verdict() -> None:
    history = Training(leaks=(kept_environments(),), generations=6, buffer_full_after=12).history()
    rows = type_growth(history)
    assert rows[0].name == "trading.TradingEnvironment"
    assert (rows[0].rating, rows[0].phase) == ("grows", EVALUATE)
    assert rows[0].holder == "trainer.Trainer.kept[*]"
    fill = store_fill(history)[0]
    assert (fill.name, fill.length, fill.capacity, fill.state) == (
        "replay",
        10_000,
        20_000,
        "filling",
    )
    assert fill.full_at_generation == 11
    assert abs(to_json(fill)["ceiling_bytes"] - 24 * MIB * 1.03) < 8


def test_the_forecast_names_limit_and_generation_and_is_quiet_without_growth() -> None:
    leaking = Training(leaks=(loss_graph(),), limit_bytes=600 * MIB, total=60).history()
    oom = examine(leaking).oom
    assert oom.risk != "none"
    assert oom.limit_source == "user"
    assert oom.generation is not None
    # 210 MiB at the start, 41 of warm-up, 24 of buffer, 9 per generation.
    true = (600 - 210 - 41 - 24) / 9
    assert abs(oom.generation.estimate - true) < 3
    assert oom.generation.low <= oom.generation.estimate <= oom.generation.high
    assert oom.at is not None
    assert oom.at.low <= oom.at.estimate <= oom.at.high
    quiet = examine(Training(limit_bytes=600 * MIB, total=60).history()).oom
    assert (quiet.risk, quiet.generation) == ("none", None)
    short = examine(Training(leaks=(loss_graph(),), limit_bytes=600 * MIB, total=20).history()).oom
    assert short.risk == "none"


def test_a_filling_buffer_can_run_out_of_memory_without_any_leak() -> None:
    history = Training(
        generations=10, buffer_full_after=20, buffer_bytes=600 * MIB, limit_bytes=700 * MIB
    ).history()
    verdict = examine(history)
    assert verdict.status == "filling"
    assert verdict.oom.risk != "none"


def test_a_budget_broken_by_a_phase_is_suspected() -> None:
    from dataclasses import replace

    from leakline.snapshot import Event

    leak = Leak(TRAIN, 40 * MIB, start=3)
    history = Training(leaks=(leak,), generations=5).history()
    assert examine(history).status != "suspected"
    event = Event(0, 0.0, "budget", TRAIN, data={"normal_bytes": 5 * MIB, "leak_bytes": 20 * MIB})
    verdict = examine(replace(history, events=(*history.events, event)))
    assert verdict.status == "suspected"
    assert verdict.findings[0].phase == TRAIN
