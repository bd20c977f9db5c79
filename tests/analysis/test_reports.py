"""Reports replayed as series with the values they give: the scenarios of report 004, and rows of numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import builder
import pytest
from builder import (
    EVALUATE,
    EVOLVE,
    GB,
    GIB,
    MIB,
    TRAIN,
    Leak,
    Training,
    history_of,
    kept_environments,
)
from pieces import steps_history

from leakline.analysis import (
    RunHistory,
    check_counts,
    compare,
    container_fill,
    examine,
    history_from_batches,
)
from leakline.analysis.findings.verdict_summary import Priorities, one_worse, priority
from leakline.analysis.results import SEVERITY
from leakline.report.report_data import trend
from leakline.snapshot import Batch, Event, Holder, ProcessIdentity, RunHeader, Snapshot

Row = tuple[int, str, float, dict[str, float]]


def expected(name: str, low: int, high: int, after: str | None = None) -> Event:
    return Event(0, 0.0, "expect", name, data={"low": low, "high": high, "after": after})


DECLARED = (expected("TradingEnvironment", 2, 2), expected("DDPGAgent", 16, 17))


def replay(
    rows: list[Row], *declared: Event, capacity: int | None = None, split: bool = False
) -> RunHistory:
    """Return the report's lines as snapshots: (generation, phase, RSS in GB, counts)."""
    events = declared or DECLARED
    if capacity is not None:
        events = (*events, Event(0, 0.0, "track", "replay", data={"capacity": capacity}))
    snapshots = []
    for i, (generation, phase, rss, counts) in enumerate(rows):
        samples: dict[str, float] = {"process.rss_bytes": round(rss * GB)}
        if split:
            samples["process.anon_bytes"] = round((rss - 0.3) * GB)
        for name, value in counts.items():
            is_series = name.startswith(("tensors.", "tracked."))
            samples[name if is_series else f"type.{name}.count"] = value
        snapshots.append(
            Snapshot(
                i, 100.0 + 60 * i, 60.0 * i, generation, phase, f"Gen {generation}: After {phase}",
                "phase_end", samples, events if i == 0 else (),
            )
        )  # fmt: skip
    header = RunHeader("004", "p", "004", "generation", 25, 0.0, (EVALUATE, TRAIN, EVOLVE))
    return history_from_batches(header, [Batch(ProcessIdentity("a"), tuple(snapshots))])


SCENARIO_4 = (8.52, 10.23, 11.89, 13.45, 14.23, 14.89, 15.12)


@pytest.mark.parametrize("environments", [(2, 18, 34), (18, 34, 50), (2, 18, 18)])
def test_scenario_1_blames_the_environments_of_evaluate_population(
    environments: tuple[int, ...],
) -> None:
    rows: list[Row] = [
        (g, EVALUATE, rss, {"TradingEnvironment": n, "DDPGAgent": 16})
        for g, rss, n in zip((1, 2, 3), (8.52, 15.34, 22.67), environments, strict=True)
    ]
    verdict = examine(replay(rows))
    assert SEVERITY.index(verdict.status) >= SEVERITY.index("suspected")
    finding = verdict.findings[0]
    assert (finding.phase, finding.kind) == (EVALUATE, "objects")
    assert finding.suspects[0].name == "TradingEnvironment"
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(7.075 * GB, rel=0.05)
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate in (1, 2)
    assert "TradingEnvironment" in verdict.summary
    assert "evaluate_population" in verdict.summary
    assert finding.priority == "critical"
    assert finding.advice == (
        "Reuse one TradingEnvironment, or drop the last reference to it at the end of the phase.",
    )


def test_scenario_1_fires_on_the_first_bad_snapshot() -> None:
    counts = ((1, 8.52, 2), (2, 15.34, 18))
    verdict = examine(
        replay([(g, EVALUATE, rss, {"TradingEnvironment": n}) for g, rss, n in counts])
    )
    assert verdict.status == "suspected"
    assert verdict.findings[0].suspects[0].count_per_generation == 16


