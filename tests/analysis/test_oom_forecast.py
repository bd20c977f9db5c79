"""The forecast of a run's end of memory, and the priority that follows: histories with and without a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from builder import GIB, MIB

from leakline.analysis import RunHistory, examine
from leakline.analysis.history import ProcessHistory
from leakline.analysis.priority import Priorities
from leakline.analysis.results import Verdict
from leakline.report.facts import forecast_headline

RATE = 57.27 * MIB


def verdict_of(
    levels: Callable[[int], float], generations: int = 40, *, limit: float | None = 23.54 * GIB,
    total: int | None = None, seconds: float = 1.0, ended: bool = False,
) -> Verdict:  # fmt: skip
    n = generations
    at = [1_795_000_000.0 + seconds * i for i in range(n)]
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), at, at, range(n), [None] * n, [""] * n, ["generation_end"] * n,
        {"process.anon_bytes": [round(levels(g)) for g in range(n)]},
    )  # fmt: skip
    history = RunHistory("r", total=total, processes=(process,))
    return examine(replace(history, limit_bytes=limit and round(limit), ended=ended))


def steady(generation: int) -> float:
    return 300 * MIB + RATE * generation + (generation * generation % 7) * 5 * MIB


def test_a_leak_that_fills_memory_far_ahead_of_the_planned_end_has_a_generation() -> None:
    verdict = verdict_of(steady, total=1_000)
    oom = verdict.oom
    true = (23.54 * GIB - 300 * MIB) / RATE
    assert oom.generation is not None
    assert oom.generation.estimate == pytest.approx(true, rel=0.01)
    assert oom.generation.low <= true <= oom.generation.high
    assert oom.risk == "high"
    assert oom.sentence.startswith(
        f"OOM near generation {round(oom.generation.estimate)} of 1,000 at this rate ("
    )
    assert oom.at is not None
    assert verdict.findings[0].priority == "critical"


def test_the_interval_widens_with_the_distance() -> None:
    def width(limit: float) -> float:
        found = verdict_of(steady, limit=limit).oom.generation
        assert found is not None
        return found.high - found.low

    assert width(4 * GIB) < width(23.54 * GIB) < width(200 * GIB)


def test_a_leak_that_fits_is_computed_to_last_until_the_planned_end() -> None:
    verdict = verdict_of(lambda g: GIB + 10 * MIB * g, total=160)
    assert verdict.oom.sentence == "not before the planned end (2.55 GiB of 23.54 GiB by then)"
    assert (verdict.oom.risk, verdict.findings[0].priority) == ("none", "minor")
    assert verdict.oom.generation is not None
    assert verdict.oom.generation.low > 160


def test_a_leak_without_a_plan_that_fills_in_weeks_says_when_and_is_no_risk() -> None:
    verdict = verdict_of(lambda g: GIB + 10 * MIB * g, seconds=1_500)
    assert verdict.oom.sentence.startswith("OOM near generation 2,30")
    assert "about 2026-12-28 " in verdict.oom.sentence
    assert (verdict.oom.risk, verdict.findings[0].priority) == ("none", "minor")
    slower = verdict_of(lambda g: GIB + 10 * MIB * g, seconds=86_400)
    assert slower.oom.sentence == "not within a year at this rate"


def test_a_leak_without_a_plan_that_fills_within_a_day_is_critical() -> None:
    verdict = verdict_of(steady)
    assert (verdict.oom.risk, verdict.findings[0].priority) == ("low", "critical")
    # In 24 generations more it takes a tenth of the limit, and does not fill it.
    assert verdict_of(steady, seconds=3_600).findings[0].priority == "major"


def test_growth_that_speeds_up_fills_memory_sooner() -> None:
    faster = verdict_of(lambda g: GIB + MIB * g * g, 60, total=1_000).oom.generation
    assert faster is not None
    assert faster.estimate == pytest.approx((22.54 * 1024) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    "levels", [lambda g: GIB + (g % 3) * MIB, lambda g: GIB + min(g, 6) * 50 * MIB]
)
def test_a_run_that_does_not_grow_has_no_end_in_sight(levels: Callable[[int], float]) -> None:
    verdict = verdict_of(levels, 60, total=1_000)
    assert (verdict.oom.generation, verdict.oom.risk) == (None, "none")
    assert verdict.oom.sentence == "not in sight"


def test_what_cannot_be_known_says_so() -> None:
    assert verdict_of(steady, limit=None).oom.sentence == "no limit known"
    assert verdict_of(steady, 3).oom.sentence == "not known yet"
    assert verdict_of(steady, 3, ended=True).oom.sentence == "not known: too few generations"


def test_the_forecast_of_a_run_that_ended_is_past() -> None:
    sentence = verdict_of(steady, ended=True).oom.sentence
    assert sentence.startswith("OOM was forecast near generation 4")
    assert "about" not in sentence


def test_an_interval_that_rounds_to_one_number_is_not_shown() -> None:
    sentence = verdict_of(lambda g: GIB + 100 * MIB * g, 40, limit=5.2 * GIB, total=99).oom.sentence
    assert " at this rate, about " in sentence


def test_what_is_major_moves_with_the_settings() -> None:
    def priority(limits: Priorities) -> str:
        at = 1_795_000_000.0
        n = range(40)
        process = ProcessHistory(
            "p", 0, "main", 1, n, [at + g for g in n], [at + g for g in n], n, [None] * 40, [""] * 40,
            ["generation_end"] * 40, {"process.anon_bytes": [round(GIB + 10 * MIB * g) for g in n]},
        )  # fmt: skip
        history = RunHistory("r", total=160, processes=(process,), limit_bytes=round(23.54 * GIB))
        return examine(history, priorities=limits).findings[0].priority

    assert priority(Priorities()) == "minor"
    assert priority(Priorities(share=0.05)) == "major"
    assert priority(Priorities(major_bytes=1e6)) == "major"


def test_the_headline_and_its_detail_are_the_sentence() -> None:
    oom = {"sentence": "OOM near generation 415 of 1,000 at this rate (380 to 460)"}
    assert forecast_headline(oom, "generation") == (
        "OOM near generation 415 of 1,000",
        "at this rate (380 to 460)",
    )
    assert forecast_headline({"sentence": "no limit known"}, "epoch") == ("no limit known", "")


def test_an_ended_run_without_readings_of_memory_says_so() -> None:
    n = 12
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), range(n), range(n), range(n), [None] * n, [""] * n, ["generation_end"] * n,
        {"type.app.Env.count": [3] * n},
    )  # fmt: skip
    run = RunHistory("r", processes=(process,))
    assert examine(run).oom.sentence == "not known yet"
    assert examine(replace(run, ended=True)).oom.sentence == "not known: memory was not read"
