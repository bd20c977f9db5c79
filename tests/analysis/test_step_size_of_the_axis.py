"""The verdict depends on the readings, not on how the program numbers them: by one, by the hundred or irregularly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import corpus
import pytest
from builder import MIB, TRAIN, Leak, Training, kept_environments, loss_graph

from leakline.analysis import examine
from leakline.analysis.comparison import compare
from leakline.analysis.evidence import Scale
from leakline.analysis.history import RunHistory
from leakline.analysis.results import Verdict
from leakline.analysis.series import spacing_of
from leakline.analysis.settling import settling_of
from leakline.analysis.spans import Spans
from leakline.analysis.units import passed

FAMILIES = (
    corpus.flat, corpus.fill, corpus.saturation, corpus.logarithm, corpus.steps, corpus.sawtooth, corpus.season,
    corpus.warm_up, corpus.linear, corpus.late, corpus.stairs, corpus.accelerating,
)  # fmt: skip


def renumbered(history: RunHistory, number: Callable[[int], int]) -> RunHistory:
    processes = tuple(
        replace(process, generation=[None if g is None else number(g) for g in process.generation])
        for process in history.processes
    )
    return replace(history, processes=processes)


def line(levels: Sequence[float], number: Callable[[int], int] = lambda g: g) -> Verdict:
    case = corpus.Case("line", list(levels))
    return examine(renumbered(corpus.history_of(case), number))


def irregular(generation: int) -> int:
    return 100 * generation + (17, 0, 53, 88)[generation % 4]


@pytest.mark.parametrize("number", [
    lambda g: g, lambda g: 100 * g, lambda g: 10_000 * g, lambda g: 1_764_150_000 + 60 * g, irregular,
], ids=["by one", "by a hundred", "by ten thousand", "Unix seconds", "irregular"])  # fmt: skip
def test_memory_that_doubles_in_a_straight_line_is_a_leak(number: Callable[[int], int]) -> None:
    rng = random.Random(4)
    levels = [2e9 * (1 + i / 59) + rng.gauss(0, 1e7) for i in range(60)]
    verdict = line(levels, number)
    assert verdict.status == "confirmed"
    assert verdict.settled_at_generation is None
    growth = verdict.growth_bytes_per_generation
    assert growth is not None
    whole = growth.estimate * (number(59) - number(0))
    assert whole == pytest.approx(2e9, rel=0.05)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_the_status_is_that_of_the_run_numbered_by_one(
    family: Callable[[random.Random, int], corpus.Case],
) -> None:
    for seed, step in enumerate((100, 10_000)):
        history = corpus.history_of(family(random.Random(seed), 40))
        plain, wide = examine(history), examine(renumbered(history, lambda g, step=step: step * g))  # type: ignore[misc]
        assert wide.status == plain.status
        assert wide.oom.risk == plain.oom.risk
        settled = (plain.settled_at_generation, wide.settled_at_generation)
        assert (settled[0] is None) == (settled[1] is None)
        if settled[0] and settled[1]:
            assert settled[1].estimate == step * settled[0].estimate


@pytest.mark.parametrize("leak", [kept_environments(), loss_graph(start=8)])
def test_a_finding_has_its_kind_place_and_rate_at_any_step(leak: object) -> None:
    history = Training(30, leaks=(leak,)).history()  # type: ignore[arg-type]
    plain, wide = examine(history), examine(renumbered(history, lambda g: 100 * g))
    assert wide.status == plain.status == "confirmed"
    one, hundred = plain.findings[0], wide.findings[0]
    assert (hundred.kind, hundred.phase, hundred.suspects[0].name) == (
        one.kind, one.phase, one.suspects[0].name,
    )  # fmt: skip
    rates = [f.growth_bytes_per_generation.estimate for f in (one, hundred)]
    assert rates[1] * 100 == pytest.approx(rates[0], rel=0.02)
    counts = [f.suspects[0].count_per_generation or 0.0 for f in (one, hundred)]
    assert counts[1] * 100 == pytest.approx(counts[0], rel=0.02)
    starts = [f.started_at_generation for f in (one, hundred)]
    assert starts[0] and starts[1]
    assert abs(starts[1].estimate - 100 * starts[0].estimate) <= 100


def test_a_healthy_training_stays_healthy_at_any_step() -> None:
    history = Training(30).history()
    for step in (7, 1_000):
        verdict = examine(renumbered(history, lambda g, step=step: step * g))  # type: ignore[misc]
        assert verdict.status == examine(history).status == "ok"
        assert not [f for f in verdict.findings if f.status != "ok"]


def test_a_comparison_is_judged_per_reading() -> None:
    leaking, fixed = (
        renumbered(Training(30, leaks=leaks).history(), lambda g: 100 * g)
        for leaks in ((kept_environments(),), ())
    )
    assert compare(leaking, fixed).outcome == "fixed"
    assert compare(fixed, leaking).outcome == "worse"
    assert compare(fixed, fixed).outcome == "no_effect"


def test_a_few_lost_generations_are_no_step() -> None:
    assert spacing_of(()) == spacing_of((7,)) == 1
    assert spacing_of((0, 1, 2, 5, 6, 7, 19, 20)) == 1
    assert spacing_of((0, 100, 200, 300)) == 100
    assert spacing_of((0, 10, 20, 30, 400, 410)) == 10


def test_readings_and_steps_are_told_apart_where_most_steps_were_not_reported() -> None:
    assert passed("step", Spans.of(range(0, 6000, 100))) == 5901
    assert passed("step", Spans.of(range(60))) is None
    assert passed("generation", Spans.of([0, 1, 2, 4, 5, 7])) is None
    assert "over 60 readings in 5,901 steps" in line([2e9] * 60, lambda g: 100 * g).summary.replace(
        "generation", "step"
    )


@pytest.mark.parametrize("share", [0.0002, 0.0004, 0.002, -0.0004])
@pytest.mark.parametrize("readings", [40, 300])
def test_a_line_that_goes_on_as_before_is_not_flat_from_somewhere(
    share: float, readings: int
) -> None:
    """Too slow to matter within a hundred generations, and never settled."""
    rng = random.Random(9)
    base = 2000 * MIB
    levels = [base * (1 + share * i) + rng.gauss(0, 0.2 * MIB) for i in range(readings)]
    found = settling_of([float(i) for i in range(readings)], levels, Scale(base))
    assert found is None or found.estimate == 0


@pytest.mark.parametrize("spacing", [1, 10, 100])
def test_memory_that_rises_in_other_readings_than_a_handle_is_not_its_growth(spacing: int) -> None:
    training = Training(
        generations=36, noise=0.2 * MIB, census_every=1,
        leaks=(
            Leak(TRAIN, 18 * MIB, times=lambda g: float(g % 3 == 0)),
            Leak(TRAIN, 0.0, {"threading.Thread": 1.0}, times=lambda g: float(g % 3 == 1)),
        ),
    )  # fmt: skip
    training.counts["threading.Thread"] = 0.0
    finding = examine(renumbered(training.history(), lambda g: spacing * g)).findings[0]
    assert (finding.kind, finding.suspects) == ("native", ())