@pytest.mark.parametrize("evaluated_in", [1, 2])
@pytest.mark.parametrize("tensor", ["Tensor", "torch.Tensor", "tensors.count"])
def test_scenario_2_blames_the_tensors_of_train_population(tensor: str, evaluated_in: int) -> None:
    first, last = {tensor: 567.0}, {tensor: 5678.0}
    rows: list[Row] = [
        (1, TRAIN, 9.12, first), (evaluated_in, EVALUATE, 10.89, {}), (2, TRAIN, 18.45, last),
    ]  # fmt: skip
    verdict = examine(replay(rows))
    assert SEVERITY.index(verdict.status) >= SEVERITY.index("suspected")
    finding = verdict.findings[0]
    assert (finding.phase, finding.kind) == (TRAIN, "tensors")
    assert finding.suspects[0].name.endswith("Tensor")
    # The report prints 8.56; the rows give 7.56 relative to the previous line and 9.33 relative to the same phase.
    assert 7.5 * GB <= finding.growth_bytes_per_generation.estimate <= 9.4 * GB


@pytest.mark.parametrize("split", [False, True], ids=["resident", "anonymous and file"])
def test_scenario_3_blames_the_agents_of_evolve_population(split: bool) -> None:
    rows: list[Row] = [(1, EVOLVE, 9.45, {"DDPGAgent": 17}), (2, EVOLVE, 20.12, {"DDPGAgent": 33})]
    verdict = examine(replay(rows, split=split))
    assert SEVERITY.index(verdict.status) >= SEVERITY.index("suspected")
    finding = verdict.findings[0]
    assert (finding.phase, finding.kind) == (EVOLVE, "objects")
    assert (finding.suspects[0].name, finding.suspects[0].count_per_generation) == ("DDPGAgent", 16)
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(10.67 * GB, rel=0.01)


def _fourth(end: int, declared: bool) -> RunHistory:
    first, rows = SCENARIO_4[0], list[Row]()
    for i, rss in enumerate(SCENARIO_4[:end]):
        row: dict[str, float] = {"TradingEnvironment": 2, "DDPGAgent": 16 if i < 2 else 17}
        if declared:
            row["tracked.replay.length"] = 10_000 + round((rss - first) * 6_000)
            row["tracked.replay.bytes"] = round((rss - first + 1) * GB)
        rows.append((i + 1, EVALUATE, rss, row))
    full = 10_000 + round((SCENARIO_4[-1] - first) * 6_000)
    return replay(rows, capacity=full if declared else None)


@pytest.mark.parametrize("end", range(1, 8))
@pytest.mark.parametrize("declared", [False, True])
def test_scenario_4_is_at_most_watched(end: int, declared: bool) -> None:
    verdict = examine(_fourth(end, declared))
    assert SEVERITY.index(verdict.status) <= SEVERITY.index("watch")
    if end <= 3 and not declared:
        assert verdict.status in ("learning", "watch")


def test_scenario_4_with_its_buffer_declared_is_filling_and_then_ok() -> None:
    for end in range(2, 7):
        verdict = examine(_fourth(end, declared=True))
        assert verdict.status == "filling", verdict.summary
        assert "replay" in verdict.summary
    full = _fourth(7, declared=True)
    assert (examine(full).status, container_fill(full)[0].state) == ("ok", "full")
    # While it grows without a declared limit it is not called flat.
    undeclared = examine(_fourth(7, declared=False))
    assert undeclared.status == "watch"
    assert undeclared.growth_bytes_per_generation is not None


BASELINE = "initialize"
# Report 004: the table of its first two generations.
TREND: list[Row] = [
    (0, BASELINE, 4.23, {"TradingEnvironment": 2, "DDPGAgent": 16, "ReplayBuffer": 1}),
    (1, EVALUATE, 8.52, {"TradingEnvironment": 2, "DDPGAgent": 16}),
    (1, TRAIN, 9.12, {"TradingEnvironment": 2, "DDPGAgent": 16}),
    (1, EVOLVE, 9.45, {"TradingEnvironment": 2, "DDPGAgent": 17}),
    (2, EVALUATE, 10.23, {"TradingEnvironment": 2, "DDPGAgent": 17}),
    (2, TRAIN, 10.89, {"TradingEnvironment": 2, "DDPGAgent": 17}),
    (2, EVOLVE, 11.12, {"TradingEnvironment": 2, "DDPGAgent": 17}),
]


