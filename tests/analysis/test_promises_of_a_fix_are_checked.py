"""What a fix promised is measured on the run that contains it, claim by claim, and never said on too little."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builder import (
    EPISODE,
    EVALUATE,
    EVOLVE,
    GIB,
    MIB,
    TRAIN,
    Leak,
    Training,
    episode_history,
    kept_environments,
    loss_graph,
    old_population,
)

from leakline.analysis import RunHistory, compare, examine, history_from_batches, verdict_json
from leakline.analysis.results import Interval, PromiseCheck
from leakline.snapshot import Event

GB = 10**9
GROWTH, IN_PHASE = "growth_bytes_per_generation", "phase_growth_bytes_per_generation"
JUMP = "max_jump_bytes_per_generation"

# Report 002: "about 500 MB per generation, peak 30-40 GB, GPU under 20 GB, all 25 generations", after detaching
# the losses in train_population. Report 001 adds "no 20-30 GB jumps" and 17 agents.
OF_REPORT_002 = {
    GROWTH: 500 * MIB, "peak_bytes": 40 * GIB, JUMP: 20 * GB, "gpu_peak_bytes": 20 * GB, "generations": 25,
    "count:DDPGAgent": 17,
}  # fmt: skip
# Report 001's table: GB per generation of histories, environments and old populations.
OF_REPORT_001 = (17.5, 6.5, 2.5)
AT_THE_CRASH = 175 * GB


def with_fix(
    history: RunHistory, promises: dict[str, Any], phase: str | None = TRAIN, *, at: float = 0.0,
    name: str = "detach losses",
) -> RunHistory:  # fmt: skip
    data = {"phase": phase, "location": "training/erl_trainer.py:281", "promises": promises}
    return replace(history, events=(*history.events, Event(0, at, "fix", name, data=data)))


def checked(history: RunHistory) -> dict[str, PromiseCheck]:
    return {check.claim: check for check in examine(history).fixes}


def crashed_at_13(scale: float) -> RunHistory:
    """Report 001's run: 13 generations of 25, the buffer at 6,960 of 10,000, so never a training phase."""
    histories, environments, populations = (scale * gb * GB for gb in OF_REPORT_001)
    leaks = (
        episode_history(histories),
        kept_environments(environments),
        old_population(populations),
    )
    run = Training(
        generations=13, total=25, leaks=leaks, never=(TRAIN,), resident=8.5 * GB, noise=50 * MIB,
        buffer_bytes=0.5 * GB, buffer_capacity=10_000, buffer_full_after=19,
    )  # fmt: skip
    return replace(run.history(), ended=True)


# As the crash says (175 GB after 13 generations), and as the table says.
@pytest.mark.parametrize(
    "scale", [(AT_THE_CRASH - 8.5 * GB) / 13 / sum(OF_REPORT_001) / GB, 1.0], ids=["crash", "table"]
)
def test_what_report_002_promised_is_refuted_by_the_run_of_report_001(scale: float) -> None:
    found = checked(with_fix(crashed_at_13(scale), OF_REPORT_002))
    growth = found[GROWTH]
    assert growth.outcome == "refuted"
    assert growth.measured is not None
    # The scale of report 001, and not near what was promised even at the low end.
    assert growth.measured.estimate == pytest.approx(scale * sum(OF_REPORT_001) * GB, rel=0.02)
    assert growth.measured.low > 20 * OF_REPORT_002[GROWTH]
    assert "times the 500.00 MiB promised" in growth.sentence
    assert found[IN_PHASE].outcome == "undecided"
    assert found[IN_PHASE].measured is None
    assert found[IN_PHASE].sentence == f"{TRAIN} never ran: the claim was never tested."
    assert found["peak_bytes"].outcome == "refuted"
    assert found["generations"].sentence == "The run ended after 13 generations; 25 were promised."
    assert found["generations"].outcome == "refuted"
    assert found["count:DDPGAgent"].outcome == "refuted"
    assert found["gpu_peak_bytes"].outcome == "undecided"
    assert found[JUMP].outcome == ("refuted" if scale == 1.0 else "held")
    assert all(check.location == "training/erl_trainer.py:281" for check in found.values())


