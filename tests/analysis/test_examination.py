"""Detection over a corpus of generated runs, compared with Mann-Kendall at every generation, and its cost.

Run with ``-s`` to see the table. Sizes of declared buffers are known to 10 %, as in real runs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence

import pytest
from builder import MIB
from corpus import BENIGN, LEAKS, Case
from corpus import history_of as corpus_history
from pieces import steps_history
from scipy import stats

from leakline.analysis import RunHistory, examine
from leakline.analysis.assessment import assess
from leakline.analysis.run_history import Expectation
from leakline.analysis.status import ACTIVE, step
from leakline.analysis.timeline import timelines_of
from leakline.analysis.timeline_analysis import TimelineAnalysis

GENERATIONS = 90
RUNS_PER_FAMILY = 20
LEAKS_PER_FAMILY = 12
SEED = 20


def statuses(case: Case) -> list[str]:
    """Return the worst status at every generation, as a live run would have shown it."""
    history = corpus_history(case)
    study = TimelineAnalysis(history, timelines_of(history)[0])
    remembered: dict = {}
    shown = []
    for end in range(1, len(study.timeline) + 1):
        step(study, assess(study, end), remembered)
        shown.append(max((m.status for m in remembered.values()), key=_severity, default="ok"))
    return shown


def _severity(status: str) -> int:
    return ("suspected", "confirmed").index(status) + 1 if status in ACTIVE else 0


def mann_kendall(case: Case) -> bool:
    """Return True if the rank trend test ever reports a rise at 5 %, from 8 generations on."""
    return any(
        test.pvalue < 0.05 and test.statistic > 0
        for end in range(8, len(case.values) + 1, 4)
        for test in [stats.kendalltau(range(end), case.values[:end])]
    )


def _cases(make: Callable[[random.Random, int], Case], runs: int) -> tuple[Case, ...]:
    return tuple(
        make(random.Random(f"{make.__name__} {SEED} {i}"), GENERATIONS) for i in range(runs)
    )


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


@pytest.mark.long
def test_benign_runs_are_rarely_suspected_and_almost_never_confirmed() -> None:
    suspected: dict[str, list[bool]] = {}
    confirmed: list[bool] = []
    baseline: list[bool] = []
    for make in BENIGN:
        for case in _cases(make, RUNS_PER_FAMILY):
            shown = statuses(case)
            suspected.setdefault(case.family, []).append(any(_severity(s) for s in shown))
            confirmed.append("confirmed" in shown)
            baseline.append(mann_kendall(case))
    alarms = [alarm for found in suspected.values() for alarm in found]
    by_family = {family: round(_share(seen), 2) for family, seen in suspected.items() if any(seen)}
    sys.stdout.write(
        f"\n{len(alarms)} benign runs: suspected {_share(alarms):.1%} {by_family}, "
        f"confirmed {_share(confirmed):.1%}; Mann-Kendall alarms on {_share(baseline):.1%}\n"
    )
    assert _share(alarms) <= 0.05
    assert _share(confirmed) <= 0.01
    assert _share(baseline) >= 10 * _share(alarms)


@pytest.mark.long
def test_leaks_are_found_soon_after_their_start() -> None:
    delays: dict[str, list[int]] = {}
    found: list[bool] = []
    confirmed: list[bool] = []
    baseline: list[bool] = []
    for make in LEAKS:
        for case in _cases(make, LEAKS_PER_FAMILY):
            assert case.start is not None
            shown = statuses(case)
            first = next((i for i, s in enumerate(shown) if _severity(s) and i >= case.start), None)
            found.append(first is not None)
            confirmed.append("confirmed" in shown[case.start :])
            baseline.append(mann_kendall(case))
            if first is not None:
                delays.setdefault(case.family, []).append(first - case.start)
    medians = {family: sorted(seen)[len(seen) // 2] for family, seen in delays.items()}
    sys.stdout.write(
        f"\n{len(found)} leaks: suspected {_share(found):.1%}, confirmed {_share(confirmed):.1%}; "
        f"Mann-Kendall finds {_share(baseline):.1%}; median delay in generations {medians}\n"
    )
    assert _share(found) >= 0.98
    assert _share(found) >= _share(baseline) - 0.02
    assert _share(confirmed) >= 0.95


PHASES = ("evaluate", "train", "evolve", None)


def _history(generations: int, types: int = 60) -> RunHistory:
    """Return a history with four snapshots per generation and 60 series: steady, noisy, growing and sparse counts."""
    rng = random.Random(1)
    n = 4 * generations
    generation = [i // 4 for i in range(n)]
    rows = [
        ("phase_end" if (phase := PHASES[i % 4]) else "generation_end", i // 4, phase)
        for i in range(n)
    ]
    series: dict[str, list[float | int | None]] = {
        "process.anon_bytes": [
            round(500 * MIB + i * MIB / 4 + rng.gauss(0, MIB)) for i in range(n)
        ],
    }
    for t in range(types - 1):
        name = f"type.app.Class{t}.count"
        if t % 4 == 0:
            series[name] = [100 + t] * n
        elif t % 4 == 1:
            series[name] = [100 + round(rng.gauss(0, 5)) for _ in range(n)]
        elif t % 4 == 2:
            series[name] = [100 + 3 * g for g in generation]
        else:
            series[name] = [50 + i if i % 40 == 0 else None for i in range(n)]
    return steps_history(rows, series, expectations=(Expectation("Class0", 100, 100),))


def _seconds(history: RunHistory) -> float:
    """Return the best of three times, since the machine may be busy; the bounds allow a factor of three."""
    best = 1e9
    for _ in range(3):
        began = time.process_time()
        examine(history)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.long
@pytest.mark.alone
def test_a_thousand_generations_are_examined_in_about_a_second() -> None:
    short, long = _seconds(_history(250)), _seconds(_history(1000))
    sys.stdout.write(f"\nexamine: 250 generations {short:.2f} s, 1,000 generations {long:.2f} s\n")
    assert long < 3.0
    assert long < 6 * short + 0.5