def declared(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def band(series: str, first: int, last: int | None, low: float, high: float) -> Event:
    data = {"first": first, "last": last, "low_bytes": low, "high_bytes": high}
    return Event(0, 0.0, "band", series, data=data)


def test_a_crash_after_about_60_episodes_is_forecast_from_the_first_30() -> None:
    each, begins = 240 * MIB, 8
    levels = [2 * GIB + each * max(0, episode - begins) for episode in range(61)]
    before = replace(history_of(levels[:30], limit=levels[60]), unit="episode")
    verdict = examine(before)
    assert verdict.growth_bytes_per_generation is not None
    assert verdict.growth_bytes_per_generation.estimate == pytest.approx(each, rel=0.1)
    started = verdict.findings[0].started_at_generation
    assert started is not None
    assert abs(started.estimate - begins) <= 1
    assert verdict.oom.generation is not None
    assert verdict.oom.generation.estimate == pytest.approx(60, abs=2)
    assert verdict.oom.generation.low <= 60 <= verdict.oom.generation.high
    assert "per episode" in verdict.summary


@pytest.mark.parametrize(
    ("name", "limit"),
    [("losses", 1000), ("rewards", 1000), ("experience", 2000), ("steps", 100), ("collected", 20)],
)
def test_a_store_is_full_at_its_limit_and_over_with_one_more_entry(name: str, limit: int) -> None:
    def filled(*lengths: int) -> str:
        column = {f"tracked__{name}__length": lengths}
        history = history_of([500 * MIB] * len(lengths), **column)
        (row,) = container_fill(replace(history, capacities={name: limit}))
        assert row.capacity == limit
        return row.state

    assert filled(limit // 4, limit // 2) == "filling"
    assert filled(limit // 2, limit, limit, limit) == "full"
    # The store is not pruned, or has just come back from above its limit.
    assert filled(limit, limit + 1) == "over"


def test_an_unbounded_list_is_flagged_and_a_constant_one_is_not() -> None:
    lengths = [1000.0 * (g + 1) for g in range(20)]
    grows = history_of(
        [500 * MIB + 8 * MIB * g for g in range(20)], tracked__losses__length=lengths
    )
    verdict = examine(replace(grows, capacities={"losses": None}))
    (finding,) = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert finding.kind == "container"
    assert finding.suspects[0].name == "losses"
    assert finding.suspects[0].count_per_generation == pytest.approx(1000)
    flat = history_of([500 * MIB] * 20, tracked__losses__length=[1000.0] * 20)
    assert not examine(replace(flat, capacities={"losses": 1000})).findings


def test_five_planted_sources_are_ranked_by_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases = ("act", "store", "learn", "reset", "plot")
    types = {phase: f"app.{phase.title()}" for phase in phases}
    monkeypatch.setattr(builder, "STEPS", phases)
    monkeypatch.setattr(builder, "HEAP", tuple(types.values()))
    sizes = dict(zip(phases, (6, 24, 12, 40, 9), strict=True))
    leaks = tuple(
        Leak(
            phase, size * MIB, {types[phase]: 16},
            holders=(Holder(0, types[phase], f"app.Trainer.{phase}[*]", 16, size * MIB // 16),),
        )
        for phase, size in sizes.items()
    )  # fmt: skip
    training = Training(
        leaks=leaks, phases=phases, buffer_bytes=0, declare_buffer=False, noise=0.3 * MIB,
        counts=dict.fromkeys(types.values(), 4), watch=tuple(types.values()),
    )  # fmt: skip
    found = [
        f for f in examine(training.history()).findings if f.status in ("suspected", "confirmed")
    ]
    assert [f.phase for f in found] == ["reset", "store", "learn", "plot", "act"]
    for finding in found:
        planted = sizes[str(finding.phase)] * MIB
        assert finding.growth_bytes_per_generation.estimate == pytest.approx(planted, rel=0.15)


def test_the_run_after_the_fix_is_fixed_and_passes_60_episodes() -> None:
    before = Training(generations=60, leaks=(kept_environments(),), run="before")
    after = Training(generations=75, run="after", seed=3)
    result = compare(replace(before.history(), ended=True), after.history())
    assert result.outcome == "fixed", result.summary
    assert result.survival is not None
    assert result.survival.before.last_generation == 59
    assert result.survival.after.last_generation == 74


@pytest.mark.parametrize(
    ("rate", "grade"),
    [(5e9, "critical"), (5e9 - 1, "major"), (1e9, "major"), (1e9 - 1, "minor"), (0.0, "minor")],
)
def test_priorities_begin_at_the_limits_of_report_001(rate: float, grade: str) -> None:
    assert priority(rate) == grade
    assert priority(rate, Priorities(major_bytes=1, critical_bytes=2)) in ("critical", "minor")
    assert [one_worse("minor"), one_worse("major"), one_worse("critical")] == [
        "major", "critical", "critical",
    ]  # fmt: skip


def test_the_trend_of_report_004_has_both_kinds_of_changes() -> None:
    (process,) = replay(TREND).processes
    rows = trend(process)
    changes = [r.since_previous and round(r.since_previous / GB, 2) for r in rows]
    assert changes == [None, 4.29, 0.60, 0.33, 0.78, 0.66, 0.23]
    same = [r.since_same_phase and round(r.since_same_phase / GB, 2) for r in rows]
    assert same == [None, None, None, None, 1.71, 1.77, 1.67]


def test_the_baseline_of_report_004_meets_its_expectations() -> None:
    history = replay(TREND[:1], *DECLARED, expected("ReplayBuffer", 1, 1))
    assert [row.state for row in check_counts(history)] == ["holds"] * 3
    history = declared(history, band("process.rss_bytes", 0, 0, 4 * GB, 6 * GB))
    check, *_ = examine(history).assertions
    assert (check.state, check.checked, check.violations) == ("holds", 1, 0)


def test_the_sample_of_report_004_is_outside_its_own_band() -> None:
    """After the first evaluation 6 to 8 GB are normal, but the sample output shows 8.52 GB."""
    history = declared(replay(TREND[1:2]), band("process.rss_bytes", 1, 1, 6 * GB, 8 * GB))
    check, *_ = examine(history).assertions
    assert (check.state, check.violations) == ("broken", 1)
    assert check.deviations[0].difference == pytest.approx(0.52 * GB)


@pytest.mark.parametrize(("agents", "state"), [(17, "holds"), (18, "broken"), (30, "broken")])
def test_seventeen_agents_after_evolution_are_fine_and_30_are_a_leak(
    agents: int, state: str
) -> None:
    counts = ((1, 9.45, 17), (2, 9.6, agents), (3, 9.7, agents))
    rows: list[Row] = [(g, EVOLVE, rss, {"DDPGAgent": count}) for g, rss, count in counts]
    history = replay(rows, expected("DDPGAgent", 17, 17, EVOLVE))
    (row,) = check_counts(history)
    assert row.state == state
    found = [(f.status, f.suspects[0].name) for f in examine(history).findings]
    assert found == ([] if state == "holds" else [("suspected", "DDPGAgent")])


@pytest.mark.parametrize("healthy", [0, 2])
def test_zero_and_two_environments_can_both_be_expected(healthy: int) -> None:
    """Report 001 expects none after a generation, report 004 always two."""
    bounds = expected("TradingEnvironment", healthy, healthy, EVALUATE)
    for count, state in ((healthy, "holds"), (healthy + 1, "broken")):
        rows: list[Row] = [(g, EVALUATE, 8.5, {"TradingEnvironment": count}) for g in (1, 2, 3)]
        (row,) = check_counts(replay(rows, bounds))
        assert (row.state, row.low, row.high) == (state, healthy, healthy)


# GB added by each generation of a run: as report 004 expects, and with a leak.
EXPECTED = [1.5] * 5 + [0.7] * 5 + [0.2] * 15
TIMELINE = ((1, 5, 1.0, 2.0), (6, 10, 0.5, 1.0), (11, None, 0.0, 0.5))


def of_gains(gains: list[float]) -> RunHistory:
    levels = [4.23]
    for gain in gains:
        levels.append(levels[-1] + gain)
    rows = [("baseline", None, None), *(("generation_end", g + 1, None) for g in range(len(gains)))]
    return steps_history(rows, {"process.rss_bytes": [round(level * GB) for level in levels]})


def test_growth_is_compared_with_the_timeline_of_report_004() -> None:
    planned = [
        band("generation.growth_bytes", a, b, low * GB, high * GB) for a, b, low, high in TIMELINE
    ]
    fine = examine(declared(of_gains(EXPECTED), *planned)).assertions
    assert [(c.checked, c.violations) for c in fine] == [(5, 0), (5, 0), (15, 0)]
    leaks = examine(declared(of_gains([1.5] * 5 + [7.0] * 8), *planned)).assertions
    assert [(c.checked, c.violations) for c in leaks] == [(5, 0), (5, 5), (3, 3)]
    assert leaks[1].deviations[0].difference == pytest.approx(6 * GB)
    assert leaks[1].sentence.startswith("Above in generations 6 to 10 by up to 5.59 GiB")


def test_growth_across_an_unrecorded_generation_is_unknown() -> None:
    history = of_gains([1.5] * 6)
    (process,) = history.processes
    gap = [g if g is None or g < 4 else g + 1 for g in process.generation]
    gapped = replace(history, processes=(replace(process, generation=gap),))
    (check,) = examine(
        declared(gapped, band("generation.growth_bytes", 1, 7, GB, 2 * GB))
    ).assertions
    assert (check.checked, check.violations) == (5, 0)


def _of_one_process(rng: random.Random, seed: int) -> tuple[int, RunHistory]:
    start = rng.randint(3, 18)
    return start, Training(**_leaking(rng, start), generations=32, seed=seed).history()


def _resumed(rng: random.Random, seed: int) -> tuple[int, RunHistory]:
    start, resume = rng.randint(3, 18), rng.randint(6, 26)
    return start, _of_two_attempts(rng, seed, start, resume)


def _begun_after_the_resume(rng: random.Random, seed: int) -> tuple[int, RunHistory]:
    resume = rng.randint(6, 16)
    start = rng.randint(resume, 22)
    return start, _of_two_attempts(rng, seed, start, resume)


def _of_two_attempts(rng: random.Random, seed: int, start: int, resume: int) -> RunHistory:
    """Return a run whose second attempt warms up like the first and may repeat up to two generations."""
    given, again = _leaking(rng, start), rng.randint(0, 2)
    first = Training(**given, generations=resume, seed=seed, instance="p1")
    second = Training(
        **given, generations=32 - resume + again, seed=seed + 9_999, instance="p2", attempt=2,
        first_generation=resume - again,
    )  # fmt: skip
    return history_from_batches(first.header(), [*first.batches(), *second.batches()])


def _leaking(rng: random.Random, start: int) -> dict[str, Any]:
    leak = Leak(rng.choice((EVALUATE, TRAIN)), rng.uniform(4, 20) * MIB, {}, start=start)
    return {"leaks": (leak,), "buffer_bytes": 0}


@pytest.mark.long
@pytest.mark.parametrize("made", [_of_one_process, _resumed, _begun_after_the_resume])
def test_the_interval_of_the_start_contains_the_truth(
    made: Callable[[random.Random, int], tuple[int, RunHistory]],
) -> None:
    inside, errors, widths = [], [], []
    for seed in range(500):
        start, history = made(random.Random(seed), seed)
        found = examine(history).findings[0].started_at_generation
        assert found is not None, seed
        inside.append(found.low <= start <= found.high)
        errors.append(abs(found.estimate - start))
        widths.append(found.high - found.low)
    assert sum(inside) >= 0.85 * len(inside)
    assert median(errors) <= 1
    # A very wide interval would be useless: the gap of a resume is at most five generations.
    assert median(widths) <= 5