def test_the_verdict_says_where_it_leaks_beside_the_phase_that_was_blamed() -> None:
    verdict = examine(with_fix(crashed_at_13(0.5), OF_REPORT_002))
    assert verdict.findings[0].phase == EVALUATE
    assert (TRAIN, "never ran") in {(r.phase, r.reason) for r in verdict.ruled_out}


@pytest.mark.parametrize("seed", range(6))
def test_a_fix_that_works_keeps_its_promises(seed: int) -> None:
    promises = {
        GROWTH: 4 * MIB, "peak_bytes": 1 * GIB, JUMP: 64 * MIB, "generations": 16, "count:DDPGAgent": 17,
        "count:trading.TradingEnvironment": 2,
    }  # fmt: skip
    history = replace(Training(seed=seed).history(), ended=True)
    found = checked(with_fix(history, promises))
    assert {claim: check.outcome for claim, check in found.items()} == dict.fromkeys(
        [*promises, IN_PHASE], "held"
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_fix_of_the_wrong_phase_holds_there_and_is_refuted_for_the_run(seed: int) -> None:
    history = Training(leaks=(kept_environments(9 * MIB),), seed=seed).history()
    found = checked(with_fix(history, {GROWTH: 4 * MIB}))
    assert found[GROWTH].outcome == "refuted"
    assert found[IN_PHASE].outcome == "held"
    assert found[IN_PHASE].sentence.startswith(TRAIN)


def test_a_fix_that_left_the_phase_as_it_was_is_refuted_there() -> None:
    history = Training(leaks=(loss_graph(9 * MIB),)).history()
    found = checked(with_fix(history, {GROWTH: 100 * MIB, IN_PHASE: 2 * MIB}))
    assert found[GROWTH].outcome == "held"
    assert found[IN_PHASE].outcome == "refuted"


def test_a_nested_phase_is_measured_by_its_own_name() -> None:
    history = Training(leaks=(episode_history(9 * MIB),), buffer_bytes=0).history()
    for phase in (EPISODE, "run_episode"):
        found = checked(with_fix(history, {IN_PHASE: 2 * MIB}, phase))
        assert found[IN_PHASE].outcome == "refuted"


def test_what_one_phase_takes_and_another_gives_back_is_no_growth() -> None:
    lent = (Leak(TRAIN, 20 * MIB), Leak(EVOLVE, -20 * MIB))
    found = checked(with_fix(Training(leaks=lent).history(), {IN_PHASE: 5 * MIB}))
    assert found[IN_PHASE].outcome == "held", found[IN_PHASE].sentence


@pytest.mark.parametrize("generations", range(5))
def test_growth_is_not_told_from_a_few_generations(generations: int) -> None:
    leak = (kept_environments(100 * MIB),)
    found = checked(
        with_fix(Training(generations=generations, leaks=leak).history(), {GROWTH: MIB})
    )
    assert found[GROWTH].outcome == "undecided"
    assert found[GROWTH].measured is None
    assert found[IN_PHASE].outcome == "undecided"


def test_a_run_that_has_not_begun_says_so_of_everything() -> None:
    found = checked(with_fix(RunHistory("r"), OF_REPORT_002))
    assert set(found) == {*OF_REPORT_002, IN_PHASE}
    assert {check.outcome for check in found.values()} == {"undecided"}


@pytest.mark.parametrize("seed", range(20))
def test_a_promise_near_what_is_measured_is_not_refuted(seed: int) -> None:
    history = Training(
        leaks=(kept_environments(6 * MIB),), noise=6 * MIB, generations=9, seed=seed
    ).history()
    found = checked(with_fix(history, {GROWTH: 6 * MIB}, None))
    assert found[GROWTH].outcome != "refuted", found[GROWTH].sentence


def test_an_interval_around_the_promise_decides_nothing() -> None:
    history = Training(leaks=(kept_environments(6 * MIB),), noise=8 * MIB, generations=7).history()
    check = checked(with_fix(history, {GROWTH: 6 * MIB}, None))[GROWTH]
    assert check.measured is not None
    assert check.measured.low < 6 * MIB < check.measured.high
    assert check.outcome == "undecided"
    assert "too wide to tell" in check.sentence


@pytest.mark.parametrize("seed", range(6))
def test_no_growth_at_all_is_promised_of_what_matters(seed: int) -> None:
    # 0.1 MiB per generation of 300 MiB: the verdict does not mind, and a promise of zero is no finer than it.
    creep = Leak(EVOLVE, 0.1 * MIB, {})
    kept = Training(seed=seed, leaks=(creep,), generations=24, noise=0.3 * MIB)
    assert checked(with_fix(kept.history(), {GROWTH: 0}, None))[GROWTH].outcome == "held"
    leaking = Training(leaks=(kept_environments(),), seed=seed)
    assert checked(with_fix(leaking.history(), {GROWTH: 0}, None))[GROWTH].outcome == "refuted"


def test_generations_are_held_once_reached_and_refuted_once_the_run_ended_earlier() -> None:
    history = with_fix(Training(generations=7, total=25).history(), {"generations": 7})
    assert checked(history)["generations"].outcome == "held"
    going_on = with_fix(Training(generations=7).history(), {"generations": 25})
    assert checked(going_on)["generations"].outcome == "undecided"
    assert checked(replace(going_on, ended=True))["generations"].outcome == "refuted"


def test_a_run_that_carries_on_from_a_checkpoint_has_those_generations_behind_it() -> None:
    carried_on = Training(generations=13, first_generation=12)
    found = checked(with_fix(carried_on.history(), {"generations": 25}))
    assert found["generations"].outcome == "held"


def test_a_maximum_is_refuted_at_once_and_held_only_after_some_generations() -> None:
    short = Training(generations=2).history()
    assert checked(with_fix(short, {"peak_bytes": 100 * MIB}))["peak_bytes"].outcome == "refuted"
    kept = with_fix(short, {"peak_bytes": GIB})
    assert checked(kept)["peak_bytes"].outcome == "undecided"
    assert checked(replace(kept, ended=True))["peak_bytes"].outcome == "held"
    found = checked(with_fix(Training(generations=6).history(), {"peak_bytes": GIB}))
    assert found["peak_bytes"].outcome == "held"
    assert found["peak_bytes"].sentence.startswith("So far ")


def test_one_jump_refutes_what_the_growth_does_not_show() -> None:
    jump = Leak(EVALUATE, 200 * MIB, start=9, stop=10)
    history = Training(leaks=(jump,)).history()
    found = checked(with_fix(history, {GROWTH: 20 * MIB, JUMP: 100 * MIB}))
    assert found[GROWTH].outcome != "refuted"
    assert found[JUMP].outcome == "refuted"
    assert "from generation 8 to 9" in found[JUMP].sentence


def _numbered(number: Any, generations: int = 8) -> RunHistory:
    """Generations under other numbers, as steps and runs that lost some have them."""
    history = Training(generations=generations, leaks=(Leak(EVALUATE, 50 * MIB),)).history()
    (process,) = history.processes
    named = [None if g is None else number(g) for g in process.generation]
    return replace(history, processes=(replace(process, generation=named),))


def test_steps_of_a_thousand_are_one_generation_each() -> None:
    found = checked(with_fix(_numbered(lambda g: 1000 * g), {"generations": 25, JUMP: 200 * MIB}))
    assert found["generations"].measured is not None
    assert found["generations"].measured.estimate == 8
    assert found["generations"].outcome == "undecided"
    assert found[JUMP].outcome == "held"


def test_a_generation_whose_snapshots_were_lost_is_complete_all_the_same() -> None:
    resumed = _numbered(lambda g: 60 + g if g < 15 else 61 + g, generations=39)
    found = checked(with_fix(resumed, {"generations": 100}))
    assert (found["generations"].outcome, found["generations"].measured) == (
        "held", Interval(100, 100, 100),
    )  # fmt: skip


POSSIBLE = "possible_generations"


def _possible(promised: int, limit: float | None, *leaks: Leak, **options: Any) -> PromiseCheck:
    """What comes of the promise in a run of 300 MiB; ``limit``: bytes it may have."""
    run = Training(leaks=leaks, limit_bytes=None if limit is None else round(limit), **options)
    return checked(with_fix(run.history(), {POSSIBLE: promised}))[POSSIBLE]


# Report 002: "more than 100 possible".
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("limit", "outcome"), [(1_000, "refuted"), (1_600, "held")])
def test_generations_that_memory_allows_are_held_and_refuted(
    limit: int, outcome: str, seed: int
) -> None:
    check = _possible(100, limit * MIB, kept_environments(9 * MIB), seed=seed)
    assert check.outcome == outcome, check.sentence
    assert check.measured is not None
    assert check.measured.low <= check.measured.estimate <= check.measured.high
    # Of 300 MiB resident 90 are files; then what warms up and the buffer.
    room = limit - (300 - 90) - (30 + 8 + 3) - 24
    assert check.measured.estimate == pytest.approx(room / 9, rel=0.05)
    assert "which leaves room for" in check.sentence
    assert check.sentence.endswith("100 were promised.")


def test_generations_that_memory_may_or_may_not_allow_are_undecided() -> None:
    told = _possible(100, 1_200 * MIB, kept_environments(9 * MIB), noise=8 * MIB)
    assert told.measured is not None
    between = round((told.measured.low + told.measured.high) / 2)
    check = _possible(between, 1_200 * MIB, kept_environments(9 * MIB), noise=8 * MIB)
    assert (check.outcome, check.measured) == ("undecided", told.measured)
    assert "too wide to tell" in check.sentence
    # Both ends count as promised and kept, or not.
    for promised, outcome in ((told.measured.low, "held"), (told.measured.high + 1, "refuted")):
        check = _possible(round(promised), 1_200 * MIB, kept_environments(9 * MIB), noise=8 * MIB)
        assert check.outcome == outcome, check.sentence


def test_without_a_limit_only_generations_that_are_complete_tell_what_is_possible() -> None:
    check = _possible(100, None, kept_environments(9 * MIB))
    assert (check.outcome, check.measured) == ("undecided", None)
    assert check.sentence.startswith("No limit of memory is known")
    assert _possible(16, None, kept_environments(9 * MIB)).outcome == "held"
    early = _possible(100, GIB, kept_environments(9 * MIB), generations=4)
    assert (early.outcome, early.measured) == ("undecided", None)


@pytest.mark.parametrize("seed", range(6))
def test_memory_that_never_runs_out_has_no_number_and_the_verdict_is_json(seed: int) -> None:
    history = with_fix(Training(limit_bytes=2 * GIB, seed=seed).history(), {POSSIBLE: 100})
    check = checked(history)[POSSIBLE]
    assert (check.outcome, check.measured) == ("held", None), check.sentence
    (row,) = json.loads(json.dumps(verdict_json(examine(history)), allow_nan=False))["fixes"]
    assert (row["claim"], row["measured"]) == (POSSIBLE, None)


def test_a_buffer_that_still_fills_and_children_that_grow_take_of_what_is_possible() -> None:
    filling = {"buffer_bytes": 400 * MIB, "buffer_full_after": 100, "generations": 12}
    room = _possible(100, 900 * MIB, kept_environments(3 * MIB), generations=12).measured
    less = _possible(100, 900 * MIB, kept_environments(3 * MIB), **filling).measured
    assert room is not None and less is not None
    assert less.high < room.low
    history = Training(limit_bytes=2 * GIB).history()
    (process,) = history.processes
    grown = [None if g is None else 50 * MIB * (g + 1) for g in process.generation]
    series = {**process.series, "children.uss_bytes": grown}
    history = replace(history, processes=(replace(process, series=series),))
    check = checked(with_fix(history, {POSSIBLE: 100}))[POSSIBLE]
    assert check.outcome == "refuted", check.sentence
    assert check.measured is not None
    assert check.measured.estimate == pytest.approx((2048 - 275) / 50, rel=0.05)


def test_steps_of_a_thousand_are_each_one_that_memory_allows() -> None:
    steps, ones = _numbered(lambda g: 1000 * g), _numbered(lambda g: g)
    (a, b) = (
        checked(with_fix(replace(run, limit_bytes=2 * GIB), {POSSIBLE: 100}))[POSSIBLE].measured
        for run in (steps, ones)
    )
    assert a is not None and b is not None
    assert a.estimate == pytest.approx(b.estimate, abs=1)


def test_a_fix_that_came_with_a_resume_allows_what_its_own_growth_does() -> None:
    resumed = min(_resumed().processes[1].time)
    history = replace(_resumed(), limit_bytes=2 * GIB)
    with_it = checked(with_fix(history, {POSSIBLE: 100}, at=resumed))[POSSIBLE]
    assert with_it.outcome == "held", with_it.sentence


def test_the_rise_over_a_lost_generation_is_no_jump() -> None:
    history = _numbered(lambda g: g if g < 4 else g + 1)
    process = history.processes[0]
    series = {**process.series}
    series["process.anon_bytes"] = [
        value if generation is None or generation < 4 or value is None else value + 50 * MIB
        for value, generation in zip(series["process.anon_bytes"], process.generation, strict=True)
    ]
    history = replace(history, processes=(replace(process, series=series),))
    check = checked(with_fix(history, {JUMP: 99 * MIB}))[JUMP]
    assert check.outcome == "held", check.sentence


def test_gpu_memory_is_that_of_the_fullest_device() -> None:
    read = {f"{name}_bytes": GIB for name in ("gpu.0.process", "cuda.0.reserved")}
    read["gpu.1.process_bytes"] = 3 * GIB
    history = Training(generations=6).history()
    (process,) = history.processes
    series = {**process.series, **{name: [size] * len(process) for name, size in read.items()}}
    history = replace(history, processes=(replace(process, series=series),))
    for promised, outcome in ((2 * GIB, "refuted"), (4 * GIB, "held")):
        check = checked(with_fix(history, {"gpu_peak_bytes": promised}))["gpu_peak_bytes"]
        assert check.outcome == outcome
        assert check.measured is not None
        assert check.measured.estimate == 3 * GIB


def test_a_surplus_that_a_collection_may_still_free_is_not_refuted_yet() -> None:
    once = Leak(EVALUATE, 0, {"trading.TradingEnvironment": 16}, start=6)
    history = Training(generations=7, leaks=(once,)).history()
    promised = {"count:TradingEnvironment": 2}
    check = checked(with_fix(history, promised))["count:TradingEnvironment"]
    assert check.outcome == "undecided"
    again = Training(generations=8, leaks=(once,)).history()
    assert checked(with_fix(again, promised))["count:TradingEnvironment"].outcome == "refuted"


def test_a_class_that_nobody_counted_is_not_testable() -> None:
    check = checked(with_fix(Training().history(), {"count:app.Nobody": 0}))["count:app.Nobody"]
    assert (check.outcome, check.measured) == ("undecided", None)


def test_ranks_are_added_up_and_counted_each() -> None:
    ranks = [
        Training(leaks=(kept_environments(),), instance=f"p{r}", rank=r, seed=r + 1)
        for r in range(3)
    ]
    history = history_from_batches(ranks[0].header(), [b for t in ranks for b in t.batches()])
    found = checked(with_fix(history, {GROWTH: MIB, "peak_bytes": GIB, "count:DDPGAgent": 17}))
    growth, peak = found[GROWTH].measured, found["peak_bytes"].measured
    assert growth is not None and peak is not None
    assert growth.estimate == pytest.approx(18 * MIB, rel=0.1)
    assert peak.estimate > 3 * 300 * MIB
    assert found["count:DDPGAgent"].outcome == "held"


def _resumed() -> RunHistory:
    """Nine leaking generations, a crash, and a second attempt without the leak."""
    first = Training(leaks=(kept_environments(30 * MIB),), generations=9, instance="p1")
    second = Training(generations=12, instance="p2", attempt=2, first_generation=8, seed=5)
    return history_from_batches(first.header(), [*first.batches(), *second.batches()])


def test_a_fix_that_came_with_a_resume_is_judged_from_there() -> None:
    promises = {GROWTH: 4 * MIB, "peak_bytes": 450 * MIB, "count:TradingEnvironment": 2}
    resumed = min(_resumed().processes[1].time)
    found = checked(with_fix(_resumed(), promises, EVALUATE, at=resumed))
    assert {check.outcome for check in found.values()} == {"held"}, found
    # Declared in the first attempt it would have to answer for that one, too.
    found = checked(with_fix(_resumed(), promises, EVALUATE))
    assert found["peak_bytes"].outcome == "refuted"
    assert found["count:TradingEnvironment"].outcome == "refuted"


def test_a_resume_that_declares_the_same_again_changes_nothing_and_a_new_promise_replaces() -> None:
    resumed = min(_resumed().processes[1].time)
    first = with_fix(_resumed(), {"peak_bytes": 450 * MIB})
    twice = with_fix(first, {"peak_bytes": 450 * MIB}, at=resumed)
    (check,) = examine(twice).fixes
    assert check.outcome == "refuted"
    other = with_fix(
        with_fix(_resumed(), {"peak_bytes": GIB}), {"peak_bytes": 450 * MIB}, at=resumed
    )
    (check,) = examine(other).fixes
    assert (check.promised, check.outcome) == (450 * MIB, "held")


def test_several_fixes_are_told_apart() -> None:
    history = with_fix(Training().history(), {"generations": 16}, name="one")
    fixes = examine(with_fix(history, {"generations": 99}, name="two")).fixes
    assert [(check.fix, check.outcome) for check in fixes] == [
        ("one", "held"),
        ("two", "undecided"),
    ]


@pytest.mark.parametrize(
    "promises", [{"grows": 5}, {GROWTH: "a lot"}, {"peak_bytes": None}, {"generations": True},
                 {"peak_bytes": -1}, {GROWTH: [1]}, {IN_PHASE: 5}, "nothing", None]
)  # fmt: skip
def test_a_promise_that_another_sender_made_up_is_not_testable_and_breaks_nothing(
    promises: Any,
) -> None:
    history = Training(generations=6).history()
    verdict = examine(with_fix(history, promises, None))
    assert replace(verdict, fixes=(), effects=()) == examine(history)
    assert {check.outcome for check in verdict.fixes} <= {"undecided"}


def test_the_rows_are_those_of_the_json_and_of_the_comparison() -> None:
    after = with_fix(Training(run="after").history(), {GROWTH: 2 * MIB, "generations": 16})
    (row, *_) = verdict_json(examine(after))["fixes"]
    assert set(row) == {
        "fix", "phase", "location", "claim", "promised", "measured", "outcome", "sentence",
    }  # fmt: skip
    assert set(row["measured"]) == {"estimate", "low", "high"}
    before = with_fix(Training(leaks=(loss_graph(),)).history(), {"generations": 99})
    assert compare(before, after).fixes == examine(after).fixes


def test_a_promise_is_not_broken_by_what_a_declared_buffer_may_hold() -> None:
    # 20 MiB in each generation, all of it within the declared capacity.
    filling = Training(buffer_bytes=600 * MIB, buffer_full_after=30)
    found = checked(with_fix(filling.history(), {GROWTH: 5 * MIB}, EVALUATE))
    assert (found[GROWTH].outcome, found[IN_PHASE].outcome) == ("held", "held"), found
    undeclared = Training(buffer_bytes=600 * MIB, buffer_full_after=30, declare_buffer=False)
    found = checked(with_fix(undeclared.history(), {GROWTH: 5 * MIB}, EVALUATE))
    assert (found[GROWTH].outcome, found[IN_PHASE].outcome) == ("refuted", "refuted"), found
